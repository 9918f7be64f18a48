#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_env.sh SOURCE_DIR BUILD_DIR
#
# The virtual GPU as the driver of a program that knows nothing of it: what the environment says is
# obeyed or refused with a sentence, and reports are written where requested, in JSON and
# SARIF that python3 can read (where there is one).
set -u

build=$2
attest=$build/attest
library=$build/libvgpu.so
[ -f "$library" ] || { echo "skip vgpu_env: no $library" && exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
unset VGPU_ASYNC VGPU_SEED VGPU_THREADS VGPU_SM VGPU_CHECKS VGPU_REPORT
passed=0
failed=0

verdict() { # verdict NAME STATUS TEXT: status 0 passes
    if [ "$2" -eq 0 ]; then
        echo "ok   $1"
        passed=$((passed + 1))
    else
        echo "FAIL $1: $3"
        failed=$((failed + 1))
    fi
}

# devices [VARIABLE=VALUE...]: what attest says of its devices, both streams
devices() {
    env "$@" "$attest" devices --driver "$library" 2>&1
}

text=$(devices VGPU_SM=86)
case $text in *"vgpu (virtual sm_86)"*) status=0 ;; *) status=1 ;; esac
verdict capability_is_obeyed $status "$text"

for setting in VGPU_ASYNC=late VGPU_ASYNC=random:x VGPU_SEED=-1 VGPU_THREADS=many VGPU_SM=70 \
    VGPU_CHECKS=memory,luck VGPU_CHECKS=,; do
    text=$(devices "$setting")
    case $text in *"vgpu: ${setting%%=*}"*expected*) status=0 ;; *) status=1 ;; esac
    case $text in *"(virtual sm_"*) status=1 ;; esac
    verdict "refused_$setting" $status "$text"
done

for setting in VGPU_ASYNC=eager VGPU_ASYNC=fifo VGPU_ASYNC=lifo VGPU_ASYNC=random \
    VGPU_ASYNC=random:7 VGPU_SEED=3 VGPU_THREADS=1 VGPU_CHECKS=all VGPU_CHECKS=none \
    VGPU_CHECKS=memory,race; do
    text=$(devices "$setting")
    case $text in *"vgpu (virtual sm_90)"*) status=0 ;; *) status=1 ;; esac
    verdict "taken_$setting" $status "$text"
done

for name in a.json b.sarif c.txt; do
    devices VGPU_REPORT="$work/$name" >/dev/null
    [ -s "$work/$name" ]
    verdict "report_$name" $? "nothing was written"
done
grep -q '^0 errors, 0 warnings$' "$work/c.txt"
verdict text_says_that_nothing_was_found $? "$(cat "$work/c.txt")"
if command -v python3 >/dev/null; then
    text=$(python3 - "$work/a.json" "$work/b.sarif" <<'PYTHON' 2>&1
import json, sys
report = json.load(open(sys.argv[1]))
assert report["errors"] == 0 and report["findings"] == [], report
sarif = json.load(open(sys.argv[2]))
run = sarif["runs"][0]
assert sarif["version"] == "2.1.0" and run["results"] == [], sarif
rules = run["tool"]["driver"]["rules"]
assert len(rules) > 30 and all(rule["shortDescription"]["text"] for rule in rules), rules
PYTHON
    )
    verdict python_reads_the_reports $? "$text"
fi

devices VGPU_REPORT="$work/d_%p.txt" >/dev/null
[ "$(find "$work" -name 'd_[0-9]*.txt' | wc -l)" -eq 1 ]
verdict report_with_the_number_of_the_process $? "$(ls "$work")"

text=$(devices VGPU_REPORT="$work/absent/r.txt")
case $text in *"cannot be written to $work/absent/r.txt"*) status=0 ;; *) status=1 ;; esac
verdict a_report_that_cannot_be_written_is_told $status "$text"

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
