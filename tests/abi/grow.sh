#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# grow.sh INCLUDE_DIR OUTPUT_DIR: copies the headers, with a field `grown` at the end of each struct
# that begins with its size, as a later version might have.
set -eu
mkdir -p "$2"
for header in "$1"/*.h; do
    awk '/^typedef struct/ { sized = 0 } /^    size_t size;/ { sized = 1 }
         /^} attn_/ && sized { print "    int64_t grown; /* [0] */"; sized = 0 } { print }' \
        "$header" >"$2/$(basename "$header")"
done
