/* SPDX-License-Identifier: Apache-2.0
 *
 * evolve.h - shared by the files of `attest evolve`.
 *
 *     verb.c      the command line
 *     run.c       the loop: asks the search for a step, does it, records it, reports the result
 *     search.c    which candidate is next, which are timed again, which one is promoted
 *     space.c     shapes, families and their knobs
 *     journal.c   what happened: one file, a unit for each step
 *     facts.c     the device, the baselines, the shipped variants, the held-out shapes
 *     source.c    what a source and its PTX must not contain
 *     gates.c     a candidate through its gates        } in a child process
 *     pair.c      candidate and baseline interleaved   } for each candidate
 *     propose.c   an external program that proposes
 *     board.c     the leaderboard
 *     promote.c   a line of tuned.def
 *
 * The baseline of a shape is the variant that a plan chooses for it today.
 *
 * Invariant: the search's steps follow from its seed and the recorded results, bit for bit.
 */
#ifndef ATTEST_EVOLVE_EVOLVE_H
#define ATTEST_EVOLVE_EVOLVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "attn_inspect.h"
#include "base/jobs.h"
#include "base/json.h"
#include "base/json_read.h"
#include "base/sha256.h"
#include "base/stats.h"

enum { EVOLVE_SHAPES = 16, EVOLVE_FAMILIES = 16, EVOLVE_SHIPPED = 64 }; /* at most */
enum { EVOLVE_NAME = 128, EVOLVE_PATH = 4096 };

/* ---- shapes and knobs (space.c) -------------------------------------------------------------- */

struct shapes {
    attn_problem problems[EVOLVE_SHAPES];
    char baselines[EVOLVE_SHAPES][EVOLVE_NAME]; /* "": not known yet */
    int count;
};

/* "2,8,512,64", "1,32/8,4096,128,causal": batch, heads, length, head dimension. */
bool shape_parse(const char *text, attn_dtype dtype, attn_problem *problem, attn_error *why);
const char *shape_text(const attn_problem *problem, char *buffer, size_t size);
void shapes_json(struct json *json, const char *key, const struct shapes *shapes);
bool shapes_read(const struct json_value *list, attn_dtype dtype, struct shapes *shapes,
                 attn_error *why);
/* A line of tuned.def has one head dimension and one mask: so has a search. */
bool shapes_same_class(const attn_problem *a, const attn_problem *b);
double shape_rows(const attn_problem *problem); /* query rows of all heads */

/* The most of what the shapes have: a line of tuned.def is for no more than was measured. */
struct class_limits {
    int64_t queries, keys; /* seq_q, seq_kv */
    double rows;
};
struct class_limits shapes_limits(const struct shapes *shapes);

enum knob { KNOB_BLOCK_Q, KNOB_BLOCK_KV, KNOB_WARPS, KNOB_STAGES, KNOB_COUNT };
enum { KNOB_VALUES = 16 };
extern const char *const KNOB_NAMES[KNOB_COUNT];

struct knobs {
    int value[KNOB_COUNT]; /* 0: the family has no such knob */
};

/* A kernel for one head dimension, whose knobs are searched. The texts are the journal's. */
struct family {
    const char *name;   /* "fwd_mma", "cpu_tile_neon" */
    const char *kernel; /* attn_variant's family */
    const char *arch;   /* the oldest GPU; the instruction set */
    const char *base;   /* a shipped variant of it: what it is but for the knobs */
    int head_dim;       /* of the tile; 0 on CPUs */
};

/* The values of a knob, ascending; returns how many: 0 where it is none, or follows from others. */
int knob_values(const struct family *family, enum knob knob, const int **values);
void knobs_settle(const struct family *family, struct knobs *knobs); /* sets those that follow */
/* "fwd_mma_fp16_d64_64x64_w4_s2", as in variants.def: also the kernel's entry. */
const char *knobs_name(const struct family *family, attn_dtype dtype, const struct knobs *knobs,
                       char name[EVOLVE_NAME]);
void knobs_json(struct json *json, const struct knobs *knobs);
bool knobs_read(const struct json_value *object, const struct family *family, struct knobs *knobs,
                attn_error *why);

