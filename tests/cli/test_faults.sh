#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_faults.sh - proves that attest notices a wrong result: with a fault planted in attn_forward,
# `attn --verify` exits 1 and writes nothing, `bench` exits 1 and prints no number.
#
# usage: test_faults.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

build_faults forward

# notices NAME FAULT CODE words...: that exit code, one line of complaint, no number, no file.
notices() {
    name=$1 fault=$2 expected=$3 sentence=
    shift 3
    with_fault "$fault" "$@"
    complained
}

npy q.npy f4 "1, 2, 33, 16" 1
npy k.npy f4 "1, 2, 35, 16" 2
npy v.npy f4 "1, 2, 35, 16" 3
attn="attn --q q.npy --k k.npy --v v.npy -o o.npy --lse l.npy"
bench="bench --batch 2 --heads 2 --seq 700 --dim 16 --seconds 0.2"

with_fault none $attn --verify
holds "attn without a fault" [ $code -eq 0 ]
rm -f o.npy l.npy
with_fault none $bench
holds "bench without a fault" [ $code -eq 0 ]
says "bench without a fault" GFLOP

for fault in first hidden noop; do
    notices "attn, $fault" $fault 1 $attn --verify
    notices "attn as JSON, $fault" $fault 1 $attn --verify --json
    says "attn as JSON, $fault" '"pass": false'
    notices "bench, $fault" $fault 1 $bench
    notices "bench as JSON, $fault" $fault 1 $bench --json
    says "bench as JSON, $fault" '"outcome": "wrong"'
done
notices "bench, late" late 1 $bench
notices "bench as JSON, late" late 1 $bench --json
notices "attn, status" status 2 $attn
notices "bench, status" status 2 $bench

# NaN in a visible value is in the right result too; the rule says that it never passes.
npy v.npy f4 "1, 2, 35, 16" 3
printf '\377\377\377\377' | dd of=v.npy bs=1 seek=128 conv=notrunc 2>/dev/null
"$attest" $attn --verify >stdout 2>stderr
holds "NaN among the inputs: exit code" [ $? -eq 1 ]
holds "NaN among the inputs: complaint" one_line_of_complaint
holds "NaN among the inputs: nothing left" nothing_left
holds "NaN among the inputs: no report" [ ! -s stdout ]

finish
