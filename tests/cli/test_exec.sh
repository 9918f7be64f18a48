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
cp "$here/data/exec/"* .

# What nvcc makes of the same arguments and the same files here is kept in $ATTN_KERNEL_CACHE. What
# it links from objects is not.
NVCC=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
export NVCC
cat >kept_nvcc <<'SCRIPT'
#!/bin/sh
out= before=
for word; do
    [ "$before" = -o ] && out=$word
    before=$word
done
case "$*" in *.o*) out= ;; esac
[ -n "$out" ] && [ -n "${ATTN_KERNEL_CACHE:-}" ] || exec "$NVCC" "$@"
kept=$ATTN_KERNEL_CACHE/program-$({
    echo "$@"
    "$NVCC" --version
    c++ --version
    cat "$0" ./*.cu* ./*.cpp
} | sha256sum | cut -c 1-32)
if [ ! -e "$kept" ]; then
    "$NVCC" "$@" || exit
    mkdir -p "$ATTN_KERNEL_CACHE" && cp "$out" "$kept.$$" && mv "$kept.$$" "$kept"
else
    cp "$kept" "$out"
fi
SCRIPT
chmod +x kept_nvcc
compile() { # attest nvcc ARGUMENT...
    CUDACXX=$work/kept_nvcc "$attest" nvcc "$@"
}
for name in good objects textures bugs; do
    if ! compile -std=c++17 -o $name $name.cu 2>stderr; then
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
for program in "objects pointers shapes heap" "textures plane memory deep surfaces"; do
    set -- $program
    accepts "$1" exec "./$1"
    shift
    for part in "$@"; do
        says "$part" "ok $part"
    done
done
accepts "without checks" exec --checks none --threads 1 ./good
"$attest" nvcc -std=c++17 -o arguments arguments.cu
for seed in 1 2 3 4; do
    run exec ./arguments $seed 300 # refused calls are warnings on stderr
    holds "random calls of the runtime, seed $seed" test "$code" -eq 0
    says "random calls, seed $seed" "ok arguments, "
done

# ---- bugs ------------------------------------------------------------------------------------

# finds BUG KIND LINE: exit code 1, and an error of this kind at this line or inlined there
finds() {
    run exec --report report.txt ./bugs "$1"
    holds "$1: exit code" test "$code" -eq 1
    holds "$1: kind and line" \
        sh -c "grep -A3 'error: $2: ' report.txt | grep -q 'bugs.cu:$3:'"
}
line_of() { grep -n "// $1" bugs.cu | cut -d: -f1; }
finds outside out-of-bounds "$(line_of 'i < n is missing')"
finds race race "$(line_of 'no __syncthreads')"
finds uninitialised uninitialised "$(line_of 'the host never')"
finds heap1 out-of-bounds "$(line_of 'past a block of malloc')"
finds heap2 use-after-free "$(line_of 'after free')"
finds heap3 use-after-free "$(line_of 'a second time')"
finds heap4 illegal-operand "$(line_of 'of cudaMalloc')"
finds call1 illegal-operand "$(line_of 'y is no function')"
finds image1 out-of-bounds "$(line_of 'the surface has 2 rows')"
finds image2 use-after-free "$(line_of 'outside, which is clamped')"
finds image3 illegal-operand "$(line_of 'outside, which is clamped')"
finds image4 uninitialised "$(line_of 'outside, which is clamped')"
# fails BUG TEXT: a call of the host that did not do its work, which the program does not notice
fails() {
    run exec --report report.txt ./bugs "$1"
    holds "$1: exit code" test "$code" -eq 0
    holds "$1: text" grep -q "warning: call-failed: $2" report.txt
}
fails host1 "cudaFree failed: "
fails host2 "cudaLaunchKernel of race with (1, 1, 1) CTAs of (64, 1, 1) threads and 100000 bytes"
fails host3 "cudaMemsetAsync failed: "
for right in heap0 call0 image0; do
    accepts "$right: no bug" exec ./bugs $right
done
run exec ./bugs outside
holds "a report on stderr" grep -q 'bugs.cu:.*error: out-of-bounds' stderr
accepts "no bug" exec ./bugs
accepts "the launch with the bug is not checked" exec --launch 2 ./bugs race
accepts "the kernel with the bug is not checked" exec --launch '^outs' ./bugs race
accepts "what an unchecked launch wrote is initialised" exec --launch 2 ./good
run exec --ctas 1 ./bugs later
holds "a CTA with a race is not in the sample" test "$code" -eq 0
run exec --ctas 2 ./bugs later
holds "it is in the sample" test "$code" -eq 1
holds "the report names the sample" grep -q 'a sample of 2 of 4 clusters' stderr
run exec --launch '^ra.e$' ./bugs race
holds "it is checked" test "$code" -eq 1

# ---- several modules, and the library of the toolkit --------------------------------------------

compile -rdc true -o linked linked_one.cu linked_two.cu 2>/dev/null
accepts "-rdc true" exec ./linked
for line in "ok linked" "one says 7" "two says 13"; do
    says "-rdc true: $line" "$line"
done
compile -dc linked_one.cu linked_two.cu 2>/dev/null
compile -o objects_linked linked_one.o linked_two.o 2>/dev/null
accepts "objects of -dc" exec ./objects_linked
says "objects of -dc" "ok linked"
compile -std=c++17 -rdc=true -o conditions conditions.cu
accepts "conditional nodes" exec ./conditions
for part in if switch while; do
    says "conditional nodes: $part" "ok $part"
done
run exec --first 1 ./conditions
says "the first launches only: a loop ends" "ok while"
compile -std=c++17 -o groups groups.cu 2>/dev/null
accepts "groups" exec ./groups
for part in groups pipeline barrier; do
    says "groups: $part" "ok $part"
done
compile -std=c++17 -o algorithms algorithms.cu 2>/dev/null
accepts "algorithms" exec ./algorithms
for part in sum scan "radix sort" select histogram "sort by key" unique "unique in place" \
    "reduce by key"; do
    says "algorithms: $part" "ok $part"
done

# ---- several streams ---------------------------------------------------------------------------

compile -std=c++17 -o streams streams.cu
for right in event host query pageable same legacy atomics copied graph graph-later capture; do
    accepts "streams: $right" exec ./streams $right
done
# unordered WAY LINE TEXT: race-stream at this line of streams.cu
unordered() {
    run exec --report report.txt ./streams "$1"
    holds "streams: $1: exit code" test "$code" -eq 1
    holds "streams: $1: line and text" \
        sh -c "grep 'streams.cu:$2:.* error: race-stream: .*$3' report.txt"
}
read_line=$(grep -n '// read' streams.cu | cut -d: -f1)
write_line=$(grep -n '// written' streams.cu | cut -d: -f1)
for wrong in nothing early other pinned; do
    unordered $wrong "$read_line" "a write by kernel write at streams.cu:$write_line"
done
unordered copy "$read_line" "a write by a copy, which was submitted before"
unordered back "$read_line" "a read by a copy, which was submitted later"
for wrong in graph-none capture-none; do
    unordered $wrong "$read_line" "kernel write at streams.cu:$write_line, another node of the graph"
done
VGPU_PROGRESS=1 run exec ./streams event
holds "on a terminal: nothing was found" grep -q '^vgpu: 0 errors, 0 warnings in [0-9]* thread' stderr
accepts "streams: without race checks" exec --checks memory ./streams nothing

# ---- programmatic dependent launches -----------------------------------------------------------

compile -std=c++17 -o dependent dependent.cu
for right in late one serial synchronized event cut; do
    accepts "dependent launches: $right" exec ./dependent $right
    says "dependent launches: $right" "ok $right"
done
# overlaps WAY LINE OTHER_LINE: race-pdl between these lines, and nothing else
overlaps() {
    run exec --report report.txt ./dependent "$1"
    holds "dependent launches: $1: exit code" test "$code" -eq 1
    holds "dependent launches: $1: lines" sh -c "grep -A6 'dependent.cu:$2:.* error: race-pdl: ' \
        report.txt | grep -q 'other access at .*dependent.cu:$3:'"
    holds "dependent launches: $1: nothing else" grep -q '^1 error, 0 warnings' report.txt
}
line_in() { grep -n "// $1" dependent.cu | cut -d: -f1; }
overlaps early "$(line_in 'reads x early')" "$(line_in 'writes x')"
overlaps graph "$(line_in 'reads x early')" "$(line_in 'writes x')"
overlaps chain "$(line_in 'reads x early')" "$(line_in 'writes x')"
overlaps warp "$(line_in 'only one warp')" "$(line_in 'writes x')"
overlaps write "$(line_in 'writes the table early')" "$(line_in 'writes x')"
holds "dependent launches: both kernels are named" \
    grep -q 'by the earlier kernel produce' report.txt

# ---- launches that repeat ----------------------------------------------------------------------

# launches FILE: how many ran, by the report
launches() { sed -n 's/.*"stats": {"launches": \([0-9]*\).*/\1/p' "$1"; }
compile -o repeats repeats.cu
for how in run reuse; do
    accepts "repeats: $how" exec --repeats $how --report $how.json ./repeats
    for part in equal counted "filled again" managed fewer; do
        says "repeats: $how: $part" "ok $part"
    done
    holds "repeats: $how: text" test "$(grep -c 'said 0' stdout)" -eq 20
done
holds "repeats: all run" test "$(launches run.json)" -eq 105
holds "repeats: results are used again" test "$(launches reuse.json)" -lt 75
holds "repeats: but none that differ" test "$(launches reuse.json)" -ge 55
run exec --first 2 --report first.json ./repeats
holds "the first launches only" test "$(launches first.json)" -eq 8
holds "the others count" grep -q 'FAIL counted' stdout
holds "the report says so" grep -q 'launch-left-out' first.json
run exec --first 0 ./bugs
holds "no launches" grep -q 'VGPU_FIRST = "0", expected' stderr

# ---- the driver's interface ------------------------------------------------------------------

compile -fatbin -o driver_kernels.fatbin driver_kernels.cu
compile -o driver driver.cpp -lcuda
accepts "a program of the driver's interface" exec ./driver
for part in contexts vectors fills textures links weak; do
    says "driver: $part" "ok $part"
done
holds "driver: no part failed" sh -c '! grep FAIL stdout'
run exec ./driver outside
holds "driver: a bug" grep -q \
    "driver_kernels.cu:$(grep -n 'past the end' driver_kernels.cu | cut -d: -f1).*out-of-bounds" stderr
holds "driver: the code of an error" sh -c '! grep FAIL stdout'
head -c $(($(wc -c <driver_kernels.fatbin) / 2)) driver_kernels.fatbin >half.fatbin
./kept_nvcc -fatbin -gencode arch=compute_90,code=sm_90 -o code.fatbin driver_kernels.cu
run exec ./driver refused
holds "driver: what is refused" sh -c '! grep FAIL stdout'
holds "driver: a name that two modules define" grep -q "'twice' is defined in more than one" stderr
holds "driver: half a fatbin" grep -q "not whole" stderr
holds "driver: a fatbin without PTX" grep -q "its PTX is missing" stderr
holds "driver: sRGB" grep -q "sRGB" stderr
run exec ./driver absent
holds "driver: a function that is not supported" grep -q 'cuMemAddressReserve is not supported' stderr
if compile -o compiled compiled.cpp -lnvrtc -lcuda 2>/dev/null; then
    accepts "NVRTC" exec ./compiled
    says "NVRTC" "ok compiled"
    run exec ./compiled bug
    holds "NVRTC: a bug" grep -q 'fill.cu:4:.*error: out-of-bounds' stderr
    VGPU_NVRTC=/absent run exec ./compiled
    holds "no NVRTC" grep -q 'NVRTC cannot be loaded' stderr
fi

# ---- what is not known -----------------------------------------------------------------------

run exec ./good strange
holds "the launch that reaches it fails" test "$code" -eq 1
holds "with the instruction and its line" \
    grep -q "good.cu:$(grep -n 'asm volatile' good.cu | cut -d: -f1).*error: unknown: .*multimem" stderr
holds "and nothing else" sh -c '! grep FAIL stdout'

./kept_nvcc -o static bugs.cu 2>/dev/null
refuses "the static runtime" "attest nvcc" exec ./static
./kept_nvcc -cudart shared -gencode arch=compute_90,code=compute_90 -o compressed bugs.cu 2>/dev/null
accepts "compressed PTX" exec ./compressed
run exec ./compressed race
holds "a bug in compressed PTX" grep -q 'error: race: ' stderr
./kept_nvcc -cudart shared -compress-mode=speed -gencode arch=compute_90,code=compute_90 \
    -o otherwise bugs.cu 2>/dev/null
run exec ./otherwise race
holds "PTX that is compressed otherwise is refused" grep -q 'compile it with attest nvcc' stderr
finish
