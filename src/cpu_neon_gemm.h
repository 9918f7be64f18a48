/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_neon_gemm.h - the 12 x 8 product of cpu_tile_kernel.h for full tiles, in assembly.
 *
 *     v8..v31   C: rows 0-3 in v8 + n, rows 4-7 in v16 + n, rows 8-11 in v24 + n, n = 0..7
 *     v0..v2    A of this step        v3 v4 / v5 v6   B of this step and of the next, in turn
 *
 * Where the loads stand decides the speed: one after every eight multiply-adds, for operands of
 * the next step, reaches 97 to 99 % of the peak; the compiler's order reaches 82 to 92 %.
 * Invariant: reads exactly k steps of A and B.
 */

/* Eight multiply-adds of one vector of A with the eight scalars of B. */
#define FMLA8(a, c0, c1, c2, c3, c4, c5, c6, c7, low, high)                                        \
    "fmla " c0 ".4s, " a ".4s, " low ".s[0]\n\t"                                                   \
    "fmla " c1 ".4s, " a ".4s, " low ".s[1]\n\t"                                                   \
    "fmla " c2 ".4s, " a ".4s, " low ".s[2]\n\t"                                                   \
    "fmla " c3 ".4s, " a ".4s, " low ".s[3]\n\t"                                                   \
    "fmla " c4 ".4s, " a ".4s, " high ".s[0]\n\t"                                                  \
    "fmla " c5 ".4s, " a ".4s, " high ".s[1]\n\t"                                                  \
    "fmla " c6 ".4s, " a ".4s, " high ".s[2]\n\t"                                                  \
    "fmla " c7 ".4s, " a ".4s, " high ".s[3]\n\t"
#define ROWS_0_3(low, high)                                                                        \
    FMLA8("v0", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", low, high)
#define ROWS_4_7(low, high)                                                                        \
    FMLA8("v1", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", low, high)
#define ROWS_8_11(low, high)                                                                       \
    FMLA8("v2", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", low, high)
#define STEP(low, high) ROWS_0_3(low, high) ROWS_4_7(low, high) ROWS_8_11(low, high)
/* A step that loads the next one's operands: A at a_next.., B at b_next.. into another pair. */
#define STEP_AND_LOAD(low, high, a0, a1, a2, next_low, b0, next_high, b1)                          \
    ROWS_0_3(low, high)                                                                            \
    "ldr q0, [%[a], #" a0 "]\n\t"                                                                  \
    "ldr " next_low ", [%[b], #" b0 "]\n\t" ROWS_4_7(low, high)                                    \
    "ldr q1, [%[a], #" a1 "]\n\t"                                                                  \
    "ldr " next_high ", [%[b], #" b1 "]\n\t" ROWS_8_11(low, high)                                  \
    "ldr q2, [%[a], #" a2 "]\n\t"

/* Key or dimension n of C: three vectors, 48 bytes. */
#define C_ROW(op, q0, q1, q2, at0, at1, at2)                                                       \
    op " " q0 ", [%[c], #" at0 "]\n\t" op " " q1 ", [%[c], #" at1 "]\n\t" op " " q2              \
       ", [%[c], #" at2 "]\n\t"
#define C_ALL(op)                                                                                  \
    C_ROW(op, "q8", "q16", "q24", "0", "16", "32")                                                 \
    C_ROW(op, "q9", "q17", "q25", "48", "64", "80")                                                \
    C_ROW(op, "q10", "q18", "q26", "96", "112", "128")                                             \
    C_ROW(op, "q11", "q19", "q27", "144", "160", "176")                                            \
    C_ROW(op, "q12", "q20", "q28", "192", "208", "224")                                            \
    C_ROW(op, "q13", "q21", "q29", "240", "256", "272")                                            \
    C_ROW(op, "q14", "q22", "q30", "288", "304", "320")                                            \
    C_ROW(op, "q15", "q23", "q31", "336", "352", "368")
#define ZERO4(a, b, c, d)                                                                          \
    "movi " a ".4s, #0\n\tmovi " b ".4s, #0\n\tmovi " c ".4s, #0\n\tmovi " d ".4s, #0\n\t"
#define C_ZERO                                                                                     \
    ZERO4("v8", "v9", "v10", "v11")                                                                \
    ZERO4("v12", "v13", "v14", "v15")                                                              \
    ZERO4("v16", "v17", "v18", "v19")                                                              \
    ZERO4("v20", "v21", "v22", "v23")                                                              \
    ZERO4("v24", "v25", "v26", "v27")                                                              \
    ZERO4("v28", "v29", "v30", "v31")

#define HAVE_GEMM_FULL

/* k >= 1 */
static void gemm_full(const float *a, const float *b, int k, float *c, bool accumulate) {
    int64_t steps = k;
    __asm__ volatile(
        "cbz %w[accumulate], 1f\n\t" C_ALL("ldr")
        "b 2f\n\t"
        "1:\n\t" C_ZERO
        "2:\n\t"
        "ldr q0, [%[a]]\n\t"
        "ldr q1, [%[a], #16]\n\t"
        "ldr q2, [%[a], #32]\n\t"
        "ldr q3, [%[b]]\n\t"
        "ldr q4, [%[b], #16]\n\t"
        "cmp %[k], #3\n\t"
        "b.lt 4f\n\t"
        "3:\n\t" /* two steps; a third is known to follow */
        STEP_AND_LOAD("v3", "v4", "48", "64", "80", "q5", "32", "q6", "48")
        STEP_AND_LOAD("v5", "v6", "96", "112", "128", "q3", "64", "q4", "80")
        "add %[a], %[a], #96\n\t"
        "add %[b], %[b], #64\n\t"
        "sub %[k], %[k], #2\n\t"
        "cmp %[k], #3\n\t"
        "b.ge 3b\n\t"
        "4:\n\t"
        "cmp %[k], #2\n\t"
        "b.lt 5f\n\t"
        STEP_AND_LOAD("v3", "v4", "48", "64", "80", "q5", "32", "q6", "48")
        STEP("v5", "v6")
        "b 6f\n\t"
        "5:\n\t" STEP("v3", "v4")
        "6:\n\t" C_ALL("str")
        : [a] "+r"(a), [b] "+r"(b), [k] "+r"(steps)
        : [c] "r"(c), [accumulate] "r"((int)accumulate)
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v8", "v9", "v10", "v11", "v12",
          "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25",
          "v26", "v27", "v28", "v29", "v30", "v31");
}
