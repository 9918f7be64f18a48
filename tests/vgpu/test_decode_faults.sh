#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_decode_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in fwd_hopper_decode and fwd_hopper_decode_fp8, found by
# test_vgpu_paged and test_vgpu_fp8: faults.sh.
set -u

source=$1 build=$2
shift 2

plant() { # TABLE VARIANT KERNEL PROGRAM
    table=$1 variant=$2 kernel=$3 program=$4
    shift 4
    sh "$source/tests/vgpu/faults.sh" "$source" "$build" "$table" "$variant" "$kernel" "$program" "$@"
}

plant decode.txt fwd_hopper_decode_fp16_d64_16x256_w8_s2 hopper/decode.cu paged "$@" || exit $?
plant decode_fp8.txt fwd_hopper_decode_fp8_fp16_d64_16x256_w8_s4 hopper/decode_fp8.cu fp8 "$@"
