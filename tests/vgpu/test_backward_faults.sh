#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_backward_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in the backward kernels, found by test_vgpu_backward and its laws. tests/faults/backward.txt
# has them: where, what is replaced by what, which test must fail and with which words. A file of
# hopper/ is compiled as bwd_hopper, any other as bwd_mma. The kernels as they are must pass each of
# those tests. Without names those with a star are tried.
#
# Exit code 0 all as expected, 1 not, 77 no nvcc or no kernels to replace.
set -u

source=$1
build=$2
shift 2
table=$source/tests/faults/backward.txt
variants="bwd_mma_fp16_d64_64x32_w4_s2 bwd_hopper_fp16_d64_128x128_w12_s2"
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || {
    echo "skip all: there is no nvcc to compile the kernels with"
    exit 77
}
for variant in $variants; do
    "$build/attest" inspect --variant "^$variant\$" >/dev/null 2>&1 || {
        echo "skip all: this build has no $variant"
        exit 77
    }
done

fail() {
    echo "FAIL $1"
    failed=$((failed + 1))
}

# The kernel that FILE is part of, with the arguments of its compiler.
choose() { # FILE
    case $1 in
    hopper/*)
        variant=bwd_hopper_fp16_d64_128x128_w12_s2
        code="-arch=compute_90a -DATTN_BM=128 -DATTN_BN=128 -DATTN_WARPS=12 $work/kernels/hopper/backward.cu"
        ;;
    *)
        variant=bwd_mma_fp16_d64_64x32_w4_s2
        code="-arch=compute_80 -DATTN_BM=64 -DATTN_BN=32 -DATTN_WARPS=4 $work/kernels/portable/bwd_mma.cu"
        ;;
    esac
}

compile() { # of the sources in $work/kernels
    "$nvcc" -ptx -std=c++17 -lineinfo -I"$work/kernels" -DATTN_ENTRY=$variant -DATTN_DTYPE_fp16=1 \
        -DATTN_D=64 -DATTN_STAGES=2 -o "$work/k.ptx" $code >"$work/nvcc.txt" 2>&1
}

run_test() { # PROGRAM/TEST: backward/NAME or laws/NAME
    program=${1%/*}
    [ "$program" = backward ] && program= || program=_$program
    FAULT_IMAGE=$work/k.ptx FAULT_VARIANT=$variant "$build/tests/test_vgpu_backward$program" "${1#*/}" \
        >"$work/out.txt" 2>/dev/null
}

# Replaces FROM in its first (FILE#N: N-th) line of a file; fails if there is none.
edit() { # FILE FROM TO
    case $1 in *#*) nth=${1#*#} ;; *) nth=1 ;; esac
    NTH=$nth FROM=$2 TO=$3 awk '
        (at = index($0, ENVIRON["FROM"])) > 0 && ++seen == ENVIRON["NTH"] {
            $0 = substr($0, 1, at - 1) ENVIRON["TO"] substr($0, at + length(ENVIRON["FROM"]))
        }
        { print }
        END { exit seen < ENVIRON["NTH"] }' "$work/kernels/${1%#*}" >"$work/edited" &&
        mv "$work/edited" "$work/kernels/${1%#*}"
}

try_fault() { # NAME FILE TEST WORDS FROM TO
    rm -rf "$work/kernels"
    cp -r "$source/src/kernels" "$work/kernels"
    choose "$2"
    if ! edit "$2" "$5" "$6"; then
        fail "$1: $2 has no: $5"
    elif ! compile; then
        fail "$1: does not compile: $(grep -m1 error "$work/nvcc.txt")"
    elif run_test "$3"; then
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
cp -r "$source/src/kernels" "$work/kernels"
for kernel in hopper/ portable/; do
    choose $kernel
    compile || fail "$variant as it is does not compile: $(grep -m1 error "$work/nvcc.txt")"
    grep '^[*a-z]' "$table" | while IFS='|' read -r name file test words; do
        case "$kernel $file" in 'hopper/  hopper/'* | 'portable/  portable/'* | 'portable/  common/'*)
            wanted "$(echo $name)" && echo $test ;;
        esac
    done | sort -u >"$work/tests"
    while read -r test; do
        if run_test "$test"; then
            passed=$((passed + 1))
        else
            fail "$variant as it is: $test: $(head -1 "$work/out.txt" | cut -c1-300)"
        fi
    done <"$work/tests"
done

while IFS='|' read -r name file test words; do
    case $name in '#'* | '') continue ;; esac
    IFS= read -r from && IFS= read -r to || break
    name=$(echo $name)
    wanted "$name" || continue
    try_fault "${name#\*}" $file $test "$(echo $words)" "${from#    }" "${to#    }"
done <"$table"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
