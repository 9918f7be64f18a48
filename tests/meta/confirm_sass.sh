#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# confirm_sass.sh ATTEST [CUBIN...]
#
# Compares what attest inspect counts with a disassembler's output, for each cubin in the library (or
# those that are given): instructions, matrix instructions, loads and stores of local memory. Wants
# nvdisasm or cuobjdump, in $PATH or in /usr/local/cuda/bin.
#
# Exit code 0 everything agrees, 1 something differs, 2 usage, 3 there is no disassembler.
#
# Not a CTest test: it needs NVIDIA's disassembler. Run it after a change of the opcodes
# (tool/stages/inspect/cubin.c) or of the compiler.
set -u

if [ $# -lt 1 ] || [ ! -x "$1" ]; then
    echo "usage: confirm_sass.sh ATTEST [CUBIN...]" >&2
    exit 2
fi
attest=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
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

# theirs: "instructions tensor local" of lines like
#        /*0010*/              @!P0 IMAD.MOV.U32 R1, RZ, RZ, R2 ;     /* 0x00000000ff017224 */
theirs() {
    awk '
        match($0, /^[ \t]*\/\*[0-9a-f]+\*\//) {
            rest = substr($0, RSTART + RLENGTH)
            if (!match(rest, /\/\* 0x[0-9a-f]+ \*\//))
                next
            text = substr(rest, 1, RSTART - 1)
            gsub(/[{}]/, " ", text)
            words = split(text, word, /[ \t]+/)
            for (i = 1; i <= words && (word[i] == "" || word[i] ~ /^@/); i++) {}
            sub(/[.;].*/, "", word[i])
            all++
            tensor += word[i] ~ /^[HIBDQ]G?MMA$/
            local += word[i] ~ /^(LDL|STL)$/
        }
        END { print all + 0, tensor + 0, local + 0 }'
}

# ours: the same of all kernels of the file, and how many functions they call.
ours() {
    awk '$2 ~ /^sm_/ { all += $11; tensor += $7; local += $6; callees += $12 + $13 }
        END { print all + 0, tensor + 0, local + 0, callees + 0 }'
}

status=0
agree=0
for cubin in "$@"; do
    $disassemble "$cubin" >"$work/listing" 2>"$work/said" ||
        { cat "$work/said" >&2 && echo "WRONG $cubin: it cannot be disassembled" && status=1 && continue; }
    "$attest" inspect --image "$cubin" >"$work/table" ||
        { echo "WRONG $cubin: attest cannot read it" && status=1 && continue; }
    # What a kernel calls is in the listing, but not in our counts.
    if echo "$(theirs <"$work/listing") $(ours <"$work/table")" | awk '
        $1 == 0 || $4 > $1 || $5 > $2 || $6 > $3 { exit 1 }
        $7 == 0 && ($4 != $1 || $5 != $2 || $6 != $3) { exit 1 }'; then
        agree=$((agree + 1))
    else
        echo "WRONG $(basename "$cubin"): $(theirs <"$work/listing") in the listing," \
            "$(ours <"$work/table") counted"
        status=1
    fi
done
echo "$agree of $# cubins agree with" \
    "$($disassemble --version 2>/dev/null | sed -n 's/.*\(release.*\)/\1/p' | head -1)"
exit $status
