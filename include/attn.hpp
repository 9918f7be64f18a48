/* SPDX-License-Identifier: Apache-2.0
 *
 * attn.hpp - attn.h for C++17 and later: RAII handles, expected values instead of status codes, and
 * views of four-dimensional arrays (an mdspan, or a pointer with sizes).
 *
 *     auto context = attn::context::open();                          // the CPU
 *     std::vector<float> x(4 * 2 * 8 * 512 * 64);
 *     auto part = [&](int i) { return attn::view(x.data() + i * x.size() / 4, 2, 8, 512, 64); };
 *     attn::problem problem;                                         // every default of attn.h
 *     problem.causal = ATTN_CAUSAL_TOP_LEFT;
 *     auto done = attn::attention(*context, part(0), part(1), part(2), part(3), problem);
 *     if (!done) std::puts(done.error().text.c_str());
 *
 * On a GPU, or for repeated calls: context.plan(problem), plan.forward(tensors, workspace).
 * Structs are those of attn.h with a constructor: the comments there apply.
 *
 * Invariant: header only, over the public C functions. Only expected::value() and allocations of
 * the standard library throw.
 */
#ifndef ATTN_HPP
#define ATTN_HPP

#include <attn.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace attn {

/* ---- errors ---------------------------------------------------------------------------------- */

struct error {
    attn_status status;
    std::string text; /* one sentence: the argument, its value, what was expected */
};

/* What expected::value() throws. */
struct exception : std::runtime_error {
    explicit exception(const error &why) : std::runtime_error(why.text), status(why.status) {}
    attn_status status;
};

/* A value or an error: the subset of C++23's std::expected that is needed here. */
template <class T> class [[nodiscard]] expected {
    std::variant<T, attn::error> state;

  public:
    expected(T value) : state(std::in_place_index<0>, std::move(value)) {}
    expected(attn::error why) : state(std::in_place_index<1>, std::move(why)) {}
    bool has_value() const noexcept { return state.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }
    /* As for std::expected, * and -> need a value, and error() needs an error. */
    T &operator*() &noexcept { return *std::get_if<0>(&state); }
    const T &operator*() const &noexcept { return *std::get_if<0>(&state); }
    T &&operator*() &&noexcept { return std::move(*std::get_if<0>(&state)); }
    T *operator->() noexcept { return std::get_if<0>(&state); }
    const T *operator->() const noexcept { return std::get_if<0>(&state); }
    const attn::error &error() const noexcept { return *std::get_if<1>(&state); }
    T value() && {
        if (!has_value())
            throw exception(error());
        return std::move(**this);
    }
    T &value() & {
        if (!has_value())
            throw exception(error());
        return **this;
    }
};

template <> class [[nodiscard]] expected<void> : expected<std::monostate> {
  public:
    expected() : expected<std::monostate>(std::monostate{}) {}
    using expected<std::monostate>::expected;
    using expected<std::monostate>::has_value;
    using expected<std::monostate>::error;
    explicit operator bool() const noexcept { return has_value(); }
    void value() const {
        if (!has_value())
            throw exception(error());
    }
};

/* ---- the structs of attn.h, with their defaults ---------------------------------------------- */

struct options : attn_options {
    options() { attn_options_init(this); }
};
struct problem : attn_problem {
    problem() { attn_problem_init(this); }
};
struct plan_options : attn_plan_options {
    plan_options() { attn_plan_options_init(this); }
};
struct tensors : attn_tensors {
    tensors() { attn_tensors_init(this); }
};

/* ---- views ----------------------------------------------------------------------------------- */

/* 16-bit floats as bits, without arithmetic, for programs without such types of their own. */
struct fp16 {
    std::uint16_t bits;
};
struct bf16 {
    std::uint16_t bits;
};

/* The attn_dtype of a C++ type. Specialise it for others, such as CUDA's __half. */
template <class T> struct dtype_of;
template <> struct dtype_of<float> : std::integral_constant<attn_dtype, ATTN_FP32> {};
template <> struct dtype_of<fp16> : std::integral_constant<attn_dtype, ATTN_FP16> {};
template <> struct dtype_of<bf16> : std::integral_constant<attn_dtype, ATTN_BF16> {};

/* A view of a (batch, heads, rows, dim) array: any order in memory, last dimension contiguous. */
template <class T> struct view {
    T *data;
    std::int64_t batch, heads, rows, dim;
    attn_strides strides;

    view(T *at, std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t d)
        : view(at, b, h, r, d, {h * r * d, r * d, d}) {}
    view(T *at, std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t d, attn_strides step)
        : data(at), batch(b), heads(h), rows(r), dim(d), strides(step) {}
    /* std::mdspan, or anything with its members, of rank 4 and stride(3) == 1 (not checked). */
    template <class Mdspan, class = decltype(std::declval<const Mdspan &>().data_handle())>
    view(const Mdspan &m)
        : view(m.data_handle(), size(m.extent(0)), size(m.extent(1)), size(m.extent(2)),
               size(m.extent(3)), {size(m.stride(0)), size(m.stride(1)), size(m.stride(2))}) {}
    /* view<float> is a view<const float>. */
    template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
    view(const view<U> &v) : view(v.data, v.batch, v.heads, v.rows, v.dim, v.strides) {}

  private:
    template <class N> static std::int64_t size(N n) { return static_cast<std::int64_t>(n); }
};
template <class Mdspan, class = decltype(std::declval<const Mdspan &>().data_handle())>
view(const Mdspan &) -> view<typename Mdspan::element_type>;

/* "(2, 8, 512, 64)" */
template <class T> std::string shape(const view<T> &v) {
    return "(" + std::to_string(v.batch) + ", " + std::to_string(v.heads) + ", " +
           std::to_string(v.rows) + ", " + std::to_string(v.dim) + ")";
}

