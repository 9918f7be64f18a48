# SPDX-License-Identifier: Apache-2.0
#
# cli.sh - what the scripts that test attest share; sourced, never run:
#
#     . "$(dirname "$0")/cli.sh"      # with the script's own arguments: SOURCE_DIR BUILD_DIR, or the
#                                     # path of attest; leaves $attest, and an empty folder to be in
#     accepts "name" plan --batch 2   # exit 0, nothing on stderr
#     refuses "name" "part of the sentence" plan --batch x
#     complains "name" 3 "part of the sentence" bench --device cuda
#     not_run "name" "part of the sentence" profile --device cuda:9
#     shows "name" 4 "text on stdout" sanitize --variant RE
#     holds "name" test -e file; says "name" "text on stdout"; same "name" file file
#     ok; bad "name" "why"; skipped word "why"
#     finish
#
# Invariant: what `refuses` lets pass has exit code 2, exactly one line on stderr that begins with
# "attest: ", an empty stdout, and leaves no output and no temporary file.

if [ -d "$1" ]; then
    attest=$2/attest
else
    attest=$1
fi
attest=$(cd "$(dirname "$attest")" && pwd)/$(basename "$attest")
[ -x "$attest" ] || { echo "no attest at $attest" && exit 1; }

here=$(cd "$(dirname "$0")/.." && pwd) # tests/
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export TMPDIR="$work/.tmp" # files of a killed program are removed with the folder
mkdir "$TMPDIR"

passed=0
failed=0
skips=0

ok() {
    passed=$((passed + 1))
}

bad() {
    failed=$((failed + 1))
    echo "FAIL $1: $2"
    if [ -s stderr ]; then
        sed 's/^/     /' stderr | head -5
    fi
}

skipped() {
    skips=$((skips + 1))
    echo "skip $1: $2"
}

finish() {
    echo "$passed passed, $failed failed, $skips skipped"
    [ "$failed" -eq 0 ] || exit 1
    [ "$passed" -gt 0 ] || exit 77
    exit 0
}

# Runs attest; leaves $code and the files stdout and stderr.
run() {
    "$attest" "$@" >stdout 2>stderr
    code=$?
}

one_line_of_complaint() {
    [ "$(wc -l <stderr)" -eq 1 ] && [ "$(head -c 8 stderr)" = "attest: " ]
}

# Neither o.npy, l.npy nor a temporary file is in the folder.
nothing_left() {
    for file in o.npy l.npy .attest-*; do
        [ -e "$file" ] && return 1
    done
    return 0
}

accepts() {
    name=$1
    shift
    run "$@"
    if [ "$code" -ne 0 ]; then
        bad "$name" "exit code $code"
    elif [ -s stderr ]; then
        bad "$name" "something on stderr"
    else
        ok
    fi
}

# Judges the last run, called $name: exit code $expected, one line of complaint with $sentence, no
# time on stdout, no file left.
complained() {
    if [ "$code" -ne "$expected" ]; then
        bad "$name" "exit code $code, expected $expected"
    elif ! one_line_of_complaint; then
        bad "$name" "not one line of complaint"
    elif ! grep -qF -- "$sentence" stderr; then
        bad "$name" "no '$sentence' in it"
    elif grep -q -e 'FLOP' -e 'gflops' -e '[0-9] ms' -e ' us$' -e '_seconds' stdout; then
        bad "$name" "a number on stdout"
    elif ! nothing_left; then
        bad "$name" "a file was not removed"
        rm -f o.npy l.npy .attest-*
    else
        ok
    fi
}

complains() {
    name=$1 expected=$2 sentence=$3
    shift 3
    run "$@"
    complained
}

refuses() {
    name=$1 expected=2 sentence=$2
    shift 2
    run "$@"
    if [ -s stdout ]; then
        bad "$name" "something on stdout"
    else
        complained
    fi
}

# not_run NAME SENTENCE VERB...: exit code 3, one line that says NOT RUN and why, no folder of logs.
not_run() {
    name=$1 sentence=$2
    shift 2
    run "$@"
    if [ "$code" -ne 3 ]; then
        bad "$name" "exit code $code, expected 3"
    elif ! one_line_of_complaint || ! grep -q "NOT RUN: .*$sentence" stderr; then
        bad "$name" "not one line that says NOT RUN and '$sentence'"
    elif [ -n "$(ls -d "$1"-* 2>/dev/null)" ]; then
        bad "$name" "a folder was not removed"
    else
        ok
    fi
}

