#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# compress_image.sh FATBINARY IMAGE OUTPUT ARCH [OPTION...]
#
# Writes OUTPUT, a fatbin with one compressed image, in the form that the driver loads: a cubin for
# ARCH (sm_90a), or PTX for ARCH (compute_80). OPTIONs go to fatbinary.
#
# Invariant: OUTPUT depends only on IMAGE, ARCH and the OPTIONs, not on the folder or the date.
set -eu

fatbinary=$1 image=$2 output=$3 arch=$4
shift 4
work=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

kind=ptx
case $arch in sm_*) kind=elf ;; esac
cp "$image" "$work/image"
# Relative names: fatbinary splits its arguments at commas.
(cd "$work" && "$fatbinary" -64 --compress-all "$@" --create=fatbin \
    --image3="kind=$kind,sm=${arch#*_},file=image")
mv -f "$work/fatbin" "$output"
