/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - happens-before: vector clocks of warps and barriers, asynchronous agents, memory order.
 *
 * A clock has one slot for each warp of the cluster and ENGINE_SLOTS for asynchronous operations.
 * clock_make returns NULL where races are not checked; every function accepts NULL and does
 * nothing.
 */
#ifndef VGPU_RACE_CLOCK_H
#define VGPU_RACE_CLOCK_H

#include "machine/access.h"

struct clock *clock_make(struct cluster *cluster);
void clock_free(struct clock *clock);
void clock_clear(struct clock *clock);
void clock_copy(struct clock *to, const struct clock *from);
void clock_join(struct clock *into, const struct clock *from);
/* Everything the warp did so far happens before a later acquire of `into`; the warp starts a new
 * epoch. */
void clock_release(struct clock *into, struct warp *warp);
/* The same, only for what precedes the last fence: barrier.cluster.arrive.relaxed. */
void clock_release_fenced(struct clock *into, struct warp *warp);
/* Everything released into `from` happens before what the warp does next. */
void clock_acquire(struct warp *warp, const struct clock *from);
/* The lanes of the warp synchronised (bar.warp.sync; shfl does not). */
void clock_warp_sync(struct warp *warp);
/* fence, membar; wide: beyond the CTA or cluster. */
void clock_fence(struct warp *warp, bool wide);
/* fence.proxy.async: orders generic accesses before it with async-proxy accesses after it, and the
 * reverse. */
void clock_proxy_fence(struct warp *warp);

/* griddepcontrol: what the launches before did is ordered before what the warp does next; the next
 * launch may begin. */
void clock_grid_wait(struct warp *warp);
void clock_grid_signal(struct warp *warp);

/* An asynchronous operation. Its accesses are ordered after what its warp did before the issue, and
 * before nothing until it finishes into a clock that a warp acquires. */
struct agent *agent_start(struct warp *warp, const struct op *op);
void agent_finish(struct agent *agent, struct clock *into); /* into may be NULL; frees the agent */
/* The same where the warp itself waited (cp.async.wait_group, wgmma.wait_group). */
void agent_finish_for_warp(struct agent *agent, struct warp *warp);

/* What a strong access orders: nothing if it is relaxed; other clusters only if it is wide (.gpu,
 * .sys). */
enum { ORDER_ACQUIRE = 1, ORDER_RELEASE = 2, ORDER_WIDE = 4 };
/* Before a strong read by the lanes in `mask`; after a strong write by the lanes in `good`. */
void order_read(struct warp *warp, const struct op *op, const struct access *access,
                uint32_t order);
void order_write(struct warp *warp, const struct op *op, const struct access *access,
                 uint32_t order);

#endif /* VGPU_RACE_CLOCK_H */
