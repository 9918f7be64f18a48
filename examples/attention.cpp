/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.cpp - attn.hpp in use: one call, a view in another layout, errors, a plan of one's own.
 *
 *     c++ -std=c++17 attention.cpp $(pkg-config --cflags --libs attn) && ./a.out
 *
 * It checks what it computes: V depends on the head and the column alone, so that O is equal to it.
 */
#include <attn.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

/* As std::mdspan of C++23, or another library's: what attn::view takes. */
struct span4 {
    using element_type = float;
    float *pointer;
    std::array<std::size_t, 4> extents, strides;
    float *data_handle() const { return pointer; }
    std::size_t extent(std::size_t i) const { return extents[i]; }
    std::size_t stride(std::size_t i) const { return strides[i]; }
};

constexpr std::size_t batch = 2, heads = 4, rows = 100, dim = 64;

/* V at offset i of an array with this distance between heads. */
static float value_at(std::size_t i, std::size_t head_stride) {
    return static_cast<float>(i / head_stride % heads * dim + i % dim);
}

static bool correct(const std::vector<float> &o, std::size_t head_stride) {
    for (std::size_t i = 0; i < o.size(); i++) {
        if (!(std::fabs(o[i] - value_at(i, head_stride)) < 1e-2F))
            return false;
    }
    return true;
}

int main() {
    std::vector<float> q(batch * heads * rows * dim), v(q.size()), o(q.size());
    for (std::size_t i = 0; i < q.size(); i++) {
        q[i] = std::sin(static_cast<float>(i));
        v[i] = value_at(i, rows * dim);
    }

    auto opened = attn::context::open();
    if (!opened) {
        std::fprintf(stderr, "%s\n", opened.error().text.c_str());
        return 1;
    }
    const attn::context context = *std::move(opened);

    /* One call. Arrays that are only read may be const. */
    const auto of = [&](auto *data) { return attn::view(data, batch, heads, rows, dim); };
    const float *keys = q.data();
    attn::problem causal;
    causal.causal = ATTN_CAUSAL_TOP_LEFT;
    attn::attention(context, of(q.data()), of(keys), of(v.data()), of(o.data()), causal).value();
    const bool contiguous = correct(o, rows * dim);

    /* (batch, rows, heads, dim) in memory, through the members of mdspan. */
    const span4 bshd{
        o.data(), {batch, heads, rows, dim}, {rows * heads * dim, dim, heads * dim, 1}};
    attn::attention(context, of(q.data()), of(keys), of(v.data()), attn::view(bshd)).value();
    const bool strided = correct(o, dim);

    /* A plan, made once; its workspace is the caller's. */
    const auto bound = attn::bind(of(q.data()), of(keys), of(v.data()), of(o.data())).value();
    const attn::plan plan = context.plan(bound.first).value();
    std::vector<char> workspace(plan.workspace_size() + plan.workspace_alignment());
    void *aligned = workspace.data();
    std::size_t space = workspace.size();
    std::align(plan.workspace_alignment(), plan.workspace_size(), aligned, space);
    plan.forward(bound.second, aligned).value();
    const bool planned = correct(o, rows * dim);

    /* Errors are values, or exceptions by value(). */
    auto short_k = attn::view(keys, batch, heads, rows, dim / 2);
    const auto refused =
        attn::attention(context, of(q.data()), short_k, of(v.data()), of(o.data()));
    const auto absent = attn::context::open("no such device");
    bool thrown = false;
    try {
        attn::context::open("no such device").value();
    } catch (const attn::exception &why) {
        thrown = why.status == absent.error().status && why.what() == absent.error().text;
    }
    std::printf("%s\n%s\n", refused.error().text.c_str(), absent.error().text.c_str());
    const bool ok = contiguous && strided && planned && !refused && !absent && thrown;
    std::puts(ok ? "ok" : "WRONG");
    return ok ? 0 : 1;
}
