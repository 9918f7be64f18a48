#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_faults.sh SOURCE_DIR BUILD_DIR [FILE...]
#
# Kernels with planted bugs (tests/faults/check/*.cu): each is compiled as it should be (FAULT 0) and
# once for each bug, and run by `attest check` under every order in which asynchronous work may
# complete. The head of a file says how it is run and what must be found:
#
#   @arch NAME                   what for, if not compute_80
#   @run ENTRY OPTIONS...        how; every such line for FAULT 0, the first for the bugs
#   @run NUMBER ENTRY OPTIONS... how FAULT NUMBER is run, where not so; FAULT 0 also
#   @fault NUMBER KIND words     FAULT NUMBER must give an error of KIND at a line that bears the mark
#                                @NUMBER (or whose other access, or caller, does)
#   @numbers NUMBER ARG ATOL words   a bug that only wrong results show: argument ARG must differ by
#                                more than ATOL from what FAULT 0 gives, in all four orders
#
# FAULT 0 must give no error at all. Of the bugs of a file the first of each kind is planted and every
# fourth of the others; all, if files are named or TEST_ALL is set. Exit code 0 all as expected, 1
# not, 77 no nvcc or no attest check.
set -u

source=$1
build=$2
shift 2
attest=$build/attest
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src/kernels"
cp -r "$source/cmake" "$work/cmake"
passed=0
failed=0
found=0
planted=0
by_numbers=0

nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || {
    echo "skip all: there is no nvcc to compile the kernels with"
    exit 77
}
"$attest" check --help >/dev/null 2>&1 || {
    echo "skip all: this build has no attest check"
    exit 77
}

fail() {
    echo "FAIL $1"
    failed=$((failed + 1))
}

# What is in $ATTN_KERNEL_CACHE is not compiled again.
compile() { # FILE NUMBER
    arch=$(sed -n 's/^ \* @arch \([a-z0-9_]*\).*/\1/p' "$1")
    image=$work/$(basename "$1" .cu)+$2.ptx
    cp "$1" "$work/src/kernels/"
    (cd "$work" && sh cmake/compile_kernel.sh "$nvcc" "$(dirname "$nvcc")/ptxas" \
        "src/kernels/$(basename "$1")" "${image%.ptx}" "${arch:-compute_80}" "" lenient \
        -DFAULT="$2") >"$work/nvcc.txt" 2>&1
}

run_check() { # ENTRY OPTIONS...
    entry=$1
    shift
    "$attest" check "$image" --entry "$entry" --async all --max-steps 3000000 "$@" \
        >"$work/out.txt" 2>&1
}

# Lines of the report's errors of a kind, with the lines that belong to them (other access, callers).
lines_of() { # KIND FILE_NAME
    awk -v kind="$1" -v file="$2" '
        / (error|warning): / || /^check: / { on = index($0, " error: " kind ":") > 0 }
        on { while (match($0, file ":[0-9]+")) {
                 print substr($0, RSTART + length(file) + 1, RLENGTH - length(file) - 1)
                 $0 = substr($0, RSTART + RLENGTH) } }' "$work/out.txt"
}

# How a bug is run: as the file says for it, or as the first line says.
options_of() { # FILE NUMBER
    sed -n "s/^ \\* @run $2 //p" "$1" | grep . ||
        sed -n 's/^ \* @run \([^0-9]\)/\1/p' "$1" | head -1
}

try_clean() { # FILE
    if ! compile "$1" 0; then
        fail "$1: does not compile: $(tail -1 "$work/nvcc.txt")"
        return
    fi
    sed -n 's/^ \* @run \([0-9]* \)\{0,1\}//p' "$1" >"$work/runs"
    while read -r line; do
        # shellcheck disable=SC2086 # words
        if run_check $line; then
            passed=$((passed + 1))
        else
            fail "$(basename "$1") as it should be: $line: $(grep -m1 'error' "$work/out.txt")"
        fi
    done <"$work/runs"
}

try_fault() { # FILE NUMBER KIND
    name=$(basename "$1")
    planted=$((planted + 1))
    if ! compile "$1" "$2"; then
        fail "$name fault $2: does not compile: $(tail -1 "$work/nvcc.txt")"
        return
    fi
    # shellcheck disable=SC2046 # words
    run_check $(options_of "$1" "$2")
    status=$?
    marks=$(grep -n "@$2\\b" "$1" | grep -v '^[0-9]*: \*' | cut -d: -f1)
    for line in $(lines_of "$3" "$name"); do
        for mark in $marks; do
            if [ "$status" -eq 1 ] && [ "$line" -eq "$mark" ]; then
                passed=$((passed + 1))
                found=$((found + 1))
                return
            fi
        done
    done
    fail "$name fault $2: no $3 at line $(echo "$marks" | tr '\n' ' '); exit code $status: $(
        grep -m1 ' error: ' "$work/out.txt" | cut -c1-150)"
}

try_numbers() { # FILE NUMBER ARG ATOL
    name=$(basename "$1")
    planted=$((planted + 1))
    compile "$1" 0
    # shellcheck disable=SC2046 # words
    run_check $(options_of "$1" "$2") --dump "$3:$work/right.npy" || fail "$name as it should be"
    # shellcheck disable=SC2046 # words
    run_check $(options_of "$1" "$2") --expect "$3:$work/right.npy:$4" ||
        fail "$name as it should be: does not give the same result twice"
    if ! compile "$1" "$2"; then
        fail "$name fault $2: does not compile: $(tail -1 "$work/nvcc.txt")"
        return
    fi
    # shellcheck disable=SC2046 # words
    run_check $(options_of "$1" "$2") --expect "$3:$work/right.npy:$4"
    status=$?
    if [ "$status" -eq 1 ] && ! grep -q ' error: ' "$work/out.txt" &&
        grep -q "argument $3" "$work/out.txt"; then
        passed=$((passed + 1))
        by_numbers=$((by_numbers + 1))
    else
        fail "$name fault $2: expected wrong numbers and no finding; exit code $status: $(
            grep -m1 'error' "$work/out.txt" | cut -c1-150)"
    fi
}

every=${TEST_ALL:-$*}
[ $# -gt 0 ] || set -- "$source"/tests/faults/check/*.cu
for file in "$@"; do
    try_clean "$file"
    sed -n 's/^ \* @fault \([0-9]*\) \([a-z-]*\).*/\1 \2/p' "$file" |
        awk -v every="$every" 'every != "" || !seen[$2]++ || NR % 4 == 0' >"$work/faults"
    while read -r number kind; do
        try_fault "$file" "$number" "$kind"
    done <"$work/faults"
    sed -n 's/^ \* @numbers \([0-9]*\) \([0-9]*\) \([0-9.e-]*\).*/\1 \2 \3/p' "$file" >"$work/faults"
    while read -r number argument tolerance; do
        try_numbers "$file" "$number" "$argument" "$tolerance"
    done <"$work/faults"
done
echo "$found of $planted planted bugs found by a finding of the right kind at the right line," \
    "$by_numbers by wrong numbers alone"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
