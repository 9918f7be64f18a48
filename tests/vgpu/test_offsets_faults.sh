#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_offsets_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in the positions of chunks, found by test_vgpu_offsets: faults.sh.
set -u

source=$1 build=$2
shift 2
sh "$source/tests/vgpu/faults.sh" "$source" "$build" offsets.txt \
    fwd_hopper_full_fp16_d64_192x64_w16_s6 hopper/forward_full.cu offsets "$@"
