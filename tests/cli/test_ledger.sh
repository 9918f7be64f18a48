#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_cli_ledger.sh - proves that attest ledger does from the shell what test_ledger.c proves of its
# parts: the exit codes, one line of complaint, JSON that others can read, two writers at once, a
# ledger that cannot be written; and without SQLite that it says so.
#
# usage: test_cli_ledger.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

maker=$(dirname "$attest")/tests/test_ledger

# make PACK SCALE SEED
make() {
    (cd "$here/.." && "$maker" make "$work/$1" "$2" "$3") || bad "making $1" "test_ledger failed"
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

run ledger list
if grep -q 'built without SQLite' stderr; then
    exits "no SQLite: list" 3 ledger list
    exits "no SQLite: import" 3 ledger import nowhere
    refuses "no SQLite: usage comes first" "unknown action" ledger forget
    accepts "no SQLite: help" ledger --help
    finish
fi

refuses "no action" "no action given" ledger
refuses "another action" "unknown action 'forget'" ledger forget
refuses "no pack" "PACK is missing" ledger import
refuses "no such pack" "nowhere" ledger import nowhere
refuses "no ledger" "there is no ledger" ledger list
refuses "no ledger to ratchet" "there is no ledger" ledger ratchet latest
holds "none of them made one" test ! -e ledger.db
for action in import list show compare ratchet; do
    accepts "$action --help" ledger $action --help
done

make a 1 1
make b 1.15 2
make c 0.9 3
accepts "import" ledger import a
says "it says so" "imported"
accepts "import again" ledger import a
says "and that there is nothing to do" "nothing to do"
refuses "two packs at once" "2 packs, expected PACK" ledger import a b
accepts "the first baselines" ledger ratchet latest
says "all are first" "0 faster and 44 first: moved"
accepts "import a slower one" ledger import b
exits "a regression" 1 ledger ratchet latest
says "which it names" "REGRESSED"
accepts "compare" ledger compare 1 2
says "slower is SLOWER" "1 slower, 0 faster, 43 same (within 1 %), 0 ambiguous, 0 only old, 0 only new"
accepts "import a faster one" ledger import c
accepts "a dry run" ledger ratchet latest --dry-run
says "moves nothing" "not moved (--dry-run)"
accepts "once is no reason to move" ledger ratchet latest
says "and it says so" "1 faster once"
make c2 0.9 33
accepts "import another of the same build" ledger import c2
accepts "the ratchet" ledger ratchet latest
says "prints what it moved" "MOVED"
says "and how many" "1 faster and 0 first: moved"
accepts "again" ledger ratchet latest
says "has nothing left to move" "0 faster and 0 first: moved"
exits "back to the first is a regression" 1 ledger ratchet 1
refuses "no such pack in it" "no pack '7'" ledger show 7
refuses "an ambiguous root" "expected a number" ledger show f

# A pack that was changed stays out: one sample, with the hash of its unit recomputed or not.
unit=$(grep -l '"timings"' a/units/*.json | head -1)
cp -R a edited
sed 's/"seconds": 1.5/"seconds": 1.6/' "$unit" >edited/"${unit#a/}"
exits "a changed unit" 1 ledger import edited
new=$(sha256sum <edited/"${unit#a/}" | cut -c1-64)
mv edited/"${unit#a/}" "edited/units/$new.json"
exits "with its hash" 1 ledger import edited

# Writers wait for each other, and none takes what another one enters meanwhile for damage.
make d 1 4
make e 1 5
make g 1 7
for pack in d e g; do
    "$attest" ledger import $pack >/dev/null 2>"$pack.complaint" &
done
for again in 1 2 3 4 5 6; do
    "$attest" ledger list >/dev/null 2>>list.complaint
done
wait
for file in d e g list; do
    holds "$file did not complain" test ! -s $file.complaint
done
accepts "all are in it" ledger list
says "seven packs" "7 packs, head "

cp ledger.db before.db
refuses "a report over its ledger" "belongs to ledger.db" report ledger.db --html ledger.db
refuses "two reports in one file" "the same file" report ledger.db --html x --markdown x
same "the ledger is as it was" ledger.db before.db
rm before.db

if [ "$(id -u)" != 0 ]; then
    make f 1 6
    chmod a-w ledger.db
    refuses "a ledger that cannot be written" "readonly" ledger import f
    chmod u+w ledger.db
fi
refuses "a folder that is not there" "unable to open" ledger import d --ledger nowhere/ledger.db

if command -v python3 >/dev/null; then
    for words in "list" "list --baselines" "show 1" "compare 1 2" "ratchet 3" "ratchet 3 --dry-run" \
        "import a"; do
        # shellcheck disable=SC2086 # words
        accepts "$words --json" ledger $words --json
        holds "$words: JSON" python3 -c 'import json; json.load(open("stdout"))'
    done
    exits "a regression --json" 1 ledger ratchet 2 --json
    holds "a regression: JSON" python3 -c 'import json; d = json.load(open("stdout"))
assert d["counts"]["REGRESSED"] == 1 and not d["moved"]'
else
    skipped json "no python3"
fi
finish
