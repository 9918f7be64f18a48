/* SPDX-License-Identifier: Apache-2.0
 *
 * test_report.c - findings of the virtual GPU: deduplication, order, limits, suppression, and
 * the three formats of a report; bank conflicts and sectors against a plain count.
 *
 * Nothing runs here: a kernel of a few made-up instructions reports what the tests pass in.
 */
#include <stdlib.h>

#include "test.h"
#include "vgpu/report/perf.h"
#include "vgpu/report/record.h"

/* ---- a kernel that is all names and lines ---------------------------------------------------- */

enum { OPS = 5, CTAS = 2 };

static struct ptx_location locations[] = {
    {0},
    {"src/tile.cuh", 12, 5, "load_tile", 2, false},
    {"src/step.cuh", 40, 9, "step", 3, false},
    {"src/main.cu", 100, 1, NULL, 0, false},
    {"src/main.cu", 120, 0, NULL, 0, false},
    {"src/tile.cuh", 19, 0, "store_tile", 3, false},
};
static struct ptx_instruction instructions[OPS] = {
    {.opcode = "ld", .line = 30, .location = 1},  {.opcode = "st", .line = 31, .location = 4},
    {.opcode = "bar", .line = 32, .location = 3}, {.opcode = "ld", .line = 33},
    {.opcode = "st", .line = 34, .location = 5},
};
static struct op ops[OPS];
static struct ptx_module ptx = {.locations = locations, .location_count = 6};
static struct ptx_function function = {.name = "kernel_a", .entry = true, .line = 20};
static struct kernel kernel = {.function = &function, .code = ops, .code_count = OPS};
static struct kernel *kernels[] = {&kernel};

struct world {
    vgpu *gpu;
    struct vgpu_module module;
    struct launch launch;
    struct cluster clusters[CTAS];
    struct cta ctas[CTAS];
    struct warp warps[CTAS];
};

static bool world_make(struct world *world, size_t max_findings) {
    vgpu_config config;
    vgpu_error why;
    *world = (struct world){0};
    vgpu_config_init(&config);
    config.max_findings = max_findings;
    config.max_memory = 1 << 20;
    if (!CHECK_MSG(vgpu_open(&config, &world->gpu, &why) == VGPU_OK, "%s", why.text)) {
        return false;
    }
    for (int i = 0; i < OPS; i++) {
        ops[i].in = &instructions[i];
    }
    world->module =
        (struct vgpu_module){.gpu = world->gpu, .ptx = &ptx, .kernels = kernels, .kernel_count = 1};
    kernel.module = &world->module;
    world->launch = (struct launch){.gpu = world->gpu,
                                    .kernel = &kernel,
                                    .seed = 7,
                                    .async = VGPU_ASYNC_RANDOM,
                                    .checks = VGPU_CHECK_ALL};
    for (uint32_t i = 0; i < CTAS; i++) {
        world->clusters[i] = (struct cluster){.launch = &world->launch,
                                              .linear = i,
                                              .ctas = &world->ctas[i],
                                              .cta_count = 1,
                                              .findings = findings_make()};
        world->ctas[i] =
            (struct cta){.launch = &world->launch, .cluster = &world->clusters[i], .id = {i, 0, 0}};
        world->warps[i] = (struct warp){.cta = &world->ctas[i], .kernel = &kernel, .index = 3};
    }
    return true;
}

static void world_merge(struct world *world) {
    for (int i = 0; i < CTAS; i++) {
        findings_merge(world->gpu, world->clusters[i].findings);
    }
}

static void world_free(struct world *world) {
    for (int i = 0; i < CTAS; i++) {
        findings_free(world->clusters[i].findings);
    }
    vgpu_close(world->gpu);
}

/* The report as a string, to be freed. */
static char *report_of(const vgpu *gpu, vgpu_format format) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    CHECK(out != NULL && vgpu_report(gpu, out, format) == VGPU_OK);
    if (out != NULL) {
        fclose(out);
    }
    return text;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

