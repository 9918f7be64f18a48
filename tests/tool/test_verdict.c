/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verdict.c - proves the laws of the verdicts over all of them: order and grouping do not
 * matter, nothing but PASS gives PASS, and only PASS exits with 0.
 */
#include "test.h"
#include "tool/base/message.h"
#include "tool/pack/verdict.h"

#define EACH(name) for (int name = 0; name < GATE_COUNT; name++)

static int join(int a, int b) {
    return (int)gate_join((enum gate)a, (enum gate)b);
}

TEST(laws) {
    EACH(a) {
        CHECK_EQ(join(a, a), a);
        CHECK_EQ(join(a, GATE_PASS), a);
        CHECK_EQ(join(a, GATE_INVALID), GATE_INVALID);
        EACH(b) {
            CHECK_EQ(join(a, b), join(b, a));
            CHECK_EQ(join(a, b), a > b ? a : b);
            CHECK_EQ(join(a, b) == GATE_PASS, a == GATE_PASS && b == GATE_PASS);
            EACH(c) {
                CHECK_EQ(join(join(a, b), c), join(a, join(b, c)));
            }
        }
    }
}

TEST(many) {
    const enum gate gates[] = {GATE_PASS, GATE_PASS, GATE_NOT_RUN, GATE_FAIL, GATE_STALE};
    CHECK_EQ(gate_join_all(gates, 0), GATE_NOT_RUN);
    CHECK_EQ(gate_join_all(gates, 2), GATE_PASS);
    CHECK_EQ(gate_join_all(gates, 3), GATE_NOT_RUN);
    CHECK_EQ(gate_join_all(gates, 5), GATE_FAIL);
}

TEST(names_and_exits) {
    static const char *const NAMES[] = {"PASS", "NOT_RUN", "STALE", "FAIL", "INVALID"};
    static const int EXITS[] = {EXIT_DONE, EXIT_NOT_RUN, EXIT_NOT_RUN, EXIT_FAILED_CHECK,
                                EXIT_INVALID};
    EACH(a) {
        CHECK_STR(GATE_NAMES[a], NAMES[a]);
        CHECK_EQ(gate_exit((enum gate)a), EXITS[a]);
        CHECK_EQ(gate_exit((enum gate)a) == EXIT_DONE, a == GATE_PASS);
    }
}

TEST_MAIN()
