#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_mixed_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in fwd_hopper_mixed, found by test_vgpu_mixed: faults.sh.
set -u

source=$1 build=$2
shift 2
exec sh "$source/tests/vgpu/faults.sh" "$source" "$build" mixed.txt \
    fwd_hopper_mixed_fp16_d64_128x64_w12_s6 hopper/forward_mixed.cu mixed "$@"
