/* SPDX-License-Identifier: Apache-2.0
 *
 * programmatic.c - see driver.h: which launches a programmatic one may overlap: those before it in
 * its stream, with nothing between that waits for them. race/programmatic.c compares them.
 *
 * What launches leave is kept only once a module with griddepcontrol was loaded, or a programmatic
 * launch was made. From then on no result of a launch is reused (repeat.c).
 *
 * Invariant: a launch that is compared has begun before any call that waits for those before it.
 */
#include "driver/driver.h"
#include "exec/exec.h"

enum { STREAMS_MOST = 8 };

/* The last launches of a stream. */
static struct last {
    void *stream;
    struct race_past *past; /* NULL: none */
} lasts[STREAMS_MOST];
static unsigned next; /* to be given up, where all are in use */

static void forget(struct last *last) {
    launch_forget(last->past);
    last->past = NULL;
}

void programmatic_forget(void) {
    for (int i = 0; i < STREAMS_MOST; i++) {
        forget(&lasts[i]);
    }
}

static bool is_legacy(const void *stream) {
    return (uintptr_t)stream <= 1;
}

/* The legacy stream waits for all others, and they for it. */
static void forget_ordered(const void *stream) {
    for (int i = 0; i < STREAMS_MOST; i++) {
        if (is_legacy(stream) != is_legacy(lasts[i].stream)) {
            forget(&lasts[i]);
        }
    }
}

static struct last *last_of(void *stream) {
    struct last *unused = NULL;
    for (int i = 0; i < STREAMS_MOST; i++) {
        if (lasts[i].past != NULL && lasts[i].stream == stream) {
            return &lasts[i];
        }
        unused = lasts[i].past == NULL ? &lasts[i] : unused;
    }
    struct last *last = unused != NULL ? unused : &lasts[next++ % STREAMS_MOST];
    forget(last);
    last->stream = stream;
    return last;
}

void programmatic_begin(const struct node *node, struct launch *launch) {
    driver_state.programmatic |= node->programmatic;
    if (!driver_state.programmatic) {
        return;
    }
    forget_ordered(node->stream);
    struct last *last = last_of(node->stream);
    if (!node->programmatic) {
        forget(last);
    }
    launch->keeps_lines = true;
    launch->past = last->past;
    last->past = NULL;
}

void programmatic_end(const struct node *node, struct launch *launch) {
    if (launch->keeps_lines) {
        last_of(node->stream)->past = launch_leave(launch);
    }
}
