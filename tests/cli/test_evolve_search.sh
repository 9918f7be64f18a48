#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_evolve_search.sh SOURCE_DIR BUILD_DIR: `attest evolve` on a CPU from its start to its end: the
# leaderboard, a kill in the middle, a proposer, and what is wrong with a command line.
#
# Invariant: nothing here depends on how fast the machine is; what depends on it is only that the
# choice is not slower than the shipped one.
set -u
source=$(cd "$1" && pwd)
. "$(dirname "$0")/cli.sh"

shape=1,4,256,32
search="evolve --shape $shape --candidates 16 --seed 5"

# ---- a search ----------------------------------------------------------------------------------

# shellcheck disable=SC2086 # a list of words
accepts search $search --out one --json
cp stdout one.json
holds search/journal test "$(grep -c '^}' one/journal.json)" -ge 10
holds search/no_scratch test ! -e one/scratch
if command -v python3 >/dev/null 2>&1; then
    python3 - one.json <<'EOF' >python.txt 2>&1 && ok || bad search/json "$(cat python.txt)"
import json, sys
board = json.load(open(sys.argv[1]))
assert len(board["leaderboard"]) >= 10, "%d on the leaderboard" % len(board["leaderboard"])
assert len(board["candidates"]) <= 16
for one in board["candidates"]:
    assert {"id", "knobs", "verdict", "why"} <= set(one), one
    assert one["verdict"] != "timed" or one["shapes"][0]["p50_us"] > 0
    assert one["verdict"] != "rejected" or (one["gate"] and one["reason"])
seen = [one["name"] for one in board["candidates"]]
assert len(seen) == len(set(seen)), "a candidate was tried twice"
best = max(one["ratio_high"] for one in board["confirmed"])
assert best >= 0.97, "the choice is slower than the shipped one: %g" % best
assert board["promoted"] is None or board["promoted"]["id"] >= 0
EOF
else
    skipped json "no python3"
fi

# ---- the same again ----------------------------------------------------------------------------

accepts leaderboard evolve --leaderboard one --json
same leaderboard stdout one.json
accepts leaderboard/text evolve --leaderboard one
says leaderboard/text "baseline"

# ---- killed in the middle ----------------------------------------------------------------------

# shellcheck disable=SC2086
"$attest" $search --out two >two.log 2>&1 &
process=$!
units() {
    grep -cs '^}' "$1/journal.json" || true
}
for _ in $(seq 600); do
    [ "0$(units two)" -ge 8 ] && break
    sleep 0.1
done
holds busy/started kill -0 $process
refuses busy "another attest" evolve --resume --out two
kill -9 $process
wait $process 2>/dev/null
sleep 1
cp two/journal.json before.json
holds kill/before test "$(grep -c '^}' before.json)" -ge 8
accepts kill/board evolve --leaderboard two
says kill/unfinished "the search has not ended"
printf '{\n  "number": 9' >>two/journal.json # as a full disk leaves it
accepts resume evolve --resume --out two
head -c "$(wc -c <before.json)" two/journal.json >kept.json
same resume/nothing_lost kept.json before.json
accepts resume/replay evolve --leaderboard two --json
holds resume/goes_on grep -q '"decision": "\(faster\|not promoted\)' stdout

# Generation 0 follows from the seed: the first candidates are those of the other search.
grep '"name": "cpu' one/journal.json | head -9 >names.one
grep '"name": "cpu' two/journal.json | head -9 >names.two
same generation_0 names.one names.two

# ---- an edited journal --------------------------------------------------------

cp -r one edited
sed -i 's/"seed": 5,*$/"seed": 6,/' edited/journal.json
run evolve --leaderboard edited
holds edited/seed test "$code" -eq 1
holds edited/sentence grep -q "not of this search" stderr
cp -r one cut
head -c -9 one/journal.json >cut/journal.json
accepts cut evolve --leaderboard cut
says cut "the search has not ended"

# ---- a proposer --------------------------------------------------------------------------------

cp "$source/tests/cli/proposer_example.sh" proposer.sh
accepts proposer evolve --shape 1,2,192,64 --candidates 18 --seed 2 --out three \
    --proposer 'sh ./proposer.sh' --json
holds proposer/proposed grep -q '"why": "proposed: ' stdout
accepts proposer/replay evolve --leaderboard three
accepts proposer/bad evolve --shape 1,1,64,64 --candidates 14 --out four --proposer 'echo nonsense' \
    --json
holds proposer/fault grep -q '"fault": "' four/journal.json

# ---- bad input ---------------------------------------------------------------------------------

refuses none "no --shape and no --grid" evolve --out x
refuses shape "expected B,H" evolve --shape 1,2,3 --out x
refuses classes "one class" evolve --shape 1,2,64,64 --shape 1,2,64,128 --out x
refuses there "a journal is there" evolve --shape $shape --out one
refuses absent "no journal is there" evolve --leaderboard nowhere
refuses both "expected one of them" evolve --resume --leaderboard one
refuses device "expected cpu, vgpu or cuda" evolve --shape $shape --device tpu --out x
refuses family "no such variant" evolve --shape $shape --family nothing --out x1
refuses start "start = nothing" evolve --shape $shape --start nothing --out x2
refuses expression "no regular expression" evolve --shape $shape --family '(' --out x3
refuses fp32 "fp16 and bf16" evolve --shape $shape --device cuda --dtype fp32 --out x4
refuses budget "more than 0" evolve --shape $shape --budget 0 --out x5
refuses judge "without --start" evolve --shape $shape --judge "$source/tests/red_team/honest.cu" --out x7
run evolve --leaderboard one --promote
holds promote test "$code" -eq 2
holds promote/sentence grep -q 'not promoted\|tuned.def is for GPUs' stderr
run evolve --shape $shape --device cuda --driver /nowhere/libcuda.so --out x6
holds not_run test "$code" -eq 3
finish