# shows NAME CODE WORDS VERB...: the exit code, and these words on stdout.
shows() {
    name=$1 expected=$2 words=$3
    shift 3
    run "$@"
    if [ "$code" -ne "$expected" ]; then
        bad "$name" "exit code $code, expected $expected"
        sed 's/^/     /' stdout
    elif ! grep -q -- "$words" stdout; then
        bad "$name" "no '$words' on stdout"
        sed 's/^/     /' stdout
    else
        ok
    fi
}

# Builds tests/faults/$1.c, whose functions replace those of the library; ends the script where that
# cannot be done. Then `with_fault FAULT words...` runs attest with one of its faults.
build_faults() {
    compiler=${CC:-cc}
    if ! $compiler -D_GNU_SOURCE -shared -fPIC -I"$here/../include" -o fault.so \
        "$here/faults/$1.c" 2>stderr; then
        skipped "faults" "$compiler cannot build them"
        finish
    fi
    # Loaded before the sanitizers' own library, where there is one.
    ASAN_OPTIONS=verify_asan_link_order=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
    export ASAN_OPTIONS
}

with_fault() {
    FAULT=$1
    shift
    FAULT=$FAULT LD_PRELOAD=$work/fault.so "$attest" "$@" >stdout 2>stderr
    code=$?
}

# holds NAME command...: the command succeeds.
holds() {
    name=$1
    shift
    if "$@"; then
        ok
    else
        bad "$name" "not so: $*"
    fi
}

# says NAME TEXT: the last stdout contains TEXT.
says() {
    holds "$1" grep -qF -- "$2" stdout
}

# same NAME FILE FILE
same() {
    holds "$1" cmp -s "$2" "$3"
}

# npy FILE TYPE SHAPE [SEED]: a .npy file as NumPy writes it. TYPE f4, f2, u2 (bfloat16), b1 or u1; SHAPE like
# "2, 3"; values 0 or 1 of b1 and u1, else between 0.5 and 2 of either sign, or zeros with SEED 0. awk makes octal escapes and
# printf makes bytes, so that neither Python nor NumPy is needed.
npy() {
    printf "$(awk -v type="$2" -v shape="$3" -v seed="${4:-1}" '
        function random(n) { state = (state * 16807) % 2147483647; return state % n }
        function byte(b) { printf "\\%03o", b }
        BEGIN {
            state = seed + 4711
            dims = split(shape, size, /, */)
            count = 1
            for (d = 1; d <= dims; d++) count *= size[d]
            header = "{\047descr\047: \047" (type ~ /1$/ ? "|" : "<") type "\047, \047fortran_order\047: False, \047shape\047: (" \
                     shape (dims == 1 ? "," : "") "), }"
            while ((length(header) + 11) % 64 != 0) header = header " "
            printf "\\223NUMPY\\001\\000"
            byte((length(header) + 1) % 256)
            byte(int((length(header) + 1) / 256))
            printf "%s\\n", header
            for (i = 0; i < count; i++) {
                width = type == "f4" ? 4 : type ~ /1$/ ? 1 : 2
                if (seed == 0) { for (b = 0; b < width; b++) byte(0); continue }
                if (width == 1) { byte(random(4) > 0); continue }
                sign = random(2) * 128
                up = random(2)
                if (type == "f4") { byte(random(256)); byte(random(256)) }
                if (type == "f2") { byte(random(256)); byte(sign + (14 + up) * 4 + random(4)) }
                else { byte(up == 0 ? random(128) : 128 + random(128)); byte(sign + 63) }
            }
        }')" >"$1"
}

# raw FILE VERSION HEADER DATA: any preamble, header and data; HEADER and DATA are printf formats.
raw() {
    printf "$3" >header
    length=$(wc -c <header)
    {
        printf '\223NUMPY'
        printf "\\$(printf %o "$2")\\000"
        printf "\\$(printf %o $((length % 256)))\\$(printf %o $((length / 256)))"
        [ "$2" -eq 1 ] || printf '\000\000'
        cat header
        printf "$4"
    } >"$1"
}
