#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_inspect.sh - proves that `attest inspect` reads any cubin, that it holds the library's own to
# their budgets (and notices when they are not), and what it says about bad input.
#
# usage: test_inspect.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

data=$here/data/fuzz_cubin
budgets=$here/../tool/stages/inspect/budgets.def

# ---- a file ----------------------------------------------------------------------------------

# row NAME: the columns of the last table's row that begins with NAME.
row() {
    awk -v name="$1" '$1 == name { $1 = $1; print }' stdout
}

for arch in sm_80 sm_90; do
    accepts "$arch" inspect --image "$data/$arch.cubin"
    hash=$(sha256sum <"$data/$arch.cubin" | cut -c 1-12)
    holds "$arch alpha" test "$(row alpha)" = "alpha $arch 22 64 - 3 3 3 512 - 56 0 0 $hash"
    registers=10
    [ $arch = sm_80 ] || registers=8
    holds "$arch beta" test "$(row beta)" = "beta $arch $registers 0 - 0 0 0 0 - 9 1 0 $hash"
done
accepts "debug" inspect --image "$data/sm_90_debug.cubin"
holds "debug: shared memory" test "$(row alpha | cut -d ' ' -f 9)" = 512
accepts "relocatable" inspect --image "$data/sm_90_relocatable.cubin"
holds "relocatable: shared memory" test "$(row alpha | cut -d ' ' -f 9)" = 512
accepts "one kernel of a file" inspect --image "$data/sm_80.cubin" --variant '^al'
holds "the other is left out" test -z "$(row beta)"
accepts "opcodes" inspect --image "$data/sm_80.cubin" --opcodes
says "opcodes" "opcode 0x23c HMMA            3"
accepts "json" inspect --image "$data/sm_80.cubin" --opcodes --json
says "json" '"tensor_ops": 3'
says "json opcodes" '"mnemonic": "HMMA"'
says "json of what is not known" '"spill_bytes": null'
holds "json is a list" test "$(head -c 1 stdout)" = '['
accepts "help" inspect --help

# ---- bad input -------------------------------------------------------------------------------

head -c 3000 "$data/sm_80.cubin" >cut.cubin
: >empty.cubin
refuses "cut file" "truncated" inspect --image cut.cubin
refuses "empty file" "it is empty" inspect --image empty.cubin
refuses "another kind of file" "not a cubin" inspect --image "$data/two_kernels.ptx"
refuses "no such file" "No such file" inspect --image absent.cubin
refuses "folder" "not a regular file" inspect --image .
mkfifo pipe
refuses "pipe" "pipe: not a regular file" inspect --image pipe
refuses "budgets: no end" "/dev/zero: not a regular file" inspect --budgets /dev/zero
refuses "no kernel selected" "none of its 2 kernels" inspect --image "$data/sm_80.cubin" --variant x
refuses "regular expression" "is not a regular expression" inspect --variant '('
refuses "file and budgets" "--budgets" inspect --image "$data/sm_80.cubin" --budgets "$budgets"
refuses "file and another library" "--against" inspect --image "$data/sm_80.cubin" --against absent.so
refuses "file and dump" "--dump" inspect --image "$data/sm_80.cubin" --dump .
refuses "budgets: no such file" "No such file" inspect --budgets absent.def
echo 'BUDGET(x, sm_80)' >bad.def
refuses "budgets: bad line" "bad.def: line 1" inspect --budgets bad.def

# ---- the library -----------------------------------------------------------------------------

# exits NAME CODE arguments...: attest says that code, with one line of complaint.
exits() {
    name=$1
    expected=$2
    shift 2
    run "$@"
    if [ "$code" -ne "$expected" ] || ! one_line_of_complaint; then
        bad "$name" "exit code $code, expected $expected and one line"
    else
        ok
    fi
}

setting() { # of the build, where its folder is known
    [ ! -f "$build/CMakeCache.txt" ] || sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"
}

