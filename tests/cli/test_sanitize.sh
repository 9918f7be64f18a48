#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_sanitize.sh - proves that attest sanitize says PASS only where every tool caught its planted
# fault and then found nothing: with a compute-sanitizer that prints what the test tells it to, and
# kernels of the CPU, each sign is taken away in turn.
#
# usage: test_sanitize.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

logs=$here/data/sanitizer

# The stand-in runs the program and prints what its folder says: TOOL.log, TOOL.fault.log, and the exit
# code in TOOL.code, TOOL.fault.code. Like the original it has an exit code of its own only where the
# program succeeded. A planted fault is not run: there is no GPU. A file TOOL.sleep makes it hang.
fake=$work/fake
mkdir "$fake" faults bin
cat >bin/compute-sanitizer <<'SCRIPT'
#!/bin/sh
if [ "$1" = --version ]; then
    echo "NVIDIA (R) Compute Sanitizer"
    echo "Version 2025.3.1.0 (build 1) (public-release)"
    exit 0
fi
folder=$(dirname "$0")/../fake
echo "$*" >>"$folder/calls"
tool=$2
name=$tool
target=
while [ $# -gt 0 ]; do
    case $1 in
    */attest) break ;;
    *) shift ;;
    esac
done
case "$*" in
*--image*) name=$tool.fault ;;
*) target=yes ;;
esac
[ -e "$folder/$name.sleep" ] && sleep 60
if [ -n "$target" ] && [ ! -e "$folder/no_target" ]; then
    "$@" || exit
fi
grep -v '^target: [0-9]* launches' "$folder/$name.log"
exit "$(cat "$folder/$name.code")"
SCRIPT
chmod +x bin/compute-sanitizer

# Everything as it should be; the logs of the last run are gone.
good() {
    rm -rf out "$fake"
    mkdir "$fake"
    for tool in memcheck racecheck initcheck synccheck; do
        cp "$logs/$tool.clean.log" "$fake/$tool.log"
        cp "$logs/$tool.fault.log" "$fake/$tool.fault.log"
        echo 0 >"$fake/$tool.code"
        echo 86 >"$fake/$tool.fault.code"
        : >"faults/$tool.ptx"
    done
}

# judged NAME CODE WORDS [options]: the exit code, and a line of the table with these words.
judged() {
    about="$1" exit_code=$2 text=$3
    shift 3
    shows "$about" "$exit_code" "$text" sanitize --device cpu --variant 'cpu_tile_c$' \
        --sanitizer bin/compute-sanitizer --faults faults --out out "$@"
}

# ---- the device or the tool is not there -----------------------------------------------------

good
ATTN_DRIVER=$work/no-such-driver.so
export ATTN_DRIVER
not_run "no driver" "no-such-driver" sanitize --sanitizer bin/compute-sanitizer
not_run "no driver, JSON" "no-such-driver" sanitize --json
says "the reason as JSON" '"verdict": "NOT_RUN"'
unset ATTN_DRIVER
not_run "the tool's path is wrong" "bin/none: No such file" sanitize --device cpu --sanitizer bin/none \
    --faults faults
not_run "no planted faults" "--faults: nowhere: No such file" sanitize --device cpu --faults nowhere \
    --sanitizer bin/compute-sanitizer
not_run "planted faults: a file" "--faults: bin/compute-sanitizer: not a folder" sanitize --device cpu \
    --faults bin/compute-sanitizer --sanitizer bin/compute-sanitizer
# Not in PATH: the toolkit's own, which has nothing to say about a program without a GPU, or none.
path=$PATH
PATH=$work/none
run sanitize --device cpu --variant 'cpu_tile_c$' --faults faults --out out
PATH=$path
if [ -x /usr/local/cuda/bin/compute-sanitizer ]; then
    holds "the toolkit's own" [ "$code" -eq 4 ]
    says "the toolkit's own: its path" "/usr/local/cuda/bin/compute-sanitizer"
else
    holds "no tool" [ "$code" -eq 3 ]
    holds "no tool: says so" grep -q "NOT RUN: compute-sanitizer is neither in" stderr
fi

# ---- usage -----------------------------------------------------------------------------------

