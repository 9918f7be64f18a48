#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_check.sh SOURCE_DIR BUILD_DIR
#
# `attest check` on small kernels of tests/data/check: each bug is found with its kind and line, the
# right kernels are clean, arguments and expectations are those given, refusals are sentences;
# and `--device vgpu`. Only what compiles a .cu needs nvcc.
set -u
. "$(dirname "$0")/cli.sh"
unset VGPU_ASYNC VGPU_SEED VGPU_THREADS VGPU_SM VGPU_CHECKS VGPU_REPORT
export XDG_CACHE_HOME="$work/.cache"

# Where the build left it out, that is what it says.
if "$attest" devices | grep -q '^vgpu  *not available: .*not built in'; then
    run check kernels.ptx --list
    holds "not built in is exit 3" test "$code" -eq 3
    holds "not built in is said" grep -q 'not built in' stderr
    run plan --device vgpu
    holds "no device vgpu is exit 3" test "$code" -eq 3
    finish
fi

cp "$here/data/check/"*.ptx "$here/data/check/"*.cu .

# finds NAME KIND FILE:LINE words...: exit code 1, and an error of this kind at this line.
finds() {
    name=$1
    kind=$2
    place=$3
    shift 3
    run check "$@"
    if [ "$code" -ne 1 ]; then
        bad "$name" "exit code $code, expected 1"
    elif ! grep -q "^[^ ]*$place:.*error: $kind: " stdout; then
        bad "$name" "no error of kind $kind at $place"
        sed 's/^/     /' stdout | head -5
    elif ! one_line_of_complaint; then
        bad "$name" "not one line of complaint"
    else
        ok
    fi
}

# ---- bugs ------------------------------------------------------------------------------------

finds "race" race race.cu:8 race.ptx --grid 4 --block 128 --arg buf:f32:512:rand \
    --arg buf:f32:4:uninit
says "the summary" "check: 1 error, "
says "the other access" "other access at race.cu:8"
accepts "a suppressed race" check race.ptx --grid 4 --block 128 --arg buf:f32:512:rand \
    --arg buf:f32:4:uninit --suppress race@race.cu:8
finds "a suppression of another line" race race.cu:8 race.ptx --grid 4 --block 128 \
    --arg buf:f32:512:rand --arg buf:f32:4:uninit --suppress race@race.cu:9
finds "out of bounds" out-of-bounds kernels.cu:11 kernels.ptx --entry axpy --grid 2 --block 64 \
    --arg buf:f32:128:iota --arg buf:f32:100:zero --arg f32:2
says "the buffer that was missed" "argument 1"
accepts "within bounds" check kernels.ptx --entry axpy --grid 2 --block 64 \
    --arg buf:f32:128:iota --arg buf:f32:128:zero --arg f32:2
finds "uninitialised argument" 'uninit[a-z-]*' kernels.cu:11 kernels.ptx --entry axpy --grid 1 \
    --block 32 --arg buf:f32:32:iota --arg buf:f32:32:uninit --arg f32:2
finds "uninitialised shared memory" 'uninit[a-z-]*' kernels.cu:26 kernels.ptx \
    --entry uninitialised --grid 1 --block 32 --arg buf:i32:32:zero
finds "no wait, at any order" async-read-early kernels.cu:36 kernels.ptx --entry no_wait --grid 1 \
    --block 32 --async all --arg buf:i32:32:iota --arg buf:i32:32:zero
finds "deadlock" deadlock kernels.cu:42 kernels.ptx --entry deadlock --grid 1 --block 64 \
    --arg buf:i32:64:zero
finds "steps are limited" steps kernels.cu:17 kernels.ptx --entry _ZN6shapes4copyIh --grid 1 \
    --block 32 --max-steps 50 --arg buf:u8:4096:iota --arg buf:u8:4096:zero --arg i64:4096

# ---- arguments and expectations --------------------------------------------------------------

