/* SPDX-License-Identifier: Apache-2.0
 *
 * parity.h - the stages parity and emulate: every variant against the reference.
 *
 *     cases.c     samples the problem of a case
 *     run.c       one run of a sample on the device
 *     outputs.c   O or a gradient: which rows are compared, and the comparison
 *     check.c     judges a case: the rule, damage, NaN
 *     controls.c  negative controls: wrong outputs in place of the result
 *     anatomy.c   describes a wrong result
 *     launches.c  many launches of one problem, bit for bit the same
 *     record.c    the units: record_parity, record_emulate; a case under each order of
 *                 asynchronous completion
 *
 * Invariant: a case is known by (device, variant, seed, number) alone, so that a failure can be
 * repeated by the command that is printed with it.
 */
#ifndef ATTEST_STAGES_PARITY_PARITY_H
#define ATTEST_STAGES_PARITY_PARITY_H

#include "attn_inspect.h"
#include "attn_verify.h"
#include "cases/cases.h"
#include "device/runner.h"
#include "device/vgpu_findings.h"

/* ---- what is tried --------------------------------------------------------------------------- */

/* A variant on an open device, or something else that computes samples. */
struct target {
    attn_context *context;
    struct device *device;
    attn_variant variant;
    const char *runs_as; /* its name, or that under which another image of it was added */
    uint64_t seed;
    bool emulated;             /* on the virtual GPU, which is a thousand times slower */
    struct outsider *outsider; /* NULL: the variant */
};

/* The device of an open runner; the variant is the caller's to choose. */
struct target target_on(const struct runner *runner, uint64_t seed);
/* The least that a variant which runs here must accept; false: it takes nothing, and why. */
bool target_accepts(const struct target *target, attn_problem *accepted, attn_error *why);

enum case_kind {
    CASE_PLAIN,
    CASE_EMPTY,      /* no keys, no batch entries or no queries */
    CASE_LARGE,      /* rows are sampled */
    CASE_FUTURE_NAN, /* causal; keys that only later queries see are NaN: so must be these queries,
                        and no earlier one */
    CASE_FUTURE_INF, /* the same with infinities, which may or may not show in later queries */
    CASE_PAST_NAN    /* backward: dO of the first queries is NaN: so must be the gradients of the
                        keys that they see, and no other one */
};

struct parity_case {
    int64_t number;
    enum case_kind kind;
    bool backward; /* the sample has gradients */
    struct recipe recipe;
    int64_t first_poisoned; /* CASE_FUTURE_*: the first key that is */
    int64_t hidden;         /* CASE_PAST_NAN: queries whose dO is NaN */
};

/* Code that is no variant of the library (`attest judge`): which cases it is given, and how one is
 * run. `run` keeps to run_sample's contract. The context of its target is a CPU's, and the variant
 * has a name and nothing else. */
enum run_result {
    RUN_DONE,
    RUN_WRONG, /* damage, other bits the second time, a refusal */
    RUN_LOST   /* the device failed, and nothing that it says later can be trusted */
};

struct outsider {
    void (*draw)(const struct outsider *self, struct parity_case *made, uint64_t seed, int attempt);
    enum run_result (*run)(struct outsider *self, struct sample *sample, attn_error *why);
};

static inline bool case_is_poisoned(const struct parity_case *made) {
    return made->kind >= CASE_FUTURE_NAN;
}

/* Samples case `number`, a problem that the variant accepts, and builds its tensors; builds them
 * again, from its recipe (as it is, or with another seed). */
bool case_make(const struct target *target, int64_t number, struct parity_case *made,
               struct sample *sample, attn_error *why);
bool case_build(struct parity_case *made, struct sample *sample);

/* ---- one run --------------------------------------------------------------------------------- */

/* Poisons the outputs, computes the sample with the target's variant (backward: after a forward,
 * on a CPU), brings the outputs back into the sample and looks for damage to everything. */
enum run_result run_sample(const struct target *target, struct sample *sample, attn_error *why);

/* O and LSE, or the gradients; what the problem does not have is empty. Returns how many. */
enum { RUN_OUTPUTS = GRADIENTS };
int run_outputs(const struct sample *sample, const struct guarded *outputs[RUN_OUTPUTS]);

/* A copy of the outputs. Later they become it again: whether they were the same. Frees the copy. */
unsigned char *outputs_keep(const struct sample *sample);
bool outputs_restore(struct sample *sample, unsigned char *kept);

/* O and LSE of a sample with gradients, on the CPU; poisons the gradients. */
bool run_forward(struct sample *sample, attn_error *why);

