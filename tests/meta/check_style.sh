#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check_style.sh SOURCE_DIR     the limits and habits that no compiler checks
# check_style.sh --self-test    plants violations and expects each to be found
#
#   a source file has an SPDX line in its head and at most 1000 lines (a warning above 600)
#   no tab or blank at the end of a line, no tab inside C, no line of C over 100 columns (but for @run)
#   no folder holds more than 45 files of code
#   no path of a developer's machine, no note to self, no code that is commented out by #if 0
#
# Exit code 0 clean (warnings or not), 1 violations, 2 usage.
#
# Invariant: it looks at what would be committed, never at build folders or virtual environments.
set -u

soft_limit=600
hard_limit=1000
columns=100
folder_limit=45

# All files of the tree that are text of ours.
tree_files() {
    find . \( -name '.?*' ! -name .ci -o -name 'build*' -o -name '*venv*' -o -name __pycache__ \
        -o -path ./results -o -path ./tests/data \) -prune -o -type f \
        \( -name '*.[chS]' -o -name '*.[ch]pp' -o -name '*.rs' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name '*.sh' \
        -o -name '*.py' -o -name '*.cmake' -o -name '*.in' -o -name '*.md' -o -name '*.txt' \
        -o -name '*.json' -o -name Makefile -o -path './.ci/run' \) -print |
        sed 's|^\./||' | LC_ALL=C sort
}

check_file() {
    case $1 in
    *.md | *.txt | *.json | *.in) kind=text ;;
    *.c | *.h | *.[ch]pp | *.cu | *.cuh) kind=c ;;
    *) kind=source ;;
    esac
    # The patterns are written so that they do not match themselves.
    LC_ALL=C awk -v file="$1" -v kind="$kind" -v soft="$soft_limit" -v hard="$hard_limit" -v columns="$columns" '
        function report(text) { print file ":" NR ": " text; bad = 1 }
        # Counts characters, not bytes, whatever the locale and the awk.
        function width(line) { gsub(/[\200-\277]/, "", line); return length(line) }
        NR <= 5 && /SPDX-License-Identifier: Apache-2\.0/ { spdx = 1 }
        /[ \t]$/ { report("blank at the end of the line") }
        /\/wor[k]\/|\/hom[e]\/[a-z]|\/roo[t]\// { report("path of a machine") }
        kind != "text" && /(^|[^A-Za-z_])(TOD[O]|FIXM[E]|XX[X])([^A-Za-z_]|$)/ { report("note to self") }
        kind == "c" && /\t/ { report("tab") }
        kind == "c" && /^[ \t]*#[ \t]*if[ \t]+0/ { report("#if 0: delete it, git remembers") }
        kind == "c" && width($0) > columns && $0 !~ /^ \* @run / { report(width($0) " columns, at most " columns) }
        END {
            if (kind != "text" && !spdx) { print file ": no SPDX line in its head"; bad = 1 }
            if (kind != "text" && NR > hard) { print file ": " NR " lines, at most " hard; bad = 1 }
            else if (kind != "text" && NR > soft)
                print file ": warning: " NR " lines, better below " soft
            exit bad
        }' "$1"
}

check_folders() {
    tree_files | grep -E '\.([chS]|[ch]pp|rs|cuh?|def|sh|py)$' | sed -n 's|/[^/]*$||p' | LC_ALL=C sort |
        uniq -c |
        awk -v most="$folder_limit" '
            $1 > most { print $2 ": " $1 " files of code, at most " most; bad = 1 }
            END { exit bad }'
}

check_tree() {
    cd "$1" || exit 2
    [ -f include/attn.h ] || {
        echo "check_style.sh: $1 has no include/attn.h" >&2
        exit 2
    }
    tree_files | {
        status=0
        check_folders || status=1
        while IFS= read -r file; do
            check_file "$file" || status=1
        done
        exit $status
    }
}

# plant FILE TEXT COUNT: the clean tree with COUNT lines of TEXT appended must be refused, by FILE.
plant() {
    rm -rf "$work/planted"
    cp -R "$work/clean" "$work/planted"
    yes "$2" | head -n "$3" >>"$work/planted/$1"
    if report=$(check_tree "$work/planted"); then
        echo "self-test: not found: $1: $2"
        failures=$((failures + 1))
    elif ! echo "$report" | grep -q "^$1:"; then
        echo "self-test: found for the wrong reason: $1: $2: $report"
        failures=$((failures + 1))
    fi
}

self_test() {
    work=$(mktemp -d) || exit 2
    trap 'rm -rf "$work"' EXIT
    failures=0
    mkdir -p "$work/clean/include" "$work/clean/src" "$work/clean/build"
    cd "$work/clean" || exit 2
    echo '/* SPDX-License-Identifier: Apache-2.0 */' | tee include/attn.h >src/a.c
    echo '# Words, tabs	and long lines are fine here' >README.md
    echo 'bad ' >build/generated.c
    yes '/* a line */' | head -n 999 >>src/a.c
    awk 'BEGIN { printf "/* "; for (i = 0; i < 94; i++) printf "\303\251"; print " */" }' >>include/attn.h
    if ! report=$(check_tree "$work/clean"); then
        echo "self-test: the clean tree was refused: $report"
        failures=1
    fi
    plant src/a.c '/* one line too many */' 1
    plant src/new.c '/* no licence */' 1
    plant src/new.cu '/* no licence */' 1
    plant src/a.cu "/* SPDX-License-Identifier: Apache-2.0 $(printf '%097d' 0) */" 1
    plant include/attn.h '/* blank */ ' 1
    plant include/attn.h "$(printf '\tint tab;')" 1
    plant include/attn.h '#if 0' 1
    plant include/attn.h "/* $(printf '%097d' 0) */" 1
    plant include/attn.h "/* TOD""O: later */" 1
    plant README.md "see /hom""e/someone/notes" 1
    for i in $(seq "$folder_limit"); do
        cp include/attn.h "include/$i.h"
    done
    if report=$(check_tree "$work/clean") ||
        ! echo "$report" | grep -q '^include: 46 files of code, at most 45$'; then
        echo "self-test: not found: a folder of 46 files"
        failures=$((failures + 1))
    fi
    [ "$failures" -eq 0 ] || exit 1
    echo "self-test: every planted violation was found"
}

case ${1:-} in
--self-test) self_test ;;
'') echo "usage: check_style.sh SOURCE_DIR | --self-test" >&2 && exit 2 ;;
*) (check_tree "$1") ;;
esac
