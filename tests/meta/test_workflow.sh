#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_workflow.sh - proves that the workflow on GitHub runs .ci/run, and that nothing in either can
# fail unseen: no step that may fail, no `|| true`, no step that a label or a message skips.
#
# usage: test_workflow.sh SOURCE_DIR [BUILD_DIR]
set -u
cd "$1" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# What is wrong with a workflow, a line each.
faults_of() {
    grep -q '^ *run: \.ci/run$' "$1" || echo "does not run .ci/run"
    sed 's/^[[:space:]]*#.*//' "$1" | grep -nE \
        'continue-on-error|\|\| *(true|:|exit 0|echo)|set \+e|^ *(- )?if:|paths-ignore|labels|\[skip'
}

# .ci/run may test with ||, but each step's result must be counted.
faults_of_run() {
    sed 's/^[[:space:]]*#.*//' "$1" | grep -nE '\|\| *(true|:|exit 0)|set \+e'
    for word in 'make test' 'make asan' 'make tsan' 'make bare' 'make lint' 'make fuzz' \
        'attest claims README.md --at-least 12'; do
        grep -q "^ *\(suite\|step\) .*$word" "$1" || echo "has no step for: $word"
    done
}

fail() {
    echo "FAIL: $1"
    failures=$((failures + 1))
}

# plant FILE CHECK EXPRESSION: changed by sed, it must be refused.
plant() {
    sed "$3" "$1" >"$work/planted"
    cmp -s "$1" "$work/planted" && fail "changes nothing: $3"
    [ -n "$($2 "$work/planted")" ] || fail "not found: $3"
}

for workflow in .github/workflows/*.yml; do
    found=$(faults_of "$workflow")
    [ -z "$found" ] || fail "$workflow: $found"
done
found=$(faults_of_run .ci/run)
[ -z "$found" ] || fail ".ci/run: $found"

ci=.github/workflows/ci.yml
plant $ci faults_of 's|run: \.ci/run|run: .ci/run \|\| true|'
plant $ci faults_of 's|run: \.ci/run|run: make test|'
plant $ci faults_of 's|^      - name: \.ci/run|&\n        continue-on-error: true|'
plant $ci faults_of 's|^      - name: \.ci/run|&\n        if: false|'
plant .ci/run faults_of_run '/attest claims/d'
plant .ci/run faults_of_run 's/^step lint.*/& || true/'
plant .ci/run faults_of_run 's/^suite asan/# &/'

echo "$failures failed"
[ "$failures" -eq 0 ]
