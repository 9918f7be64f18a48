#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_backward_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in the backward kernels, found by test_vgpu_backward and its laws: faults.sh.
set -u

source=$1 build=$2
shift 2

plant() { # TABLE VARIANT KERNEL
    table=$1 variant=$2 kernel=$3
    shift 3
    sh "$source/tests/vgpu/faults.sh" "$source" "$build" "$table" "$variant" "$kernel" backward "$@"
}

plant backward.txt bwd_mma_fp16_d64_64x32_w4_s2 portable/bwd_mma.cu "$@" || exit $?
plant backward_tf32.txt bwd_tf32_fp32_d256_16x16_w2_s2 portable/bwd_tf32.cu "$@" || exit $?
plant backward_hopper.txt bwd_hopper_fp16_d64_128x128_w12_s2 hopper/backward/backward.cu "$@" || exit $?
plant backward_wide.txt bwd_hopper_wide_fp16_d256_64x64_w12_s2 hopper/backward/backward_wide.cu "$@"
