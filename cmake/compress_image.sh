#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# compress_image.sh FATBINARY IMAGE OUTPUT ARCH [OPTION...]
#
# Writes OUTPUT, a fatbin with one compressed image, in the form that the driver loads: a cubin for
# ARCH (sm_90a), or PTX for ARCH (compute_80) without its line tables. OPTIONs go to fatbinary.
#
# Invariant: OUTPUT depends only on IMAGE, ARCH and the OPTIONs, not on the folder or the date.
set -eu

fatbinary=$1 image=$2 output=$3 arch=$4
shift 4
work=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

case $arch in
sm_*)
    kind=elf
    cp "$image" "$work/image"
    ;;
*)
    kind=ptx
    awk '
        /^[ \t]*\.(loc|file)[ \t]/ { next }
        /^[ \t]*\.section[ \t]+\.debug_/ { in_section = 1 }
        in_section { if (/^[ \t]*}/) in_section = 0; next }
        { print }' "$image" >"$work/image"
    if grep -n '^[[:space:]]*\.\(loc\|file\|section\)[[:space:]]' "$work/image" >&2; then
        echo "$image: a line table that compress_image.sh does not know" >&2
        exit 1
    fi
    ;;
esac
# Relative names: fatbinary splits its arguments at commas.
(cd "$work" && "$fatbinary" -64 --compress-all "$@" --create=fatbin \
    --image3="kind=$kind,sm=${arch#*_},file=image")
mv -f "$work/fatbin" "$output"
