#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_cpp.sh SOURCE_DIR BUILD_DIR
#
# Proves that include/attn.hpp is C++17 and C++20 without a warning, and that examples/attention.cpp,
# which checks what it computes, runs with each: one call, strides of another layout through the
# members of mdspan, a plan, errors as values and as exceptions.
set -eu

source=$1
build=$2
command -v c++ >/dev/null || { echo "skip cpp: no c++" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sanitize=$(sed -n 's/^ATTN_SANITIZE:STRING=\(..*\)/-fsanitize=\1/p' "$build/CMakeCache.txt")

for standard in c++17 c++20; do
    # shellcheck disable=SC2086 # no word where there is none
    c++ -std=$standard -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror $sanitize \
        -I"$source/include" "$source/examples/attention.cpp" -o "$work/$standard" \
        -L"$build" -lattn -Wl,-rpath,"$build"
    "$work/$standard" >"$work/said" || { cat "$work/said" && echo "FAIL $standard" && exit 1; }
    echo "ok   $standard"
done
