/* SPDX-License-Identifier: Apache-2.0
 *
 * programmatic.c - programmatic dependent launch: a kernel that begins while those before it in its
 * stream still run. What precedes griddepcontrol.wait is not ordered with their accesses to global
 * memory; what follows it is, and so is what a barrier or flag orders after a warp that waited.
 *
 * A launch leaves the lines that it accessed. The next one compares its early accesses with them,
 * and with those of launches before, unless the last one is known to have waited for them: no
 * thread let the next kernel begin (launch_dependents) before it had waited. Lanes of a warp count
 * as one.
 *
 * Invariant: what a launch left does not change while another one is compared with it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "machine/describe.h"
#include "race/lines.h"
#include "race/state.h"
#include "report/finding.h"

struct race_past {
    struct line_table *lines; /* NULL: none are known */
    const struct kernel *kernel;
    struct race_past *before; /* may run as long; NULL: none does */
};

enum { PAST_LINES_MOST = 1 << 20, PAST_MOST = 8 };

void race_past_free(struct race_past *past) {
    while (past != NULL) {
        struct race_past *before = past->before;
        free_table(past->lines);
        free(past);
        past = before;
    }
}

const struct line_table *race_past_lines(const struct race_past *past) {
    return past != NULL ? past->lines : NULL;
}

uint32_t race_past_size(const struct race_past *past) {
    return past != NULL && past->lines != NULL ? past->lines->capacity : 0;
}

const struct kernel *race_past_kernel(const struct race_past *past) {
    return past->kernel;
}

/* The lines of all must not fill the host's memory: the oldest are given up. */
static void shorten(struct race_past *past) {
    uint32_t lines = 0, count = 0;
    for (struct race_past *at = past; at != NULL; at = at->before) {
        lines += at->before != NULL && at->before->lines != NULL ? at->before->lines->capacity : 0;
        if (++count == PAST_MOST || lines > PAST_LINES_MOST) {
            race_past_free(at->before);
            at->before = NULL;
        }
    }
}

struct race_past *race_past_take(struct launch *launch) {
    struct race_past *before = launch->past;
    launch->past = NULL;
    if (!launch->signals_early && launch->waits) {
        race_past_free(before);
        before = NULL;
    }
    struct race_past *past = malloc(sizeof(*past));
    if (past == NULL) {
        race_past_free(before);
        free_table(launch->lines);
    } else {
        *past = (struct race_past){launch->lines, launch->kernel, before};
        shorten(past);
    }
    launch->lines = NULL;
    return past;
}

/* Which of the accesses of a line conflicts with one like this; TOUCHES: none. */
static int conflict(const struct line *line, struct mask bytes, bool writes, bool strong) {
    for (int what = 0; what < TOUCHES; what++) {
        const bool wrote = what == PLAIN_WRITE || what == STRONG_WRITE;
        const bool was_strong = what == STRONG_READ || what == STRONG_WRITE;
        if ((wrote || writes) && !(strong && was_strong) &&
            overlap(line->touched[what].bytes, bytes)) {
            return what;
        }
    }
    return TOUCHES;
}

bool race_past_look(const struct race_past *past, uint64_t key, struct mask bytes, bool writes,
                    bool strong, struct past_hit *hit) {
    for (; past != NULL; past = past->before) {
        uint32_t sets = past->lines != NULL ? past->lines->flag_sets : 0;
        for (; sets != 0; sets &= sets - 1) {
            const struct line *line =
                probe(past->lines, key * FLAG_SETS + (uint32_t)__builtin_ctz(sets));
            const int what = line->key != 0 ? conflict(line, bytes, writes, strong) : (int)TOUCHES;
            if (what != TOUCHES) {
                hit->kernel = past->kernel;
                hit->op = op_of_launched(past->kernel, line->touched[what].who & WHO_OP);
                hit->wrote = what == PLAIN_WRITE || what == STRONG_WRITE;
                return true;
            }
        }
    }
    return false;
}

void race_past_report(struct warp *warp, const struct op *op, uint64_t key, bool writes,
                      uint32_t lanes, const struct past_hit *hit) {
    const struct finding_detail detail = {.space = PTX_GLOBAL,
                                          .address = key * LINE_BYTES,
                                          .bytes = LINE_BYTES,
                                          .other = hit->op,
                                          .other_kernel = hit->kernel};
    char place[128], name[256];
    describe_address(warp, PTX_GLOBAL, detail.address, place, sizeof(place));
    report(
        warp, op, FINDING_RACE_PDL, lanes, &detail,
        "this %s in the 128 bytes at %s comes before griddepcontrol.wait and is not ordered with "
        "a %s by the earlier kernel %s",
        writes ? "write" : "read", place, hit->wrote ? "write" : "read",
        vgpu_readable_name(hit->kernel->function->name, name, sizeof(name)));
}