copy_bytes="kernels.ptx --entry _ZN6shapes4copyIh --grid 1 --block 32"
copy_doubles="kernels.ptx --entry _ZN6shapes4copyId --grid 1 --block 32"
# shellcheck disable=SC2086 # words
{
    accepts "dump" check $copy_bytes --arg buf:u8:300:iota --arg buf:u8:300:uninit \
        --arg i64:300 --dump 0:from.npy --dump 1:to.npy
    same "the dump of a copy" from.npy to.npy
    holds "its type" grep -q "'descr': '|u1'.*'shape': (300,)" to.npy
    accepts "expected" check $copy_bytes --arg buf:u8:300:@from.npy --arg buf:u8:300:uninit \
        --arg i64:300 --expect 1:from.npy:0
    says "what was expected is met" "met; worst is element 0"
    run check $copy_bytes --arg buf:u8:300:@from.npy --arg buf:u8:300:zero --arg i64:299 \
        --expect 1:from.npy:0
    holds "a missed element is exit 1" test "$code" -eq 1
    says "the worst element" "MISSED by 1 elements; worst is element 299: 0, expected 43, off by 43"
    accepts "a tolerance" check $copy_bytes --arg buf:u8:300:@from.npy --arg buf:u8:300:zero \
        --arg i64:299 --expect 1:from.npy:43
    accepts "doubles" check $copy_doubles --arg buf:f64:64:rand:7 --arg buf:f64:64:uninit \
        --arg i64:64 --dump 1:seven.npy
    accepts "the same seed" check $copy_doubles --arg buf:f64:64:rand:7 --arg buf:f64:64:uninit \
        --arg i64:64 --expect 1:seven.npy:0
    run check $copy_doubles --arg buf:f64:64:rand:8 --arg buf:f64:64:uninit --arg i64:64 \
        --expect 1:seven.npy:1e-9
    holds "another seed" test "$code" -eq 1
    # 0 / 0 of an axpy: NaN is not even NaN.
    accepts "NaN is no error" check kernels.ptx --entry axpy --grid 1 --block 4 \
        --arg buf:f32:4:zero --arg buf:f32:4:zero --arg f32:nan --dump 1:nan.npy
    run check kernels.ptx --entry axpy --grid 1 --block 4 --arg buf:f32:4:zero \
        --arg buf:f32:4:zero --arg f32:nan --expect 1:nan.npy:inf
    holds "NaN never passes" test "$code" -eq 1
    refuses "too few arguments" "takes 3 parameters, and 2 --arg are given" check $copy_bytes \
        --arg buf:u8:300:iota --arg buf:u8:300:uninit
    refuses "a number for a pointer" "argument 1): a i32 of 4 bytes, but parameter 1 of" check \
        $copy_bytes --arg buf:u8:300:iota --arg i32:1 --arg i64:300
    refuses "a file of another type" "holds uint8, expected float64 for f64" check $copy_doubles \
        --arg buf:f64:300:@from.npy --arg buf:f64:300:zero --arg i64:300
    refuses "a file of another size" "holds 300 elements, expected 301" check $copy_bytes \
        --arg buf:u8:301:@from.npy --arg buf:u8:301:zero --arg i64:300
    for wrong in "u8:256|256 is out of the range of u8" "i32:1.5|'1.5' is not a whole number" \
        "f16:70000|70000 is out of the range of f16" "i8:-129|-129 is out of the range of i8" \
        "f33:1|'f33', expected buf, tmap, struct, bytes, ptr, ptrs, numba or one of f32" \
        "i32|it ends after its type" \
        "buf:f32:0:zero|0 elements of f32" "buf:f32:9999999999:zero|expected 1 or more in at most" \
        "buf:f32:8:fun|fill 'fun', expected zero" "buf:f32:8:rand:x|seed 'x'" \
        "buf:f32:8:@absent.npy|absent.npy: No such file" "buf:f32:x:zero|count 'x'" \
        "tmap:f32:64x16:256:32:none:iota|2 dims, 1 strides and a box of 1" \
        "tmap:i8:64::32:none:iota|tensor maps have no type i8" \
        "tmap:f32:64x16:256:32x8:96:iota|swizzle '96'"; do
        refuses "--arg ${wrong%%|*}" "${wrong##*|}" check $copy_bytes --arg "${wrong%%|*}"
    done
    refuses "no such argument" "argument 3 of the 3" check $copy_bytes --arg buf:u8:3:zero \
        --arg buf:u8:3:zero --arg i64:3 --dump 3:x.npy
    refuses "a number has no elements" "argument 2 is a number" check $copy_bytes \
        --arg buf:u8:3:zero --arg buf:u8:3:zero --arg i64:3 --expect 2:from.npy:0
    refuses "no tolerance" "expected N:file.npy:ATOL" check $copy_bytes --arg buf:u8:300:zero \
        --expect 0:from.npy
}

box="tensor.ptx --grid 1 --block 32 --arg buf:f32:256:uninit"
# shellcheck disable=SC2086 # words
{
    accepts "tensor map" check tensor.ptx --grid 1 --block 32 \
        --arg tmap:f32:64x16:256:32x8:none:iota --arg buf:f32:256:uninit --async all --dump 1:b.npy
    accepts "a padded tensor" check tensor.ptx --grid 1 --block 32 \
        --arg tmap:f32:64x16:512:32x8:128:iota --arg buf:f32:256:uninit --dump 0:padded.npy
    holds "padding is in the buffer" grep -q "'<f4'.*'shape': (2048,)" padded.npy
    # Row 8 from column 32: 8 * 64 + 32; the bytes of 544.0f.
    holds "the box" test "$(tail -c 1024 b.npy | od -An -tx1 -N4 | tr -d ' ')" = 00000844
    refuses "a stride that no tensor map has" "argument 0): " check tensor.ptx --grid 1 --block 32 \
        --arg tmap:f32:64x16:260:32x8:none:iota --arg buf:f32:256:uninit
    refuses "sm_90a on sm_80" "does not run on sm_80" check $box --sm 80
}

# ---- entries, usage, reports -----------------------------------------------------------------

