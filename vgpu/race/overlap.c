/* SPDX-License-Identifier: Apache-2.0
 *
 * overlap.c - launches of different streams: whether what two of them accessed in global memory
 * conflicts, or what one accessed and a copy.
 *
 * Invariant: of several conflicts, the one at the lowest address is named.
 */
#include "machine/machine.h"
#include "race/lines.h"
#include "race/state.h"

static bool writes(int what) {
    return what == PLAIN_WRITE || what == STRONG_WRITE;
}

static bool is_strong(int what) {
    return what == STRONG_READ || what == STRONG_WRITE;
}

static struct race_access access_of(const struct race_past *past, const struct line *line,
                                    int what) {
    const struct kernel *kernel = race_past_kernel(past);
    const struct op *op = op_of_launched(kernel, line->touched[what].who & WHO_OP);
    return (struct race_access){kernel, op != NULL ? op->in : NULL, writes(what)};
}

static void look_at_lines(struct race_overlap *found, const struct race_past *a,
                          const struct line *line, const struct race_past *b,
                          const struct line *other, uint64_t key) {
    for (int i = 0; i < TOUCHES; i++) {
        for (int j = 0; j < TOUCHES; j++) {
            if ((writes(i) || writes(j)) && !(is_strong(i) && is_strong(j)) &&
                overlap(line->touched[i].bytes, other->touched[j].bytes)) {
                found->address = key * LINE_BYTES;
                found->first = access_of(a, line, i);
                found->second = access_of(b, other, j);
                return;
            }
        }
    }
}

bool race_past_meets(const struct race_past *a, const struct race_past *b,
                     struct race_overlap *found) {
    const struct line_table *mine = race_past_lines(a), *others = race_past_lines(b);
    found->address = UINT64_MAX;
    for (uint32_t i = 0; mine != NULL && others != NULL && i < mine->capacity; i++) {
        const struct line *line = &mine->lines[i];
        const uint64_t key = line->key / FLAG_SETS;
        if (line->key == 0 || key * LINE_BYTES >= found->address) {
            continue;
        }
        for (uint32_t sets = others->flag_sets; sets != 0; sets &= sets - 1) {
            const struct line *other =
                probe(others, key * FLAG_SETS + (uint32_t)__builtin_ctz(sets));
            if (other->key != 0) {
                look_at_lines(found, a, line, b, other, key);
            }
        }
    }
    return found->address != UINT64_MAX;
}

/* Of the line at `base`, the bytes in [begin, end). */
static struct mask bytes_of(uint64_t base, uint64_t begin, uint64_t end) {
    struct mask mask = {0, 0};
    for (uint64_t i = 0; i < LINE_BYTES; i++) {
        if (base + i >= begin && base + i < end) {
            *(i < 64 ? &mask.low : &mask.high) |= 1ULL << i % 64;
        }
    }
    return mask;
}

bool race_past_covers(const struct race_past *past, uint64_t begin, uint64_t end, bool written,
                      struct race_overlap *found) {
    const struct line_table *lines = race_past_lines(past);
    found->address = UINT64_MAX;
    for (uint32_t i = 0; lines != NULL && i < lines->capacity; i++) {
        const struct line *line = &lines->lines[i];
        const uint64_t base = line->key / FLAG_SETS * LINE_BYTES;
        if (line->key == 0 || base >= end || base + LINE_BYTES <= begin || base >= found->address) {
            continue;
        }
        const struct mask bytes = bytes_of(base, begin, end);
        for (int what = 0; what < TOUCHES; what++) {
            if ((written || writes(what)) && overlap(line->touched[what].bytes, bytes)) {
                found->address = base;
                found->first = access_of(past, line, what);
                break;
            }
        }
    }
    return found->address != UINT64_MAX;
}
