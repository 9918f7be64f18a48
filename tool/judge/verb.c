/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest judge`: the command line and the report. docs/judge.md has the rest.
 *
 * Invariant: PASS means that every requested case was run and right. Every other case is reported
 * with the command that repeats it.
 */
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "base/args.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/message.h"
#include "base/progress.h"
#include "cases/shape.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "evolve/evolve.h"
#include "judge/judge.h"

enum {
    MOST_CASES = 1000000,
    MOST_SECONDS = 86400,
    MOST_LOST = 8,    /* processes that end, until the rest is not run */
    SHOWN = 3,        /* failures in the text */
    LEAST_ROUNDS = 6, /* below it there is no interval */
    MOST_ROUNDS = 1000,
    MOST_MEMORY = 1 << 20,
    TEXT = 4096
};
/* Operations of a problem: about 10 ms of the reference; EMULATED: seconds of the virtual GPU. */
static const double BUDGET = 4e6, BACKWARD_BUDGET = 1e6, EMULATED_BUDGET = 4e5;
#define JUDGE_SCHEMA "attest-judge/1"

const char *const ARRAYS_NAMES[] = {"torch", "numpy", "dlpack", NULL};
const char *const JUDGE_DIRECTIONS[] = {"forward", "backward", "autograd", NULL};

enum { KEPT = 64 }; /* failures in the report; the first of each kind is always kept, too */

struct request {
    struct subject subject, peer;
    struct judge judge;
    const char *options, *dtypes, *shape;
    struct arg_ints head_dims;
    int64_t cases, first, only, seed, limit, memory, seconds;
    struct race race;
    bool json;
    int argc;
    char **argv;
};

struct report {
    int64_t counts[JUDGED_COUNT], run, lost;
    double worst;
    bool invalid, busy, timed, peer_failed;
    struct judgement failures[KEPT + JUDGED_COUNT];
    size_t failure_count;
    struct judgement last; /* of what is not a case */
    char isolation[160];
};

/* ---- the candidate --------------------------------------------------------------------------- */

static bool subject_parse(const char *text, struct subject *subject, attn_error *why) {
    subject->text = text;
    if (ends_with(text, ".ptx") || ends_with(text, ".cubin")) {
        subject->kind = SUBJECT_IMAGE;
    } else if (ends_with(text, ".so") || strstr(text, ".so.") != NULL) {
        subject->kind = SUBJECT_LIBRARY;
    } else if (ends_with(text, ".py")) {
        subject->kind = SUBJECT_MODEL;
    } else if (strchr(text, ':') != NULL) {
        subject->kind = SUBJECT_PYTHON;
    } else {
        return explain(why,
                       "'%.100s', expected MODULE:FUNCTION, FILE.py:FUNCTION, FILE.py with "
                       "ModelNew, LIBRARY.so, KERNEL.ptx or KERNEL.cubin",
                       text);
    }
    return true;
}

/* The library of this program. */
static const char *own_library(void) {
    Dl_info about = {.dli_fname = NULL};
    return dladdr((const void *)(uintptr_t)attn_version, &about) != 0 ? about.dli_fname : NULL;
}

/* It runs as a variant, on what that takes. PTX is held to the rules of `attest evolve`. */
static bool check_image(struct request *r, attn_error *why) {
    const struct subject *s = &r->subject;
    struct claims *claims = &r->judge.claims;
    attn_variant variant;
    size_t bytes = 0;
    if (s->variant == NULL) {
        return explain(why, "%.100s without --variant, expected the one whose code it replaces",
                       s->text);
    }
    if (!variant_by_name(NULL, s->variant, &variant, why)) {
        return false;
    }
    if (variant.direction != ATTN_FORWARD) {
        return explain(why, "--variant %.100s, expected a forward variant", s->variant);
    }
    claims->dtypes = variant.dtypes & 7U;
    claims->budget = EMULATED_BUDGET;
    if (r->head_dims.count == 0) {
        r->head_dims = (struct arg_ints){.values = {variant.head_dim_max}, .count = 1};
    }
    if (!ends_with(s->text, ".ptx")) {
        return true;
    }
    char *text = file_read(s->text, &bytes, why);
    const bool good = text != NULL &&
                      ptx_allowed(text, variant.entry != NULL ? variant.entry : variant.name, why);
    free(text);
    return good;
}

static const uint32_t PYTHON_OPTIONS = ATTN_OPTION_WINDOW | ATTN_OPTION_SOFTCAP |
                                       ATTN_OPTION_ALIBI | ATTN_OPTION_BIAS | ATTN_OPTION_MASK |
                                       ATTN_OPTION_SINK | ATTN_OPTION_USED_KV;

static const uint32_t FORWARD_OPTIONS =
    ATTN_OPTION_PAGED | ATTN_OPTION_DRAFT | (uint32_t)ATTN_OPTION_FP8_KV;

static bool is_python(const struct subject *s) {
    return s->kind == SUBJECT_PYTHON || s->kind == SUBJECT_MODEL;
}

static bool check_direction(struct request *r, attn_error *why) {
    const struct subject *s = &r->subject;
    struct claims *claims = &r->judge.claims;
    claims->backward = s->direction != JUDGE_FORWARD;
    if (!claims->backward) {
        return true;
    }
    if (s->kind == SUBJECT_MODEL || s->kind == SUBJECT_IMAGE ||
        (s->direction == JUDGE_AUTOGRAD &&
         (s->kind != SUBJECT_PYTHON || s->arrays != ARRAYS_TORCH))) {
        return explain(why, "--direction %s: expected a function%s", JUDGE_DIRECTIONS[s->direction],
                       s->direction == JUDGE_AUTOGRAD ? " over PyTorch's tensors"
                                                      : " or a library");
    }
    if (strcmp(r->options, "all") == 0) {
        claims->options &= ~FORWARD_OPTIONS;
    }
    claims->budget = BACKWARD_BUDGET;
    return (claims->options & FORWARD_OPTIONS) == 0 ||
           explain(why, "--options %.200s: some of them are for forward only", r->options);
}

static bool check_claims(struct request *r, attn_error *why) {
    struct claims *claims = &r->judge.claims;
    claims->head_dims = &r->head_dims;
    if (!claims_parse(r->options, r->dtypes, claims, why)) {
        return false;
    }
    if (is_python(&r->subject) && strcmp(r->options, "all") == 0) {
        claims->options &= PYTHON_OPTIONS;
    }
    if (is_python(&r->subject) && (claims->options & ~PYTHON_OPTIONS) != 0) {
        return explain(why, "--options %.200s: some of them are for libraries only", r->options);
    }
    return check_direction(r, why);
}

static bool check_time(struct request *r, attn_error *why) {
    const uint32_t dtypes = r->judge.claims.dtypes;
    const attn_dtype dtype = dtypes & 1U ? ATTN_FP32 : dtypes & 2U ? ATTN_FP16 : ATTN_BF16;
    if (r->shape == NULL) {
        return true;
    }
    if (r->subject.kind == SUBJECT_MODEL || r->subject.kind == SUBJECT_IMAGE ||
        r->subject.direction == JUDGE_AUTOGRAD) {
        return explain(why,
                       "--time: %.100s cannot be timed, expected a function or a library, "
                       "forward or backward",
                       r->subject.text);
    }
    const char *peer = r->peer.text != NULL ? r->peer.text : own_library();
    r->peer = (struct subject){.python = r->subject.python,
                               .arrays = r->subject.arrays,
                               .direction = r->subject.direction,
                               .any_library = true};
    return shape_parse(r->shape, dtype, &r->race.problem, why) &&
           subject_parse(peer, &r->peer, why);
}

static int check_request(struct request *r, char python[PATH_MAX]) {
    struct subject *s = &r->subject;
    attn_error why = {""};
    if (!subject_parse(s->text, s, &why) || !check_claims(r, &why) ||
        (s->kind == SUBJECT_IMAGE && !check_image(r, &why))) {
        return complain("judge: %s", why.text);
    }
    if (is_python(s) && strchr(s->python, '/') == NULL) {
        if (!tool_find(s->python, python, &why)) {
            complain("judge: not run: %s", why.text);
            return EXIT_NOT_RUN;
        }
        s->python = python;
    }
    return check_time(r, &why) ? EXIT_DONE : complain("judge: %s", why.text);
}

/* ---- the run --------------------------------------------------------------------------------- */

static void take(struct report *report, const struct judgement *j) {
    report->counts[j->judged]++;
    report->run++;
    report->invalid = report->invalid || j->invalid;
    report->worst = fmax(report->worst, j->ratio);
    const bool kept = report->failure_count < KEPT || report->counts[j->judged] == 1;
    if (j->judged != JUDGED_RIGHT && kept) {
        report->failures[report->failure_count++] = *j;
    }
}

/* A process that has ended is started again. */
static bool run_cases(struct request *r, struct report *report, attn_error *why) {
    const bool model = r->subject.kind == SUBJECT_MODEL;
    const int64_t first = r->only >= 0 ? r->only : r->first, count = r->only >= 0 ? 1 : r->cases;
    const double end = clock_seconds() + (r->seconds > 0 ? (double)r->seconds : INFINITY);
    struct progress progress;
    progress_start(&progress, "judging", false);
    for (int64_t i = first; i < first + count && report->lost < MOST_LOST; i++) {
        struct judgement j;
        if (clock_seconds() > end) {
            break;
        }
        if (r->judge.door.subject == NULL && !judge_open(&r->judge, why)) {
            return false;
        }
        cage_text(&r->judge.door.cage, report->isolation, sizeof report->isolation);
        (model ? judge_model : judge_case)(&r->judge, i, &j);
        j.number = i;
        take(report, &j);
        if (r->judge.broken) {
            return explain(why, "%.350s", j.reason);
        }
        if (r->judge.door.lost) {
            report->lost++;
            door_close(&r->judge.door);
        }
        progress_set(&progress, (double)(i - first + 1) / (double)count);
    }
    progress_stop(&progress);
    return report->run > 0;
}

static bool passed(const struct request *r, const struct report *report) {
    return report->counts[JUDGED_RIGHT] == (r->only >= 0 ? 1 : r->cases) && !report->busy &&
           !report->invalid && (r->shape == NULL || report->timed);
}

static const char *verdict_of(const struct request *r, const struct report *report) {
    return report->invalid ? "INVALID" : passed(r, report) ? "PASS" : "FAIL";
}

static bool judge_all(struct request *r, struct report *report, attn_error *why) {
    attn_options options;
    attn_options_init(&options);
    if (attn_open(&options, &r->judge.context, why) != ATTN_OK || !run_cases(r, report, why)) {
        return false;
    }
    if (r->judge.door.subject != NULL) {
        report->busy = !judge_quiet(&r->judge, &report->last);
    }
    if (r->shape != NULL && !report->busy && report->counts[JUDGED_RIGHT] == report->run) {
        report->timed =
            judge_race(&r->judge, &r->peer, &r->race, &report->last, &report->peer_failed);
    }
    return true;
}

/* ---- the report ------------------------------------------------------------------------------ */

/* The words of the command line without those that say which cases, and how they are shown. */
static void print_repeat(const struct request *r, FILE *out, int64_t number) {
    static const char *const left_out[] = {"--cases", "--first", "--case",   "--seed",
                                           "--time",  "--peer",  "--rounds", "--seconds"};
    fprintf(out, "attest judge");
    for (int i = 0; i < r->argc; i++) {
        const char *word = r->argv[i];
        const size_t length = strcspn(word, "=");
        bool skip = strcmp(word, "--json") == 0;
        for (size_t k = 0; k < sizeof left_out / sizeof *left_out && !skip; k++) {
            skip = strlen(left_out[k]) == length && strncmp(word, left_out[k], length) == 0;
            i += skip && word[length] == '\0'; /* its value is the next word */
        }
        if (!skip) {
            fputc(' ', out);
            print_foreign(out, word, TEXT);
        }
    }
    fprintf(out, " --seed %lld --case %lld", (long long)r->seed, (long long)number);
}

static void print_failure(const struct request *r, const struct judgement *f) {
    printf("case %lld is %s: ", (long long)f->number, JUDGED_NAMES[f->judged]);
    print_foreign(stdout, f->reason, TEXT);
    printf("\n    ");
    print_foreign(stdout, f->problem, TEXT);
    printf("\n    ");
    print_repeat(r, stdout, f->number);
    printf("\n");
}

static void print_text(const struct request *r, const struct report *report) {
    const struct race *race = &r->race;
    char problem[128];
    printf("isolation  %s\n", report->isolation);
    printf("cases      %lld of %lld:", (long long)report->run,
           (long long)(r->only >= 0 ? 1 : r->cases));
    for (int i = 0; i < JUDGED_COUNT; i++) {
        if (report->counts[i] > 0) {
            printf(" %lld %s", (long long)report->counts[i], JUDGED_NAMES[i]);
        }
    }
    printf("; worst error %.2f of what is allowed; seed %lld\n", report->worst, (long long)r->seed);
    for (size_t i = 0; i < report->failure_count && i < SHOWN; i++) {
        print_failure(r, &report->failures[i]);
    }
    if (report->timed) {
        printf("time       %s: %.4g ms, %.4g ms for the peer: %.3g times as fast (%.3g to %.3g)\n",
               problem_text(&race->problem, problem, sizeof problem), 1e3 * race->p50,
               1e3 * race->peer_p50, race->ratio.value, race->ratio.low, race->ratio.high);
    } else if (report->last.reason[0] != '\0') {
        printf("%s       ", report->busy ? "idle" : "time");
        print_foreign(stdout, report->last.reason, TEXT);
        printf("\n");
    }
    printf("%s%s\n", verdict_of(r, report),
           report->invalid ? ": the rule accepted a negative control" : "");
}

static void print_json(const struct request *r, const struct report *report) {
    struct json json = json_begin(stdout);
    char *repeat = NULL;
    size_t size = 0;
    json_open(&json, NULL, '{');
    json_text(&json, "schema", JUDGE_SCHEMA);
    json_text(&json, "candidate", r->subject.text);
    json_text(&json, "direction", JUDGE_DIRECTIONS[r->subject.direction]);
    json_text(&json, "options", r->options);
    json_text(&json, "dtype", r->dtypes);
    json_int(&json, "seed", r->seed);
    json_text(&json, "isolation", report->isolation);
    json_int(&json, "cases", report->run);
    json_open(&json, "counts", '{');
    for (int i = 0; i < JUDGED_COUNT; i++) {
        json_int(&json, JUDGED_NAMES[i], report->counts[i]);
    }
    json_close(&json);
    json_real(&json, "worst_ratio", report->worst);
    json_open(&json, "failures", '[');
    for (size_t i = 0; i < report->failure_count; i++) {
        const struct judgement *f = &report->failures[i];
        json_open(&json, NULL, '{');
        json_int(&json, "case", f->number);
        json_text(&json, "judged", JUDGED_NAMES[f->judged]);
        json_text(&json, "problem", f->problem);
        json_text(&json, "reason", f->reason);
        FILE *file = must(open_memstream(&repeat, &size));
        print_repeat(r, file, f->number);
        fclose(file);
        json_text(&json, "repeat", repeat);
        free(repeat);
        json_close(&json);
    }
    json_close(&json);
    if (report->timed) {
        json_open(&json, "time", '{');
        problem_json(&json, "problem", &r->race.problem);
        json_text(&json, "peer", r->peer.text);
        json_real(&json, "p50_ms", 1e3 * r->race.p50);
        json_real(&json, "peer_p50_ms", 1e3 * r->race.peer_p50);
        json_real(&json, "ratio", r->race.ratio.value);
        json_real(&json, "low", r->race.ratio.low);
        json_real(&json, "high", r->race.ratio.high);
        json_close(&json);
    }
    json_text(&json, "reason", report->last.reason[0] != '\0' ? report->last.reason : NULL);
    json_text(&json, "verdict", verdict_of(r, report));
    json_close(&json);
}

static int judge_and_tell(struct request *r) {
    static struct report report;
    attn_error why = {""};
    if (r->seed < 0) {
        r->seed = (uint32_t)rng_fresh();
    }
    r->judge.subject = &r->subject;
    r->judge.seed = (uint64_t)r->seed;
    r->judge.limits = (struct cage_limits){.seconds = (double)r->limit, .memory = r->memory};
    const bool ran = judge_all(r, &report, &why);
    judge_end(&r->judge);
    if (!ran) {
        return complain("judge: %s", why.text);
    }
    (r->json ? print_json : print_text)(r, &report);
    if (flush_stdout() != EXIT_DONE) {
        return EXIT_BAD_INPUT;
    }
    return report.invalid ? EXIT_INVALID : passed(r, &report) ? EXIT_DONE : EXIT_FAILED_CHECK;
}

/* ---- the command line ------------------------------------------------------------------------ */

int verb_judge(int argc, char **argv) {
    if (argc > 0 && strcmp(argv[0], LIBRARY_WORD) == 0) {
        return library_serve(argc, argv);
    }
    struct request r = {.subject = {.python = "python3", .device = "vgpu"},
                        .options = "causal",
                        .dtypes = "fp32",
                        .cases = 40,
                        .only = -1,
                        .seed = -1,
                        .limit = 60,
                        .memory = 8192,
                        .race.rounds = 20,
                        .judge.claims = {.multiple = 1, .budget = BUDGET},
                        .argc = argc,
                        .argv = argv};
    struct subject *s = &r.subject;
    char python[PATH_MAX];
    struct arg positional = arg_text("CANDIDATE", &s->text, "CANDIDATE", "");
    struct arg claims[] = {
        arg_choice("--direction", &s->direction, JUDGE_DIRECTIONS,
                   "what it computes; autograd: a forward that PyTorch differentiates [forward]"),
        arg_text("--options", &r.options, "LIST",
                 "options that it supports, of those listed below [causal]"),
        arg_text("--dtype", &r.dtypes, "LIST",
                 "dtypes that it supports, of fp32, fp16 and bf16 [fp32]"),
        arg_ints("--head-dim", &r.head_dims, 1, 1024, "head dimensions [multiples of 8 up to 128]"),
        arg_int("--multiple", &r.judge.claims.multiple, 1, 4096,
                "sequence lengths are multiples of this [1]"),
        arg_choice("--arrays", &s->arrays, ARRAYS_NAMES, "the arrays that a function gets [torch]"),
        arg_text("--reference", &s->reference, "FILE.py",
                 "a file with Model, get_inputs and get_init_inputs [the candidate]"),
        arg_text("--variant", &s->variant, "V",
                 "PTX and cubins: the variant whose code it replaces"),
        arg_text("--device", &s->device, "D", "PTX and cubins: vgpu or cuda[:N] [vgpu]"),
        arg_text("--driver", &s->driver, "FILE", "PTX and cubins: the CUDA driver"),
        arg_flag("--any-library", &s->any_library,
                 "it may call other implementations of attention"),
    };
    struct arg work[] = {
        arg_int("--cases", &r.cases, 1, MOST_CASES, "number of random problems [40]"),
        arg_int("--first", &r.first, 0, MOST_CASES, "number of the first of them [0]"),
        arg_int("--case", &r.only, 0, MOST_CASES, "run only this case"),
        arg_int("--seconds", &r.seconds, 1, MOST_SECONDS,
                "begin no case after this time; then the verdict is FAIL [no limit]"),
        arg_int("--seed", &r.seed, 0, INT64_MAX >> 12, "seed of the cases [random, and printed]"),
        arg_text("--time", &r.shape, "B,H[/HKV],S,D[,causal]",
                 "time it on this problem, interleaved with a peer"),
        arg_text("--peer", &r.peer.text, "CANDIDATE", "the peer [libattn]"),
        arg_int("--rounds", &r.race.rounds, LEAST_ROUNDS, MOST_ROUNDS, "rounds of four calls [20]"),
        arg_int("--limit", &r.limit, 1, MOST_SECONDS, "seconds that a call may take [60]"),
        arg_int("--memory", &r.memory, 64, MOST_MEMORY, "MiB that it may allocate [8192]"),
        arg_text("--python", &s->python, "FILE", "the interpreter [python3]"),
        arg_flag("--json", &r.json, "print JSON"),
    };
    char notes[TEXT];
    snprintf(notes, sizeof notes,
             "A function is called as function(q, k, v, **options) with tensors (B, H, S, D). It "
             "returns O, a new\ntensor. With --direction backward it is function(q, k, v, o, lse, "
             "d_o, **options) and returns\n(dQ, dK, dV).\n\nthe words of --options, and what they "
             "add\n%s",
             claims_help());
    const struct arg_group groups[] = {ARG_GROUP("the candidate", claims),
                                       ARG_GROUP("the work", work)};
    const struct command command = {
        .verb = "judge",
        .synopsis = "CANDIDATE [options]",
        .notes = notes,
        .examples =
            "  attest judge mine.py:forward --options causal,gqa --time 1,8,512,64,causal\n"
            "  attest judge solution.py --reference problem.py\n"
            "  attest judge ./libmine.so --options all --dtype fp32,bf16\n"
            "  attest judge kernel.ptx --variant fwd_mma_fp16_d64_64x64_w4_s2 --dtype fp16\n",
        ARG_GROUPS(groups),
        .positional = &positional,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    const int bad = check_request(&r, python);
    return bad != EXIT_DONE ? bad : judge_and_tell(&r);
}
