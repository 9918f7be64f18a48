/* SPDX-License-Identifier: Apache-2.0
 *
 * finding.c - see finding.h and record.h: kinds, deduplication, merging, suppression.
 *
 * Invariant: findings depend on the order of clusters and on the order of events within one, never
 * on which host thread was first.
 */
#include "report/record.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine/access.h"
#include "machine/status.h"

/* ---- kinds ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    vgpu_severity severity;
    const char *meaning;
} KINDS[FINDING_KIND_COUNT] = {
    [FINDING_OUT_OF_BOUNDS] = {"out-of-bounds", VGPU_ERROR, "an access outside of any allocation"},
    [FINDING_MISALIGNED] = {"misaligned", VGPU_ERROR, "an address that is no multiple of its size"},
    [FINDING_USE_AFTER_FREE] = {"use-after-free", VGPU_ERROR, "an access to memory that was freed"},
    [FINDING_WRONG_SPACE] = {"wrong-space", VGPU_ERROR,
                             "an address of one space used as one of another"},
    [FINDING_UNINITIALISED] = {"uninitialised", VGPU_ERROR,
                               "a value from uninitialised memory is stored or is an address"},
    [FINDING_UNINITIALISED_BRANCH] = {"uninitialised-branch", VGPU_WARNING,
                                      "a branch on a value from uninitialised memory"},
    [FINDING_UNINITIALISED_PART] = {"uninitialised-part", VGPU_WARNING,
                                    "a value is stored of which some bytes are uninitialised"},
    [FINDING_READ_ONLY] = {"read-only", VGPU_ERROR, "a write to memory that may only be read"},
    [FINDING_RACE] = {"race", VGPU_ERROR, "two accesses to shared memory that nothing orders"},
    [FINDING_RACE_SAME_VALUE] = {"race-same-value", VGPU_WARNING,
                                 "two stores of one value that nothing orders"},
    [FINDING_RACE_WARP] = {"race-warp", VGPU_WARNING,
                           "lanes of a warp share memory without __syncwarp"},
    [FINDING_RACE_GLOBAL] = {"race-global", VGPU_ERROR,
                             "two accesses to global memory that nothing orders"},
    [FINDING_RACE_PDL] = {"race-pdl", VGPU_ERROR,
                          "an access to global memory before griddepcontrol.wait that is not "
                          "ordered with one of an earlier kernel"},
    [FINDING_RACE_STREAM] = {"race-stream", VGPU_ERROR,
                             "two accesses to global memory by work of different streams that "
                             "nothing orders"},
    [FINDING_STALE_READ] = {"stale-read", VGPU_ERROR,
                            "a read through the read-only cache of what the kernel has written"},
    [FINDING_PROXY_FENCE] = {"proxy-fence", VGPU_ERROR,
                             "an engine reads what was written without fence.proxy.async"},
    [FINDING_ASYNC_READ_EARLY] = {"async-read-early", VGPU_ERROR,
                                  "a read of what an asynchronous copy has yet to write"},
    [FINDING_ASYNC_OVERWRITE] = {"async-overwrite", VGPU_ERROR,
                                 "a write to what an asynchronous operation still uses"},
    [FINDING_REGISTER_IN_FLIGHT] = {"register-in-flight", VGPU_ERROR,
                                    "a register that wgmma still uses is touched"},
    [FINDING_DIVERGENT_BARRIER] = {"divergent-barrier", VGPU_ERROR,
                                   "a barrier that not all threads of a warp reach together"},
    [FINDING_BARRIER_COUNT] = {"barrier-count", VGPU_ERROR,
                               "a barrier used with different or impossible counts"},
    [FINDING_DIVERGENT_WARP_OP] = {"divergent-warp-op", VGPU_ERROR,
                                   "a warp-wide instruction without all of its lanes"},
    [FINDING_DEADLOCK] = {"deadlock", VGPU_ERROR, "no thread can proceed"},
    [FINDING_MBARRIER] = {"mbarrier", VGPU_ERROR, "an mbarrier used against its rules"},
    [FINDING_ASYNC_UNFINISHED] = {"async-unfinished", VGPU_ERROR,
                                  "a CTA ends while an operation it issued is pending"},
    [FINDING_WGMMA_FENCE] = {"wgmma-fence", VGPU_ERROR,
                             "registers written before wgmma without wgmma.fence"},
    [FINDING_CLUSTER_EXIT] = {"cluster-exit", VGPU_ERROR, "shared memory of a CTA that has ended"},
    [FINDING_MATRIX_LOCAL] = {"matrix-local", VGPU_ERROR, "a matrix instruction on local memory"},
    [FINDING_TENSOR_MAP] = {"tensor-map", VGPU_ERROR, "a tensor map that is none"},
    [FINDING_DESCRIPTOR] = {"descriptor", VGPU_ERROR, "an illegal matrix descriptor"},
    [FINDING_SETMAXNREG] = {"setmaxnreg", VGPU_ERROR, "setmaxnreg against its rules"},
    [FINDING_ILLEGAL_OPERAND] = {"illegal-operand", VGPU_ERROR,
                                 "a value that the instruction does not take"},
    [FINDING_TRAP] = {"trap", VGPU_ERROR, "trap was executed"},
    [FINDING_ASSERT] = {"assert", VGPU_ERROR, "an assertion failed"},
    [FINDING_STEPS] = {"steps", VGPU_ERROR, "the limit of instructions was reached"},
    [FINDING_MEMORY_LIMIT] = {"memory-limit", VGPU_ERROR, "the limit of memory was reached"},
    [FINDING_STACK] = {"stack", VGPU_ERROR, "calls nested too deeply"},
    [FINDING_UNKNOWN] = {"unknown", VGPU_ERROR, "an instruction that this GPU does not know"},
    [FINDING_TRAP_ENTRY] = {"trap-entry", VGPU_ERROR, "a kernel that can only end in a trap"},
    [FINDING_LIMIT] = {"limit", VGPU_ERROR, "a kernel that no GPU can launch"},
    [FINDING_RACE_UNCHECKED] = {"race-unchecked", VGPU_NOTE,
                                "global memory that is not checked for races"},
    [FINDING_LAUNCH_LEFT_OUT] = {"launch-left-out", VGPU_NOTE, "launches that were not run"},
    [FINDING_CALL] = {"call-failed", VGPU_WARNING, "a call of the host that did not do its work"},
};

const char *finding_name(enum finding_kind kind) {
    return KINDS[kind].name;
}

vgpu_severity finding_severity(enum finding_kind kind) {
    return KINDS[kind].severity;
}

const char *finding_meaning(enum finding_kind kind) {
    return KINDS[kind].meaning;
}

/* ---- places ---------------------------------------------------------------------------------- */

