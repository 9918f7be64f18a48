/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - the plan of a run. See run.h.
 */
#include "attn_inspect.h"
#include "run/run.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/json_read.h"
#include "base/message.h"
#include "device/kernels.h"
#include "pack/evidence.h"
#include "pack/plan.h"
#include "stages/stage.h"

struct making {
    const struct run_request *request;
    const struct json_value *before;
    struct run_device *devices;
    size_t device_count;
    struct json *json;
    regex_t regex; /* of the requested variants */
};

/* ---- the request ----------------------------------------------------------------------------- */

static bool check_names(const struct run_request *request, attn_error *why) {
    const struct arg_list *stages = &request->stages, *devices = &request->devices;
    for (size_t i = 0; i < stages->count; i++) {
        if (stage_of(stages->items[i]) == STAGES) {
            return explain(why,
                           "--stage: '%.80s', expected inspect, emulate, parity, sanitize, bench "
                           "or profile",
                           stages->items[i]);
        }
    }
    for (size_t i = 0; i < devices->count; i++) {
        const char *device = devices->items[i];
        if (strcmp(device, "cpu") != 0 && strcmp(device, "vgpu") != 0 && !names_gpu(device)) {
            return explain(why, "--device: '%.80s', expected cpu, vgpu or cuda:N", device);
        }
        for (size_t k = 0; k < i; k++) {
            if (strcmp(device, devices->items[k]) == 0) {
                return explain(why, "--device: '%s' is given twice", device);
            }
        }
    }
    return true;
}

static bool selected(const struct making *making, const char *variant, int direction) {
    const struct stage_alone *alone = making->request->alone;
    return (alone == NULL || alone->direction < 0 || alone->direction == direction) &&
           regexec(&making->regex, variant, 0, NULL, 0) == 0;
}

