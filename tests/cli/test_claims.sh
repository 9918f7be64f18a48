#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_cli_claims.sh - proves that attest claims fails a file whose figures are not those of its
# results; and that the project's own README stands, but with any figure edited does not.
#
# usage: test_cli_claims.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

source=$(cd "$here/.." && pwd)

# fails NAME TEXT COMMAND...: exit code 1, one line of complaint, TEXT on stdout.
fails() {
    name=$1
    text=$2
    shift 2
    run "$@"
    if [ "$code" -ne 1 ]; then
        bad "$name" "exit code $code, expected 1"
    elif ! one_line_of_complaint; then
        bad "$name" "not one line of complaint"
    else
        says "$name" "$text"
    fi
}

mkdir results other
echo '{"ratio": 1.8899, "us": 4.94}' >results/r.json
echo '{"ratio": 1.5}' >other/r.json
echo 'It is <!-- result r.json#ratio -->1.89×<!-- /result --> as fast.' >good.md

accepts "a figure that is backed" claims good.md
says "is counted" "1 figures backed, 0 wrong, 0 without a mark, 0 blocks exempt"
accepts "and shown with --all" claims good.md --all
says "with what backs it" "good.md:1: BACKED: 1.89: r.json#ratio"
fails "other results" "the file gives 1.50" claims good.md --results other
fails "no results" "No such file" claims good.md --results nowhere
fails "too few" "1 figures backed" claims good.md --at-least 2
refuses "no file" "nowhere.md" claims nowhere.md
refuses "no argument" "FILE is missing" claims
accepts "help" claims --help

{ cat good.md && echo && echo 'Or 3 µs.'; } >unmarked.md
fails "a figure without a mark" "unmarked.md:3: UNMARKED: 3 µs" claims unmarked.md
{ cat good.md && printf '\n```\n114.8 GFLOP/s\n```\n'; } >code.md
fails "in code, too" "code.md:4: UNMARKED: 114.8 GFLOP" claims code.md
sed 's/1\.89/1.98/' good.md >edited.md
fails "an edited figure" "edited.md:1: WRONG: 1.98: r.json#ratio: the file gives 1.89" claims edited.md
cp edited.md updated.md
accepts "--update" claims updated.md --update
says "says what it changed" "updated.md:1: UPDATED: 1.98 -> 1.89"
same "and puts the number in place" updated.md good.md
accepts "once" claims updated.md --update
same "and nothing else" updated.md good.md
cp unmarked.md updated.md
fails "it gives no figure a mark" "UNMARKED: 3 µs" claims updated.md --update
same "and leaves such a file alone" updated.md unmarked.md
sed 's/#ratio/#1.89/' good.md >constant.md
fails "a number of the mark's own" "expected a power of 1000" claims constant.md
sed 's|#ratio|#ratio / ratio * 1e3|; s/1\.89×/1000×/' good.md >itself.md
fails "a value over itself" "the same whatever the file says" claims itself.md
sed 's/It is /It is 30/' good.md >part.md
fails "a part of a number" "makes the number another one" claims part.md
cp part.md updated.md
fails "which --update leaves alone" "makes the number another one" claims updated.md --update
same "in every byte" updated.md part.md
printf 'It takes 5\n&micro;s, or <b>6</b> usec.\n' >written.md
fails "a figure however written" "written.md:1: UNMARKED: 5 &micro;s" claims written.md
says "each of them" "0 figures backed, 0 wrong, 2 without a mark"
sed 's/#ratio/#speed/' good.md >path.md
fails "a wrong path" "there is no 'speed'" claims path.md
sed 's/r\.json/s.json/' good.md >file.md
fails "a missing file" "s.json" claims file.md

# The README as it is, and with each of its first figures changed in the last digit.
if [ -d "$source/results" ]; then
    accepts "README.md" claims "$source/README.md" --at-least 12
    run claims "$source/README.md" --all
    grep ': BACKED: ' stdout | sed -n '1,4p;60,63p;$p' |
        sed 's/^.*README\.md:\([0-9]*\): BACKED: \([0-9.]*\): .*/\1 \2/' >figures
    holds "there are some" test -s figures
    while read -r line figure; do
        last=${figure#"${figure%?}"}
        other=${figure%?}$(((last + 3) % 10))
        sed "${line}s/\([^0-9.]\)$figure\([^0-9]\)/\1$other\2/" "$source/README.md" >README.md
        fails "line $line: $other for $figure" "WRONG: $other" claims README.md --results \
            "$source/results"
    done <figures
fi

if command -v python3 >/dev/null; then
    run claims unmarked.md --json
    holds "JSON" python3 -c 'import json; d = json.load(open("stdout"))
assert (d["backed"], d["wrong"], d["unmarked"]) == (1, 0, 1)
assert d["claims"][1]["line"] == 3 and d["claims"][1]["verdict"] == "UNMARKED"'
else
    skipped json "no python3"
fi
finish
