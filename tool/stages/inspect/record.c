/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the unit of the stage inspect: what the machine code of one variant for one
 * architecture needs, the budget that it is held to, what cuobjdump says of the same cubin where it
 * is installed, and what the same kernel needs in the library of --against.
 *
 * Invariant: the cubin that is looked at has the hash that the plan names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "base/tool_path.h"
#include "stages/inspect/inspect.h"
#include "stages/inspect/ptxas_log.h"
#include "stages/stage.h"

enum { DUMP_SECONDS = 30 };

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

/* ---- cuobjdump ------------------------------------------------------------------------------- */

/* Runs cuobjdump on the cubin in a folder of its own. What it printed, for free(); NULL and the
 * reason. */
static char *dump(const char *program, const attn_image *image, attn_error *why) {
    char folder[TEMPORARY_SIZE], cubin[TEMPORARY_FILE], log[TEMPORARY_FILE];
    char *text = NULL;
    if (!temporary_folder(folder, "inspect", why)) {
        return NULL;
    }
    snprintf(cubin, sizeof cubin, "%s/kernel.cubin", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    struct child child;
    size_t bytes = 0;
    if (output_write(cubin, image->data, image->bytes, why) &&
        stage_run(log, DUMP_SECONDS, &child, why, program, "--dump-resource-usage", cubin, NULL)) {
        char ended[64];
        if (child.code != 0) {
            explain(why, "cuobjdump: %s", child_text(&child, ended, sizeof ended));
        } else {
            text = file_read(log, &bytes, why);
        }
    }
    unlink(cubin);
    unlink(log);
    rmdir(folder);
    return text;
}

/* ---- the unit -------------------------------------------------------------------------------- */

/* Of the other library, which is opened once; nothing where the run has none, or it no such
 * kernel. */
static bool put_against(struct json *unit, const struct inspected *row, attn_error *why) {
    static struct other_library other;
    const char *path = getenv(RECORD_AGAINST);
    struct inspected found;
    attn_error absent;
    if (path == NULL) {
        return true;
    }
    if (other.image == NULL && !other_open(path, &other, why)) {
        return false;
    }
    if (other_find(&other, row, &found, &absent)) {
        inspect_json(unit, &found, INSPECT_AGAINST);
    }
    return true;
}

static bool put_values(struct json *unit, const struct inspected *row, const struct budget *budget,
                       const char *dump_text, attn_error *why) {
    json_open(unit, "values", '{');
    inspect_json(unit, row, INSPECT_UNIT);
    json_int(unit, "tensor_cores", row->tensor_cores);
    json_int(unit, "tensor_demand", row->tensor_demand);
    json_int(unit, "output_calls", (row->output_call != NULL) + (row->ptx_output_call != NULL));
    if (budget != NULL) {
        json_int(unit, "budget_registers", budget->registers);
        json_int(unit, "budget_tensor_ops", budget->tensor_ops);
    }
    if (dump_text != NULL) {
        struct cuobjdump_figures said;
        cuobjdump_log_read(dump_text, row->entry.name, row->arch, &said);
        json_int(unit, "cuobjdump_registers", said.registers);
        json_int(unit, "cuobjdump_stack_bytes", said.stack_bytes);
        json_int(unit, "cuobjdump_shared_static", said.shared_static);
    }
    const bool good = put_against(unit, row, why);
    json_close(unit);
    return good;
}

static bool put_artifacts(struct json *unit, struct pack *pack, const char *log, const char *dumped,
                          attn_error *why) {
    const char *const texts[] = {log, dumped, NULL};
    json_open(unit, "artifacts", '[');
    for (int i = 0; texts[i] != NULL; i++) {
        char name[SHA256_TEXT];
        if (!pack_add_artifact(pack, texts[i], strlen(texts[i]), name, why)) {
            return false;
        }
        json_text(unit, NULL, name);
    }
    json_close(unit);
    return true;
}

static bool put_unit(const struct slot *slot, struct pack *pack, struct json *unit,
                     const struct inspected *row, const attn_image *image, attn_error *why) {
    static struct budgets budgets;
    char program[PATH_MAX], *text = NULL;
    if (row->log_fault.text[0] != '\0') {
        return explain(why, "%s", row->log_fault.text);
    }
    if (budgets.count == 0 && !budgets_built_in(&budgets, why)) {
        return false;
    }
    if (tool_find("cuobjdump", program, NULL)) {
        text = dump(program, image, why);
        if (text == NULL) {
            return false;
        }
    }
    const struct budget *budget = budgets_find(&budgets, slot->variant, row->arch);
    record_only_control(unit, "spill", spill_is_caught(row, image, budget));
    const bool good = put_values(unit, row, budget, text, why) &&
                      put_artifacts(unit, pack, image->log, text, why);
    free(text);
    return good;
}

bool record_inspect(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    attn_variant variant;
    attn_image image;
    struct inspected row;
    if (!library_image(&THIS_LIBRARY, slot->variant, ATTN_IMAGE_CUBIN, NULL, slot->image, &variant,
                       &image, NULL)) {
        return explain(why, "%s: the library has no cubin %.12s of it", slot->variant, slot->image);
    }
    if (!inspect_own(&variant, &image, &row, why)) {
        return false;
    }
    return put_unit(slot, pack, unit, &row, &image, why);
}
