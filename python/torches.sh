#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# torches.sh WHEEL [VERSION...]
#
# Tests a wheel with the oldest PyTorch that it supports and with the newest that the index has [2.5.0
# and that one; or the versions given], each in a fresh virtual environment with nothing else but
# NumPy and pytest: fresh.py, and the tests of attn.torch, of gradients, of the flash-attn functions
# and of PyTorch's registry. By hand: a PyTorch with its CUDA has 5 GB, in $TMPDIR.
#
# Invariant: exit code 0 iff all of them passed; the environments are removed.
set -eu

wheel=$(realpath "$1")
shift
tests=$(cd "$(dirname "$0")/tests" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
[ $# -gt 0 ] || set -- 2.5.0 newest
for version; do
    wanted=torch==$version
    [ "$version" != newest ] || wanted=torch
    python3 -m venv env
    env/bin/pip install -q --no-compile --disable-pip-version-check "$wanted" numpy pytest expecttest "$wheel"
    env/bin/python "$tests/fresh.py"
    env/bin/python -m pytest -q -p no:cacheprovider "$tests/test_torch.py" "$tests/test_autograd.py" \
        "$tests/test_flash_attn.py" "$tests/test_registry.py" --expect-skips 'NVIDIA GPU|transformers|torch.nn.attention'
    rm -rf env
done