TEST(every_kind_has_a_name_a_meaning_and_a_severity) {
    for (int a = 0; a < FINDING_KIND_COUNT; a++) {
        const char *name = finding_name((enum finding_kind)a);
        const bool complete = name != NULL && finding_meaning((enum finding_kind)a) != NULL;
        CHECK_MSG(complete, "kind %d", a);
        if (name == NULL) {
            continue;
        }
        for (int b = 0; b < a; b++) {
            CHECK_MSG(strcmp(name, finding_name((enum finding_kind)b)) != 0, "%s twice", name);
        }
    }
    CHECK_EQ(finding_severity(FINDING_OUT_OF_BOUNDS), VGPU_ERROR);
    CHECK_EQ(finding_severity(FINDING_RACE_WARP), VGPU_WARNING);
    CHECK_EQ(finding_severity(FINDING_UNINITIALISED_BRANCH), VGPU_WARNING);
}

/* ---- lists ----------------------------------------------------------------------------------- */

TEST(one_record_for_one_place_tells_of_the_first_cluster) {
    struct world world;
    vgpu_finding found;
    if (!world_make(&world, 1000)) {
        return;
    }
    report(&world.warps[1], &ops[0], FINDING_OUT_OF_BOUNDS, 2, NULL, "second %d", 2);
    report(&world.warps[0], &ops[0], FINDING_OUT_OF_BOUNDS, 1, NULL, "first %d", 1);
    report(&world.warps[0], &ops[0], FINDING_OUT_OF_BOUNDS, 4, NULL, "again");
    report(&world.warps[0], &ops[0], FINDING_MISALIGNED, 1, NULL, "other kind");
    world_merge(&world);
    CHECK(vgpu_finding_get(world.gpu, 1, &found));
    CHECK_STR(found.kind, "out-of-bounds");
    CHECK_STR(found.text, "first 1");
    CHECK_EQ(found.count, 3);
    CHECK_EQ(found.cta[0], 0);
    CHECK_EQ(found.warp, 3);
    CHECK_EQ(found.lanes, 1);
    CHECK_EQ(found.seed, 7);
    CHECK_STR(found.callers[0].file, "src/step.cuh");
    CHECK_STR(found.callers[1].file, "src/main.cu");
    CHECK(found.callers[2].file == NULL);
    CHECK(!vgpu_finding_get(world.gpu, 2, &found));
    CHECK_EQ(vgpu_error_count(world.gpu), 2);
    vgpu_findings_clear(world.gpu);
    CHECK(!vgpu_finding_get(world.gpu, 0, &found));
    world_free(&world);
}

TEST(a_race_with_another_line_is_another_finding) {
    struct world world;
    if (!world_make(&world, 1000)) {
        return;
    }
    struct finding_detail detail = {.space = PTX_SHARED, .other = &ops[1]};
    report(&world.warps[0], &ops[0], FINDING_RACE, 1, &detail, "a");
    detail.other = &ops[3];
    report(&world.warps[0], &ops[0], FINDING_RACE, 1, &detail, "b");
    world_merge(&world);
    CHECK_EQ(vgpu_error_count(world.gpu), 2);
    world_free(&world);
}

TEST(findings_are_sorted_by_severity_then_line) {
    struct world world;
    vgpu_finding found;
    const char *const expected[] = {"divergent-barrier", "trap", "uninitialised-branch"};
    if (!world_make(&world, 1000)) {
        return;
    }
    report(&world.warps[0], &ops[0], FINDING_UNINITIALISED_BRANCH, 1, NULL, "w");
    report(&world.warps[0], &ops[1], FINDING_TRAP, 1, NULL, "line 120");
    report(&world.warps[0], &ops[2], FINDING_DIVERGENT_BARRIER, 1, NULL, "line 100");
    world_merge(&world);
    for (size_t i = 0; i < 3; i++) {
        CHECK(vgpu_finding_get(world.gpu, i, &found));
        CHECK_STR(found.kind, expected[i]);
    }
    CHECK_EQ(vgpu_error_count(world.gpu), 2);
    world_free(&world);
}

