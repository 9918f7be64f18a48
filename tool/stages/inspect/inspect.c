/* SPDX-License-Identifier: Apache-2.0
 *
 * inspect.c - see inspect.h; and the unit of the stage: what the machine code of one variant for
 * one architecture needs, and the budget that it is held to.
 *
 * Invariant: the inspected cubin of a unit has the hash that the plan names.
 */
#include "stages/inspect/inspect.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "device/kernels.h"
#include "stages/stage.h"

/* ---- budgets --------------------------------------------------------------------------------- */

enum { DTYPES = 3, ARCHS = 2, TILES = 12 }; /* at most in a line */

static const struct {
    const char *family, *archs, *tiles;
    int64_t registers, tensor_ops;
} LINES[] = {
#define BUDGET(family, archs, registers, tensor_ops, tiles)                                        \
    {#family, #archs, #tiles, registers, tensor_ops},
#include "stages/inspect/budgets.def"
#undef BUDGET
};
enum { LINE_COUNT = sizeof LINES / sizeof *LINES };

/* tf32 families are fp32 alone, append_kv and merge_lse are of all dtypes, others of 16 bits. */
static bool has_dtype(const char *family, bool fp32) {
    const bool tf32 = strstr(family, "_tf32") != NULL;
    return tf32 == fp32 || strcmp(family, "append_kv") == 0 || strcmp(family, "merge_lse") == 0;
}

/* The index-th word of a list; its length, 0 past the last. */
static int word_at(const char *list, int index, const char **word) {
    *word = list;
    for (; index > 0 && **word != '\0'; index--) {
        *word += strcspn(*word, " ");
        *word += strspn(*word, " ");
    }
    return (int)strcspn(*word, " ");
}

bool budget_next(int *index, struct budget *budget) {
    static const char *const NAMES[DTYPES] = {"fp16", "bf16", "fp32"};
    for (; *index < LINE_COUNT * TILES * DTYPES * ARCHS; ++*index) {
        const int line = *index / (TILES * DTYPES * ARCHS), dtype = *index / ARCHS % DTYPES;
        const char *family = LINES[line].family, *tile, *arch;
        const int tile_size = word_at(LINES[line].tiles, *index / (DTYPES * ARCHS) % TILES, &tile);
        const int arch_size = word_at(LINES[line].archs, *index % ARCHS, &arch);
        if (tile_size > 0 && arch_size > 0 && has_dtype(family, dtype == 2)) {
            budget->registers = LINES[line].registers;
            budget->tensor_ops = LINES[line].tensor_ops;
            snprintf(budget->arch, sizeof budget->arch, "%.*s", arch_size, arch);
            snprintf(budget->variant, sizeof budget->variant, "%s_%s_%.*s", family, NAMES[dtype],
                     tile_size, tile);
            ++*index;
            return true;
        }
    }
    return false;
}

bool budget_find(const char *variant, const char *arch, struct budget *budget) {
    for (int i = 0; budget_next(&i, budget);) {
        if (strcmp(budget->variant, variant) == 0 && strcmp(budget->arch, arch) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- the log of ptxas ------------------------------------------------------------------------ */

/* The number before `unit` ("bytes smem") in a line; -1: there is none. */
static int64_t number_before(const char *line, const char *unit) {
    const char *found = strstr(line, unit);
    if (found == NULL || found == line || found[-1] != ' ') {
        return -1;
    }
    const char *digits = found - 1;
    while (digits > line && isdigit((unsigned char)digits[-1])) {
        digits--;
    }
    const ptrdiff_t count = found - 1 - digits;
    const bool negative = digits > line && digits[-1] == '-';
    return count >= 1 && count <= 10 && !negative ? (int64_t)strtoll(digits, NULL, 10) : -1;
}

static bool read_hash(const char *log, char hash[SHA256_TEXT], attn_error *why) {
    int end = 0;
    sscanf(log, "sha256 %64[0-9a-f]%n", hash, &end);
    return (end == (int)strlen("sha256 ") + SHA256_TEXT - 1 && log[end] == '\n') ||
           explain(why, "the log does not begin with \"sha256 \" and 64 digits");
}

/* What the log says of one kernel; its lines are cut apart. */
static bool read_block(char *block, const char *entry, struct ptxas_figures *figures,
                       attn_error *why) {
    char title[512];
    const int length = snprintf(title, sizeof title, "Function properties for %s\n", entry);
    char *spills = strstr(block, title), *used = spills != NULL ? strstr(spills, ": Used ") : NULL;
    if (spills == NULL) {
        return explain(why, "the log has no \"%.*s\"", length - 1, title);
    }
    spills += length;
    spills[strcspn(spills, "\r\n")] = '\0';
    figures->frame_bytes = number_before(spills, "bytes stack frame");
    figures->spill_stores = number_before(spills, "bytes spill stores");
    figures->spill_loads = number_before(spills, "bytes spill loads");
    if (figures->frame_bytes < 0 || figures->spill_stores < 0 || figures->spill_loads < 0) {
        return explain(why, "the log says \"%.160s\" of %.64s, expected stack frame and spills",
                       spills, entry);
    }
    if (used == NULL) {
        return explain(why, "the log does not say what %.64s uses; was ptxas called with -v?",
                       entry);
    }
    used[strcspn(used, "\r\n")] = '\0';
    const int64_t barriers = number_before(used, "barriers");
    const int64_t shared = number_before(used, "bytes smem");
    figures->registers = number_before(used, "registers");
    figures->barriers = barriers < 0 ? 0 : barriers;
    figures->shared_bytes = shared < 0 ? 0 : shared;
    return figures->registers >= 0 ||
           explain(why, "the log says \"%.160s\" of %.64s, expected registers", used, entry);
}

bool ptxas_log_read(const char *log, const char *entry, const char *arch,
                    struct ptxas_figures *figures, attn_error *why) {
    static const char COMPILING[] = "Compiling entry function";
    char title[512];
    memset(figures, 0, sizeof *figures);
    if (!read_hash(log, figures->sha256, why)) {
        return false;
    }
    const int length = snprintf(title, sizeof title, "%s '%s' for '%s'\n", COMPILING, entry, arch);
    const char *begin = strstr(log, title);
    if (begin == NULL) {
        return explain(why, "the log has no \"%.*s\"", length - 1, title);
    }
    const char *next = strstr(begin + length, COMPILING);
    char *block = must(next != NULL ? strndup(begin, (size_t)(next - begin)) : strdup(begin));
    const bool good = read_block(block, entry, figures, why);
    free(block);
    return good;
}

/* ---- printing and asserting ------------------------------------------------------------------ */

static const char *const OUTPUT_CALLS[] = {"vprintf", "__assertfail", "__assert_fail"};
enum { OUTPUT_CALL_COUNT = sizeof OUTPUT_CALLS / sizeof *OUTPUT_CALLS };

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

const char *inspect_output_call(const char *ptx) {
    for (int i = 0; i < OUTPUT_CALL_COUNT; i++) {
        const size_t length = strlen(OUTPUT_CALLS[i]);
        for (const char *at = strstr(ptx, OUTPUT_CALLS[i]); at != NULL;
             at = strstr(at + 1, OUTPUT_CALLS[i])) {
            if ((at == ptx || !is_word(at[-1])) && !is_word(at[length])) {
                return OUTPUT_CALLS[i];
            }
        }
    }
    return NULL;
}

/* ---- figures --------------------------------------------------------------------------------- */

/* wgmma: 64 rows of a warpgroup, 16 of the inner dimension, all columns at once. Elsewhere one
 * instruction of a warp is 16 x 8 x 16; in fp32 three are 16 x 8 x 8, and QK^T is a loop over 32 of
 * the head dimension. Backward: S and dP at least (wgmma), or 7 GEMMs of a tile, and 8 where dK and
 * dV are apart (portable/bwd_mma.cu); in fp32 dK, dV and dQ have S, dP and a sum each. */
int64_t inspect_demand(const attn_variant *v) {
    const int64_t dim = v->head_dim_max;
    if (!v->tensor_cores || v->warps < 1) {
        return 0;
    }
    const bool backward = v->direction == ATTN_BACKWARD;
    if (strstr(v->family, "hopper") != NULL) {
        return backward ? 2 * dim / 16 : dim / 16 + v->block_kv / 16;
    }
    const int64_t key_tiles = v->block_kv / 8;
    const bool fp32 = (v->dtypes >> ATTN_FP32 & 1) != 0;
    if (backward && !fp32) {
        return (dim > 64 ? 8 : 7) * (v->block_q / 16 * key_tiles * (dim / 16)) / v->warps;
    }
    const int64_t mmas = backward ? 3 * key_tiles * 3 * (2 * 32 / 8 + dim / 8)
                         : fp32   ? key_tiles * 3 * (32 / 8 + dim / 8)
                                  : key_tiles * (dim / 16) + dim / 8 * (v->block_kv / 16);
    return v->block_q / 16 * mmas / v->warps;
}

/* The log is bound by its hash; where it speaks of what the cubin tells too, they must agree, or
 * one of the two was misread. */
static bool read_log(const char *log, struct inspected *row, attn_error *why) {
    struct ptxas_figures said;
    if (log == NULL) {
        return explain(why, "there is no ptxas log");
    }
    if (!ptxas_log_read(log, row->entry.name, row->arch, &said, why)) {
        return false;
    }
    if (strcmp(said.sha256, row->sha256) != 0) {
        return explain(why, "the ptxas log is of another cubin: its sha256 is %s, the cubin's %s",
                       said.sha256, row->sha256);
    }
    row->log_bound = true;
    const struct {
        const char *what;
        int64_t log, cubin;
    } pairs[] = {
        {"registers", said.registers, row->entry.registers},
        {"barriers", said.barriers, row->entry.barriers},
        {"smem_static", said.shared_bytes, row->entry.shared_bytes},
        {"stack frame", said.frame_bytes, row->entry.frame_bytes},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (pairs[i].log != pairs[i].cubin) {
            return explain(why,
                           "%s: the ptxas log says %" PRId64 ", the cubin %" PRId64
                           "; one of them is misread",
                           pairs[i].what, pairs[i].log, pairs[i].cubin);
        }
    }
    row->spill_bytes = said.spill_stores + said.spill_loads;
    return true;
}

static void name_dtypes(uint32_t dtypes, char *text, size_t size) {
    static const char *const names[] = {
        [ATTN_FP32] = "fp32", [ATTN_FP16] = "fp16", [ATTN_BF16] = "bf16"}; /* of Q */
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if ((dtypes >> i & 1) != 0 && used < size) {
            used +=
                (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? "," : "", names[i]);
        }
    }
}

bool inspect_variant(const attn_variant *variant, const attn_image *image, struct inspected *row,
                     attn_error *why) {
    *row = (struct inspected){.name = variant->name,
                              .family = variant->family,
                              .head_dim = variant->head_dim_max,
                              .smem_dynamic = variant->shared_bytes,
                              .tensor_cores = variant->tensor_cores,
                              .tensor_demand = inspect_demand(variant),
                              .spill_bytes = INSPECT_UNKNOWN};
    snprintf(row->arch, sizeof row->arch, "%s", image->arch);
    name_dtypes(variant->dtypes, row->dtype, sizeof row->dtype);
    if (!cubin_open(&row->cubin, image->data, image->bytes, why) ||
        !cubin_find(&row->cubin, variant->entry, &row->entry, why)) {
        return false;
    }
    char found[16];
    snprintf(found, sizeof found, "sm_%" PRIu32, row->cubin.sm);
    if (strncmp(found, row->arch, strlen(found)) != 0) { /* "sm_90" is what sm_90a's says too */
        return explain(why, "its machine code is for %s", found);
    }
    for (int i = 0; i < OUTPUT_CALL_COUNT && row->output_call == NULL; i++) {
        row->output_call = cubin_names(&row->cubin, OUTPUT_CALLS[i]) ? OUTPUT_CALLS[i] : NULL;
    }
    sha256_text(image->data, image->bytes, row->sha256);
    sass_count(&row->cubin, &row->entry, &row->sass);
    read_log(image->log, row, &row->log_fault);
    return true;
}

/* The first image of a variant of the library that is of this kind and, unless that is NULL, has
 * this SHA-256; decompressed. */
static bool own_image(const char *name, attn_image_kind kind, const char *sha256,
                      attn_variant *variant, attn_image *image, attn_error *why) {
    if (!variant_by_name(NULL, name, variant, why)) {
        return false;
    }
    *image = (attn_image){.size = sizeof *image};
    for (int32_t i = 0; variant_image(NULL, name, i, image, why) == ATTN_OK; i++) {
        char hash[SHA256_TEXT] = "";
        if (sha256 != NULL) {
            sha256_text(image->data, image->bytes, hash);
        }
        if (image->kind == kind && (sha256 == NULL || strcmp(hash, sha256) == 0)) {
            return true;
        }
    }
    return false;
}

bool inspect_own(const attn_variant *variant, const attn_image *image, struct inspected *row,
                 attn_error *why) {
    attn_variant ignored;
    attn_image ptx;
    if (!own_image(variant->name, ATTN_IMAGE_PTX, NULL, &ignored, &ptx, why) ||
        !inspect_variant(variant, image, row, why)) { /* then what it prints is not known */
        return false;
    }
    row->ptx_output_call = inspect_output_call(ptx.data);
    return true;
}

bool inspect_kernel(const struct cubin *cubin, const char sha256[SHA256_TEXT], uint32_t index,
                    struct inspected *row, attn_error *why) {
    *row = (struct inspected){.cubin = *cubin,
                              .head_dim = INSPECT_UNKNOWN,
                              .smem_dynamic = INSPECT_UNKNOWN,
                              .spill_bytes = INSPECT_UNKNOWN};
    if (!cubin_entry(cubin, index, &row->entry, why)) {
        return false;
    }
    row->name = row->entry.name;
    snprintf(row->arch, sizeof row->arch, "sm_%" PRIu32, cubin->sm);
    memcpy(row->sha256, sha256, SHA256_TEXT);
    sass_count(cubin, &row->entry, &row->sass);
    return true;
}

const struct inspect_figure INSPECT_FIGURE[INSPECT_FIGURES] = {
    {"registers", "registers", "regs", 4},        {"stack_bytes", "stack_bytes", "stack", 5},
    {"spill_bytes", "spill_bytes", "spill", 5},   {"local_ops", "local_ops", "local", 5},
    {"tensor_ops", "tensor_ops", "tensor", 6},    {"barriers", "barriers", "bars", 4},
    {"smem_static", "shared_static", "smem", 6},  {"smem_dynamic", "shared_dynamic", "dynamic", 7},
    {"instructions", "instructions", "instr", 6}, {"helpers", "helpers", "helpers", 7},
    {"builtins", "builtins", "builtins", 8},
};

void inspect_values(const struct inspected *row, int64_t values[INSPECT_FIGURES]) {
    const struct cubin_entry *entry = &row->entry;
    const int64_t all[INSPECT_FIGURES] = {
        entry->registers,       entry->stack_bytes, row->spill_bytes,    row->sass.local,
        row->sass.tensor,       entry->barriers,    entry->shared_bytes, row->smem_dynamic,
        row->sass.instructions, entry->helpers,     entry->builtins};
    memcpy(values, all, sizeof all);
}

void inspect_json(struct json *json, const struct inspected *row, bool in_unit) {
    int64_t values[INSPECT_FIGURES];
    inspect_values(row, values);
    for (int i = 0; i < INSPECT_FIGURES; i++) {
        const struct inspect_figure *figure = &INSPECT_FIGURE[i];
        json_known_int(json, in_unit ? figure->in_unit : figure->name, values[i]);
    }
}

/* ---- the gate -------------------------------------------------------------------------------- */

struct gate {
    char (*failures)[256];
    int count;
};

static void __attribute__((format(printf, 2, 3))) fail(struct gate *gate, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(gate->failures[gate->count++], sizeof *gate->failures, format, list);
    va_end(list);
}

static void at_most(struct gate *gate, const char *figure, int64_t value, int64_t most) {
    if (value < 0) {
        fail(gate, "%s unknown, budget %" PRId64, figure, most);
    } else if (value > most) {
        fail(gate, "%s %" PRId64 ", budget %" PRId64, figure, value, most);
    }
}

int64_t inspect_fewest(const struct inspected *row, const struct budget *budget) {
    const int64_t more = budget != NULL ? budget->tensor_ops : 0;
    return row->tensor_demand > more ? row->tensor_demand : more;
}

static void check_tensor_ops(struct gate *gate, const struct inspected *row,
                             const struct budget *budget) {
    if (!row->tensor_cores) {
        at_most(gate, "tensor_ops", row->sass.tensor, 0);
        return;
    }
    const int64_t wanted = inspect_fewest(row, budget), fewest = wanted > 1 ? wanted : 1;
    if (row->sass.tensor < fewest) {
        fail(gate, "tensor_ops %" PRId64 ", budget at least %" PRId64, row->sass.tensor, fewest);
    }
}

int inspect_gate(const struct inspected *row, const struct budget *budget,
                 char failures[INSPECT_FAILURES_MAX][256]) {
    struct gate gate = {.failures = failures};
    if (budget == NULL) {
        fail(&gate, "it has no budget");
    } else {
        at_most(&gate, "registers", row->entry.registers, budget->registers);
    }
    if (row->log_fault.text[0] != '\0') {
        fail(&gate, "%.255s", row->log_fault.text);
    }
    at_most(&gate, "stack_bytes", row->entry.stack_bytes, 0);
    at_most(&gate, "spill_bytes", row->spill_bytes, 0);
    at_most(&gate, "local_ops", row->sass.local, 0);
    at_most(&gate, "helpers", row->entry.helpers, 0);
    check_tensor_ops(&gate, row, budget);
    for (int ptx = 0; ptx <= 1; ptx++) {
        const char *call = ptx ? row->ptx_output_call : row->output_call;
        if (call != NULL) {
            fail(&gate, "%s refers to %s: a release prints and asserts nothing",
                 ptx ? "the variant's PTX" : "its machine code", call);
        }
    }
    return gate.count;
}

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

bool record_inspect(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    attn_variant variant;
    attn_image image;
    struct inspected row;
    struct budget found;
    char log[SHA256_TEXT];
    if (!own_image(slot->variant, ATTN_IMAGE_CUBIN, slot->image, &variant, &image, NULL)) {
        return explain(why, "%s: the library has no cubin %.12s of it", slot->variant, slot->image);
    }
    if (!inspect_own(&variant, &image, &row, why)) {
        return false;
    }
    if (row.log_fault.text[0] != '\0') {
        return explain(why, "%s", row.log_fault.text);
    }
    if (!pack_add_artifact(pack, image.log, strlen(image.log), log, why)) {
        return false;
    }
    const struct budget *budget = budget_find(slot->variant, row.arch, &found) ? &found : NULL;
    record_controls(unit, &(struct planted){"spill", spill_is_caught(&row, &image, budget)}, 1);
    json_open(unit, "values", '{');
    inspect_json(unit, &row, true);
    json_int(unit, "tensor_cores", row.tensor_cores);
    json_int(unit, "tensor_demand", row.tensor_demand);
    json_int(unit, "output_calls", (row.output_call != NULL) + (row.ptx_output_call != NULL));
    if (budget != NULL) {
        json_int(unit, "budget_registers", budget->registers);
        json_int(unit, "budget_tensor_ops", inspect_fewest(&row, budget));
    }
    json_close(unit);
    json_texts(unit, "artifacts", &(const char *){log}, 1);
    return true;
}
