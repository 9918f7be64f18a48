#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# faults.sh SOURCE_DIR BUILD_DIR TABLE VARIANT KERNEL PROGRAM [all | NAME...]
#
# Bugs planted in a kernel, found by tests on the virtual GPU. tests/faults/TABLE has them: where,
# what is replaced by what, which test must fail and with which words. The kernel as it is must pass
# each of those tests. VARIANT is compiled from src/kernels/KERNEL. Tests are named PROGRAM/TEST, or
# SUFFIX/TEST for those of PROGRAM_SUFFIX. $FAULT_FLAGS are nvcc's, too. Without names those with a
# star are tried.
#
# Exit code 0 all as expected, 1 not, 77 no nvcc or no kernel to replace.
set -u

source=$1 build=$2 table=$1/tests/faults/$3 variant=$4 kernel=$5 main=$6
shift 6
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || {
    echo "skip all: there is no nvcc to compile the kernels with"
    exit 77
}
"$build/attest" inspect --variant "^$variant\$" >/dev/null 2>&1 || {
    echo "skip all: this build has no $variant"
    exit 77
}

fail() {
    echo "FAIL $1"
    failed=$((failed + 1))
}

# <family>_<dtype>_d<D>_<BM>x<BN>_w<warps>_s<stages>
flags=$(echo "$variant" | sed -E 's/.*_(fp16|bf16|fp32)_d([0-9]+)_([0-9]+)x([0-9]+)_w([0-9]+)_s([0-9]+)$/\
-DATTN_DTYPE_\1=1 -DATTN_D=\2 -DATTN_BM=\3 -DATTN_BN=\4 -DATTN_WARPS=\5 -DATTN_STAGES=\6/')

case $kernel in hopper/*) arch=compute_90a ;; *) arch=compute_80 ;; esac

# Of the sources in $work/src/kernels, to $image; what is in $ATTN_KERNEL_CACHE is not compiled again.
compile() { # NAME
    image=$work/images/$variant+$1.ptx
    # shellcheck disable=SC2086 # a list of words
    (cd "$work" && sh cmake/compile_kernel.sh "$nvcc" "$(dirname "$nvcc")/ptxas" \
        "src/kernels/$kernel" "${image%.ptx}" $arch "" lenient -DATTN_ENTRY="$variant" $flags \
        ${FAULT_FLAGS:-}) >"$work/nvcc.txt" 2>&1
}

# With WORDS it ends with the first failure that has them.
run_test() { # PROGRAM/TEST or SUFFIX/TEST [WORDS]
    program=${1%/*}
    [ "$program" = "$main" ] && program= || program=_$program
    FAULT_IMAGE=$image FAULT_VARIANT=$variant ${2:+env FAULT_WORDS="${2#.}"} \
        "$build/tests/test_vgpu_$main$program" "${1#*/}" >"$work/out.txt" 2>/dev/null
}

# Replaces FROM in its first (FILE#N: N-th) line of a file; fails if there is none.
edit() { # FILE FROM TO
    case $1 in *#*) nth=${1#*#} ;; *) nth=1 ;; esac
    NTH=$nth FROM=$2 TO=$3 awk '
        (at = index($0, ENVIRON["FROM"])) > 0 && ++seen == ENVIRON["NTH"] {
            $0 = substr($0, 1, at - 1) ENVIRON["TO"] substr($0, at + length(ENVIRON["FROM"]))
        }
        { print }
        END { exit seen < ENVIRON["NTH"] }' "$work/src/kernels/${1%#*}" >"$work/edited" &&
        mv "$work/edited" "$work/src/kernels/${1%#*}"
}

try_fault() { # NAME FILE TEST WORDS FROM TO
    rm -rf "$work/src/kernels"
    cp -r "$source/src/kernels" "$work/src/kernels"
    if ! edit "$2" "$5" "$6"; then
        fail "$1: $2 has no: $5"
    elif ! compile "$1"; then
        fail "$1: does not compile: $(grep -m1 error "$work/nvcc.txt")"
    elif run_test "$3" "$4"; then
        fail "$1: $3 passed"
    elif ! grep -q -- "$4" "$work/out.txt"; then
        fail "$1: $3 failed without '$4': $(head -1 "$work/out.txt" | cut -c1-300)"
    else
        echo "found $1: $(grep -m1 -- "$4" "$work/out.txt" | sed 's/^.*lse: //' | cut -c1-140)"
        passed=$((passed + 1))
    fi
}

wanted() { # NAME
    [ "$names" = all ] && return 0
    [ -z "$names" ] && case $1 in \**) return 0 ;; esac
    case " $names " in *" ${1#\*} "*) return 0 ;; *) return 1 ;; esac
}

names=$*
mkdir "$work/src"
cp -r "$source/src/kernels" "$work/src/kernels"
cp -r "$source/cmake" "$work/cmake"
compile none || fail "the kernel as it is does not compile: $(grep -m1 error "$work/nvcc.txt")"
grep '^[*a-z]' "$table" | while IFS='|' read -r name file test words; do
    wanted "$(echo $name)" && echo $test
done | sort -u >"$work/tests"
while read -r test; do
    if run_test "$test"; then
        passed=$((passed + 1))
    else
        fail "the kernel as it is: $test: $(head -1 "$work/out.txt" | cut -c1-300)"
    fi
done <"$work/tests"

while IFS='|' read -r name file test words; do
    case $name in '#'* | '') continue ;; esac
    IFS= read -r from && IFS= read -r to || break
    name=$(echo $name)
    wanted "$name" || continue
    try_fault "${name#\*}" $file $test "$(echo $words)" "${from#    }" "${to#    }"
done <"$table"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