TEST(what_is_beyond_the_limit_is_counted_as_errors) {
    struct world world;
    vgpu_finding found;
    if (!world_make(&world, 1)) {
        return;
    }
    for (int i = 0; i < OPS; i++) {
        report(&world.warps[0], &ops[i], FINDING_TRAP, 1, NULL, "t");
    }
    report(&world.warps[1], &ops[1], FINDING_ASSERT, 1, NULL, "a");
    world_merge(&world);
    CHECK(vgpu_finding_get(world.gpu, 0, &found));
    CHECK(!vgpu_finding_get(world.gpu, 1, &found));
    CHECK_EQ(vgpu_error_count(world.gpu), OPS + 1);
    char *text = report_of(world.gpu, VGPU_TEXT);
    CHECK_CONTAINS(text, "5 more beyond the limit of 1 are counted only\n6 errors");
    free(text);
    world_free(&world);
}

TEST(kinds_that_were_found_are_told_once) {
    struct world world;
    if (!world_make(&world, 1000)) {
        return;
    }
    report(&world.warps[0], &ops[0], FINDING_TRAP, 1, NULL, "t");
    world_merge(&world);
    CHECK(findings_take_kinds(world.gpu) == 1ULL << FINDING_TRAP);
    CHECK(findings_take_kinds(world.gpu) == 0);
    world_free(&world);
}

/* ---- suppression ----------------------------------------------------------------------------- */

static void report_three(struct world *world) {
    report(&world->warps[0], &ops[0], FINDING_RACE, 1, NULL, "inlined into main.cu:100");
    report(&world->warps[0], &ops[1], FINDING_TRAP, 1, NULL, "main.cu:120");
    report(&world->warps[0], &ops[3], FINDING_TRAP, 1, NULL, "nowhere");
    world_merge(world);
}

static void check_suppression(const char *kind, const char *file, uint32_t line, bool before,
                              int left) {
    struct world world;
    vgpu_error why;
    if (!world_make(&world, 1000)) {
        return;
    }
    if (!before) {
        report_three(&world);
    }
    CHECK_EQ(vgpu_suppress(world.gpu, kind, file, line, &why), VGPU_OK);
    if (before) {
        report_three(&world);
    }
    CHECK_MSG((int)vgpu_error_count(world.gpu) == left, "%s %s:%u: %d errors, expected %d",
              kind ? kind : "*", file, line, (int)vgpu_error_count(world.gpu), left);
    world_free(&world);
}

TEST(suppressions_match_kind_file_and_line) {
    static const struct {
        const char *kind, *file;
        uint32_t line;
        int left;
    } CASES[] = {
        {NULL, "src/main.cu", 120, 2}, {NULL, "main.cu", 120, 2},   {NULL, "ain.cu", 120, 3},
        {NULL, "main.cu", 121, 3},     {NULL, "main.cu", 0, 1},     {"trap", "main.cu", 0, 2},
        {"race", "tile.cuh", 12, 2},   {"race", "main.cu", 100, 2}, {"race", "main.cu", 120, 3},
        {"mbarrier", "main.cu", 0, 3},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        check_suppression(CASES[i].kind, CASES[i].file, CASES[i].line, true, CASES[i].left);
        check_suppression(CASES[i].kind, CASES[i].file, CASES[i].line, false, CASES[i].left);
    }
}

TEST(wrong_suppressions_are_refused) {
    struct world world;
    vgpu_error why;
    if (!world_make(&world, 1000)) {
        return;
    }
    CHECK_EQ(vgpu_suppress(world.gpu, "nonsense", "a.cu", 1, &why), VGPU_INVALID);
    CHECK_CONTAINS(why.text, "nonsense");
    CHECK_EQ(vgpu_suppress(world.gpu, NULL, NULL, 1, &why), VGPU_INVALID);
    CHECK_EQ(vgpu_suppress(world.gpu, NULL, "", 1, NULL), VGPU_INVALID);
    world_free(&world);
}

/* ---- formats --------------------------------------------------------------------------------- */

static void report_a_race(struct world *world) {
    const struct finding_detail detail = {
        .space = PTX_SHARED, .address = 0x410, .bytes = 4, .other = &ops[4], .other_warp_index = 2};
    report(&world->warps[1], &ops[0], FINDING_RACE, 0xff, &detail, "read of \"tile\"");
    report(&world->warps[1], &ops[0], FINDING_RACE, 1, &detail, "again");
    report(&world->warps[1], &ops[3], FINDING_RACE_WARP, 1, NULL, "a\\b\n\xff");
    report_kernel(world->gpu, &kernel, NULL, FINDING_LIMIT, "too much of %s", "it");
    world_merge(world);
}

