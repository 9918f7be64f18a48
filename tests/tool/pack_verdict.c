/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_verdict.c - see pack_verdict.h.
 */
#include "tool/pack_verdict.h"

#include <stdint.h>
#include <stdio.h>

#include "tool/cli/verbs.h"
#include "tool/pack/evidence.h"

struct judgement pack_verdict(const struct pack *pack) {
    struct evidence evidence;
    attn_error why = {""};
    struct judgement judgement = {.gate = GATE_COUNT};
    if (evidence_make(pack, &evidence, &why)) {
        judgement = evidence.judgement;
    } else {
        snprintf(judgement.reason, sizeof judgement.reason, "%.255s", why.text);
    }
    evidence_free(&evidence);
    return judgement;
}

int pack_verify(const char *path) {
    char json[] = "--json", *argv[] = {(char *)(uintptr_t)path, json};
    const int status = verb_verify(2, argv);
    fflush(stdout);
    return status;
}