refuses "unknown tool" "'raccheck' is not one of memcheck" sanitize --tool raccheck
refuses "unknown device" "tpu" sanitize --device tpu
refuses "no such variant" "'no_such' matches no variant" sanitize --device cpu --variant no_such
refuses "not a regular expression" "is not a regular expression" sanitize --device cpu --variant '('
ATTN_DRIVER=$work/no-such-driver.so
export ATTN_DRIVER
refuses "not a regular expression, no driver" "is not a regular expression" sanitize --variant '('
refuses "target: not a regular expression" "is not a regular expression" sanitize --target --variant '('
accepts "target: backward" sanitize --target --device cpu --variant '^cpu_backward_c$'
says "target: backward: compared" "launches of 1 variants verified"
run sanitize --target
holds "target without a driver" [ "$code" -eq 3 ]
holds "target without a driver: says so" grep -q "target: NOT RUN: .*no-such-driver" stderr
unset ATTN_DRIVER
mkfifo pipe
refuses "target: a pipe" "pipe: not a regular file" sanitize --target --device cpu --image pipe
refuses "--image alone" "expected with --target only" sanitize --image x
refuses "target: no such image" "no_such.cubin" sanitize --target --device cpu --image no_such.cubin
refuses "target: no fault on a CPU" "target" sanitize --target --device cpu \
    --image bin/compute-sanitizer
accepts "target" sanitize --target --device cpu --variant 'cpu_tile_c$'
says "the target's last line" "target: 8 launches of 1 variants verified"
accepts "target, outputs not filled" sanitize --target --device cpu --variant 'cpu_tile_c$' \
    --tool initcheck

# A driver without a GPU, which computes: the target as it runs on one, planted faults and all.
driver=$(dirname "$attest")/tests/libfake_driver.so
image=$(dirname "$attest")/faults/memcheck
if [ -e "$driver" ] && [ -e "$image.ptx" ]; then
    ATTN_DRIVER=$driver
    FAKE_DRIVER_COMPUTE=1
    export ATTN_DRIVER FAKE_DRIVER_COMPUTE
    accepts "target on a GPU" sanitize --target --variant _fp16_d64_
    holds "target on a GPU: verified" grep -q '^target: [1-9].* variants verified$' stdout
    mv stdout machine_code
    accepts "target on a GPU, PTX" sanitize --target --ptx --variant _fp16_d64_
    same "target on a GPU, PTX: as many" machine_code stdout
    accepts "target on a GPU: planted fault" sanitize --target --image "$image.sm_90.cubin"
    says "target on a GPU: launched" "target: planted fault launched"
    accepts "target on a GPU: planted fault, PTX" sanitize --target --image "$image.ptx"
    FAKE_DRIVER_COMPUTE=0 # nothing is computed
    run sanitize --target
    holds "target on a GPU: wrong result" [ "$code" -eq 1 ]
    says "target on a GPU: says so" "target: wrong: fwd_"
    unset ATTN_DRIVER FAKE_DRIVER_COMPUTE
else
    skipped gpu "no kernels were built"
fi

# ---- everything as it should be --------------------------------------------------------------

good
judged "all good" 0 "verdict    PASS"
for tool in memcheck racecheck initcheck synccheck; do
    holds "$tool: its row" grep -q "^$tool *caught *0 *8 .*PASS\$" stdout
    holds "$tool: its log" grep -q '^target: 8 launches of 1 variants verified' "out/$tool.log"
    same "$tool: the log of its fault" "out/$tool.fault.log" "$fake/$tool.fault.log"
    holds "$tool: called twice" [ "$(grep -c "^--tool $tool " "$fake/calls")" -eq 2 ]
    holds "$tool: with an exit code" \
        [ "$(grep -c "^--tool $tool --error-exitcode 86 " "$fake/calls")" -eq 2 ]
done
holds "memcheck: leaks" grep -q '^--tool memcheck .*--leak-check full' "$fake/calls"
holds "racecheck: all reports" grep -q '^--tool racecheck .*--racecheck-report all' "$fake/calls"
says "the version" "Version 2025.3.1.0"

cp out/memcheck.log before
run sanitize --device cpu --variant 'cpu_tile_c$' --sanitizer bin/compute-sanitizer --faults faults \
    --out out
holds "a second run into the same folder" [ "$code" -eq 2 ]
holds "says so" grep -q "exists" stderr
same "and overwrites nothing" before out/memcheck.log

good
judged "one tool" 0 "verdict    PASS" --tool racecheck
holds "and no other" [ "$(grep -vc '^--tool racecheck ' "$fake/calls")" -eq 0 ]
good
judged "JSON" 0 '"verdict": "PASS"' --json
holds "valid JSON" sh -c 'command -v python3 >/dev/null || exit 0; python3 -m json.tool <stdout >/dev/null'
good
run sanitize --device cpu --variant 'cpu_tile_c$' --sanitizer bin/compute-sanitizer --faults faults
holds "a folder with the time in its name" [ -s "$(echo sanitize-20*)/memcheck.log" ]
rm -rf sanitize-20*
good
mkdir path
cp bin/compute-sanitizer path
PATH=$work/path:$PATH
run sanitize --device cpu --variant 'cpu_tile_c$' --faults faults --out out
holds "found in PATH" [ "$code" -eq 0 ]

