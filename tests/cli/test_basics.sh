#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_basics.sh - proves that each verb of attest does what its help says: help pages, files in and out
# in every dtype and layout, JSON that is JSON, and outputs that appear whole or not at all.
#
# usage: test_basics.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

python=$(command -v python3 || true)

# is_json NAME: the last stdout is JSON.
is_json() {
    if [ -z "$python" ]; then
        [ "$skips" -gt 0 ] || skipped "json" "no python3 to read it"
    elif "$python" -m json.tool stdout >/dev/null 2>json_errors; then
        ok
    else
        bad "$1" "stdout is not JSON: $(head -1 json_errors)"
    fi
}

# ---- help and version ------------------------------------------------------------------------

accepts "help" --help
says "help names the program" "attest - "
says "help has examples" "attest attn --q q.npy"
accepts "help, short" -h
accepts "help as a verb" help
says "help as a verb" "attest help VERB"
for words in --version version; do
    accepts "$words" $words
    says "$words" "libattn 0."
done
for verb in attn bench plan devices; do
    accepts "$verb --help" $verb --help
    says "$verb --help has a usage line" "usage: attest $verb"
    says "$verb --help has examples" "examples"
    says "$verb --help has --json" "--json"
    accepts "$verb -h after other options" $verb --json -h
    cp stdout expected
    accepts "help $verb" help $verb
    same "help $verb" stdout expected
done
verbs=$("$attest" --help | sed -n '/^usage/,/^examples/s/^  \([a-z]*\)  *[a-z].*/\1/p' | grep -v '^attest$')
for verb in $verbs; do
    lines=$("$attest" $verb --help | awk 'length > 100 || / $/' | wc -l)
    holds "help of $verb fits into 100 columns" [ "$lines" -eq 0 ]
done

# ---- devices and plan ------------------------------------------------------------------------

accepts "devices" devices
says "devices: the cpu" "cpu "
says "devices: cuda, or why not" "cuda:0"
accepts "devices as JSON" devices --json
is_json "devices as JSON"

accepts "plan of the canonical problem" plan
says "plan: problem" "fp32 B2 H8 S512 D64"
says "plan: variant" "variant"
for dtype in float32/fp32 float16/fp16 bfloat16/bf16; do
    accepts "plan --dtype ${dtype%/*}" plan --dtype ${dtype%/*}
    says "plan --dtype ${dtype%/*}" "${dtype#*/} B2"
done
accepts "plan of several sizes" plan --seq 64,128 --dim 32,64
holds "plan of several sizes: each" [ "$(grep -c '^problem    fp32 B2 H8 S\(64\|128\) D\(32\|64\)$' \
    stdout)" -eq 4 ]
accepts "plan of several sizes as JSON" plan --seq 64,128 --json
is_json "plan of several sizes as JSON"
holds "plan of several sizes as JSON: a list" [ "$(head -c 1 stdout)" = "[" ]
accepts "plan --direction" plan --direction backward --dtype bf16
says "plan --direction: variant" "variant    cpu_backward_"
accepts "plan --direction append" plan --direction append
says "plan --direction append: variant" "variant    cpu_append_c"
accepts "plan --direction merge" plan --direction merge --dtype bf16
says "plan --direction merge: variant" "variant    cpu_merge_c"
accepts "plan --all" plan --all
says "plan --all: portable variant" "cpu_tile_c"
accepts "plan --json" plan --json --all --seq-q 1 --seq-kv 100 --heads 8 --heads-kv=2 --dtype bf16
is_json "plan --json"
says "plan --json: variants" '"applies": true'
accepts "plan of a variant" plan --variant cpu_tile_c --causal top-left --window 3,0 --softcap 30 \
    --alibi --scale 0.5 --sink --bias --mask --layout bshd --dim 24 --dim-v 40 --tensor-cores never
says "plan of a variant" "variant    cpu_tile_c"
says "plan says the options" "causal window 3,0 softcap 30 alibi bias mask sink bshd"
accepts "plan of pages" plan --page-size 16 --seq-q 1
says "plan says the pages" "used_kv pages of 16"
accepts "plan of fp8" plan --kv-dtype e4m3 --seq-q 1

