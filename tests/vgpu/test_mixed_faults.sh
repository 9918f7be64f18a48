#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_mixed_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in fwd_hopper_mixed, fwd_hopper_mixed_fp8 and fwd_hopper_invariant, found by
# test_vgpu_mixed, test_vgpu_fp8 and test_vgpu_batch_invariant: faults.sh.
set -u

source=$1 build=$2
shift 2

plant() { # TABLE VARIANT KERNEL PROGRAM
    table=$1 variant=$2 kernel=$3 program=$4
    shift 4
    sh "$source/tests/vgpu/faults.sh" "$source" "$build" "$table" "$variant" "$kernel" "$program" "$@"
}

plant mixed.txt fwd_hopper_mixed_fp16_d64_128x64_w12_s6 hopper/forward_mixed.cu mixed "$@" || exit $?
plant mixed_fp8.txt fwd_hopper_mixed_fp8_fp16_d64_128x64_w12_s6 hopper/forward_mixed_fp8.cu fp8 "$@" || exit $?
plant invariant.txt fwd_hopper_invariant_fp16_d64_128x64_w12_s6 hopper/forward_invariant.cu batch_invariant "$@"
