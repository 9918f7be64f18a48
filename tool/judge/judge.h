/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.h - `attest judge`: tests any attention implementation with libattn's cases.
 *
 *     verb.c      the command line, the report
 *     claims.c    the options that a candidate claims, and random problems within them
 *     cases.c     a case: several calls of one problem, then the pass rule
 *     model.c     a file with Model and ModelNew: Model in fp64 is the oracle
 *     timing.c    candidate and peer interleaved; each call has new inputs
 *     arena.c     a sample in memory that the candidate's process sees
 *     door.c      a candidate's process: calls, their times, its CPU use between calls
 *     cage.c      starts that process with limits and without network
 *     library.c   in that process: a shared library, or a kernel's image
 *     door.py     in that process: a Python callable
 *
 * Invariant: the judge runs no code of a candidate and believes nothing that its process says. What
 * counts is in the arena when the answer arrives, and the time until then by the judge's clock. The
 * reference is computed after that.
 */
#ifndef ATTEST_JUDGE_JUDGE_H
#define ATTEST_JUDGE_JUDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/stats.h"
#include "cases/cases.h"
#include "stages/parity/parity.h"

/* A sanitizer's memory does not fit into a limit, and its libraries want to be first. */
#if defined __SANITIZE_ADDRESS__
#define JUDGE_SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define JUDGE_SANITIZED 1
#endif
#endif
#ifndef JUDGE_SANITIZED
#define JUDGE_SANITIZED 0
#endif

/* ---- what is judged -------------------------------------------------------------------------- */

enum subject_kind {
    SUBJECT_PYTHON, /* MODULE:FUNCTION or FILE.py:FUNCTION */
    SUBJECT_MODEL,  /* FILE.py with ModelNew */
    SUBJECT_LIBRARY,
    SUBJECT_IMAGE /* PTX or a cubin, in the place of a variant's code */
};

enum arrays { ARRAYS_TORCH, ARRAYS_NUMPY, ARRAYS_DLPACK };
extern const char *const ARRAYS_NAMES[]; /* ends with NULL */

/* AUTOGRAD: the gradients that PyTorch's autograd derives from a forward function. */
enum judge_direction { JUDGE_FORWARD, JUDGE_BACKWARD, JUDGE_AUTOGRAD };
extern const char *const JUDGE_DIRECTIONS[]; /* ends with NULL */

struct subject {
    const char *text; /* as given */
    enum subject_kind kind;
    const char *reference; /* MODEL: file with Model, get_inputs and get_init_inputs */
    const char *variant, *device, *driver;
    const char *python; /* the interpreter */
    int arrays;         /* enum arrays */
    int direction;      /* enum judge_direction */
    bool any_library;   /* it may call other implementations of attention */
};

/* ---- claims (claims.c) ----------------------------------------------------------------------- */

struct claims {
    bool backward;
    uint32_t words;                   /* bits of enum claim */
    uint32_t options;                 /* bits of attn_option */
    uint32_t dtypes;                  /* bits of attn_dtype */
    int64_t multiple;                 /* of sequence lengths; 1: any */
    const struct arg_ints *head_dims; /* none: multiples of 8 up to 128 */
    double budget;                    /* operations of the reference for a problem */
};

/* "causal,gqa,window"; "all". The dtypes as "fp32,fp16". */
bool claims_parse(const char *options, const char *dtypes, struct claims *claims, attn_error *why);

/* The words with their meaning, for the help page. */
const char *claims_help(void);
bool claims_have(const struct claims *claims, const char *word);

/* Sets recipe and kind. Keys that no query sees are NaN where that is claimed, unless `plain`. */
void claims_draw(const struct claims *claims, bool plain, struct parity_case *made, uint64_t seed,
                 int attempt);

/* What became of a case, or of a call. */
enum judged {
    JUDGED_RIGHT,
    JUDGED_WRONG,
    JUDGED_IMPRECISE, /* not within the pass rule, but within a small factor of it */
    JUDGED_LEAK,      /* right once unused keys are numbers */
    JUDGED_CHANGING,  /* other bits for the same inputs */
    JUDGED_STRAY,     /* an input or memory beside the outputs was written */
    JUDGED_LATE,      /* the output was written, or work was done, after the call */
    JUDGED_FOREIGN,   /* another implementation computed it */
    JUDGED_REFUSED,
    JUDGED_CRASH, /* an exception, a signal, a limit */
    JUDGED_COUNT
};
extern const char *const JUDGED_NAMES[JUDGED_COUNT];

/* ---- memory that both see (arena.c) ---------------------------------------------------------- */

struct arena {
    int file;
    unsigned char *map;
    size_t size;
};

bool arena_open(struct arena *arena, attn_error *why);
void arena_close(struct arena *arena);

/* Where the blocks of a sample lie; `tensors` has offsets into the arena for pointers. */
struct placed {
    size_t at[MIRROR_BLOCKS], gap[MIRROR_BLOCKS]; /* of a block, and of the pages after it */
    size_t begin, end;
    attn_tensors tensors;
    bool aside; /* the call is to be made on another thread, and on another stream of a GPU */
};

/* `turn` moves everything: another one gives other addresses. False: the arena is too small. */
bool arena_place(const struct arena *arena, const struct sample *sample, unsigned turn,
                 struct placed *placed);
void arena_fill(const struct arena *arena, const struct sample *sample,
                const struct placed *placed);
