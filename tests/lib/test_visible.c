/* SPDX-License-Identifier: Apache-2.0
 *
 * test_visible.c - attn_visible_keys against the words of attn.h, key by key, over every small
 * problem. The reference, the CPU kernels and the tool ask this function alone.
 */
#include "attn_verify.h"
#include "test.h"

enum { MOST = 7 };

static bool is_visible(const attn_problem *p, int64_t i, int64_t q_len, int64_t kv_len, int64_t j) {
    const int64_t off =
        (p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : kv_len - q_len) + p->q_offset - p->kv_offset;
    return j < kv_len && (p->causal == ATTN_CAUSAL_NONE || j <= i + off) &&
           (p->window_left == -1 || i + off - p->window_left <= j) &&
           (p->window_right == -1 || j <= i + off + p->window_right);
}

/* A range holds every visible key and no other; of none it is [0, 0). */
static void check_row(const attn_problem *p, int64_t i, int64_t q_len, int64_t kv_len) {
    int64_t begin = -1, end = -1, count = 0;
    attn_visible_keys(p, i, q_len, kv_len, &begin, &end);
    for (int64_t j = 0; j < kv_len; j++) {
        const bool visible = is_visible(p, i, q_len, kv_len, j);
        count += visible;
        CHECK_EQ(visible, begin <= j && j < end);
    }
    CHECK(count > 0 ? end - begin == count : begin == 0 && end == 0);
}

TEST(every_small_problem) {
    attn_problem p;
    attn_problem_init(&p);
    for (int causal = ATTN_CAUSAL_NONE; causal <= ATTN_CAUSAL_BOTTOM_RIGHT; causal++) {
        p.causal = (attn_causal)causal;
        for (p.window_left = -1; p.window_left <= MOST; p.window_left++) {
            for (p.window_right = -1; p.window_right <= MOST; p.window_right++) {
                for (int64_t q_len = 1; q_len <= MOST; q_len++) {
                    for (int64_t row = 0; row < q_len * (MOST + 1); row++) {
                        check_row(&p, row % q_len, q_len, row / q_len);
                    }
                }
            }
        }
    }
}

TEST(chunks) {
    attn_problem p;
    attn_problem_init(&p);
    for (int n = 0; n < 3 * 3 * 3; n++) {
        p.causal = (attn_causal)(n % 3);
        p.window_left = n / 3 % 3 * 2 - 1;
        p.window_right = n / 9 * 2 - 1;
        for (p.q_offset = -MOST; p.q_offset <= 2 * MOST; p.q_offset++) {
            for (p.kv_offset = 0; p.kv_offset <= MOST; p.kv_offset += MOST) {
                for (int64_t row = 0; row < MOST * MOST; row++) {
                    check_row(&p, row % MOST, MOST, row / MOST);
                }
            }
        }
    }
}

TEST(windows_wider_than_any_sequence) {
    attn_problem p;
    attn_problem_init(&p);
    p.window_left = p.window_right = INT32_MAX;
    check_row(&p, 3, 5, 9);
    p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    check_row(&p, 3, 5, 9);
}

TEST_MAIN()
