#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_judge.sh SOURCE_DIR BUILD_DIR: `attest judge` finds each cheat of tests/red_team/judge as its
# line `judged:` says, and none in the candidates that do not cheat.
#
# Invariant: a cheat is judged as any other candidate; the judge does not know which one it runs.
set -u
source=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
. "$(dirname "$0")/cli.sh"
cheats=$work/cheats
python=${ATTN_TEST_PYTHON:-python3}
seed=20
count=0

# judged FILE NAME: what the line before the function NAME says; options FILE NAME: likewise
said_of() {
    awk -v name="$3" -v key="$2" '
        match($0, "^(/\\*|#) " key ": ") { value = substr($0, RLENGTH + 1); sub(/ *\*\/$/, "", value) }
        /^(void|def|class) / { if ($0 ~ "(void|def|class) " name "[(:]") print value; value = "" }' "$1"
}

# try NAME FILE CANDIDATE OPTION...: its verdict is that of the file
try() {
    name=$1 file=$2
    shift 2
    [ "${name#model_}" = "$name" ] && expected=$(said_of "$file" judged "$name")
    options=$(said_of "$file" options "$name")
    [ "$expected" = untimed ] && set -- "$@" --time 1,2,67,40,causal --rounds 6
    run judge "$@" --options "${options:-causal}" --seed "$seed" --json
    if [ "$expected" = right ]; then
        if [ "$code" -eq 0 ]; then ok; else bad "$name" "exit code $code: $(cat stdout)"; fi
        return
    fi
    count=$((count + 1))
    case $expected in
    untimed) # or of the call on another thread, which a library keeps
        pattern='"reason": "(in a timed call: |the same inputs at other addresses)' ;;
    idle) pattern='"reason": "it works while it is not called"' ;;
    *) pattern="\"judged\": \"$expected\"" ;;
    esac
    if [ "$code" -eq 1 ] && grep -qE "$pattern" stdout; then
        ok
    else
        bad "$name" "exit code $code, expected 1 and $expected: $(grep -E '"(judged|reason)"' stdout | sort | uniq -c | head -4)"
    fi
}

names() {
    awk '/^(\/\*|#) judged: / { wanted = 1 }
        /^(void|def|class) / { if (wanted) { sub(/^[a-z]+ /, ""); sub(/[(:].*/, ""); print } wanted = 0 }' "$1"
}

# ---- libraries -------------------------------------------------------------------------------------

cp -r "$source/tests/red_team/judge" "$work/cheats" # which are free to write there
cp "$build/libattn.so" ./other.so
CHEAT_LIBRARY=$work/other.so
export CHEAT_LIBRARY
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
for file in cheats gradients; do
    "$cc" -O2 -w -shared -fPIC -I"$source/include" "$cheats/$file.c" -o $file.so -lm -lpthread -ldl
    holds "compiled $file" test -f $file.so
done
for name in $(names "$cheats/cheats.c"); do
    cases=12 limit=20
    case $name in hangs) limit=1 ;; for_normal_inputs) cases=100 ;; esac
    case $name in hangs | ends | eats_memory | kills_* | on_another*) cases=2 ;; esac
    CHEAT=$name
    export CHEAT
    try "$name" "$cheats/cheats.c" ./cheats.so --cases "$cases" --limit "$limit" --memory 512
done

for name in $(names "$cheats/gradients.c"); do
    CHEAT=$name
    export CHEAT
    try "$name" "$cheats/gradients.c" ./gradients.so --direction backward --cases 8 --limit 20
done

# ---- Python ----------------------------------------------------------------------------------------

# functions FILE ARRAYS CASES [DIRECTION]
functions() {
    for name in $(names "$cheats/$1"); do
        try "$name" "$cheats/$1" "$cheats/$1:$name" --arrays "$2" --python "$python" --cases "$3" --limit 60 \
            --direction "${4:-forward}"
    done
}

if "$python" -c 'import numpy' 2>/dev/null; then
    functions cheats_numpy.py numpy 10
    functions gradients_numpy.py numpy 10 backward
    run judge "$cheats/cheats_numpy.py:honest" --arrays dlpack --python "$python" --cases 2
    holds dlpack/array test "$code" -eq 1
else
    skipped numpy "no NumPy for $python"
fi
if "$python" -c 'import torch' 2>/dev/null; then
    functions cheats_torch.py torch 8
    functions autograd_torch.py torch 8 autograd
    for file in "$cheats"/model_*.py; do
        name=$(basename "$file" .py)
        cp "$source/tests/red_team/judge/model.py" "$cheats" # one of them rewrites it
        expected=$(sed -n 's/^"""judged: \(.*\)"""$/\1/p' "$file")
        try "$name" "$file" "$file" --reference "$cheats/model.py" --python "$python" --cases 2
    done
    # exit 1: libattn is not right in every case
    PYTHONPATH=$source/python ATTEST=$attest "$python" -m attn.peers --judge 6 --peers math \
        --lib "$build/libattn.so" >table 2>&1
    holds peers/exit test "$?" -eq 0
    holds peers/rows test "$(grep -cE '^\| (C|libattn|math) \| 6 \|' table)" -eq 6
else
    skipped torch "no PyTorch for $python"
fi

for direction in forward backward; do
    accepts libattn/$direction judge "$build/libattn.so" --any-library --options all --dtype fp32,fp16,bf16 \
        --direction $direction --cases 30
    says libattn/pass PASS
done
if [ "$count" -ge 30 ]; then ok; else bad count "$count cheats, expected 30 or more"; fi
accepts time judge "$build/libattn.so" --any-library --cases 1 --time 1,2,67,40,causal --rounds 6 --json
says time/ratio '"ratio": '
accepts time/backward judge "$build/libattn.so" --any-library --direction backward --cases 1 \
    --time 1,2,67,40,causal --rounds 6
says time/backward/ratio "times as fast"

refuses absent "CANDIDATE is missing" judge
refuses form "expected MODULE:FUNCTION" judge nonsense
refuses word "'nonsense' is none of" judge ./x.so --options nonsense
refuses own "it is the library of this program" judge "$build/libattn.so"
refuses nowhere "cannot open shared object" judge ./nowhere.so
refuses direction "expected a function over PyTorch's tensors" judge ./x.so --direction autograd
refuses forward-only "some of them are for forward only" judge ./x.so --direction backward --options paged
refuses time "cannot be timed" judge mine.py:f --direction autograd --python sh --time 1,2,64,32
refuses variant "without --variant" judge ./x.ptx
finish
