#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_inspect.sh - proves that `attest inspect` reads any cubin, that it holds the library's own to
# their budgets (and notices when they are not), and what it says about bad input.
#
# usage: test_inspect.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

data=$here/data/fuzz_cubin

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
accepts "json" inspect --image "$data/sm_80.cubin" --json
says "json" '"tensor_ops": 3'
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
refuses "no kernel selected" "none of its 2 kernels" inspect --image "$data/sm_80.cubin" --variant x
refuses "regular expression" "is no regular expression" inspect --variant '('
refuses "file and dump" "--dump" inspect --image "$data/sm_80.cubin" --dump .

# ---- the library -----------------------------------------------------------------------------

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
if [ "$(setting ATTN_KERNEL_DEBUG)" = ON ]; then
    skipped library "kernels with device asserts have no budget"
    finish
fi
run inspect
if [ -n "$(setting ATTN_VARIANTS)" ] || [ "$(setting ATTN_ONE_OF_EACH)" = ON ]; then
    holds "some kernels are not built" [ "$code" -eq 3 ]
    says "some kernels are not built" "NOT RUN fwd_"
else
    holds "the library is whole" [ "$code" -eq 0 ]
    says "the library is whole" ", 0 not there"
fi
holds "what is there is within its budgets" [ "$(grep -c '^FAIL' stdout)" -eq 0 ]
first=$(awk '$2 == "sm_80" { print $1; exit }' stdout)
refuses "no such variant" "matches none" inspect --variant no_such --dump images
holds "no folder for nothing" test ! -e images
accepts "dump" inspect --variant "^$first\$" --dump images --json
says "dump: within its budget" '"pass": true'
hash=$(sha256sum <"images/$first.sm_80.cubin" | cut -d ' ' -f 1)
says "hash of the dumped cubin" "\"cubin_sha256\": \"$hash\""
holds "hash in the dumped log" grep -qx "sha256 $hash" "images/$first.sm_80.log"
holds "dumped PTX" grep -q "^.visible .entry $first" "images/$first.compute_80.ptx"
accepts "a dumped cubin is read as it was embedded" inspect --image "images/$first.sm_80.cubin"
: >file
refuses "dump into a file" "file" inspect --variant "^$first\$" --dump file
finish