static vgpu_place place_at(const struct ptx_location *location) {
    return (vgpu_place){.file = location->file,
                        .line = location->line,
                        .column = location->column,
                        .function = location->function};
}

void place_of(const struct ptx_module *ptx, const struct ptx_instruction *in, vgpu_place *place,
              vgpu_place inner[VGPU_FRAMES], vgpu_place callers[VGPU_FRAMES]) {
    uint32_t index = in != NULL ? in->location : 0;
    const uint32_t user = ptx_user_location(ptx, index);
    *place = (vgpu_place){0};
    vgpu_place *list = inner;
    for (int depth = 0; index != 0 && index < ptx->location_count; depth++) {
        const struct ptx_location *location = &ptx->locations[index];
        if (index == user) {
            *place = place_at(location);
            list = callers;
            depth = -1;
        } else if (list != NULL && depth < VGPU_FRAMES) {
            list[depth] = place_at(location);
        }
        index = location->inlined_at;
    }
}

/* ---- suppressions ---------------------------------------------------------------------------- */

/* "kernels/a.cu" names "src/kernels/a.cu" too. */
static bool same_file(const char *found, const char *wanted) {
    const size_t a = strlen(found), b = strlen(wanted);
    return a >= b && strcmp(found + (a - b), wanted) == 0 && (a == b || found[a - b - 1] == '/');
}

