#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_man.sh SOURCE_DIR BUILD_DIR
#
# Proves that docs/man.py writes attest(1) with every verb and option of `attest --help`, and attn(3)
# with every function, type and macro of the public headers; that roff takes both without a warning
# (groff, where it is installed; else every request in them is one of man(7)); and that docs/api.md is
# what docs/api.py writes, but not with a line changed; and that bash completes verbs, options and the
# values that --help lists.
set -u

command -v python3 >/dev/null || { echo "skip man: no python3" && exit 77; }
source=$(cd "$1" && pwd) || exit 1
attest=$2/attest
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAIL: $1"
    failures=$((failures + 1))
}

python3 "$source/docs/man.py" "$attest" "$work" || fail "man.py"

# has PAGE WORD: as roff writes it.
has() {
    sed 's/\\-/-/g; s/\\&//g; s/\\e/\\/g' "$work/$1" | grep -qF -- "$2" || fail "$1 has no $2"
}

verbs=$("$attest" --help | sed -n '/^usage/,/^examples/s/^  \([a-z]*\)  *[a-z].*/\1/p' | grep -v '^attest$')
[ "$(echo "$verbs" | wc -l)" -ge 10 ] || fail "too few verbs: $verbs"
for verb in $verbs; do
    has attest.1 ".SH ATTEST $(echo "$verb" | tr '[:lower:]' '[:upper:]')"
    for option in $("$attest" "$verb" --help | grep -oE '^  --[a-z-]+'); do
        has attest.1 ".B $option"
    done
done

names=$(grep -ohE '\battn_[a-z0-9_]+\(|^} attn_[a-z_]+;|^#define ATTN_(AUTO|BY_NAME|ABI)' \
    "$source"/include/*.h | grep -oE 'attn_[a-z0-9_]+|ATTN_[A-Z_]+' | sort -u)
[ "$(echo "$names" | wc -l)" -ge 40 ] || fail "too few names: $names"
for name in $names; do
    grep -qE "^\.SS (.*[ ,])?$name(,.*)?$" "$work/attn.3" || fail "attn.3 has no section for $name"
    grep -qE "^#### (.*[ ,])?$name(,.*)?$" "$source/docs/api.md" || fail "api.md: no $name"
done

for page in attest.1 attn.3; do
    if command -v groff >/dev/null; then
        said=$(groff -man -Tascii -ww -z "$work/$page" 2>&1)
    else
        said=$(grep '^[.'"'"']' "$work/$page" | grep -vE '^\.(TH|SH|SS|PP|TP|B|BR|EX|EE)( |$)')
    fi
    [ -z "$said" ] || fail "$page: $said"
done

# completes WORDS EXPECTED: what bash offers for the last of the words.
completes() {
    said=$(bash -c '. "$1"; COMP_WORDS=(attest $2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _attest
        echo "${COMPREPLY[*]}"' bash "$work/attest.bash" "$1") && [ "$said" = "$2" ] ||
        fail "attest $1 completes to '$said', expected '$2'"
}
python3 "$source/docs/completion.py" "$attest" "$work/attest.bash" || fail "completion.py"
if command -v bash >/dev/null; then
    completes pl plan
    completes "plan --dt" --dtype
    completes "plan --dtype b" bf16
    completes "run --fu" --full
    completes "verify results" ""
fi

python3 "$source/docs/api.py" --check >"$work/diff" || fail "api.md: $(head -20 "$work/diff")"
mkdir "$work/docs" && cp -R "$source/include" "$work/include" && cp "$source/docs/api.py" "$work/docs"
sed 's/Opens a device/Closes a device/' "$source/docs/api.md" >"$work/docs/api.md"
python3 "$work/docs/api.py" --check >"$work/diff" && fail "an edited api.md is accepted"
grep -q '^-Closes a device' "$work/diff" || fail "the diff does not show the edit"

echo "$failures failed"
[ "$failures" -eq 0 ]
