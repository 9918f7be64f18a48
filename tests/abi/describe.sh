#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# describe.sh BUILD_DIR: writes what abidw reads in libattn.so to tests/abi/libattn-0.2.abi. Only
# additions may differ from what was committed.
set -eu
folder=$(dirname "$0")
abidw --headers-dir "$folder/../../include" --drop-private-types --no-corpus-path \
    --no-comp-dir-path --no-elf-needed --no-show-locs --out-file "$folder/libattn-0.2.abi" \
    "$1/libattn.so"
sed -i "s|path='[^']*/|path='|" "$folder/libattn-0.2.abi" # names of files, not of folders
