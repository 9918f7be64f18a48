#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_reproducible.sh SOURCE_DIR BUILD_DIR
#
# Proves that two builds in different folders give the same bytes: libattn.so and its companion, and
# with TEST_ALL attest too, with debugging information, and with one GPU kernel where there is nvcc.
# (Two wheels: tests/meta/packages.sh.)
set -eu

source=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The second build would take what the first one has compiled.
unset ATTN_KERNEL_CACHE CMAKE_C_COMPILER_LAUNCHER

targets="attn${TEST_ALL:+ attest}"

# twin TREE BUILD: sources and build folder beside each other, or one in the other.
twin() {
    mkdir -p "$1"
    for part in CMakeLists.txt cmake include src vgpu tool docs python tests/faults; do
        mkdir -p "$(dirname "$1/$part")"
        cp -R "$source/$part" "$1/$part"
    done
    # shellcheck disable=SC2086 # a list of words
    {
        cmake -S "$1" -B "$2" -DATTN_PORTABLE_ONLY=ON -DATTN_VGPU=OFF -DBUILD_TESTING=OFF \
            -DATTN_VARIANTS=fwd_scalar_fp16_d64 -DATTN_ONE_OF_EACH=ON \
            -DCMAKE_C_FLAGS_RELWITHDEBINFO='-O0 -g' &&
            cmake --build "$2" --parallel 2 --target $targets
    } >"$work/log" 2>&1 || {
        tail -n 20 "$work/log"
        echo "FAIL build"
        exit 1
    }
}
twin "$work/a" "$work/a/build"
twin "$work/another/and/longer/folder" "$work/beside"

for file in libattn.so attest libattn_ptx.so; do
    [ -e "$work/a/build/$file" ] || [ $file != libattn.so ] || { echo "FAIL no $file" && exit 1; }
    [ ! -e "$work/a/build/$file" ] || cmp "$work/a/build/$file" "$work/beside/$file" ||
        { echo "FAIL $file" && exit 1; }
done
echo "ok   reproducible"
