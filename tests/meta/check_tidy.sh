#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check_tidy.sh SOURCE_DIR BUILD_DIR: clang-tidy (.clang-tidy) over every file of src/, tool/ and
# vgpu/ that the build compiles. Exit code 0 clean, 1 findings, 77 no clang-tidy.
#
# Invariant: no finding is a warning; what is not worth fixing is switched off in .clang-tidy.
set -u

cd "$1" || exit 2
build=$2
command -v clang-tidy >/dev/null || { echo "skip tidy: no clang-tidy" && exit 77; }

files=$(sed -n 's/^  "file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" |
    grep -E '/(src|tool|vgpu)/.*\.c$' | grep -v /tests/ | sort -u)
[ -n "$files" ] || { echo "nothing to check in $build/compile_commands.json" >&2 && exit 2; }
# The analyzer would follow 225000 states of a function, most of all through an interpreter's switch:
# 30000 (with TEST_ALL) find the same in a third of the time, 8000 most of it in an eighth.
nodes=${TEST_ALL:+30000}
# shellcheck disable=SC2086 # a list of files
echo $files | xargs -n 4 -P "${JOBS:-2}" clang-tidy --quiet -p "$build" --extra-arg=-Xclang \
    --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=max-nodes=${nodes:-8000} 2>/dev/null || exit 1
echo "clang-tidy: clean"
