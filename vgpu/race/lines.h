/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.h - lines of global memory and who touched them: the shadow memory of global.c and
 * programmatic.c.
 */
#ifndef VGPU_RACE_LINES_H
#define VGPU_RACE_LINES_H

#include "machine/machine.h"

enum { LINE_BYTES = 128, LINES_MAX = 1 << 17, ALL_LINES_MAX = 1 << 19 };

struct mask {
    uint64_t low, high;
};

/* Who: op 15 bits, slot 10, strong 1. Then what orders the access: acquired before 1; handed on
 * afterwards 1 (once known); a store that depends on what was read from others 1; a read that
 * values handed on depend on 1. And 1 for a store that left what was there. */
enum {
    WHO_SLOT = 15,
    WHO_STRONG = 1 << 25,
    WHO_ACQUIRED = 1 << 26,
    WHO_HANDED_ON = 1 << 27,
    WHO_TAKES = 1 << 28,
    WHO_GIVES = 1 << 29,
    WHO_SAME = 1 << 30,
    WHO_FLAGS = 26, /* the last five */
    FLAG_SETS = 32
};
#define WHO_OP 0x7fffU
static inline uint32_t who_slot(uint32_t who) {
    return who >> WHO_SLOT & 0x3ff;
}

struct touched {
    struct mask bytes;
    uint32_t who;  /* the last one (in a launch: the first); 0: none */
    uint32_t mark; /* its stamp (in a launch: the number of its cluster) */
};

struct last {
    struct mask bytes;
    uint32_t stamp, who;
};

enum { PLAIN_READ, PLAIN_WRITE, STRONG_READ, STRONG_WRITE, TOUCHES };

struct line {
    uint64_t key; /* address / LINE_BYTES (in aside and launches: * FLAG_SETS + flags); 0: empty */
    struct touched touched[TOUCHES];
    struct last writers[2]; /* of different warps, the last one first */
    struct last reader;
};

struct line_table {
    struct line *lines;
    uint32_t capacity, count, most;
    uint32_t flag_sets; /* in a launch: those that there are, a bit for each */
    bool full;          /* some lines are not in it (in a launch: nor in those of a cluster) */
};

static inline bool overlap(struct mask a, struct mask b) {
    return ((a.low & b.low) | (a.high & b.high)) != 0;
}

void free_table(struct line_table *table); /* NULL: nothing */
/* Of up to `most` lines; NULL: no memory. */
struct line_table *table_make(uint32_t most);
/* The line, or the empty one where it would be. */
struct line *probe(const struct line_table *table, uint64_t key);
/* The line, new if need be; NULL: there are too many. */
struct line *table_line(struct line_table *table, uint64_t key);

/* Of a launch; NULL: none. */
const struct line_table *race_past_lines(const struct race_past *past);

/* ---- programmatic.c -------------------------------------------------------------------------- */

struct past_hit {
    const struct kernel *kernel;
    const struct op *op; /* NULL: not known */
    bool wrote;
};
/* Whether an early access (programmatic.c) conflicts with one of launches that may still run. */
bool race_past_look(const struct race_past *past, uint64_t key, struct mask bytes, bool writes,
                    bool strong, struct past_hit *hit);
void race_past_report(struct warp *warp, const struct op *op, uint64_t key, bool writes,
                      uint32_t lanes, const struct past_hit *hit);

#endif /* VGPU_RACE_LINES_H */
