#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_sanitize.sh - proves that attest sanitize says PASS only where every tool caught its planted
# fault and then found nothing: with a compute-sanitizer that prints what the test tells it to, each
# sign is taken away in turn. And the program that runs under it. (What else can be wrong with a log:
# test_sanitizer_log; with a run: test_run.)
#
# usage: test_sanitize.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

logs=$here/data/sanitizer
build=$(dirname "$attest")
driver=$build/tests/libfake_driver.so
image=$build/faults/memcheck
unset ATTN_DRIVER FAKE_DRIVER_COMPUTE

# ---- the program under the tools -------------------------------------------------------------

ATTN_DRIVER=$work/no-such-driver.so
export ATTN_DRIVER
refuses "target: not a regular expression" "is no regular expression" \
    sanitize --target --device cpu --variant '('
run sanitize --target
holds "target without a driver" [ "$code" -eq 3 ]
holds "target without a driver: says so" grep -q "target: NOT RUN: .*no-such-driver" stderr
unset ATTN_DRIVER
accepts "target" sanitize --target --device cpu --variant 'cpu_tile_c$'
says "target: the last line" "target: 8 launches of 1 variants verified"
accepts "target: backward" sanitize --target --device cpu --variant '^cpu_backward_c$'
says "target: backward: compared" "launches of 1 variants verified"
refuses "target: no such variant" "'no_such' matches no variant" \
    sanitize --target --device cpu --variant no_such
mkfifo pipe
refuses "target: a pipe" "pipe: not a regular file" sanitize --target --device cpu --image pipe
refuses "target: no such image" "no_such.cubin" sanitize --target --device cpu --image no_such.cubin
refuses "target: no fault on a CPU" "target" sanitize --target --device cpu --image "$0"

# ---- the device or the tool is not there -----------------------------------------------------

refuses "a CPU" "expected a GPU" sanitize --device cpu
refuses "unknown device" "expected a GPU" sanitize --device tpu
ATTN_DRIVER=$work/no-such-driver.so
export ATTN_DRIVER
refuses "not a regular expression" "is no regular expression" sanitize --variant '('
refuses "no such variant" "'no_such' matches no variant" sanitize --variant no_such
not_run "no driver" "no-such-driver" sanitize
not_run "no driver, JSON" "no-such-driver" sanitize --json
says "the reason as JSON" '"verdict": "NOT_RUN"'

if [ ! -e "$driver" ] || [ ! -e "$image.ptx" ]; then
    skipped gpu "no kernels were built"
    finish
fi

# A driver without a GPU, which computes: the target as it runs on one, planted faults and all.
ATTN_DRIVER=$driver
FAKE_DRIVER_COMPUTE=1
export FAKE_DRIVER_COMPUTE
accepts "target on a GPU" sanitize --target --variant _fp16_d64_
holds "target on a GPU: verified" grep -q '^target: [1-9].* variants verified$' stdout
accepts "target on a GPU: planted fault" sanitize --target --image "$image.sm_90.cubin"
says "target on a GPU: launched" "target: planted fault launched"
accepts "target on a GPU: planted fault, PTX" sanitize --target --image "$image.ptx"
FAKE_DRIVER_COMPUTE=0 # nothing is computed
run sanitize --target
holds "target on a GPU: wrong result" [ "$code" -eq 1 ]
says "target on a GPU: says so" "target: wrong: fwd_"
FAKE_DRIVER_COMPUTE=1
if [ ! -x /usr/local/cuda/bin/compute-sanitizer ]; then
    path=$PATH
    PATH=$work/none
    run sanitize
    PATH=$path
    holds "no tool" [ "$code" -eq 3 ]
    holds "no tool: says so" grep -q "NOT RUN: compute-sanitizer is neither in" stderr
fi

# ---- everything as it should be --------------------------------------------------------------

# The stand-in prints TOOL.log or TOOL.fault.log of its folder and has the exit code in TOOL.code or
# TOOL.fault.code. What the program says is kept from its first run. A planted fault is not run.
fake=$work/fake
mkdir bin kept
cat >bin/compute-sanitizer <<'SCRIPT'
#!/bin/sh
[ "$1" = --version ] && echo "Version 2025.3.1.0" && exit 0
folder=$(dirname "$0")/../fake
echo "$*" >>"$folder/calls"
tool=$2
name=$tool
case "$*" in *--image*) name=$tool.fault ;; esac
while [ "${1##*/}" != attest ]; do shift; done
if [ "$name" = "$tool" ] && [ ! -e "$folder/no_target" ]; then
    kept=$folder/../kept/$tool
    [ -e "$kept" ] || "$@" >"$kept" || exit
    cat "$kept"
