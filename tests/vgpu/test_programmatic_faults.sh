#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_programmatic_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Waits for the kernel before that are left out, found by test_vgpu_programmatic: faults.sh.
set -u

source=$1 build=$2
shift 2

plant() { # TABLE VARIANT KERNEL
    table=$1 variant=$2 kernel=$3
    shift 3
    sh "$source/tests/vgpu/faults.sh" "$source" "$build" "$table" "$variant" "$kernel" programmatic \
        "$@"
}

plant programmatic.txt fwd_hopper_fp16_d64_128x64_w12_s6 hopper/forward.cu "$@" || exit $?
plant programmatic_decode.txt fwd_hopper_decode_fp16_d64_16x256_w8_s2 hopper/decode.cu "$@"
