#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_header.sh SOURCE_DIR BUILD_DIR (or the path of libattn.so)
#
# Proves that include/attn.h stands alone: it compiles by itself as C99, C11, C17 and as C++11 and
# later, with every warning an error; twice in one file; and that the C example of README.md and the
# one in the header's first comment are true: the former compiles as it stands, runs and exits 0,
# the latter compiles inside a function.
#
# Invariant: nothing is on the include path but include/.
set -u

source=$1
library=$2
build=$library
if [ -d "$library" ]; then
    library=$library/libattn.so
else
    build=$(dirname "$library")
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
skipped=0

# A sanitized library needs its runtime in the program, hence the compiler that made it.
sanitize=
compiler=${CC:-cc}
if [ -f "$build/CMakeCache.txt" ]; then
    sanitize=$(sed -n 's/^ATTN_SANITIZE:STRING=\(..*\)/-fsanitize=\1/p' "$build/CMakeCache.txt")
    compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
fi

check() { # check NAME COMMAND...
    name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok   $name"
        passed=$((passed + 1))
    else
        echo "FAIL $name"
        sed 's/^/     /' "$work/log" | head -20
        failed=$((failed + 1))
        return 1
    fi
}

skip() {
    echo "skip $1: $2"
    skipped=$((skipped + 1))
}

strict="-pedantic -pedantic-errors -Wall -Wextra -Werror -Wundef"

printf '#include "attn_%s.h"\n#include "attn.h"\n' inspect verify verify inspect >"$work/twice.c"
printf 'int main(void) { return 0; }\n' >>"$work/twice.c"
for standard in c99 c11 c17; do
    # shellcheck disable=SC2086 # a list of words
    check "compiles_as_$standard" "$compiler" -std=$standard $strict "-I$source/include" -Wstrict-prototypes \
        -Wmissing-prototypes -fsyntax-only "$work/twice.c"
done
cp "$work/twice.c" "$work/twice.cpp"
found=
for cxx in ${CXX:-c++} g++ clang++; do
    command -v "$cxx" >/dev/null 2>&1 && found=$cxx && break
done
for standard in c++11 c++14 c++17 c++20; do
    if [ -n "$found" ]; then
        # shellcheck disable=SC2086
        check "compiles_as_$standard" "$found" -std=$standard $strict "-I$source/include" -fsyntax-only "$work/twice.cpp"
    else
        skip "compiles_as_$standard" "no C++ compiler"
    fi
done

# The program in the header's first comment, inside a function that has the four tensors.
{
    echo '#include <stdlib.h>'
    echo '#include "attn.h"'
    echo 'void smallest(const float *q, const float *k, const float *v, float *o);'
    echo 'void smallest(const float *q, const float *k, const float *v, float *o) {'
    sed -n '/^ \*     attn_context/,/^ \*$/s/^ \*//p' "$source/include/attn.h"
    echo '}'
} >"$work/smallest.c"
grep -q attn_forward "$work/smallest.c" || echo '#error "the example was not found"' >>"$work/smallest.c"
check example_of_the_header_compiles "$compiler" -std=c11 -Wall -Wextra -Werror "-I$source/include" \
    -fsyntax-only "$work/smallest.c"

# The first block of C in README.md, as it stands.
if [ -f "$source/README.md" ]; then
    awk '/^```/ { if (inside) exit; inside = $0 == "```c"; next } inside' \
        "$source/README.md" >"$work/example.c"
    lines=$(grep -c . "$work/example.c")
    check "example_of_the_readme_is_short" test "$lines" -ge 5 -a "$lines" -le 30
    # shellcheck disable=SC2086 # $sanitize may be empty
    check example_of_the_readme_compiles "$compiler" -std=c11 -Wall -Wextra -Werror $sanitize \
        "-I$source/include" "$work/example.c" "$library" "-Wl,-rpath,$(dirname "$library")" -lm \
        -o "$work/example" &&
        check example_of_the_readme_runs "$work/example"
else
    skip example_of_the_readme "no README.md"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] || exit 1
[ "$passed" -gt 0 ] || exit 77
