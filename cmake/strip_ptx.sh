#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# strip_ptx.sh PTX OUTPUT
#
# Writes OUTPUT: the PTX without its line tables and comments.
#
# Invariant: the instructions are those of PTX. A line table in a form unknown here is an error.
set -eu

ptx=$1 output=$2
work=$(mktemp "$output.XXXXXX")
trap 'rm -f "$work"' EXIT
trap 'exit 1' HUP INT TERM

awk '
    /^[ \t]*(\/\/|\.(loc|file)[ \t])/ { next }
    /^[ \t]*\.section[ \t]+\.debug_/ { in_section = 1 }
    in_section { if (/^[ \t]*}/) in_section = 0; next }
    { print }' "$ptx" >"$work"
if grep -n '^[[:space:]]*\.\(loc\|file\|section\)[[:space:]]' "$work" >&2; then
    echo "$ptx: a line table that strip_ptx.sh does not know" >&2
    exit 1
fi
mv -f "$work" "$output"
