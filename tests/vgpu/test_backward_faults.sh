#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_backward_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in a backward kernel, found by test_vgpu_backward and its laws: faults.sh.
set -u

source=$1 build=$2
shift 2
exec sh "$source/tests/vgpu/faults.sh" "$source" "$build" backward.txt bwd_mma_fp16_d64_64x32_w4_s2 \
    portable/bwd_mma.cu backward "$@"
