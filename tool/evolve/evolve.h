/* SPDX-License-Identifier: Apache-2.0
 *
 * evolve.h - what the parts of `attest evolve` know of each other.
 *
 *     verb.c       the command line
 *     run.c        the loop: asks the search for a step, does it, records it, tells it
 *     search.c     which candidate next, who is timed longer, who is promoted: no clock, no
 *                         device, no file
 *     breed.c      where candidates come from
 *     space.c      families, their knobs, what is legal, names
 *     journal.c    what happened, one file for each step
 *     facts.c      the device, today's choices, the shipped variants
 *     source.c     the kernels' sources, changed; what a source and its PTX must not contain
 *     build.c      nvcc, ptxas, the machine code            } in a child process
 *     gates.c      a candidate through its gates            } for each candidate
 *     pair.c       candidate and today's choice in turns    }
 *     children.c   starts these children and ends them
 *     propose.c    a program that proposes
 *     judge.c      one source through all gates
 *     board.c      the leaderboard
 *     page.c       the same as a page
 *     promote.c    a line of tuned.def
 *
 * Invariant: what the search does follows from its seed and what was recorded, bit for bit.
 */
#ifndef ATTEST_EVOLVE_EVOLVE_H
#define ATTEST_EVOLVE_EVOLVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "attn_inspect.h"
#include "base/json.h"
#include "base/json_read.h"
#include "base/sha256.h"
#include "base/stats.h"

enum { EVOLVE_NAME = 128, EVOLVE_SHAPES = 16, EVOLVE_FAMILIES = 16 };

/* ---- text (journal.c) ----------------------------------------------------------------- */

/* JSON that is being written to memory. */
struct memo {
    FILE *file;
    char *text;
    size_t bytes;
    struct json json;
};

bool memo_begin(struct memo *memo, attn_error *why);
/* The document, read back: what was recorded is what counts. NULL and the reason. */
struct json_value *memo_end(struct memo *memo, attn_error *why);

/* ---- shapes (space.c) ----------------------------------------------------------------- */

struct shapes {
    attn_problem problems[EVOLVE_SHAPES];
    int count;
};

/* "2,8,512,64", "1,32/8,4096,128,causal": batch, heads, length, head dimension. */
bool shape_parse(const char *text, attn_dtype dtype, attn_problem *problem, attn_error *why);
const char *shape_text(const attn_problem *problem, char *buffer, size_t size);
void shapes_json(struct json *json, const char *key, const struct shapes *shapes);
bool shapes_read(const struct json_value *list, attn_dtype dtype, struct shapes *shapes,
                 attn_error *why);

/* ---- knobs (space.c) ------------------------------------------------------------------ */

enum knob {
    KNOB_BLOCK_Q,
    KNOB_BLOCK_KV,
    KNOB_WARPS,
    KNOB_STAGES,
    KNOB_OVERLAP, /* from here on: constants of the source, KNOB_AUTO: as it has them */
    KNOB_PING_PONG,
    KNOB_RESIDENT,
    KNOB_COUNT
};
enum { KNOB_AUTO = -1, KNOB_VALUES = 16, KNOB_SOURCE = KNOB_OVERLAP };
extern const char *const KNOB_NAMES[KNOB_COUNT];

/* The constant of the source that a knob from KNOB_SOURCE on is. */
const char *knob_constant(enum knob knob);

struct knobs {
    int value[KNOB_COUNT]; /* 0, or KNOB_AUTO from KNOB_SOURCE on: the family has no such knob */
};

/* A kernel for one dtype and one head dimension, whose knobs are searched. */
struct family {
    char name[64];   /* "fwd_mma", "cpu_tile_neon" */
    char kernel[32]; /* attn_variant's family */
    char arch[32];
    int head_dim; /* of the tile; 0 on CPUs */
};

struct space {
    struct family families[EVOLVE_FAMILIES];
    int count;
    attn_dtype dtype;
    char arch[16]; /* of the device: "sm_90" */
    int shared;    /* bytes that a block of the device can have */
    int64_t rows; /* query rows to a KV head, the most of all shapes: what a row kernel must take */
};

/* The values of a knob, ascending; 0 where the family has none. */
int knob_values(const struct family *family, enum knob knob, const int **values);

/* Sets the knobs that follow from others. */
void knobs_settle(const struct family *family, struct knobs *knobs);

/* What attn_variant says of a candidate. False and the reason: no such kernel can be built or run,
 * which is told without building it. */
bool knobs_legal(const struct space *space, const struct family *family, const struct knobs *knobs,
                 attn_error *why);
int knobs_shared(const struct family *family, const struct knobs *knobs);

/* "fwd_mma_fp16_d64_64x64_w4_s2" of variants.def, and what the entry is called. */
const char *knobs_variant(const struct space *space, const struct family *family,
                          const struct knobs *knobs, char name[EVOLVE_NAME]);
