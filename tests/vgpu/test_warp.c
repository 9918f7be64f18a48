/* SPDX-License-Identifier: Apache-2.0
 *
 * test_warp.c - shfl, vote, match, redux, elect and activemask against a model that goes lane
 * by lane, over random values and member masks; and their misuse.
 */
#include "vgpu/exec_fixture.h"

enum { THREADS = 64, ROUNDS = 12 };

static uint32_t hash(uint32_t x) {
    x *= 0x27d4eb2d;
    x ^= x >> 15;
    x *= 0x85ebca6b;
    return x ^ (x >> 13);
}

/* %r3 = hash(%r0 + n). */
#define HASH                                                                                       \
    "add.u32 %r3, %r0, %r1; mul.lo.u32 %r3, %r3, 0x27d4eb2d; shr.u32 %r4, %r3, 15;\n"              \
    "xor.b32 %r3, %r3, %r4; mul.lo.u32 %r3, %r3, 0x85ebca6b; shr.u32 %r4, %r3, 13;\n"              \
    "xor.b32 %r3, %r3, %r4;\n"
/* Those lanes with a bit in %r5 = hash(n + 1000) have a talk of their own, the others another:
 * %r6 is each lane's member mask. */
#define TWO_TALKS                                                                                  \
    "add.u32 %r5, %r1, 1000; mul.lo.u32 %r5, %r5, 0x27d4eb2d; shr.u32 %r4, %r5, 15;\n"             \
    "xor.b32 %r5, %r5, %r4; mul.lo.u32 %r5, %r5, 0x85ebca6b; shr.u32 %r4, %r5, 13;\n"              \
    "xor.b32 %r5, %r5, %r4;\n"                                                                     \
    "mov.u32 %r7, %lanemask_eq; and.b32 %r7, %r7, %r5; setp.ne.u32 %p1, %r7, 0;\n"                 \
    "not.b32 %r8, %r5; selp.b32 %r6, %r5, %r8, %p1;\n"

static uint32_t value(uint32_t thread, uint32_t n) {
    return hash(thread + n);
}

static uint32_t members(uint32_t thread, uint32_t n) {
    const uint32_t some = hash(n + 1000);
    return (some >> thread % 32 & 1) != 0 ? some : ~some;
}

/* Runs it for some n, in one group and where each talk is a branch of its own. */
static void check(const char *ptx, uint32_t (*model)(uint32_t thread, uint32_t n)) {
    for (uint32_t n = 0; n < ROUNDS; n++) {
        bench_expect(bench_make(1, THREADS, n * 77), ptx, THREADS, model);
    }
}

/* ---- shfl ---- */

enum mode { UP, DOWN, BFLY, IDX };

/* n holds the offset in bits 0 to 4 and the width, a power of two, from bit 8 on. What the CUDA
 * intrinsics promise; ^ 1 where the predicate says that the source was inside. */
static uint32_t shuffled(enum mode mode, uint32_t thread, uint32_t n) {
    const int lane = (int)(thread % 32), width = (int)(n >> 8), offset = (int)(n & 31);
    const int base = lane - lane % width;
    int from = base + offset % width;
    bool inside = true;
    switch (mode) {
    case UP:
        from = lane - offset;
        inside = from >= base;
        break;
    case DOWN:
        from = lane + offset;
        inside = from < base + width;
        break;
    case BFLY:
        from = lane ^ offset;
        inside = from < base + width;
        break;
    case IDX: break;
    }
    const uint32_t first = thread - thread % 32;
    return value(first + (uint32_t)(inside ? from : lane), n) ^ (inside ? 1 : 0);
}

static uint32_t up(uint32_t thread, uint32_t n) {
    return shuffled(UP, thread, n);
}
static uint32_t down(uint32_t thread, uint32_t n) {
    return shuffled(DOWN, thread, n);
}
static uint32_t bfly(uint32_t thread, uint32_t n) {
    return shuffled(BFLY, thread, n);
}
static uint32_t idx(uint32_t thread, uint32_t n) {
    return shuffled(IDX, thread, n);
}

