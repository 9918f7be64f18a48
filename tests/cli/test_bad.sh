#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_bad.sh - proves that attest answers bad usage, bad files and bad outputs with one clear line
# on stderr and exit code 2, and leaves no output.
#
# usage: test_bad.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

# ---- usage -----------------------------------------------------------------------------------

refuses "no verb" "no verb"
refuses "unknown verb" "unknown verb 'xyz'; attest --help lists them" xyz
refuses "a verb misspelled" "unknown verb 'atn', did you mean attn?" atn
refuses "help misspelled" "unknown verb 'helo', did you mean help?" helo
refuses "version misspelled" "unknown verb 'vresion', did you mean version?" vresion
refuses "help of an unknown verb" "unknown verb 'pln', did you mean plan?" help pln
refuses "an option misspelled" "unknown option '--sqe-kv', did you mean --seq-kv?" plan --sqe-kv 3
refuses "sizes with an end missing" "'64,' is not a whole number" plan --seq 64,
refuses "more sizes than it takes" "more than 16 numbers" plan --seq 1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8
refuses "one of several sizes out of range" "out of range" plan --seq 64,-1
refuses "an architecture that it does not know" "expected sm_80, sm_86" plan --device sm_70
refuses "verb with a newline" "unknown verb 'a?b'" "a
b"
refuses "unknown option" "unknown option '--foo'" plan --foo
refuses "unknown option of devices" "unknown option '--batch'" devices --batch 1
refuses "positional argument" "unknown argument 'x.npy'" attn x.npy
refuses "value missing at the end" "--batch needs a value" plan --batch
refuses "value missing before an option" "--batch needs a value" plan --batch --json
refuses "empty value" "empty" plan --device=
refuses "flag with a value" "--alibi takes no value" plan --alibi=1
refuses "option twice" "--batch is given twice" plan --batch 1 --batch 2
refuses "not a number" "'x' is not a whole number" plan --batch x
refuses "number and text" "'2x' is not a whole number" plan --batch 2x
refuses "white space" "' 2' is not a whole number" plan --batch " 2"
refuses "fraction" "'2.5' is not a whole number" plan --batch 2.5
refuses "too big for any integer" "is not a whole number" plan --batch 99999999999999999999
refuses "out of range" "out of range" plan --seq 3000000000
refuses "negative size" "out of range" plan --dim -1
refuses "scale" "'abc' is not a number" plan --scale abc
refuses "scale NaN" "'nan' is not a number" plan --scale nan
refuses "scale infinite" "out of range" plan --scale 1e39
refuses "softcap" "softcap" plan --softcap -1
refuses "window of one" "pair of whole numbers" plan --window 3
refuses "window of three" "pair of whole numbers" plan --window 1,2,3
refuses "window of words" "pair of whole numbers" plan --window a,b
refuses "window below -1" "out of range" plan --window -2,0
refuses "causal" "'diagonal' is not one of none, top-left, bottom-right" plan --causal diagonal
refuses "layout" "'sbhd' is not one of bhsd, bshd" plan --layout sbhd
refuses "dtype" "'fp64' is not one of fp32, fp16, bf16" plan --dtype fp64
refuses "threads" "out of range" bench --threads 0
refuses "seconds" "more than 0" bench --seconds 0
refuses "seconds, negative" "more than 0" bench --seconds -1
refuses "grid" "'gpu' is not one of cpu" bench --grid gpu
refuses "grid and sizes" "--seq: --grid has its own problems" bench --grid cpu --seq 7
refuses "grid and semantics" "--alibi: --grid has its own problems" bench --grid cpu --alibi

# ---- problems and devices that the library refuses -------------------------------------------

refuses "heads do not divide" "heads_kv = 3" plan --heads 8 --heads-kv 3
refuses "no heads" "heads_q = 0" plan --heads 0
refuses "no head dimension" "head_dim = 0" plan --dim 0
refuses "unknown variant" "no_such" plan --variant no_such
refuses "unknown device" "tpu" plan --device tpu
refuses "bench: unknown device" "tpu" bench --device tpu
refuses "bench: problem" "heads_kv = 3" bench --heads 8 --heads-kv 3
refuses "bench: more memory than there is" "GiB" bench --batch 100000 --heads 1000 --seq 100000

