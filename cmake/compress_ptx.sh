#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# compress_ptx.sh FATBINARY PTX OUTPUT PTX_ARCH [OPTION...]
#
# Makes OUTPUT, a fatbin that holds the PTX for PTX_ARCH (compute_80) compressed and without line
# tables: the same instructions in an eighth of the bytes. The OPTIONs are fatbinary's.
#
# Invariant: the same bytes in every folder and on every day.
set -eu

fatbinary=$1 ptx=$2 output=$3 arch=$4
shift 4
work=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

awk '
    /^[ \t]*\.(loc|file)[ \t]/ { next }
    /^[ \t]*\.section[ \t]+\.debug_/ { in_section = 1 }
    in_section { if (/^[ \t]*}/) in_section = 0; next }
    { print }' "$ptx" >"$work/plain.ptx"
if grep -n '^[[:space:]]*\.\(loc\|file\|section\)[[:space:]]' "$work/plain.ptx" >&2; then
    echo "$ptx: a line table that compress_ptx.sh does not know" >&2
    exit 1
fi
# Relative names: fatbinary splits its arguments at commas.
(cd "$work" && "$fatbinary" -64 "$@" --create=plain.fatbin \
    --image3="kind=ptx,sm=${arch#compute_},file=plain.ptx")
mv -f "$work/plain.fatbin" "$output"
