#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_bench.sh - proves that attest bench gives a time only where it may: raw samples from which
# the medians follow, cold and warm apart, a stop rule that stops; and no number where a sleep reads
# wrong, outputs change under the clock, the comparison is blind, or a time is below what a GPU can do
# (tests/cuda/fake_driver.h has each of these faults).
#
# usage: test_bench.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

fake=$(dirname "$attest")/tests/libfake_driver.so
nvml=$(dirname "$attest")/tests/libfake_nvml.so
unset ATTN_DRIVER ATTN_NVML FAKE_DRIVER_COMPUTE

# ---- CPU -------------------------------------------------------------------------------------

size="--batch 1 --heads 2 --seq 33 --dim 16"
small="$size --seconds 0.2"
accepts "both cache states" bench $small --cache all
says "cold" " cold "
says "warm" " warm "
says "p99" "p99 "
accepts "backward" bench $small --direction backward
says "backward: says so" "D16, backward"
accepts "backward: by variant" bench $small --variant cpu_backward_c --json
says "backward: as JSON" '"direction": "backward"'
accepts "backward: each variant" bench $small --direction backward --all-variants
says "backward: each variant: has them" "cpu_backward_c"
# On a terminal a table ends with a chart, whose longest bar is full.
script -qec "'$attest' bench --heads 2 --dim 16 --seq 16,64 --seconds 0.2 --width 50" /dev/null >terminal
holds "chart" grep -q '##############################  *[0-9.]*' terminal
holds "chart: two bars" [ "$(grep -c ' ##*  *[0-9.]*.$' terminal)" -eq 2 ]
accepts "no chart" bench --heads 2 --dim 16 --seq 16,64 --seconds 0.2 --width 50
holds "no chart: elsewhere" [ "$(grep -c '##' stdout)" -eq 0 ]
accepts "samples" bench $small --json --samples --cache all --width 50
holds "samples: two rows" [ "$(grep -c '"p50_seconds"' stdout)" -eq 2 ]
says "settled" '"settled": true'
# The samples are all there, and the first row's median follows from them.
awk -F'[:,]' '
    /"samples":/ { if (!n) n = $2 + 0 }
    /"calls_per_sample":/ { if (!calls) calls = $2 + 0 }
    /"p50_seconds":/ { if (!p50) p50 = $2 + 0 }
    /"sample_seconds":/ { inside = 1; next }
    inside && /\]/ { exit }
    inside { printf "%.15g\n", $1 }
    END { printf "%d %d %.15g\n", n, calls, p50 > "told" }' stdout | sort -g >list
read n calls p50 <told
holds "samples: as many as reported" [ "$(wc -l <list)" -eq "$n" ]
holds "samples: the median follows" awk -v n="$n" -v calls="$calls" -v p50="$p50" '
    { s[NR] = $1 / calls }
    END { m = n % 2 ? s[(n + 1) / 2] : (s[n / 2] + s[n / 2 + 1]) / 2
          exit !(m > p50 * 0.999999 && m < p50 * 1.000001) }' list
# A rule that cannot be met runs until the time is over; one that is met at once does not.
accepts "a wide interval stops early" bench $size --width 1000 --seconds 30 --json
holds "a wide interval: few samples" [ "$(sed -n 's/.*"samples": \([0-9]*\),/\1/p' stdout)" -eq 20 ]
accepts "no interval is 0 wide" bench $size --width 0 --seconds 0.1 --json
says "not settled" '"settled": false'
refuses "width" "--width: -1" bench --width -1
refuses "samples without JSON" "--samples: no --json" bench --samples
refuses "cache" "'hot' is not one of cold" bench --cache hot

# ---- the choice of a variant -------------------------------------------------------------------

accepts "regret" bench --regret 8 --seed 3 --seconds 0.002 --out regret.json
says "regret: classes" "packed "
says "regret: shares" "within 3 %"
holds "regret: every shape" [ "$(grep -c '"regret":' regret.json)" -eq 8 ]
holds "regret: several variants" [ "$(grep -c '"samples":' regret.json)" -gt 8 ]
sed -n '/"problem"/,/}/p' regret.json >first
accepts "regret, again" bench --regret 8 --seed 3 --seconds 0.002 --out regret.json
sed -n '/"problem"/,/}/p' regret.json >second
holds "regret: the same shapes" cmp first second
refuses "regret and sizes" "--seq: --regret has its own shapes" bench --regret 2 --seq 7
refuses "regret and a dtype" "--dtype: --regret" bench --regret 2 --dtype fp16
refuses "regret and a variant" "--variant: --regret" bench --regret 2 --variant cpu_row_c
refuses "regret and a grid" "--grid: --regret" bench --regret 2 --grid cpu
refuses "regret, both caches" "--cache all" bench --regret 2 --cache all
refuses "check of nothing" "--check: no --regret" bench --check
refuses "a folder that is not there" "--out none/x" bench --regret 1 --out none/x