accepts "list" check kernels.ptx --list
says "its C++ name" "(shapes::copy<double>(double const*, double*, long long))"
says "its parameters" "3 parameters of 8, 8, 4 bytes"
accepts "the only entry" check race.ptx --list --json
says "list as JSON" '"demangled": "sum"'
refuses "several entries" "expected --entry to name one" check kernels.ptx --grid 1 --block 1
refuses "two that fit" "expected one kernel" check kernels.ptx --entry shapes::c --grid 1 --block 1
refuses "none that fits" "no kernel begins with 'nothing'" check kernels.ptx --entry nothing \
    --grid 1 --block 1
refuses "no file" "KERNEL.cu|KERNEL.ptx is missing" check --grid 1 --block 1
refuses "two files" "is given twice" check a.ptx b.ptx
refuses "an absent file" "absent.ptx" check absent.ptx --list
refuses "another kind of file" "expected a file whose name ends with .cu or .ptx" check x.o --list
refuses "no grid" "--grid is missing" check kernels.ptx --entry prints --block 1
refuses "a grid of 0" "--grid: '0'" check kernels.ptx --entry prints --grid 0 --block 1
refuses "a block of four" "--block: '1,1,1,1'" check kernels.ptx --entry prints --grid 1 \
    --block 1,1,1,1
refuses "too large a block" "2048" check kernels.ptx --entry prints --grid 1 --block 2048
refuses "too much shared memory" "expected at most" check kernels.ptx --entry prints --grid 1 \
    --block 1 --smem 300000
refuses "an unknown order" "'soon' is not one of eager" check kernels.ptx --entry prints --grid 1 \
    --block 1 --async soon
refuses "both reports" "expected one of them" check kernels.ptx --list --json --sarif
refuses "half a suppression" "expected kind@file:line" check kernels.ptx --list --suppress race

printf '.version 8.0\n.target sm_80\n.address_size 64\n.entry k() { frobnicate.u32 %%r1; }\n' >bad.ptx
run check bad.ptx --list
holds "unknown PTX is exit 2" test "$code" -eq 2
holds "its line" grep -q 'attest: check: bad.ptx: PTX line 4' stderr
holds "its caret" grep -q '^ *^' stderr

accepts "printf" check kernels.ptx --entry prints --grid 1 --block 2
says "what it prints" "thread 1"
if command -v python3 >/dev/null; then
    run check kernels.ptx --entry prints --grid 1 --block 2 --json
    holds "what a kernel prints is not in the JSON" python3 -m json.tool stdout /dev/null
    run check race.ptx --grid 4 --block 128 --arg buf:f32:512:rand --arg buf:f32:4:uninit --json
    holds "JSON" python3 -c 'import json
o = json.load(open("stdout"))
assert not o["check"]["passed"] and o["report"]["errors"] == 1, o
assert o["report"]["findings"][0]["kind"] == "race", o'
    run check race.ptx --grid 4 --block 128 --arg buf:f32:512:rand --arg buf:f32:4:uninit --sarif
    holds "SARIF" python3 -c 'import json
o = json.load(open("stdout"))
assert o["runs"][0]["results"][0]["ruleId"] == "race", o'
else
    skipped json "no python3"
fi

# ---- nvcc ------------------------------------------------------------------------------------

CUDACXX=/nonexistent/nvcc "$attest" check race.cu --list >stdout 2>stderr
holds "no nvcc is exit 3" test $? -eq 3
holds "no nvcc is said" grep -q "not run: nvcc: .CUDACXX = /nonexistent/nvcc" stderr
if command -v nvcc >/dev/null; then
    finds "race in CUDA" race race.cu:8 race.cu --grid 4 --block 128 --arg buf:f32:512:rand \
        --arg buf:f32:4:uninit
    holds "a file is named from here" grep -q '^race.cu:8' stdout
    accepts "tensor map in CUDA" check tensor.cu --grid 1 --block 32 \
        --arg tmap:f32:64x16:256:32x8:none:iota --arg buf:f32:256:uninit --expect 1:b.npy:0
    echo '__global__ void k() { nonsense }' >wrong.cu
    run check wrong.cu --list
    holds "CUDA that does not compile is exit 2" test "$code" -eq 2
    holds "nvcc's words" grep -q 'nonsense' stderr
    holds "whose fault it is" grep -q 'attest: check: wrong.cu: nvcc did not compile it' stderr
else
    skipped nvcc "no nvcc"
fi

# ---- the virtual GPU as a device -------------------------------------------------------------

accepts "devices" devices
says "vgpu is a device" "vgpu (virtual sm_90)"
refuses "--async is for vgpu" "--async: " parity --device cpu --quick --async fifo
refuses "vgpu has its own driver" "vgpu brings its own" plan --device vgpu --driver x.so
run plan --device vgpu
if [ "$code" -eq 3 ]; then
    skipped kernels "the build has none for GPUs"
else
    accepts "parity" parity --device vgpu --variant 'fwd_wmma.*_fp16_d64_32x64_w4_s2$' --seed 7 \
        --case 11 --async all
    says "parity passes" "0 of 1 cases failed"
    refuses "parity in no such order" "'soon' is not one of" parity --device vgpu --seed 7 --case 1 \
        --async soon
fi
finish