build=$(dirname "$attest")
run inspect
if [ "$code" -eq 3 ] && grep -q 'no GPU kernels' stderr; then
    fake=$build/tests/libfake_driver.so
    if [ -f "$fake" ]; then
        ATTN_DRIVER=$fake "$attest" inspect >stdout 2>stderr
        holds "the library's reason" grep -q 'no GPU kernels: [^ ]' stderr
    fi
    run inspect --dump images
    holds "no folder for nothing" test ! -e images
    holds "nothing to look at, nothing said" test ! -s stdout
    skipped library "it holds no machine code for GPUs"
    finish
fi
refuses "against nothing" "--against" inspect --against absent.so
if [ "$(setting ATTN_KERNEL_DEBUG)" = ON ]; then
    skipped library "kernels with device asserts have no budget"
    finish
fi
if [ -n "$(setting ATTN_VARIANTS)" ]; then
    skipped library "only some of its kernels are built"
    finish
fi

accepts "the library is within its budgets" inspect
says "the library is within its budgets" ", 0 not there"
cp stdout compiled_in
accepts "budgets from the file" inspect --budgets "$budgets"
same "budgets from the file" stdout compiled_in
refuses "no such variant" "matches none" inspect --variant no_such --dump images
holds "no folder for nothing" test ! -e images

first=$(sed -n 's/^BUDGET(\([a-z0-9_]*\), sm_80,.*/\1/p' "$budgets" | head -1)
sed "s/^BUDGET($first, sm_80, [0-9]*/BUDGET($first, sm_80, 1/" "$budgets" >tight.def
exits "too many registers" 1 inspect --budgets tight.def
says "too many registers" "FAIL $first sm_80: registers "
holds "one failure" test "$(grep -c '^FAIL' stdout)" -eq 1
exits "too many registers, json" 1 inspect --budgets tight.def --json
says "too many registers, json" '"pass": false'

sed "/^BUDGET($first, sm_90,/d" "$budgets" >less.def
exits "no budget" 1 inspect --budgets less.def
says "no budget" "FAIL $first sm_90: it has no budget"

{ cat "$budgets" && echo "BUDGET(absent, sm_80, 255, 0)"; } >more.def
exits "no cubin" 3 inspect --budgets more.def
says "no cubin" "NOT RUN absent sm_80"
accepts "no cubin, but not asked for" inspect --budgets more.def --variant "^$first\$"

wmma=$(sed -n 's/^BUDGET(\([a-z0-9_]*wmma[a-z0-9_]*\), sm_90,.*/\1/p' "$budgets" | head -1)
sed "s/^\(BUDGET($wmma, sm_90, [0-9]*\), [0-9]*/\1, 99999/" "$budgets" >demanding.def
exits "too few tensor ops" 1 inspect --budgets demanding.def
says "too few tensor ops" "FAIL $wmma sm_90: tensor_ops "

accepts "dump" inspect --variant "^$first\$" --dump images --json
hash=$(sha256sum <"images/$first.sm_80.cubin" | cut -d ' ' -f 1)
says "hash of the dumped cubin" "\"cubin_sha256\": \"$hash\""
holds "hash in the dumped log" grep -qx "sha256 $hash" "images/$first.sm_80.log"
holds "dumped PTX" grep -q "^.visible .entry $first" "images/$first.compute_80.ptx"
accepts "a dumped cubin is read as it was embedded" inspect --image "images/$first.sm_80.cubin"
library=$(dirname "$attest")/libattn.so
accepts "against itself" inspect --variant "^$first\$" --against "$library"
holds "against itself: the same" grep -Eq "^$first +sm_80 +([0-9]+)/\1 +0/0 +0/0" stdout
accepts "against itself, JSON" inspect --variant "^$first\$" --against "$library" --json
says "against itself, JSON: both" '"other": {'
: >file
refuses "dump into a file" "file" inspect --variant "^$first\$" --dump file
finish
