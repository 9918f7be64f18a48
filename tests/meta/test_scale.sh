#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_scale.sh SOURCE_DIR [BUILD_DIR]
#
# Proves that docs/scale.md has the tables that the model of docs/scale.py gives, that the model obeys
# its laws, and that both checks fail: for an edited figure, a missing block, results that are not
# verified, and a model without balance.
set -u

command -v python3 >/dev/null || { echo "skip scale: no python3" && exit 77; }
source=$(cd "$1" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAIL: $1"
    failures=$((failures + 1))
}

# A tree of its own; the cases of 1024 GPUs, which take a minute, only in the first check.
fresh() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/docs" "$work/tree/results"
    sed -e '/^ *(64, K \* K)/s/, (1024.*/]/' -e 's/for gpus in (8, 64, 1024):/for gpus in (8, 64):/' \
        "$source/docs/scale.py" >"$work/tree/docs/scale.py"
    sed '/^| 1024 /d; /^ 1024 GPUs /d' "$source/docs/scale.md" >"$work/tree/docs/scale.md"
    cp "$source/results/h200-peers-bf16.json" "$work/tree/results"
    python3 "$work/tree/docs/scale.py" || fail "rewrite"
}

scale() {
    python3 "$work/tree/docs/scale.py" "$@" >"$work/out" 2>&1
}

edit() { # FILE EXPRESSION: by sed; it must change something
    sed "$2" "$work/tree/$1" >"$work/edited"
    cmp -s "$work/tree/$1" "$work/edited" && fail "changes nothing: $2"
    cp "$work/edited" "$work/tree/$1"
}

python3 "$source/docs/scale.py" --check >"$work/out" 2>&1 || fail "--check: $(cat "$work/out")"
python3 "$source/docs/scale.py" --self-test >"$work/out" 2>&1 || fail "laws: $(cat "$work/out")"

fresh
scale --check || fail "the smaller tree: $(cat "$work/out")"
edit docs/scale.md '0,/^| 8 | 64k /s/ 88 %/ 92 %/'
scale --check && fail "not found: an edited figure"
fresh
edit docs/scale.md '/<!-- model chart -->/d'
scale --check && fail "not found: a missing block"
fresh
edit results/h200-peers-bf16.json 's/"passed": *true/"passed": false/g'
scale --check && fail "not found: results that are not verified"
fresh
edit docs/scale.py 's/kernels.seconds(heads, rows, rows \/\/ 2)/kernels.seconds(heads, rows, rows)/'
scale --self-test && fail "not found: a zigzag whose lower ranks do twice the work"

echo "$failures failed"
[ "$failures" -eq 0 ]
