#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_compare.sh - proves of attest compare from the shell: the exit codes, one line of complaint,
# JSON that others can read, and that only --update writes the ratchet file.
#
# usage: test_compare.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

maker=$(dirname "$attest")/tests/test_compare_packs

# make PACK SCALE SEED [FIND BY]
make() {
    pack=$1
    shift
    (cd "$here/.." && "$maker" make "$work/$pack" "$@") || bad "making $pack" "$maker failed"
}

# exits NAME CODE COMMAND...: with one line of complaint if the code is not 0.
exits() {
    name=$1
    expected=$2
    shift 2
    run "$@"
    if [ "$code" -ne "$expected" ]; then
        bad "$name" "exit code $code, expected $expected"
    elif [ "$code" -ne 0 ] && ! one_line_of_complaint; then
        bad "$name" "not one line of complaint"
    else
        ok
    fi
}

refuses "no pack" "PACK is missing" compare
refuses "one pack" "1 packs, expected 2" compare nowhere
refuses "no such pack" "nowhere" compare nowhere nowhere
refuses "two packs and a ratchet" "expected 1 with --ratchet" compare a b --ratchet r.json
refuses "nothing to update" "needs --ratchet" compare a b --update
refuses "a margin" "out of range" compare a b --margin 51
accepts "help" compare --help

make a 1 1
make b 1.15 2
make c 0.9 3
make wrong 1 4 0.001 0.9
exits "the same pack" 0 compare a a
says "has no difference" "0 slower, 0 faster, 44 without"
exits "15 % slower" 1 compare a b
says "is named" "SLOWER"
says "and counted" "1 slower, 0 faster, 43 without"
exits "10 % faster" 0 compare a c
says "is counted" "0 slower, 1 faster, 43 without"
exits "15 % slower, within a margin of 20 %" 0 compare a b --margin 20
exits "a PASS that was lost" 1 compare a wrong
says "is named" "LOST     PASS -> FAIL  parity cpu fwd_cpu"
exits "a PASS that was gained" 0 compare wrong a
says "is counted" "0 lost a PASS, 1 gained one"

refuses "no ratchet file" "r.json" compare a --ratchet r.json
exits "the first update" 0 compare a --ratchet r.json --update
says "all are first" "44 first"
cp r.json first.json
exits "again" 0 compare a --ratchet r.json --update
same "changes nothing" r.json first.json
exits "a regression" 1 compare b --ratchet r.json --update
same "moves nothing" r.json first.json
exits "a pack that failed" 1 compare wrong --ratchet r.json --update
same "moves nothing either" r.json first.json
exits "faster" 0 compare c --ratchet r.json
same "without --update" r.json first.json
exits "faster" 0 compare c --ratchet r.json --update
holds "is one line of the diff" test "$(diff first.json r.json | grep -c '^>')" = 1
exits "back to the first is a regression" 1 compare a --ratchet r.json
exits "which --loosen allows" 0 compare a --ratchet r.json --update --loosen
same "and is then as before" r.json first.json
echo '{"schema": "attest-ratchet/1"}' >bad.json
refuses "a malformed file" "bad.json" compare a --ratchet bad.json --update
exits "a folder that is not there" 2 compare a --ratchet nowhere/r.json --update

# A unit that was changed, with the hash of its name recomputed.
unit=$(grep -l '"timings"' a/units/*.json | head -1)
cp -R a edited
sed 's/"seconds": 1.5/"seconds": 1.6/' "$unit" >edited/"${unit#a/}"
new=$(sha256sum <edited/"${unit#a/}" | cut -c1-64)
mv edited/"${unit#a/}" "edited/units/$new.json"
refuses "a changed pack" "not what follows" compare a edited

if command -v python3 >/dev/null; then
    exits "--json" 1 compare a b --json
    holds "of two packs" python3 -c 'import json; d = json.load(open("stdout"))
assert d["counts"]["SLOWER"] == 1 and d["lost"] == 0 and len(d["timings"]) == 44'
    exits "a lost PASS --json" 1 compare a wrong --json
    holds "names it" python3 -c 'import json; d = json.load(open("stdout"))
assert d["lost"] == 1 and d["verdicts"][0]["new"] == "FAIL"'
    exits "the ratchet --json" 0 compare c --ratchet r.json --json
    holds "is not updated" python3 -c 'import json; assert not json.load(open("stdout"))["updated"]'
else
    skipped json "no python3"
fi
finish
