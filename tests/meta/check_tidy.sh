#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check_tidy.sh SOURCE_DIR BUILD_DIR: clang-tidy (.clang-tidy) over every file of src/, tool/ and
# vgpu/ that the build compiles. ATTN_TIDY_CACHE, if set, is a folder that remembers what was clean:
# a file is checked again if it, a header, .clang-tidy or clang-tidy has changed. Exit code 0 clean,
# 1 findings, 77 no clang-tidy.
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
options="--quiet -p $build --extra-arg=-Xclang --extra-arg=-analyzer-config
    --extra-arg=-Xclang --extra-arg=max-nodes=${nodes:-8000}"
keys=$(mktemp)
trap 'rm -f "$keys"' EXIT
if [ -n "${ATTN_TIDY_CACHE:-}" ]; then
    mkdir -p "$ATTN_TIDY_CACHE"
    state=$({ clang-tidy --version && cat .clang-tidy && echo "$options" &&
        sed "s|$PWD||g" "$build/compile_commands.json" &&
        find include src tool vgpu -name '*.h' -o -name '*.def' | LC_ALL=C sort | xargs cat; } | sha256sum)
    for file in $files; do
        key=$ATTN_TIDY_CACHE/$({ echo "$state" && cat "$file"; } | sha256sum | cut -c 1-32)
        [ -e "$key" ] || echo "$file $key $(sha256sum <"$file")"
    done >"$keys"
else
    echo "$files" >"$keys"
fi
# check FILE [KEY HASH -]: HASH is of the file when the key was made
# shellcheck disable=SC2016 # sh expands it
check='clang-tidy $0 "$1" 2>/dev/null &&
    { [ $# -eq 1 ] || [ "$3  -" != "$(sha256sum <"$1")" ] || : >"$2"; }'
xargs -r -L 1 -P "${JOBS:-2}" sh -c "$check" "$options" <"$keys" || exit 1
echo "clang-tidy: clean"