/* The same and "+overlap=1" for each constant that is not as the source has it. */
const char *knobs_name(const struct space *space, const struct family *family,
                       const struct knobs *knobs, char name[EVOLVE_NAME]);
bool knobs_are_plain(const struct knobs *knobs); /* no such constant */

void knobs_json(struct json *json, const char *key, const struct family *family,
                const struct knobs *knobs);
/* Absent ones: KNOB_AUTO where there is such a value, else refused. */
bool knobs_read(const struct json_value *object, const struct family *family, struct knobs *knobs,
                attn_error *why);

/* Whether a GPU family computes such problems on such a device; fills the family. */
bool family_for_gpu(const char *kernel, const attn_problem *problem, const char *device_arch,
                    struct family *family);
extern const char *const GPU_KERNELS[]; /* ends with NULL */

/* The attn_variant of a candidate; its strings are those of the arguments. */
attn_variant knobs_describe(const struct space *space, const struct family *family,
                            const struct knobs *knobs, const char *name, const char *entry);

/* ---- the journal (journal.c) ---------------------------------------------------------- */

#define EVOLVE_SCHEMA "attest-journal/1"

struct journal {
    char *path;
    struct json_value *config;
    struct json_value **units;
    size_t count;
    int lock;               /* a descriptor; 0: none */
    char last[SHA256_TEXT]; /* hash of the last file, and so of all: they are chained */
};

/* config: JSON text. The folder must be absent or empty. */
bool journal_create(struct journal *journal, const char *path, const char *config, attn_error *why);
bool journal_open(struct journal *journal, const char *path, attn_error *why);
void journal_close(struct journal *journal);
/* For whoever will append: one process at a time. It ends with the process, however that ends. */
bool journal_lock(struct journal *journal, attn_error *why);

/* Appends {step, result, seconds, gpu_seconds}; the unit is journal->units[count - 1] then. */
bool journal_append(struct journal *journal, const struct json_value *step,
                    const struct json_value *result, double seconds, double gpu_seconds,
                    attn_error *why);
bool journal_keep(const struct journal *journal, const void *data, size_t bytes,
                  char name[SHA256_TEXT], attn_error *why); /* artifacts/HASH */
char *journal_artifact(const struct journal *journal, const char *name, size_t *bytes,
                       attn_error *why);
/* path/name, for free(). */
char *journal_path(const struct journal *journal, const char *name);

/* Writes a value of a tree under a key. */
void json_copy(struct json *json, const char *key, const struct json_value *value);

/* A whole file by rename, on disk before it has its name. */
bool write_file(const char *path, const void *data, size_t bytes, attn_error *why);

/* ---- the search (search.c) ------------------------------------------------------------ */

/* Changes with whatever makes other steps of the same seed and results: numbers, odds, values of
 * knobs. A journal is replayed by the search that made it. */
enum { EVOLVE_SEARCH = 1 };

struct series {                            /* of one shape */
    double *ratios, *baseline, *candidate; /* of each round: today's / candidate's; seconds */
    size_t count;
};

enum candidate_state {
    CANDIDATE_DRAWN,
    CANDIDATE_REJECTED,
    CANDIDATE_SAME, /* its machine code was measured before */
    CANDIDATE_FIT,  /* passed its gates on a device without a clock */
    CANDIDATE_TIMED
};

struct candidate {
    int number, family, generation;
    int parents[2]; /* -1: none */
    struct knobs knobs;
    char name[EVOLVE_NAME];
    char why[256];            /* it was proposed */
    char source[SHA256_TEXT]; /* artifact with its source; "": the tree's */
    double predicted;         /* by its proposer; NaN: not */
    enum candidate_state state;
    char gate[24], reason[384]; /* of a rejected one */
    int same_as;                /* of one whose machine code had been measured: that one */
    char identity[SHA256_TEXT], machine[SHA256_TEXT];
    int registers, shared;
    double error; /* of the worst case, as a share of what is allowed */
    int rung;
    double at; /* seconds of the search when it was done */
    struct series series[EVOLVE_SHAPES];
    struct series confirmed[EVOLVE_SHAPES];
};

struct search_options {
    uint64_t seed;
    double seconds, gpu_seconds; /* budgets; 0: none */
    int candidates;              /* the most; 0: any number */
    bool proposer;
    bool plain;        /* knobs of variants.def alone, no constants of sources */
    const char *start; /* a variant to begin with, in the place of the shipped ones; NULL */
    const struct json_value *seeds; /* [{family, knobs}] of earlier journals; NULL */
};

