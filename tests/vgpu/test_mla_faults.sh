#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_mla_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in fwd_hopper_mla and fwd_mma_wide, found by test_vgpu_mla: faults.sh.
set -u

source=$1 build=$2
shift 2

plant() { # TABLE VARIANT KERNEL
    table=$1 variant=$2 kernel=$3
    shift 3
    sh "$source/tests/vgpu/faults.sh" "$source" "$build" "$table" "$variant" "$kernel" mla "$@"
}

plant mla.txt fwd_hopper_mla_fp16_d576_64x64_w12_s2 hopper/mla.cu "$@" || exit $?
plant wide.txt fwd_mma_wide_fp16_d576_16x16_w4_s2 portable/fwd_mma_wide.cu "$@"
