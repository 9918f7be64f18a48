#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_tables.sh SOURCE_DIR [BUILD_DIR]
#
# Proves that `docs/tables.py --check` accepts the tree as it is, and fails for an edited figure, a
# missing row or marker, a figure outside of the tables, and results that are missing, NaN or not
# verified; and that tables.py writes the same text again.
set -u

command -v python3 >/dev/null || { echo "skip tables: no python3" && exit 77; }
source=$(cd "$1" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAIL: $1"
    failures=$((failures + 1))
}

# A tree of its own, with the results that tables.py reads.
fresh() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/docs" "$work/tree/results/h200"
    cp "$source/README.md" "$work/tree"
    cp "$source"/docs/*.md "$work/tree/docs"
    cp "$source"/results/*.json "$source"/results/*.svg "$work/tree/results"
    cp "$source/results/h200/evidence.json" "$work/tree/results/h200"
    cp -r "$source/results/evolve" "$work/tree/results"
}

tables() {
    python3 "$source/docs/tables.py" --root "$work/tree" "$@" >"$work/out" 2>&1
}

# refuses NAME TEXT: --check must fail and say TEXT.
refuses() {
    tables --check && fail "not found: $1"
    grep -q "$2" "$work/out" || fail "$1: does not say '$2': $(head -3 "$work/out")"
}

# edit FILE EXPRESSION: by sed; it must change something.
edit() {
    sed "$2" "$work/tree/$1" >"$work/edited"
    cmp -s "$work/tree/$1" "$work/edited" && fail "changes nothing: $2"
    cp "$work/edited" "$work/tree/$1"
}

# spoil FILE STATEMENT: Python over the document d.
spoil() {
    python3 - "$work/tree/results/$1" "$2" <<'P' || fail "spoil $1: $2"
import json, sys
d = json.load(open(sys.argv[1]))
exec(sys.argv[2])
json.dump(d, open(sys.argv[1], "w"))
P
}

fresh
tables --check || fail "the tree as it is: $(cat "$work/out")"
tables || fail "rewrite: $(cat "$work/out")"
cmp -s "$source/README.md" "$work/tree/README.md" || fail "a rewrite changes README.md"

edit README.md '/^| B2 H8 S512 D64 |/s/| 4\./| 3./'
refuses "an edited figure" '^-| B2 H8 S512 D64 | 3\.'
tables && tables --check || fail "a rewrite does not mend an edited figure"
cmp -s "$source/README.md" "$work/tree/README.md" || fail "the mended README.md differs"

fresh && edit docs/benchmarks.md '0,/^| B32 H8 S128 D64 /{/^| B32 H8 S128 D64 /d}'
refuses "a missing row" '^+| B32 H8 S128 D64 '
fresh && edit README.md '/<!-- table headline -->/d'
refuses "a missing marker" 'README.md: has the tables'
fresh && edit README.md '0,/<!-- \/table -->/{/<!-- \/table -->/d}'
refuses "a missing end" 'README.md: has the tables'
fresh && edit README.md 's/table headline/table unknown/'
refuses "an unknown table" 'README.md: has the tables'
fresh && echo 'It is 3.5× as fast.' >>"$work/tree/README.md"
refuses "a figure outside of the tables" 'stands outside'

one="d['rows'][0]['summary']['modes']['graph']"
fresh && spoil h200-peers-fp16.json "$one['ours_us'] = float('nan')"
refuses "NaN" 'above 0'
fresh && spoil h200-peers-fp16.json "del $one['us']['cudnn']"
refuses "a missing time" "no 'cudnn'"
fresh && spoil h200-peers-fp16.json "d['rows'] = d['rows'][1:]"
refuses "a missing shape" 'has no row'
fresh && spoil h200-peers-decode.json "d['rows'][0]['verified']['after']['passed'] = False"
refuses "a row that is not verified" 'not a verified row'
fresh && spoil h200-peers-bf16.json "d['complete'] = False"
refuses "a run that did not end" 'not a complete run'
fresh && spoil cpu-xeon-amx.json "d['rows'][0]['ratio'] = None"
refuses "no ratio" 'expected a number'
fresh && spoil h200/evidence.json "d['verdict'] = 'FAIL'"
refuses "a pack that is not PASS" "'FAIL'"
fresh && spoil ranks-h200.json "d['complete'] = False"
refuses "ranks that did not end" 'not a complete run'
fresh && spoil ranks-h200.json "d['rows'][0]['checks']['max_error'] = float('nan')"
refuses "ranks that are not verified" 'not a verified row'
fresh && rm "$work/tree/results/host-h200.json"
refuses "a missing file" 'host-h200.json'

# A run of gradients, made up from one of forward: its table, its ratios and its picture appear.
backward() {
    fresh
    cp "$work/tree/results/h200-peers-fp16.json" "$work/tree/results/h200-peers-bwd.json"
    spoil h200-peers-bwd.json "for r in d['rows']: r['name'] += ' backward'"
    rm -f "$work/tree/results/h200-peers-bwd.svg"
}
backward
refuses "no picture of gradients" 'no picture results/h200-peers-bwd.svg'
cp "$work/tree/results/h200-peers-fp16.svg" "$work/tree/results/h200-peers-bwd.svg"
tables && tables --check || fail "a run of gradients: $(cat "$work/out")"
grep -q '(results/h200-peers-bwd.svg)' "$work/tree/README.md" || fail "README.md lacks its picture"
tr '\n' ' ' <"$work/tree/README.md" | grep -q 'fp16 gradients (' || fail "README.md lacks its ratio"
sed -n '/<!-- table bwd -->/,/<!-- \/table -->/p' "$work/tree/docs/benchmarks.md" |
    grep -q '^| B2 H8 S512 D64 | [0-9]' || fail "benchmarks.md lacks its table"

echo "$failures failed"
[ "$failures" -eq 0 ]
