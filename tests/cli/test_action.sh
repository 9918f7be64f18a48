#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_action.sh SOURCE_DIR BUILD_DIR
#
# The GitHub action (tool/action): its lines run, one that finds a bug fails it, and the problem
# matcher reads every finding that attest prints.
set -u
source=$(cd "$1" && pwd)
. "$(dirname "$0")/cli.sh"

if ! "$attest" check "$here/data/check/race.ptx" --list >/dev/null 2>&1; then
    skipped all "no virtual GPU in this build"
    finish
fi
if ! command -v bash >/dev/null || ! command -v python3 >/dev/null; then
    skipped all "no bash or no python3"
    finish
fi
cp "$here/data/check/"*.ptx "$here/data/check/"*.cu .
right="race.ptx --list"
wrong="race.ptx --grid 4 --block 128 --arg buf:f32:512:rand --arg 'buf:f32:4:uninit'"

CHECK="
$wrong

  $right
" ATTEST=$attest bash "$source/tool/action/run.sh" >stdout 2>stderr
holds "a line with a finding fails it" test $? -eq 1
holds "the lines after it run" grep -q 'parameters of' stdout
holds "the matcher is added" grep -qF "::add-matcher::$source/tool/action/matcher.json" stdout
holds "findings are matched" python3 - "$source/tool/action/matcher.json" <<'END'
import json, re, sys
pattern = json.load(open(sys.argv[1]))["problemMatcher"][0]["pattern"][0]
lines = open("stdout").read().splitlines()
found = [match for match in map(re.compile(pattern["regexp"]).match, lines) if match]
printed = [line for line in lines if ": error: " in line or ": warning: " in line]
assert printed and len(found) == len(printed), (printed, found)
match = found[0]
assert match[pattern["file"]] == "race.cu" and match[pattern["line"]] == "8", match.groups()
assert match[pattern["severity"]] == "error" and match[pattern["code"]] == "race", match.groups()
END
CHECK=$right ATTEST=$attest bash "$source/tool/action/run.sh" >stdout 2>stderr
holds "a right line passes" test $? -eq 0
# shellcheck disable=SC2016 # as it is
CHECK='race.ptx --list $(touch ran) `touch ran`; touch ran' ATTEST=$attest \
    bash "$source/tool/action/run.sh" >stdout 2>stderr
holds "nothing in a line is run" test ! -e ran
if python3 -c 'import yaml' 2>/dev/null; then
    holds "the action is YAML" python3 -c 'import sys, yaml
action = yaml.safe_load(open(sys.argv[1]))
assert action["runs"]["using"] == "composite" and "check" in action["inputs"]' \
        "$source/tool/action/action.yml"
fi
finish
