#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_check_args.sh SOURCE_DIR BUILD_DIR
#
# `attest check`: arguments of every form, variables of the module, sweeps over shapes, C++ names,
# where findings point, the cache of PTX and --watch. Only what compiles a .cu needs nvcc.
set -u
. "$(dirname "$0")/cli.sh"
unset VGPU_ASYNC VGPU_SEED VGPU_THREADS VGPU_SM VGPU_CHECKS VGPU_REPORT NVCC_APPEND_FLAGS
export XDG_CACHE_HOME="$work/.cache"

if "$attest" devices | grep -q '^vgpu  *not available: .*not built in'; then
    skipped all "no virtual GPU in this build"
    finish
fi
cp "$here/data/check/"*.ptx "$here/data/check/"*.cu .

# numbers FILE: the elements of a .npy of float32 or int32, from the first to the fourth.
numbers() {
    tail -c 128 "$1" | od -An -t "$2"4 -N16 | tr -s ' ' | sed 's/^ //'
}

# ---- names and types -------------------------------------------------------------------------

one="args.ptx --grid 1 --block 32"
# shellcheck disable=SC2086 # words
{
accepts "list" check args.ptx --list
says "a signature" "(ring<64, float>(float const*, float*, int))"
says "types" "3 parameters of 8, 8, 4 bytes: u64, u64, u32"
says "a struct" "2 parameters of 40, 8 bytes: b8[40], u64"
accepts "list as JSON" check args.ptx --list --json
says "a signature in JSON" '"signature": "by_pointers(float* const*, int, float*)"'
ring="--arg buf:f32:64:rand --arg buf:f32:64:uninit --arg i32:64"
accepts "an entry by its template arguments" check $one --entry "ring<32,float>" $ring
accepts "with blanks" check $one --entry "ring< 32, float" $ring
refuses "two of them" "is ring<32, float>(float const*, float*, int) and ring<32, int>" check $one \
    --entry "ring<32," $ring
refuses "none of them" "no kernel begins with 'ring<32,float,1>'" check $one \
    --entry "ring<32,float,1>" $ring

# ---- arguments -------------------------------------------------------------------------------

first="struct:buf:f32:32:const:2,buf:f32:32:uninit,i32:32,f32:0.5,i8:3,f64:0.25"
second="ptr:struct:buf:f32:32:iota,buf:f32:32:uninit,i32:32,f32:2,i8:0,f64:0"
accepts "structs, a pointer to one, variables" check $one --entry by_struct --arg "$first" \
    --arg "$second" --symbol factors=f32:const:3 --symbol launches=const:41 --async all \
    --dump 0.1:first.npy --dump 1.0.1:second.npy
holds "a struct is laid out as in C" test "$(numbers first.npy f)" = "41 4.25 4.25 4.25"
holds "what it points to" test "$(numbers second.npy f)" = "0 6 12 18"
accepts "an expectation of a part" check $one --entry by_struct --arg "$first" --arg "$second" \
    --symbol factors=f32:const:3 --symbol launches=const:41 --expect 0.1:first.npy:0
run check $one --entry by_struct --arg "$first" --arg "$second" --symbol factors=f32:const:4 \
    --expect 1.0.1:second.npy:0.1
holds "another factor is exit 1" test "$code" -eq 1
says "the part" "expect argument 1.0.1: second.npy: MISSED by 31 elements"
accepts "an array of pointers" check $one --entry by_pointers --arg ptrs:3:buf:f32:32:iota \
    --arg i32:3 --arg buf:f32:32:uninit --dump 2:sums.npy
holds "their sum" test "$(numbers sums.npy f)" = "0 3 6 9"
run check $one --entry by_pointers --arg ptrs:3:buf:f32:16:iota --arg i32:3 --arg buf:f32:32:uninit
says "a buffer of an array" 'after "argument 0.0" (64 bytes)'
accepts "a pointer to a tensor map" check $one --entry by_map \
    --arg ptr:tmap:i32:64::32:none:iota --arg buf:i32:32:uninit --async all --dump 1:box.npy
holds "its box" test "$(numbers box.npy d)" = "32 33 34 35"
accepts "bytes" check $one --entry "ring<32,int>" --arg buf:i32:32:rand:7..7 \
    --arg buf:i32:32:uninit --arg bytes:20000000 --dump 1:seven.npy
holds "a range" test "$(numbers seven.npy d)" = "7 7 7 7"
run check $one --entry "ring<32,float>" --arg numba:f32:4x8:zero --arg i32:1
holds "numba's arrays are several parameters" grep -q 'takes 3 parameters, and 10 values are' stderr
accepts "an array of numba" check numba.ptx --grid 1 --block 32 --arg numba:f32:4x8:iota \
    --arg numba:f32:32:uninit --arg i32:8 --dump 1.4:copied.npy
holds "its data and its strides" test "$(numbers copied.npy f)" = "0 8 16 24"
accepts "PTX of Triton" check triton.ptx --grid 2 --block 128 --smem 16 --arg buf:f32:200:rand \
    --arg buf:f32:200:uninit --arg i32:100 --arg u64:0 --arg u64:0 --async all
run check triton.ptx --grid 2 --block 128 --smem 16 --arg buf:f32:200:rand \
    --arg buf:f32:199:uninit --arg i32:100 --arg u64:0 --arg u64:0
says "its line in Python" "kernels.py:21:"
for wrong in "struct:i32:1,f33:2|argument 0.1: 'f33', expected buf" \
    "ptrs:0:buf:f32:1:zero|0 pointers, expected 1 to" "ptrs:2:i32:1|argument 0.0 is no pointer" \
    "bytes:123|expected two hexadecimal digits" "buf:f32:8:const:x|'x' is not a number" \
    "buf:u8:8:const:256|256 is out of the range of u8" "buf:i32:8:rand:5..4|the smaller one first" \
    "buf:i32:8:rand:1..|is not a whole number" \
    "ptr:ptr:ptr:ptr:ptr:ptr:ptr:ptr:ptr:ptr:i32:1|more than 8 deep" "ptr|it ends after its ptr" \
    "ptr:numba:f32:1:zero|numba:... is no part" "numba:f32:4y:zero|dims ends with 'y'"; do
    refuses "--arg ${wrong%%|*}" "${wrong##*|}" check $one --entry by_map --arg "${wrong%%|*}"
done
refuses "a struct of other bytes" "a struct of 32 bytes, but parameter 0 of" check $one \
    --entry by_struct --arg struct:buf:f32:8:zero,buf:f32:8:zero,i32:1,f32:1,i8:1 --arg "$second"
refuses "no such variable" "the module has no variable absent" check $one --entry by_struct \
    --arg "$first" --arg "$second" --symbol absent=zero
refuses "a variable of bytes" "expected NAME=TYPE:FILL" check $one --entry by_struct \
    --arg "$first" --arg "$second" --symbol factors=zero
refuses "a part that is a number" "argument 0.2 is a number" check $one --entry by_struct \
    --arg "$first" --arg "$second" --dump 0.2:x.npy

# ---- sweeps ----------------------------------------------------------------------------------

sweep="args.ptx --grid 1 --block 32 --entry ring<32,float> --arg buf:f32:N:rand"
accepts "a sweep" check $sweep --arg buf:f32:N:uninit --arg i32:N --sweep N=16..160:16
run check $sweep --arg buf:f32:N:uninit --arg i32:N --sweep N=150..170
holds "a sweep that fails is exit 1" test "$code" -eq 1
says "the smallest that fails" "sweep: fails at N=161"
holds "on stderr, too" grep -q 'ring<32, float>: 2 errors, at N=161' stderr
says "where" "args.cu:"
run check $sweep --arg buf:f32:N:uninit --arg i32:N --sweep N=1,200,2 --json
says "in JSON" '"fails_at": "N=200"'
run check args.ptx --entry "ring<32,float>" --grid '(N+31)/32-(N-1)/32' --block 32*M \
    --smem '(N+M)*4' --arg 'buf:f32:(N*M):rand' --arg buf:f32:N*M:uninit --arg i32:N*M \
    --sweep M=1..2 --sweep N=40,180
says "two variables, the last one first" "sweep: fails at M=1, N=180"
for wrong in "n=1..3|expected NAME=VALUES" "N=3..1|expected LOW..HIGH" "N=1..3:0|expected LOW" \
    "N=1..99999|more than 4096 values" "N=1,|expected LOW..HIGH" "N|expected NAME=VALUES"; do
    refuses "--sweep ${wrong%%|*}" "${wrong##*|}" check $sweep --arg buf:f32:N:uninit --arg i32:N \
        --sweep "${wrong%%|*}"
done
refuses "a division by 0" "'N/(N-1)' is no whole number" check $sweep --arg 'buf:f32:N/(N-1):zero' \
    --arg i32:N --sweep N=1..2
}

