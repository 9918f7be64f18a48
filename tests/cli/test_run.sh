#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_run.sh - proves that attest run does not say PASS by accident: faults are planted into the library,
# the children, the disk, the tools and the pack, one at a time, and each must cost the verdict; that
# what was collected is never lost; and that a run is resumed where it stopped.
#
# usage: test_run.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

unset ATTN_DRIVER FAKE_DRIVER_COMPUTE VGPU_CHECKS
one="--stage parity --device cpu --seed 1 --variant ^cpu_row_c\$"

# ends NAME CODE TEXT options...: attest run in a new pack comes to that exit code, one line of complaint
# with TEXT, no PASS as its verdict; and attest verify comes to the same.
ends() {
    name=$1
    expected=$2
    text=$3
    shift 3
    rm -rf pack
    run run --out pack "$@"
    judge_end
}

judge_end() {
    cp stdout run_stdout
    cp stderr run_stderr
    if [ "$code" -ne "$expected" ]; then
        bad "$name" "exit code $code, expected $expected"
    elif ! one_line_of_complaint; then
        bad "$name" "not one line of complaint"
    elif ! grep -qF -- "$text" stderr; then
        bad "$name" "no '$text' in it"
    elif grep -q "^verdict *PASS" stdout; then
        bad "$name" "PASS"
    elif [ "$expected" -ne 2 ] && { run verify pack && [ "$code" -ne "$expected" ]; }; then
        bad "$name" "verify: exit code $code, expected $expected"
    else
        ok
    fi
}

# shows NAME EXPRESSION: a line of stdout matches.
shows() {
    holds "$1" grep -q -- "$2" stdout
}

# ---- the command line ------------------------------------------------------------------------

refuses "no such stage" "--stage: 'party', expected inspect" run --stage party --out x
refuses "no such device" "--device: 'gpu', expected cpu" run --device gpu --out x
refuses "cuda without a number" "--device: 'cuda:'" run --device cuda: --out x
refuses "a device twice" "given twice" run --device cpu --device cpu --out x
refuses "quick and full" "expected one of them" run --quick --full --out x
refuses "no expression" "is no regular expression" run --variant '(' --out x
refuses "no such variant" "matches no variant" run --variant nothing --out x
refuses "resume of what" "needs the --out" run --resume
refuses "resume of something else" "expected no --quick" run --resume --out x --stage parity
refuses "resume of nothing" "x: No such file" run --resume --out x
refuses "a price below 0" "--gpu-hour-price: -1" run --gpu-hour-price -1 --out x
refuses "no time" "--timeout: 0, expected more" run --timeout 0 --out x
refuses "a job of a child" "own child processes" run --job slots --out x
refuses "a probe of a child" "own child processes" run --job probe --device cpu
holds "nothing was written" [ ! -e x ]
echo text >file
refuses "out is a file" "file" run --out file $one
refuses "out is below a file" "file" run --out file/pack $one
mkdir full
echo text >full/notes
refuses "out is not empty" "not empty" run --out full $one

# ---- as it should be -------------------------------------------------------------------------