# ---- a tool finds something ------------------------------------------------------------------

# found NAME TOOL LOG CODE
found() {
    good
    cp "$logs/$3.log" "$fake/$2.log"
    echo "$4" >"$fake/$2.code"
    judged "$1" 1 "^$2 *caught .*FAIL" --tool "$2"
    holds "$1: verdict" grep -q "^verdict    FAIL" stdout
}
found "errors" memcheck memcheck.fault 86
found "leaks" memcheck memcheck.leak 86
found "errors, exit code 0" initcheck initcheck.fault 0
found "hazards" racecheck racecheck.fault 86
found "hazards of severity warning, exit code 0" racecheck racecheck.warning 0
found "barriers" synccheck synccheck.fault 86
good
cp "$logs/racecheck.warning.log" "$fake/racecheck.log"
judged "a finding as JSON" 1 '"verdict": "FAIL"' --json
good
touch "$fake/no_target"
cp "$logs/wrong.log" "$fake/memcheck.log"
echo 1 >"$fake/memcheck.code"
judged "a wrong result" 1 "^memcheck .*FAIL: wrong result" --tool memcheck

# ---- no verdict is possible ------------------------------------------------------------------

good
echo 86 >"$fake/memcheck.code"
judged "0 errors, exit code 86" 4 "^memcheck *caught .*INVALID: .*exit code 86"
holds "one line of complaint" one_line_of_complaint
holds "which says so" grep -q "sanitize: INVALID: memcheck: .*exit code 86" stderr
holds "the others stand" grep -q "^racecheck *caught .*PASS" stdout
holds "the verdict does not" grep -q "^verdict    INVALID" stdout
good
touch "$fake/no_target"
judged "the target's last line is missing" 4 "^synccheck .*INVALID: no launch was verified" --tool synccheck
good
grep -v SUMMARY "$logs/initcheck.clean.log" >"$fake/initcheck.log"
judged "no summary" 4 "^initcheck .*INVALID: .*no summary" --tool initcheck
good
cp "$logs/initcheck.clean.log" "$fake/racecheck.log"
judged "the words of another tool" 4 "^racecheck .*INVALID: .*no summary" --tool racecheck
good
grep -v LEAK "$logs/memcheck.clean.log" >"$fake/memcheck.log"
judged "no word about leaks" 4 "^memcheck .*INVALID: .*no summary" --tool memcheck
for trouble in no_call not_supported internal_error; do
    good
    cp "$logs/$trouble.log" "$fake/memcheck.log"
    judged "$trouble" 4 "^memcheck .*INVALID: " --tool memcheck
done
good
touch "$fake/memcheck.sleep"
judged "it hangs" 4 "^memcheck *caught .*INVALID: ended after 1 s" --tool memcheck --timeout 1

# ---- the planted fault is missed -------------------------------------------------------------

missed() { # NAME WORDS
    judged "$1" 4 "^racecheck *missed .*INVALID: .*$2" --tool racecheck
}
good
cp "$logs/racecheck.clean.log" "$fake/racecheck.fault.log"
missed "fault not seen" "its planted fault was not caught"
good
echo 0 >"$fake/racecheck.fault.code"
missed "fault seen, exit code 0" "exit code 0, expected 86"
good
sed 's/fwd_scalar_fp16_d64_32x64_w4_s2/another_kernel/' "$logs/racecheck.fault.log" \
    >"$fake/racecheck.fault.log"
missed "fault seen elsewhere" "none of them in the planted"
good
rm faults/racecheck.ptx
missed "no fault to run" "racecheck.ptx: No such file"
good
cp "$logs/memcheck.fault.log" "$fake/synccheck.fault.log"
judged "a fault of another kind" 4 "^synccheck *missed .*INVALID: .*none of them a finding of this tool"
good
touch "$fake/racecheck.fault.sleep"
judged "the fault hangs" 4 "^racecheck *missed .*INVALID: .*ended after 1 s" --tool racecheck --timeout 1
good
cp "$logs/synccheck.clean.log" "$fake/synccheck.fault.log"
cp "$logs/memcheck.leak.log" "$fake/memcheck.log"
judged "one finds, one misses" 1 "^verdict    FAIL"

finish
