#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_install.sh SOURCE_DIR BUILD_DIR
#
# Proves that what `make install` puts below DESTDIR and PREFIX is enough to use the library: a C
# program compiles through pkg-config and another through find_package(attn), both run against the
# installed libattn.so, and the installed attest starts. Nothing else is installed, and `make
# uninstall` removes all of it.
set -eu

source=$1
build=$2
command -v pkg-config >/dev/null || { echo "skip install: no pkg-config" && exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAIL $*"
    exit 1
}

DESTDIR=$work/stage cmake --install "$build" --prefix /opt/attn >"$work/log" || fail "install"
root=$work/stage/opt/attn
libdir=$(dirname "$(find "$root" -name libattn.so)")

(cd "$work/stage" && find . ! -type d | sort) >"$work/installed"
unexpected=$(sed -E \
    -e '\|^\./opt/attn/bin/attest$|d' \
    -e '\|^\./opt/attn/include/attn[_a-z]*\.h(pp)?$|d' \
    -e '\|^\./opt/attn/lib[^/]*/([^/]*-linux-gnu/)?libattn\.so(\.[0-9.]+)?$|d' \
    -e '\|^\./opt/attn/lib[^/]*/([^/]*-linux-gnu/)?libattn_ptx\.so$|d' \
    -e '\|^\./opt/attn/lib[^/]*/([^/]*-linux-gnu/)?libattn_mpi\.so(\.[0-9.]+)?$|d' \
    -e '\|^\./opt/attn/include/vgpu\.h$|d' \
    -e '\|^\./opt/attn/share/man/man1/attest\.1$|d' \
    -e '\|^\./opt/attn/share/man/man3/attn\.3$|d' \
    -e '\|^\./opt/attn/share/bash-completion/completions/attest$|d' \
    -e '\|^\./opt/attn/lib[^/]*/([^/]*-linux-gnu/)?libattn\.a$|d' \
    -e '\#^\./opt/attn/libexec/attest/faults/[a-z]*(\.sm_90)?\.(cubin|ptx)$#d' \
    -e '\|^\./opt/attn/lib[^/]*/([^/]*-linux-gnu/)?libvgpu\.so(\.0(\.[0-9]+\.[0-9]+)?)?$|d' \
    -e '\#^\./opt/attn/lib[^/]*/([^/]*-linux-gnu/)?vgpu/lib(cudart\.so\.13|cuda\.so\.1|nvrtc\.so\.13)$#d' \
    -e '\|^\./opt/attn/lib.*/pkgconfig/attn(_mpi)?\.pc$|d' \
    -e '\|^\./opt/attn/lib.*/cmake/attn/attn[A-Za-z-]*\.cmake$|d' "$work/installed")
[ -z "$unexpected" ] || fail "installed too much: $unexpected"

[ "$(cat "$build/kernels/built.txt")" = 0 ] || [ -e "$libdir/libattn_ptx.so" ] ||
    fail "libattn_ptx.so is not installed"

mkdir -p "$work/tree/build"
cp "$build/install_manifest.txt" "$work/tree/build"
cp -R "$work/stage" "$work/again"
make -s -C "$work/tree" -f "$source/Makefile" uninstall DESTDIR="$work/again" >/dev/null 2>&1 ||
    fail "make uninstall"
left=$(find "$work/again" ! -type d)
[ -z "$left" ] || fail "make uninstall leaves $left"

# The build folder must play no part: move the tree first.
mv "$root" "$work/moved"
libdir=$work/moved${libdir#"$root"}

cat >"$work/use.c" <<'C'
#include <attn.h>
#include <string.h>

int main(void) {
    attn_problem problem;
    attn_problem_init(&problem);
    return strcmp(attn_version(), EXPECTED) != 0 || attn_problem_check(&problem, NULL) != ATTN_OK;
}
C

export PKG_CONFIG_PATH="$libdir/pkgconfig"
version=$(pkg-config --modversion attn)
grep -q "MAJOR ${version%%.*}\$" "$source/include/attn.h" || fail "attn.pc says version $version"

# A sanitized library needs its runtime in the program.
sanitize=$(sed -n 's/^ATTN_SANITIZE:STRING=\(..*\)/-fsanitize=\1/p' "$build/CMakeCache.txt")
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
# Neither of these programs frees what it did not allocate; LeakSanitizer has nothing to find.
export ASAN_OPTIONS=detect_leaks=0

# shellcheck disable=SC2046,SC2086 # lists of words
"$compiler" -std=c99 -pedantic -Wall -Werror $sanitize -DEXPECTED="\"$version\"" "$work/use.c" \
    -o "$work/by_pkg_config" $(pkg-config --cflags --libs attn) || fail "compile by pkg-config"
LD_LIBRARY_PATH=$libdir "$work/by_pkg_config" || fail "run by pkg-config"

cat >"$work/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.22)
project(use C)
find_package(attn ${version%.*} REQUIRED)
add_executable(use use.c)
target_compile_definitions(use PRIVATE EXPECTED="$version")
target_link_libraries(use PRIVATE attn::attn)
if(WITH_MPI)
    add_executable(ring $source/examples/ring.c)
    target_link_libraries(ring PRIVATE attn::attn_mpi m)
endif()
CMAKE
{
    cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/moved" \
        -DCMAKE_C_COMPILER="$compiler" -DCMAKE_C_FLAGS="$sanitize" &&
        cmake --build "$work/build"
} >"$work/log" 2>&1 || fail "find_package: $(cat "$work/log")"
"$work/build/use" || fail "run by find_package"

if [ -e "$libdir/libattn_mpi.so" ]; then
    # shellcheck disable=SC2046 # a list of words
    mpicc -Wall -Werror "$source/examples/ring.c" -o "$work/ring" \
        $(pkg-config --cflags --libs attn_mpi) -lm || fail "compile by pkg-config with MPI"
    {
        cmake -S "$work" -B "$work/build" -DWITH_MPI=ON && cmake --build "$work/build"
    } >"$work/log" 2>&1 || fail "find_package with MPI: $(cat "$work/log")"
    echo "ok   install_mpi"
fi

if [ -e "$build/attest" ]; then
    "$work/moved/bin/attest" --help >/dev/null || fail "the installed attest does not start"
fi
echo "ok   install"
