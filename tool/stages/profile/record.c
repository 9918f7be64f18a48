/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the unit of the stage profile. One run of ncu serves several variants of the row;
 * what it printed is the artifact of each of them.
 *
 * Invariant: the values of a unit are those that ncu_report_read finds in its artifact.
 */
#include <stdio.h>

#include "base/child.h"
#include "device/kernels.h"
#include "stages/profile/ncu_run.h"
#include "stages/stage.h"

enum { LIMIT_SECONDS = 240, VARIANTS_MOST = 16 };

/* The last run of ncu. */
static struct {
    struct batch batch;
    bool done;
    struct ncu_result result;
    attn_error why;
    char artifact[SHA256_TEXT];
} last;

/* Profiles the slot's variant and those that follow it. False: nothing was observed. */
static bool run_batch(const struct slot *slot, const struct pack *pack, attn_error *why) {
    char ncu[PATH_MAX];
    if (!tool_find("ncu", ncu, why)) {
        return false;
    }
    ncu_result_free(&last.result);
    batch_fill(&last.batch, pack, slot, "profile", VARIANTS_MOST);
    const struct ncu_request request = {.ncu = ncu,
                                        .device = slot->device,
                                        .driver = slot->driver,
                                        .pattern = last.batch.pattern,
                                        .limit = LIMIT_SECONDS};
    last.done = ncu_run(&request, &last.result, &last.why);
    if (last.result.text == NULL) {
        return true;
    }
    last.result.bytes = ncu_forget_folder(last.result.text);
    return pack_add_artifact(pack, last.result.text, last.result.bytes, last.artifact, why);
}

bool record_profile(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    if (!batch_has(&last.batch, pack, slot) && !run_batch(slot, pack, why)) {
        last.batch.count = 0;
        return false;
    }
    if (!last.done) {
        *why = last.why;
        return false;
    }
    const struct ncu_kernel *kernel = ncu_figures(&last.result, slot->variant, why);
    if (kernel == NULL) {
        return false;
    }
    attn_variant variant;
    record_controls(unit, &(struct planted){"idle", last.result.idle}, 1);
    json_open(unit, "values", '{');
    ncu_values_json(unit, kernel);
    /* Without this value the judge expects a busy tensor pipe. */
    if (variant_by_name(NULL, slot->variant, &variant, NULL)) {
        json_int(unit, "tensor_cores", variant.tensor_cores);
    }
    json_close(unit);
    json_texts(unit, "artifacts", &(const char *){last.artifact}, 1);
    return true;
}
