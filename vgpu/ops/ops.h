/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.h - the families of instructions, and what the interpreter calls when lanes exit.
 */
#ifndef VGPU_OPS_OPS_H
#define VGPU_OPS_OPS_H

#include "machine/machine.h"
#include "ops/decode.h"

decode_function decode_int;     /* int.c, bits.c */
decode_function decode_video;   /* video.c */
decode_function decode_float;   /* float.c, special.c: f32 and f64 */
decode_function decode_half;    /* half.c: f16, bf16 and pairs of them */
decode_function decode_move;    /* move.c, compare.c, cvt.c */
decode_function decode_memory;  /* memory.c, atomic.c, address.c */
decode_function decode_warp;    /* warp.c */
decode_function decode_control; /* control.c, barrier.c, call.c */
decode_function decode_matrix;  /* ldmatrix.c, mma.c, wmma.c */
decode_function decode_texture, decode_surface;

/* Lanes of the warp have exited: completes barriers that waited for them only. */
void barriers_exit(struct warp *warp, uint32_t lanes);
/* control.c: an instruction that is not known; op->extra is the reason. */
op_function run_unknown;
/* What a group at the barrier waits for: "barrier 1 (96 of 128 threads arrived)". */
void barrier_describe(const struct warp *warp, const struct barrier *barrier, char *buffer,
                      size_t size);

/* ---- between the files of ops ---------------------------------------------------------------- */

decode_function decode_barrier;             /* barrier.c */
decode_function decode_warp_sync;           /* warp.c: bar.warp.sync */
decode_function decode_call, decode_return; /* call.c */
/* A warp ended; after the last one of a CTA, whole warpgroups must have executed setmaxnreg. */
void registers_leave(const struct warp *warp); /* control.c */

#endif /* VGPU_OPS_OPS_H */