/* Whether some variant of the library matches. */
static bool check_pattern(const struct making *making, attn_error *why) {
    const struct stage_alone *alone = making->request->alone;
    const bool backward = alone != NULL && alone->direction == ATTN_BACKWARD;
    attn_variant variant;
    for (int32_t i = 0; variant_next(NULL, &i, &variant);) {
        if (selected(making, variant.name, (int)variant.direction)) {
            return true;
        }
    }
    return explain(why, "--variant: '%.80s' matches no %svariant of the library%s",
                   making->request->variant, backward ? "backward " : "",
                   variant_no_attention(making->request->variant));
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Up to its first subject. */
static void open_row(const struct making *making, enum stage stage, const char *device,
                     const char *absent) {
    const struct stage_alone *alone = making->request->alone;
    struct json *json = making->json;
    const bool full = making->request->full;
    json_open(json, NULL, '{');
    json_text(json, "stage", STAGE_NAMES[stage]);
    json_text(json, "device", device);
    json_text(json, "absent", absent[0] != '\0' ? absent : NULL);
    if (alone != NULL && stage == PARITY) {
        json_int(json, "launches", alone->one_case < 0 ? alone->launches : 0);
        json_known_int(json, "one_case", alone->one_case);
        json_text(json, "code", alone->code);
        json_text(json, "async", alone->async);
    } else if (stage == EMULATE || stage == PARITY) {
        json_int(json, "cases", plan_least_cases(stage, device, full));
    }
    if (alone == NULL && stage == PARITY) {
        json_int(json, "launches", LEAST_LAUNCHES);
    } else if (stage == BENCH) {
        json_int(json, "timings", plan_least_timings(device, full, false));
    }
    json_open(json, "subjects", '[');
}

static bool is_asked_for(const struct making *making, const struct run_subject *subject) {
    return selected(making, subject->variant, subject->direction);
}

static bool is_subject(const struct making *making, enum stage stage,
                       const struct run_subject *subject) {
    return subject->refusal[0] == '\0' && is_asked_for(making, subject) &&
           (stage != PROFILE || subject->chosen || making->request->alone != NULL);
}

/* For parity alone: the subject's part of the cases of its family. */
static void put_cases(const struct making *making, const struct run_device *device,
                      const struct run_subject *subject) {
    const struct stage_alone *alone = making->request->alone;
    int64_t before = 0, all = 1;
    for (size_t i = 0; i < device->count; i++) {
        const struct run_subject *other = &device->subjects[i];
        if (is_subject(making, PARITY, other) && strcmp(other->family, subject->family) == 0) {
            before += other < subject;
            all += other != subject;
        }
    }
    const bool one = alone->one_case >= 0;
    const int64_t each = one ? 1 : (alone->cases + all - 1) / all;
    json_int(making->json, "first_case", one ? alone->one_case : before * each);
    json_int(making->json, "cases", each);
}

/* Why nothing of it can be done here; "": something can. */
static void find_absence(const struct making *making, enum stage stage,
                         const struct run_device *device, char absent[256]) {
    const char *refusal = "the library takes none of them for a usual problem";
    snprintf(absent, 256, "%s", device->absent);
    if (absent[0] == '\0') {
        run_tool_absent(stage, device->name, absent);
    }
    for (size_t i = device->count; i-- > 0;) {
        const struct run_subject *subject = &device->subjects[i];
        if (is_subject(making, stage, subject)) {
            return;
        }
        if (subject->refusal[0] != '\0' && is_asked_for(making, subject)) {
            refusal = subject->refusal;
        }
    }
    if (absent[0] == '\0') {
        snprintf(absent, 256, "no variant runs there: %.200s", refusal);
    }
}

static void put_refusal(const struct making *making, const struct run_subject *subject) {
    struct json *json = making->json;
    if (subject->refusal[0] != '\0' && is_asked_for(making, subject)) {
        json_open(json, NULL, '{');
        json_text(json, "variant", subject->variant);
        json_text(json, "reason", subject->refusal);
        json_close(json);
    }
}

static void put_device_row(const struct making *making, enum stage stage,
                           const struct run_device *device) {
    struct json *json = making->json;
    char absent[256];
    find_absence(making, stage, device, absent);
    open_row(making, stage, device->name, absent);
    for (size_t i = 0; absent[0] == '\0' && i < device->count; i++) {
        const struct run_subject *subject = &device->subjects[i];
        if (is_subject(making, stage, subject)) {
            json_open(json, NULL, '{');
            json_text(json, "variant", subject->variant);
            json_text(json, "image", subject->image[0] != '\0' ? subject->image : NULL);
            if (stage == BENCH && making->request->full && subject->chosen) {
                json_int(json, "timings", plan_least_timings(device->name, true, true));
            } else if (stage == PARITY && making->request->alone != NULL) {
                put_cases(making, device, subject);
            }
            json_close(json);
        }
    }
    json_close(json);
    if (stage != INSPECT) {
        json_open(json, "refused", '[');
        for (size_t i = 0; absent[0] == '\0' && stage != PROFILE && i < device->count; i++) {
            put_refusal(making, &device->subjects[i]);
        }
        json_close(json);
    }
    json_close(json);
}

/* A row that the run before could do and this machine cannot: what it holds still counts. */
static void put_row(const struct making *making, enum stage stage,
                    const struct run_device *device) {
    const struct json_value *before = plan_row(making->before, STAGE_NAMES[stage], device->name);
    if (device->absent[0] != '\0' && before != NULL && json_text_at(before, "absent") == NULL) {
        json_value_json(making->json, before);
        return;
    }
    bool concerned = device->absent[0] != '\0'; /* or it has a requested variant */
    for (size_t i = 0; !concerned && i < device->count; i++) {
        concerned = is_asked_for(making, &device->subjects[i]);
    }
    if (concerned) {
        put_device_row(making, stage, device);
    }
}

/* ---- images ---------------------------------------------------------------------------------- */

static void add_cubin(struct run_device *archs, size_t *count, const attn_variant *variant,
                      const attn_image *image) {
    struct run_subject subject = {.family = variant->family, .direction = (int)variant->direction};
    size_t i = 0;
    while (i < *count && strcmp(archs[i].name, image->arch) != 0) {
        i++;
    }
    struct run_device *arch = &archs[i];
    if (i == *count) {
        snprintf(archs[(*count)++].name, sizeof arch->name, "%s", image->arch);
    }
    snprintf(subject.variant, sizeof subject.variant, "%s", variant->name);
    sha256_text(image->data, image->bytes, subject.image);
    arch->subjects = grow(arch->subjects, arch->count, sizeof subject);
    arch->subjects[arch->count++] = subject;
}

/* Inspect looks at machine code: an architecture stands for a device, and no device is needed. */
static void put_inspect_rows(const struct making *making) {
    enum { ARCHS_MOST = 8 };
    struct run_device archs[ARCHS_MOST] = {{.name = ""}};
    const struct run_device none = {.name = "cubins",
                                    .absent = "the library was built without kernels for GPUs"};
    size_t count = 0;
    attn_variant variant;
    attn_image image = {.size = sizeof image};
    for (int32_t i = 0; variant_next(NULL, &i, &variant);) {
        for (int32_t k = 0;
             count < ARCHS_MOST && variant_image(NULL, variant.name, k, &image, NULL) == ATTN_OK;
             k++) {
            if (image.kind == ATTN_IMAGE_CUBIN) {
                add_cubin(archs, &count, &variant, &image);
            }
        }
    }
    if (count == 0) {
        put_row(making, INSPECT, &none);
    }
    for (size_t i = 0; i < count; i++) {
        put_row(making, INSPECT, &archs[i]);
        free(archs[i].subjects);
    }
}

/* All that the library has, whatever the request. */
static void put_variants(const struct making *making) {
    struct json *json = making->json;
    attn_variant variant;
    json_open(json, "variants", '[');
    for (int32_t i = 0; variant_next(NULL, &i, &variant);) {
        json_open(json, NULL, '{');
        json_text(json, "name", variant.name);
        json_text(json, "device", variant.device);
        json_close(json);
    }
    json_close(json);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bool put_head(const struct making *making, attn_error *why) {
    const struct run_request *request = making->request;
    struct json *json = making->json;
    char library[SHA256_TEXT], tool[64], seed[17];
    struct utsname host = {.sysname = ""};
    if (!current_identity(library, tool, why)) {
        return false;
    }
    snprintf(seed, sizeof seed, "%016llx", (unsigned long long)request->seed);
    json_text(json, "schema", PACK_SCHEMA);
    json_text(json, "mode", request->full ? "full" : "quick");
    json_text(json, "tool", tool);
    json_text(json, "library", library);
    json_text(json, "seed", seed);
    json_real(json, "gpu_hour_price", request->price);
    if (request->commit != NULL) {
        json_text(json, "commit", request->commit);
    }
    json_open(json, "request", '{');
    json_texts(json, "stages", request->stages.items, request->stages.count);
    json_texts(json, "devices", request->devices.items, request->devices.count);
    json_text(json, "variant", request->variant);
    json_close(json);
    (void)uname(&host);
    json_open(json, "environment", '{');
    json_text(json, "system", host.sysname);
    json_text(json, "release", host.release);
    json_text(json, "machine", host.machine);
    json_open(json, "devices", '{');
    for (size_t i = 0; i < making->device_count; i++) { /* one that is gone keeps its name */
        const struct run_device *device = &making->devices[i];
        json_text(json, device->name,
                  device->absent[0] == '\0' ? device->model
                                            : plan_model(making->before, device->name));
    }
    json_close(json);
    run_tools_json(json);
    json_close(json);
    return true;
}

static void put_rows(const struct making *making) {
    const struct run_request *request = making->request;
    const bool only_cpu = making->device_count == 1 && strcmp(making->devices[0].name, "cpu") == 0;
    json_open(making->json, "rows", '[');
    if (request->alone != NULL) {
        put_device_row(making, request->alone->stage, &making->devices[0]);
    }
    for (int stage = 0; request->alone == NULL && stage < STAGES; stage++) {
        bool asked = request->stages.count == 0;
        for (size_t i = 0; i < request->stages.count; i++) {
            asked = asked || strcmp(request->stages.items[i], STAGE_NAMES[stage]) == 0;
        }
        if (asked && stage == INSPECT && !only_cpu) {
            put_inspect_rows(making);
        }
        for (size_t i = 0; asked && i < making->device_count; i++) {
            const struct run_device *device = &making->devices[i];
            if (plan_is_for((enum stage)stage, device->name)) {
                put_row(making, (enum stage)stage, device);
            }
        }
    }
    json_close(making->json);
}

/* A run is resumed with the devices that it had: figures of two machines are not one row. */
static bool ask_devices(struct making *making, attn_error *why) {
    static const char *const USUAL[] = {"cpu", "vgpu", "cuda:0"};
    const struct arg_list *asked = &making->request->devices;
    const size_t count = asked->count > 0 ? asked->count : sizeof USUAL / sizeof *USUAL;
    making->devices = must(calloc(count, sizeof *making->devices));
    bool good = true;
    while (good && making->device_count < count) {
        const size_t i = making->device_count++;
        struct run_device *device = &making->devices[i];
        good = run_device_ask(asked->count > 0 ? asked->items[i] : USUAL[i],
                              making->request->variant, device, why);
        const char *before = plan_model(making->before, device->name);
        if (good && before != NULL && device->absent[0] == '\0' &&
            strcmp(before, device->model) != 0) {
            good = explain(why, "--resume: %s is %s here, and the pack is of %s", device->name,
                           device->model, before);
        }
    }
    return good;
}

char *run_plan_make(const struct run_request *request, const struct json_value *before,
                    attn_error *why) {
    struct making making = {.request = request, .before = before};
    struct memo memo;
    size_t bytes = 0;
    if (!stage_pattern(request->variant, &making.regex, why)) {
        return NULL;
    }
    memo_begin(&memo);
    making.json = &memo.json;
    const bool good = check_names(request, why) && check_pattern(&making, why) &&
                      ask_devices(&making, why) && put_head(&making, why);
    if (good) {
        put_rows(&making);
        put_variants(&making);
    }
    for (size_t i = 0; i < making.device_count; i++) {
        free(making.devices[i].subjects);
    }
    free(making.devices);
    regfree(&making.regex);
    char *text = memo_text(&memo, &bytes, good ? why : NULL);
    if (!good) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- resuming -------------------------------------------------------------------------------- */

static bool take_list(const struct json_value *from, struct arg_list *list) {
    for (size_t i = 0; i < json_count_of(from); i++) {
        const char *text = json_text_of(json_item(from, i));
        if (text == NULL || list->count == ARG_LIST_MOST) {
            return false;
        }
        list->items[list->count++] = text;
    }
    return true;
}

bool run_plan_request(const struct json_value *plan, struct run_request *request, attn_error *why) {
    const struct json_value *asked = json_at(plan, "request");
    if (!take_list(json_at(asked, "stages"), &request->stages) ||
        !take_list(json_at(asked, "devices"), &request->devices)) {
        return explain(why, "plan.json: request: expected lists of stages and devices");
    }
    request->full = plan_is_full(plan);
    request->variant = json_text_at(asked, "variant");
    request->seed = strtoull(json_text_at(plan, "seed"), NULL, 16);
    if (request->commit == NULL) {
        request->commit = json_text_at(plan, "commit");
    }
    if (isnan(request->price)) {
        request->price = json_number_at(plan, "gpu_hour_price");
    }
    return true;
}

/* ---- parts on other machines ----------------------------------------------------------------- */

static bool same_json(const struct json_value *a, const struct json_value *b) {
    size_t bytes;
    char *one = json_canonical(a, &bytes), *other = json_canonical(b, &bytes);
    const bool same = strcmp(one, other) == 0;
    free(one);
    free(other);
    return same;
}

static bool fits(const struct json_value *plan, const struct json_value *here, attn_error *why) {
    static const char *const SAME[] = {"tool", "library", "variants", "rows"};
    const struct json_value *rows = json_at(plan, "rows");
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const char *device = json_text_at(json_item(rows, i), "device");
        const char *model = plan_model(plan, device), *mine = plan_model(here, device);
        if (model != NULL && (mine == NULL || strcmp(model, mine) != 0)) {
            return explain(why, "--part: %s is %s here, and the plan is of %s", device,
                           mine != NULL ? mine : "absent", model);
        }
    }
    for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++) {
        if (!same_json(json_at(plan, SAME[i]), json_at(here, SAME[i]))) {
            return explain(why,
                           "--part: \"%s\" of the plan would be another here, expected the same "
                           "build, devices and tools",
                           SAME[i]);
        }
    }
    return true;
}

bool run_plan_fits(const struct json_value *plan, const struct run_request *request,
                   attn_error *why) {
    char *text = run_plan_make(request, NULL, why);
    struct json_value *here = text != NULL ? json_read(text, strlen(text), why) : NULL;
    const bool good = here != NULL && fits(plan, here, why);
    json_free(here);
    free(text);
    return good;
}
