#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# debug_kernels.sh BUILD_DIR DEVICE [OPTION...]
#
# Builds one kernel of each family with its device asserts, below BUILD_DIR, and runs each in place
# of the release image by `attest parity --device DEVICE OPTION...`: on cuda as machine code for
# sm_90, on vgpu as PTX. A family without asserts is named and left out: its image is the release's.
#
# Invariant: exit code 0 iff all were built, some have asserts and those passed; 3 if one could not
# run.
set -u

build=$1
device=$2
shift 2
root=$(cd "$(dirname "$0")/../.." && pwd)
debug=$build/debug-kernels

cmake -S "$root" -B "$debug" -DATTN_KERNELS=ON -DATTN_KERNEL_DEBUG=ON -DATTN_VARIANTS=_fp16_d64_ \
    -DATTN_ONE_OF_EACH=ON -DBUILD_TESTING=OFF >"$build/debug-kernels.log" 2>&1 &&
    cmake --build "$debug" --target kernel_images --parallel "$(nproc)" \
        >>"$build/debug-kernels.log" 2>&1 || {
    tail -n 20 "$build/debug-kernels.log"
    exit 1
}
ran=0
for ptx in "$debug"/kernels/*.ptx; do
    variant=$(basename "$ptx" .ptx)
    if ! grep -q __assertfail "$ptx"; then
        echo "$variant has no device assert: left out"
        continue
    fi
    ran=$((ran + 1))
    image=$ptx
    if [ "$device" != vgpu ]; then
        image=$(ls "$debug/kernels/$variant".sm_90*.cubin)
    fi
    direction=forward
    case $variant in bwd_*) direction=backward ;; esac
    "$build/attest" parity --device "$device" --direction $direction --variant "^$variant\$" \
        --image "$image" "$@" || exit
done
if [ "$ran" -eq 0 ]; then
    echo "debug_kernels.sh: no kernel has a device assert" >&2
    exit 1
fi
