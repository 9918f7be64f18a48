#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# wheels.sh [FOLDER]
#
# Writes into FOLDER [dist] the sdist and, built from it, one wheel for x86_64 and one for aarch64.
# The wheels run on every Linux with glibc 2.28 or newer and every Python from 3.9 on. The C compiler
# is PyPI's ziglang (cmake/manylinux.cmake); nvcc is the installed one or PyPI's (cmake/nvcc.sh). GPU kernels
# are compiled once: GPU machine code does not depend on the host's architecture, and both builds
# share ATTN_KERNEL_CACHE [build-wheel/kernels]. ATTN_KERNELS=OFF leaves them out; the name of the
# wheel then contains 0nokernels. ATTN_TARGETS="x86_64" builds only that wheel.
#
# Invariant: every wheel written passes auditwheel and is at most 25 MB. The same sources give the
# same bytes in every folder.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$root/dist}"
out=$(cd "${1:-$root/dist}" && pwd)
work=$root/build-wheel
kernels=${ATTN_KERNELS:-ON}
most=25000000
build_tag=''
python=$work/venv/bin/python

rm -rf "$work/x86_64" "$work/aarch64" "$work/source"
if ! "$python" -c 'import auditwheel, scikit_build_core, ziglang' 2>/dev/null; then
    rm -rf "$work/venv"
    python3 -m venv "$work/venv"
    "$python" -m pip install -q --disable-pip-version-check -r "$root/python/wheels.txt"
fi
zig=$("$python" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))')
if [ "$kernels" = OFF ]; then
    build_tag=0nokernels
elif ! (PATH=$PATH:/usr/local/cuda/bin && command -v "${CUDACXX:-nvcc}" >/dev/null); then
    sh "$root/cmake/nvcc.sh" "$root/build-nvcc"
fi

export ATTN_KERNEL_CACHE="${ATTN_KERNEL_CACHE:-$work/kernels}"
# The date of files in the archives, so that it is not that of the build.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1767225600}"
export CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}"
export ZIG_GLOBAL_CACHE_DIR="$work/zig"
unset CMAKE_C_COMPILER_LAUNCHER # ccache would run zig, not `zig cc`

cd "$root"
rm -f "$out"/attn-*.tar.gz
"$python" -c 'import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])' "$out" >/dev/null
ls "$out"/attn-*.tar.gz
mkdir -p "$work/source"
cd "$work/source"
tar xzf "$out"/attn-*.tar.gz --strip-components=1
[ ! -e "$root/build-nvcc" ] || ln -s "$root/build-nvcc" build-nvcc
for target in ${ATTN_TARGETS:-x86_64 aarch64}; do
    tag=manylinux_2_28_$target
    # zig's object cache does not notice that a file of .incbin has changed: one cache per build.
    ZIG_LOCAL_CACHE_DIR=$work/$target/zig "$python" -m pip wheel -q --disable-pip-version-check \
        --no-deps --no-build-isolation -w "$work/$target" \
        -C build-dir="$work/$target/build" -C wheel.tags="py3-none-$tag" \
        -C wheel.build-tag="$build_tag" -C install.strip=false \
        -C cmake.define.ATTN_KERNELS="$kernels" -C cmake.define.ATTN_TARGET="$target" \
        -C cmake.define.ATTN_ZIG="$zig" \
        -C cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/manylinux.cmake" .
    wheel=$(ls "$work/$target"/attn-*.whl)
    "$python" -m auditwheel show "$wheel" >"$work/$target/audit.txt" 2>&1
    # The oldest manylinux tag whose glibc suffices; it may be older than 2.28.
    audited=$(grep -o "manylinux_2_[0-9]*_$target" "$work/$target/audit.txt" | tail -n 1)
    oldest=${audited#manylinux_2_}
    size=$(wc -c <"$wheel")
    if [ -z "$audited" ] || [ "${oldest%%_*}" -gt 28 ] || [ "$size" -gt $most ]; then
        cat "$work/$target/audit.txt" >&2
        echo "wheels.sh: $wheel: $size bytes, $audited; expected at most $most, $tag" >&2
        exit 1
    fi
    rm -f "$out"/attn-*"$tag".whl
    cp "$wheel" "$out/"
    echo "$out/$(basename "$wheel"): $size bytes, runs on $audited"
done