TEST(text_is_as_agreed) {
    struct world world;
    static const char GOLDEN[] =
        "PTX:20: error: limit: too much of it\n"
        "    in kernel kernel_a, PTX line 20\n"
        "src/tile.cuh:12:5: error: race: read of \"tile\"\n"
        "    in load_tile, inlined at src/step.cuh:40:9\n"
        "    in step, inlined at src/main.cu:100:1\n"
        "    in kernel kernel_a, PTX line 30, CTA (1, 0, 0), warp 3, lanes 0x000000ff\n"
        "    4 bytes at shared address 0x410\n"
        "    other access at src/tile.cuh:19 by warp 2, PTX line 34\n"
        "        in store_tile, inlined at src/main.cu:100:1\n"
        "    2 times; replay: async random, seed 7\n"
        "PTX:33: warning: race-warp: a\\b\n\xff\n"
        "    in kernel kernel_a, PTX line 33, CTA (1, 0, 0), warp 3, lanes 0x00000001\n"
        "    1 time; replay: async random, seed 7\n"
        "2 errors, 1 warning\n";
    if (!world_make(&world, 1000)) {
        return;
    }
    report_a_race(&world);
    char *text = report_of(world.gpu, VGPU_TEXT);
    CHECK_STR(text, GOLDEN);
    free(text);
    world_free(&world);
}

/* Where a JSON value ends, or NULL: it is none. */
static const char *json_end(const char *at, int depth);

static const char *json_blank(const char *at) {
    return at + strspn(at, " \n\t\r");
}

static const char *json_string_end(const char *at) {
    if (*at++ != '"') {
        return NULL;
    }
    for (; *at != '"'; at++) {
        if ((unsigned char)*at < 0x20) {
            return NULL;
        }
        if (*at == '\\' && (*++at == '\0' || strchr("\"\\/bfnrtu", *at) == NULL)) {
            return NULL;
        }
    }
    return at + 1;
}

static const char *json_list_end(const char *at, int depth, char close, bool members) {
    at = json_blank(at + 1);
    if (*at == close) {
        return at + 1;
    }
    for (;;) {
        if (members) {
            at = json_string_end(json_blank(at));
            at = at != NULL ? json_blank(at) : NULL;
            if (at == NULL || *at++ != ':') {
                return NULL;
            }
        }
        at = json_end(at, depth + 1);
        at = at != NULL ? json_blank(at) : NULL;
        if (at == NULL || (*at != ',' && *at != close)) {
            return NULL;
        }
        if (*at++ == close) {
            return at;
        }
    }
}

static const char *json_end(const char *at, int depth) {
    at = json_blank(at);
    if (depth > 50) {
        return NULL;
    }
    if (*at == '{' || *at == '[') {
        return json_list_end(at, depth, *at == '{' ? '}' : ']', *at == '{');
    }
    if (*at == '"') {
        return json_string_end(at);
    }
    const size_t number = strspn(at, "-0123456789.eE+");
    return number > 0 ? at + number : NULL;
}

static void check_json(const char *text) {
    const char *end = text != NULL ? json_end(text, 0) : NULL;
    CHECK_MSG(end != NULL && *json_blank(end) == '\0', "no JSON: %s",
              text != NULL ? text : "nothing");
}

TEST(the_check_of_json_can_fail) {
    static const char *const BAD[] = {"",          "{",        "{\"a\": }", "[1 2]",
                                      "{\"a\" 1}", "[\"\n\"]", "[1,]"};
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        const char *end = json_end(BAD[i], 0);
        CHECK_MSG(end == NULL || *json_blank(end) != '\0', "\"%s\" was taken", BAD[i]);
    }
}

