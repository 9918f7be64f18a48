#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh BUILD_DIR SECONDS: each libFuzzer program of the build for that long, on what is in
# tests/data and on what earlier runs found. New inputs stay in BUILD_DIR/corpus, a crash's input in
# BUILD_DIR: to keep it from coming back, copy it into tests/data/NAME.
set -eu

build=$1
seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
ran=0

for program in "$build"/tests/fuzz_*; do
    [ -x "$program" ] || continue
    name=$(basename "$program")
    seeds=$here/../data/$name
    mkdir -p "$build/corpus/$name"
    [ -d "$seeds" ] || seeds=
    log=$build/$name.log
    "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" "$build/corpus/$name" ${seeds:+"$seeds"} \
        </dev/null >"$log" 2>&1 || { tail -40 "$log" && echo "FAIL $name, see $log" && exit 1; }
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "ok   $name: $inputs inputs in $seconds seconds"
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "no fuzz target in $build/tests" >&2 && exit 1; }
