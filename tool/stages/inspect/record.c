/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the stage inspect of one variant: what its machine code for one architecture
 * needs, the budget that it is held to, what cuobjdump says of the same cubin where that is
 * installed, and what the same kernel needs in the library that the run was told to look at beside
 * it (--against: a debug build, or one before a change).
 *
 * Invariant: the cubin that is looked at has the hash that the plan names.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "base/tool_path.h"
#include "stages/inspect/against.h"
#include "stages/inspect/cuobjdump_log.h"
#include "stages/inspect/inspect.h"
#include "stages/inspect/ptxas_log.h"
#include "stages/record.h"

enum { DUMP_SECONDS = 30 };

static bool find_image(const struct slot *slot, attn_variant *variant, attn_image *image,
                       attn_error *why) {
    *variant = (attn_variant){.size = sizeof *variant};
    for (int32_t i = 0; attn_variant_get(NULL, i, variant, NULL) == ATTN_OK; i++) {
        *image = (attn_image){.size = sizeof *image};
        for (int32_t k = 0; strcmp(variant->name, slot->variant) == 0 &&
                            attn_variant_image(NULL, variant->name, k, image, NULL) == ATTN_OK;
             k++) {
            char hash[SHA256_TEXT];
            sha256_text(image->data, image->bytes, hash);
            if (image->kind == ATTN_IMAGE_CUBIN && strcmp(hash, slot->image) == 0) {
                return true;
            }
        }
    }
    return explain(why, "%s: the library has no cubin %.12s of it", slot->variant, slot->image);
}

/* What the PTX of a variant has to print with; NULL: nothing, as it must be. False: no PTX. */
static bool find_output_call(const char *variant, const char **call, attn_error *why) {
    attn_image image = {.size = sizeof image};
    for (int32_t i = 0; attn_variant_image(NULL, variant, i, &image, why) == ATTN_OK; i++) {
        if (image.kind == ATTN_IMAGE_PTX) {
            *call = inspect_output_call(image.data);
            return true;
        }
    }
    return false;
}

/* ---- the control ----------------------------------------------------------------------------- */

/* The variant's own log with eight bytes of spills in it: the gate must refuse what it says. */
static bool spill_is_caught(const struct inspected *row, const attn_image *image,
                            const struct budget *budget) {
    static const char zero[] = "0 bytes spill stores";
    char failures[INSPECT_FAILURES_MAX][256];
    char *log = image->log != NULL ? strdup(image->log) : NULL;
    char *place = log != NULL ? strstr(log, zero) : NULL;
    bool caught = false;
    if (place != NULL) {
        struct inspected planted = *row;
        struct ptxas_figures said = {0};
        *place = '8';
        if (ptxas_log_read(log, row->entry.name, row->arch, &said, NULL)) {
            planted.spill_bytes = said.spill_stores + said.spill_loads;
            const int count = inspect_gate(&planted, budget, failures);
            for (int i = 0; i < count; i++) {
                caught = caught || strncmp(failures[i], "spill_bytes 8", 13) == 0;
            }
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
    char option[] = "--dump-resource-usage", *text = NULL;
    if (!temporary_folder(folder, "inspect", why)) {
        return NULL;
    }
    snprintf(cubin, sizeof cubin, "%s/kernel.cubin", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    FILE *out = fopen(cubin, "wb");
    const bool opened = out != NULL;
    bool good = opened && fwrite(image->data, 1, image->bytes, out) == image->bytes;
    good = (!opened || fclose(out) == 0) && good;
    struct child child;
    char *argv[] = {(char *)(uintptr_t)program, option, cubin, NULL};
    size_t bytes = 0;
    if (!good) {
        explain(why, "%s: cannot be written", cubin);
    } else if (child_run(argv, log, DUMP_SECONDS, &child, why)) {
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
    struct inspected found = {.name = row->name};
    if (path == NULL) {
        return true;
    }
    if (other.variant == NULL && !other_open(path, &other, why)) {
        return false;
    }
    if (!other_find(&other, row, &found, NULL)) {
        return true;
    }
    json_int(unit, "against_registers", found.entry.registers);
    json_int(unit, "against_stack_bytes", found.entry.stack_bytes);
    json_int(unit, "against_spill_bytes", found.spill_bytes);
    json_int(unit, "against_local_ops", found.local_ops);
    json_int(unit, "against_instructions", found.instructions);
    json_int(unit, "against_tensor_ops", found.tensor_ops);
    cubin_close(&found.cubin);
    return true;
}

static bool put_values(struct json *unit, const struct inspected *row, const struct budget *budget,
                       const char *dump_text, attn_error *why) {
    json_open(unit, "values", '{');
    json_int(unit, "registers", row->entry.registers);
    json_int(unit, "stack_bytes", row->entry.stack_bytes);
    json_int(unit, "spill_bytes", row->spill_bytes);
    json_int(unit, "local_ops", row->local_ops);
    json_int(unit, "helpers", row->entry.helpers);
    json_int(unit, "builtins", row->entry.builtins);
    json_int(unit, "barriers", row->entry.barriers);
    json_int(unit, "shared_static", row->entry.shared_bytes);
    json_int(unit, "shared_dynamic", row->smem_dynamic);
    json_int(unit, "instructions", row->instructions);
    json_int(unit, "tensor_ops", row->tensor_ops);
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

static bool put_artifacts(struct json *unit, struct pack *pack, const attn_image *image,
                          const char *dump_text, attn_error *why) {
    const char *const texts[] = {image->log, dump_text};
    json_open(unit, "artifacts", '[');
    for (int i = 0; i < 2; i++) {
        char name[SHA256_TEXT];
        if (texts[i] == NULL) {
            continue;
        }
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
    json_open(unit, "controls", '[');
    record_control(unit, "spill", spill_is_caught(row, image, budget));
    json_close(unit);
    const bool good =
        put_values(unit, row, budget, text, why) && put_artifacts(unit, pack, image, text, why);
    free(text);
    return good;
}

bool record_inspect(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    attn_variant variant = {.size = sizeof variant};
    attn_image image = {.size = sizeof image};
    struct inspected row = {.name = slot->variant};
    if (!find_image(slot, &variant, &image, why) || !inspect_variant(&variant, &image, &row, why)) {
        return false;
    }
    const bool good = find_output_call(slot->variant, &row.ptx_output_call, why) &&
                      put_unit(slot, pack, unit, &row, &image, why);
    cubin_close(&row.cubin);
    return good;
}