TEST(json_is_valid_and_complete) {
    struct world world;
    if (!world_make(&world, 1000)) {
        return;
    }
    char *text = report_of(world.gpu, VGPU_JSON);
    check_json(text);
    free(text);
    report_a_race(&world);
    text = report_of(world.gpu, VGPU_JSON);
    check_json(text);
    CHECK_CONTAINS(text, "\"errors\": 2, \"warnings\": 1, \"not_kept\": 0");
    CHECK_CONTAINS(text, "\"kind\": \"race\", \"severity\": \"error\", \"kernel\": \"kernel_a\"");
    CHECK_CONTAINS(text, "\"text\": \"read of \\\"tile\\\"\"");
    CHECK_CONTAINS(text, "\"text\": \"a\\\\b\\u000a\\u00ff\"");
    CHECK_CONTAINS(text, "\"inlined_at\": [{\"file\": \"src/step.cuh\", \"line\": 40");
    CHECK_CONTAINS(text, "\"other\": {\"ptx_line\": 34, \"warp\": 2, \"place\"");
    CHECK_CONTAINS(text, "\"inlined_at\": [{\"file\": \"src/main.cu\", \"line\": 100");
    CHECK_CONTAINS(text, "\"count\": 2, \"async\": \"random\", \"seed\": 7");
    free(text);
    world_free(&world);
}

TEST(sarif_has_what_the_schema_requires) {
    struct world world;
    if (!world_make(&world, 1000)) {
        return;
    }
    report_a_race(&world);
    char *text = report_of(world.gpu, VGPU_SARIF);
    check_json(text);
    CHECK_CONTAINS(text, "\"version\": \"2.1.0\"");
    CHECK_CONTAINS(text, "\"driver\": {\n          \"name\": \"vgpu\"");
    CHECK_CONTAINS(text, "\"ruleId\": \"race\", \"ruleIndex\": ");
    CHECK_CONTAINS(text, "\"level\": \"warning\"");
    CHECK_CONTAINS(text, "\"artifactLocation\": {\"uri\": \"src/tile.cuh\"}, "
                         "\"region\": {\"startLine\": 12, \"startColumn\": 5}");
    CHECK_CONTAINS(text, "\"relatedLocations\": [{\"id\": 0, \"physicalLocation\"");
    CHECK_CONTAINS(text, "\"message\": {\"text\": \"the other access was inlined here\"}");
    CHECK_CONTAINS(text, "\"partialFingerprints\": {\"vgpu/v1\": \"");
    /* the rule of an index is the rule of the name */
    char rule[64];
    const char *at = strstr(text, "\"rules\": [");
    for (int i = 0; at != NULL && i <= (int)FINDING_RACE; i++) {
        at = strstr(at + 1, "{\"id\": ");
    }
    snprintf(rule, sizeof rule, "{\"id\": \"race\"");
    CHECK(at != NULL && strncmp(at, rule, strlen(rule)) == 0);
    free(text);
    world_free(&world);
}

/* ---- costs ----------------------------------------------------------------------------------- */

/* Passes by counting, for each phase and bank, the different words: the definition. */
static uint64_t plain_passes(const struct access *access) {
    const uint32_t bytes = access->element * access->count;
    const uint32_t lanes = bytes <= 4 ? 32 : 128 / bytes;
    uint64_t passes = 0;
    for (uint32_t from = 0; from < 32; from += lanes) {
        uint32_t most = 0;
        for (uint32_t bank = 0; bank < 32; bank++) {
            uint64_t seen[32];
            uint32_t count = 0;
            for (uint32_t lane = from; lane < from + lanes; lane++) {
                for (uint32_t byte = 0; byte < bytes && (access->good >> lane & 1) != 0; byte++) {
                    const uint64_t word = (access->address[lane] + byte) / 4;
                    bool known = word % 32 != bank;
                    for (uint32_t i = 0; i < count; i++) {
                        known = known || seen[i] == word;
                    }
                    if (!known) {
                        seen[count++] = word;
                    }
                }
            }
            most = count > most ? count : most;
        }
        passes += most;
    }
    return passes;
}

static uint64_t plain_sectors(const struct access *access) {
    static unsigned char touched[1 << 16];
    uint64_t sectors = 0;
    memset(touched, 0, sizeof touched);
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t bytes = access->element * access->count;
        for (uint32_t byte = 0; byte < bytes && (access->good >> lane & 1) != 0; byte++) {
            unsigned char *sector = &touched[(access->address[lane] + byte) / 32 % sizeof touched];
            sectors += *sector == 0;
            *sector = 1;
        }
    }
    return sectors;
}

static uint64_t random_state = 1;
static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(random_state >> 33) % below;
}

