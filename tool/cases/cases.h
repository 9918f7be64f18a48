/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.h - problems to prove a kernel with: random ones from a seed, or given, with tensors in
 * guarded memory. `attest parity` and the tests of the library share them.
 *
 * A recipe says what to build, a sample is the built thing: problem, tensors, memory. Everything
 * that no kernel may look at or write to (guard bands, stride gaps, keys that no query sees, bias
 * of invisible pairs, keys past used_kv) holds bytes 0xFF, which is a NaN in every dtype and -1 as
 * an integer; so do K of keys that a mask hides from every query, and O and LSE before a run.
 * Unused entries of a block table are page numbers outside the pool.
 * Beyond the bands lie pages without access.
 *
 * Invariant: the same seed builds the same bytes on every machine.
 */
#ifndef ATTEST_CASES_CASES_H
#define ATTEST_CASES_CASES_H

#include "attn_inspect.h"
#include "attn_verify.h"
#include "base/random.h"

/* ---- guarded memory -------------------------------------------------------------------------- */

struct guarded {
    unsigned char *map, *data, *body; /* data: the caller's bytes, 0xFF at first; */
    size_t map_size, size, body_size; /* body: between the pages without access, data and bands */
};

/* Whether all of the bytes are 0xFF. */
bool is_poison(const unsigned char *bytes, size_t count);

/* size bytes whose last (at_end) or first byte lies at a page without access, up to alignment.
 * The address is a multiple of alignment and, where that is below 16, not of 16 (if size > 0). */
bool guarded_alloc(struct guarded *memory, size_t size, size_t alignment, bool at_end);
bool guarded_intact(const struct guarded *memory); /* the bytes around data are still 0xFF */
uint64_t guarded_hash(const struct guarded *memory, uint64_t before); /* continues `before` */
void guarded_free(struct guarded *memory);

/* ---- recipes and samples --------------------------------------------------------------------- */

enum distribution {
    DIST_NORMAL,   /* N(0, 1) */
    DIST_LARGE,    /* Q eight times that: a softmax near one-hot */
    DIST_CONSTANT, /* all keys equal: the mean of V */
    DIST_SPIKE,    /* one key far above the rest */
    DIST_TINY,     /* V of 1e-6: denormals of fp16 */
    DIST_ONE_HOT,  /* row j of V is 1 in column j mod head_dim_v: O shows the probabilities */
    DIST_GROWING,  /* scores rise with the position of the key: the maximum moves at every step */
    DIST_COUNT
};

enum arrangement {
    ARRANGE_GIVEN,     /* the strides of the problem as they are */
    ARRANGE_GAPS,      /* holes after rows, heads and batches */
    ARRANGE_FUSED,     /* Q, K and V are slices of one tensor (needs seq_q = seq_kv, equal dims) */
    ARRANGE_BROADCAST, /* some strides of Q, K and V are 0 */
    ARRANGE_MIXED,     /* each tensor in its own order of dimensions, LSE rows far apart */
    ARRANGE_COUNT
};

enum scales { SCALES_NONE, SCALES_TENSOR, SCALES_HEAD, SCALES_TOKEN, SCALES_COUNT }; /* of fp8 */

struct recipe {
    uint64_t seed;
    attn_problem problem;
    enum distribution distribution;
    enum arrangement arrangement;
    int64_t granule;   /* strides of Q, K, V and O that an arrangement makes are multiples of it */
    bool lse;          /* the LSE is wanted */
    bool slopes;       /* ALiBi slopes are given rather than the usual ones */
    bool masking_bias; /* a tenth of the bias is -inf */
    enum scales scales[2]; /* of K and V, if they are fp8 */
};

/* The given problem with N(0, 1), an LSE and a granule of 1. */
void recipe_init(struct recipe *recipe, const attn_problem *problem, uint64_t seed);

/* What random problems may be. */
struct recipe_limits {
    uint32_t dtypes, options;                /* bits of attn_dtype and attn_option */
    int64_t head_dim_multiple, head_dim_max; /* 0: any */
    int32_t block_q, block_kv;               /* lengths are often at their edges; 0: none */
    bool head_dim_v;                         /* may differ from head_dim */
    bool gpu, emulated;                      /* emulated: whole tiles count against the budget */
    bool fp8_only;                           /* K and V in fp8 always */
    int32_t v_in_k; /* V in K: 0 never, -1 at times, else always, up to so many columns */
    double budget;  /* pairs of query and key x (head_dim + head_dim_v), at most */
};