static bool place_matches(const vgpu_place *place, const struct suppression *rule) {
    return place->file != NULL && same_file(place->file, rule->file) &&
           (rule->line == 0 || rule->line == place->line);
}

/* The line itself, or any line of the chain of inlined calls. */
static bool rule_matches(const struct suppression *rule, const vgpu_finding *finding) {
    if (rule->kind != NULL && strcmp(rule->kind, finding->kind) != 0) {
        return false;
    }
    bool found = place_matches(&finding->place, rule);
    for (int i = 0; i < VGPU_FRAMES; i++) {
        found = found || place_matches(&finding->callers[i], rule) ||
                place_matches(&finding->inner[i], rule);
    }
    return found;
}

static bool is_suppressed(const vgpu *gpu, const vgpu_finding *finding) {
    for (const struct suppression *rule = gpu->suppressions; rule != NULL; rule = rule->next) {
        if (rule_matches(rule, finding)) {
            return true;
        }
    }
    return false;
}

void suppressions_free(struct suppression *list) {
    while (list != NULL) {
        struct suppression *next = list->next;
        free(list->kind);
        free(list->file);
        free(list);
        list = next;
    }
}

/* ---- lists ----------------------------------------------------------------------------------- */

struct findings *findings_make(void) {
    return calloc(1, sizeof(struct findings));
}

static void empty(struct findings *findings) {
    if (findings->strings != NULL) {
        arena_free(findings->strings);
    }
    free(findings->list);
    *findings = (struct findings){.news = findings->news};
}

void findings_free(struct findings *findings) {
    if (findings != NULL) {
        empty(findings);
        free(findings);
    }
}

static uint32_t bucket_of(enum finding_kind kind, const vgpu_finding *shown) {
    const uint32_t line = shown->place.file != NULL ? shown->place.line : shown->ptx_line;
    const uint32_t mixed = ((uint32_t)kind * 31 + line) * 0x9E3779B1U;
    return (mixed >> 16) % FINDING_BUCKETS;
}

