#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# confirm_sass.sh ATTEST [CUBIN...]
#
# Compares a disassembler's output with ours, for each cubin in the library (or those that are
# given): how often each opcode occurs, and its mnemonic in tool/stages/inspect/sass_opcodes.def. Wants nvdisasm
# or cuobjdump, in $PATH or in /usr/local/cuda/bin. Prints the table that it confirmed:
#
#   ok      0x23c HMMA     2304  in 40 cubins
#   NEW     0x388 STS       160  in 20 cubins      no line in the table yet; it may be added
#   WRONG   ...                                    the table or a count differs
#
# Exit code 0 everything agrees, 1 something differs, 2 usage, 3 there is no disassembler.
#
# Not a CTest test: it needs NVIDIA's disassembler. Run it after a change of the table or of the
# compiler.
set -u

if [ $# -lt 1 ] || [ ! -x "$1" ]; then
    echo "usage: confirm_sass.sh ATTEST [CUBIN...]" >&2
    exit 2
fi
attest=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
opcodes=$(cd "$(dirname "$0")" && pwd)/../../tool/stages/inspect/sass_opcodes.def
PATH=$PATH:/usr/local/cuda/bin
if command -v nvdisasm >/dev/null; then
    disassemble='nvdisasm -hex'
elif command -v cuobjdump >/dev/null; then
    disassemble='cuobjdump -sass'
else
    echo "NOT RUN: neither nvdisasm nor cuobjdump is here" >&2
    exit 3
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
if [ $# -eq 0 ]; then
    # Budgets are another matter: whatever it says of them, the images are written.
    "$attest" inspect --dump "$work/images" >/dev/null 2>&1
    set -- "$work"/images/*.cubin
    [ -f "$1" ] || { echo "NOT RUN: the library holds no cubin" >&2 && exit 3; }
fi

# theirs: "opcode mnemonic count" of each line like
#        /*0010*/              @!P0 IMAD.MOV.U32 R1, RZ, RZ, R2 ;     /* 0x00000000ff017224 */
# in which the last three digits are the opcode.
theirs() {
    awk '
        match($0, /^[ \t]*\/\*[0-9a-f]+\*\//) {
            rest = substr($0, RSTART + RLENGTH)
            if (!match(rest, /\/\* 0x[0-9a-f]+ \*\//))
                next
            code = substr(rest, RSTART + RLENGTH - 6, 3)
            text = substr(rest, 1, RSTART - 1)
            gsub(/[{}]/, " ", text)
            words = split(text, word, /[ \t]+/)
            for (i = 1; i <= words && (word[i] == "" || word[i] ~ /^@/); i++) {}
            mnemonic = word[i]
            sub(/[.;].*/, "", mnemonic)
            count["0x" code " " mnemonic]++
        }
        END { for (key in count) print key, count[key] }' | LC_ALL=C sort
}

# ours: the same from attest, of all kernels of the file; the mnemonic is ? where we know none.
ours() {
    awk '$1 == "opcode" { count[$2 " " $3] += $4 }
        END { for (key in count) print key, count[key] }' | LC_ALL=C sort
}

status=0
for cubin in "$@"; do
    $disassemble "$cubin" >"$work/listing" 2>"$work/said" ||
        { cat "$work/said" >&2 && echo "WRONG $cubin: it cannot be disassembled" && status=1 && continue; }
    "$attest" inspect --image "$cubin" --opcodes >"$work/table" ||
        { echo "WRONG $cubin: attest cannot read it" && status=1 && continue; }
    theirs <"$work/listing" >"$work/theirs"
    ours <"$work/table" >"$work/ours"
    [ -s "$work/theirs" ] || { echo "WRONG $cubin: no instruction in its listing" && status=1; }
    # What a kernel calls is in the listing, but not in our counts: `callees` says so.
    callees=$(awk '$2 ~ /^sm_/ { sum += $12 + $13 } END { print sum + 0 }' "$work/table")
    awk -v callees="$callees" -v cubin="$(basename "$cubin")" '
        /^OPCODE/ {
            words = split($0, part, /[(), ]+/)
            for (i = 1; i + 2 <= words; i += 3)
                named[part[i + 2]] = part[i + 1]
            next
        }
        FILENAME ~ /ours$/ { ours[$1] = $3; next }
        FILENAME ~ /theirs$/ {
            seen[$1] = 1
            mine = ($1 in ours) ? ours[$1] : 0
            if (callees == 0 ? mine != $3 : mine > $3)
                print "WRONG", $1, $2, "occurs", $3, "times, we count", mine, "in", cubin
            if (!($1 in named))
                print "NEW", $1, $2, $3
            else if (named[$1] == $2)
                print "ok", $1, $2, $3
            else
                print "WRONG", $1, "is", $2 ", we call it", named[$1], "in", cubin
        }
        END {
            for (code in ours)
                if (!(code in seen))
                    print "WRONG", code, "does not occur, we count", ours[code], "in", cubin
        }
    ' "$opcodes" "$work/ours" "$work/theirs" >>"$work/all"
done

awk '
    $1 == "WRONG" { print; wrong = 1; next }
    { key = $1 " " $2 " " $3; sum[key] += $4; files[key]++ }
    END {
        for (key in sum) {
            split(key, part, " ")
            printf "%-6s %s %-10s %8d  in %d cubins\n", part[1], part[2], part[3], sum[key], files[key]
        }
        exit wrong
    }' "$work/all" >"$work/result" || status=1
LC_ALL=C sort -k 1,1r -k 3,3 -k 2,2 "$work/result"
echo "compared with: $($disassemble --version 2>/dev/null | sed -n 's/.*\(release.*\)/\1/p' | head -1)"
exit $status