enum recipe_kind {
    RECIPE_PLAIN,
    RECIPE_LARGE,  /* more than the budget */
    RECIPE_DECODE, /* few queries, often many query heads to a KV head */
    RECIPE_FUTURE, /* causal, with keys that only later queries see */
    RECIPE_NO_KEYS,
    RECIPE_NO_BATCH,
    RECIPE_NO_QUERIES
};

/* dtype_kv of a problem for the variant: an fp8 dtype if it takes no other, else -1. Gives a
 * problem, whose head_dim is final, that dtype and the V that the variant asks for. */
int32_t dtype_kv_of(const attn_variant *variant);
void problem_suit(const attn_variant *variant, attn_problem *problem);

/* A random problem; later attempts, from 0 on, are simpler. */
void recipe_draw_within(struct recipe *recipe, uint64_t seed, const struct recipe_limits *limits,
                        enum recipe_kind kind, int attempt);

/* One of any dtype, layout and combination of options. */
void recipe_draw(struct recipe *recipe, uint64_t seed);

/* As one line, for a failure message. */
const char *recipe_print(const struct recipe *recipe, char *buffer, size_t size);

/* The blocks of memory of a sample; fused Q, K and V lie in the first. */
enum { SAMPLE_BLOCKS = 18, BLOCK_O = 3, BLOCK_LSE = 4, BLOCK_TABLE = 14 };
extern const char *const SAMPLE_BLOCK_NAMES[SAMPLE_BLOCKS];

struct sample {
    struct recipe recipe;
    attn_problem problem; /* recipe.problem with the arrangement's strides (packed: the totals) */
    attn_problem full;    /* the same with every default replaced */
    attn_tensors tensors;
    union {
        struct guarded blocks[SAMPLE_BLOCKS];
        struct {
            struct guarded qkv[3], o, lse, bias, mask, slopes, sink, cu_q, cu_kv, used, scales[2],
                table, used_q, drafts, offsets;
        };
    };
    uint64_t inputs;             /* hash of every input byte */
    struct gradients *gradients; /* sample_add_gradients; NULL: of forward alone */
};

/* Builds the sample and remembers its line for a report on SIGSEGV. False: out of memory. Its last
 * part: bias, mask, slopes and sink, where they are requested. */
bool sample_make(struct sample *sample, const struct recipe *recipe);
bool sample_make_extras(struct sample *sample, uint64_t *rng);
void sample_free(struct sample *sample);

/* A tensor with rows of `dim` elements and as many heads as Q or, with kv, K: its strides, with
 * gaps of one to three times `gap` elements, and the elements that it spans, gaps included. */
attn_strides strides_with_gaps(const attn_problem *problem, attn_layout layout, bool kv,
                               int64_t dim, int64_t gap);
int64_t extent_with_gaps(const attn_problem *problem, const attn_strides *strides, bool kv,
                         int64_t dim);

int64_t sample_rows_q(const struct sample *sample, int64_t batch); /* of this sequence */
int64_t sample_rows_kv(const struct sample *sample, int64_t batch);

/* The keys [*low, *high] that query i of this batch entry sees; *low > *high: none. */
void sample_visible(const struct sample *sample, int64_t batch, int64_t i, int64_t *low,
                    int64_t *high);

/* Whether it sees key j; any key, if j < 0. */
bool sample_sees(const struct sample *sample, int64_t batch, int64_t i, int64_t j);

/* Element offsets into the tensors. */
int64_t sample_at_q(const struct sample *sample, int64_t batch, int64_t head, int64_t row);
int64_t sample_at_k(const struct sample *sample, int64_t batch, int64_t head, int64_t row);
int64_t sample_at_v(const struct sample *sample, int64_t batch, int64_t head, int64_t row);
int64_t sample_at_k_scale(const struct sample *sample, int64_t batch, int64_t head, int64_t row);
int64_t sample_at_v_scale(const struct sample *sample, int64_t batch, int64_t head, int64_t row);
int64_t sample_at_o(const struct sample *sample, int64_t batch, int64_t head, int64_t row);
int64_t sample_at_lse(const struct sample *sample, int64_t batch, int64_t head, int64_t row);

/* Must follow any change that a test makes to the inputs of a built sample. */
void sample_touch(struct sample *sample);

