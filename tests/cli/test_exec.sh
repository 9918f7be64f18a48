#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_exec.sh SOURCE_DIR BUILD_DIR
#
# `attest nvcc` and `attest exec` on the programs of tests/data/exec: what programs ask of the CUDA
# runtime works, planted bugs are found with their kind and line, and an instruction that is not
# known fails the launch that reaches it and no other. What cannot run is refused with a sentence.
set -u
. "$(dirname "$0")/cli.sh"
unset VGPU_ASYNC VGPU_SEED VGPU_THREADS VGPU_SM VGPU_CHECKS VGPU_REPORT VGPU_LAUNCH VGPU_EXIT_CODE

run exec true
if [ "$code" -eq 3 ]; then
    holds "not built in is said" grep -q 'not built in' stderr
    finish
fi
holds "a program without CUDA" test "$code" -eq 0
run exec sh -c 'exit 7'
holds "the program's own exit code" test "$code" -eq 7
refuses "no program" "PROGRAM" exec
refuses "no such program" "./absent" exec ./absent
refuses "a wrong option" "--order" exec --order fifo ./absent

[ -e "$2/vgpu/libcudart.so.13" ] || { bad "runtime" "no libcudart.so.13 in $2/vgpu" && finish; }
if nm -D "$2/libvgpu.so" 2>/dev/null | grep -q -E '__[at]san_init'; then
    skipped sanitizer "a program without it cannot load libvgpu.so"
    finish
fi
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    skipped nvcc "no nvcc"
    finish
fi
cp "$here/data/exec/"*.cu .
for name in good bugs; do
    if ! "$attest" nvcc -std=c++17 -o $name $name.cu 2>stderr; then
        skipped nvcc "$(head -1 stderr)"
        finish
    fi
done

# ---- what is right ---------------------------------------------------------------------------

accepts "a program that is right" exec ./good
for part in vectors templates reduction variables streams cooperation boxes device errors graphs; do
    says "$part" "ok $part"
done
says "printf in a kernel" "thread 1 of a kernel says 42 and 0.25"
holds "no part failed" sh -c '! grep FAIL stdout'
accepts "without checks" exec --checks none --threads 1 ./good

# ---- bugs ------------------------------------------------------------------------------------

# finds BUG KIND LINE: exit code 1, and an error of this kind at this line
finds() {
    run exec --report report.txt ./bugs "$1"
    holds "$1: exit code" test "$code" -eq 1
    holds "$1: kind and line" grep -q "bugs.cu:$3:.*error: $2: " report.txt
}
line_of() { grep -n "// $1" bugs.cu | cut -d: -f1; }
finds outside out-of-bounds "$(line_of 'i < n is missing')"
finds race race "$(line_of 'no __syncthreads')"
finds uninitialised uninitialised "$(line_of 'the host never')"
run exec ./bugs outside
holds "a report on stderr" grep -q 'bugs.cu:.*error: out-of-bounds' stderr
accepts "no bug" exec ./bugs
accepts "the launch with the bug is not checked" exec --launch 2 ./bugs race
accepts "the kernel with the bug is not checked" exec --launch '^outs' ./bugs race
run exec --launch '^ra.e$' ./bugs race
holds "it is checked" test "$code" -eq 1

# ---- what is not known -----------------------------------------------------------------------

run exec ./good strange
holds "the launch that reaches it fails" test "$code" -eq 1
holds "with the instruction and its line" \
    grep -q "good.cu:$(grep -n 'asm volatile' good.cu | cut -d: -f1).*error: unknown: .*vadd" stderr
holds "and nothing else" sh -c '! grep FAIL stdout'

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
"$nvcc" -o static bugs.cu 2>/dev/null
refuses "the static runtime" "attest nvcc" exec ./static
"$nvcc" -cudart shared -gencode arch=compute_90,code=compute_90 -o compressed bugs.cu 2>/dev/null
run exec ./compressed race
holds "compressed PTX is refused" grep -q 'compressed: compile it by attest nvcc' stderr
finish