/* A problem, which is `base` with the dtypes, sizes and strides of these views, and its tensors. */
template <class Q, class K, class V, class O>
expected<std::pair<problem, tensors>> bind(view<Q> q, view<K> k, view<V> v, view<O> o,
                                           problem base = {}) {
    static_assert(!std::is_const_v<O>, "O is written");
    static_assert(std::is_same_v<std::remove_const_t<K>, std::remove_const_t<V>>,
                  "K and V have one dtype");
    if (k.batch != q.batch || v.batch != q.batch || o.batch != q.batch || v.heads != k.heads ||
        o.heads != q.heads || v.rows != k.rows || o.rows != q.rows || k.dim != q.dim ||
        o.dim != v.dim) {
        return error{ATTN_INVALID, "q is " + shape(q) + ", k " + shape(k) + ", v " + shape(v) +
                                       ", o " + shape(o) +
                                       "; expected one batch, dim of Q and K, dim of V and O, "
                                       "heads and rows of Q and O, of K and V"};
    }
    tensors t;
    base.dtype = dtype_of<std::remove_const_t<Q>>::value;
    base.dtype_kv = dtype_of<std::remove_const_t<K>>::value;
    base.dtype_o = dtype_of<O>::value;
    base.batch = q.batch, base.heads_q = q.heads, base.heads_kv = k.heads;
    base.seq_q = q.rows, base.seq_kv = k.rows, base.head_dim = q.dim, base.head_dim_v = v.dim;
    base.q = q.strides, base.k = k.strides, base.v = v.strides, base.o = o.strides;
    t.q = q.data, t.k = k.data, t.v = v.data, t.o = o.data;
    return std::pair(base, t);
}

/* ---- plan and context ------------------------------------------------------------------------ */

template <auto Destroy> struct destroyer {
    template <class T> void operator()(T *handle) const noexcept { Destroy(handle); }
};

class plan {
    std::unique_ptr<attn_plan, destroyer<attn_plan_destroy>> handle;

  public:
    explicit plan(attn_plan *owned) : handle(owned) {}
    attn_plan *get() const noexcept { return handle.get(); }
    std::size_t workspace_size() const { return attn_workspace_size(get()); }
    std::size_t workspace_alignment() const { return attn_workspace_alignment(get()); }
    /* workspace: workspace_size() bytes of the device's memory, for one call at a time. */
    expected<void> forward(const attn_tensors &t, void *workspace, void *stream = nullptr) const {
        return call(attn_forward, t, workspace, stream);
    }
    expected<void> backward(const attn_tensors &t, void *workspace, void *stream = nullptr) const {
        return call(attn_backward, t, workspace, stream);
    }
    expected<void> append(const attn_tensors &t, void *stream = nullptr) const {
        attn_error why;
        return done(attn_append(get(), &t, stream, &why), why);
    }
    /* o_parts and lse_parts: count addresses each. */
    expected<void> merge(const void *const *o_parts, const float *const *lse_parts,
                         std::int32_t count, void *o, float *lse = nullptr,
                         void *stream = nullptr) const {
        attn_error why;
        return done(attn_merge(get(), o_parts, lse_parts, count, o, lse, stream, &why), why);
    }
    expected<void> accumulate(const void *o_part, const float *lse_part, float *o_sum,
                              float *lse_sum, void *o = nullptr, void *stream = nullptr) const {
        attn_error why;
        return done(attn_accumulate(get(), o_part, lse_part, o_sum, lse_sum, o, stream, &why), why);
    }

  private:
    expected<void> call(decltype(&attn_forward) function, const attn_tensors &t, void *workspace,
                        void *stream) const {
        attn_error why;
        return done(function(get(), &t, workspace, workspace_size(), stream, &why), why);
    }
    static expected<void> done(attn_status status, const attn_error &why) {
        if (status != ATTN_OK)
            return error{status, why.text};
        return {};
    }
};

class context {
    std::unique_ptr<attn_context, destroyer<attn_close>> handle;
    explicit context(attn_context *owned) : handle(owned) {}

  public:
    /* Must outlive its plans. */
    static expected<context> open(const attn_options &chosen = options()) {
        attn_error why;
        attn_context *opened = nullptr;
        const attn_status status = attn_open(&chosen, &opened, &why);
        if (status != ATTN_OK)
            return error{status, why.text};
        return context(opened);
    }
    static expected<context> open(const char *device) {
        options chosen;
        chosen.device = device;
        return open(chosen);
    }
    attn_context *get() const noexcept { return handle.get(); }
    expected<attn::plan> plan(const attn_problem &p,
                              const attn_plan_options &chosen = plan_options()) const {
        attn_error why;
        attn_plan *made = nullptr;
        const attn_status status = attn_plan_create(get(), &p, &chosen, &made, &why);
        if (status != ATTN_OK)
            return error{status, why.text};
        return attn::plan(made);
    }
};

/* O = attention(Q, K, V) on the CPU in one call: makes a plan and a workspace, and runs it. */
template <class Q, class K, class V, class O>
expected<void> attention(const context &cpu, view<Q> q, view<K> k, view<V> v, view<O> o,
                         const problem &base = {}) {
    const auto bound = bind(q, k, v, o, base);
    if (!bound)
        return bound.error();
    const auto plan = cpu.plan(bound->first);
    if (!plan)
        return plan.error();
    const auto alignment = std::align_val_t(plan->workspace_alignment());
    const auto free = [alignment](void *memory) { ::operator delete(memory, alignment); };
    const std::unique_ptr<void, decltype(free)> workspace(
        ::operator new(plan->workspace_size(), alignment), free);
    return plan->forward(bound->second, workspace.get());
}

} // namespace attn

#endif /* ATTN_HPP */
