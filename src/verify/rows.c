/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.c - the rows that are checked: random sample, validation of a list, the order of all rows.
 *
 * Invariant: the sample depends on the problem, the seed and the count alone.
 */
#include "verify/rows.h"
#include "core/abi.h"

int64_t rows_total(attn_row shape) {
    int64_t total;
    if (__builtin_mul_overflow(shape.batch, shape.head, &total) ||
        __builtin_mul_overflow(total, shape.row, &total)) {
        return INT64_MAX;
    }
    return total;
}

static attn_status check_index(size_t index, const char *name, int64_t value, int64_t end,
                               attn_error *error) {
    if (value >= 0 && value < end) {
        return ATTN_OK;
    }
    return attn_fail(error, ATTN_INVALID, "rows[%zu].%s = %lld, expected 0 or more and below %lld",
                     index, name, (long long)value, (long long)end);
}

attn_status rows_check(attn_row shape, const attn_row *rows, size_t count, attn_error *error) {
    if (rows == NULL) {
        const int64_t total = rows_total(shape);
        if (count != (uint64_t)total) {
            return attn_fail(error, ATTN_INVALID,
                             "count = %zu, expected %lld: rows = NULL means every row", count,
                             (long long)total);
        }
        return ATTN_OK;
    }
    for (size_t i = 0; i < count; i++) {
        attn_status status = check_index(i, "batch", rows[i].batch, shape.batch, error);
        if (status == ATTN_OK) {
            status = check_index(i, "head", rows[i].head, shape.head, error);
        }
        if (status == ATTN_OK) {
            status = check_index(i, "row", rows[i].row, shape.row, error);
        }
        if (status != ATTN_OK) {
            return status;
        }
    }
    return ATTN_OK;
}

attn_row rows_at(attn_row shape, const attn_row *rows, int64_t index) {
    if (rows != NULL) {
        return rows[index];
    }
    const int64_t head = index / shape.row;
    return (attn_row){
        .batch = head / shape.head,
        .head = head % shape.head,
        .row = index % shape.row,
    };
}

/* splitmix64: one step of its counter, then its finaliser. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

void attn_visible_keys(const attn_problem *problem, int64_t i, int64_t q_len, int64_t kv_len,
                       int64_t *begin, int64_t *end) {
    attn_problem p = {0};
    abi_read("problem", problem, PROBLEM_0_2, &p, sizeof p, NULL);
    const struct sequence s = {
        .q_len = q_len, .kv_len = kv_len, .off = diagonal_offset(&p, q_len, kv_len)};
    const struct key_range keys = visible_keys(&p, &s, i);
    *begin = keys.begin;
    *end = keys.end;
}

attn_status rows_sample(attn_row shape, uint64_t seed, attn_row *rows, size_t count,
                        attn_error *error) {
    if (count == 0) {
        return attn_fail(error, ATTN_OK, "%s", "");
    }
    if (rows == NULL) {
        return attn_fail(error, ATTN_INVALID, "rows = NULL, expected room for count = %zu rows",
                         count);
    }
    const uint64_t total = (uint64_t)rows_total(shape);
    if (total == 0) {
        return attn_fail(error, ATTN_INVALID, "count = %zu, expected 0: the problem has no rows",
                         count);
    }
    /* The rows, batch-major, are cut into `count` stretches of equal length (give or take one) and
     * each gives one row: every batch entry and head has its share, and no row comes twice. Where
     * there are fewer rows than requested, all are taken repeatedly. */
    const uint64_t length = total / count;
    const uint64_t longer = total % count; /* so many stretches, the first ones, have one more */
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t begin = i * length + (i < longer ? i : longer);
        const uint64_t random = next_random(&seed);
        uint64_t index = i % total;
        if (length > 0) {
            index = begin + random % (length + (i < longer ? 1 : 0));
        }
        if (i == 0) {
            index = 0;
        } else if (i == count - 1 && length > 0) {
            index = total - 1;
        }
        rows[i] = rows_at(shape, NULL, (int64_t)index);
    }
    return attn_fail(error, ATTN_OK, "%s", "");
}

attn_status attn_rows_sample(const attn_problem *problem, uint64_t seed, attn_row *rows,
                             size_t count, attn_error *error) {
    attn_problem resolved;
    const attn_status status = problem_resolve(problem, &resolved, error);
    return status != ATTN_OK ? status : rows_sample(rows_of_q(&resolved), seed, rows, count, error);
}