enum step_kind {
    STEP_FACTS,
    STEP_PROPOSAL,
    STEP_CANDIDATE,
    STEP_TIMING,
    STEP_CONFIRM,
    STEP_HELD_OUT,
    STEP_END
};
extern const char *const STEP_NAMES[];

struct illegal {
    char name[EVOLVE_NAME], reason[200];
};
enum { ILLEGAL_KEPT = 64 };

struct step {
    enum step_kind kind;
    struct candidate *candidate; /* of the four in the middle */
    int rounds;
    uint64_t seed;
};

struct search {
    struct search_options options;
    struct shapes targets, held_out;
    struct space space;
    char baselines[EVOLVE_SHAPES][EVOLVE_NAME], held_baselines[EVOLVE_SHAPES][EVOLVE_NAME];
    struct knobs shipped[EVOLVE_SHAPES * 4]; /* to begin with */
    int shipped_family[EVOLVE_SHAPES * 4], shipped_count;
    int units;                   /* multiprocessors, threads */
    double flop_peak, byte_peak; /* of the roofline; 0: unknown */

    struct candidate **candidates;
    int count;
    struct illegal *illegal; /* drawn and refused by the first gate, in the order of drawing */
    int illegal_count;

    enum step_kind phase;
    int generation, first, next; /* of this generation: where it begins, who is next */
    int rung, entrants[64], entrant_count;
    int finalists[8], finalist_count;
    struct series held[EVOLVE_SHAPES];
    double spent, gpu_spent;
    struct json_value *proposals; /* of the last proposal step */

    int winner;           /* -1: none */
    bool proven, refuted; /* on the targets; on a shape that was held out */
    char decision[512];
};

bool search_begin(struct search *search, const struct search_options *options,
                  const struct shapes *targets, attn_error *why);
void search_free(struct search *search);

/* What is to be done next. */
struct step search_next(struct search *search);
/* The step of a candidate of this generation, when its turn comes. */
struct step search_candidate_step(const struct search *search, int number);
/* What a step is, for the journal. */
void search_step_json(const struct search *search, const struct step *step, struct json *json);
/* What came of it. False and the reason: the result is not one of that step. */
bool search_take(struct search *search, const struct step *step, const struct json_value *result,
                 double seconds, double gpu_seconds, attn_error *why);

/* Candidates of generation 0, and of a later one (breed.c). */
void breed_first(struct search *search);
void breed_next(struct search *search);
uint64_t search_state(const struct search *search, uint64_t salt); /* of random numbers */

/* Over all targets: the product of the ratios, its root; NaN where it was not timed. */
struct interval candidate_score(const struct search *search, const struct candidate *candidate);
struct interval series_interval(const struct series *series);
/* Timed ones, best first, by the lower end; returns how many. */
int search_ranking(const struct search *search, int *numbers, int most);
int search_best(const struct search *search);
double series_median(const double *values, size_t count);

/* ---- what was asked for (verb.c) ------------------------------------------------------ */

struct evolve {
    const char *device, *driver; /* as asked for */
    const char *tree;            /* where the sources are; GPU only */
    const char *nvcc;            /* NULL: the one that is found */
    const char *expression;      /* of families; NULL: all */
    const char *proposer;
    int64_t threads;
    double limit; /* seconds for one candidate's child */
    const char *start;
    bool quiet;
    struct shapes targets;
    attn_dtype dtype;
};

/* ---- facts (facts.c) ------------------------------------------------------------------ */

struct task;
/* The result of the step facts, in a child: the device is opened there. */
bool facts_find(const struct task *task, attn_context *context, struct json *json, attn_error *why);
bool facts_read(struct search *search, const struct json_value *facts, attn_error *why);

/* ---- sources (source.c) --------------------------------------------------------------- */

#define SOURCE_OUTSIDE "candidate" /* what a source from outside is called there */

/* Copies the kernels' sources into folder/src/kernels with the candidate's constants, and `source`
 * (unless NULL) in the place of its family's; SHA-256 over all of them. */
bool source_write(const char *tree, const char *folder, const struct family *family,
                  const struct knobs *knobs, const char *source, char hash[SHA256_TEXT],
                  attn_error *why);
/* A text from outside: device code of one file. False and the rule that it breaks. */
bool source_allowed(const char *tree, const char *text, attn_error *why);
/* PTX: one kernel, called `entry`; no timer, no memory that outlives a launch, nothing from
 * outside. */
bool ptx_allowed(const char *ptx, const char *entry, attn_error *why);
/* The file of a family, below src/kernels. */
void kernel_file_name(const char *kernel, char name[64]);
/* The family's file with the other kernels that it includes in their place, for free(). */
char *source_of(const char *tree, const char *kernel, attn_error *why);

/* ---- one candidate (build.c, gates.c, pair.c) --------------------------- */