/* c has the clamp and, from bit 8 on, the bits of the lane that stay. */
#define SHUFFLE(mode, clamp, sync)                                                                 \
    K(HASH "and.b32 %r9, %r1, 31; shr.u32 %r10, %r1, 8; mov.u32 %r11, 32;\n"                       \
           "sub.u32 %r11, %r11, %r10; shl.b32 %r11, %r11, 8; or.b32 %r11, %r11, " clamp ";\n"      \
           "shfl." mode ".b32 %r12|%p2, %r3, %r9, %r11" sync ";\n"                                 \
           "selp.u32 %r13, 1, 0, %p2; xor.b32 %r2, %r12, %r13;")

static void check_shuffle(const char *ptx, uint32_t (*model)(uint32_t thread, uint32_t n)) {
    for (uint32_t width = 1; width <= 32; width *= 2) {
        for (uint32_t offset = 0; offset < 32; offset += 1 + offset / 2) {
            bench_expect(bench_make(1, THREADS, width << 8 | offset), ptx, THREADS, model);
        }
    }
}

TEST(shfl_up) {
    check_shuffle(SHUFFLE("sync.up", "0", ", -1"), up);
}
TEST(shfl_down) {
    check_shuffle(SHUFFLE("sync.down", "31", ", 0xffffffff"), down);
}
TEST(shfl_bfly) {
    check_shuffle(SHUFFLE("sync.bfly", "31", ", -1"), bfly);
    check_shuffle(SHUFFLE("bfly", "31", ""), bfly);
}
TEST(shfl_idx) {
    check_shuffle(SHUFFLE("sync.idx", "31", ", -1"), idx);
}

static uint32_t sum_of_halves(uint32_t thread, uint32_t n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 16; i++) {
        sum += value(thread / 16 * 16 + i, n);
    }
    return sum;
}

/* A reduction over half a warp inside a branch, each half with a member mask of its own. */
#define HALF_SUM                                                                                   \
    "mov.u32 %r2, %r3;\n"                                                                          \
    "shfl.sync.bfly.b32 %r12, %r2, 8, 31, %r9; add.u32 %r2, %r2, %r12;\n"                          \
    "shfl.sync.bfly.b32 %r12, %r2, 4, 31, %r9; add.u32 %r2, %r2, %r12;\n"                          \
    "shfl.sync.bfly.b32 %r12, %r2, 2, 31, %r9; add.u32 %r2, %r2, %r12;\n"                          \
    "shfl.sync.bfly.b32 %r12, %r2, 1, 31, %r9; add.u32 %r2, %r2, %r12;\n"

TEST(shfl_inside_branches) {
    check(K(HASH "and.b32 %r8, %r0, 16; setp.ne.u32 %p1, %r8, 0;\n"
                 "selp.b32 %r9, 0xffff0000, 0x0000ffff, %p1; @%p1 bra HIGH;\n" HALF_SUM
                 "bra JOIN;\nHIGH: " HALF_SUM "JOIN: bar.warp.sync -1;"),
          sum_of_halves);
    check(K(HASH "and.b32 %r8, %r0, 16; setp.ne.u32 %p1, %r8, 0;\n"
                 "selp.b32 %r9, 0xffff0000, 0x0000ffff, %p1;\n" HALF_SUM),
          sum_of_halves);
}

/* ---- vote ---- */

/* bit 0: all, 1: any, 2: uni, then the ballot: of the lanes of the talk whose value is odd. */
static uint32_t votes(uint32_t thread, uint32_t n) {
    const uint32_t talk = members(thread, n);
    uint32_t ballot = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        ballot |= (value(thread / 32 * 32 + lane, n) & 1) << lane;
    }
    ballot &= talk;
    const uint32_t all = ballot == talk, any = ballot != 0, uni = ballot == talk || ballot == 0;
    return ballot << 3 ^ all ^ any << 1 ^ uni << 2;
}