/* The sample in the device's memory. On a CPU that is where it is already. */
enum { MIRROR_BLOCKS = SAMPLE_BLOCKS + 1 + GRADIENTS }; /* the sample's, dO, the gradients */
struct mirror {
    struct device *device;
    unsigned char *blocks[MIRROR_BLOCKS]; /* with bands; NULL where the sample has no such tensor */
    attn_tensors tensors;                 /* the device's pointers */
};
/* Block `index` of the sample or of its gradients, or NULL; and whether a run writes it. */
const struct guarded *mirror_block(const struct sample *sample, int index);
bool mirror_is_output(const struct sample *sample, int index);

bool mirror_make(struct mirror *mirror, struct device *device, const struct sample *sample,
                 attn_error *why);
void mirror_free(struct mirror *mirror);

/* Brings the inputs back into the sample, with the bytes around them: sample_damage then speaks of
 * the device. */
bool mirror_fetch_inputs(const struct mirror *mirror, struct sample *sample, attn_error *why);

/* ---- what is judged -------------------------------------------------------------------------- */

enum { OUTPUT_O = -1 }; /* with the LSE */

struct case_output {
    const struct target *target;
    const struct parity_case *made;
    struct sample *sample;
    int gradient;     /* attn_gradient, or OUTPUT_O */
    const char *name; /* of a gradient; else "" */
    struct output_view view;
    struct expectation expected; /* of a gradient: which rows */
};

/* With at most so many rows to compare. NULL, or what went wrong; expectation_free it in either
 * case. */
const char *case_output_make(struct case_output *output, const struct target *target,
                             const struct parity_case *made, struct sample *sample, int gradient,
                             size_t most);

/* Whether no poisoned key can show in this row. */
bool case_output_is_clean(const struct case_output *output, const attn_row *row);

/* NULL if what lies in the sample passes the rule, or has no clean row; else the comparison as a
 * line. */
const char *case_output_compare(const struct case_output *output, attn_comparison *comparison);

/* Adds what a gradient should be, for anatomy_tell. False: not known. */
bool case_output_expect(struct case_output *output);

/* ---- a case, judged -------------------------------------------------------------------------- */

/* Negative controls: wrong results that the rule must refuse, where they differ from the truth. */
enum negative_control { CONTROL_ZERO, CONTROL_MEAN_V, CONTROL_COPY_Q, NEGATIVE_CONTROLS };

struct case_result {
    bool pass, lost;
    bool damaged;               /* `reason` speaks of something else than the statistics */
    attn_statistics statistics; /* NaN where nothing was compared */
    attn_statistics resamples[ATTN_RESAMPLES]; /* of a borderline case (attn_judge) */
    size_t resampled;
    bool control_failed;     /* the rule accepted a negative control: no verdict counts any more */
    double ratio, lse_ratio; /* error / allowed */
    int controls, refused;   /* negative controls that differ from the truth, and those refused */
    char recipe[640];
    char reason[640];
    char anatomy[2000]; /* sentences, each ended by "; " but the last */
};

void case_judge(const struct target *target, int64_t number, struct case_result *result);

/* Puts the controls in the place of an output that passed within `allowed`. False: the rule
 * accepted one, and the result has the reason. The output is lost in either case. */
bool controls_refused(const struct case_output *output, double allowed, struct case_result *result);

/* Whether the rule refuses each control, "zero", "mean_v" and "copy_q", on a problem of the
 * variant's dtype where all of them are far from the truth. Runs nothing. False and the reason: no
 * answer is possible. */
bool case_controls(const struct target *target, struct planted controls[NEGATIVE_CONTROLS],
                   attn_error *why);

/* Describes the wrong output that lies in the sample. May run a forward variant on fewer keys. */
void anatomy_tell(const struct case_output *output, const attn_comparison *comparison, char *text,
                  size_t size);

/* ---- many launches --------------------------------------------------------------------------- */

enum launch_mode { LAUNCH_EAGER, LAUNCH_STREAM, LAUNCH_GRAPH, LAUNCH_MODES };
extern const char *const LAUNCH_NAMES[LAUNCH_MODES]; /* eager stream graph */

/* `count` launches, each into memory of its own that held NaN bytes. True: all gave the same bits,
 * and the right ones. */
bool launches_run(const struct target *target, enum launch_mode mode, int64_t count,
                  attn_error *why);

/* ---- under the checkers of the virtual GPU --------------------------------------------------- */

struct watch {
    struct async_orders orders; /* of asynchronous completion; none: as the device has it */
    bool in_turns;              /* case by case another order; else each case under every order */
    int64_t findings;           /* cases in which the checkers found an error */
};

/* The worst result over the orders, the first failure if there is one. What the virtual GPU found
 * fails a case whose result is right. On another device this is case_judge. */
void observe_case(struct watch *watch, const struct target *target, int64_t number,
                  struct case_result *result);

#endif /* ATTEST_STAGES_PARITY_PARITY_H */
