/* SPDX-License-Identifier: Apache-2.0
 *
 * neon_gemm.h - the 12 x 8 GEMM of tile_kernel.h for full tiles, in assembly.
 *
 *     v8..v31   C: rows 0-3 in v8 + n, rows 4-7 in v16 + n, rows 8-11 in v24 + n, n = 0..7
 *     v0..v2    A of this step        v3 v4 / v5 v6   B of this step and of the next, in turn
 *
 * Where the loads stand decides the speed: one after every eight multiply-adds, for operands of
 * the next step, reaches 97 to 99 % of the peak; the compiler's order reaches 82 to 92 %.
 * Invariant: reads exactly k steps of A and B.
 */

/* clang-format off */

/* Eight multiply-adds (op fmla) or, in the first step, products (op fmul) of one vector of A with
 * the eight scalars of B. */
#define EIGHT(op, a, c0, c1, c2, c3, c4, c5, c6, c7, low, high)                                    \
    op " " c0 ".4s, " a ".4s, " low ".s[0]\n\t" op " " c1 ".4s, " a ".4s, " low ".s[1]\n\t" op    \
       " " c2 ".4s, " a ".4s, " low ".s[2]\n\t" op " " c3 ".4s, " a ".4s, " low ".s[3]\n\t" op    \
       " " c4 ".4s, " a ".4s, " high ".s[0]\n\t" op " " c5 ".4s, " a ".4s, " high ".s[1]\n\t" op  \
       " " c6 ".4s, " a ".4s, " high ".s[2]\n\t" op " " c7 ".4s, " a ".4s, " high ".s[3]\n\t"
#define ROWS_0_3(op, low, high)                                                                    \
    EIGHT(op, "v0", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", low, high)
#define ROWS_4_7(op, low, high)                                                                    \
    EIGHT(op, "v1", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", low, high)
#define ROWS_8_11(op, low, high)                                                                   \
    EIGHT(op, "v2", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", low, high)
#define STEP(op, low, high) ROWS_0_3(op, low, high) ROWS_4_7(op, low, high) ROWS_8_11(op, low, high)
/* A step that loads the next one's operands: A at a0.., B at b0.. into another pair. */
#define STEP_AND_LOAD(op, low, high, a0, a1, a2, next_low, b0, next_high, b1)                      \
    ROWS_0_3(op, low, high)                                                                        \
    "ldr q0, [%[a], #" a0 "]\n\t"                                                                  \
    "ldr " next_low ", [%[b], #" b0 "]\n\t" ROWS_4_7(op, low, high)                                \
    "ldr q1, [%[a], #" a1 "]\n\t"                                                                  \
    "ldr " next_high ", [%[b], #" b1 "]\n\t" ROWS_8_11(op, low, high)                              \
    "ldr q2, [%[a], #" a2 "]\n\t"

/* Key or dimension n of C: three vectors, 48 bytes. */
#define C_ROW(op, q0, q1, q2, at0, at1, at2)                                                       \
    op " " q0 ", [%[c], #" at0 "]\n\t" op " " q1 ", [%[c], #" at1 "]\n\t" op " " q2              \
       ", [%[c], #" at2 "]\n\t"
#define C_STORE                                                                                    \
    C_ROW("str", "q8", "q16", "q24", "0", "16", "32")                                              \
    C_ROW("str", "q9", "q17", "q25", "48", "64", "80")                                             \
    C_ROW("str", "q10", "q18", "q26", "96", "112", "128")                                          \
    C_ROW("str", "q11", "q19", "q27", "144", "160", "176")                                         \
    C_ROW("str", "q12", "q20", "q28", "192", "208", "224")                                         \
    C_ROW("str", "q13", "q21", "q29", "240", "256", "272")                                         \
    C_ROW("str", "q14", "q22", "q30", "288", "304", "320")                                         \
    C_ROW("str", "q15", "q23", "q31", "336", "352", "368")
/* What is in memory, added to the accumulators. */
#define C_ADD_ROW(v0, v1, v2, at0, at1, at2)                                                       \
    C_ROW("ldr", "q0", "q1", "q2", at0, at1, at2)                                                  \
    "fadd " v0 ".4s, " v0 ".4s, v0.4s\n\tfadd " v1 ".4s, " v1 ".4s, v1.4s\n\tfadd " v2           \
    ".4s, " v2 ".4s, v2.4s\n\t"
#define C_ADD                                                                                      \
    C_ADD_ROW("v8", "v16", "v24", "0", "16", "32")                                                 \
    C_ADD_ROW("v9", "v17", "v25", "48", "64", "80")                                                \
    C_ADD_ROW("v10", "v18", "v26", "96", "112", "128")                                             \
    C_ADD_ROW("v11", "v19", "v27", "144", "160", "176")                                            \
    C_ADD_ROW("v12", "v20", "v28", "192", "208", "224")                                            \
    C_ADD_ROW("v13", "v21", "v29", "240", "256", "272")                                            \
    C_ADD_ROW("v14", "v22", "v30", "288", "304", "320")                                            \
    C_ADD_ROW("v15", "v23", "v31", "336", "352", "368")
#define HAVE_GEMM_FULL

/* k >= 1 */
static void gemm_full(const float *a, const float *b, int k, float *c, bool add) {
    int64_t steps = k;
    __asm__ volatile(
        "ldr q0, [%[a]]\n\t"
        "ldr q1, [%[a], #16]\n\t"
        "ldr q2, [%[a], #32]\n\t"
        "ldr q5, [%[b]]\n\t"
        "ldr q6, [%[b], #16]\n\t"
        "cmp %[k], #1\n\t"
        "b.eq 5f\n\t"
        STEP_AND_LOAD("fmul", "v5", "v6", "48", "64", "80", "q3", "32", "q4", "48")
        "add %[a], %[a], #48\n\t"
        "add %[b], %[b], #32\n\t"
        "sub %[k], %[k], #1\n\t"
        "cmp %[k], #3\n\t"
        "b.lt 3f\n\t"
        "2:\n\t" /* two steps; a third is known to follow */
        STEP_AND_LOAD("fmla", "v3", "v4", "48", "64", "80", "q5", "32", "q6", "48")
        STEP_AND_LOAD("fmla", "v5", "v6", "96", "112", "128", "q3", "64", "q4", "80")
        "add %[a], %[a], #96\n\t"
        "add %[b], %[b], #64\n\t"
        "sub %[k], %[k], #2\n\t"
        "cmp %[k], #3\n\t"
        "b.ge 2b\n\t"
        "3:\n\t" /* two left, or one */
        "cmp %[k], #2\n\t"
        "b.lt 4f\n\t"
        STEP_AND_LOAD("fmla", "v3", "v4", "48", "64", "80", "q5", "32", "q6", "48")
        STEP("fmla", "v5", "v6")
        "b 6f\n\t"
        "4:\n\t" STEP("fmla", "v3", "v4")
        "b 6f\n\t"
        "5:\n\t" STEP("fmul", "v5", "v6")
        "6:\n\t"
        "cbz %w[add], 7f\n\t" C_ADD
        "7:\n\t" C_STORE
        : [a] "+r"(a), [b] "+r"(b), [k] "+r"(steps)
        : [c] "r"(c), [add] "r"((int)add)
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v8", "v9", "v10", "v11", "v12",
          "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25",
          "v26", "v27", "v28", "v29", "v30", "v31");
}

/* clang-format on */