static bool same_text(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_place(const vgpu_place *a, const vgpu_place *b) {
    return a->line == b->line && same_text(a->file, b->file);
}

/* Wherever the value was read: the first one is shown. */
static bool is_uninitialised(enum finding_kind kind) {
    return kind == FINDING_UNINITIALISED || kind == FINDING_UNINITIALISED_BRANCH ||
           kind == FINDING_UNINITIALISED_PART;
}

/* The same line of the source, inlined at the same line; the same of the PTX where no other is
 * known. An unrolled loop is one line of the source and many of the PTX. */
static bool same_finding(enum finding_kind kind, const vgpu_finding *a, const vgpu_finding *b) {
    const bool same = same_place(&a->place, &b->place) && same_place(&a->inner[0], &b->inner[0]) &&
                      same_place(&a->callers[0], &b->callers[0]) &&
                      (a->place.file != NULL || a->ptx_line == b->ptx_line) &&
                      strcmp(a->kernel, b->kernel) == 0 &&
                      (a->kernel[0] != '\0' || same_text(a->text, b->text));
    return same && (is_uninitialised(kind) ||
                    (same_place(&a->other, &b->other) &&
                     (a->other.file != NULL || a->other_ptx_line == b->other_ptx_line)));
}

static struct record *find(const struct findings *findings, enum finding_kind kind,
                           const vgpu_finding *shown) {
    struct record *record = findings->buckets[bucket_of(kind, shown)];
    while (record != NULL && (record->kind != kind || !same_finding(kind, &record->shown, shown))) {
        record = record->next;
    }
    return record;
}

static bool make_room(struct findings *findings) {
    if (findings->strings == NULL && (findings->strings = arena_make()) == NULL) {
        return false;
    }
    if (findings->count == findings->room) {
        const size_t room = findings->room > 0 ? 2 * findings->room : 16;
        struct record **list = realloc(findings->list, room * sizeof(struct record *));
        if (list == NULL) {
            return false;
        }
        findings->list = list;
        findings->room = room;
    }
    return true;
}

/* A record for what is shown, at `position` of the list. NULL, and counted: no room for it. */
static struct record *add(struct findings *findings, size_t limit, size_t position,
                          enum finding_kind kind, const vgpu_finding *shown) {
    struct record *record = NULL;
    findings->news++;
    if (findings->count < limit && make_room(findings)) {
        record = arena_alloc(findings->strings, sizeof *record);
    }
    if (record == NULL) {
        findings->not_kept[shown->severity] += shown->count;
        return NULL;
    }
    const uint32_t bucket = bucket_of(kind, shown);
    record->kind = kind;
    record->shown = *shown;
    record->next = findings->buckets[bucket];
    findings->buckets[bucket] = record;
    memmove(findings->list + position + 1, findings->list + position,
            (findings->count - position) * sizeof(struct record *));
    findings->list[position] = record;
    findings->count++;
    return record;
}

/* ---- reporting ------------------------------------------------------------------------------- */

static const char *space_name(int space) {
    switch (space) {
    case PTX_GLOBAL: return "global";
    case PTX_SHARED: return "shared";
    case PTX_LOCAL: return "local";
    case PTX_CONST: return "const";
    case PTX_PARAM: return "param";
    case SPACE_GENERIC: return "generic";
    case SPACE_SHARED_CLUSTER: return "shared::cluster";
    default: return "";
    }
}

static const char *format_text(struct arena *arena, const char *format, va_list arguments) {
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    const char *kept = arena_intern(arena, text, strlen(text));
    return kept != NULL ? kept : "";
}

static void describe(vgpu_finding *shown, const struct warp *warp, const struct op *op,
                     const struct finding_detail *detail) {
    const struct cta *cta = warp->cta;
    const struct ptx_module *ptx = cta->launch->kernel->module->ptx;
    memcpy(shown->cta, cta->id, sizeof shown->cta);
    shown->warp = warp->index;
    shown->seed = cta->launch->seed;
    shown->async = cta->launch->async;
    shown->space = "";
    place_of(ptx, op != NULL ? op->in : NULL, &shown->place, shown->inner, shown->callers);
    if (detail == NULL) {
        return;
    }
    shown->space = space_name(detail->space);
    shown->address = detail->address;
    shown->bytes = detail->bytes;
    if (detail->other != NULL) {
        const struct kernel *kernel =
            detail->other_kernel != NULL ? detail->other_kernel : cta->launch->kernel;
        place_of(kernel->module->ptx, detail->other->in, &shown->other, shown->other_inner,
                 shown->other_callers);
        shown->other_warp =
            detail->other_warp != NULL ? detail->other_warp->index : detail->other_warp_index;
    }
}

bool report_again(struct warp *warp, const struct op *op, enum finding_kind kind) {
    const struct kernel *kernel = warp->cta->launch->kernel;
    vgpu_finding shown = {.kernel = kernel->function->name, .ptx_line = op->in->line};
    place_of(kernel->module->ptx, op->in, &shown.place, shown.inner, shown.callers);
    struct record *record = find(warp->cta->cluster->findings, kind, &shown);
    if (record != NULL) {
        record->shown.count++;
    }
    return record != NULL;
}

void report(struct warp *warp, const struct op *op, enum finding_kind kind, uint32_t lanes,
            const struct finding_detail *detail, const char *format, ...) {
    const struct launch *launch = warp->cta->launch;
    if (launch->quiet && (kind == FINDING_UNINITIALISED || kind == FINDING_UNINITIALISED_BRANCH)) {
        return;
    }
    struct findings *findings = warp->cta->cluster->findings;
    const struct ptx_function *function = launch->kernel->function;
    const struct op *other = detail != NULL ? detail->other : NULL;
    vgpu_finding shown = {.kind = finding_name(kind),
                          .severity = finding_severity(kind),
                          .kernel = function->name,
                          .ptx_line = op != NULL ? op->in->line : function->line,
                          .other_ptx_line = other != NULL ? other->in->line : 0,
                          .lanes = lanes,
                          .count = 1};
    describe(&shown, warp, op, detail);
    struct record *record = find(findings, kind, &shown);
    if (record != NULL) {
        record->shown.count++;
        return;
    }
    if (is_suppressed(launch->gpu, &shown)) {
        return;
    }
    findings->kinds |= 1ULL << kind;
    record = add(findings, launch->gpu->config.max_findings, findings->count, kind, &shown);
    if (record != NULL) {
        va_list arguments;
        va_start(arguments, format);
        record->shown.text = format_text(findings->strings, format, arguments);
        va_end(arguments);
    }
}

/* ---- the GPU's list -------------------------------------------------------------------------- */

static const char *keep(struct arena *arena, const char *text) {
    return text != NULL ? arena_intern(arena, text, strlen(text)) : NULL;
}

static void keep_place(struct arena *arena, vgpu_place *place) {
    place->file = keep(arena, place->file);
    place->function = keep(arena, place->function);
}

/* Makes the record's strings the list's own. */
static void keep_strings(struct arena *arena, vgpu_finding *shown) {
    const char *kernel = keep(arena, shown->kernel), *text = keep(arena, shown->text);
    shown->kernel = kernel != NULL ? kernel : "";
    shown->text = text != NULL ? text : "";
    keep_place(arena, &shown->place);
    keep_place(arena, &shown->other);
    for (int i = 0; i < VGPU_FRAMES; i++) {
        keep_place(arena, &shown->inner[i]);
        keep_place(arena, &shown->other_inner[i]);
        keep_place(arena, &shown->callers[i]);
        keep_place(arena, &shown->other_callers[i]);
    }
}

static int compare_number(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

/* By severity, kernel, source line; then what makes the order complete. */
static int compare(const vgpu_finding *a, const vgpu_finding *b) {
    const char *file_a = a->place.file != NULL ? a->place.file : "";
    const char *file_b = b->place.file != NULL ? b->place.file : "";
    int order = compare_number(b->severity, a->severity);
    order = order != 0 ? order : strcmp(a->kernel, b->kernel);
    order = order != 0 ? order : strcmp(file_a, file_b);
    order = order != 0 ? order : compare_number(a->place.line, b->place.line);
    order = order != 0 ? order : compare_number(a->ptx_line, b->ptx_line);
    order = order != 0 ? order : strcmp(a->kind, b->kind);
    return order != 0 ? order : compare_number(a->other_ptx_line, b->other_ptx_line);
}

static void merge_one(vgpu *gpu, enum finding_kind kind, const vgpu_finding *shown) {
    struct findings *all = gpu->findings;
    struct record *record = find(all, kind, shown);
    if (record != NULL) {
        record->shown.count += shown->count;
        return;
    }
    size_t low = 0, high = all->count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (compare(&all->list[middle]->shown, shown) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    record = add(all, gpu->config.max_findings, low, kind, shown);
    if (record != NULL) {
        keep_strings(all->strings, &record->shown);
    }
}

void findings_merge(vgpu *gpu, struct findings *from) {
    if (from == NULL) {
        return;
    }
    for (size_t i = 0; i < from->count; i++) {
        merge_one(gpu, from->list[i]->kind, &from->list[i]->shown);
    }
    for (int severity = 0; severity < 3; severity++) {
        gpu->findings->not_kept[severity] += from->not_kept[severity];
    }
    gpu->findings->kinds |= from->kinds;
}

void report_kernel(vgpu *gpu, const struct kernel *kernel, const struct ptx_instruction *in,
                   enum finding_kind kind, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    vgpu_finding shown = {.kind = finding_name(kind),
                          .severity = finding_severity(kind),
                          .kernel = kernel->function->name,
                          .ptx_line = in != NULL ? in->line : kernel->function->line,
                          .space = "",
                          .count = 1,
                          .seed = gpu->config.seed,
                          .async = gpu->config.async,
                          .text = text};
    place_of(kernel->module->ptx, in, &shown.place, shown.inner, shown.callers);
    if (!is_suppressed(gpu, &shown)) {
        gpu->findings->kinds |= 1ULL << kind;
        merge_one(gpu, kind, &shown);
    }
}

void report_call(vgpu *gpu, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const vgpu_finding shown = {.kind = finding_name(FINDING_CALL),
                                .severity = finding_severity(FINDING_CALL),
                                .kernel = "",
                                .space = "",
                                .count = 1,
                                .seed = gpu->config.seed,
                                .async = gpu->config.async,
                                .text = text};
    if (!is_suppressed(gpu, &shown)) {
        merge_one(gpu, FINDING_CALL, &shown);
    }
}

uint64_t findings_take_kinds(vgpu *gpu) {
    const uint64_t kinds = gpu->findings->kinds;
    gpu->findings->kinds = 0;
    return kinds;
}

/* ---- for the user ---------------------------------------------------------------------------- */

bool vgpu_finding_get(const vgpu *gpu, size_t index, vgpu_finding *finding) {
    if (index >= gpu->findings->count) {
        return false;
    }
    *finding = gpu->findings->list[index]->shown;
    return true;
}

size_t vgpu_error_count(const vgpu *gpu) {
    size_t errors = (size_t)gpu->findings->not_kept[VGPU_ERROR];
    for (size_t i = 0; i < gpu->findings->count; i++) {
        errors += gpu->findings->list[i]->shown.severity == VGPU_ERROR;
    }
    return errors;
}

void vgpu_findings_clear(vgpu *gpu) {
    empty(gpu->findings);
}

static bool kind_exists(const char *name) {
    for (int kind = 0; kind < FINDING_KIND_COUNT; kind++) {
        if (strcmp(KINDS[kind].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* What was found before the rule came is dropped as well. */
static void drop(struct findings *findings, const struct suppression *rule) {
    size_t kept = 0;
    for (size_t i = 0; i < findings->count; i++) {
        struct record *record = findings->list[i];
        if (!rule_matches(rule, &record->shown)) {
            findings->list[kept++] = record;
            continue;
        }
        struct record **link = &findings->buckets[bucket_of(record->kind, &record->shown)];
        while (*link != record) {
            link = &(*link)->next;
        }
        *link = record->next;
    }
    findings->count = kept;
}

vgpu_status vgpu_suppress(vgpu *gpu, const char *kind, const char *file, uint32_t line,
                          vgpu_error *error) {
    if (kind != NULL && !kind_exists(kind)) {
        return status_fail(error, VGPU_INVALID, "kind = \"%.100s\" is no kind of finding", kind);
    }
    if (file == NULL || file[0] == '\0') {
        return status_fail(error, VGPU_INVALID, "file is %s, expected the name of a source file",
                           file == NULL ? "NULL" : "\"\"");
    }
    struct suppression *rule = calloc(1, sizeof *rule);
    if (rule != NULL) {
        *rule = (struct suppression){.next = gpu->suppressions, .file = strdup(file), .line = line};
        rule->kind = kind != NULL ? strdup(kind) : NULL;
        if (rule->file == NULL || (kind != NULL && rule->kind == NULL)) {
            rule->next = NULL;
            suppressions_free(rule);
            rule = NULL;
        }
    }
    if (rule == NULL) {
        return status_fail(error, VGPU_OUT_OF_MEMORY, "no memory for the suppression of %.200s",
                           file);
    }
    gpu->suppressions = rule;
    drop(gpu->findings, rule);
    return status_ok(error);
}
