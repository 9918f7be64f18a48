/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - see plan.h.
 */
#include "run/plan.h"
#include "attn_inspect.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/message.h"
#include "pack/pack.h"
#include "pack/plan.h"

struct making {
    const struct run_request *request;
    const struct json_value *before;
    struct run_device *devices;
    size_t device_count;
    struct json *json;
    regex_t regex;
    bool has_regex;
};

static bool listed(const struct arg_list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static bool selected(const struct making *making, const char *variant) {
    return !making->has_regex || regexec(&making->regex, variant, 0, NULL, 0) == 0;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* asked: by name, so that its absence is no mere gap. */
static void open_row(const struct making *making, enum stage stage, const char *device,
                     const char *absent, bool asked) {
    struct json *json = making->json;
    const bool full = making->request->full;
    json_open(json, NULL, '{');
    json_text(json, "stage", STAGE_NAMES[stage]);
    json_text(json, "device", device);
    json_text(json, "absent", absent[0] != '\0' ? absent : NULL);
    json_bool(json, "asked", asked);
    if (stage == EMULATE || stage == PARITY) {
        json_int(json, "cases", plan_least_cases(stage, device, full));
    }
    if (stage == PARITY) {
        json_int(json, "launches", LEAST_LAUNCHES);
    } else if (stage == BENCH) {
        json_int(json, "timings", plan_least_timings(device, full, false));
    }
}

/* timings 0: as many as the row says. */
static void put_subject(struct json *json, const char *variant, const char *image,
                        int64_t timings) {
    json_open(json, NULL, '{');
    json_text(json, "variant", variant);
    json_text(json, "image", image[0] != '\0' ? image : NULL);
    if (timings > 0) {
        json_int(json, "timings", timings);
    }
    json_close(json);
}

/* The virtual GPU is for emulate alone; what has a tool of NVIDIA's is for GPUs. */
static bool is_for(enum stage stage, const struct run_device *device) {
    const bool cpu = strcmp(device->name, "cpu") == 0;
    const bool emulated = strcmp(device->name, "vgpu") == 0;
    return emulated == (stage == EMULATE) && (!cpu || stage == PARITY || stage == BENCH);
}

static bool is_subject(const struct making *making, enum stage stage,
                       const struct run_subject *subject) {
    return subject->refusal[0] == '\0' && selected(making, subject->variant) &&
           (stage != PROFILE || subject->chosen);
}

/* Why nothing of it can be done here; "": something can. */
static void find_absence(const struct making *making, enum stage stage,
                         const struct run_device *device, char absent[256]) {
    const char *refusal = "the library takes none of them for a usual problem";
    snprintf(absent, 256, "%s", device->absent);
    if (absent[0] == '\0' && strcmp(device->name, "cpu") != 0 && is_for(stage, device)) {
        run_tool_absent(stage, device->name, absent);
    }
    for (size_t i = device->count; i-- > 0;) {
        const struct run_subject *subject = &device->subjects[i];
        if (is_subject(making, stage, subject)) {
            return;
        }
        if (subject->refusal[0] != '\0' && selected(making, subject->variant)) {
            refusal = subject->refusal;
        }
    }
    if (absent[0] == '\0') {
        snprintf(absent, 256, "no variant runs there: %.200s", refusal);
    }
}

/* The device by its name, and it is not there; or the stage, where no device at all can do it. */
static bool is_asked(const struct making *making, enum stage stage,
                     const struct run_device *device) {
    bool somewhere = false;
    for (size_t i = 0; i < making->device_count; i++) {
        char absent[256];
        find_absence(making, stage, &making->devices[i], absent);
        somewhere = somewhere || (absent[0] == '\0' && is_for(stage, &making->devices[i]));
    }
    return (device->absent[0] != '\0' && listed(&making->request->devices, device->name)) ||
           (listed(&making->request->stages, STAGE_NAMES[stage]) && !somewhere);
}

static void put_device_row(const struct making *making, enum stage stage,
                           const struct run_device *device) {
    struct json *json = making->json;
    char absent[256];
    find_absence(making, stage, device, absent);
    open_row(making, stage, device->name, absent, is_asked(making, stage, device));
    json_open(json, "subjects", '[');
    for (size_t i = 0; absent[0] == '\0' && i < device->count; i++) {
        const struct run_subject *subject = &device->subjects[i];
        if (is_subject(making, stage, subject)) {
            const bool more = stage == BENCH && making->request->full && subject->chosen;
            put_subject(json, subject->variant, subject->image,
                        more ? plan_least_timings(device->name, true, true) : 0);
        }
    }
    json_close(json);
    json_open(json, "refused", '[');
    for (size_t i = 0; absent[0] == '\0' && stage != PROFILE && i < device->count; i++) {
        const struct run_subject *subject = &device->subjects[i];
        if (subject->refusal[0] != '\0' && selected(making, subject->variant)) {
            json_open(json, NULL, '{');
            json_text(json, "variant", subject->variant);
            json_text(json, "reason", subject->refusal);
            json_close(json);
        }
    }
    json_close(json);
    json_close(json);
}

/* Whether the device has a variant that was asked for, whether it runs or not. */
static bool concerns(const struct making *making, const struct run_device *device) {
    for (size_t i = 0; i < device->count; i++) {
        if (selected(making, device->subjects[i].variant)) {
            return true;
        }
    }
    return false;
}

/* A row that the run before could do and this machine cannot: what it holds still counts. */
static void put_row(const struct making *making, enum stage stage,
                    const struct run_device *device) {
    const struct json_value *rows = json_at(making->before, "rows");
    for (size_t i = 0; device->absent[0] != '\0' && i < json_count_of(rows); i++) {
        const struct json_value *row = &rows->as.list.items[i];
        const char *name = json_text_of(json_at(row, "device"));
        if (stage_of(json_text_of(json_at(row, "stage"))) == stage && name != NULL &&
            strcmp(name, device->name) == 0 && json_text_of(json_at(row, "absent")) == NULL) {
            json_value_json(making->json, row);
            return;
        }
    }
    if (device->absent[0] != '\0' || concerns(making, device)) {
        put_device_row(making, stage, device);
    }
}

/* ---- images ---------------------------------------------------------------------------------- */

/* The architectures that the library has selected cubins for, each once; whether it has any. */
enum { ARCHS_MOST = 8 };
static int cubin_archs(const struct making *making, const char *archs[ARCHS_MOST], bool *any) {
    attn_variant variant = {.size = sizeof variant};
    int count = 0;
    for (int32_t i = 0; attn_variant_get(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        attn_image image = {.size = sizeof image};
        for (int32_t k = 0; attn_variant_image(NULL, variant.name, k, &image, NULL) == ATTN_OK;
             k++) {
            int seen = 0;
            *any = *any || image.kind == ATTN_IMAGE_CUBIN;
            while (seen < count && strcmp(archs[seen], image.arch) != 0) {
                seen++;
            }
            if (image.kind == ATTN_IMAGE_CUBIN && seen == count && count < ARCHS_MOST &&
                selected(making, variant.name)) {
                archs[count++] = image.arch;
            }
        }
    }
    return count;
}

/* Inspect looks at machine code, whatever there is to run it. */
static void put_inspect_rows(const struct making *making) {
    const char *archs[ARCHS_MOST];
    bool any = false;
    const int count = cubin_archs(making, archs, &any);
    struct json *json = making->json;
    if (!any) {
        open_row(making, INSPECT, "cubins", "the library was built without kernels for GPUs",
                 listed(&making->request->stages, STAGE_NAMES[INSPECT]));
        json_open(json, "subjects", '[');
        json_close(json);
        json_close(json);
    }
    for (int i = 0; i < count; i++) {
        attn_variant variant = {.size = sizeof variant};
        open_row(making, INSPECT, archs[i], "", false);
        json_open(json, "subjects", '[');
        for (int32_t v = 0; attn_variant_get(NULL, v, &variant, NULL) == ATTN_OK; v++) {
            attn_image image = {.size = sizeof image};
            for (int32_t k = 0; selected(making, variant.name) &&
                                attn_variant_image(NULL, variant.name, k, &image, NULL) == ATTN_OK;
                 k++) {
                char hash[SHA256_TEXT];
                if (image.kind == ATTN_IMAGE_CUBIN && strcmp(image.arch, archs[i]) == 0) {
                    sha256_text(image.data, image.bytes, hash);
                    put_subject(json, variant.name, hash, 0);
                }
            }
        }
        json_close(json);
        json_close(json);
    }
}

/* Whether the run before had it so: its device is gone, and its rows stay. */
static bool was_chosen(const struct making *making, const char *variant, const char *device) {
    const struct json_value *variants = json_at(making->before, "variants");
    for (size_t i = 0; i < json_count_of(variants); i++) {
        const struct json_value *one = &variants->as.list.items[i];
        const struct json_value *chosen = json_at(one, "chosen");
        const char *name = json_text_of(json_at(one, "name"));
        for (size_t k = 0; name != NULL && k < json_count_of(chosen); k++) {
            const char *there = json_text_of(&chosen->as.list.items[k]);
            if (strcmp(name, variant) == 0 && there != NULL && strcmp(there, device) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* The devices on which the library would take the variant for a usual problem. */
static void put_chosen(const struct making *making, const char *variant) {
    json_open(making->json, "chosen", '[');
    for (size_t i = 0; i < making->device_count; i++) {
        const struct run_device *device = &making->devices[i];
        bool chosen = device->absent[0] != '\0' && was_chosen(making, variant, device->name);
        for (size_t k = 0; k < device->count; k++) {
            const struct run_subject *subject = &device->subjects[k];
            chosen = chosen || (subject->chosen && subject->refusal[0] == '\0' &&
                                strcmp(subject->variant, variant) == 0);
        }
        if (chosen) {
            json_text(making->json, NULL, device->name);
        }
    }
    json_close(making->json);
}

/* Everything that is in the library, so that a row that lacks some can be told. */
static void put_variants(const struct making *making) {
    struct json *json = making->json;
    attn_variant variant = {.size = sizeof variant};
    json_open(json, "variants", '[');
    for (int32_t i = 0; attn_variant_get(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        attn_image image = {.size = sizeof image};
        json_open(json, NULL, '{');
        json_text(json, "name", variant.name);
        json_text(json, "device", variant.device);
        json_open(json, "cubins", '[');
        for (int32_t k = 0; attn_variant_image(NULL, variant.name, k, &image, NULL) == ATTN_OK;
             k++) {
            char hash[SHA256_TEXT];
            if (image.kind == ATTN_IMAGE_CUBIN) {
                sha256_text(image.data, image.bytes, hash);
                json_text(json, NULL, hash);
            }
        }
        json_close(json);
        put_chosen(making, variant.name);
        json_close(json);
    }
    json_close(json);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void put_list(struct json *json, const char *key, const struct arg_list *list) {
    json_open(json, key, '[');
    for (size_t i = 0; i < list->count; i++) {
        json_text(json, NULL, list->items[i]);
    }
    json_close(json);
}

static bool put_head(const struct making *making, attn_error *why) {
    const struct run_request *request = making->request;
    struct json *json = making->json;
    char library[SHA256_TEXT], against[SHA256_TEXT], tool[64], seed[17];
    struct utsname host = {.sysname = ""};
    if (!run_identity(library, tool, why)) {
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
    if (request->against != NULL) {
        if (!run_file_hash(request->against, against, why)) {
            return false;
        }
        json_text(json, "against", against);
    }
    json_open(json, "request", '{');
    put_list(json, "stages", &request->stages);
    put_list(json, "devices", &request->devices);
    json_text(json, "variant", request->variant);
    json_close(json);
    (void)uname(&host);
    /* A device that is gone keeps its name, as its rows keep what they hold. */
    const struct json_value *models = json_at(json_at(making->before, "environment"), "devices");
    json_open(json, "environment", '{');
    json_text(json, "system", host.sysname);
    json_text(json, "release", host.release);
    json_text(json, "machine", host.machine);
    json_open(json, "devices", '{');
    for (size_t i = 0; i < making->device_count; i++) {
        const struct run_device *device = &making->devices[i];
        json_text(json, device->name,
                  device->absent[0] == '\0' ? device->model
                                            : json_text_of(json_at(models, device->name)));
    }
    json_close(json);
    run_tools_json(json);
    json_close(json);
    return true;
}

static void put_rows(const struct making *making) {
    const struct run_request *request = making->request;
    bool inspects = request->devices.count == 0;
    for (size_t i = 0; i < making->device_count; i++) {
        inspects = inspects || strcmp(making->devices[i].name, "cpu") != 0;
    }
    json_open(making->json, "rows", '[');
    for (int stage = 0; stage < STAGES; stage++) {
        if (request->stages.count > 0 && !listed(&request->stages, STAGE_NAMES[stage])) {
            continue;
        }
        if (stage == INSPECT && inspects) {
            put_inspect_rows(making);
        }
        for (size_t i = 0; stage != INSPECT && i < making->device_count; i++) {
            const struct run_device *device = &making->devices[i];
            if (is_for((enum stage)stage, device)) {
                put_row(making, (enum stage)stage, device);
            }
        }
    }
    json_close(making->json);
}

static bool ask_devices(struct making *making, attn_error *why) {
    static const char *const USUAL[] = {"cpu", "vgpu", "cuda:0"};
    const struct arg_list *asked = &making->request->devices;
    const size_t count = asked->count > 0 ? asked->count : sizeof USUAL / sizeof *USUAL;
    making->devices = calloc(count, sizeof *making->devices);
    if (making->devices == NULL) {
        explain(why, "out of memory");
        return false;
    }
    for (; making->device_count < count; making->device_count++) {
        const size_t i = making->device_count;
        if (!run_device_ask(asked->count > 0 ? asked->items[i] : USUAL[i], &making->devices[i],
                            why)) {
            making->device_count++;
            return false;
        }
    }
    return true;
}

/* A run goes on with the devices that it had: figures of two machines are not one row. */
static bool same_devices(const struct making *making, attn_error *why) {
    const struct json_value *models = json_at(json_at(making->before, "environment"), "devices");
    for (size_t i = 0; i < making->device_count; i++) {
        const struct run_device *device = &making->devices[i];
        const char *model = json_text_of(json_at(models, device->name));
        if (model != NULL && device->absent[0] == '\0' && strcmp(model, device->model) != 0) {
            return explain(why, "--resume: %s is %s here, and the pack is of %s", device->name,
                           device->model, model);
        }
    }
    return true;
}

static bool write_plan(struct making *making, attn_error *why) {
    json_open(making->json, NULL, '{');
    if (!put_head(making, why)) {
        return false;
    }
    put_rows(making);
    put_variants(making);
    json_close(making->json);
    return true;
}

char *run_plan_make(const struct run_request *request, const struct json_value *before,
                    attn_error *why) {
    struct making making = {.request = request, .before = before};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        explain(why, "out of memory");
        return NULL;
    }
    struct json json = json_begin(out);
    making.json = &json;
    making.has_regex = request->variant != NULL &&
                       regcomp(&making.regex, request->variant, REG_EXTENDED | REG_NOSUB) == 0;
    bool good = ask_devices(&making, why) && same_devices(&making, why) && write_plan(&making, why);
    const bool lost = ferror(out) != 0;
    if ((fclose(out) != 0 || lost) && good) {
        good = explain(why, "out of memory");
    }
    for (size_t i = 0; i < making.device_count; i++) {
        run_device_free(&making.devices[i]);
    }
    free(making.devices);
    if (making.has_regex) {
        regfree(&making.regex);
    }
    if (!good) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- going on -------------------------------------------------------------------------------- */

static bool take_list(const struct json_value *from, struct arg_list *list) {
    for (size_t i = 0; i < json_count_of(from); i++) {
        const char *text = json_text_of(&from->as.list.items[i]);
        if (text == NULL || list->count == ARG_LIST_MOST) {
            return false;
        }
        list->items[list->count++] = text;
    }
    return true;
}

bool run_plan_request(const struct json_value *plan, struct run_request *request, attn_error *why) {
    const struct json_value *asked = json_at(plan, "request");
    const char *mode = json_text_of(json_at(plan, "mode"));
    const char *seed = json_text_of(json_at(plan, "seed"));
    if (asked == NULL || mode == NULL || seed == NULL ||
        !take_list(json_at(asked, "stages"), &request->stages) ||
        !take_list(json_at(asked, "devices"), &request->devices)) {
        return explain(why, "plan.json: it does not say what was asked for");
    }
    request->full = strcmp(mode, "full") == 0;
    request->variant = json_text_of(json_at(asked, "variant"));
    request->seed = strtoull(seed, NULL, 16);
    if (request->commit == NULL) {
        request->commit = json_text_of(json_at(plan, "commit"));
    }
    if (isnan(request->price)) {
        request->price = json_number_of(json_at(plan, "gpu_hour_price"));
    }
    return true;
}
