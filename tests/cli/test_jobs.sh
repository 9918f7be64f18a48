#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_jobs.sh - proves that attest run --jobs and --part, and attest merge, run each slot of a plan
# once: if some workers are killed, all are killed, the parent is killed, or they run elsewhere. The
# verdict is that of one run on one machine. The same holds for the steps of attest evolve.
#
# usage: test_jobs.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

unset ATTN_DRIVER VGPU_CHECKS
few="--stage parity --device cpu --seed 1 --variant ^cpu_row_"
one="--stage parity --device cpu --seed 1 --variant ^cpu_row_c\$"

# whole PACK: it has a unit of each slot, and verify accepts it.
whole() {
    holds "$1: $count units" [ "$(ls "$1/units" | wc -l)" -eq "$count" ]
    accepts "$1: verified" verify "$1"
    holds "$1: nothing is left beside it" [ -z "$(ls -d "$1"/.attest-* 2>/dev/null)" ]
}

# ---- the command line ------------------------------------------------------------------------

refuses "workers of what" "--workers is of --jobs" run --workers 2 --out x
refuses "jobs and a part" "expected one of them" run --jobs env --part 1/2 --out x
for part in 3/2 1/0 1 1/2x x/2 -1/2 1/5000; do
    refuses "part $part" "--part: '$part', expected I/N" run --part=$part --out x
done
refuses "a command that is none" "exit code 127" run --jobs /no/such/srun $few --out x
refuses "a request that the worker refuses" "--stage: 'party'" run --jobs env --stage party --out x
refuses "merge: no --out" "--out" merge x
refuses "merge: no pack" "x: No such file" merge x --out y
holds "nothing was written" [ ! -e x ]

run run $few --part 0/1 --out none
count=$(grep -c '"image"' none/plan.json)
if [ "$count" -lt 2 ]; then # a build of portable code alone
    few="--stage parity --device cpu --seed 1 --variant ^cpu_(row|tile)_"
    run run $few --part 0/1 --out two
    count=$(grep -c '"image"' two/plan.json)
fi
holds "there are several slots" [ "$count" -ge 2 ]

# ---- workers ---------------------------------------------------------------------------------

# shellcheck disable=SC2016 # the worker's shell expands it
accepts "three workers" run $few --out jobs --gpu-hour-price 2.5 --workers 3 \
    --jobs 'echo "$ATTEST_WORKER" >>'"$work"'/numbers; env'
says "three workers: the verdict" "PASS (partial: less than all stages"
whole jobs
holds "the seed arrived" grep -q '"seed": "0000000000000001"' jobs/plan.json
holds "the price arrived" grep -q '"gpu_hour_price": 2.5' jobs/plan.json
holds "each has its number" [ "$(sort -u numbers | tr -d '\n' | cut -c1-2)" = 01 ]
accepts "nothing is left to do" run --resume --jobs 'false' --out jobs
accepts "nor without workers" run --resume --out jobs

# The first worker of a part is killed before it starts; the next one when it has begun.
cat >lossy <<'SCRIPT'
[ "$4" = 0/64 ] && exec "$@"
echo >>calls
mkdir lost1 2>/dev/null && kill -9 $$
mkdir lost2 2>/dev/null && { "$@" & sleep 0.1; kill -9 $!; exit 1; }
exec "$@"
SCRIPT
accepts "two workers are lost" run $few --out lossy.pack --jobs "sh $work/lossy" --workers 2
whole lossy.pack
holds "they were replaced" [ "$(wc -l <calls)" -gt "$count" ]

# All are lost: what one did is kept.
cat >one <<'SCRIPT'
[ "$4" = 0/64 ] && exec "$@"
mkdir busy 2>/dev/null && exec "$@"
echo "node 7 is down" >&2
exit 7
SCRIPT
run run $few --out one.pack --jobs "sh $work/one"
holds "all are lost: exit code" [ "$code" -eq 3 ]
holds "all are lost: why" grep -q "exit code 7: node 7 is down" stderr
holds "all are lost: NOT_RUN" grep -q "^verdict *NOT_RUN" stdout
holds "all are lost: one unit" [ "$(ls one.pack/units | wc -l)" -eq 1 ]
run verify one.pack
holds "all are lost: verifies in part" [ "$code" -eq 3 ]
accepts "all are lost: goes on with others" run --resume --out one.pack --jobs env
whole one.pack

