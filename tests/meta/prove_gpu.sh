#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# prove_gpu.sh BUILD_DIR OUT_DIR [STEP...]
#
# All checks of the GPU kernels on the GPU of this machine: the machine code
# against its budgets and a disassembler, parity and repeated launches (of the cubins, then
# of the PTX), compute-sanitizer with planted faults, times, and the peers. One file for each step in
# OUT_DIR, which must not exist yet. STEPs: inspect sass parity ptx debug sanitize bench peers.
#
# Invariant: exit code 0 iff every step ran and passed; 3 if the only failures are steps that could
# not run here; else 1. Every skip is reported.
set -u

build=$1
out=$2
shift 2
steps=${*:-inspect sass parity ptx debug sanitize bench peers}
root=$(cd "$(dirname "$0")/../.." && pwd)
attest=$build/attest
failed=''
not_run=''

mkdir "$out" || exit 2

# step NAME COMMAND...: runs it with its output on the screen and in OUT_DIR/NAME.txt.
step() {
    name=$1
    shift
    echo "=== $name: $*"
    begin=$(date +%s)
    { "$@" 2>&1; echo $? >"$out/$name.rc"; } | tee "$out/$name.txt"
    code=$(cat "$out/$name.rc")
    rm "$out/$name.rc"
    echo "=== $name: exit code $code, $(($(date +%s) - begin)) s"
    case $code in
    0) ;;
    3) not_run="$not_run $name" ;;
    *) failed="$failed $name" ;;
    esac
}

for one in $steps; do
    case $one in
    inspect) step inspect "$attest" inspect ;;
    sass) step sass sh "$root/tests/meta/confirm_sass.sh" "$attest" ;;
    parity) step parity "$attest" parity --device cuda ;;
    ptx) step ptx "$attest" parity --device cuda --quick --ptx ;;
    debug) step debug sh "$root/tests/meta/debug_kernels.sh" "$build" cuda --quick ;;
    sanitize) step sanitize "$attest" sanitize --device cuda --out "$out/sanitizer" ;;
    bench) step bench "$attest" bench --device cuda --grid canonical --all-variants \
        --seconds 0.3 ;;
    peers)
        step peers python3 "$root/python/peers.py" --lib "$build/libattn.so" --grid canonical \
            --variant all --json "$out/peers.json"
        ;;
    *) echo "prove_gpu.sh: step $one, expected one of the list in its head" >&2 && exit 2 ;;
    esac
done

[ -z "$failed" ] || echo "FAILED:$failed"
[ -z "$not_run" ] || echo "NOT RUN:$not_run"
[ -z "$failed" ] || exit 1
[ -z "$not_run" ] || exit 3
echo "every step passed: $steps"
