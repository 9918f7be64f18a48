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

# check FOLDERS [OPTION...]: over their files.
check() {
    files=$(sed -n 's/^  "file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" |
        grep -E "/($1)/[^/]*\.c$" | sort -u)
    shift
    [ -n "$files" ] || { echo "nothing to check in $build/compile_commands.json" >&2 && exit 2; }
    # shellcheck disable=SC2086 # a list of files
    echo $files | xargs -n 4 -P "${JOBS:-2}" clang-tidy --quiet -p "$build" "$@" 2>/dev/null
}

status=0
check 'src|tool' || status=1
# The analyzer would follow thousands of paths through each interpreter's switch: fewer are enough.
if grep -q '"file": ".*/vgpu/[^/]*\.c"' "$build/compile_commands.json"; then
    check vgpu --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang \
        --extra-arg=max-nodes=30000 || status=1
fi
[ "$status" -ne 0 ] || echo "clang-tidy: clean"
exit "$status"
