#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_abidiff.sh SOURCE_DIR BUILD_DIR
#
# Compares the functions and types of libattn.so with tests/abi/libattn-0.2.abi. Any difference
# fails. After a deliberate addition: sh tests/abi/describe.sh BUILD_DIR, and commit the result.
set -eu
command -v abidiff >/dev/null || { echo "skip no abidiff" && exit 77; }
if abidiff --no-architecture --headers-dir2 "$1/include" --drop-private-types \
    "$1/tests/abi/libattn-0.2.abi" "$2/libattn.so"; then
    echo "ok   abidiff"
    echo "1 passed, 0 failed, 0 skipped"
else
    echo "FAIL abidiff: the ABI has changed"
    exit 1
fi