# The parent is ended, by a signal that it can heed and by one that it cannot.
for signal in TERM KILL; do
    rm -rf pack
    "$attest" run --out pack $few --workers 2 --jobs env >run_stdout \
        2>run_stderr &
    runner=$!
    tries=0
    while [ -z "$(ls pack/units 2>/dev/null)" ] && [ $tries -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    if [ $signal = TERM ]; then
        run run --resume --out pack
        holds "another run in it" grep -q "another attest run is at work in it" stderr
        run run --resume --jobs env --out pack
        holds "another parent in it" grep -q "at work in this part" stderr
    fi
    kill -$signal $runner
    wait $runner 2>/dev/null
    code=$?
    holds "SIG$signal: exit code" [ $code -eq $([ $signal = TERM ] && echo 3 || echo 137) ]
    run verify pack
    holds "SIG$signal: verifies in part" [ "$code" -eq 3 ]
    kept=$(ls pack/units)
    tries=0 # workers end their parts, and with them their locks
    while run run --resume --out pack && grep -q "at work in it" stderr && [ $tries -lt 300 ]; do
        sleep 0.2
        tries=$((tries + 1))
    done
    holds "SIG$signal: goes on" [ "$code" -eq 0 ]
    for unit in $kept; do
        [ -e "pack/units/$unit" ] || bad "SIG$signal: $unit" "it is lost"
    done
    accepts "SIG$signal: verified" verify pack
done

# A library that fails is no lost worker: each slot is tried once.
if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -I"$here/../include" -o fault.so "$here/faults/parity.c" \
    -lm 2>stderr; then
    ASAN_OPTIONS=verify_asan_link_order=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
    export ASAN_OPTIONS
    run run $one --out crash --jobs "env FAULT=crash LD_PRELOAD=$work/fault.so"
    holds "a crash: exit code" [ "$code" -eq 1 ]
    holds "a crash: one unit" [ "$(ls crash/units | wc -l)" -eq 1 ]
    holds "a crash: it says why" grep -q '"broken": "case [0-9]*: the child' crash/units/*
else
    skipped "faults" "no compiler builds them"
fi

# ---- parts and merge -------------------------------------------------------------------------

run run $few --part 1/2 --out a
holds "part 1" [ "$code" -eq 0 ]
says "part 1: done" "part 1/2 of a: 0 slots are left"
holds "part 1: no verdict yet" [ ! -e a/evidence.json ]
mkdir b && cp a/plan.json b
accepts "part 2" run --resume --part 2/2 --out b --json
says "part 2: as JSON" '"left": 0'
accepts "merged" merge a b --out merged
says "merged: the verdict" "PASS (partial: less than all stages"
whole merged
accepts "a merge of merges" merge merged a merged --out again --json
same "is the same" merged/evidence.json again/evidence.json
run merge a --out half
holds "half: exit code" [ "$code" -eq 3 ]
accepts "half: goes on" run --resume --out half
whole half

refuses "merge into a pack" "not empty" merge a b --out half
run run $one --part 0/2 --out other
refuses "another plan" "other: another plan" merge a other --out y
holds "another plan: nothing is left" [ ! -e y/units ]
cp -r b changed
echo >>"$(ls changed/units/*.json | head -1)"
refuses "a changed pack" "it was changed" merge a changed --out z
holds "a changed pack: nothing was written" [ ! -e z ]
# Two that did the same slot: not the better one of them.
cp -r other twice && cp -r other once
accepts "once" run --resume --part 1/1 --out once
accepts "twice" run --resume --part 1/1 --out twice
run merge once twice --out double
holds "a slot that was done twice" [ "$code" -eq 4 ]
holds "a slot that was done twice: why" grep -q "units of the same" stderr stdout

# ---- machines that differ --------------------------------------------------------------------

# differs NAME TEXT SED-COMMAND: a plan of another machine.
differs() {
    rm -rf elsewhere && mkdir elsewhere
    sed "$3" a/plan.json >elsewhere/plan.json
    if cmp -s a/plan.json elsewhere/plan.json; then
        bad "$1" "nothing was edited"
    fi
    refuses "$1" "$2" run --resume --part 2/2 --out elsewhere
    holds "$1: nothing was done" [ ! -e elsewhere/units ]
}
differs "another CPU" "--part: cpu is" 's/^\( *"cpu": \)".*"/\1"Deep Thought"/'
differs "another library" '"library" of the plan' 's/^\(  "library": "\)..../\1dead/'
differs "another tool" '"tool" of the plan' 's/^\(  "tool": "\)..../\1dead/'
differs "other cases" '"rows" of the plan' 's/"cases": 20/"cases": 2/'

# ---- a search --------------------------------------------------------------------------------

refuses "--step without --jobs" "--step is what --jobs tells" evolve --shape 1,1,64,32 --step 0
cat >lossy <<'SCRIPT'
echo >>steps
[ "$(wc -l <steps)" -ge 3 ] && mkdir lost 2>/dev/null && kill -9 $$
exec "$@"
SCRIPT
search="evolve --shape 1,1,64,32 --candidates 4 --seed 5"
accepts "a search" $search --out search --workers 2 --jobs "sh $work/lossy" --json
cp stdout board.json
holds "a search: as many units as steps" \
    [ "$(grep -c '^}' search/journal.json)" -eq "$(wc -l <steps)" ] # the request is one, too
holds "a search: no scratch" [ ! -e search/scratch ]
accepts "a search: replayed" evolve --leaderboard search --json
same "a search: the same board" stdout board.json
refuses "no worker can be had" "a worker was lost" $search --out down --jobs "exit 5;"
rm steps
run $search --out later --jobs "echo >>$work/steps; [ \$(wc -l <$work/steps) -lt 4 ] || exit 6; env"
holds "workers are lost later: exit code" [ "$code" -eq 2 ]
holds "workers are lost later: why" grep -q "a worker was lost.*exit code 6" stderr
kept=$(grep -c '^}' later/journal.json)
sed '/"device": {/,/}/s/"name": ".*"/"name": "Deep Thought"/' later/journal.json >changed.json
holds "another device: edited" grep -q '"Deep Thought"' changed.json
cp -r later stale && rm stale/journal.json # results of another search are not taken
accepts "stale results" evolve --shape 1,1,32,32 --candidates 2 --seed 6 --out stale --jobs env
cp -r later elsewhere && cp changed.json elsewhere/journal.json && rm -rf elsewhere/scratch
run evolve --resume --out elsewhere
holds "another device: exit code" [ "$code" -eq 2 ]
holds "another device: why" grep -q "the journal's is Deep Thought" stderr
accepts "goes on without workers" evolve --resume --out later
holds "what was kept" [ "$(grep -c '^}' later/journal.json)" -gt "$kept" ]

finish
