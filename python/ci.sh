#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ci.sh [FOLDER]
#
# The wheel as its users get it: built (without GPU kernels, in a minute), installed in a fresh
# virtual environment with PyPI's PyTorch and transformers, its program run, its examples and
# tests run against it, and the peers measured for a moment. The tests of GPU memory run on the
# virtual GPU against build/libattn.so, which has kernels where there is nvcc. Everything is under
# FOLDER [build/python-ci], which is made anew.
#
# Invariant: the checkout's python/ is not on sys.path; an unexpected skip is a failure.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/build/python-ci}
usual='NVIDIA GPU|required in float32 only'

rm -rf "$folder"
mkdir -p "$folder/empty"
python=$(sh "$root/python/environment.sh" "$folder/venv")
"$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$folder" \
    -C cmake.define.ATTN_KERNELS=OFF -C build-dir="$folder/wheel-build" "$root"
"$python" -m pip install -q --disable-pip-version-check --no-deps "$folder"/attn-*.whl

cd "$folder/empty"
"$folder/venv/bin/attest" devices
"$folder/venv/bin/attn-peers" --device cpu --quick --seconds 0.2 --only 'B2 H8 S512 D64$' \
    --dtype fp32 --json ../peers.json
"$python" -m attn.peers --show ../peers.json --picture ../peers.svg >/dev/null
"$python" -m pytest -q -p no:cacheprovider -rs --doctest-modules --pyargs attn \
    "$root/python/tests" --expect-skips "$usual|GPU kernels"
if [ -e "$root/build/libattn.so" ]; then
    if (PATH=$PATH:/usr/local/cuda/bin && command -v "${CUDACXX:-nvcc}" >/dev/null); then
        kernels='' # then it has some
    else
        kernels='|GPU kernels'
    fi
    ATTN_LIBRARY=$root/build/libattn.so "$python" -m pytest -q -p no:cacheprovider -rs \
        "$root/python/tests/test_gpu.py" --expect-skips "$usual$kernels"
fi
version=$("$python" -c 'import torch; print(torch.__version__)')
echo "python/ci.sh: passed, torch $version, $(uname -m)"
