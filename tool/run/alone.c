/* SPDX-License-Identifier: Apache-2.0
 *
 * alone.c - see run.h; and the verbs sanitize and profile, which keep the pack for its logs. That
 * of parity, whose options no pack of attest run has, is temporary.
 */
#include "run/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conversation.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/message.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "device/vgpu_findings.h"
#include "pack/plan.h"
#include "stages/profile/ncu.h"
#include "stages/sanitize/target.h"
#include "stages/stage.h"

static const char OUT_HELP[] =
    "the evidence pack, for attest report [one with the time in its name]";

void alone_args(struct alone *a, struct arg args[ALONE_ARGS]) {
    const struct arg table[ALONE_ARGS] = {
        arg_text("--device", &a->device, "D", "as attest devices lists them [cuda:0]"),
        arg_text("--variant", &a->request.variant, "RE",
                 "variants whose name matches this extended regular expression [all]"),
        arg_real("--timeout", &a->request.timeout, "seconds for one variant [some minutes]"),
        arg_flag("--json", &a->json, "the result as JSON"),
    };
    memcpy(args, table, sizeof table);
}

/* ---- the pack -------------------------------------------------------------------------------- */

/* The folder of the pack, which must be new. */
static bool choose_folder(struct alone *a, char folder[TEMPORARY_SIZE], attn_error *why) {
    char name[TIMED_NAME];
    if (!a->keep) {
        return temporary_folder(folder, a->verb, why);
    }
    snprintf(folder, TEMPORARY_SIZE, "%s",
             a->request.out != NULL ? a->request.out : timed_name(a->verb, name));
    return true;
}

