/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - findings and costs as JSON, and findings as SARIF 2.1.0.
 *
 * Invariant: what is written is valid JSON whatever bytes a kernel's or a file's name has.
 */
#include "report/report.h"

#include <inttypes.h>
#include <string.h>

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at `text`; 0: it is none. */
static size_t utf8_length(const unsigned char *text) {
    const size_t length = text[0] >= 0xC2 && text[0] < 0xE0   ? 2
                          : text[0] >= 0xE0 && text[0] < 0xF0 ? 3
                          : text[0] >= 0xF0 && text[0] < 0xF5 ? 4
                                                              : 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    const bool overlong =
        (text[0] == 0xE0 && text[1] < 0xA0) || (text[0] == 0xF0 && text[1] < 0x90);
    const bool surrogate = text[0] == 0xED && text[1] > 0x9F;
    const bool too_large = text[0] == 0xF4 && text[1] > 0x8F;
    return length > 0 && (overlong || surrogate || too_large) ? 0 : length;
}

static void put_string(FILE *out, const char *string) {
    fputc('"', out);
    for (const unsigned char *at = (const unsigned char *)string; *at != '\0';) {
        const size_t length = *at >= 0x80 ? utf8_length(at) : 1;
        if (*at == '"' || *at == '\\') {
            fprintf(out, "\\%c", *at);
        } else if (*at < 0x20 || length == 0) {
            fprintf(out, "\\u%04x", *at);
        } else {
            fwrite(at, 1, length, out);
        }
        at += length > 0 ? length : 1;
    }
    fputc('"', out);
}