# ---- attn: values that are known -------------------------------------------------------------

# One key: the softmax is 1, so that O is V, bit for bit.
for type in f4 f2 u2; do
    case $type in u2) dtype="--dtype bf16" ;; *) dtype= ;; esac
    npy q.npy $type "1, 2, 1, 8" 1
    npy k.npy $type "1, 2, 1, 8" 2
    npy v.npy $type "1, 2, 1, 8" 3
    accepts "one key, $type" attn --q q.npy --k k.npy --v v.npy -o o.npy $dtype
    same "one key, $type" o.npy v.npy
done

# Zeros as queries: LSE of one key is 0, and a bias of the same for all keys changes nothing.
npy q.npy f4 "1, 1, 3, 8" 0
npy k.npy f4 "1, 1, 1, 8" 2
npy v.npy f4 "1, 1, 1, 8" 3
npy zero.npy f4 "1, 1, 3" 0
accepts "LSE of one key" attn --q q.npy --k k.npy --v v.npy -o o.npy --lse l.npy
same "LSE of one key" l.npy zero.npy

# ---- attn: verified --------------------------------------------------------------------------

for type in f4 f2 u2; do
    case $type in u2) dtype="--dtype bf16" ;; f2) dtype="--dtype fp16" ;; *) dtype= ;; esac
    npy q.npy $type "2, 4, 5, 8" 1
    npy k.npy $type "2, 2, 7, 8" 2
    npy v.npy $type "2, 2, 7, 6" 3
    npy b.npy $type "4, 1, 7" 4
    files="--q q.npy --k k.npy --v v.npy -o o.npy --verify"
    accepts "$type: plain" attn $files $dtype
    says "$type: verified" "40 of 40 rows"
    says "$type: names the output" "(2, 4, 5, 6)"
    accepts "$type: bias" attn $files $dtype --bias b.npy --lse l.npy
    says "$type: names the LSE" "(2, 4, 5)"
    for mask in b1 u1; do
        npy m.npy $mask "2, 1, 5, 7" 6
        accepts "$type: mask of $mask" attn $files $dtype --mask m.npy --bias b.npy --lse l.npy
        says "$type: names the mask" " bias mask"
    done
    for causal in none top-left bottom-right; do
        accepts "$type: causal $causal" attn $files $dtype --causal $causal --window 2,1 \
            --softcap 5 --scale 0.3 --alibi --lse l.npy
    done
    npy k.npy $type "2, 7, 2, 8" 2
    npy v.npy $type "2, 7, 2, 6" 3
    npy q.npy $type "2, 5, 4, 8" 1
    accepts "$type: bshd" attn $files $dtype --layout bshd
    says "$type: bshd output" "(2, 5, 4, 6)"
done

# Without a batch; packed; with lengths; with a sink.
npy q3.npy f4 "2, 5, 8" 1
npy k3.npy f4 "2, 7, 8" 2
npy v3.npy f4 "2, 7, 6" 3
npy s.npy f4 "2" 4
i4() { # FILE COUNT DATA
    raw "$1" 1 "{'descr': '<i4', 'fortran_order': False, 'shape': ($2,), }" "$3"
}
i4 one_q.npy 2 '\000\000\000\000\005\000\000\000'
i4 one_k.npy 2 '\000\000\000\000\007\000\000\000'
i4 cu_q.npy 4 '\000\000\000\000\002\000\000\000\002\000\000\000\005\000\000\000'
i4 cu_k.npy 4 '\000\000\000\000\003\000\000\000\004\000\000\000\007\000\000\000'
i4 used.npy 3 '\001\000\000\000\001\000\000\000\002\000\000\000'
files3="--q q3.npy --k k3.npy --v v3.npy -o o.npy --verify --causal bottom-right --sink s.npy"
accepts "3 dimensions" attn $files3 --lse l.npy
says "3 dimensions: problem" "B1 H2 Sq5 Skv7"
says "3 dimensions: output" "(2, 5, 6)"
says "3 dimensions: LSE" "float32 (2, 5)"
cp o.npy three.npy
accepts "one packed sequence" attn $files3 --cu-seqlens-q one_q.npy --cu-seqlens-kv one_k.npy
same "one packed sequence is one of 3 dimensions" o.npy three.npy
accepts "packed" attn $files3 --cu-seqlens-q cu_q.npy --cu-seqlens-kv cu_k.npy --used-kv used.npy \
    --lse l.npy