# ---- files: malformed ------------------------------------------------------------------------

good="{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2, 2), }\\n"
data='\000\000\200\077\000\000\200\077\000\000\200\077\000\000\200\077'
raw good.npy 1 "$good" "$data"

# bad_q NAME SENTENCE: x.npy as Q, good ones elsewhere.
bad_q() {
    refuses "$1" "x.npy: " attn --q x.npy --k good.npy --v good.npy -o o.npy
    refuses "$1" "$2" attn --q x.npy --k good.npy --v good.npy -o o.npy --lse l.npy --json
}
# header NAME SENTENCE HEADER
header() {
    raw x.npy 1 "$3" "$data"
    bad_q "$1" "$2"
}

rm -f x.npy
bad_q "no such file" "No such file"
: >x.npy
bad_q "empty file" "truncated"
printf 'PK\003\004 and more of it' >x.npy
bad_q "a zip file" "not a .npy file"
printf '\223NUMPY\001' >x.npy
bad_q "half a preamble" "truncated"
printf '\223NUMPY\001\000\377\377{' >x.npy
bad_q "header cut off" "truncated"
raw x.npy 4 "$good" "$data"
bad_q "version 4" "version 4.0"
printf '\223NUMPY\002\000\377\377\377\377{' >x.npy
bad_q "header of 4 GiB" "header of 4294967295 bytes"
header "not a dict" "not a dict" "('descr', '<f4')"
header "no shape" "'shape' is missing" "{'descr': '<f4', 'fortran_order': False}"
header "no descr" "'descr' is missing" "{'fortran_order': False, 'shape': (4,)}"
header "unclosed" "malformed" "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)"
header "unknown key" "unknown key" "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'x': 0}"
header "repeated key" "repeated key" "{'descr': '<f4', 'descr': '<f4', 'shape': (4,)}"
header "NUL in the header" "NUL" "{'descr': '<f4',\\000'fortran_order': False, 'shape': (4,)}"
header "Fortran order" "Fortran" "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1, 2, 2)}"
header "double" "'<f8'" "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1, 1, 2)}"
header "big-endian" "big-endian" "{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1, 2, 2)}"
header "integers" "'<i4'" "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 2, 2)}"
header "objects" "'|O'" "{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 2, 2)}"
header "records" "records" "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,)}"
header "shape is a number" "tuple" "{'descr': '<f4', 'fortran_order': False, 'shape': 4}"
header "negative size" "tuple" "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 1, 2, 2)}"
header "9 dimensions" "dimensions" \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,4)}"
header "size of 2^64" "2^63" \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616,)}"
header "product overflows" "address space" \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 1, 1)}"
header "a terabyte claimed" "truncated" \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1024, 1024, 1024, 256)}"
header "data cut off" "needs 20 bytes of data, 16 are there" \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 5)}"
header "more data than shape" "more than the 12 bytes" \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 3)}"
header "a file of zeros" "malformed" '\000\000\000\000'
refuses "a folder" "directory" attn --q . --k good.npy --v good.npy -o o.npy
refuses "name with a newline" "x?y" attn --q "x
y" --k good.npy --v good.npy -o o.npy

# ---- files: good ones that do not fit --------------------------------------------------------

npy q.npy f4 "2, 4, 3, 8"
npy k.npy f4 "2, 2, 5, 8"
npy half.npy f2 "2, 2, 5, 8"
npy bits.npy u2 "2, 2, 5, 8"
npy bits_bias.npy u2 "3, 5"
npy flat.npy f4 "2, 40"
npy batch.npy f4 "1, 2, 5, 8"
npy dim.npy f4 "2, 2, 5, 4"
npy heads.npy f4 "2, 3, 5, 8"
npy seq.npy f4 "2, 2, 6, 8"
npy bias5.npy f4 "1, 1, 1, 1, 1"
npy mask.npy b1 "3, 4"
npy none.npy f4 "2, 0, 3, 8"