static void put_member(FILE *out, const char *name, const char *string) {
    fprintf(out, "\"%s\": ", name);
    put_string(out, string);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_place(FILE *out, const vgpu_place *place) {
    fprintf(out, "{");
    put_member(out, "file", place->file);
    fprintf(out, ", \"line\": %" PRIu32 ", \"column\": %" PRIu32, place->line, place->column);
    if (place->function != NULL) {
        char name[256];
        fprintf(out, ", ");
        put_member(out, "function", vgpu_readable_name(place->function, name, sizeof name));
    }
    fprintf(out, "}");
}

static void put_places(FILE *out, const char *name, const vgpu_place places[VGPU_FRAMES]) {
    fprintf(out, ",\n     \"%s\": [", name);
    for (int i = 0; i < VGPU_FRAMES && places[i].file != NULL; i++) {
        fprintf(out, i > 0 ? ", " : "");
        put_place(out, &places[i]);
    }
    fprintf(out, "]");
}

static void put_other(FILE *out, const vgpu_finding *finding) {
    fprintf(out, ",\n     \"other\": {\"ptx_line\": %" PRIu32 ", \"warp\": %" PRIu32,
            finding->other_ptx_line, finding->other_warp);
    if (finding->other.file != NULL) {
        fprintf(out, ", \"place\": ");
        put_place(out, &finding->other);
    }
    put_places(out, "inlined", finding->other_inner);
    put_places(out, "inlined_at", finding->other_callers);
    fprintf(out, "}");
}

static void put_finding(FILE *out, const vgpu_finding *finding) {
    char name[256];
    fprintf(out, "    {");
    put_member(out, "kind", finding->kind);
    fprintf(out, ", \"severity\": \"%s\", ", severity_name(finding->severity));
    put_member(out, "kernel", finding->kernel);
    fprintf(out, ", ");
    put_member(out, "demangled", vgpu_readable_name(finding->kernel, name, sizeof name));
    fprintf(out, ",\n     ");
    put_member(out, "text", finding->text);
    fprintf(out, ",\n     \"ptx_line\": %" PRIu32, finding->ptx_line);
    if (finding->place.file != NULL) {
        fprintf(out, ", \"place\": ");
        put_place(out, &finding->place);
    }
    put_places(out, "inlined", finding->inner);
    put_places(out, "inlined_at", finding->callers);
    fprintf(out, ",\n     \"cta\": [%" PRIu32 ", %" PRIu32 ", %" PRIu32 "], \"warp\": %" PRIu32,
            finding->cta[0], finding->cta[1], finding->cta[2], finding->warp);
    fprintf(out, ", \"lanes\": %" PRIu32, finding->lanes);
    if (finding->space != NULL && finding->space[0] != '\0') {
        fprintf(out, ",\n     \"space\": \"%s\", \"address\": \"0x%" PRIx64 "\"", finding->space,
                finding->address);
        fprintf(out, ", \"bytes\": %" PRIu32, finding->bytes);
    }
    if (finding->other_ptx_line != 0) {
        put_other(out, finding);
    }
    fprintf(out, ",\n     \"count\": %" PRIu64 ", \"async\": \"%s\", \"seed\": %" PRIu64 "}",
            finding->count, async_name(finding->async), finding->seed);
}

static void put_cost(FILE *out, const char *space, const char *unit, const struct cost *cost) {
    fprintf(out, ",\n     \"%s\": {\"requests\": %" PRIu64 ", \"%s\": %" PRIu64, space,
            cost->requests, unit, cost->used);
    fprintf(out, ", \"needed\": %" PRIu64 ", \"%s_per_request\": %.4f}", cost->needed, unit,
            cost_each(cost->used, cost));
}

static void put_line(FILE *out, const struct perf_line *line) {
    fprintf(out, "    {");
    put_member(out, "kernel", line->kernel);
    fprintf(out, ", ");
    put_member(out, "opcode", line->opcode);
    fprintf(out, ", \"ptx_line\": %" PRIu32, line->ptx_line);
    if (line->place.file != NULL) {
        fprintf(out, ", \"place\": ");
        put_place(out, &line->place);
    }
    if (line->shared.requests > 0) {
        put_cost(out, "shared", "passes", &line->shared);
    }
    if (line->global.requests > 0) {
        put_cost(out, "global", "sectors", &line->global);
    }
    fprintf(out, "}");
}

static void put_stats(FILE *out, const vgpu *gpu) {
    const vgpu_stats *stats = &gpu->stats;
    fprintf(out,
            "  \"stats\": {\"launches\": %" PRIu64 ", \"warp_instructions\": %" PRIu64
            ", \"thread_instructions\": %" PRIu64
            ",\n            \"tensor_instructions\": %" PRIu64,
            gpu->launches, stats->warp_instructions, stats->thread_instructions,
            stats->tensor_instructions);
    fprintf(out,
            ", \"shared_accesses\": %" PRIu64 ", \"shared_conflicts\": %" PRIu64
            ",\n            \"global_accesses\": %" PRIu64 ", \"global_sectors\": %" PRIu64 "},\n",
            stats->shared_accesses, stats->shared_conflicts, report_global_requests(gpu),
            stats->global_sectors);
}

static void put_mix(FILE *out, const struct perf *perf) {
    const char *separator = "";
    fprintf(out, "  \"mix\": {");
    for (int family = 0; perf != NULL && family < MIX_COUNT; family++) {
        if (perf->mix[family] > 0) {
            fprintf(out, "%s\"%s\": %" PRIu64, separator, mix_name((enum mix_family)family),
                    perf->mix[family]);
            separator = ", ";
        }
    }
    fprintf(out, "},\n");
}

void report_json(const vgpu *gpu, FILE *out) {
    const struct findings *findings = gpu->findings;
    const size_t lines = gpu->perf != NULL ? gpu->perf->count : 0;
    fprintf(out, "{\n  ");
    put_member(out, "vgpu", vgpu_version());
    fprintf(out, ",\n  \"errors\": %" PRIu64 ", \"warnings\": %" PRIu64 ", \"not_kept\": %" PRIu64,
            report_count(gpu, VGPU_ERROR), report_count(gpu, VGPU_WARNING),
            findings->not_kept[0] + findings->not_kept[1] + findings->not_kept[2]);
    fprintf(out, ",\n  \"findings\": [\n");
    for (size_t i = 0; i < findings->count; i++) {
        put_finding(out, &findings->list[i]->shown);
        fprintf(out, i + 1 < findings->count ? ",\n" : "\n");
    }
    fprintf(out, "  ],\n");
    put_stats(out, gpu);
    put_mix(out, gpu->perf);
    fprintf(out, "  \"performance\": [\n");
    for (size_t i = 0; i < lines; i++) {
        put_line(out, &gpu->perf->lines[i]);
        fprintf(out, i + 1 < lines ? ",\n" : "\n");
    }
    fprintf(out, "  ]\n}\n");
}

/* ---- SARIF ----------------------------------------------------------------------------------- */

/* A path as a URI reference: what is not plain is written as %XX. */
static void put_uri(FILE *out, const char *path) {
    fprintf(out, "\"%s", path[0] == '/' ? "file://" : "");
    for (const unsigned char *at = (const unsigned char *)path; *at != '\0'; at++) {
        const bool plain = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
                           (*at >= '0' && *at <= '9') || strchr("/._-~+", *at) != NULL;
        fprintf(out, plain ? "%c" : "%%%02X", *at);
    }
    fputc('"', out);
}

static void put_physical(FILE *out, const vgpu_place *place) {
    fprintf(out, "\"physicalLocation\": {\"artifactLocation\": {\"uri\": ");
    put_uri(out, place->file);
    fprintf(out, "}");
    if (place->line > 0) {
        fprintf(out, ", \"region\": {\"startLine\": %" PRIu32, place->line);
        if (place->column > 0) {
            fprintf(out, ", \"startColumn\": %" PRIu32, place->column);
        }
        fprintf(out, "}");
    }
    fprintf(out, "}");
}

static void put_location(FILE *out, const vgpu_finding *finding) {
    char name[256];
    fprintf(out, "          \"locations\": [{");
    if (finding->place.file != NULL) {
        put_physical(out, &finding->place);
        fprintf(out, ", ");
    }
    fprintf(out, "\"logicalLocations\": [{\"kind\": \"function\", ");
    put_member(out, "fullyQualifiedName", vgpu_readable_name(finding->kernel, name, sizeof name));
    fprintf(out, ", ");
    put_member(out, "decoratedName", finding->kernel);
    fprintf(out, "}]}],\n");
}

static void put_related(FILE *out, const vgpu_place *place, const char *message, uint32_t *id) {
    fprintf(out, "%s{\"id\": %" PRIu32 ", ", *id > 0 ? ", " : "", *id);
    put_physical(out, place);
    fprintf(out, ", \"message\": {");
    put_member(out, "text", message);
    fprintf(out, "}}");
    (*id)++;
}

static void put_related_places(FILE *out, const vgpu_place places[VGPU_FRAMES], const char *message,
                               uint32_t *id) {
    for (int i = 0; i < VGPU_FRAMES && places[i].file != NULL; i++) {
        put_related(out, &places[i], message, id);
    }
}

static void put_related_all(FILE *out, const vgpu_finding *finding) {
    uint32_t id = 0;
    char message[64];
    fprintf(out, "          \"relatedLocations\": [");
    put_related_places(out, finding->inner, "inlined from here", &id);
    put_related_places(out, finding->callers, "inlined here", &id);
    if (finding->other.file != NULL) {
        snprintf(message, sizeof message, "the %s", other_access(finding));
        put_related(out, &finding->other, message, &id);
    }
    snprintf(message, sizeof message, "the %s was inlined from here", other_access(finding));
    put_related_places(out, finding->other_inner, message, &id);
    snprintf(message, sizeof message, "the %s was inlined here", other_access(finding));
    put_related_places(out, finding->other_callers, message, &id);
    fprintf(out, "],\n");
}

static uint64_t hash_text(uint64_t hash, const char *text) {
    for (; text != NULL && *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001B3ULL;
    }
    return (hash ^ 0xFF) * 0x100000001B3ULL;
}

/* The same finding after unrelated lines of PTX changed has the same number. */
static uint64_t fingerprint(const vgpu_finding *finding) {
    uint64_t hash = hash_text(0xCBF29CE484222325ULL, finding->kind);
    hash = hash_text(hash, finding->kernel);
    hash = hash_text(hash, finding->place.file);
    hash = hash_text(hash, finding->other.file);
    hash ^= (uint64_t)finding->place.line << 32 | finding->other.line;
    if (finding->place.file == NULL) {
        hash ^= finding->ptx_line;
    }
    return hash * 0x100000001B3ULL;
}

static void put_result(FILE *out, const struct record *record) {
    const vgpu_finding *finding = &record->shown;
    fprintf(out, "        {");
    put_member(out, "ruleId", finding->kind);
    fprintf(out, ", \"ruleIndex\": %d, \"level\": \"%s\",\n", (int)record->kind,
            severity_name(finding->severity));
    fprintf(out, "          \"message\": {");
    put_member(out, "text", finding->text[0] != '\0' ? finding->text : finding->kind);
    fprintf(out, "},\n");
    put_location(out, finding);
    put_related_all(out, finding);
    fprintf(out, "          \"partialFingerprints\": {\"vgpu/v1\": \"%016" PRIx64 "\"},\n",
            fingerprint(finding));
    fprintf(out, "          \"occurrenceCount\": %" PRIu64 ",\n",
            finding->count < INT32_MAX ? finding->count : (uint64_t)INT32_MAX);
    fprintf(out, "          \"properties\": {");
    put_member(out, "kernel", finding->kernel);
    fprintf(out, ", \"ptxLine\": %" PRIu32 ", \"cta\": [%" PRIu32 ", %" PRIu32 ", %" PRIu32 "]",
            finding->ptx_line, finding->cta[0], finding->cta[1], finding->cta[2]);
    fprintf(out,
            ", \"warp\": %" PRIu32 ", \"lanes\": %" PRIu32 ", \"async\": \"%s\", \"seed\": %" PRIu64
            "}}",
            finding->warp, finding->lanes, async_name(finding->async), finding->seed);
}

static void put_rules(FILE *out) {
    fprintf(out, "          \"rules\": [\n");
    for (int kind = 0; kind < FINDING_KIND_COUNT; kind++) {
        fprintf(out, "            {");
        put_member(out, "id", finding_name((enum finding_kind)kind));
        fprintf(out, ", \"shortDescription\": {");
        put_member(out, "text", finding_meaning((enum finding_kind)kind));
        fprintf(out, "}, \"defaultConfiguration\": {\"level\": \"%s\"}}%s\n",
                severity_name(finding_severity((enum finding_kind)kind)),
                kind + 1 < FINDING_KIND_COUNT ? "," : "");
    }
    fprintf(out, "          ]\n");
}

void report_sarif(const vgpu *gpu, FILE *out) {
    const struct findings *findings = gpu->findings;
    fprintf(out, "{\n  \"$schema\": \"https://json.schemastore.org/sarif-2.1.0.json\",\n"
                 "  \"version\": \"2.1.0\",\n  \"runs\": [\n    {\n"
                 "      \"tool\": {\n        \"driver\": {\n          \"name\": \"vgpu\",\n"
                 "          ");
    put_member(out, "version", vgpu_version());
    fprintf(out, ",\n");
    put_rules(out);
    fprintf(out, "        }\n      },\n      \"columnKind\": \"utf16CodeUnits\",\n"
                 "      \"results\": [\n");
    for (size_t i = 0; i < findings->count; i++) {
        put_result(out, findings->list[i]);
        fprintf(out, i + 1 < findings->count ? ",\n" : "\n");
    }
    fprintf(out, "      ]\n    }\n  ]\n}\n");
}