accepts "one variant" run --out good $one --gpu-hour-price 3 --commit abc
shows "partial" "^verdict *PASS (partial: less than all stages"
shows "one passed" "^parity *cpu *PASS *1 of 1"
accepts "backward" run --out back --stage parity --device cpu --seed 1 --variant '^cpu_backward_c$'
shows "backward: passed" "^parity *cpu *PASS *1 of 1"
accepts "verified" verify good
accepts "verified with this library" verify --current good
says "the same verdict" "PASS (partial: less than all"
accepts "as JSON" run --out good2 --stage parity --device cpu --variant "^cpu_row_c\$" --json
says "JSON: the verdict" '"verdict": "PASS"'
says "JSON: in part" '"partial": true'
holds "the seed that was given" grep -q '"seed": "0000000000000001"' good/plan.json
refuses "resume with a seed" "or --seed" run --resume --out good --seed 2
holds "another seed each time" [ "$(grep '"seed"' good/plan.json)" != "$(grep '"seed"' good2/plan.json)" ]
holds "per-case figures" grep -q '"mean_allowed"' good/units/*.json
holds "the recipe of a case" grep -q '"recipe"' good/units/*.json
accepts "nothing is left to do" run --resume --out good
holds "still one unit" [ "$(ls good/units | wc -l)" -eq 1 ]
ends "bench without parity" 3 "parity does not prove it there" --stage bench --device cpu \
    --variant '^cpu_row_c$'
ATTN_DRIVER=$work/none.so
export ATTN_DRIVER
ends "a requested device" 3 "none.so" --device cuda:0 --stage parity
ends "a requested stage" 3 "none.so" --stage sanitize
ends "full" 3 "none.so" --full --stage parity --variant '^cpu_row_c$|^fwd_mma_fp16_d64_64x64'
unset ATTN_DRIVER

# ---- the library is wrong --------------------------------------------------------------------

compiler=${CC:-cc}
if $compiler -D_GNU_SOURCE -shared -fPIC -I"$here/../include" -o fault.so "$here/faults/parity.c" -lm \
    2>stderr; then
    ASAN_OPTIONS=verify_asan_link_order=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
    export ASAN_OPTIONS
    # faulty NAME CODE TEXT FAULT options...
    faulty() {
        name=$1
        expected=$2
        text=$3
        fault=$4
        shift 4
        rm -rf pack
        FAULT=$fault LD_PRELOAD=$work/fault.so "$attest" run --out pack $one "$@" >stdout 2>stderr
        code=$?
        judge_end
    }
    faulty "O too large" 1 "cpu_row_c: case" scale
    faulty "a column is off" 1 "cpu_row_c: case" column
    faulty "the last row is 0" 1 "cpu_row_c: case" tail
    faulty "one NaN" 1 "cpu_row_c: case" nan
    faulty "the LSE is off" 1 "cpu_row_c: case" lse
    faulty "nothing is computed" 1 "cpu_row_c: case" noop
    faulty "a byte beside O" 1 "cpu_row_c: " beside # or a crash, where a page ends there
    faulty "an input is changed" 1 "cpu_row_c: case" input
    faulty "one launch of many differs" 1 "launches_differing" late
    faulty "every comparison passes" 4 "" accept
    faulty "the child crashes" 1 "the child died of signal 11" crash
    faulty "the child hangs" 1 "longer than 4 s and was killed" hang --timeout 4
    faulty "the child writes nonsense" 1 "nonsense" answer
    holds "a broken unit says why" grep -q '"broken": ".*nonsense' pack/units/*.json
else
    skipped "faults" "$compiler cannot build them"
fi

# ---- the run is ended ------------------------------------------------------------------------

# started OPTIONS...: a run in the background that has begun its first slot.
started() {
    rm -rf pack
    "$attest" run --out pack "$@" >run_stdout 2>run_stderr &
    runner=$!
    tries=0
    while [ -z "$(ls pack/units 2>/dev/null)" ] && [ $tries -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
}
all="--stage parity --device cpu --seed 1"
[ -n "${TEST_ALL:-}" ] || all="$all --variant ^cpu_(row|tile|backward_c)"

started $all
run run --resume --out pack
holds "two runs in one pack: exit code" [ "$code" -eq 2 ]
holds "two runs in one pack" grep -q "another attest run is at work in it" stderr
refuses "a new run in it" "pack" run --out pack $one
kill -TERM $runner # a shell lets its background programs ignore SIGINT
wait $runner
code=$?
holds "SIGTERM: exit code" [ $code -eq 3 ]
holds "SIGTERM: how to go on" grep -q "interrupted; attest run --resume --out pack" run_stderr
run verify pack
holds "SIGTERM: verifies in part" [ "$code" -eq 3 ]
before=$(ls pack/units | wc -l)
holds "SIGTERM: something is kept" [ "$before" -ge 1 ]
accepts "SIGTERM: goes on" run --resume --out pack
accepts "SIGTERM: and verifies" verify pack
holds "no temporary file is left" [ -z "$(ls -d pack/.attest-* 2>/dev/null)" ]

started $all
kill -9 $runner
wait $runner 2>/dev/null
sleep 0.5
run verify pack
holds "kill -9: verifies in part" [ "$code" -eq 3 ]
says "kill -9: did not end" "the run did not end"
kept=$(ls pack/units)
accepts "kill -9: goes on" run --resume --out pack
for unit in $kept; do
    holds "kill -9: $unit is kept" [ -e "pack/units/$unit" ]
done

# Two that start in one folder at the same time. The first call of fsync takes a while: both are
# between looking into the folder and giving plan.json its name.
cat >slow.c <<'SOURCE'
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int file) {
    static int calls;
    if (calls++ == 0) {
        sleep(2);
    }
    return (int)syscall(SYS_fsync, file);
}
SOURCE
if $compiler -shared -fPIC -o slow.so slow.c 2>stderr; then
    rm -rf pack
    LD_PRELOAD=$work/slow.so "$attest" run --out pack $one --commit first >run_stdout 2>run_stderr &
    runner=$!
    LD_PRELOAD=$work/slow.so "$attest" run --out pack $one --commit second >stdout 2>stderr
    code=$?
    wait $runner
    other=$?
    holds "two new runs: one is refused" [ $((code + other)) -eq 2 ]
    winner=second
    [ $other -eq 0 ] && winner=first
    holds "two new runs: it says why" grep -q "another attest run is at work in it" stderr run_stderr
    holds "two new runs: the plan is that of the other" \
        grep -q "\"commit\": \"$winner\"" pack/plan.json
    accepts "two new runs: verified" verify pack
    holds "two new runs: one unit" [ "$(ls pack/units | wc -l)" -eq 1 ]
else
    skipped "two new runs" "$compiler cannot delay fsync"
fi

# The child alone, in the slot that it is in.
started $all
child=$(cat "/proc/$runner/task/$runner/children" 2>/dev/null)
if [ -n "$child" ]; then
    kill -9 ${child%% *}
    wait $runner
    holds "a killed child" [ $? -eq 1 ]
    holds "a killed child: why" grep -q "signal 9" run_stderr
    run verify pack
    holds "a killed child: verifies as FAIL" [ "$code" -eq 1 ]
    holds "a killed child: the others are done" [ "$(ls pack/units | wc -l)" -ge 3 ]
else
    wait $runner
    bad "a killed child" "there is none to kill"
fi

# ---- the disk --------------------------------------------------------------------------------

rm -rf pack
(
    ulimit -f 1 # block of 512 or 1024 bytes: less than a plan
    "$attest" run --out pack $all >stdout 2>stderr
)
holds "a full disk" [ $? -eq 2 ]
holds "a full disk: one line" one_line_of_complaint
holds "a full disk: why" grep -q "File too large" stderr
holds "a full disk: no pack" [ ! -e pack/plan.json ]
# Full only once the plan is written: the children cannot bring a file to disk.
cat >full.c <<'SOURCE'
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int fsync(int file) {
    char words[512] = "";
    FILE *in = fopen("/proc/self/cmdline", "rb");
    const size_t count = in != NULL ? fread(words, 1, sizeof words, in) : 0;
    if (in != NULL) {
        fclose(in);
    }
    if (count > 0 && memmem(words, count, "slots", 5) != NULL) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_fsync, file);
}
SOURCE
if $compiler -shared -fPIC -o full.so full.c 2>stderr; then
    name="a disk that fills up" expected=2 text="No space left"
    rm -rf pack
    LD_PRELOAD=$work/full.so "$attest" run --out pack $one >stdout 2>stderr
    code=$?
    judge_end
    holds "a disk that fills up: how to go on" grep -q "what was collected is kept" run_stderr
    run verify pack
    holds "a disk that fills up: not PASS" [ "$code" -eq 3 ]
    accepts "a disk that fills up: goes on with room" run --resume --out pack
fi
cp -r good pack3
rm -rf pack3/units
echo text >pack3/units
refuses "units cannot be written" "units" run --resume --out pack3

# ---- the pack --------------------------------------------------------------------------------

rm -rf pack && cp -r good pack
rm pack/units/*.json
run verify pack
holds "a lost unit does not verify" [ "$code" -eq 1 ]
accepts "a lost unit is done again" run --resume --out pack
accepts "a lost unit: verified" verify pack

rm -rf pack && cp -r good pack
unit=$(ls pack/units/*.json)
head -c 200 "$unit" >cut && mv cut "$unit"
run verify pack
holds "a cut unit" [ "$code" -eq 1 ]
refuses "a cut unit: no going on" "it was changed" run --resume --out pack
same "a cut unit: evidence.json stays" good/evidence.json pack/evidence.json

rm -rf pack && cp -r good pack
head -c 300 pack/plan.json >cut && mv cut pack/plan.json
run verify pack
holds "a cut plan" [ "$code" -eq 2 ]
refuses "a cut plan: no going on" "plan.json" run --resume --out pack

rm -rf pack && cp -r good pack
sed 's,attest-evidence/1,attest-evidence/0,' good/plan.json >pack/plan.json
refuses "an older schema" "schema attest-evidence/0" verify pack
refuses "an older schema: no going on" "schema attest-evidence/0" run --resume --out pack
refuses "a foreign folder" "no evidence pack" verify full
refuses "a foreign folder: no going on" "no evidence pack" run --resume --out full

# A request that this build cannot do is refused, and the pack stays as it was, byte for byte.
# unfit NAME TEXT SED-COMMAND
unfit() {
    rm -rf pack before && cp -r good pack
    sed "$3" good/plan.json >pack/plan.json
    if cmp -s good/plan.json pack/plan.json; then
        bad "$1" "nothing was edited"
    fi
    cp -r pack before
    refuses "$1" "$2" run --resume --out pack
    holds "$1: nothing changed" diff -r before pack
}
unfit "a pattern for nothing here" "matches no variant" 's,cpu_row_c\$,cpu_gone$,'
unfit "a broken pattern" "is no regular expression" 's,cpu_row_c\$",(",'
unfit "a stage that is none" "--stage: 'party'" '/"stages"/,/]/s,"parity","party",'
unfit "a device that is none" "--device: 'cpux'" '/"request"/,/}/s,"cpu","cpux",'
unfit "a mode that is none" "mode: expected quick or full" 's,"mode": "quick","mode": "lax",'
unfit "a seed that is none" "seed (16 digits)" 's,"seed": ".*","seed": "7",'

# rehash PACK: its one unit gets the name of its content, and there is no evidence.json.
rehash() {
    unit=$(ls "$1"/units/*.json)
    mv "$unit" "$1/units/$(sha256sum <"$unit" | cut -c1-64).json"
    rm -f "$1/evidence.json"
}

# Text of a pack that would write another verdict over the true one, on a terminal.
rm -rf pack && cp -r good pack
unit=$(ls good/units/*.json)
printf 'x\\u000a\\u001b[1A\\u001b[2K\\u000dverdict   PASS\\u001b[8m\302\2332K\342\200\256' >spoof
awk 'BEGIN { getline text <"spoof" }
    !done && (at = index($0, "\"damage\": null")) {
        $0 = substr($0, 1, at + 9) "\"" text "\"" substr($0, at + 14)
        done = 1
    }
    { print }' "$unit" >"pack/${unit#good/}"
rehash pack
for verb in "verify" "run --resume --out"; do
    # shellcheck disable=SC2086 # words
    run $verb pack
    holds "$verb: text that spoofs: FAIL" [ "$code" -eq 1 ]
    holds "$verb: text that spoofs: one verdict" [ "$(grep -c "^verdict" stdout)" -eq 1 ]
    holds "$verb: text that spoofs: the true one" grep -q "^verdict *FAIL: .*x??\[1A" stdout
    tr -d '\n' <stdout | LC_ALL=C tr -d '\040-\176' >left
    holds "$verb: text that spoofs: plain" [ ! -s left ]
done

# Another build of attest: the units are stale, and are done again.
rm -rf pack && cp -r good pack
folder=$(dirname "$attest")
if [ -e "$folder/libattn.so" ]; then
    cp "$attest" other && echo >>other
    LD_LIBRARY_PATH=$(dirname "$attest"):${LD_LIBRARY_PATH:-} ./other run --resume --out pack \
        >stdout 2>stderr
    code=$?
    holds "another build: exit code" [ "$code" -eq 0 ]
    shows "another build: the old unit is stale" "^units *2, stale 1"
    accepts "another build: verified" verify pack
fi

# ---- checkers that say something else --------------------------------------------------------

kernel=^fwd_mma_fp16_d64_64x64
if ! "$attest" inspect --variant $kernel >stdout 2>stderr; then
    skipped "kernels" "the library has none"
    finish
fi
# The virtual GPU's checkers say nothing, or cry wolf.
cat >blind.c <<'SOURCE'
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
bool vgpu_finding_get(const void *gpu, size_t index, void *finding) {
    return gpu == NULL && index > 0 && finding == NULL;
}
size_t vgpu_error_count(const void *gpu) {
    return gpu != NULL && getenv("WOLF") != NULL ? 1 : 0;
}
SOURCE
if [ -e fault.so ] && "$attest" check --help >stdout 2>stderr &&
    $compiler -shared -fPIC -o blind.so blind.c 2>stderr; then
    name="emulate with blind checkers" expected=4 text="was not caught"
    rm -rf pack
    LD_PRELOAD=$work/blind.so "$attest" run --out pack --stage emulate --variant $kernel \
        >stdout 2>stderr
    code=$?
    judge_end
    name="emulate with checkers that cry wolf" text="'clean' was not caught"
    rm -rf pack
    WOLF=1 LD_PRELOAD=$work/blind.so "$attest" run --out pack --stage emulate --variant $kernel \
        >stdout 2>stderr
    code=$?
    judge_end
    VGPU_CHECKS=none "$attest" run --out checks --stage emulate --variant $kernel >stdout 2>stderr
    holds "emulate, whatever the environment says" [ $? -eq 0 ]
fi
path=$PATH
mkdir bin
PATH=$work/bin:$path

# ---- compute-sanitizer -----------------------------------------------------------------------

fake=$folder/tests/libfake_driver.so
if [ ! -e "$fake" ] || [ ! -d "$folder/faults" ]; then
    skipped "sanitize" "no fake driver, or no planted faults"
    finish
fi
ATTN_DRIVER=$fake
FAKE_DRIVER_COMPUTE=1
LOGS=$here/data/sanitizer
KEPT=$work/kept
mkdir "$KEPT"
export ATTN_DRIVER FAKE_DRIVER_COMPUTE LOGS KEPT
# Runs the program, then says what the real one would; $SAY TOOL:WHAT changes one word of it.
cat >bin/compute-sanitizer <<'SCRIPT'
#!/bin/sh
[ "$1" = --version ] && echo "Version 2025.3.1.0" && exit 0
tool=$2
kind=clean
code=0
case "$*" in *--image*) kind=fault code=86 ;; esac
while [ "${1##*/}" != attest ]; do shift; done
[ "$SAY" = "$tool:$kind:sleep" ] && echo $$ >"$KEPT/hung" && exec sleep 60
[ "$SAY" = "$tool:$kind:killed" ] && kill -9 $$
if [ "$SAY" != "$tool:$kind:idle" ]; then # the program's own words are kept, for time
    [ -e "$KEPT/$tool.$kind" ] || "$@" >"$KEPT/$tool.$kind" || exit
    cat "$KEPT/$tool.$kind"
