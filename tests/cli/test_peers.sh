#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_peers.sh SOURCE_DIR BUILD_DIR
#
# Proves python -m attn.peers as far as that goes without a GPU: statistics, grids, the recorded
# table, the whole course of a measurement on made-up machines with planted faults, the files that
# it writes, and the structs of attn._library against include/attn.h.
#
# Invariant: neither PyTorch, NumPy nor libattn.so is loaded, so it runs in every build mode.
set -u

if ! command -v python3 >/dev/null 2>&1; then
    echo "skip no python3"
    exit 77
fi
compiler=${CC:-cc}
if [ -f "$2/CMakeCache.txt" ]; then
    compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$2/CMakeCache.txt")
fi
exec python3 -B "$1/tests/cli/test_peers.py" "$1" "$compiler"