says "packed: problem" "packed used_kv sink"
says "packed: LSE" "float32 (2, 5)"
i4 four.npy 1 '\004\000\000\000'
accepts "used_kv" attn $files3 --used-kv four.npy
accepts "used_q" attn $files3 --used-q four.npy --lse l.npy
says "used_q: problem" "used_q sink"
accepts "offsets" attn $files3 --q-offset 7 --kv-offset 9 --offsets four.npy
says "offsets: problem" "offset -2 offsets sink"
"$attest" attn --q q3.npy --k k3.npy --v v3.npy -o - --causal bottom-right --sink s.npy >piped.npy \
    2>stderr
same "an output to stdout" piped.npy three.npy
holds "an output to stdout: the report on stderr" grep -q "^wrote     -  float32" stderr

# The portable kernel agrees with the reference too, and any number of threads with any other.
accepts "named variant" attn $files --dtype bf16 --layout bshd --variant cpu_tile_c --json
is_json "attn --json"
says "attn --json: verdict" '"pass": true'
npy q.npy f4 "2, 3, 37, 16" 1
npy k.npy f4 "2, 3, 41, 16" 2
npy v.npy f4 "2, 3, 41, 16" 3
accepts "one thread" attn --q q.npy --k k.npy --v v.npy -o one.npy --threads 1
accepts "three threads" attn --q q.npy --k k.npy --v v.npy -o three.npy --threads 3
same "bitwise equal for any number of threads" one.npy three.npy

# NumPy's broadcasting: a bias of one zero, of any rank, is as good as one of all zeros.
for shape in "1" "1, 1" "1, 1, 1, 1" "41" "37, 41" "3, 1, 41" "2, 1, 37, 1"; do
    npy b.npy f4 "$shape" 0
    accepts "bias of shape ($shape)" attn --q q.npy --k k.npy --v v.npy -o o.npy --bias b.npy --verify
    accepts "bias of shape ($shape), portable" attn --q q.npy --k k.npy --v v.npy -o o.npy \
        --bias b.npy --variant cpu_tile_c
done
npy b.npy f4 "2, 3, 37, 41" 0
accepts "a bias of every element" attn --q q.npy --k k.npy --v v.npy -o all.npy --bias b.npy \
    --variant cpu_tile_c
same "a broadcast bias is a whole one" o.npy all.npy

# A mask of ones hides nothing, one of zeros everything, and it broadcasts as well.
for shape in "1" "41" "37, 41" "2, 1, 1, 41" "2, 3, 37, 41"; do
    npy m.npy b1 "$shape" 5
    accepts "mask of shape ($shape)" attn --q q.npy --k k.npy --v v.npy -o o.npy --mask m.npy --verify
done
raw m.npy 1 "{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }" '\001'
accepts "a mask of ones" attn --q q.npy --k k.npy --v v.npy -o o.npy --mask m.npy --variant cpu_tile_c
accepts "no mask" attn --q q.npy --k k.npy --v v.npy -o all.npy --variant cpu_tile_c
same "a mask of ones is none" o.npy all.npy
npy m.npy b1 "1" 0
accepts "a mask of zeros" attn --q q.npy --k k.npy --v v.npy -o o.npy --mask m.npy --verify
npy all.npy f4 "2, 3, 37, 16" 0
same "a mask of zeros leaves nothing" o.npy all.npy