# ---- a GPU of sorts --------------------------------------------------------------------------

gpu="--device cuda --driver $fake --batch 1 --heads 2 --seq 20 --dim 64 --dtype fp16 --seconds 0.05"
[ -f "$fake" ] || { skipped "fake_driver" "no $fake" && finish; }
run plan --device cuda --driver "$fake" --dtype fp16
if [ "$code" -eq 3 ]; then
    skipped "bench_gpu" "this build has no GPU kernels"
    finish
fi
export FAKE_DRIVER_COMPUTE=1
accepts "all modes and states" bench $gpu --cache all --json
holds "all modes and states: six" [ "$(grep -c '"p50_seconds"' stdout)" -eq 6 ]
holds "cold: one call in a sample" [ "$(grep -A4 '"cache": "cold"' stdout |
    grep -c '"calls_per_sample": 1,')" -eq 3 ]
accepts "as a table" bench $gpu --cache all
holds "as a table: six" [ "$(grep -c -e ' cold ' -e ' warm ' stdout)" -eq 6 ]

FAKE_DRIVER_SLEEP=50 complains "a sleep that reads half" 4 "a sleep of 1000.0 us reads 50" bench $gpu
FAKE_DRIVER_SLEEP=120 complains "a sleep that reads more" 4 "a sleep of 1000.0 us reads 12" bench $gpu
FAKE_DRIVER_SLEEP=50 run bench ${gpu%fp16*}fp32 --seconds 0.05 --all-variants \
    --mode eager
holds "a sleep that reads half, in a table" [ "$code" -eq 4 ]
holds "in a table: each row" [ "$(grep -c ' invalid: .*a sleep of' stdout)" -gt 1 ]
holds "in a table: no number" [ "$(grep -c ' warm ' stdout)" -eq 0 ]
FAKE_DRIVER_BLIND=1 complains "a blind comparison" 4 "were not distinguished from right ones" bench $gpu
FAKE_DRIVER_EVENTS=fast complains "faster than a GPU can be" 4 "no GPU does it in less" bench $gpu --json
says "faster: said in JSON" '"outcome": "invalid"'
FAKE_DRIVER_EVENTS=slow complains "events beyond the clock" 4 "by the clock" bench $gpu
# 20: more than the check takes, fewer than check, warm-up and the least samples take on a busy machine.
for mode in eager stream graph; do
    for cache in cold warm; do
        FAKE_DRIVER_RIGHT_LAUNCHES=20 complains "outputs change, $mode $cache" 1 "was another one" \
            bench $gpu --mode $mode --cache $cache --width 0
    done
done
# One wrong call, then right ones: only a check after each sample can find it.
for mode in eager stream graph; do
    FAKE_DRIVER_WRONG_ONCE=1 complains "outputs change once, $mode" 1 "was another one" \
        bench $gpu --mode $mode --cache cold --width 0
done

regret="--device cuda --driver $fake --regret 12 --seconds 1e-6"
accepts "regret on a GPU" bench $regret --out regret.json
says "regret on a GPU: classes" "prefill "
holds "regret on a GPU: as a graph" grep -q '"mode": "graph"' regret.json
FAKE_DRIVER_SLEEP=50 complains "regret: a sleep that reads half" 4 "a sleep of 1000.0 us" bench $regret
FAKE_DRIVER_COMPUTE=0 complains "regret: outputs not written" 1 "bench: wrong: " bench $regret
FAKE_DRIVER_EVENTS=slow complains "regret: events beyond the clock" 4 "by the clock" bench $regret

# ---- the GPU's state -------------------------------------------------------------------------

if [ -f "$nvml" ]; then
    export ATTN_NVML=$nvml
    accepts "NVML" bench $gpu --json --mode eager
    says "NVML: the GPU" '"uuid": "GPU-fake"'
    says "NVML: clock" '"sm_clock_mhz_least": 1980'
    says "NVML: power" '"power_watts_most": 345.5'
    says "NVML: what holds the clocks" '"clocks_held_by": "power cap"'
    accepts "NVML, in words" bench $gpu --mode eager
    says "NVML, in words: state" "1980 to 1980 MHz, memory 3201, 346 W, 41 C; held by: power cap"
    FAKE_NVML_FAILS=1 accepts "NVML that fails" bench $gpu --json --mode eager
    holds "NVML that fails: no figure" [ "$(grep -c -e clock_mhz -e GPU-fake -e garbage stdout)" -eq 0 ]
    export ATTN_NVML=$work/none.so
    accepts "no NVML" bench $gpu --json --mode eager
    holds "no NVML: no figure" [ "$(grep -c clock_mhz stdout)" -eq 0 ]
    unset ATTN_NVML
else
    bad "NVML" "no $nvml"
fi

finish
