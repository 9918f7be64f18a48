#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_mixed_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in fwd_hopper_mixed, found by test_vgpu_mixed: test_backward_faults.sh with
# tests/faults/mixed.txt.
FAULTS=mixed exec sh "$(dirname "$0")/test_backward_faults.sh" "$@"
