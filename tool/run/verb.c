/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest run`: six stages, one evidence pack.
 *
 * Invariant: the verdict that is printed and the exit code are those of the evidence that follows
 * from the pack on disk, the same that `attest verify` comes to.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/args.h"
#include "base/conversation.h"
#include "base/file.h"
#include "base/message.h"
#include "base/random.h"
#include "cli/verbs.h"
#include "pack/evidence.h"
#include "pack/plan.h"
#include "run/run.h"

enum job { JOB_RUN, JOB_PROBE, JOB_SLOTS };
static const char *const JOBS[] = {"run", "probe", "slots", NULL};

enum { PARTS_MOST = 4096 };
struct options {
    struct run_request request;
    struct jobs jobs; /* command NULL: no workers */
    const char *part;
    bool quick, full, resume, json;
    int job;
    int64_t seed, row;
    const char *slots;
    int64_t lanes;
};

const char *timed_name(const char *word, char name[TIMED_NAME]) {
    const time_t now = time(NULL);
    struct tm utc;
    char when[32];
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", gmtime_r(&now, &utc));
    snprintf(name, TIMED_NAME, "%s-%s", word, when);
    return name;
}

/* ---- workers: --jobs -------------------------------------------------------------------------
 *
 * The parts of a plan on several GPUs or machines that share the pack's folder. Workers are
 *
 *     attest run --part 0/64 --out PACK [the request]      makes the plan
 *     attest run --resume --part I/64 --out PACK           does the slots of part I
 *
 * The number of parts is fixed, so that workers that outlive a killed run hold the locks of the
 * parts that the next run gives out. A worker has done what the pack holds, whatever it says. */

enum { PARTS = 64 };

struct workers {
    const struct run_request *request;
    const struct pack *pack; /* NULL: its plan is to be made */
    char out[PATH_MAX];      /* workers may have another working directory */
};

/* The request, for the worker that makes the plan. */
static void add_request(const struct run_request *r, struct job_words *words) {
    words->items[words->count++] = r->full ? "--full" : "--quick";
    for (size_t i = 0; i < r->stages.count; i++) {
        job_add(words, "--stage", r->stages.items[i]);
    }
    for (size_t i = 0; i < r->devices.count; i++) {
        job_add(words, "--device", r->devices.items[i]);
    }
    job_add(words, "--variant", r->variant);
    job_add(words, "--commit", r->commit);
    if (!isnan(r->price)) {
        snprintf(words->texts[2], JOB_TEXT, "%.17g", r->price);
        job_add(words, "--gpu-hour-price", words->texts[2]);
    }
    snprintf(words->texts[3], JOB_TEXT, "%" PRIu64, r->seed);
    job_add(words, "--seed", words->texts[3]);
}

/* Task 0 of a pack is part 1. */
static void put_words(const void *user, size_t task, struct job_words *words) {
    const struct workers *s = user;
    const struct run_request *r = s->request;
    words->items[words->count++] = "run";
    snprintf(words->texts[0], JOB_TEXT, "%zu/%d", s->pack != NULL ? task + 1 : 0, (int)PARTS);
    job_add(words, "--part", words->texts[0]);
    job_add(words, "--out", s->out);
    if (r->timeout > 0) {
        snprintf(words->texts[1], JOB_TEXT, "%.17g", r->timeout);
        job_add(words, "--timeout", words->texts[1]);
    }
    if (s->pack != NULL) {
        words->items[words->count++] = "--resume";
    } else {
        add_request(r, words);
    }
}

static bool plan_left(const void *user, size_t *left, attn_error *why) {
    const struct workers *s = user;
    char path[PATH_MAX + 16];
    struct stat info;
    (void)why;
    snprintf(path, sizeof path, "%s/plan.json", s->out);
    *left = stat(path, &info) != 0;
    return true;
}

static bool parts_left(const void *user, size_t *left, attn_error *why) {
    const struct workers *s = user;
    size_t parts[PARTS + 1];
    const bool good = run_left(s->pack, PARTS, parts, why);
    memcpy(left, parts + 1, PARTS * sizeof *left);
    return good;
}

/* They do what is left of the pack; with none they make it. */
static bool run_workers(const struct options *o, const struct pack *pack, attn_error *why) {
    struct workers w = {.request = &o->request, .pack = pack};
    const struct jobs jobs = {o->jobs.command, pack != NULL ? o->jobs.workers : 1};
    const struct job_terms terms = {.label = pack != NULL ? "slots" : "plan",
                                    .tasks = pack != NULL ? PARTS : 1,
                                    .words = put_words,
                                    .left = pack != NULL ? parts_left : plan_left,
                                    .user = &w};
    struct stat info;
    attn_error lost = {""};
    absolute_path(o->request.out, w.out);
    if ((pack == NULL && stat(o->request.out, &info) == 0 &&
         !pack_make_folder(o->request.out, why)) ||
        !jobs_run(&jobs, &terms, &lost, why)) {
        return false;
    }
    if (pack == NULL && lost.text[0] != '\0') {
        return explain(why, "the worker that makes the plan: %s", lost.text);
    }
    if (lost.text[0] != '\0' && conversation_signal() == 0) {
        complain("run: %s", lost.text);
    }
    return true;
}

/* ---- the pack -------------------------------------------------------------------------------- */

/* Two runs in one pack would do all twice, which is INVALID. Runs of parts share the pack; each
 * locks its part (the parent of workers: 0), a byte of the plan. The locks end with the process. */
static bool lock_pack(const char *folder, int kind, attn_error *why) {
    static int file = -1;
    file = file < 0 ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : file;
    if (file < 0) {
        return explain(why, "%s: %s", folder, strerror(errno));
    }
    return flock(file, kind | LOCK_NB) == 0 ||
           explain(why, "%s: another attest run is at work in it", folder);
}

static bool lock_part(const char *folder, int64_t number, attn_error *why) {
    char plan[PATH_MAX];
    const struct flock byte = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
    snprintf(plan, sizeof plan, "%.4000s/plan.json", folder);
    if (!lock_pack(folder, LOCK_SH, why)) {
        return false;
    }
    const int file = open(plan, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return explain(why, "%s: %s", plan, strerror(errno));
    }
    return fcntl(file, F_OFD_SETLK, &byte) == 0 ||
           explain(why, "%s: another attest run is at work in this part of it", folder);
}

/* The lock comes before the first file: of two that start in one folder one writes nothing. */
static bool start_pack(struct pack *pack, struct run_request *request, attn_error *why) {
    char *plan = run_plan_make(request, NULL, why);
    const bool good = plan != NULL && pack_make_folder(request->out, why) &&
                      lock_pack(request->out, LOCK_EX, why) &&
                      pack_create(pack, request->out, plan, why) &&
                      (request->part.of == 0 || lock_part(pack->path, request->part.number, why));
    free(plan);
    return good;
}

/* The plan is replaced by one of this build; what was published of the old one goes first, and
 * only when all else is known to be good: a pack that is refused stays as it was. */
static bool reopen_pack(struct pack *pack, struct run_request *request, attn_error *why) {
    struct evidence evidence = {.rows = NULL};
    char *plan = NULL;
    if (pack_open(pack, request->out, why) && lock_pack(pack->path, LOCK_EX, why) &&
        evidence_make(pack, &evidence, why) && run_plan_request(pack->plan, request, why)) {
        plan = run_plan_make(request, pack->plan, why);
    }
    const bool good =
        plan != NULL && pack_withdraw(pack, EVIDENCE_FILE, why) && pack_replan(pack, plan, why);
    evidence_free(&evidence);
    free(plan);
    return good;
}

/* Takes the plan as it is: other workers go by it, too. */
static bool join_pack(struct pack *pack, struct run_request *request, attn_error *why) {
    return pack_open(pack, request->out, why) && plan_check(pack->plan, why) &&
           run_plan_request(pack->plan, request, why) && run_plan_fits(pack->plan, request, why) &&
           lock_part(pack->path, request->part.number, why);
}

/* The parent of workers: they know the devices, it need not have them. */
static bool lead_pack(struct pack *pack, const struct options *options, attn_error *why) {
    const struct run_request *request = &options->request;
    return (options->resume || run_workers(options, NULL, why)) &&
           pack_open(pack, request->out, why) && lock_part(pack->path, 0, why) &&
           pack_withdraw(pack, EVIDENCE_FILE, why);
}

/* ---- the run --------------------------------------------------------------------------------- */

/* The evidence is for the run that ends the pack. */
static int finish_part(const struct options *options, const struct pack *pack) {
    const struct run_part *part = &options->request.part;
    size_t left[PARTS_MOST + 1];
    attn_error why = {""};
    if (!run_left(pack, part->of, left, &why)) {
        return complain("run: %s", why.text);
    }
    const size_t mine = left[part->number];
    if (options->json) {
        struct json json = json_begin(stdout);
        json_open(&json, NULL, '{');
        json_text(&json, "pack", pack->path);
        json_text(&json, "part", options->part);
        json_int(&json, "left", (int64_t)mine);
        json_close(&json);
    } else {
        printf("part %s of %s: %zu slots are left\n", options->part, pack->path, mine);
    }
    if (mine > 0) {
        complain("run: part %s: %zu slots were not done", options->part, mine);
    }
    return mine > 0 ? EXIT_NOT_RUN : EXIT_DONE;
}

static int finish(const struct options *options, const struct pack *pack) {
    struct evidence evidence;
    attn_error why = {""};
    if (!evidence_make(pack, &evidence, &why) || !evidence_publish(pack, &evidence, &why)) {
        evidence_free(&evidence);
        return complain("run: %s", why.text);
    }
    (options->json ? evidence_print_json : evidence_print)(&evidence, pack->path, true);
    const enum gate gate = evidence.judgement.gate;
    if (conversation_signal() != 0) {
        complain("run: interrupted; attest run --resume --out %s goes on", pack->path);
    } else if (gate != GATE_PASS) {
        complain("run: %s: %s", GATE_NAMES[gate], evidence.judgement.reason);
    }
    evidence_free(&evidence);
    return conversation_signal() != 0 && gate == GATE_PASS ? EXIT_NOT_RUN : gate_exit(gate);
}

static bool open_or_start(struct options *options, struct pack *pack, attn_error *why) {
    struct run_request *request = &options->request;
    return options->jobs.command != NULL ? lead_pack(pack, options, why)
           : !options->resume            ? start_pack(pack, request, why)
           : request->part.of > 0        ? join_pack(pack, request, why)
                                         : reopen_pack(pack, request, why);
}

static bool work(const struct options *options, struct pack *pack, attn_error *why) {
    const struct run_part *part = &options->request.part;
    if (options->jobs.command != NULL) {
        return run_workers(options, pack, why);
    }
    return (part->of > 0 && part->number == 0) || run_work(pack, &options->request, why);
}

static int run(struct options *options) {
    struct pack pack = {.path = NULL};
    attn_error why = {""};
    run_environment();
    conversation_watch();
    int status;
    if (!open_or_start(options, &pack, &why)) {
        status = complain("run: %s", why.text);
    } else if (!work(options, &pack, &why)) {
        status = complain("run: %s; what was collected is kept: attest run --resume --out %s",
                          why.text, pack.path);
    } else {
        status = (options->request.part.of > 0 ? finish_part : finish)(options, &pack);
    }
    pack_close(&pack);
    return status;
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool take_part(struct options *o) {
    struct run_part *part = &o->request.part;
    long long number = 0, of = 0;
    int end = 0;
    if (o->part == NULL) {
        return true;
    }
    const bool good = sscanf(o->part, "%lld/%lld%n", &number, &of, &end) == 2 &&
                      o->part[end] == '\0' && of >= 1 && of <= PARTS_MOST && number >= 0 &&
                      number <= of;
    *part = (struct run_part){number, of};
    if (!good) {
        complain("run: --part: '%.40s', expected I/N with I up to N, and N from 1 to %d", o->part,
                 (int)PARTS_MOST);
    }
    return good;
}

static bool check(struct options *o, bool timeout_given, bool workers_given) {
    struct run_request *request = &o->request;
    if (o->quick && o->full) {
        complain("run: --quick and --full are given, expected one of them");
    } else if (o->resume && request->out == NULL) {
        complain("run: --resume needs the --out that it goes on with");
    } else if (o->resume &&
               (o->quick || o->full || request->stages.count > 0 || request->devices.count > 0 ||
                request->variant != NULL || o->seed >= 0)) {
        complain("run: --resume goes on with what the pack's plan asks for, expected no --quick, "
                 "--full, --stage, --device, --variant or --seed");
    } else if (request->price < 0) {
        complain("run: --gpu-hour-price: %g, expected 0 or more", request->price);
    } else if (timeout_given && !(request->timeout > 0)) {
        complain("run: --timeout: %g, expected more than 0", request->timeout);
    } else if (o->jobs.command != NULL && o->part != NULL) {
        complain("run: --jobs and --part are given, expected one of them");
    } else if (o->jobs.command == NULL && workers_given) {
        complain("run: --workers is of --jobs, expected a command");
    } else if (!take_part(o)) { /* it has complained */
    } else {
        request->full = o->full;
        /* 63 bits, which is what attest parity --seed takes */
        request->seed = o->seed >= 0 ? (uint64_t)o->seed : rng_fresh() >> 1;
        return true;
    }
    return false;
}

int verb_run(int argc, char **argv) {
    static struct options options; /* lists of hundreds of words */
    static char out[TIMED_NAME];
    struct run_request *r = &options.request;
    options = (struct options){.request = {.price = NAN}, .jobs = {.workers = 1}, .seed = -1};
    struct arg what[] = {
        arg_flag("--quick", &options.quick, "what this machine can do, in minutes [this]"),
        arg_flag("--full", &options.full, "all six stages: what is absent here is NOT RUN"),
        arg_list("--stage", &r->stages, "S",
                 "inspect, emulate, parity, sanitize, bench or profile; may be repeated [all]"),
        arg_list("--device", &r->devices, "D",
                 "cpu, vgpu or cuda:N; may be repeated "
                 "[cpu, vgpu, cuda:0]"),
        arg_text("--variant", &r->variant, "RE",
                 "variants whose name matches this extended regular expression [all]"),
        arg_int("--seed", &options.seed, 0, INT64_MAX, "of the cases [from the clock]"),
    };
    struct arg how[] = {
        arg_text("--out", &r->out, "DIR", "the pack [one with the time in its name]"),
        arg_flag("--resume", &options.resume, "continue the pack --out where it stopped"),
        arg_real("--gpu-hour-price", &r->price, "the price of an hour of the GPU"),
        arg_text("--commit", &r->commit, "TEXT", "the commit that was built, recorded in the pack"),
        arg_real("--timeout", &r->timeout,
                 "seconds for one variant in one stage; in emulate and parity for one case [2 "
                 "minutes or more, by stage]"),
        arg_flag("--json", &options.json, "the summary as JSON"),
    };
    struct arg more[] = {
        arg_text("--jobs", &options.jobs.command, "CMD",
                 "a shell command that starts workers, such as 'srun -N1 -n1 --gpus=1'"),
        arg_int("--workers", &options.jobs.workers, 1, JOB_WORKERS_MOST,
                "workers of --jobs that run at a time [1]"),
        arg_text(
            "--part", &options.part, "I/N",
            "run part I of N, without the evidence; attest run --resume or attest merge writes it. "
            "0/N: only make the plan"),
    };
    struct arg child[] = {
        arg_choice("--job", &options.job, JOBS, "what the child is to do"),
        arg_int("--row", &options.row, 0, INT64_MAX, "of the plan"),
        arg_text("--slots", &options.slots, "LIST", "numbers of the row's variants"),
        arg_int("--lanes", &options.lanes, 1, 1024, "children at work on the row"),
    };
    const struct arg_group groups[] = {ARG_GROUP("what", what), ARG_GROUP("how", how),
                                       ARG_GROUP("several GPUs or machines", more),
                                       ARG_GROUP("for child processes", child)};
    const struct command command = {
        .verb = "run",
        .synopsis = "[--quick | --full] [--stage S] [--device D] [--variant RE] [--out DIR] "
                    "[options]",
        .notes = "A pack is verified by attest verify and shown by attest report. SIGINT, or the "
                 "loss of the\nmachine, leaves a pack that verifies as far as it goes; --resume "
                 "goes on with it.\nWorkers of --jobs run this program in this folder, which all "
                 "machines must share.\n$ATTEST_WORKER is the number of a worker. A worker that "
                 "is lost is replaced.\n"
                 "Exit code: 0 PASS, 1 FAIL, 3 NOT RUN (with --full, or of a requested stage), "
                 "4 INVALID.\n",
        .examples = "  attest run --quick --out pack\n"
                    "  attest run --full --gpu-hour-price 3.5 --out results/h200\n"
                    "  attest run --stage parity --device cpu --variant '^cpu_tile'\n"
                    "  attest run --full --jobs 'srun -N1 -n1 --gpus=1' --workers 8 --out pack\n"
                    "  attest run --jobs 'env CUDA_VISIBLE_DEVICES=$ATTEST_WORKER' --workers 4\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    switch ((enum job)options.job) {
    case JOB_PROBE:
        return run_probe(r->devices.count == 1 ? r->devices.items[0] : "cpu", r->variant);
    case JOB_SLOTS:
        return run_slots(r->out != NULL ? r->out : "", options.row,
                         options.slots != NULL ? options.slots : "", options.lanes);
    case JOB_RUN: break;
    }
    if (!check(&options, how[4].seen, more[1].seen)) {
        return EXIT_BAD_INPUT;
    }
    if (r->out == NULL) {
        r->out = timed_name("evidence", out);
    }
    return run(&options);
}
