#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_backward_faults.sh SOURCE_DIR BUILD_DIR [all | NAME...]
#
# Bugs planted in a kernel, found by its tests on the virtual GPU: in a backward kernel, found by
# test_vgpu_backward and its laws, or ($FAULTS = mixed, test_mixed_faults.sh) in fwd_hopper_mixed.
# tests/faults/$FAULTS.txt has them: where, what is replaced by what, which test must fail and with
# which words. The kernel as it is must pass each of those tests. Without names those with a star are
# tried.
#
# Exit code 0 all as expected, 1 not, 77 no nvcc or no kernel to replace.
set -u

source=$1
build=$2
shift 2
table=$source/tests/faults/${FAULTS:-backward}.txt
case ${FAULTS:-backward} in
backward)
    variant=bwd_mma_fp16_d64_64x32_w4_s2 kernel=portable/bwd_mma.cu
    flags="-arch=compute_80 -DATTN_BM=64 -DATTN_BN=32 -DATTN_WARPS=4 -DATTN_STAGES=2"
    ;;
mixed)
    variant=fwd_hopper_mixed_fp16_d64_128x64_w12_s6 kernel=hopper/forward_mixed.cu
    flags="-arch=compute_90a -DATTN_BM=128 -DATTN_BN=64 -DATTN_WARPS=12 -DATTN_STAGES=6"
    ;;
esac
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

compile() { # of the sources in $work/kernels
    # shellcheck disable=SC2086 # a list of words
    "$nvcc" -ptx -std=c++17 -lineinfo -I"$work/kernels" -DATTN_ENTRY=$variant -DATTN_DTYPE_fp16=1 \
        -DATTN_D=64 $flags -o "$work/k.ptx" "$work/kernels/$kernel" >"$work/nvcc.txt" 2>&1
}

run_test() { # PROGRAM/TEST: backward/NAME, laws/NAME or mixed/NAME
    program=${1%/*}
    [ "$program" = laws ] && program=backward_laws
    FAULT_IMAGE=$work/k.ptx FAULT_VARIANT=$variant "$build/tests/test_vgpu_$program" "${1#*/}" \
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
compile || fail "the kernel as it is does not compile: $(grep -m1 error "$work/nvcc.txt")"
grep -v '^ ' "$table" | sed -n 's/^[^#|]*|[^|]*| *\([a-z_/]*\) .*/\1/p' | sort -u >"$work/tests"
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
