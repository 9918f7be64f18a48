/* SPDX-License-Identifier: Apache-2.0
 *
 * attn.c - the entry points: status and error, contexts, pointer checks, forward, backward,
 * append.
 *
 * Invariant: what reaches a backend has been checked; a backend cannot fail half-way.
 */
#include "core/abi.h"
#include "core/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF(x) #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *attn_version(void) {
    return VERSION_TEXT(ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH);
}

const char *attn_status_name(attn_status status) {
    switch (status) {
    case ATTN_OK: return "ok";
    case ATTN_INVALID: return "invalid argument";
    case ATTN_UNSUPPORTED: return "unsupported";
    case ATTN_OUT_OF_MEMORY: return "out of memory";
    case ATTN_DEVICE: return "device error";
    }
    return "unknown status";
}

attn_status attn_fail(attn_error *error, attn_status status, const char *format, ...) {
    if (error != NULL && status == ATTN_OK) { /* at every call: not worth a format */
        error->text[0] = '\0';
    } else if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return status;
}

/* ---- context --------------------------------------------------------------------------------- */

void attn_options_init_sized(attn_options *options, size_t size) {
    const attn_options defaults = {.size = sizeof defaults};
    if (options != NULL) {
        abi_write(options, size, &defaults, sizeof defaults);
    }
}

/* "cpu" and "cuda[:N]" are names; whether the device exists is another question. *ordinal is -1
 * for the CPU. */
static attn_status parse_device(const char *device, int *ordinal, attn_error *error) {
    *ordinal = -1;
    if (device == NULL || strcmp(device, "cpu") == 0) {
        return ATTN_OK;
    }
    const char *number = NULL;
    if (strcmp(device, "cuda") == 0) {
        number = "0";
    } else if (strncmp(device, "cuda:", 5) == 0) {
        number = device + 5;
    }
    if (number == NULL || number[0] == '\0' || strlen(number) > 4 ||
        strspn(number, "0123456789") != strlen(number)) {
        return attn_fail(error, ATTN_INVALID,
                         "options.device = \"%.64s\", expected \"cpu\", \"cuda\" or \"cuda:N\"",
                         device);
    }
    *ordinal = atoi(number);
    return ATTN_OK;
}

attn_status attn_open(const attn_options *options, attn_context **context, attn_error *error) {
    if (context == NULL) {
        return attn_fail(error, ATTN_INVALID, "context = NULL, expected where to put the context");
    }
    *context = NULL;
    attn_options o;
    attn_options_init(&o);
    attn_status status = ATTN_OK;
    if (options != NULL) {
        status = abi_read("options", options, OPTIONS_0_2, &o, sizeof o, error);
    }
    if (status == ATTN_OK && (o.threads < 0 || o.threads > 1024)) {
        status = attn_fail(error, ATTN_INVALID,
                           "options.threads = %d, expected 0 (automatic) to 1024", (int)o.threads);
    }
    if (status == ATTN_OK && o.reserved != 0) {
        status =
            attn_fail(error, ATTN_INVALID, "options.reserved = %d, expected 0", (int)o.reserved);
    }
    int ordinal = -1;
    if (status == ATTN_OK) {
        status = parse_device(o.device, &ordinal, error);
    }
    if (status != ATTN_OK) {
        return status;
    }
    attn_context *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for a context");
    }
    if (ordinal >= 0) {
        status = cuda_open(&made->cuda, ordinal, o.driver, error);
    }
    if (status == ATTN_OK) {
        status = variants_load(made, error);
    }
    if (status == ATTN_OK) {
        status = tuned_load(made, tuned_lines, tuned_line_count, error);
    }
    if (status == ATTN_OK) {
        made->pool = pool_create(o.threads);
        if (made->pool == NULL) {
            status =
                attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for %d threads", (int)o.threads);
        }
    }
    if (status != ATTN_OK) {
        attn_close(made);
        return status;
    }
    *context = made;
    return attn_fail(error, ATTN_OK, "%s", "");
}