# ---- nvcc ------------------------------------------------------------------------------------

if ! command -v nvcc >/dev/null; then
    skipped nvcc "no nvcc"
    finish
fi
cat >cas.h <<'END'
template <typename T> __device__ void add(T *to, T value) { atomicAdd(to, value); }
END
cat >places.cu <<'END'
#include <cuda_bf16.h>
#include "cas.h"
extern "C" __global__ void places(float *out, const float *in, __nv_bfloat162 *sum, int at) {
    __shared__ float tile[64];
    tile[threadIdx.x] = in[threadIdx.x];
    const float next = tile[threadIdx.x + 1] * 2.0f;
    out[blockIdx.x * 32 + threadIdx.x] = threadIdx.x == 31
                           ? next + 1.0f
                           : 0.0f;
    add(sum + at, __float2bfloat162_rn(1.0f));
}
END
places="places.cu --grid 2 --block 32 --arg buf:f32:64:uninit --arg buf:f32:32:rand"
# shellcheck disable=SC2086 # words
{
run check $places --arg buf:bf16:2:zero --arg i32:1
holds "the toolkit's line is not the place" grep -q '^cas.h:1:[0-9]*: error: out-of-bounds' stdout
holds "the chain below it" grep -q '^    at .*cuda_bf16.hpp:[0-9:]*, in atomicAdd$' stdout
holds "the chain above it" grep -q '^    in add<__nv_bfloat162>, inlined at places.cu:10' stdout
says "where a value was read" 'uninitialised memory: shared "tile" + 128, read at places.cu:6'
holds "that place" grep -q '^    read at places.cu:6:' stdout
run check $places --arg buf:bf16:2:zero --arg i32:1 --sarif
if command -v python3 >/dev/null; then
    holds "the places in SARIF" python3 -c 'import json
found = json.load(open("stdout"))["runs"][0]["results"]
places = {(r["ruleId"], r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
          for r in found}
assert ("out-of-bounds", "cas.h") in places and ("uninitialised", "places.cu") in places, places
assert any("read" in l["message"]["text"] for r in found for l in r["relatedLocations"]), found'
fi
run check $places --arg buf:bf16:2:zero --arg i32:0 --suppress uninitialised@places.cu
holds "the seed of a CAS is no race" test "$code" -eq 0

# The cache: a file for the source, that counts until the source or its header changes.
kept() { find .cache/attest -type f | wc -l; }
holds "PTX is kept" test "$(kept)" -eq 1
CUDACXX=$(command -v nvcc)
export CUDACXX
sed -i 's/^\/\/ Cuda compilation.*/&, kept/' .cache/attest/*
run check $places --arg buf:bf16:2:zero --arg i32:0
holds "and used" grep -q ', kept' .cache/attest/*
echo '// changed' >>cas.h
run check $places --arg buf:bf16:2:zero --arg i32:0
holds "not after a change of a header" sh -c '! grep -q ", kept" .cache/attest/*'
echo 'broken' >.cache/attest/"$(ls .cache/attest)"
run check $places --arg buf:bf16:2:zero --arg i32:0 --suppress uninitialised@places.cu
holds "a broken file of the cache is no failure" test "$code" -eq 0

# --sm is what is compiled for, and emulated.
cat >sm.cu <<'END'
#if __CUDA_ARCH__ == 860
__device__ int yes;
#endif
__global__ void k() { yes = 1; }
END
accepts "--sm is the target" check sm.cu --grid 1 --block 32 --sm 86
refuses "--sm is the GPU" "expected at most 101376" check sm.cu --grid 1 --block 32 --sm 86 \
    --smem 102400
printf '#define CLUSTER asm volatile("barrier.cluster.arrive;barrier.cluster.wait;")\n' >newest.h
printf '#include "newest.h"\n__global__ void k() { CLUSTER; }\n' >newest.cu
accepts "what a header needs" check newest.cu --grid 1 --block 32
printf '__global__ void __cluster_dims__(2, 1, 1) k() {}\n' >clusters.h
printf '#include "clusters.h"\n' >clusters.cu
accepts "what nvcc says that a header needs" check clusters.cu --grid 2 --block 32

# --watch: a second report after the source changed.
"$attest" check newest.cu --grid 1 --block 32 --watch >watched 2>&1 &
watcher=$!
waits_for() { # COUNT
    for _ in $(seq 1 300); do
        [ "$(grep -c 'waiting for newest.cu to change' watched)" -ge "$1" ] && return 0
        sleep 0.1
    done
    return 1
}
holds "--watch waits" waits_for 1
printf '#define CLUSTER trap()\nstatic __device__ void trap() { __trap(); }\n' >newest.h
holds "--watch runs again" waits_for 2
kill "$watcher"
wait "$watcher" 2>/dev/null
holds "with what is there now" grep -q 'newest.h:2:.*error: trap' watched
}
finish
