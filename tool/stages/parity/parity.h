/* SPDX-License-Identifier: Apache-2.0
 *
 * parity.h - what the parts of `attest parity` know of each other.
 *
 *     verb.c        the command line and the schedule } the parent: never opens
 *     report.c      lines, JSON, the verdict           } a device
 *     children.c    starts a child (base/conversation.h)
 *     worker.c      a child: opens the device, does one job, answers in lines
 *     cases.c       draws the problem of a case
 *     run.c         one run of a sample on the device
 *     check.c       judges a case: the rule, damage, NaN, impostors
 *     anatomy.c     says what a wrong result looks like
 *     launches.c    many launches of one problem, bit for bit the same
 *
 * Invariant: a case is known by (device, variant, seed, number) alone, so that a failure can be
 * repeated by the command that is printed with it.
 */
#ifndef ATTEST_STAGES_PARITY_PARITY_H
#define ATTEST_STAGES_PARITY_PARITY_H

#include "attn_inspect.h"
#include "attn_verify.h"
#include "cases/cases.h"
#include "device/device.h"

/* ---- what is tried --------------------------------------------------------------------------- */

/* A variant on an open device. */
struct target {
    attn_context *context;
    struct device *device;
    attn_variant variant;
    const char *runs_as; /* its name, or that under which another image of it was added */
    uint64_t seed;
    bool emulated; /* on the virtual GPU, which is a thousand times slower */
};

/* The least that a variant which runs here must accept; false: it takes nothing, and why. */
bool target_accepts(const struct target *target, attn_problem *accepted, attn_error *why);

enum case_kind {
    CASE_PLAIN,
    CASE_EMPTY,      /* no keys, no batch entries or no queries */
    CASE_LARGE,      /* rows are sampled */
    CASE_FUTURE_NAN, /* causal; keys that only later queries see are NaN: so must be these queries,
                        and no earlier one */
    CASE_FUTURE_INF  /* the same with infinities, which may or may not show in later queries */
};

struct parity_case {
    int64_t number;
    enum case_kind kind;
    struct recipe recipe;
    int64_t first_poisoned; /* CASE_FUTURE_*: the first key that is */
};

/* Draws case `number` and builds its sample: a problem that the variant accepts. */
bool case_make(const struct target *target, int64_t number, struct parity_case *drawn,
               struct sample *sample, attn_error *why);

/* What a case is an example of: bits in the order of COVERAGE_NAMES. */
enum { COVERAGE_COUNT = 32 };
extern const char *const COVERAGE_NAMES[COVERAGE_COUNT];
uint32_t case_coverage(const struct target *target, const struct parity_case *drawn,
                       const struct sample *sample);

/* Builds the sample of a case once more, from its recipe (as it is, or with another seed). */
bool case_build(struct parity_case *drawn, struct sample *sample);

/* ---- one run --------------------------------------------------------------------------------- */

enum run_result {
    RUN_DONE,
    RUN_WRONG, /* damage, other bits the second time, a refusal */
    RUN_LOST   /* the device failed, and nothing that it says later can be trusted */
};

/* Poisons the outputs, computes `problem` (the sample's own, or one over the same tensors) with the
 * target's variant, brings O and LSE back into the sample and looks for damage to everything. */
enum run_result run_sample(const struct target *target, struct sample *sample,
                           const attn_problem *problem, attn_error *why);

/* The sample in the device's memory. On a CPU that is where it is already. */
enum { MIRROR_BLOCKS = 12 };
struct mirror {
    struct device *device;
    unsigned char *blocks[MIRROR_BLOCKS]; /* with bands; NULL where the sample has no such tensor */
    attn_tensors tensors;                 /* the device's pointers */
};
bool mirror_make(struct mirror *mirror, struct device *device, const struct sample *sample,
                 attn_error *why);
void mirror_free(struct mirror *mirror);

/* Brings the inputs back into the sample, with the bytes around them: sample_damage then speaks of
 * the device. */
bool mirror_fetch_inputs(const struct mirror *mirror, struct sample *sample, attn_error *why);

/* ---- a case, judged -------------------------------------------------------------------------- */

enum { TEXT_LONG = 2000 };

/* Wrong results that the rule must refuse, where they differ from the right one. */
enum impostor { IMPOSTOR_ZERO, IMPOSTOR_MEAN_V, IMPOSTOR_COPY_Q, IMPOSTORS };
extern const char *const IMPOSTOR_NAMES[IMPOSTORS]; /* zero mean_v copy_q */

struct case_result {
    bool pass, lost;
    bool damaged;               /* `reason` speaks of something else than the statistics */
    attn_statistics statistics; /* NaN where nothing was compared */
    attn_statistics resamples[ATTN_RESAMPLES]; /* of a borderline case (attn_judge) */
    size_t resampled;
    bool control_failed;     /* the rule accepted an impostor: no verdict counts any more */
    double ratio, lse_ratio; /* error / allowed */
    uint32_t coverage;
    int controls, refused; /* impostors that differ from the truth, and those that were refused */
    char recipe[640];
    char reason[640];
    char anatomy[TEXT_LONG]; /* sentences, each ended by "; " but the last */
};

void case_judge(const struct target *target, int64_t number, struct case_result *result);

/* Whether the rule refuses each impostor on a problem of the variant's dtype where all of them are
 * far from the truth. Runs nothing. False and the reason: it cannot be told. */
bool case_controls(const struct target *target, bool refused[IMPOSTORS], attn_error *why);

/* Describes the wrong result that lies in the sample. May run the variant on fewer keys. */
void anatomy_tell(const struct target *target, struct sample *sample,
                  const struct expectation *expected, const attn_comparison *comparison, char *text,
                  size_t size);

/* ---- many launches --------------------------------------------------------------------------- */

enum launch_mode { LAUNCH_EAGER, LAUNCH_STREAM, LAUNCH_GRAPH, LAUNCH_MODES };
extern const char *const LAUNCH_NAMES[LAUNCH_MODES]; /* eager stream graph */

/* `count` launches, each into memory of its own that held NaN bytes. True: all gave the same bits,
 * and the right ones. */
bool launches_run(const struct target *target, enum launch_mode mode, int64_t count,
                  attn_error *why);

/* ---- children -------------------------------------------------------------------------------- */

/* What a child is told: the words of its command line behind `parity`. */
struct worker_setup {
    const char *device, *driver, *image, *variant; /* variant: a regular expression; NULL: all */
    const char *async; /* orders of completion on the virtual GPU, or NULL */
    uint64_t seed;
    bool ptx;
};

enum worker_job { JOB_NONE, JOB_LIST, JOB_CASES, JOB_LAUNCHES };
extern const char *const JOB_NAMES[]; /* none list cases launches */

/* The child's side: does the job, answers on CONVERSATION_ANSWERS. Returns the exit code. */
int worker_run(const struct worker_setup *setup, enum worker_job job, int64_t first, int64_t count);

/* The parent's side. A line of the answer, without its end; false: it makes no sense. */
typedef bool worker_line(void *user, char *line);

/* Starts a child for the job and hands each line to `take`, the last one ("end") excepted. False
 * and the reason if it could not be started, died, took longer than `seconds` (then its process
 * group was killed), said nonsense or did not end its answer. */
bool worker_ask(const struct worker_setup *setup, enum worker_job job, int64_t first, int64_t count,
                double seconds, worker_line *take, void *user, attn_error *why);

#endif /* ATTEST_STAGES_PARITY_PARITY_H */
