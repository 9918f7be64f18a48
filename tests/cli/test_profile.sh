#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_profile.sh - proves that attest profile says PASS only for kernels that keep the SMs and the
# tensor pipe busy, in a run that saw an idle GPU as idle and whose results were right: with an ncu that
# prints what the test tells it to, each sign is taken away in turn. Absent tools, devices and rights
# are NOT RUN.
#
# usage: test_profile.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

driver=$(dirname "$attest")/tests/libfake_driver.so
unset ATTN_DRIVER FAKE_DRIVER_COMPUTE

# The stand-in, found in $PATH, prints the figures in the files busy, tensor and idle for every
# variant that the pattern names; the program is not run, since its problem needs a GPU.
mkdir bin fake
cat >bin/ncu <<'SCRIPT'
#!/bin/sh
cd "$(dirname "$0")/../fake" || exit 9
echo "$*" >>calls
[ -e forbidden ] && echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission" && exit 1
if [ -e unknown ]; then
    case $* in *stalled*) echo "==ERROR== Failed to find metric smsp__x" && exit 1 ;; esac
fi
[ -e dies ] && exit 11
while [ $# -gt 0 ]; do
    case $1 in
    --metrics) metrics=$2 ;;
    --variant) names=$2 ;;
    esac
    shift
done
names=$(echo "$names" | tr -d '^()$' | tr '|' ' ')
launches=attest_sleep # of a backward kernel two: rows, tiles
for name in $names; do
    launches="$launches $name"
    case $name in bwd_*) launches="$launches $name" ;; esac
    [ -e wrong ] && echo "target: $name: 17 elements differ" || echo "target: $name verified"
done
[ -e mute ] && exit 0
echo '"ID","Process ID","Process Name","Host Name","Kernel Name","Metric Name","Metric Unit","Metric Value"'
id=0
for name in $launches; do
    busy=$(cat busy)
    tensor=$(cat tensor)
    [ $name = attest_sleep ] && busy=$(cat idle) && tensor=0
    for metric in $(echo "$metrics" | tr ',' ' '); do
        case $metric in
        sm__cycles_active*) value=$busy ;;
        sm__pipe_tensor*) value=$tensor ;;
        *stalled_barrier*) value=2.50 ;;
        *stalled*) value=0.01 ;;
        *) value=50 ;;
        esac
        echo "\"$id\",\"1\",\"attest\",\"h\",\"$name\",\"$metric\",\"%\",\"$value\""
    done
    id=$((id + 1))
done
SCRIPT
chmod +x bin/ncu

good() {
    rm -rf out fake
    mkdir fake
    echo 91.5 >fake/busy
    echo 63.2 >fake/tensor
    echo 0.76 >fake/idle
}

# judged NAME CODE WORDS [options]
judged() {
    about="$1" exit_code=$2 text=$3
    shift 3
    shows "$about" "$exit_code" "$text" profile --driver "$driver" --out out "$@"
}

# ---- usage, and what is absent ---------------------------------------------------------------

refuses "a CPU" "expected a GPU" profile --device cpu
refuses "not an expression" "is no regular expression" profile --variant '('
refuses "no such variant" "matches no variant" profile --variant no_such
good
not_run "no driver" "no-driver" profile --driver "$work/no-driver.so"
not_run "no driver, JSON" "no-driver" profile --driver "$work/no-driver.so" --json
says "no driver: in JSON" '"verdict": "NOT_RUN"'
run profile --target --driver "$work/no-driver.so"
holds "target without a driver" [ "$code" -eq 3 ]

[ -f "$driver" ] || { skipped "fake_driver" "no $driver" && finish; }
run plan --device cuda --driver "$driver" --dtype fp16
if [ "$code" -eq 3 ]; then
    skipped "profile_gpu" "this build has no GPU kernels"
    finish
fi

path=$PATH
if [ ! -x /usr/local/cuda/bin/ncu ]; then
    PATH=$work/none
    run profile --driver "$driver"
    PATH=$path
    holds "no ncu" [ "$code" -eq 3 ]
    holds "no ncu: says so" grep -q "NOT RUN: ncu is neither in" stderr
fi
PATH=$work/bin:$PATH

# ---- the gates -------------------------------------------------------------------------------

one='--variant fwd_hopper_fp16_d64|fwd_mma_fp16_d64'
good
judged "good" 0 "91.5    63.2 .*barrier 2.50.*PASS" $one
holds "clocks are left alone" grep -q -- "--clock-control none" fake/calls
good
judged "good, JSON" 0 '"sm_busy_percent": 91.5' $one --json
says "good, JSON: a stall" '"stall_barrier": 2.5'
accepts "good: a pack" report out
says "good: a pack with the counters" "SM busy"
good
echo 69.9 >fake/busy
judged "idle SMs" 1 "FAIL: sm_busy_percent: 69.9" $one
good
echo 0 >fake/tensor
judged "no tensor cores at work" 1 "FAIL: tensor_pipe_percent: 0" $one
good
echo 0 >fake/tensor
judged "none to be at work" 0 " 0.0 .*PASS" --variant fwd_scalar_fp16_d64
good
echo n/a >fake/tensor
judged "no figure" 4 "INVALID: tensor_pipe_percent: no number" $one
good
echo 95 >fake/idle
not_run "an idle GPU looks busy" "a kernel that sleeps was not seen as idle" profile \
    --driver "$driver" $one
good
: >fake/wrong
judged "a wrong result" 1 "FAIL: 17 elements differ" $one
good
: >fake/mute
not_run "no table" "ncu: no table" profile --driver "$driver" $one
good
: >fake/dies
not_run "ncu dies" "ncu: exit code 11" profile --driver "$driver" $one
good
: >fake/unknown
judged "a metric that it does not know" 0 "91.5 .*PASS" $one
holds "a metric that it does not know: second runs" [ "$(grep -vc -e "--version" fake/calls)" -eq 4 ]
good
: >fake/forbidden
not_run "no right to the counters" "ERR_NVGPUCTRPERM" profile --driver "$driver" --out out $one
good
judged "all of them" 0 PASS
rows=$(grep -c PASS stdout)
holds "all of them: a few runs of ncu" [ "$(wc -l <fake/calls)" -le $((rows / 16 + 3)) ]

# ---- the program under it --------------------------------------------------------------------

kernel=$(sed -n 's/^\(fwd_hopper_fp16_d64[^ ]*\|fwd_mma_fp16_d64[^ ]*\) .*/\1/p' stdout | head -1)
run profile --target --driver "$driver" --variant "^$kernel\$"
holds "target: goes to its end" [ "$code" -eq 0 ]
holds "target: a kernel that does nothing is not right" grep -q "^target: $kernel: " stdout
holds "target: nothing is verified" [ "$(grep -c verified stdout)" -eq 0 ]

finish