static bool work(struct alone *a, const char *plan, attn_error *why) {
    char folder[TEMPORARY_SIZE];
    return choose_folder(a, folder, why) && pack_create(&a->pack, folder, plan, why) &&
           run_work(&a->pack, &a->request, why) && evidence_make(&a->pack, &a->evidence, why) &&
           (!a->keep || evidence_publish(&a->pack, &a->evidence, why));
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_slots(struct alone *a, const struct alone_view *view, struct json *json) {
    struct json_value *document = json_read(a->evidence.text, a->evidence.text_bytes, NULL);
    const struct json_value *slots = json_at(json_item(json_at(document, "rows"), 0), "subjects");
    for (size_t i = 0; i < json_count_of(slots); i++) {
        const struct json_value *one = json_item(slots, i);
        const char *name = json_text_at(one, "unit");
        struct json_value *unit = name != NULL ? pack_read_unit(&a->pack, name, NULL) : NULL;
        const struct alone_slot slot = {
            .variant = json_text_at(one, "variant"),
            .verdict = json_text_at(one, "verdict"),
            .reason = json_text_or(unit, "broken", json_text_or(one, "reason", "")),
            .seconds = json_number_at(one, "seconds"),
            .unit = unit};
        if (json == NULL) {
            view->line(a, &slot);
        } else {
            json_open(json, NULL, '{');
            json_text(json, "name", slot.variant);
            json_text(json, "verdict", slot.verdict);
            json_known_text(json, "reason", slot.reason);
            json_real(json, "seconds", slot.seconds);
            if (view->member == NULL) {
                view->json(a, &slot, json);
            } else if (json_at(unit, view->member) != NULL) {
                json_value_json(json, json_at(unit, view->member));
            }
            json_close(json);
        }
        json_free(unit);
    }
    json_free(document);
}

static void print_text(struct alone *a, const struct alone_view *view) {
    const struct json_value *row = json_item(json_at(a->pack.plan, "rows"), 0);
    const struct json_value *refused = json_at(row, "refused");
    printf("%s: %s; %sseed %llu\n", a->device, plan_model(a->pack.plan, a->device),
           a->stage.direction == ATTN_BACKWARD ? "backward; " : "",
           (unsigned long long)a->request.seed);
    if (a->stage.code != NULL) {
        printf("through %s\n", strcmp(a->stage.code, "ptx") == 0 ? "PTX" : a->stage.code);
    }
    if (a->keep) {
        printf("pack: %s\n", a->pack.path);
    }
    printf("\n");
    puts(view->head);
    print_slots(a, view, NULL);
    for (size_t i = 0; i < json_count_of(refused); i++) {
        printf("%-44s not run: %s\n", json_text_at(json_item(refused, i), "variant"),
               json_text_at(json_item(refused, i), "reason"));
    }
    const struct judgement *judgement = &a->evidence.rows[0].judgement;
    printf("\n%s%s%s\n", GATE_NAMES[judgement->gate], judgement->reason[0] != '\0' ? ": " : "",
           judgement->reason);
    if (view->end != NULL) {
        view->end(a);
    }
}

static void print_json(struct alone *a, const struct alone_view *view) {
    const struct judgement *judgement = &a->evidence.rows[0].judgement;
    struct json json = json_begin(stdout);
    stage_report(&json, a->device, GATE_NAMES[judgement->gate],
                 judgement->gate == GATE_PASS ? NULL : judgement->reason);
    json_text(&json, "model", plan_model(a->pack.plan, a->device));
    if (a->stage.direction == ATTN_BACKWARD) {
        json_text(&json, "direction", DIRECTION_NAMES[ATTN_BACKWARD]);
    }
    json_int(&json, "seed", (int64_t)a->request.seed);
    json_open(&json, "variants", '[');
    print_slots(a, view, &json);
    json_close(&json);
    json_value_json(&json, json_at(json_item(json_at(a->pack.plan, "rows"), 0), "refused"));
    json_close(&json);
}

static int print(struct alone *a, const struct alone_view *view) {
    const struct judgement *judgement = &a->evidence.rows[0].judgement;
    const char *bad_file =
        a->stage.code != NULL ? strstr(judgement->reason, ": --image: ") : NULL; /* never ran */
    if (bad_file != NULL) {
        return complain("%s%s", a->verb, bad_file);
    }
    (a->json ? print_json : print_text)(a, view);
    if (flush_stdout() != EXIT_DONE) {
        return EXIT_BAD_INPUT;
    }
    if (judgement->gate != GATE_PASS) {
        complain("%s: %s: %s", a->verb, GATE_NAMES[judgement->gate],
                 conversation_signal() != 0 ? "interrupted" : judgement->reason);
    }
    return gate_exit(judgement->gate);
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Whether there is something to run; if not, says why and sets *status. */
static bool check_plan(const struct alone *a, const struct json_value *plan, int *status) {
    const struct json_value *row = json_item(json_at(plan, "rows"), 0);
    const char *absent = json_text_at(row, "absent"), *code = json_text_at(row, "code");
    const size_t subjects = json_count_of(json_at(row, "subjects"));
    attn_error why = {""};
    if (absent != NULL) {
        explain(&why, "%s", absent);
        *status = stage_not_run(a->verb, a->device, a->json, &why);
    } else if (code != NULL && strcmp(code, "ptx") != 0 && subjects != 1) {
        *status = complain("%s: --image: %zu variants match, expected --variant to name one",
                           a->verb, subjects);
    } else {
        return true;
    }
    return false;
}

/* The plan, for free(). NULL: it has said why and set *status. */
static char *make_plan(struct alone *a, int *status) {
    attn_error why = {""};
    const char *device = a->device, *driver = a->driver;
    const bool usable = device_alias(&device, &driver, &why);
    if (!usable && a->driver == NULL) {
        *status = stage_not_run(a->verb, a->device, a->json, &why);
        return NULL;
    }
    char *plan = usable ? run_plan_make(&a->request, NULL, &why) : NULL;
    struct json_value *read = plan != NULL ? json_read(plan, strlen(plan), &why) : NULL;
    if (read == NULL) {
        *status = complain("%s: %s", a->verb, why.text);
    }
    if (read == NULL || !check_plan(a, read, status)) {
        free(plan);
        plan = NULL;
    }
    json_free(read);
    return plan;
}

int alone_run(struct alone *a, const struct alone_view *view) {
    attn_error why = {""};
    int status = EXIT_BAD_INPUT;
    a->device = strcmp(a->device, "cuda") == 0 ? "cuda:0" : a->device;
    a->request.devices = (struct arg_list){.items = {a->device}, .count = 1};
    a->request.stages = (struct arg_list){.items = {STAGE_NAMES[a->stage.stage]}, .count = 1};
    a->request.price = (double)NAN;
    a->request.alone = &a->stage;
    if (a->driver != NULL) { /* for the children */
        setenv("ATTN_DRIVER", a->driver, 1);
    }
    run_environment();
    conversation_watch();
    char *plan = make_plan(a, &status);
    if (plan != NULL) {
        status = work(a, plan, &why) ? print(a, view) : complain("%s: %s", a->verb, why.text);
    }
    if (a->pack.path != NULL && !a->keep) {
        remove_folder(a->pack.path);
    }
    evidence_free(&a->evidence);
    pack_close(&a->pack);
    free(plan);
    return status;
}

/* ---- attest sanitize ------------------------------------------------------------------------- */

static const char SANITIZE_HEAD[] = "variant                                            s  verdict";

/* Names the logs, unless the variant is PASS. */
static void sanitize_line(struct alone *a, const struct alone_slot *slot) {
    const struct json_value *logs = json_at(slot->unit, "logs");
    const bool pass = slot->reason[0] == '\0';
    printf("%-44s %7.1f  %s%s%s\n", slot->variant, slot->seconds, slot->verdict, pass ? "" : ": ",
           slot->reason);
    for (size_t i = 0; !pass && i < json_count_of(logs); i++) {
        const struct json_value *log = json_item(logs, i);
        printf("    %-9s %s/artifacts/%s\n", json_text_at(log, "tool"), a->pack.path,
               json_text_at(json_at(log, "subject"), "log"));
    }
}

static int run_on_gpu(struct alone *a, const struct alone_view *view) {
    return strncmp(a->device, "cuda", 4) == 0
               ? alone_run(a, view)
               : complain("%s: --device: %s, expected a GPU", a->verb, a->device);
}

int verb_sanitize(int argc, char **argv) {
    static const struct alone_view VIEW = {SANITIZE_HEAD, sanitize_line, "logs", NULL, NULL};
    static struct alone alone; /* lists of hundreds of words */
    struct target_request target = {.tool = ""};
    bool as_target = false;
    alone = (struct alone){.verb = "sanitize",
                           .device = "cuda:0",
                           .keep = true,
                           .stage = {.stage = SANITIZE, .direction = -1}};
    struct arg args[ALONE_ARGS];
    alone_args(&alone, args);
    struct arg out[] = {arg_text("--out", &alone.request.out, "DIR", OUT_HELP)};
    struct arg inside[] = {
        arg_flag("--target", &as_target, "be the program under a tool of compute-sanitizer"),
        arg_text("--tool", &target.tool, "NAME", "with --target: the tool, for its log"),
        arg_text("--image", &target.image, "FILE", "with --target: run this planted fault"),
    };
    const struct arg_group groups[] = {ARG_GROUP("options", args), ARG_GROUP("the pack", out),
                                       ARG_GROUP("for child processes", inside)};
    const struct command command = {
        .verb = "sanitize",
        .synopsis = "[options]",
        .notes = "This is attest run --stage sanitize on one GPU. compute-sanitizer is taken "
                 "from $PATH, else from\n/usr/local/cuda/bin. To run one tool alone, without a "
                 "verdict:\ncompute-sanitizer --tool racecheck attest sanitize --target --variant "
                 "RE\n"
                 "Exit code\n"
                 "  0 PASS     every tool found its planted fault, and nothing else\n"
                 "  1 FAIL     a tool found something in a kernel of ours\n"
                 "  3 NOT RUN  no such device, no compute-sanitizer, no planted faults\n"
                 "  4 INVALID  a tool missed its planted fault, or its log is incomplete\n",
        .examples = "  attest sanitize\n"
                    "  attest sanitize --variant 'wmma.*bf16' --out pack\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    if (as_target) {
        target.device = alone.device;
        target.pattern = alone.request.variant;
        return sanitize_target(&target);
    }
    return run_on_gpu(&alone, &VIEW);
}

/* ---- attest profile -------------------------------------------------------------------------- */

static const char PROFILE_HEAD[] = "variant                                      "
                                   "SM busy  tensor    DRAM      L2  occup.  waits for";
static const char *const PROFILE_COLUMNS[] = {"sm_busy_percent", "tensor_pipe_percent",
                                              "dram_throughput_percent", "l2_throughput_percent",
                                              "occupancy_percent"};

static void profile_line(struct alone *a, const struct alone_slot *slot) {
    const struct json_value *values = json_at(slot->unit, "values");
    (void)a;
    printf("%-44s", slot->variant);
    for (size_t i = 0; values != NULL && i < sizeof PROFILE_COLUMNS / sizeof *PROFILE_COLUMNS;
         i++) {
        printf(" %7.1f", json_number_at(values, PROFILE_COLUMNS[i]));
    }
    for (size_t i = 0; values != NULL && i < values->as.list.count; i++) {
        const struct json_value *value = json_item(values, i);
        if (strncmp(value->key, "stall_", 6) == 0) {
            printf(" %s %.2f", value->key + 6, json_number_of(value));
        }
    }
    printf("  %s%s%s\n", slot->verdict, slot->reason[0] != '\0' ? ": " : "", slot->reason);
}

int verb_profile(int argc, char **argv) {
    static const struct alone_view VIEW = {PROFILE_HEAD, profile_line, "values", NULL, NULL};
    static struct alone alone;
    bool as_target = false;
    alone = (struct alone){.verb = "profile",
                           .device = "cuda:0",
                           .keep = true,
                           .stage = {.stage = PROFILE, .direction = -1}};
    struct arg args[ALONE_ARGS];
    alone_args(&alone, args);
    struct arg more[] = {
        arg_text("--out", &alone.request.out, "DIR", OUT_HELP),
        arg_text("--driver", &alone.driver, "FILE",
                 "the CUDA driver [$ATTN_DRIVER, else libcuda.so.1]"),
        arg_flag("--target", &as_target, "be the program that runs under ncu"),
    };
    const struct arg_group groups[] = {ARG_GROUP("options", args), ARG_GROUP("more", more)};
    const struct command command = {
        .verb = "profile",
        .synopsis = "[options]",
        .notes = "This is attest run --stage profile on one GPU, of every variant. Each is "
                 "launched once, on 16384\ntokens of 2048 features in sequences of 2048. PASS: its "
                 "SMs are busy for at least 70 % of the\ntime and, if it uses tensor cores, so is "
                 "the tensor pipe at some time. The same run must see\nthat a kernel in which one "
                 "thread sleeps is idle, else INVALID. Clocks are not changed. ncu is\ntaken from "
                 "$PATH, else from /usr/local/cuda/bin.\n",
        .examples = "  attest profile --variant hopper\n"
                    "  attest profile --json > profile.json\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    regex_t regex;
    attn_error why;
    if (!as_target) {
        return run_on_gpu(&alone, &VIEW);
    }
    if (!stage_pattern(alone.request.variant, &regex, &why)) {
        return complain("profile: %s", why.text);
    }
    const int status = profile_target(alone.device, alone.driver, &regex);
    regfree(&regex);
    return status;
}