TEST(vote) {
    check(K(HASH TWO_TALKS
            "and.b32 %r9, %r3, 1; setp.ne.u32 %p2, %r9, 0;\n"
            "vote.sync.ballot.b32 %r10, %p2, %r6; vote.sync.all.pred %p3, %p2, %r6;\n"
            "vote.sync.any.pred %p4, %p2, %r6; vote.sync.uni.pred %p5, %p2, %r6;\n"
            "vote.sync.all.pred %p6, !%p2, %r6;\n"
            "shl.b32 %r2, %r10, 3; selp.u32 %r11, 1, 0, %p3; xor.b32 %r2, %r2, %r11;\n"
            "selp.u32 %r11, 2, 0, %p4; xor.b32 %r2, %r2, %r11;\n"
            "selp.u32 %r11, 4, 0, %p5; xor.b32 %r2, %r2, %r11;"),
          votes);
}

static uint32_t odd_lanes(uint32_t thread, uint32_t n) {
    (void)n;
    return thread % 2 != 0 ? 0xaaaaaaaa : 0x55555555;
}

TEST(activemask_and_votes_without_sync_see_the_branch) {
    check(K("and.b32 %r9, %r0, 1; setp.ne.u32 %p1, %r9, 0; @%p1 bra ODD;\n"
            "activemask.b32 %r2; bra JOIN; ODD: vote.ballot.b32 %r2, %p1; JOIN:"),
          odd_lanes);
}

/* ---- match, redux, elect ---- */

static uint32_t matches(uint32_t thread, uint32_t n) {
    uint32_t same = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t other = thread / 32 * 32 + lane;
        same |= (uint32_t)(value(other, n) % 4 == value(thread, n) % 4) << lane;
    }
    return same & members(thread, n);
}

TEST(match_any) {
    check(K(HASH TWO_TALKS "and.b32 %r9, %r3, 3; match.any.sync.b32 %r2, %r9, %r6;"), matches);
    check(K(HASH TWO_TALKS "and.b32 %r9, %r3, 3; cvt.u64.u32 %rd1, %r9; shl.b64 %rd1, %rd1, 40;\n"
                           "match.any.sync.b64 %r2, %rd1, %r6;"),
          matches);
}

/* The talk that lane 0 is in agrees; the other one does not, unless it is a single lane. */
static uint32_t all_match(uint32_t thread, uint32_t n) {
    const uint32_t talk = members(thread, n);
    const bool agrees = (talk & 1) != 0 || (talk & (talk - 1)) == 0;
    return agrees ? talk ^ 1 : 0;
}

TEST(match_all) {
    check(K(TWO_TALKS "mov.u32 %r9, %laneid; and.b32 %r10, %r6, 1; setp.ne.u32 %p2, %r10, 0;\n"
                      "selp.u32 %r9, 5, %r9, %p2; match.all.sync.b32 %r2|%p3, %r9, %r6;\n"
                      "selp.u32 %r11, 1, 0, %p3; xor.b32 %r2, %r2, %r11;"),
          all_match);
}

static uint32_t reduced(uint32_t thread, uint32_t n) {
    const uint32_t talk = members(thread, n);
    uint32_t add = 0, lowest = UINT32_MAX, highest = 0, and = UINT32_MAX, or = 0, xor = 0;
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t x = value(thread / 32 * 32 + lane, n);
        if ((talk >> lane & 1) == 0) {
            continue;
        }
        add += x;
        lowest = x < lowest ? x : lowest;
        highest = x > highest ? x : highest;
        least = (int32_t)x < least ? (int32_t)x : least;
        most = (int32_t)x > most ? (int32_t)x : most;
        and &= x;
        or |= x;
        xor ^= x;
    }
    return add + 3 * lowest + 5 * highest + 7 * (uint32_t)least + 11 * (uint32_t)most +
               13 * and+17 *
           or +19 * xor;
}

