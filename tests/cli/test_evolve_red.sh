#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_evolve_red.sh SOURCE_DIR BUILD_DIR: every cheating kernel of tests/red_team is rejected by the
# gate that its head names, and the one that does not cheat passes all of them.
#
# Invariant: no gate is left out for a test: `attest evolve --judge` takes the way of a search.
set -u
source=$(cd "$1" && pwd)
. "$(dirname "$0")/cli.sh"

if ! "$attest" plan --device vgpu --dtype fp16 --variant fwd_scalar_fp16_d64_32x64_w4_s2 \
    >/dev/null 2>&1; then
    skipped kernels "no kernels for GPUs were built, or no virtual GPU"
    finish
fi
if ! (PATH=$PATH:/usr/local/cuda/bin && command -v nvcc >/dev/null 2>&1); then
    skipped nvcc "no nvcc to compile a candidate with"
    finish
fi

# Has the compiler read a file of the machine into its error message; not in the tree, whose own rules
# forbid such a line.
mkdir files
{
    printf '/* gate:\n * gate: source\n */\n#include "/etc/hostname"\n'
    cat "$source/tests/red_team/honest.cu"
} | sed '/^ \* gate: none/d' >files/reads_files.cu

# No environment weakens a gate.
export VGPU_CHECKS=none

cheats=0
for file in "$source"/tests/red_team/*.cu files/reads_files.cu; do
    name=$(basename "$file" .cu)
    gate=$(sed -n 's/^ \* gate: //p' "$file")
    start=$(sed -n 's/^ \* start: //p' "$file")
    limit=60
    [ "$gate" = process ] && limit=12
    run evolve --judge "$file" --start "${start:-fwd_scalar_fp16_d64_32x64_w4_s2}" --family . \
        --device vgpu --shape 1,2,128,64 --tree "$source" --limit $limit --out "$name"
    if [ "$gate" = none ]; then
        if [ "$code" -eq 0 ] && grep -q '^passed: ' stdout; then ok; else bad "$name" "$(cat stdout)"; fi
    else
        cheats=$((cheats + 1))
        if [ "$code" -eq 1 ] && grep -q "^rejected by $gate: ." stdout; then
            ok
        else
            bad "$name" "exit code $code, expected 1 and 'rejected by $gate': $(cat stdout)"
        fi
    fi
done
# A search there: no clock, so that it ends after the gates.
accepts search evolve --device vgpu --shape 1,1,96,64 --family '^fwd_mma$' --candidates 4 --tree "$source" \
    --out search --json
holds search/fit test "$(grep -c '"verdict": "fit"' stdout)" -ge 3
accepts search/replay evolve --leaderboard search

if [ "$cheats" -ge 12 ]; then ok; else bad count "$cheats cheats, expected 12 or more"; fi
finish