# Empty ones.
npy q.npy f4 "1, 1, 0, 8"
npy k.npy f4 "1, 1, 2, 8"
accepts "no queries" attn --q q.npy --k k.npy --v k.npy -o o.npy
same "no queries" o.npy q.npy
npy none.npy f4 "1, 1, 0, 8"
npy zero.npy f4 "1, 1, 2, 8" 0
accepts "no keys" attn --q k.npy --k none.npy --v none.npy -o o.npy
same "no keys: zeros" o.npy zero.npy

# ---- attn: files -----------------------------------------------------------------------------

npy q.npy f4 "1, 1, 2, 8"
cp q.npy o.npy
accepts "an input as output" attn --q q.npy --k q.npy --v q.npy -o q.npy
mkdir folder
ln -s folder/real.npy link.npy
cp q.npy folder/real.npy
accepts "through a symbolic link" attn --q q.npy --k q.npy --v q.npy -o link.npy
holds "the symbolic link is still there" [ -h link.npy ]
accepts "= before the value" attn --q=q.npy --k=q.npy --v=q.npy --output=folder/o.npy --window=-1,0
umask 027
accepts "permissions" attn --q q.npy --k q.npy --v q.npy -o new.npy
case $(ls -l new.npy) in -rw-r-----*) ok ;; *) bad "permissions" "$(ls -l new.npy)" ;; esac
umask 022
rm -f o.npy l.npy
holds "no temporary files" nothing_left

mkfifo pipe
cat q.npy >pipe &
accepts "an input from a pipe" attn --q pipe --k q.npy --v q.npy -o o.npy
wait
cat pipe >piped.npy &
accepts "an output into a pipe" attn --q q.npy --k q.npy --v q.npy -o pipe
wait
same "an output into a pipe" o.npy piped.npy

# A signal in the middle removes the temporary file. Sparse zeros make a problem of some seconds.
npy head.npy f4 "1, 0, 16384, 64"
sed 's/(1, 0, 16384, 64)/(1, 8, 16384, 64)/' head.npy >long.npy
dd if=/dev/zero of=long.npy bs=1 count=0 seek=$((128 + 8 * 16384 * 64 * 4)) 2>/dev/null
rm -f o.npy
"$attest" attn --q long.npy --k long.npy --v long.npy -o o.npy --variant cpu_tile_c 2>stderr &
job=$!
tries=0
while ! ls .attest-* >/dev/null 2>&1 && kill -0 $job 2>/dev/null && [ $tries -lt 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
if ls .attest-* >/dev/null 2>&1; then
    kill -TERM $job
    { wait $job; } 2>/dev/null
    holds "SIGTERM ends the program" [ $? -eq 143 ]
    holds "SIGTERM leaves nothing" nothing_left
else
    kill -TERM $job 2>/dev/null
    wait $job
    bad "SIGTERM" "no temporary file was seen"
fi

# ---- bench -----------------------------------------------------------------------------------

small="--batch 1 --heads 2 --seq 33 --dim 16 --seconds 0.02"
accepts "bench" bench $small
says "bench: p50" "p50 "
says "bench: p90" "p90 "
says "bench: rate" "GFLOP/s"
says "bench: checked" "66 of 66 rows"
accepts "bench without time enough" bench $small --width 0
says "bench without time enough" "warning: 1 of 1 medians"
accepts "bench with time enough" bench $small --width 1000
holds "bench with time enough" sh -c '! grep -q warning stdout'
accepts "bench of several sizes" bench $small --heads-kv 1,2 --dtype float32
says "bench of several sizes" "H2/1 S33"
says "bench of several sizes: all" "2 results, each checked"
for dtype in fp32 fp16 bf16; do
    accepts "bench $dtype as JSON" bench $small --device cpu --dtype $dtype --heads-kv 1 --lse \
        --causal bottom-right --alibi --sink --bias --mask --layout bshd --threads 1 --seed 7 --json
    is_json "bench $dtype as JSON"
    says "bench $dtype as JSON: number" '"p50_seconds"'
done
accepts "bench of pages" bench $small --page-size 3 --json
says "bench of pages: their size" '"page_size": 3'
accepts "bench of fp8" bench $small --kv-dtype e5m2 --json
accepts "bench of nothing" bench --batch 0 --seconds 0.01

finish