void attn_close(attn_context *context) {
    if (context != NULL) {
        pool_destroy(context->pool);
        variants_free(context);
        free(context->preferences);
        cuda_close(context->cuda);
        free(context);
    }
}

struct pool *context_pool(const attn_context *context) {
    return context->pool;
}

attn_status attn_device_get(const attn_context *context, attn_device *device, attn_error *error) {
    if (context == NULL || device == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", context == NULL ? "context" : "device");
    }
    const attn_status status = abi_check("device", device->size, DEVICE_0_2, error);
    if (status != ATTN_OK) {
        return status;
    }
    attn_device found = {.size = sizeof found};
    if (context->cuda != NULL) {
        cuda_describe(context->cuda, &found);
    } else {
        cpu_describe(&found);
        found.units = pool_size(context->pool);
    }
    abi_write(device, device->size, &found, sizeof found);
    return attn_fail(error, ATTN_OK, "%s", "");
}

attn_status attn_driver_function(const attn_context *context, const char *name, void **function,
                                 attn_error *error) {
    if (context == NULL || name == NULL || function == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL",
                         context == NULL ? "context"
                         : name == NULL  ? "name"
                                         : "function");
    }
    *function = NULL;
    if (context->cuda == NULL) {
        return attn_fail(error, ATTN_UNSUPPORTED, "context computes on the CPU and has no driver");
    }
    *function = cuda_driver_function(context->cuda, name);
    if (*function == NULL) {
        return attn_fail(error, ATTN_UNSUPPORTED, "name = \"%.64s\" is no function of the driver",
                         name);
    }
    return attn_fail(error, ATTN_OK, "%s", "");
}

/* ---- tensors --------------------------------------------------------------------------------- */

void attn_tensors_init_sized(attn_tensors *tensors, size_t size) {
    const attn_tensors defaults = {.size = sizeof defaults};
    if (tensors != NULL) {
        abi_write(tensors, size, &defaults, sizeof defaults);
    }
}

const attn_tensors *tensors_read(const attn_tensors *tensors, attn_tensors *room,
                                 attn_error *error) {
    if (tensors == NULL) {
        attn_fail(error, ATTN_INVALID, "tensors = NULL, expected an attn_tensors");
        return NULL;
    }
    if (tensors->size == sizeof *tensors) {
        return tensors;
    }
    attn_tensors_init(room);
    return abi_read("tensors", tensors, TENSORS_0_2, room, sizeof *room, error) == ATTN_OK ? room
                                                                                           : NULL;
}

attn_status pointer_check(const char *name, const void *pointer, size_t alignment, bool wanted,
                          attn_error *error) {
    if (wanted && pointer == NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "%s = NULL, expected the tensor that the problem uses", name);
    }
    if ((uintptr_t)pointer % alignment != 0) {
        return attn_fail(error, ATTN_INVALID, "%s = %p, expected a multiple of %zu bytes", name,
                         pointer, alignment);
    }
    return ATTN_OK;
}

static attn_status check_cu_seqlens(const char *name, const int32_t *cu, int64_t batch,
                                    int64_t most, int64_t total, attn_error *error) {
    for (int64_t b = 0; b <= batch; b++) {
        const int64_t low = b == 0 ? 0 : cu[b - 1];
        const int64_t high = b == 0 ? 0 : (low + most < total ? low + most : total);
        if (cu[b] < low || cu[b] > high) {
            return attn_fail(error, ATTN_INVALID, "tensors.%s[%lld] = %d, expected %lld to %lld",
                             name, (long long)b, (int)cu[b], (long long)low, (long long)high);
        }
    }
    return ATTN_OK;
}

