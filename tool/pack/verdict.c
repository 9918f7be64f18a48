/* SPDX-License-Identifier: Apache-2.0
 *
 * verdict.c - see verdict.h. The algebra is a table, so that it can be read and tested as one.
 */
#include "pack/verdict.h"

#include "base/message.h"

const char *const GATE_NAMES[GATE_COUNT] = {"PASS", "NOT_RUN", "STALE", "FAIL", "INVALID"};

enum { P = GATE_PASS, N = GATE_NOT_RUN, S = GATE_STALE, F = GATE_FAIL, I = GATE_INVALID };

static const unsigned char JOIN[GATE_COUNT][GATE_COUNT] = {
    /*          P  N  S  F  I */
    /* P */ {P, N, S, F, I},
    /* N */ {N, N, S, F, I},
    /* S */ {S, S, S, F, I},
    /* F */ {F, F, F, F, I},
    /* I */ {I, I, I, I, I},
};

static const int EXITS[GATE_COUNT] = {
    [P] = EXIT_DONE,         [N] = EXIT_NOT_RUN, [S] = EXIT_NOT_RUN,
    [F] = EXIT_FAILED_CHECK, [I] = EXIT_INVALID,
};

enum gate gate_join(enum gate a, enum gate b) {
    return (enum gate)JOIN[a][b];
}

enum gate gate_join_all(const enum gate *gates, size_t count) {
    enum gate joined = count > 0 ? GATE_PASS : GATE_NOT_RUN;
    for (size_t i = 0; i < count; i++) {
        joined = gate_join(joined, gates[i]);
    }
    return joined;
}

int gate_exit(enum gate gate) {
    return EXITS[gate];
}
