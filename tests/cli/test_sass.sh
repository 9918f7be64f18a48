#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_sass.sh - proves the opcodes that the gates of `attest inspect` rely on: compiles PTX that
# holds a known number of one instruction for each architecture, and expects as many in the table.
#
# Two numbers for each, so that a count which is right by chance does not pass. Needs ptxas.
#
# usage: test_sass.sh ATTEST, or SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

PATH=$PATH:/usr/local/cuda/bin
if ! command -v ptxas >/dev/null; then
    skipped ptxas "there is none"
    finish
fi

# list FORMAT COUNT: "FORMAT(0),FORMAT(1),..." with %d replaced
list() {
    i=0
    while [ $i -lt "$2" ]; do
        [ $i -eq 0 ] || printf ','
        printf "$1" $i
        i=$((i + 1))
    done
}

# repeat COUNT LINE: the line that often, with # replaced by 0, 1, ... and @ by 16 times that.
repeat() {
    awk -v count="$1" -v line="$2" 'BEGIN {
        for (i = 0; i < count; i++) {
            copy = line
            gsub(/#/, i, copy)
            gsub(/@/, 16 * i, copy)
            print copy
        }
    }'
}

# ptx ARCH: a kernel whose body is on stdin. %p points at global memory; what is unknown to ptxas,
# so that it can leave out nothing: %f and %x (0 to 31), %d (0 to 15), %g (0 to 3).
ptx() {
    printf '.version 8.0\n.target %s\n.address_size 64\n.visible .entry e(.param .u64 where)\n{\n' "$1"
    printf '.reg .b64 %%p, %%d<32>; .reg .f32 %%f<64>; .reg .b32 %%x<64>, %%i, %%s; .reg .f64 %%g<4>;\n'
    printf '.reg .pred %%t; .local .align 16 .b8 frame[1024]; .shared .align 16 .b8 tile[1024];\n'
    printf 'ld.param.u64 %%p, [where]; cvta.to.global.u64 %%p, %%p; setp.ne.b32 %%t, 1, 0;\n'
    repeat 32 'ld.volatile.global.f32 %f#, [%p+@]; ld.volatile.global.u32 %x#, [%p+@];'
    repeat 16 'ld.volatile.global.u64 %d#, [%p+@];'
    repeat 4 'ld.volatile.global.f64 %g#, [%p+@];'
    cat
    repeat 32 'st.volatile.global.f32 [%p+@], %f#; st.volatile.global.u32 [%p+@], %x#;'
    repeat 4 'st.volatile.global.f64 [%p+@], %g#;'
    printf 'ret;\n}\n'
}

# expect NAME ARCH COLUMN EACH MORE COUNT LINE: COUNT times LINE gives EACH x COUNT + MORE in the column
# of the table: 6 local, 7 tensor.
expect() {
    { [ -z "$before" ] || echo "$before"; repeat "$6" "$7"; [ -z "$after" ] || echo "$after"; } |
        ptx "$2" >case.ptx
    if ! ptxas -arch="$2" case.ptx -o case.cubin 2>stderr; then
        bad "$1 on $2" "ptxas refused it"
        return
    fi
    run inspect --image case.cubin
    holds "$1 on $2: $6" [ "$(awk -v n="$3" '$1 == "e" { print $n }' stdout)" -eq $(($4 * $6 + $5)) ]
}

# both NAME ARCHS COLUMN EACH MORE LINE
both() {
    for arch in $2; do
        expect "$1" "$arch" "$3" "$4" "$5" 5 "$6"
        expect "$1" "$arch" "$3" "$4" "$5" 7 "$6"
    done
}
local=6 tensor=7

before='' after=''
all='sm_80 sm_90 sm_90a'
f4='{%f0,%f1,%f2,%f3}' a4='{%x0,%x1,%x2,%x3}' b2='{%x4,%x5}' c4='{%x8,%x9,%x10,%x11}'
both mma_f16 "$all" $tensor 1 0 \
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 $f4, $a4, $b2, $f4;"
both mma_bf16 "$all" $tensor 1 0 \
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 $f4, $a4, $b2, $f4;"
both mma_tf32 "$all" $tensor 1 0 \
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 $f4, $a4, $b2, $f4;"
f8="{$(list '%%f%d' 8)}"
both wmma_f16 "$all" $tensor 2 0 \
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 $f8, {$(list '%%x%d' 8)}, {$(list '%%x%d' 8)}, $f8;"
both wmma_bf16 "$all" $tensor 2 0 \
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32 $f8, $a4, {%x4,%x5,%x6,%x7}, $f8;"
both mma_s8 "$all" $tensor 1 0 \
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 $c4, $a4, $b2, $c4;"
both mma_b1 "$all" $tensor 1 0 \
    "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc $c4, $a4, $b2, $c4;"
both mma_f64 "$all" $tensor 1 0 \
    'mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%g0,%g1}, {%g2}, {%g3}, {%g0,%g1};'

# Each at an address that ptxas cannot know, so that none can be left out.
anywhere='ld.volatile.global.u32 %i, [%p+@]; add.u32 %i, %i, %s;'
before='mov.u32 %s, frame; add.u32 %i, %s, %x0; st.local.u32 [%i], %x0;'
both ld_local "$all" $local 1 1 "$anywhere ld.local.u32 %x#, [%i];"
before='mov.u32 %s, frame;' after='add.u32 %i, %s, %x0; ld.local.u32 %x0, [%i];'
both st_local "$all" $local 1 1 "$anywhere st.local.u32 [%i], %i;"
after=
before='wgmma.fence.sync.aligned;'
after='wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;'
f32="{$(list '%%f%d' 32)}"
both wgmma_shared sm_90a $tensor 1 0 \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 $f32, %d15, %d#, %t, 1, 1, 0, 0;"
both wgmma_registers sm_90a $tensor 1 0 \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 $f32, $a4, %d#, %t, 1, 1, 0;"
both wgmma_e4m3 sm_90a $tensor 1 0 \
    "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 $f32, %d15, %d#, %t, 1, 1;"
both wgmma_e4m3_registers sm_90a $tensor 1 0 \
    "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 $f32, $a4, %d#, %t, 1, 1;"
x32="{$(list '%%x%d' 32)}"
both wgmma_s8 sm_90a $tensor 1 0 \
    "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 $x32, %d15, %d#, %t;"
both wgmma_b1 sm_90a $tensor 1 0 \
    "wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc $x32, %d15, %d#, %t;"
finish
