#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check_tidy.sh SOURCE_DIR BUILD_DIR: clang-tidy (.clang-tidy) over every file of src/ and tool/
# that the build compiles. Exit code 0 clean, 1 findings, 77 no clang-tidy.
#
# Invariant: no finding is a warning; what is not worth fixing is switched off in .clang-tidy.
set -u

cd "$1" || exit 2
build=$2
command -v clang-tidy >/dev/null || { echo "skip tidy: no clang-tidy" && exit 77; }

files=$(sed -n 's/^  "file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" |
    grep -E '/(src|tool)/[^/]*\.c$' | sort -u)
[ -n "$files" ] || { echo "nothing to check in $build/compile_commands.json" >&2 && exit 2; }
# shellcheck disable=SC2086 # a list of files
if echo $files | xargs -n 4 -P "${JOBS:-2}" clang-tidy --quiet -p "$build" 2>/dev/null; then
    echo "clang-tidy: clean"
else
    exit 1
fi