/* Into the sample, bands and inputs, too: sample_damage then speaks of what the candidate did. */
void arena_fetch(const struct arena *arena, struct sample *sample, const struct placed *placed);
/* Whether the outputs in the arena differ from those in the sample. */
bool arena_differs(const struct arena *arena, const struct sample *sample,
                   const struct placed *placed);
/* Whether bytes between the blocks were written. Gives the memory back. */
bool arena_release(const struct arena *arena, const struct placed *placed);

/* ---- a candidate's process (door.c, cage.c) -------------------------------------------------- */

enum { DOOR_TEXT = 4092, DOOR_MESSAGE = 1 << 17, DOOR_FILES = 512 };

/* What it answers. */
enum door_status {
    DOOR_DONE,
    DOOR_REFUSED, /* it does not compute such a problem */
    DOOR_FAILED,  /* an exception, a status */
    DOOR_FOREIGN  /* it called another implementation of attention */
};
struct door_answer {
    int32_t status; /* enum door_status */
    char text[DOOR_TEXT];
};

/* To a library: what it is to plan or to compute. */
struct library_call {
    bool plan, aside;
    bool reserved[6];
    attn_problem problem;
    attn_tensors tensors;
    struct {
        size_t at, size;
    } blocks[MIRROR_BLOCKS];
};

struct cage_limits {
    double seconds; /* of a call, and ten times that to load */
    int64_t memory; /* MiB */
};

struct cage {
    pid_t process;
    bool apart;  /* it has no network and sees no other process */
    bool filter; /* system calls are filtered */
};

/* The program with `socket` as descriptor 3 and `arena` as 4, stdout and stderr to `log`. */
bool cage_start(struct cage *cage, const char *const argv[], int socket, int arena, int log,
                const struct cage_limits *limits, attn_error *why);
/* The judge may be looked at again; a leak checker wants to. */
void cage_end(void);
const char *cage_text(const struct cage *cage, char *buffer, size_t size);

struct door {
    const struct subject *subject; /* NULL: it is not open */
    struct cage_limits limits;
    struct cage cage;
    struct arena arena;
    int socket, log;
    struct door_answer answer; /* the last one */
    double seconds;            /* of the last call, from before its inputs are written */
    bool lost;                 /* the process ended, or was too late */
    unsigned turns;
    double idle_since, idle_cpu;  /* at the last answer: clock and CPU seconds */
    uint64_t checked[DOOR_FILES]; /* inodes of mapped files that hold no attention */
    size_t checked_count;
};

/* Starts the process and waits until the candidate is loaded. */
bool door_open(struct door *door, const struct subject *candidate, const struct cage_limits *limits,
               const char *role, attn_error *why);
void door_close(struct door *door); /* one that was never opened, too */

/* Sends a message and waits for the answer: JUDGED_RIGHT, or what else came of it. */
enum judged door_ask(struct door *door, const void *message, size_t bytes);

/* A tensor in a message: where it is, its sizes and its strides in elements; nothing at NULL. */
struct json;
void tensor_json(struct json *json, const char *key, const void *at, const char *dtype,
                 const int64_t *shape, const int64_t *strides, int dims);

/* Fills the arena and calls. The outputs are then in the sample. */
enum judged door_call(struct door *door, struct sample *sample, struct placed *placed);

/* CPU seconds of the process and of all that it started. */
double door_cpu(const struct door *door);
/* Waits `seconds`; true if it worked meanwhile. */
bool door_is_busy(const struct door *door, double seconds);
/* True if it has loaded a library, other than the candidate, which computes attention. */
bool door_is_foreign(struct door *door, char *path, size_t size);

/* ---- cases (cases.c, model.c) ---------------------------------------------------------------- */

struct judge {
    const struct subject *subject;
    struct claims claims;
    struct cage_limits limits;
    uint64_t seed;
    struct door door, oracle; /* the latter of a file with ModelNew */
    bool broken;              /* the oracle failed: no verdict counts */
    attn_context *context;    /* of the reference */
};

struct judgement {
    int64_t number; /* of the case */
    enum judged judged;
    char problem[640], reason[640];
    double ratio; /* error / allowed; of a right one */
    bool invalid; /* the rule accepted a negative control: no verdict counts */
};

/* Replaces NaN in inputs and between their rows by large numbers. */
void use_numbers(struct sample *sample, uint64_t seed);

bool judge_open(struct judge *judge, attn_error *why);
void judge_end(struct judge *judge);
void judge_case(struct judge *judge, int64_t number, struct judgement *judgement);
/* Likewise of a file with ModelNew. */
void judge_model(struct judge *judge, int64_t number, struct judgement *judgement);
/* After the last one: what the candidate does while it is not called. */
bool judge_quiet(struct judge *judge, struct judgement *judgement);

/* ---- timing (timing.c) ----------------------------------------------------------------------- */

struct race {
    attn_problem problem;
    int64_t rounds;
    double p50, peer_p50;  /* seconds */
    struct interval ratio; /* the peer's time over the candidate's */
};

/* False: there is no figure, and the judgement says why. *broken: the peer is to blame. */
bool judge_race(struct judge *judge, const struct subject *peer, struct race *race,
                struct judgement *judgement, bool *broken);

/* ---- inside the process (library.c) ---------------------------------------------------------- */

/* The verb with this as its first word is the process of a library or an image. */
#define LIBRARY_WORD "@library"
int library_serve(int argc, char **argv);

#endif /* ATTEST_JUDGE_JUDGE_H */
