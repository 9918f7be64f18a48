#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# environment.sh FOLDER
#
# Makes a virtual environment in FOLDER (or $ATTN_VENV, if set) with requirements.txt, unless one with these is there already,
# and prints the path of its Python. PyTorch of python3 itself is used where it has one, and not
# downloaded: PyPI's wheels have 100 MB on aarch64, but 900 MB on x86_64, with 3 GB of CUDA which they
# need to be loaded (to avoid that, name an index with CPU wheels in PIP_EXTRA_INDEX_URL).
#
# Invariant: prints a Python that imports torch and pytest, or fails; never half an environment.
set -eu

folder=${ATTN_VENV:-$1}
here=$(cd "$(dirname "$0")" && pwd)
python=$folder/bin/python

if ! { cmp "$here/requirements.txt" "$folder/installed.txt" &&
    "$python" -c 'import torch, pytest'; } >/dev/null 2>&1; then
    site=''
    if python3 -c 'import torch
assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 5)' 2>/dev/null; then
        site=--system-site-packages
    fi
    echo "environment.sh: installing requirements.txt into $folder (once; a minute or more)" >&2
    rm -rf "$folder"
    # shellcheck disable=SC2086 # no word where there is none
    python3 -m venv $site "$folder" >&2
    if [ -n "$site" ]; then
        grep -v '^torch' "$here/requirements.txt" >"$folder/requirements.txt"
    else
        cp "$here/requirements.txt" "$folder/requirements.txt"
    fi
    "$python" -m pip install -q --no-compile --disable-pip-version-check \
        -r "$folder/requirements.txt" >&2
    "$python" -c 'import torch, pytest'
    cp "$here/requirements.txt" "$folder/installed.txt"
fi
echo "$python"