/* O and LSE, or the gradients that it has, back to 0xFF. */
void sample_poison(struct sample *sample);

/* NULL, or what is wrong: an input changed, a band or a gap written, also of its gradients. */
const char *sample_damage(const struct sample *sample);

/* ---- gradients ------------------------------------------------------------------------------- */

enum { GRADIENTS = 6 }; /* outputs, by attn_gradient */

/* What backward adds to a sample: dO of N(0, 1), NaN in rows that see nothing, and memory for every
 * gradient that the problem has. With ARRANGE_GIVEN the strides are those of Q, K, V and O. */
struct gradients {
    attn_problem problem; /* the sample's, with other strides for dO, dQ, dK and dV */
    attn_tensors tensors; /* the sample's, and these */
    struct guarded d_o, outputs[GRADIENTS];
    uint64_t input; /* hash of dO, and from gradients_poison on of O and LSE */
};
extern const char *const GRADIENT_NAMES[GRADIENTS]; /* dQ dK dV d_bias d_sink d_slopes */

/* dO of the first `hidden` queries is NaN. K that a mask hides becomes numbers: NaN may pass a mask
 * in backward. False: out of memory. */
bool gradients_make(struct gradients *gradients, struct sample *sample, int64_t hidden);
void gradients_free(struct gradients *gradients);

/* The same, owned by the sample and freed with it. */
bool sample_add_gradients(struct sample *sample, int64_t hidden);

/* Its place among the tensors. */
void **gradient_pointer(attn_tensors *tensors, attn_gradient which);

/* The outputs back to 0xFF. O and LSE are as forward left them and must stay so. */
void gradients_poison(struct gradients *gradients, const struct sample *sample);

/* NULL, or what is wrong: dO, O or LSE changed, a byte written that belongs to no element. */
const char *gradients_damage(const struct gradients *gradients, const struct sample *sample);

/* ---- outputs, element by element ------------------------------------------------------------- */

/* O or a gradient as rows of columns. */
struct output_view {
    unsigned char *data;
    attn_dtype dtype;
    attn_row shape; /* how many of each */
    int64_t cols;
    attn_bias_strides strides;
    const int32_t *cu_seqlens; /* packed: where the rows of a batch entry begin; else NULL */
    const int32_t *used;       /* how many of them exist; NULL: all */
};

struct output_view view_of_o(const struct sample *sample);
struct output_view view_of_lse(const struct sample *sample);
/* False: the problem has no such gradient. */
bool view_of_gradient(const struct gradients *gradients, attn_gradient which,
                      struct output_view *view);

/* How many rows; the index-th, batch-major; whether it is there (packed, used_q: some are not). */
int64_t view_rows(const struct output_view *view);
attn_row view_row(const struct output_view *view, int64_t index);
bool view_has(const struct output_view *view, const attn_row *row);
unsigned char *view_at(const struct output_view *view, const attn_row *row, int64_t col);
float view_get(const struct output_view *view, const attn_row *row, int64_t col);

/* Whether every byte of `memory` that belongs to no element of the view is still 0xFF. */
bool view_intact(const struct output_view *view, const struct guarded *memory);

/* ---- what is expected ------------------------------------------------------------------------ */

/* The reference, kept so that many variants are compared with one evaluation. */
struct expectation {
    size_t count;
    attn_row *rows; /* which; NULL: all of them */
    double *o, *lse, *twin;
};

/* Of all rows; of `count` rows, which must come from malloc and are freed with the expectation.
 * NULL, or what went wrong; to be freed in either case. */
const char *expectation_make(struct expectation *expected, const attn_context *context,
                             const struct sample *sample);
const char *expectation_make_rows(struct expectation *expected, const attn_context *context,
                                  const struct sample *sample, attn_row *rows, size_t count);
void expectation_free(struct expectation *expected);

/* Which row the index-th one is. */
attn_row expectation_row(const struct expectation *expected, const struct sample *sample,
                         size_t index);

/* NULL if what lies in O and LSE passes attn_compare, else the comparison as a line. The comparison
 * itself goes to *result, which may be NULL. */
const char *sample_compare(const struct sample *sample, const struct expectation *expected,
                           attn_comparison *result);

/* The number-th resample of a borderline case (attn_judge), from 1 on: another seed, which changes
 * the data alone. */
void recipe_resample(struct recipe *recipe, size_t number);

#endif /* ATTEST_CASES_CASES_H */
