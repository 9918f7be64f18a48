#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ci.sh [WHEEL]
#
# Tests a wheel [the one that wheels.sh builds for the host's architecture] as users install it:
# first in an empty virtual environment, then in one with PyPI's PyTorch and transformers
# (build/python-venv, which is kept). Runs attest, the examples, the tests, and the peers for a
# moment. Tests of GPU memory run on the virtual GPU. All else is under build/python-ci, which is
# emptied first.
#
# Invariant: the checkout's python/ is not on sys.path; an unexpected skip is a failure.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/build/python-ci
skips='NVIDIA GPU|required in float32 only'

wheel=${1:+$(realpath "$1")}
rm -rf "$folder"
mkdir -p "$folder/empty"
if [ -z "$wheel" ]; then
    ATTN_TARGETS=$(uname -m) sh "$root/python/wheels.sh" "$folder"
    wheel=$(ls "$folder"/attn-*.whl)
fi
case $wheel in *-0nokernels-*) skips="$skips|GPU kernels" ;; esac

cd "$folder/empty"
python3 -m venv "$folder/bare"
"$folder/bare/bin/pip" install -q --disable-pip-version-check --no-index "$wheel"
"$folder/bare/bin/python" "$root/python/tests/fresh.py"
python=$(sh "$root/python/environment.sh" "$root/build/python-venv")
"$python" -m pip install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
"$python" "$root/python/tests/fresh.py"
"${python%/*}/attest" devices
"${python%/*}/attest" exec true # fails without the CUDA runtime of the virtual GPU
"${python%/*}/attn-peers" --device cpu --quick --seconds 0.2 --only 'B2 H8 S512 D64$' \
    --dtype fp32 --json ../peers.json
"$python" -m attn.peers --show ../peers.json --picture ../peers.svg >/dev/null
"$python" -m pytest -q -p no:cacheprovider -rs --doctest-modules --pyargs attn \
    "$root/python/tests" --expect-skips "$skips"
package=$("$python" -c 'import attn; print(attn.__path__[0])')
cc -O2 -shared -fPIC -fvisibility=hidden "$root"/examples/onnxruntime/*.c -o ../libattn_ort.so \
    -I"$package/include" -L"$package/lib" -lattn -Wl,-rpath,"$package/lib"
"$python" "$root/examples/onnxruntime/run.py" ../libattn_ort.so --quick
"$python" -m torch.distributed.run --nproc-per-node 2 "$root/examples/long_context.py" 512 3
"$python" -m torch.distributed.run --nproc-per-node 4 "$root/examples/fsdp.py" 128 2
"$python" -m torch.distributed.run --nproc-per-node 4 "$root/examples/fsdp.py" 128 2 --tensor
version=$("$python" -c 'import torch; print(torch.__version__)')
echo "python/ci.sh: passed, torch $version, $(uname -m)"
