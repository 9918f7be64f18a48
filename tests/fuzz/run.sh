#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh BUILD_DIR SECONDS [NAME...]: each libFuzzer program of the build (or those named) for that
# long, $JOBS [2] at a time, on what is in tests/data and on what earlier runs found. New inputs stay
# in BUILD_DIR/corpus, a crash's input in BUILD_DIR: to keep it from coming back, copy it into
# tests/data/NAME.
set -eu

build=$1
seconds=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)

# fuzz NAME: one program.
fuzz() {
    seeds=$here/../data/$1
    mkdir -p "$build/corpus/$1"
    [ -d "$seeds" ] || seeds=
    log=$build/$1.log
    "$build/tests/$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$build/$1-" "$build/corpus/$1" ${seeds:+"$seeds"} \
        </dev/null >"$log" 2>&1 || { tail -40 "$log" && echo "FAIL $1, see $log" && return 1; }
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "ok   $1: $inputs inputs in $seconds seconds"
}

if [ $# -eq 1 ]; then
    fuzz "$1"
    exit
fi
if [ $# -eq 0 ]; then
    for program in "$build"/tests/fuzz_*; do
        [ ! -x "$program" ] || set -- "$@" "$(basename "$program")"
    done
fi
[ $# -gt 0 ] || { echo "no fuzz target in $build/tests" >&2 && exit 1; }
printf '%s\n' "$@" | xargs -n 1 -P "${JOBS:-2}" sh "$0" "$build" "$seconds"