# attn_kv NAME SENTENCE K V [options]
attn_kv() {
    title=$1
    part=$2
    k=$3
    v=$4
    shift 4
    refuses "$title" "$part" attn --q q.npy --k "$k" --v "$v" -o o.npy --lse l.npy "$@"
}
refuses "nothing given" "--q is missing" attn
refuses "no output given" "-o is missing" attn --q q.npy --k k.npy --v k.npy
attn_kv "K has 2 dimensions" "flat.npy: shape (2, 40), expected 3 or 4 dimensions" flat.npy k.npy
attn_kv "K's batch" "batch.npy: batch 1" batch.npy batch.npy
attn_kv "V's batch" "batch.npy: batch 1" k.npy batch.npy
attn_kv "K's head dimension" "dim.npy: head dimension 4" dim.npy k.npy
attn_kv "V's heads" "heads.npy: heads 3" k.npy heads.npy
attn_kv "V's length" "seq.npy: sequence length 6" k.npy seq.npy
attn_kv "heads that do not divide" "heads_kv = 3" heads.npy heads.npy
attn_kv "no heads" "heads_" none.npy none.npy
attn_kv "mixed types" "half.npy: holds fp16" half.npy half.npy
attn_kv "not the type that was said" "q.npy: holds fp32" k.npy k.npy --dtype fp16
attn_kv "uint16 without --dtype" "--dtype bf16" bits.npy bits.npy
attn_kv "other layout" "batch" k.npy k.npy --layout bshd --bias bias5.npy
attn_kv "bias of 5 dimensions" "bias5.npy: shape" k.npy k.npy --bias bias5.npy
attn_kv "bias that does not broadcast" "does not broadcast" k.npy k.npy --bias q.npy
attn_kv "bias of another type" "bits_bias.npy: holds uint16" k.npy k.npy --bias bits_bias.npy
attn_kv "bias missing" "nix.npy: No such file" k.npy k.npy --bias nix.npy
attn_kv "mask that does not broadcast" "mask.npy: shape (3, 4) does not broadcast" k.npy k.npy --mask mask.npy
attn_kv "mask of another type" "q.npy: holds '<f4', expected '|b1' (bool) or '|u1' (uint8)" k.npy k.npy --mask q.npy
attn_kv "mask missing" "nix.npy: No such file" k.npy k.npy --mask nix.npy
i4() { # FILE COUNT DATA
    raw "$1" 1 "{'descr': '<i4', 'fortran_order': False, 'shape': ($2,), }" "$3"
}
npy sink.npy f4 "3"
i4 cu.npy 2 '\000\000\000\000\005\000\000\000'
i4 falls.npy 3 '\000\000\000\000\004\000\000\000\003\000\000\000'
i4 most.npy 2 '\000\000\000\000\006\000\000\000'
i4 first.npy 2 '\001\000\000\000\005\000\000\000'
attn_kv "a sink for other heads" "sink.npy: shape (3,), expected (4,), the heads of Q" k.npy k.npy \
    --sink sink.npy
attn_kv "a sink of integers" "cu.npy: holds '<i4', expected '<f4' (float32)" k.npy k.npy --sink cu.npy
attn_kv "lengths of floats" "q.npy: holds '<f4', expected '<i4' (int32)" k.npy k.npy --used-kv q.npy
attn_kv "lengths for another batch" "falls.npy: shape (3,), expected (2,), the batch" k.npy k.npy \
    --used-kv falls.npy
attn_kv "more keys than there are" "most.npy: element 1 is 6, expected 0 to 5" k.npy k.npy \
    --used-kv most.npy
attn_kv "packed with a batch" "q.npy: shape (2, 4, 3, 8), expected 3 dimensions" k.npy k.npy \
    --cu-seqlens-q cu.npy --cu-seqlens-kv cu.npy
