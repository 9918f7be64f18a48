/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_fixture.h - a CUDA context on the fake driver (fake_driver.h), and what tests do with one.
 *
 * A build without kernels has no CUDA variant of its own: made_up() adds one from PTX written here,
 * so that the host code is tested there, too. What needs the compiled-in ones is skipped by
 * SKIP_WITHOUT_KERNELS().
 *
 * Invariant: the tensors of stand_ins() are addresses without memory. Host code that
 * reads through a device pointer does not survive it.
 */
#ifndef CUDA_FIXTURE_H
#define CUDA_FIXTURE_H

#include "attn_inspect.h"
#include "cuda/fake_driver.h"
#include "test.h"

extern const struct fake_control *fake;

/* Loads the fake driver at the first call, brings it back to its beginning, switches its log on. */
bool fake_begin(int devices);

/* CHECKs that nothing is left of what the library took, and no context on this thread's stack. */
void fake_end(void);

/* On the fake driver; NULL and a failed CHECK if it does not open. */
attn_context *fake_open(const char *device);

/* The status of opening; closed again. */
attn_status fake_try(const char *device, attn_error *why);

/* A function of the fake driver, through attn_driver_function. */
void fake_push(const attn_context *context, void *current);
void fake_pop(const attn_context *context);

int calls_of(const char *function);           /* how often it is in the log */
const struct fake_call *launch_at(int index); /* the index-th launch of the log, or NULL */

/* CUDA variants that are compiled into the library; strings live as long as it. */
enum { BUILT_IN_MAX = 256 };
int built_in_variants(attn_variant list[BUILT_IN_MAX]);

#define SKIP_WITHOUT_KERNELS()                                                                     \
    do {                                                                                           \
        attn_variant skip_list[BUILT_IN_MAX];                                                      \
        if (built_in_variants(skip_list) == 0) {                                                   \
            SKIP("no kernels are compiled in");                                                    \
        }                                                                                          \
    } while (0)

enum {
    ALL_OPTIONS = ATTN_OPTION_WINDOW | ATTN_OPTION_SOFTCAP | ATTN_OPTION_ALIBI | ATTN_OPTION_BIAS |
                  ATTN_OPTION_MASK | ATTN_OPTION_SINK | ATTN_OPTION_PACKED | ATTN_OPTION_USED_KV |
                  ATTN_OPTION_PAGED | ATTN_OPTION_ANY_SCALE | ATTN_OPTION_USED_Q |
                  ATTN_OPTION_DRAFT | ATTN_OPTION_OFFSETS
};

/* A descriptor of family fwd_scalar for 16-bit floats of head_dim 64, and PTX with that entry. */
attn_variant made_up(const char *name, attn_dtype dtype);
const char *made_up_ptx(const char *entry, const char *target, char buffer[1024]);

/* A cubin that is all header and names: ELF flags for the architecture (80), one kernel. Returns
 * its size. */
size_t made_up_cubin(const char *entry, int arch, unsigned char buffer[1024]);

/* Adds made_up(name) with its PTX; CHECKs. */
bool add_made_up(attn_context *context, const char *name, attn_dtype dtype);

/* Adds made_up_fwd_mma_<dtype> and made_up_fwd_mma_full_<dtype>: tiles of 64 rows, head dimensions
 * of multiples of 8 up to 128. CHECKs. */
bool add_made_up_mma(attn_context *context, attn_dtype dtype);

/* Adds made_up_fwd_hopper_<dtype>_d128_128x64, made_up_fwd_hopper_causal_..., ..._mixed_... and
 * ..._split_..._64x64: they take tensor maps (fake_driver.h), head dimensions of multiples of 8 up
 * to 128. CHECKs. */
bool add_made_up_hopper(attn_context *context, attn_dtype dtype);

/* Adds made_up_bwd_mma_<dtype>_d128_64x32: tiles of 64 rows. CHECKs. */
bool add_made_up_backward(attn_context *context, attn_dtype dtype);

/* fp16, batch 2, 4 heads, 40 queries, 60 keys, head_dim 64. */
attn_problem gpu_problem(void);

/* The same, changed into one that this variant takes. */
attn_problem fitting_problem(const attn_variant *variant);

/* A plan for it; NULL and a failed CHECK. */
attn_plan *plan_on(attn_context *context, const attn_problem *problem, const char *variant);

attn_tensors stand_ins(void);

#endif /* CUDA_FIXTURE_H */
