#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_size.sh SOURCE_DIR BUILD_DIR
#
# Proves that libattn.so with every GPU kernel compiled in stays small, and prints its size and that
# of its companion. A build with some of the kernels, or with others than a release has, is skipped.
set -eu

source=$1
build=$2
most=18500000

declared=$(grep -c '^CUDA_VARIANT' "$source/src/kernels/variants.def")
built=$(cat "$build/kernels/built.txt")
if [ "$built" -ne "$declared" ] || grep -q '^ATTN_KERNEL_DEBUG:BOOL=ON' "$build/CMakeCache.txt"; then
    echo "skip size: $built of $declared kernels are built, as a release has them"
    exit 77
fi
size=$(wc -c <"$build/libattn.so")
echo "libattn.so $size bytes (at most $most), libattn_ptx.so $(wc -c <"$build/libattn_ptx.so") bytes," \
    "$built kernels"
if [ "$size" -gt "$most" ]; then
    echo "FAIL size: libattn.so has $size bytes, expected at most $most"
    exit 1
fi
echo "ok   size"
