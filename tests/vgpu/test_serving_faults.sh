#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_serving_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in the kernels of attn_append and attn_merge, found by test_vgpu_serving (faults.sh);
# and what only kernels with device asserts find.
set -u

source=$1 build=$2
shift 2

plant() { # TABLE FAMILY KERNEL
    table=$1 variant=$2_fp16_d1024_1x1_w4_s1 kernel=$3
    shift 3
    sh "$source/tests/vgpu/faults.sh" "$source" "$build" "$table" "$variant" "$kernel" serving "$@"
}

plant append.txt append_kv portable/append.cu "$@" || exit $?
plant append_fp8.txt append_kv_fp8 portable/append_fp8.cu "$@" || exit $?
plant merge.txt merge_lse portable/merge.cu "$@" || exit $?
FAULT_FLAGS=-DATTN_DEBUG=1 plant append_debug.txt append_kv portable/append.cu all