/* ---- the journal (journal.c) ----------------------------------------------------------------- */

#define EVOLVE_SCHEMA "attest-journal/2"

void members_json(struct json *json, const struct json_value *object); /* of NULL: none */
bool write_memo(const char *path, struct memo *memo, attn_error *why); /* ends it */

struct journal {
    char path[EVOLVE_PATH];
    int file;
    struct json_value *config;
    struct json_value **units; /* {step, result, seconds} */
    size_t count;
};

/* For one process at a time, as is journal_open to append. What is appended first is the config. */
bool journal_create(struct journal *journal, const char *path, attn_error *why);
bool journal_append(struct journal *journal, struct memo *unit, attn_error *why); /* ends it */
bool journal_open(struct journal *journal, const char *path, bool append, attn_error *why);
void journal_close(struct journal *journal);
void journal_hash(const struct journal *journal, char hash[SHA256_TEXT]);

/* ---- the search (search.c) ------------------------------------------------------------------- */

/* Changes with what makes other steps of the same seed and results: no other replays a journal. */
enum { EVOLVE_SEARCH = 2 };

/* FIT: it passed its gates on a device without a clock. */
enum candidate_state { CANDIDATE_NEW, CANDIDATE_REJECTED, CANDIDATE_FIT, CANDIDATE_TIMED };

struct candidate {
    int number, family, generation;
    struct knobs knobs;
    char name[EVOLVE_NAME];
    char why[256];      /* it was proposed */
    const char *source; /* from outside; NULL: the tree's */
    double predicted;   /* by its proposer; NaN: not */
    enum candidate_state state;
    const struct json_value *result;    /* of its last step: {verdict, gate, reason, ...} */
    const struct json_value *timings;   /* [{shape, p50_us, baseline_p50_us, ratios}] */
    const struct json_value *confirmed; /* likewise, with new seeds */
    struct interval score; /* geometric mean of the ratios over all targets; NaN: not timed */
};

struct search_options {
    uint64_t seed;
    double seconds; /* budget */
    int candidates; /* the most; 0: any number */
    bool proposer;
    const char *judged; /* the source of the first candidate, which is the only one; NULL */
};

enum step_kind { STEP_FACTS, STEP_PROPOSAL, STEP_CANDIDATE, STEP_CONFIRM, STEP_HELD_OUT, STEP_END };
extern const char *const STEP_NAMES[];

struct step {
    enum step_kind kind;
    struct candidate *candidate; /* of the last three */
    int rounds;
    uint64_t seed;
};

struct search {
    struct search_options options;
    struct shapes targets, held_out;
    struct family families[EVOLVE_FAMILIES];
    int family_count;
    const char *device, *arch;            /* as attn_device has them */
    int units;                            /* SMs, threads */
    struct knobs shipped[EVOLVE_SHIPPED]; /* to begin with */
    int shipped_family[EVOLVE_SHIPPED], shipped_count;

    struct candidate **candidates;
    int count;
    enum step_kind phase;
    int generation, first, next; /* first: of this generation */
    int finalists[8], finalist_count;
    const struct json_value *held;      /* timings of the held-out shapes */
    double spent;                       /* seconds */
    const struct json_value *proposals; /* of the last proposal step; the journal's */

    int winner;           /* -1: none */
    bool proven, refuted; /* on the targets; on a held-out shape */
    char decision[512];
};

void search_begin(struct search *search, const struct search_options *options,
                  const struct shapes *targets);
void search_free(struct search *search);
/* How many steps do not depend on one another's results; the index-th of them. */
int search_pending(const struct search *search);
struct step search_next(const struct search *search, int index);
/* The step of a candidate, when its turn comes. */
struct step search_step(const struct search *search, enum step_kind kind, int number);
void search_step_json(const struct search *search, const struct step *step, const char *key,
                      struct json *json);
/* Takes a result, which must live as long as the search. False and why it is none of that step. */
bool search_take(struct search *search, const struct step *step, const struct json_value *result,
                 double seconds, attn_error *why);