fi
[ "$SAY" = "$tool:$kind:silent" ] && exit $code
[ "$SAY" = "$tool:$kind:found" ] && kind=fault code=86
[ "$SAY" = "$tool:$kind:missed" ] && kind=clean code=0
[ "$SAY" = "$tool:$kind:code" ] && code=1
grep -v '^target: ' "$LOGS/$tool.$kind.log"
exit $code
SCRIPT
chmod +x bin/compute-sanitizer
sanitize="--stage sanitize --device cuda:0 --variant $kernel"
accepts "sanitize" run --out clean $sanitize
shows "sanitize: passes" "^sanitize *cuda:0 *PASS *1 of 1"
accepts "sanitize: verified" verify clean
SAY=racecheck:clean:found
export SAY
ends "a race is found" 1 "racecheck" $sanitize
SAY=memcheck:fault:missed
ends "a planted fault is missed" 4 "memcheck: its planted fault" $sanitize
SAY=initcheck:clean:silent
ends "no summary" 4 "initcheck" $sanitize
SAY=synccheck:clean:idle
ends "the program was not run" 4 "synccheck" $sanitize
SAY=
cp kept/initcheck.clean initcheck.kept
cp kept/synccheck.clean kept/initcheck.clean
ends "a log of another tool" 4 "initcheck: the log is not of this tool" $sanitize
sed 's/variant fwd_mma/variant fwd_other/' initcheck.kept >kept/initcheck.clean
ends "a log of another variant" 4 "initcheck: the log is not of this tool and fwd_mma" $sanitize
cp initcheck.kept kept/initcheck.clean
SAY=synccheck:clean:code
ends "an exit code without a finding" 4 "synccheck" $sanitize
SAY=synccheck:clean:killed
ends "the tool is killed" 1 "ended by signal 9" $sanitize
SAY=memcheck:clean:sleep
ends "the tool hangs" 1 "longer than 5 s and was killed" $sanitize --timeout 5
if [ -e kept/hung ] && kill -0 "$(cat kept/hung)" 2>/dev/null; then
    bad "the tool hangs" "it was left running"
else
    ok
fi
unset SAY

finish
