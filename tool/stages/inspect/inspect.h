/* SPDX-License-Identifier: Apache-2.0
 *
 * inspect.h - what is known of one kernel in one cubin, and whether that is within its budget.
 *
 * Invariant: a figure that could not be had is UNKNOWN, which no budget lets pass.
 */
#ifndef ATTEST_STAGES_INSPECT_INSPECT_H
#define ATTEST_STAGES_INSPECT_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "attn_inspect.h"
#include "base/json.h"
#include "base/sha256.h"
#include "stages/inspect/cubin.h"

/* ---- budgets.def ----------------------------------------------------------------------------- */

struct budget {
    char variant[96], arch[16];
    int64_t registers;  /* the most */
    int64_t tensor_ops; /* the fewest, where more than the tile demands; else 0 */
};

/* Of one cubin after the other: *index is 0 at first. False: there are no more. */
bool budget_next(int *index, struct budget *budget);

/* False: there is none. */
bool budget_find(const char *variant, const char *arch, struct budget *budget);

/* ---- one kernel in one cubin ----------------------------------------------------------------- */

enum { INSPECT_UNKNOWN = -1, INSPECT_FAILURES_MAX = 10 };

struct inspected {
    const char *name;   /* of the variant; of the kernel, where there is no variant */
    const char *family; /* NULL: no variant */
    char arch[16], dtype[16];
    int64_t head_dim, smem_dynamic;
    bool tensor_cores; /* the variant says that it uses them */
    struct cubin cubin;
    struct cubin_entry entry;
    int64_t spill_bytes; /* stored and loaded, from the log */
    struct sass_counts sass;
    int64_t tensor_demand; /* the fewest matrix instructions that its tile can do with; 0: none */
    char sha256[SHA256_TEXT];
    bool log_bound;       /* the log belongs to this cubin */
    attn_error log_fault; /* why the log is of no use; "": it is */
    /* What the machine code, or the variant's PTX, has to print or assert with: "vprintf"; NULL:
     * nothing, as it must be in a release. */
    const char *output_call, *ptx_output_call;
};

/* A cubin of a variant. False: its machine code cannot be read. */
bool inspect_variant(const attn_variant *variant, const attn_image *image, struct inspected *row,
                     attn_error *why);

/* As inspect_variant, of a cubin and the PTX in the library. */
bool inspect_own(const attn_variant *variant, const attn_image *image, struct inspected *row,
                 attn_error *why);

/* The index-th kernel of any cubin, of which no log is known; row->cubin is the caller's. */
bool inspect_kernel(const struct cubin *cubin, const char sha256[SHA256_TEXT], uint32_t index,
                    struct inspected *row, attn_error *why);

/* "vprintf", "__assertfail": the first such word in the text of PTX; NULL: none. */
const char *inspect_output_call(const char *ptx);

/* MMA instructions of a mainloop iteration in one warp (or warpgroup), by the shape of the tile. */
int64_t inspect_demand(const attn_variant *variant);

/* The figures of a row, in the order of the table's columns. */
enum { INSPECT_FIGURES = 11 };
struct inspect_figure {
    const char *name;    /* in JSON */
    const char *in_unit; /* in a unit of the evidence pack */
    const char *head;    /* of the column, as wide as: */
    int width;
};
extern const struct inspect_figure INSPECT_FIGURE[INSPECT_FIGURES];
void inspect_values(const struct inspected *row, int64_t values[INSPECT_FIGURES]);

/* The figures as members of the open object, with the names of a unit or of a report; null if
 * unknown. */
void inspect_json(struct json *json, const struct inspected *row, bool in_unit);

/* The fewest matrix instructions that the row may have. */
int64_t inspect_fewest(const struct inspected *row, const struct budget *budget);

/* How many of the rules the row breaks, each in a sentence. budget NULL: it has none, which is the
 * first of them. */
int inspect_gate(const struct inspected *row, const struct budget *budget,
                 char failures[INSPECT_FAILURES_MAX][256]);

/* ---- the log of ptxas ---------------------------------------------------------------------------
 *
 * What ptxas -v printed about one kernel when its cubin was made. The log of a cubin
 * in the library is headed by the cubin's hash:
 *
 *     sha256 5a1e...
 *     ptxas info    : Compiling entry function 'kernel' for 'sm_80'
 *     ptxas info    : Function properties for kernel
 *         0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
 *     ptxas info    : Used 96 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
 *
 * Invariant: a figure that is not in the log is an error, never 0. Barriers and shared memory are
 * the exceptions: ptxas omits them if there are none.
 */

struct ptxas_figures {
    char sha256[SHA256_TEXT]; /* of the cubin that the log belongs to */
    int64_t registers, barriers, shared_bytes;
    int64_t frame_bytes, spill_stores, spill_loads; /* bytes */
};

/* arch: "sm_80". */
bool ptxas_log_read(const char *log, const char *entry, const char *arch,
                    struct ptxas_figures *figures, attn_error *why);

#endif /* ATTEST_STAGES_INSPECT_INSPECT_H */