/* cu NULL: each sequence has `rows` of them. */
static attn_status check_used(const char *name, const int32_t *used, int64_t batch,
                              const int32_t *cu, int64_t rows, attn_error *error) {
    for (int64_t b = 0; b < batch; b++) {
        const int64_t most = cu != NULL ? cu[b + 1] - cu[b] : rows;
        if (used[b] < 0 || used[b] > most) {
            return attn_fail(error, ATTN_INVALID, "tensors.%s[%lld] = %d, expected 0 to %lld", name,
                             (long long)b, (int)used[b], (long long)most);
        }
    }
    return ATTN_OK;
}

static attn_status check_lengths(const attn_problem *p, const attn_tensors *t, attn_error *error) {
    attn_status status = ATTN_OK;
    if (p->packed) {
        status = check_cu_seqlens("cu_seqlens_q", t->cu_seqlens_q, p->batch, p->seq_q, p->total_q,
                                  error);
        if (status == ATTN_OK && p->page_size == 0) {
            status = check_cu_seqlens("cu_seqlens_kv", t->cu_seqlens_kv, p->batch, p->seq_kv,
                                      p->total_kv, error);
        }
    }
    if (status == ATTN_OK && p->used_q) {
        status = check_used("used_q", t->used_q, p->batch, p->packed ? t->cu_seqlens_q : NULL,
                            p->seq_q, error);
    }
    if (status == ATTN_OK && p->used_kv) {
        const bool bounded = p->packed && p->page_size == 0;
        status = check_used("used_kv", t->used_kv, p->batch, bounded ? t->cu_seqlens_kv : NULL,
                            p->seq_kv, error);
    }
    return status;
}

/* Of the pages that are read, or of those that are appended to. The lengths have been checked. */
static attn_status check_block_table(const attn_problem *p, const attn_tensors *t, bool append,
                                     attn_error *error) {
    for (int64_t b = 0; b < p->batch; b++) {
        const struct sequence s = sequence_of(p, t, b);
        const int64_t key = append && s.q_len < s.kv_len ? s.kv_len - s.q_len : 0;
        const int64_t first = key / p->page_size;
        const int64_t end = append && s.q_len == 0 ? 0 : problem_pages(p, s.kv_len);
        if (t->block_table == NULL && first < end) { /* num_pages may be 0 */
            return attn_fail(error, ATTN_INVALID,
                             "tensors.block_table = NULL, expected the pages of sequence %lld, "
                             "which has %lld keys",
                             (long long)b, (long long)s.kv_len);
        }
        for (int64_t i = first; i < end; i++) {
            const int32_t page = t->block_table[b * p->block_table_stride + i];
            if (page < 0 || page >= p->num_pages) {
                return attn_fail(error, ATTN_INVALID,
                                 "tensors.block_table[%lld][%lld] = %d, expected 0 or more and "
                                 "below num_pages = %lld",
                                 (long long)b, (long long)i, (int)page, (long long)p->num_pages);
            }
        }
    }
    return ATTN_OK;
}

/* The lengths have been checked. */
static attn_status check_positions(const attn_problem *p, const attn_tensors *t,
                                   attn_error *error) {
    for (int64_t b = 0; p->rope != ATTN_ROPE_NONE && b < p->batch; b++) {
        const struct sequence s = sequence_of(p, t, b);
        if (s.q_len > 0 && s.kv_len > p->rope_rows) {
            return attn_fail(error, ATTN_INVALID,
                             "sequence %lld has %lld keys, expected at most rope_rows = %lld",
                             (long long)b, (long long)s.kv_len, (long long)p->rope_rows);
        }
    }
    return ATTN_OK;
}

static bool overlap(const void *output, const attn_tensors *t) {
    const void *const inputs[] = {t->q, t->k, t->v};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        if (output != NULL && output == inputs[i]) {
            return true;
        }
    }
    return false;
}

