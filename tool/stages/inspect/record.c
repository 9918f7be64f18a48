/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the unit of the stage inspect: what the machine code of one variant for one
 * architecture needs, and the budget that it is held to.
 *
 * Invariant: the inspected cubin has the hash that the plan names.
 */
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "stages/inspect/inspect.h"
#include "stages/stage.h"

/* ---- the control ----------------------------------------------------------------------------- */

/* The variant's own log with eight bytes of spills in it: the gate must refuse what it says. */
static bool spill_is_caught(const struct inspected *row, const attn_image *image,
                            const struct budget *budget) {
    char failures[INSPECT_FAILURES_MAX][256];
    char *log = strdup(image->log);
    char *place = log != NULL ? strstr(log, "0 bytes spill stores") : NULL;
    struct inspected planted = *row;
    struct ptxas_figures said = {0};
    bool caught = false;
    if (place != NULL) {
        *place = '8';
        ptxas_log_read(log, row->entry.name, row->arch, &said, NULL);
        planted.spill_bytes = said.spill_stores + said.spill_loads;
        const int count = inspect_gate(&planted, budget, failures);
        for (int i = 0; i < count; i++) {
            caught = caught || strncmp(failures[i], "spill_bytes 8", 13) == 0;
        }
    }
    free(log);
    return caught;
}

/* ---- the unit -------------------------------------------------------------------------------- */

static bool put_unit(const struct slot *slot, struct pack *pack, struct json *unit,
                     const struct inspected *row, const attn_image *image, attn_error *why) {
    struct budget found;
    char log[SHA256_TEXT];
    if (row->log_fault.text[0] != '\0') {
        return explain(why, "%s", row->log_fault.text);
    }
    if (!pack_add_artifact(pack, image->log, strlen(image->log), log, why)) {
        return false;
    }
    const struct budget *budget = budget_find(slot->variant, row->arch, &found) ? &found : NULL;
    record_controls(unit, &(struct planted){"spill", spill_is_caught(row, image, budget)}, 1);
    json_open(unit, "values", '{');
    inspect_json(unit, row, true);
    json_int(unit, "tensor_cores", row->tensor_cores);
    json_int(unit, "tensor_demand", row->tensor_demand);
    json_int(unit, "output_calls", (row->output_call != NULL) + (row->ptx_output_call != NULL));
    if (budget != NULL) {
        json_int(unit, "budget_registers", budget->registers);
        json_int(unit, "budget_tensor_ops", inspect_fewest(row, budget));
    }
    json_close(unit);
    json_texts(unit, "artifacts", &(const char *){log}, 1);
    return true;
}

bool record_inspect(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    attn_variant variant;
    attn_image image;
    struct inspected row;
    if (!own_image(slot->variant, ATTN_IMAGE_CUBIN, slot->image, &variant, &image, NULL)) {
        return explain(why, "%s: the library has no cubin %.12s of it", slot->variant, slot->image);
    }
    if (!inspect_own(&variant, &image, &row, why)) {
        return false;
    }
    return put_unit(slot, pack, unit, &row, &image, why);
}
