/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.c - see kernels.h. The reason is that of a plan which nothing can run.
 */
#include "device/kernels.h"
#include "attn_inspect.h"

#include "base/message.h"

bool kernels_missing(attn_context *gpu, attn_error *why) {
    attn_variant variant = {.size = sizeof variant};
    attn_problem problem;
    attn_plan *plan = NULL;
    if (attn_variant_get(gpu, 0, &variant, NULL) == ATTN_OK) {
        return false;
    }
    attn_problem_init(&problem);
    problem.dtype = ATTN_FP16;
    problem.head_dim = 64;
    if (attn_plan_create(gpu, &problem, NULL, &plan, why) == ATTN_OK) {
        attn_plan_destroy(plan);
        explain(why, "the library has no GPU kernels");
    }
    return true;
}

void kernels_explain(attn_error *why) {
    attn_options options;
    attn_context *context = NULL;
    attn_options_init(&options);
    options.device = "cuda";
    if (attn_open(&options, &context, NULL) != ATTN_OK || !kernels_missing(context, why)) {
        explain(why, "this build of libattn has no GPU kernels; what was missing, attest plan "
                     "--device cuda tells where there is a CUDA driver");
    }
    attn_close(context);
}