/* Timed ones, best first, by the lower end of the interval; returns how many. */
int search_ranking(const struct search *search, int *numbers, int most);
int search_family(const struct search *search, const char *name); /* -1: none */
/* Of the median ratio of one shape; the geometric mean over all of them. */
struct interval ratio_of(const struct json_value *timings, int shape);
struct interval ratio_mean(const struct json_value *timings);

/* ---- steps (run.c) --------------------------------------------------------------------------- */

struct evolve {
    const char *device, *driver; /* as requested */
    const char *tree;            /* with the kernels' sources; GPU only */
    const char *expression;      /* of families; NULL: the default */
    int direction;               /* attn_direction of what is searched */
    const char *start;           /* a shipped variant to begin with; NULL: all */
    const char *proposer;
    int64_t threads;
    double limit; /* seconds for one child */
    bool quiet;
    const struct jobs *jobs; /* NULL: this process does all steps */
    bool worker;             /* it is one of theirs */
};

/* To the end of the search or, unless `execute`, of what is recorded. False and the reason;
 * *absent: there is no such device or compiler. */
bool evolve_loop(const struct evolve *evolve, struct journal *journal, struct search *search,
                 bool execute, bool *absent, attn_error *why);

/* A worker's side: one of the steps that can be done now, the first is 0. What came of it is in the
 * journal's scratch folder, for the parent. */
bool evolve_step(const struct evolve *evolve, struct journal *journal, struct search *search,
                 int64_t index, bool *absent, attn_error *why);

/* ---- in a child (facts.c, source.c, gates.c, pair.c) -------------------------------- */

/* What a child works on; it is forked, so that it has all of it. */
struct task {
    const struct evolve *evolve;
    const struct search *search;
    struct step step;
    const struct family *family; /* and the next: of the step's candidate */
    char name[EVOLVE_NAME];      /* under which the variant is added */
    char entry[EVOLVE_NAME];
    char folder[EVOLVE_PATH]; /* of its own; the answer is written there */
    bool one_thread;          /* builds run side by side */
};

/* Each returns the exit code; the answer is folder/answer.json. */
int gate_facts(void *task);
int gate_build(void *task);
int gate_device(void *task);

bool facts_find(const struct task *task, attn_context *context, struct json *json, attn_error *why);
bool facts_read(struct search *search, const struct json_value *facts, attn_error *why);

/* A text from outside: device code of one file. False and the rule that it breaks. */
bool source_allowed(const char *tree, const char *text, attn_error *why);
/* PTX: one kernel, called `entry`; no timer, no memory that outlives a launch, nothing external. */
bool ptx_allowed(const char *ptx, const char *entry, attn_error *why);

/* The gate that a candidate is at, and why it fails there: at "broken" by no fault of its own. */
struct passage {
    const char *gate;
    attn_error why;
};
bool at_gate(struct passage *passage, const char *gate); /* true */

/* Candidate and baseline interleaved, rounds of four samples; samples go to the open JSON list. */
struct runner;
bool pair_time(const struct task *task, const struct runner *runner, struct json *json,
               struct passage *passage);

/* ---- around the search (propose.c, board.c, promote.c) --------------------------------------- */

/* Runs the proposer in the folder; writes the result of the step: the proposals. */
bool propose(const struct evolve *evolve, const struct journal *journal,
             const struct search *search, const char *folder, struct json *json, attn_error *why);

void board_print(const struct search *search, const struct journal *journal, FILE *out);
/* Into the open object. */
void board_json(const struct search *search, const struct journal *journal, struct json *json);

/* The winner among those that were confirmed; then, with the held-out shapes, the decision. */
void promote_choose(struct search *search);
void promote_decide(struct search *search);
/* Writes the proven line into tree/src/kernels/tuned.def. */
bool promote_write(const struct search *search, const struct journal *journal, const char *tree,
                   attn_error *why);
/* "TUNED(...)"; false: the winner is none that a line can name, and why. */
bool promote_line(const struct search *search, const char *run, char *line, size_t size,
                  attn_error *why);

#endif /* ATTEST_EVOLVE_EVOLVE_H */