/* As far as the first addresses show. */
static attn_status check_overlap(const attn_tensors *t, enum tensors_use use, attn_error *error) {
    const struct {
        const char *name;
        const void *pointer;
    } outputs[] = {{"o", t->o}, {"lse", t->lse}, {"dq", t->dq}, {"dk", t->dk}, {"dv", t->dv}};
    const size_t first = use == TENSORS_BACKWARD ? 2 : 0;
    const size_t end = use == TENSORS_BACKWARD ? 5 : use == TENSORS_FORWARD ? 2 : 0;
    for (size_t i = first; i < end; i++) {
        const void *const output = outputs[i].pointer;
        bool shared = overlap(output, t);
        if (use == TENSORS_BACKWARD && output != NULL) {
            shared = shared || output == t->o || output == t->d_o;
        }
        for (size_t j = i + 1; output != NULL && j < end; j++) {
            shared = shared || output == outputs[j].pointer;
        }
        if (shared) {
            return attn_fail(error, ATTN_INVALID,
                             "tensors.%s = %p, expected memory that is not another tensor's",
                             outputs[i].name, outputs[i].pointer);
        }
    }
    return ATTN_OK;
}

/* Likewise of append: q_out may be q. */
static attn_status check_append_overlap(const attn_problem *p, const attn_tensors *t,
                                        attn_error *error) {
    const struct {
        const char *name;
        const void *pointer;
    } all[] = {{"k_cache", t->k_cache},
               {"v_cache", t->v_cache},
               {"q_out", t->q_out},
               {"k_scale", p->k_scale.row != 0 ? t->k_scale : NULL}, /* else an input */
               {"v_scale", p->v_scale.row != 0 && !p->v_in_k ? t->v_scale : NULL},
               {"k_new", t->k_new},
               {"v_new", t->v_new},
               {"q", t->q}};
    enum { OUTPUTS = 5, ALL = sizeof all / sizeof all[0], Q_OUT = 2, Q = 7 };
    for (int i = 0; i < OUTPUTS; i++) {
        for (int j = i + 1; j < ALL; j++) {
            const bool in_place =
                i == Q_OUT && j == Q && memcmp(&p->q, &p->q_out, sizeof p->q) == 0;
            if (all[i].pointer != NULL && all[i].pointer == all[j].pointer && !in_place &&
                (t->q_out != NULL || j != Q)) {
                return attn_fail(error, ATTN_INVALID,
                                 "tensors.%s = %p, expected memory that is not %s's%s", all[i].name,
                                 all[i].pointer, all[j].name,
                                 i == Q_OUT && j == Q ? " with other strides" : "");
            }
        }
    }
    return ATTN_OK;
}