TEST(redux) {
    check(K(HASH TWO_TALKS "redux.sync.add.u32 %r2, %r3, %r6;\n"
                           "redux.sync.min.u32 %r9, %r3, %r6; mad.lo.u32 %r2, %r9, 3, %r2;\n"
                           "redux.sync.max.u32 %r9, %r3, %r6; mad.lo.u32 %r2, %r9, 5, %r2;\n"
                           "redux.sync.min.s32 %r9, %r3, %r6; mad.lo.u32 %r2, %r9, 7, %r2;\n"
                           "redux.sync.max.s32 %r9, %r3, %r6; mad.lo.u32 %r2, %r9, 11, %r2;\n"
                           "redux.sync.and.b32 %r9, %r3, %r6; mad.lo.u32 %r2, %r9, 13, %r2;\n"
                           "redux.sync.or.b32 %r9, %r3, %r6; mad.lo.u32 %r2, %r9, 17, %r2;\n"
                           "redux.sync.xor.b32 %r9, %r3, %r6; mad.lo.u32 %r2, %r9, 19, %r2;"),
          reduced);
}

static uint32_t elected(uint32_t thread, uint32_t n) {
    const uint32_t leader = (uint32_t)__builtin_ctz(members(thread, n));
    return leader * 2 + (leader == thread % 32);
}

TEST(elect) {
    check(K(TWO_TALKS "elect.sync %r9|%p2, %r6; selp.u32 %r10, 1, 0, %p2; mad.lo.u32 %r2, %r9, 2, "
                      "%r10;"),
          elected);
}

/* ---- misuse ---- */

static void found(const char *ptx, uint32_t block, const char *part) {
    struct bench *bench = bench_make(1, block, 5);
    bench_run(bench, ptx);
    CHECK_EQ(bench->status, VGPU_OK);
    bench_found(bench, "divergent-warp-op", part);
    bench_free(bench);
}

TEST(a_shuffle_that_half_the_warp_does_not_reach) {
    found(K("setp.lt.u32 %p1, %r0, 16; mov.u32 %r2, 0; @!%p1 bra JOIN;\n"
            "shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1;\n"
            "JOIN: shfl.sync.bfly.b32 %r3, %r0, 1, 31, -1;"),
          32, "needs lanes 0xffffffff");
}

TEST(a_lane_outside_its_own_member_mask) {
    found(K("shfl.sync.bfly.b32 %r2, %r0, 1, 31, 0xfffffff0;"), 32, "does not name them");
}

TEST(a_shuffle_from_a_lane_that_has_exited) {
    found(K("setp.ge.u32 %p1, %r0, 20; @%p1 exit;\n"
            "shfl.sync.down.b32 %r3, %r0, 16, 31, -1; mov.u32 %r2, 0;"),
          32, "do not take part");
    found(K("shfl.sync.down.b32 %r3, %r0, 16, 31, -1; mov.u32 %r2, 0;"), 20, "do not take part");
}

TEST(the_value_of_an_absent_lane_is_uninitialised) {
    struct bench *bench = bench_make(1, 20, 5);
    bench_run(bench, K("shfl.sync.down.b32 %r2, %r0, 16, 31, -1;"));
    CHECK(bench_find(bench, "uninitialised").text != NULL);
    bench_free(bench);
}

TEST(an_aligned_op_in_a_branch) {
    found(K("setp.lt.u32 %p1, %r0, 16; mov.u32 %r9, tile; mov.u32 %r2, 1;\n"
            "mad.lo.u32 %r9, %r0, 16, %r9; st.shared.v4.u32 [%r9], {%r0, %r0, %r0, %r0};\n"
            "bar.warp.sync -1; @%p1 bra HALF; bra JOIN;\n"
            "HALF: ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r9];\n"
            "JOIN: ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r9];"),
          32, "ldmatrix");
}

TEST_MAIN()
