#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_abi.sh SOURCE_DIR BUILD_DIR
#
# Proves that programs keep running: one built with the headers of 0.2 (tests/abi/0.2) against this
# library and against one whose structs have grown, and one built with grown structs against this
# library.
set -eu
source=$1
build=$2
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
sanitize=$(sed -n 's/^ATTN_SANITIZE:STRING=\(..*\)/-fsanitize=\1/p' "$build/CMakeCache.txt")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# check NAME COMMAND...
check() {
    name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok   $name"
        passed=$((passed + 1))
    else
        echo "FAIL $name"
        sed 's/^/     /' "$work/log" | head -30
        failed=$((failed + 1))
    fi
}

# program NAME INCLUDE_DIR LIBRARY SOURCE FLAG...
program() {
    output=$work/$1 headers=$2 library=$3 file=$4
    shift 4
    # shellcheck disable=SC2086 # $sanitize may be empty
    check "$(basename "$output")_compiles" "$compiler" -std=c11 -Wall -Wextra -Werror $sanitize \
        "$@" "-I$headers" "$source/tests/abi/$file" "$library" \
        "-Wl,-rpath,$(dirname "$library")" -lm -o "$output"
    check "$(basename "$output")_runs" env ASAN_OPTIONS=detect_leaks=0 "$output"
}

# The library with other headers: the portable CPU kernels suffice.
grown_library() {
    {
        echo '#include "cuda/images.h"'
        echo 'const struct built_in_image built_in_images[1];'
        echo 'const int32_t built_in_image_count = 0;'
        echo 'const char *const built_in_images_missing = "it is a test";'
        echo 'const char built_in_identity[] = "";'
    } >"$work/images.c"
    files=$(find "$source/src" -name '*.c' ! -path '*/mpi/*' ! -name 'neon*' ! -name 'avx*' ! -name 'amx*')
    # shellcheck disable=SC2086 # a list of files; $sanitize may be empty
    "$compiler" -std=c11 -D_GNU_SOURCE -DATTN_PORTABLE_ONLY -DLIBRARY -O1 -fPIC -shared $sanitize \
        -fvisibility=hidden "-I$work/include" "-I$source/src" "-I$source" $files "$work/images.c" \
        "$source/tests/abi/grown.c" -o "$work/libgrown.so" -lpthread -ldl -lm
}

check headers_grow sh "$source/tests/abi/grow.sh" "$source/include" "$work/include"
check grown_library_compiles grown_library
program old_program_on_this_library "$source/tests/abi/0.2" "$build/libattn.so" use.c
program old_program_on_a_grown_library "$source/tests/abi/0.2" "$work/libgrown.so" use.c
program unknown_field_has_its_default "$source/tests/abi/0.2" "$work/libgrown.so" grown.c
program grown_program_on_this_library "$work/include" "$build/libattn.so" use.c -DGROWN
program grown_program_on_a_grown_library "$work/include" "$work/libgrown.so" use.c

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
