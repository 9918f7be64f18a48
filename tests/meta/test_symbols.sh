#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_symbols.sh SOURCE_DIR BUILD_DIR (or the path of libattn.so)
#
# Proves that libattn.so exports the functions of include/, all of them and nothing else, and
# that it needs no library beyond libc, libm, the loader, threads and a sanitizer's runtime; and that
# libattn_ptx.so, where there is one, exports its table alone, and libattn_mpi.so the functions of
# attn_mpi.h.
#
# Invariant: the list of functions is read from the headers, so a new one needs no change here.
set -eu

source=$1
library=$2
[ -d "$library" ] && library=$library/libattn.so
[ -f "$library" ] || { echo "FAIL symbols: no $library" && exit 1; }
command -v nm >/dev/null || { echo "skip symbols: no nm" && exit 77; }
command -v readelf >/dev/null || { echo "skip symbols: no readelf" && exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
verdict() { # verdict NAME FILE: the file must be empty
    if [ -s "$2" ]; then
        echo "FAIL $1: $(tr '\n' ' ' <"$2")"
        failed=$((failed + 1))
    else
        echo "ok   $1"
        passed=$((passed + 1))
    fi
}

# Declarations begin with ATTN_API and end with a semicolon; the name stands before the bracket.
declared() { # HEADER...
    cat "$@" | tr '\n' ' ' | tr ';' '\n' |
        sed -n 's/.*ATTN_API [^()]*[ *]\(attn_[a-z0-9_]*\)(.*/\1/p' | sort -u
}
exported() { # LIBRARY
    nm -D --defined-only "$1" | awk '{ print $NF }' | sed 's/@.*//' | sort -u
}
declared "$source/include/attn.h" "$source/include/attn_inspect.h" \
    "$source/include/attn_verify.h" >"$work/declared"
exported "$library" >"$work/exported"

[ "$(wc -l <"$work/declared")" -ge 30 ] || echo "only $(wc -l <"$work/declared")" >"$work/few"
: >>"$work/few"
verdict header_was_read "$work/few"

comm -23 "$work/declared" "$work/exported" >"$work/missing"
verdict every_function_is_exported "$work/missing"

added='^(_init|_fini|__odr_asan.*|__asan_.*|__ubsan_.*|__tsan_.*)$' # by linkers and sanitizers
comm -13 "$work/declared" "$work/exported" | grep -v -E "$added" >"$work/extra" || :
verdict nothing_else_is_exported "$work/extra"

companion=$(dirname "$library")/libattn_ptx.so
if [ -e "$companion" ]; then
    nm -D --defined-only "$companion" | awk '{ print $2, $NF }' | grep -v -E "${added#^}" |
        grep -v '^[DR] attn_ptx$' >"$work/extra" || :
    nm -D --defined-only "$companion" | grep -q ' attn_ptx$' || echo "no attn_ptx" >>"$work/extra"
    verdict the_companion_exports_its_table "$work/extra"
fi

mpi=$(dirname "$library")/libattn_mpi.so
if [ -e "$mpi" ]; then
    declared "$source/include/attn_mpi.h" >"$work/declared"
    exported "$mpi" | grep -v -E "$added" | comm -3 "$work/declared" - >"$work/extra"
    [ -s "$work/declared" ] || echo "attn_mpi.h was not read" >"$work/extra"
    verdict libattn_mpi_exports_its_functions "$work/extra"
fi

readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v -E '^(libc|libm|libdl|libpthread|ld-linux[a-z0-9_-]*|lib(a|l|t|ub)san|libgcc_s)\.so' \
        >"$work/needed" || :
verdict no_other_library_is_needed "$work/needed"

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