static void check_cost(struct world *world, const struct access *access) {
    vgpu_stats before, after;
    vgpu_stats_get(world->gpu, &before);
    perf_start_cluster(&world->clusters[0]);
    perf_shared(&world->warps[0], &ops[0], access);
    perf_global(&world->warps[0], &ops[1], access);
    perf_merge_cluster(world->gpu, &world->clusters[0]);
    vgpu_stats_get(world->gpu, &after);
    const uint32_t bytes = access->element * access->count;
    const uint32_t lanes = bytes <= 4 ? 32 : 128 / bytes;
    uint64_t phases = 0;
    for (uint32_t from = 0; from < 32; from += lanes) {
        phases += (access->good >> from & (lanes == 32 ? ALL_LANES : (1U << lanes) - 1)) != 0;
    }
    CHECK_EQ(after.shared_accesses - before.shared_accesses, 1);
    CHECK_EQ(after.shared_conflicts - before.shared_conflicts, plain_passes(access) - phases);
    CHECK_EQ(after.global_sectors - before.global_sectors, plain_sectors(access));
}

TEST(costs_equal_a_plain_count) {
    struct world world;
    if (!world_make(&world, 1000)) {
        return;
    }
    for (int round = 0; round < 2000 && test_state.failures == 0; round++) {
        struct access access = {.element = 1U << draw(4), .count = 1U << draw(3)};
        const uint32_t bytes = access.element * access.count;
        if (bytes > 16) {
            continue;
        }
        const uint32_t stride = bytes * draw(40), way = draw(3);
        access.good = draw(2) == 0 ? ALL_LANES : draw(UINT32_MAX) | 1U << draw(32);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint32_t at = way == 0   ? lane * stride
                                : way == 1 ? draw(200) * bytes
                                           : (lane ^ draw(2)) * bytes;
            access.address[lane] = 0x400 + at;
        }
        check_cost(&world, &access);
    }
    world_free(&world);
}

TEST(known_conflicts) {
    struct world world;
    if (!world_make(&world, 1000)) {
        return;
    }
    perf_start_cluster(&world.clusters[0]);
    struct access column = {.element = 4, .count = 1, .good = ALL_LANES};
    struct access rows = {.element = 16, .count = 1, .good = ALL_LANES};
    for (uint32_t lane = 0; lane < LANES; lane++) {
        column.address[lane] = 0x400 + 128 * lane; /* one bank: 32 passes */
        rows.address[lane] = 0x400 + 64 * lane;    /* ldmatrix, 64-byte rows: 4 passes a matrix */
    }
    perf_shared(&world.warps[0], &ops[0], &column);
    perf_shared(&world.warps[0], &ops[1], &rows);
    perf_global(&world.warps[0], &ops[3], &column);
    perf_merge_cluster(world.gpu, &world.clusters[0]);
    CHECK_EQ(world.gpu->stats.shared_conflicts, 31 + 12);
    CHECK_EQ(world.gpu->stats.global_sectors, 32);
    char *text = report_of(world.gpu, VGPU_TEXT);
    CHECK_CONTAINS(text, "src/tile.cuh:12:5: ld: shared memory: 32.00 passes a request, 1.00 "
                         "needed (1 requests) in kernel_a\n");
    CHECK_CONTAINS(text, "src/main.cu:120: st: shared memory: 16.00 passes a request, 4.00 needed");
    CHECK_CONTAINS(text, "PTX:33: ld: global memory: 32.00 sectors a request, 4.00 needed");
    free(text);
    text = report_of(world.gpu, VGPU_JSON);
    check_json(text);
    CHECK_CONTAINS(text, "\"passes_per_request\": 32.0000");
    free(text);
    world_free(&world);
}

TEST(no_costs_where_they_are_not_asked_for) {
    struct world world;
    if (!world_make(&world, 1000)) {
        return;
    }
    const struct access access = {.element = 4, .count = 1, .good = 1};
    world.launch.checks = 0;
    perf_start_cluster(&world.clusters[0]);
    perf_shared(&world.warps[0], &ops[0], &access);
    perf_merge_cluster(world.gpu, &world.clusters[0]);
    CHECK_EQ(world.gpu->stats.shared_accesses, 0);
    world_free(&world);
}

TEST_MAIN()