elif [ "$name" != "$tool" ]; then
    echo "target: tool $tool"
fi
grep -v '^target: [0-9]* launches' "$folder/$name.log"
exit "$(cat "$folder/$name.code")"
SCRIPT
chmod +x bin/compute-sanitizer
PATH=$work/bin:$PATH

# The pack of the last run is gone, too.
good() {
    rm -rf out "$fake"
    mkdir "$fake"
    for tool in memcheck racecheck initcheck synccheck; do
        cp "$logs/$tool.clean.log" "$fake/$tool.log"
        cp "$logs/$tool.fault.log" "$fake/$tool.fault.log"
        echo 0 >"$fake/$tool.code"
        echo 86 >"$fake/$tool.fault.code"
    done
}

# judged NAME CODE WORDS [options]: the exit code, and a line of stdout with these words.
judged() {
    about="$1" exit_code=$2 text=$3
    shift 3
    shows "$about" "$exit_code" "$text" sanitize --variant '^fwd_scalar_fp16_d64_32x64_w4_s2$' \
        --out out "$@"
}

good
judged "all good" 0 "^fwd_scalar_fp16_d64_32x64_w4_s2 .* PASS$"
for tool in memcheck racecheck initcheck synccheck; do
    holds "$tool: called twice" [ "$(grep -c "^--tool $tool " "$fake/calls")" -eq 2 ]
    holds "$tool: with an exit code" \
        [ "$(grep -c "^--tool $tool --error-exitcode 86 " "$fake/calls")" -eq 2 ]
done
holds "memcheck: leaks" grep -q '^--tool memcheck .*--leak-check full' "$fake/calls"
holds "racecheck: all reports" grep -q '^--tool racecheck .*--racecheck-report all' "$fake/calls"
accepts "all good: a pack" verify out
holds "a second run into the same folder" sh -c "! '$attest' sanitize --out out 2>second"
holds "says so" grep -q "not empty" second
good
judged "JSON" 0 '"verdict": "PASS"' --json
good
accepts "a folder with the time in its name" sanitize --variant '^fwd_scalar_fp16_d64_32x64_w4_s2$'
holds "and a pack in it" [ -s "$(echo sanitize-20*)/evidence.json" ]
rm -rf sanitize-20*

# ---- a tool finds something ------------------------------------------------------------------

# found NAME TOOL LOG CODE
found() {
    good
    cp "$logs/$3.log" "$fake/$2.log"
    echo "$4" >"$fake/$2.code"
    judged "$1" 1 "FAIL: $2: "
    log=$(sed -n "s/^ *$2 *\\(out.*\\)/\\1/p" stdout)
    holds "$1: its log" grep -q "$(grep -v '^target: ' "$logs/$3.log" | sed -n 2p | tr -d '*[]')" "$log"
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

# ---- no verdict is possible ------------------------------------------------------------------

good
echo 86 >"$fake/memcheck.code"
judged "0 errors, exit code 86" 4 "INVALID: memcheck: .*exit code 86"
holds "one line of complaint" one_line_of_complaint
good
touch "$fake/no_target"
judged "the program said nothing" 4 "INVALID: memcheck: "
good
cp "$logs/initcheck.clean.log" "$fake/racecheck.log"
judged "the words of another tool" 4 "INVALID: racecheck: .*no summary"
good
cp "$logs/no_call.log" "$fake/memcheck.log"
judged "it could not call" 4 "INVALID: memcheck: "

# ---- the planted fault is missed -------------------------------------------------------------

missed() { # NAME WORDS
    judged "$1" 4 "INVALID: racecheck: its planted fault: .*$2"
}
good
cp "$logs/racecheck.clean.log" "$fake/racecheck.fault.log"
missed "fault not seen" "nothing counted"
good
echo 0 >"$fake/racecheck.fault.code"
missed "fault seen, exit code 0" "exit code 0, expected 86"
good
sed 's/fwd_scalar_fp16_d64_32x64_w4_s2/another_kernel/' "$logs/racecheck.fault.log" \
    >"$fake/racecheck.fault.log"
missed "fault seen elsewhere" "none of them in the planted"
good
cp "$logs/memcheck.fault.log" "$fake/racecheck.fault.log"
missed "a fault of another kind" "none of them a finding of this tool"

finish