attn_status tensors_check(const attn_problem *p, const attn_tensors *t, enum tensors_use use,
                          bool host, attn_error *error) {
    const bool forward = use == TENSORS_FORWARD;
    const bool backward = use == TENSORS_BACKWARD;
    const bool append = use == TENSORS_APPEND;
    const bool rope = append && p->rope != ATTN_ROPE_NONE;
    const bool q = p->batch > 0 && (p->packed ? p->total_q : p->seq_q) > 0;
    const bool paged = p->page_size > 0;
    const bool contiguous = p->packed && !paged;
    const bool kv =
        p->batch > 0 && (contiguous ? p->total_kv : p->seq_kv) > 0 && (!paged || p->num_pages > 0);
    const size_t wide = (size_t)p->alignment;
    const struct {
        const char *name;
        const void *pointer;
        size_t alignment;
        bool used, wanted;
    } all[] = {
        /* what has no elements may lie anywhere */
        {"tensors.q", t->q, wide, q && (!append || t->q_out != NULL), true},
        {"tensors.k", t->k, wide, kv && !append, true},
        {"tensors.v", t->v, wide, kv && !append, true},
        {"tensors.o", t->o, wide, (forward || backward) && q, true},
        {"tensors.lse", t->lse, sizeof(float), forward || (backward && q), backward},
        {"tensors.bias", t->bias, attn_dtype_size(p->bias_dtype), p->bias && q && kv, true},
        {"tensors.mask", t->mask, 1, p->mask && q && kv, true},
        {"tensors.alibi_slopes", t->alibi_slopes, sizeof(float), p->alibi, false},
        {"tensors.sink", t->sink, sizeof(float), p->sink, true},
        {"tensors.cu_seqlens_q", t->cu_seqlens_q, sizeof(int32_t), p->packed, true},
        {"tensors.cu_seqlens_kv", t->cu_seqlens_kv, sizeof(int32_t), contiguous, true},
        {"tensors.used_kv", t->used_kv, sizeof(int32_t), p->used_kv, p->batch > 0},
        {"tensors.used_q", t->used_q, sizeof(int32_t), p->used_q, p->batch > 0},
        {"tensors.offsets", t->offsets, sizeof(int32_t), p->offsets, p->batch > 0},
        {"tensors.draft_mask", t->draft_mask, sizeof(uint64_t), p->draft && q, true},
        {"tensors.block_table", t->block_table, sizeof(int32_t), paged && kv, true},
        {"tensors.k_scale", t->k_scale, sizeof(float), problem_is_fp8(p) && kv,
         append && p->k_scale.row != 0},
        {"tensors.v_scale", t->v_scale, sizeof(float), problem_is_fp8(p) && kv,
         append && p->v_scale.row != 0 && !p->v_in_k},
        {"tensors.d_o", t->d_o, wide, (use == TENSORS_GRADIENT || backward) && q, true},
        {"tensors.dq", t->dq, wide, backward && q, true},
        {"tensors.dk", t->dk, wide, backward && kv, true},
        {"tensors.dv", t->dv, wide, backward && kv, true},
        {"tensors.d_bias", t->d_bias, attn_dtype_size(p->bias_dtype), backward && p->bias, false},
        {"tensors.d_sink", t->d_sink, sizeof(float), backward && p->sink, false},
        {"tensors.d_alibi_slopes", t->d_alibi_slopes, sizeof(float), backward && p->alibi, false},
        {"tensors.k_new", t->k_new, wide, append && q && kv, true},
        {"tensors.v_new", t->v_new, wide, append && q && kv && !p->v_in_k, true},
        {"tensors.k_cache", t->k_cache, wide, append && q && kv, true},
        {"tensors.v_cache", t->v_cache, wide, append && q && kv && !p->v_in_k, true},
        {"tensors.q_out", t->q_out, wide, append && q, false},
        {"tensors.rope_cos", t->rope_cos, attn_dtype_size(p->rope_dtype), rope && q && kv, true},
        {"tensors.rope_sin", t->rope_sin, attn_dtype_size(p->rope_dtype), rope && q && kv, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const attn_status status =
            all[i].used
                ? pointer_check(all[i].name, all[i].pointer, all[i].alignment, all[i].wanted, error)
                : ATTN_OK;
        if (status != ATTN_OK) {
            return status;
        }
    }
    if (p->v_in_k && kv && !append && t->v != t->k) {
        return attn_fail(error, ATTN_INVALID,
                         "tensors.v = %p with v_in_k = true, expected tensors.k = %p", t->v, t->k);
    }
    if (backward && p->bias && t->d_bias != NULL && problem_bias_overlaps(p)) {
        return attn_fail(error, ATTN_INVALID,
                         "tensors.d_bias with bias_strides = {%lld, %lld, %lld, %lld}: elements of "
                         "an output may not overlap",
                         (long long)p->bias_strides.batch, (long long)p->bias_strides.head,
                         (long long)p->bias_strides.row, (long long)p->bias_strides.col);
    }
    attn_status status = append ? check_append_overlap(p, t, error) : check_overlap(t, use, error);
    if (status == ATTN_OK && host) {
        status = check_lengths(p, t, error);
    }
    if (status == ATTN_OK && host && append) {
        status = check_positions(p, t, error);
    }
    return status == ATTN_OK && host && paged ? check_block_table(p, t, append, error) : status;
}

/* ---- forward, backward, append --------------------------------------------------------------- */

static attn_status check_workspace(const attn_plan *plan, const void *workspace, size_t size,
                                   attn_error *error) {
    if (plan->workspace == 0) {
        return ATTN_OK;
    }
    if (workspace == NULL || (uintptr_t)workspace % WORKSPACE_ALIGN != 0) {
        return attn_fail(error, ATTN_INVALID,
                         "workspace = %p, expected %zu bytes at a multiple of %d", workspace,
                         plan->workspace, (int)WORKSPACE_ALIGN);
    }
    if (size < plan->workspace) {
        return attn_fail(error, ATTN_INVALID, "workspace_size = %zu, expected at least %zu", size,
                         plan->workspace);
    }
    return ATTN_OK;
}

static attn_status dispatch(const attn_plan *plan, const attn_tensors *tensors, void *workspace,
                            void *stream, attn_error *error) {
    if (plan->context->cuda != NULL && plan->direction == ATTN_APPEND) {
        return cuda_append(plan->context->cuda, plan->name, &plan->problem, &plan->cuda, tensors,
                           stream, error);
    }
    if (plan->context->cuda != NULL && plan->direction == ATTN_BACKWARD) {
        return cuda_backward(plan->context->cuda, plan->name, &plan->problem, &plan->cuda, tensors,
                             workspace, stream, error);
    }
    if (plan->context->cuda != NULL) {
        return cuda_forward(plan->context->cuda, plan->name, &plan->problem, &plan->cuda, tensors,
                            workspace, stream, error);
    }
    const struct cpu_job job = {plan, &plan->problem, tensors, cpu_align(workspace)};
    switch (plan->family) {
    case FAMILY_CPU_ROW: cpu_row_forward(&job, plan->context->pool); break;
    case FAMILY_CPU_BACKWARD: cpu_backward(&job, plan->context->pool); break;
    case FAMILY_CPU_APPEND: cpu_append(&job, plan->context->pool); break;
    default: cpu_tile_forward(&job, plan->context->pool); break;
    }
    return ATTN_OK;
}

static attn_status run(const attn_plan *plan, attn_direction direction, const attn_tensors *tensors,
                       void *workspace, size_t workspace_size, void *stream, attn_error *error) {
    static const enum tensors_use uses[] = {TENSORS_FORWARD, TENSORS_BACKWARD, TENSORS_APPEND};
    attn_status status = plan_check_direction(plan, direction, error);
    if (status == ATTN_OK) {
        status = check_workspace(plan, workspace, workspace_size, error);
    }
    if (status != ATTN_OK) {
        return status;
    }
    attn_tensors room;
    const attn_tensors *t = tensors_read(tensors, &room, error);
    if (t == NULL) {
        return ATTN_INVALID;
    }
    const attn_problem *p = &plan->problem;
    status = tensors_check(p, t, uses[direction], plan->context->cuda == NULL, error);
    /* an empty problem has no output, but of backward, which has gradients that are 0 */
    if (status == ATTN_OK && (direction == ATTN_BACKWARD || (p->batch > 0 && p->seq_q > 0))) {
        status = dispatch(plan, t, workspace, stream, error);
    }
    return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
}

attn_status attn_forward(const attn_plan *plan, const attn_tensors *tensors, void *workspace,
                         size_t workspace_size, void *stream, attn_error *error) {
    return run(plan, ATTN_FORWARD, tensors, workspace, workspace_size, stream, error);
}

attn_status attn_backward(const attn_plan *plan, const attn_tensors *tensors, void *workspace,
                          size_t workspace_size, void *stream, attn_error *error) {
    return run(plan, ATTN_BACKWARD, tensors, workspace, workspace_size, stream, error);
}

attn_status attn_append(const attn_plan *plan, const attn_tensors *tensors, void *stream,
                        attn_error *error) {
    return run(plan, ATTN_APPEND, tensors, NULL, 0, stream, error);
}