/* What a child is told, in a file. */
struct task {
    struct space space;
    struct family family;
    struct knobs knobs;
    struct shapes shapes;
    char name[EVOLVE_NAME];
    char baselines[EVOLVE_SHAPES][EVOLVE_NAME];
    const char *source; /* from outside; NULL */
    const char *device, *driver, *tree, *nvcc, *folder;
    const char *expression, *start; /* of facts */
    int64_t threads;
    uint64_t seed;
    int rounds, cases;
    bool shorter; /* no gates but the comparison: they were passed */
};

struct built {
    char identity[SHA256_TEXT], machine[SHA256_TEXT];
    char *ptx, *cubin;
    size_t ptx_bytes, cubin_bytes;
    int64_t registers, shared;
};

/* Why a candidate is rejected: by which gate, in a sentence. */
struct rejection {
    char gate[24];
    attn_error why;
};
bool reject(struct rejection *rejection, const char *gate, const char *why);

/* Compiles into the task's folder and looks at the machine code. */
bool build_candidate(const struct task *task, struct built *built, struct rejection *rejection);
/* Reads again what another child has built there. */
bool build_load(const struct task *task, struct built *built, attn_error *why);
void built_free(struct built *built);
/* The fewest matrix instructions that the tile's products take. */
int64_t tensor_ops_demanded(const struct family *family, const struct knobs *knobs);
/* PATH of nvcc and of the ptxas beside it; its version. */
bool toolchain_find(const char *asked, char *nvcc, char *ptxas, size_t size, char *version,
                    size_t version_size, attn_error *why);

/* candidate and baseline in turns, rounds of four samples; samples go to the open JSON list. */
struct device;
bool pair_time(const struct task *task, attn_context *context, struct device *device,
               const char *variant, struct json *json, struct rejection *rejection);

/* The child: reads the task, answers into folder/answer.json. Returns the exit code. */
int evolve_child(const char *folder, const char *job);

/* The parent: writes the task, runs the child, reads the answer. NULL and the reason: it died, ran
 * too long or could not be started. */
struct json_value *child_ask(const struct task *task, const char *job, double limit,
                             double *seconds, attn_error *why);
void remove_folder(const char *path); /* and what is in it */

/* The builds of many tasks at once: `list` is a file with their folders, a task in each. What came
 * of each is had by child_answered, once; NULL: nothing, whatever the cause. */
void children_build(const char *list, double limit);
struct json_value *child_answered(const struct task *task);
int build_all(const char *list);    /* the child of it */
#define BUILD_BESIDE "build-beside" /* its job for each: a build on one thread */
bool task_write(const struct task *task, attn_error *why);
/* The task's texts live in *document, and the folder in the caller's. */
bool task_read(const char *folder, struct task *task, struct json_value **document,
               attn_error *why);
/* Of this process and what it starts: seconds of CPU, bytes of a file, no core. */
void child_limits(void);
/* No network from here on; false and the reason where the system does not permit it. */
bool child_cut_network(attn_error *why);

/* ---- the loop (run.c) ----------------------------------------------------------------- */

enum loop_end { LOOP_DONE, LOOP_RECORD_ENDED, LOOP_ABSENT, LOOP_FAILED };

/* execute false: only what is recorded (replay). */
enum loop_end evolve_loop(const struct evolve *evolve, struct journal *journal,
                          struct search *search, bool execute, attn_error *why);

/* Does one step and returns what came of it; *absent: there is no such device or compiler. */
struct json_value *step_run(const struct evolve *evolve, struct journal *journal,
                            struct search *search, const struct step *step, bool *absent,
                            attn_error *why);

/* One source through all gates; the exit code (judge.c). */
int judge_source(const struct evolve *evolve, const char *path, const char *out, bool as_json);

/* ---- proposers (propose.c) ------------------------------------------------------------ */

#define PROPOSER_SCHEMA "attest-proposer/1"

/* Runs the program; writes the result of the step: the proposals, their sources kept. */
bool propose(const struct evolve *evolve, const struct journal *journal,
             const struct search *search, struct json *json, attn_error *why);

/* ---- what is told (board.c, promote.c) ----------------------------------------- */

void board_print(const struct search *search, const struct journal *journal, FILE *out);
void board_json(const struct search *search, const struct journal *journal, struct json *json);
/* One self-contained HTML page (page.c). */
bool page_write(const struct search *search, const struct journal *journal, const char *path,
                attn_error *why);

/* Writes the proven line into tree/src/kernels/tuned.def. */
bool promote_write(const struct search *search, const struct journal *journal, const char *tree,
                   attn_error *why);
/* "TUNED(...)"; false: the winner is none that a line can name, and why. */
bool promote_line(const struct search *search, const char *run, char *line, size_t size,
                  attn_error *why);

#endif /* ATTEST_EVOLVE_EVOLVE_H */
