/* SPDX-License-Identifier: Apache-2.0
 *
 * verdict.c - see verdict.h.
 */
#include "pack/verdict.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/message.h"

const char *const GATE_NAMES[GATE_COUNT] = {"PASS", "NOT_RUN", "STALE", "FAIL", "INVALID"};

int gate_exit(enum gate gate) {
    static const int EXITS[GATE_COUNT] = {EXIT_DONE, EXIT_NOT_RUN, EXIT_NOT_RUN, EXIT_FAILED_CHECK,
                                          EXIT_INVALID};
    return EXITS[gate];
}

void judge(struct judgement *judgement, enum gate gate, const char *format, ...) {
    if (gate <= judgement->gate) {
        return;
    }
    judgement->gate = gate;
    va_list list;
    va_start(list, format);
    vsnprintf(judgement->reason, sizeof judgement->reason, format, list);
    va_end(list);
}