npy t.npy f4 "2, 5, 8"
packed() { # NAME SENTENCE CU_Q CU_KV
    refuses "$1" "$2" attn --q t.npy --k t.npy --v t.npy -o o.npy --cu-seqlens-q "$3" --cu-seqlens-kv "$4"
}
refuses "cu_seqlens alone" "--cu-seqlens-q is given alone" attn --q t.npy --k t.npy --v t.npy -o o.npy \
    --cu-seqlens-q cu.npy
packed "cu_seqlens of other sizes" "falls.npy: shape (3,), expected (2,), as --cu-seqlens-q" \
    cu.npy falls.npy
packed "cu_seqlens that fall" "falls.npy: element 2 is 3, expected 5 to 5" falls.npy falls.npy
packed "cu_seqlens past the end" "most.npy: element 1 is 6, expected 5 to 5" cu.npy most.npy
packed "cu_seqlens not from 0" "first.npy: element 0 is 1, expected 0 to 0" first.npy cu.npy
refuses "--json and stdout" "both want stdout" attn --q t.npy --k t.npy --v t.npy -o - --json
refuses "two outputs to stdout" "name the same file" attn --q t.npy --k t.npy --v t.npy -o - --lse -
attn_kv "a mask as bias" "mask.npy: holds '|b1'" k.npy k.npy --bias mask.npy
attn_kv "softcap" "softcap" k.npy k.npy --softcap -3
attn_kv "unknown device" "tpu" k.npy k.npy --device tpu
attn_kv "unknown variant" "no_such" k.npy k.npy --variant no_such
attn_kv "-o twice" "given twice" k.npy k.npy -o x.npy

# ---- outputs that cannot be written ----------------------------------------------------------

# out NAME SENTENCE OUTPUT [options]
out() {
    title=$1
    part=$2
    file=$3
    shift 3
    refuses "$title" "$part" attn --q q.npy --k k.npy --v k.npy -o "$file" "$@"
}
mkdir folder
out "no such folder" "nowhere/o.npy: cannot write: No such file" nowhere/o.npy
out "a folder" "folder: cannot write: it is a directory" folder
out "a folder with a slash" "folder/: cannot write" folder/
out "a file as a folder" "Not a directory" k.npy/o.npy
out "LSE in no folder" "nowhere/l.npy: cannot write" o.npy --lse nowhere/l.npy
out "both the same" "same file" o.npy --lse ./o.npy
out "empty name" "empty" ""
if [ -c /dev/full ]; then
    out "full disk" "/dev/full: cannot write: No space left" /dev/full
    out "full disk for the LSE" "/dev/full: cannot write: No space left" o.npy --lse /dev/full
    holds "the device is still there" [ -c /dev/full ]
    "$attest" attn --q q.npy --k k.npy --v k.npy -o o.npy 2>stderr >/dev/full
    holds "attn with a full stdout: exit code" [ $? -eq 2 ]
    holds "attn with a full stdout: complaint" one_line_of_complaint
    holds "attn with a full stdout: nothing left" nothing_left
    for words in "devices" "plan --json" "--help" "--version" "bench --seq 8 --seconds 0.01"; do
        "$attest" $words 2>stderr >/dev/full
        holds "$words with a full stdout: exit code" [ $? -eq 2 ]
        holds "$words with a full stdout: complaint" one_line_of_complaint
    done
else
    skipped "full_disk" "no /dev/full"
fi
"$attest" devices 2>stderr >&-
holds "closed stdout: exit code" [ $? -eq 2 ]
holds "closed stdout: complaint" one_line_of_complaint
if [ "$(id -u)" -ne 0 ]; then
    mkdir locked
    chmod 555 locked
    out "a folder without permission" "Permission denied" locked/o.npy
    : >locked.npy
    chmod 444 locked.npy
    out "a file without permission" "Permission denied" locked.npy
fi
cp q.npy keep.npy
refuses "an old output stays" "nix.npy" attn --q nix.npy --k k.npy --v k.npy -o keep.npy
same "an old output stays" q.npy keep.npy

finish
