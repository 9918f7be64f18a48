# SPDX-License-Identifier: Apache-2.0
"""attn.flash_attn and attn.flash_attn_interface against the formula in float64: every option, lse,
gradients, packed sequences, caches; and as the module that transformers imports."""

import importlib.metadata
import inspect
import math
import sys

import attn
import pytest

torch = pytest.importorskip("torch")

import attn.flash_attn as fa2  # noqa: E402
import attn.flash_attn_interface as fa3  # noqa: E402


def rows(length, heads, dim=16, dtype=torch.float32):
    return torch.randn(length, heads, dim).to(dtype)


def batch_of(batch, length, heads, dim=16, dtype=torch.float32):
    return torch.randn(batch, length, heads, dim).to(dtype)


def reference(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None,
              sink=None, chunk=0, qv=None):
    """One sequence, (rows, heads, dim), in float64; out and lse (heads, rows)."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    if qv is not None:
        q, k = torch.cat((q, qv.double()), 2), torch.cat((k, v), 2)
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or 1 / math.sqrt(q.shape[2]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = (torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
                - torch.arange(k.shape[0]))
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal:
        hidden |= distance < 0
    if chunk:
        hidden |= ((torch.arange(q.shape[0]) + k.shape[0] - q.shape[0])[:, None] // chunk
                   != torch.arange(k.shape[0]) // chunk)
    if window[0] >= 0:
        hidden |= distance > window[0]
    if window[1] >= 0:
        hidden |= distance < -window[1]
    scores = scores.masked_fill(hidden, -math.inf)
    column = scores if sink is None else torch.cat(
        (scores, sink.double()[:, None, None].expand(-1, q.shape[0], 1)), 2)
    lse = torch.logsumexp(column, 2)
    weights = torch.where(hidden, 0.0, torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)
                                                 [..., None]))
    return torch.einsum("hqk,khd->qhd", weights, v), lse


def close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


def of_batch(q, k, v, **options):
    slopes = options.pop("slopes", None)
    each = [reference(*one, slopes=slopes if slopes is None or slopes.dim() == 1 else slopes[b],
                      **options) for b, one in enumerate(zip(q, k, v))]
    return torch.stack([o for o, _ in each]), torch.stack([lse for _, lse in each])


CASES = [
    dict(), dict(causal=True), dict(softmax_scale=0.3), dict(softcap=1.5), dict(softcap=-1.0),
    dict(window_size=(3, 2)), dict(window_size=(4, -1)), dict(window_size=(-1, 1), causal=True),
    dict(alibi_slopes=torch.tensor([0.5, 0.2, 0.1, 0.05])),
    dict(alibi_slopes=torch.rand(2, 4), causal=True),
    dict(causal=True, window_size=(5, 0), softcap=2.0, alibi_slopes=torch.rand(4)),
]


def names(options):
    """The names of reference()."""
    found = {{"softmax_scale": "scale", "window_size": "window", "alibi_slopes": "slopes"}.get(
        name, name): value for name, value in options.items()}
    found["softcap"] = max(found.get("softcap", 0.0), 0.0)
    return found


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("seq_q, seq_k", [(7, 7), (3, 11), (11, 3), (1, 9)])
def test_options(options, seq_q, seq_k):
    q, k, v = batch_of(2, seq_q, 4), batch_of(2, seq_k, 2), batch_of(2, seq_k, 2)
    out, lse, probs = fa2.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    expected, expected_lse = of_batch(q, k, v, **names(options))
    close(out, expected)
    close(lse, expected_lse)
    assert out.shape == q.shape and lse.shape == (2, 4, seq_q) and probs.numel() == 0
    assert torch.equal(out, fa2.flash_attn_func(q, k, v, **options))
    if "alibi_slopes" not in options:
        again, again_lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True, **options)
        assert torch.equal(out, again) and torch.equal(lse, again_lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half(dtype):
    q, k, v = (batch_of(2, 33, heads, 64, dtype) for heads in (4, 2, 2))
    out = fa2.flash_attn_func(q, k, v, causal=True)
    assert out.dtype == dtype
    close(out, of_batch(q, k, v, causal=True)[0], 2e-2)


def test_positional_arguments():
    q, k, v = batch_of(1, 5, 2), batch_of(1, 5, 2), batch_of(1, 5, 2)
    expected = of_batch(q, k, v, causal=True, scale=0.2)[0]
    close(fa2.flash_attn_func(q, k, v, 0.0, 0.2, True), expected)
    close(fa3.flash_attn_func(q, k, v, 0.2, True), expected)


def test_packed_inputs():
    qkv = torch.randn(2, 9, 3, 4, 16)
    expected = of_batch(*qkv.unbind(2), causal=True)[0]
    close(fa2.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    close(fa2.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True), expected)
    close(fa3.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    grouped = torch.cat((qkv[:, :, 0], qkv[:, :, 1, :2], qkv[:, :, 2, :2]), 2)
    close(fa3.flash_attn_qkvpacked_func(grouped, causal=True, num_heads_q=4),
          of_batch(qkv[:, :, 0], qkv[:, :, 1, :2], qkv[:, :, 2, :2], causal=True)[0])


def boundaries(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


def split(x, cu):
    return [x[a:b] for a, b in zip(cu[:-1], cu[1:])]


@pytest.mark.parametrize("options", CASES)
def test_varlen(options):
    long_q, long_k = (5, 9), (13, 4)
    cu_q, cu_k = boundaries(long_q), boundaries(long_k)
    q, k, v = rows(14, 4), rows(17, 2), rows(17, 2)
    out, lse, _ = fa2.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 13, return_attn_probs=True,
                                             **options)
    given, slopes = names(options), options.get("alibi_slopes")
    for b, one in enumerate(zip(split(q, cu_q), split(k, cu_k), split(v, cu_k))):
        if slopes is not None:
            given["slopes"] = slopes if slopes.dim() == 1 else slopes[b]
        expected, expected_lse = reference(*one, **given)
        close(out[cu_q[b]:cu_q[b + 1]], expected)
        close(lse[:, cu_q[b]:cu_q[b + 1]], expected_lse)
    kv = torch.stack((k, v), 1)
    again = fa2.flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, 9, 13, **options)
    assert torch.equal(out, again)


def test_varlen_qkvpacked():
    qkv, cu = torch.randn(12, 3, 2, 16), boundaries((0, 7, 5))
    out = fa2.flash_attn_varlen_qkvpacked_func(qkv, cu, 7, causal=True)
    close(out, torch.cat([reference(*one.unbind(1), causal=True)[0] for one in split(qkv, cu)]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("used_q, used_k", [((5, 0, 3), None), (None, (4, 6, 0)),
                                            ((2, 1, 9), (7, 6, 3))])
def test_used(causal, used_q, used_k):
    cu_q, cu_k = boundaries((5, 1, 9)), boundaries((7, 6, 3))
    q, k, v = rows(15, 4), rows(16, 2), rows(16, 2)
    q.requires_grad_()
    as_tensor = [None if x is None else torch.tensor(x, dtype=torch.int32)
                 for x in (used_q, used_k)]
    out, lse = fa3.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 7, *as_tensor, causal=causal,
                                          return_attn_probs=True)
    expected, expected_lse = torch.zeros(15, 4, 16, dtype=torch.double), torch.full(
        (4, 15), -math.inf, dtype=torch.double)
    for b in range(3):
        first, first_k = int(cu_q[b]), int(cu_k[b])
        end = first + used_q[b] if used_q else int(cu_q[b + 1])
        end_k = first_k + used_k[b] if used_k else int(cu_k[b + 1])
        expected[first:end], expected_lse[:, first:end] = reference(
            q[first:end], k[first_k:end_k], v[first_k:end_k], causal)
    close(out, expected)
    close(lse, expected_lse)
    d_out = torch.randn(15, 4, 16)
    close(torch.autograd.grad(out, q, d_out)[0],
          torch.autograd.grad(expected, q, d_out.double())[0].double(), 1e-4)


def test_used_without_gradients():
    cu_q, cu_k = boundaries((5, 1, 9)), boundaries((7, 6, 3))
    q, k, v = rows(15, 4), rows(16, 2), rows(16, 2)
    q[3:5] = q[7:15] = math.nan
    used = [torch.tensor(x, dtype=torch.int32) for x in ((3, 1, 1), (7, 2, 3))]
    out, lse = fa3.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 7, *used, causal=True,
                                          return_attn_probs=True)
    for b in range(3):
        first, first_k = int(cu_q[b]), int(cu_k[b])
        end, end_k = first + int(used[0][b]), first_k + int(used[1][b])
        expected, expected_lse = reference(q[first:end], k[first_k:end_k], v[first_k:end_k], True)
        close(out[first:end], expected)
        close(lse[:, first:end], expected_lse)


@pytest.mark.parametrize("options", CASES)
def test_gradients(options):
    q, k, v = batch_of(2, 6, 4), batch_of(2, 10, 2), batch_of(2, 10, 2)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out, lse, _ = fa2.flash_attn_func(*inputs, return_attn_probs=True, **options)
    assert not lse.requires_grad
    d_out = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, d_out)
    expected = torch.autograd.grad(of_batch(*inputs, **names(options))[0], inputs, d_out.double())
    for one, other in zip(found, expected):
        close(one, other.double(), 1e-4)


def test_gradients_of_packed():
    qkv, cu = torch.randn(12, 3, 2, 16, requires_grad=True), boundaries((3, 9))
    out = fa2.flash_attn_varlen_qkvpacked_func(qkv, cu, 9, causal=True)
    expected = torch.cat([reference(*one.unbind(1), causal=True)[0] for one in split(qkv, cu)])
    d_out = torch.randn_like(out)
    close(torch.autograd.grad(out, qkv, d_out)[0],
          torch.autograd.grad(expected, qkv, d_out.double())[0].double(), 1e-4)


def test_sink():
    q, k, v, sink = batch_of(2, 5, 4), batch_of(2, 8, 2), batch_of(2, 8, 2), torch.randn(4)
    expected = of_batch(q, k, v, causal=True, sink=sink)[0]
    close(fa2.flash_attn_func(q, k, v, causal=True, s_aux=sink), expected)
    close(fa3.flash_attn_func(q, k, v, causal=True, s_aux=sink.to(torch.bfloat16).float()),
          of_batch(q, k, v, causal=True, sink=sink.to(torch.bfloat16))[0])


def test_combine():
    q, k, v = batch_of(2, 3, 4), batch_of(2, 12, 4), batch_of(2, 12, 4)
    parts = [fa3.flash_attn_func(q, k[:, a:b], v[:, a:b], return_attn_probs=True)
             for a, b in ((0, 5), (5, 12), (5, 5))]
    out, lse = fa3.flash_attn_combine(torch.stack([o for o, _ in parts]),
                                      torch.stack([lse.transpose(1, 2) for _, lse in parts]))
    expected, expected_lse = of_batch(q, k, v)
    close(out, expected)
    close(lse, expected_lse.transpose(1, 2))
    assert fa3.flash_attn_combine(out[None], lse[None], out_dtype=torch.half)[0].dtype == torch.half


# ---- a KV cache --------------------------------------------------------------------------------


def rotated(x, cos, sin, positions, interleaved):
    """By its definition: pairs of columns as complex numbers."""
    half = cos.shape[1]
    turn = torch.complex(cos.double(), sin.double())[positions][:, None]
    part = x[..., :2 * half].double()
    pairs = part.unflatten(-1, (half, 2)) if interleaved else part.unflatten(
        -1, (2, half)).transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    turned = turned if interleaved else turned.transpose(-1, -2)
    return torch.cat((turned.flatten(-2), x[..., 2 * half:].double()), -1)


@pytest.mark.parametrize("options", [
    dict(), dict(causal=True), dict(causal=True, window_size=(4, 0)), dict(softcap=2.0),
    dict(alibi_slopes=torch.rand(3, 4), causal=True)])
@pytest.mark.parametrize("seq", [1, 3])
@pytest.mark.parametrize("extra", ["", "leftpad", "batch_idx", "rotary", "rotary halves"])
def test_kvcache(options, seq, extra):
    batch, room, used = 3, 16, torch.tensor([4, 9, 6], dtype=torch.int32)
    q, k, v = batch_of(batch, seq, 4), batch_of(batch, seq, 2), batch_of(batch, seq, 2)
    k_cache, v_cache = batch_of(5, room, 2), batch_of(5, room, 2)
    entries = torch.tensor([4, 0, 2]) if extra == "batch_idx" else torch.arange(3)
    pad = torch.tensor([3, 0, 5] if extra == "leftpad" else [0, 0, 0], dtype=torch.int32)
    given = dict(options)
    if extra == "batch_idx":
        given["cache_batch_idx"] = entries.to(torch.int32)
    else:
        k_cache, v_cache = k_cache[:3], v_cache[:3]
    if extra == "leftpad":
        given["cache_leftpad"] = pad
    expected_k, expected_v, new_q, new_k = (x.double() for x in (k_cache, v_cache, q, k))
    if extra.startswith("rotary"):
        angles = torch.randn(room, 4)
        cos, sin, interleaved = angles.cos(), angles.sin(), extra == "rotary"
        given.update(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved)
        for b in range(batch):
            places = used[b] + torch.arange(seq)
            new_k[b] = rotated(k[b], cos, sin, places, interleaved)
            if not options.get("causal"):
                places = used[b].expand(seq)
            new_q[b] = rotated(q[b], cos, sin, places, interleaved)
    names_of = {name: value for name, value in names(options).items() if name != "slopes"}
    expected, expected_lse = [], []
    for b, entry in enumerate(entries):
        expected_k[entry, used[b]:used[b] + seq] = new_k[b]
        expected_v[entry, used[b]:used[b] + seq] = v[b]
        keys = slice(pad[b], used[b] + seq)
        if "alibi_slopes" in options:
            names_of["slopes"] = options["alibi_slopes"][b]
        out, lse = reference(new_q[b], expected_k[entry, keys], expected_v[entry, keys], **names_of)
        expected.append(out)
        expected_lse.append(lse)
    out, lse = fa2.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=used,
                                           return_softmax_lse=True, **given)
    close(out, torch.stack(expected))
    close(lse, torch.stack(expected_lse))
    close(k_cache, expected_k)
    close(v_cache, expected_v)
    assert used.tolist() == [4, 9, 6] and not out.requires_grad


def test_kvcache_without_new_keys():
    q, k, v = batch_of(2, 2, 4), batch_of(2, 20, 2)[:, :12], batch_of(2, 12, 2)
    close(fa2.flash_attn_with_kvcache(q, k, v), of_batch(q, k, v)[0])
    out = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=7, causal=True)
    close(out, of_batch(q, k[:, :7], v[:, :7], causal=True)[0])


def test_kvcache_packed_queries():
    used, cu_q, cu_new = torch.tensor([3, 5]), boundaries((2, 4)), boundaries((1, 2))
    used = used.to(torch.int32)
    q, k, v = rows(6, 4), rows(3, 2), rows(3, 2)
    k_cache, v_cache = batch_of(2, 10, 2), batch_of(2, 10, 2)
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    expected = []
    for b in range(2):
        new = slice(cu_new[b], cu_new[b + 1])
        end = used[b] + cu_new[b + 1] - cu_new[b]
        expected_k[b, used[b]:end], expected_v[b, used[b]:end] = k[new], v[new]
        expected.append(reference(q[cu_q[b]:cu_q[b + 1]], expected_k[b, :end], expected_v[b, :end],
                                  causal=True)[0])
    found = fa3.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=used, cu_seqlens_q=cu_q, cu_seqlens_k_new=cu_new,
        max_seqlen_q=4, causal=True, return_softmax_lse=True,
        scheduler_metadata=fa3.get_scheduler_metadata(2, 4, 10, 4, 2, 16, used))
    close(found[0], torch.cat(expected))
    assert len(found) == 4 and found[1].shape == (4, 6)
    assert torch.equal(k_cache, expected_k) and torch.equal(v_cache, expected_v)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("more", [{}, {"cache_leftpad": torch.tensor([1, 5], dtype=torch.int32)},
                                  {"cache_batch_idx": torch.tensor([1, 0], dtype=torch.int32)}])
def test_pages(packed, size, more):
    """As a cache without pages, its rows spread over a pool."""
    used, seq, room = torch.tensor([3, 9], dtype=torch.int32), 2, 12
    table = torch.randperm(40)[:2 * room // size].view(2, -1).to(torch.int32)
    pools = [torch.full((40, size, 2, 16), math.nan) for _ in range(2)]
    caches = [batch_of(2, room, 2) for _ in range(2)]
    for pool, cache in zip(pools, caches):
        pool[table.long()] = cache.unflatten(1, (-1, size))
    q, k, v = (batch_of(2, seq, heads) for heads in (4, 2, 2))
    expected = fa2.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=used, causal=True,
                                           return_softmax_lse=True, **more)
    if packed:
        cu = boundaries((seq, seq))
        out, lse, *_ = fa3.flash_attn_with_kvcache(
            *(x.flatten(0, 1) if x is q else x for x in (q, *pools)), k.flatten(0, 1),
            v.flatten(0, 1), cache_seqlens=used, page_table=table, cu_seqlens_q=cu,
            cu_seqlens_k_new=cu, max_seqlen_q=seq, causal=True, return_softmax_lse=True,
            **more)
        cu_k = boundaries((used + seq).tolist())
        again = fa2.flash_attn_varlen_func(q.flatten(0, 1), *pools, cu, cu_k, seq, room,
                                           causal=True, block_table=table)
        if not more:
            close(again, expected[0].flatten(0, 1).double())
        out, lse = out.view(2, seq, 4, 16), lse.view(4, 2, seq).transpose(0, 1)
    else:
        out, lse = fa2.flash_attn_with_kvcache(q, *pools, k, v, cache_seqlens=used, causal=True,
                                               block_table=table, return_softmax_lse=True,
                                               **more)
    close(out, expected[0].double())
    close(lse, expected[1].double())
    for pool, cache in zip(pools, caches):
        assert torch.equal(pool[table.long()].flatten(1, 2), cache)


# ---- what only FlashAttention-3 has ------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window_size=(3, 2))])
@pytest.mark.parametrize("seq_q, seq_k", [(7, 7), (3, 11), (11, 3)])
def test_chunks(chunk, options, seq_q, seq_k):
    inputs = [batch_of(2, n, heads).requires_grad_() for n, heads in
              ((seq_q, 4), (seq_k, 2), (seq_k, 2))]
    out, lse = fa3.flash_attn_func(*inputs, attention_chunk=chunk, return_attn_probs=True,
                                   **options)
    expected, expected_lse = of_batch(*inputs, chunk=chunk, **names(options))
    close(out, expected)
    close(lse, expected_lse)
    d_out = torch.randn_like(out)
    for one, other in zip(torch.autograd.grad(out, inputs, d_out),
                          torch.autograd.grad(expected, inputs, d_out.double())):
        close(one, other.double(), 1e-4)


@pytest.mark.parametrize("chunk", [3, 5])
def test_chunks_of_packed(chunk):
    cu_q, cu_k = boundaries((5, 1, 9)), boundaries((7, 6, 3))
    used_q, used_k = (torch.tensor(x, dtype=torch.int32) for x in ((5, 0, 3), (7, 4, 2)))
    q, k, v = rows(15, 4), rows(16, 2), rows(16, 2)
    out, lse = fa3.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 7, used_q, used_k, causal=True,
                                          attention_chunk=chunk, return_attn_probs=True)
    for b in range(3):
        at, at_k = int(cu_q[b]), int(cu_k[b])
        end, end_k = at + int(used_q[b]), at_k + int(used_k[b])
        expected, expected_lse = reference(q[at:end], k[at_k:end_k], v[at_k:end_k], True,
                                           chunk=chunk)
        close(out[at:end], expected)
        close(lse[:, at:end], expected_lse)


@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("first", [(0, 0), (1, 4)])
def test_chunks_of_a_cache(pages, packed, first):
    used, lengths = torch.tensor([5, 12], dtype=torch.int32), (3, 2) if packed else (3, 3)
    q, cu = batch_of(2, 3, 4), boundaries(lengths)
    k, v = batch_of(2, 12, 2), batch_of(2, 12, 2)
    options = dict(cache_seqlens=used, causal=True, attention_chunk=4,
                   cache_leftpad=torch.tensor(first, dtype=torch.int32) if any(first) else None)
    if packed:
        options.update(cu_seqlens_q=cu, max_seqlen_q=3)
    if pages:
        options["page_table"] = torch.arange(6, dtype=torch.int32).view(2, 3)
    out = fa3.flash_attn_with_kvcache(
        torch.cat([q[0], q[1, :2]]) if packed else q,
        *(x.view(6, 4, 2, 16) if pages else x for x in (k, v)), **options)
    for b in range(2):
        keys = slice(first[b], int(used[b]))
        expected = reference(q[b, :lengths[b]], k[b, keys], v[b, keys], True, chunk=4)[0]
        close(out[cu[b]:cu[b + 1]] if packed else out[b], expected)


def test_qv():
    q, qv = batch_of(2, 5, 4), batch_of(2, 5, 4, 24)
    both = batch_of(2, 9, 2, 40)
    v, k = both[..., :24], both[..., 24:]
    expected = torch.stack([reference(*one[:3], causal=True, qv=one[3])[0]
                            for one in zip(q, k, v, qv)])
    for keys in (k, k.clone()):  # beside v in memory, and not
        close(fa3.flash_attn_func(q, keys, v, causal=True, qv=qv), expected)
        close(fa3.flash_attn_with_kvcache(q, keys, v, qv=qv, cache_seqlens=9, causal=True),
              expected)
    from attn._flash_options import with_qv
    assert with_qv(q, k, v, qv)[1].data_ptr() == v.data_ptr()


def in_fp8(*shape):
    return torch.randn(*shape).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("packed", [False, True])
def test_fp8(packed):
    q, k, v = in_fp8(2, 5, 4, 16), in_fp8(2, 9, 2, 16), in_fp8(2, 9, 2, 16)
    scales = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    q_scale, k_scale, v_scale = (x[:, None, :, None] for x in scales)
    expected = of_batch(q.float() * q_scale.repeat_interleave(2, 2), k.float() * k_scale,
                        v.float() * v_scale, causal=True)[0]
    options = dict(zip(("q_descale", "k_descale", "v_descale"), scales), causal=True)
    if packed:
        out = fa3.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)),
                                         boundaries((5, 5)), boundaries((9, 9)), 5, 9, **options)
        out = out.view(2, 5, 4, 16)
    else:
        out = fa3.flash_attn_func(q, k, v, **options)
    assert out.dtype == torch.bfloat16
    close(out, expected, 2e-2)


@pytest.mark.parametrize("extra", ["", "pages", "batch_idx"])
def test_fp8_cache(extra):
    """New rows are stored as they are."""
    used = torch.tensor([3, 9], dtype=torch.int32)
    q, k, v = in_fp8(2, 2, 4, 16), in_fp8(2, 2, 2, 16), in_fp8(2, 2, 2, 16)
    caches = [in_fp8(2, 12, 2, 16) for _ in range(2)]
    order = [1, 0] if extra == "batch_idx" else [0, 1]
    given = [x.clone() for x in caches]
    options = {"batch_idx": dict(cache_batch_idx=torch.tensor(order, dtype=torch.int32)),
               "pages": dict(page_table=torch.arange(6, dtype=torch.int32).view(2, 3))}.get(extra, {})
    if extra == "pages":
        given = [x.view(6, 4, 2, 16) for x in given]
    out = fa3.flash_attn_with_kvcache(q, *given, k, v, cache_seqlens=used, causal=True, **options)
    caches = [x.float() for x in caches]
    for b, entry in enumerate(order):
        end = int(used[b]) + 2
        for cache, new in zip(caches, (k, v)):
            cache[entry, end - 2:end] = new[b].float()
        expected = reference(q[b].float(), *(x[entry, :end] for x in caches), True)[0]
        close(out[b], expected, 2e-2)
    for found, cache in zip(given, caches):
        assert torch.equal(found.view(2, 12, 2, 16).float(), cache)


def test_no_gradient(monkeypatch):
    """What has no gradient raises in the backward pass, not before."""
    def refuse(*_):
        raise attn.Unsupported("no kernel")
    monkeypatch.setattr("attn._flash.differentiable", refuse)
    q = batch_of(1, 5, 2).requires_grad_()
    out = fa3.flash_attn_func(q, q, q, causal=True)
    close(out, of_batch(q, q, q, causal=True)[0])
    with pytest.raises(attn.Unsupported, match="no kernel"):
        out.sum().backward()


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("function, options, what", [
    (fa2.flash_attn_func, dict(dropout_p=0.1), "dropout_p is 0.1"),
    (fa2.flash_attn_varlen_func, dict(cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=5,
                                      max_seqlen_k=5, dropout_p=1), "dropout_p is 1"),
])
def test_unsupported(function, options, what):
    q = batch_of(1, 5, 2)
    with pytest.raises(attn.Unsupported, match=what):
        function(q, q, q, **options)


def test_invalid():
    q = batch_of(1, 5, 2)
    with pytest.raises(attn.InvalidArgument, match="cache_seqlens is None"):
        fa2.flash_attn_with_kvcache(q, q, q, q, q)
    with pytest.raises(attn.InvalidArgument, match="expected both or none"):
        fa2.flash_attn_with_kvcache(q, q, q, q, cache_seqlens=0)
    with pytest.raises(attn.InvalidArgument, match="the dtype of k"):
        fa2.flash_attn_func(q, q.half(), q)


# ---- in place of the package -------------------------------------------------------------------


@pytest.fixture
def installed():
    fa2.install()
    yield
    fa2.uninstall()


def test_install(installed):
    import flash_attn
    import flash_attn_interface
    from flash_attn.bert_padding import pad_input, unpad_input
    from flash_attn.flash_attn_interface import flash_attn_varlen_func
    assert flash_attn.flash_attn_func is fa2.flash_attn_func
    assert flash_attn_varlen_func is fa2.flash_attn_varlen_func
    assert flash_attn_interface.flash_attn_func is fa3.flash_attn_func
    assert importlib.metadata.version("flash-attn") == flash_attn.__version__
    assert importlib.util.find_spec("flash_attn") is not None
    x, mask = torch.randn(2, 5, 3), torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
    packed, indices, cu, longest, used = unpad_input(x, mask)
    assert cu.tolist() == [0, 3, 5] and longest == 3 and used.tolist() == [3, 2]
    assert torch.equal(pad_input(packed, indices, 2, 5), x * mask[..., None])


def test_uninstall():
    fa2.install()
    import flash_attn  # noqa: F401
    fa2.uninstall()
    assert "flash_attn" not in sys.modules
    if importlib.util.find_spec("flash_attn") is None:
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("flash-attn")


def test_names_of_arguments():
    """As programs pass them by name; the order of those given by position is in the tests above."""
    names_of = list(inspect.signature(fa2.flash_attn_varlen_func).parameters)
    assert names_of[3:16] == [
        "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "dropout_p",
        "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic",
        "return_attn_probs", "block_table"]
    names_of = list(inspect.signature(fa3.flash_attn_varlen_func).parameters)
    assert names_of[7:12] == ["seqused_q", "seqused_k", "softmax_scale", "causal", "qv"]


def test_compiled():
    """The graph breaks at the call; the result is the same."""
    q, k, v = batch_of(2, 9, 4), batch_of(2, 9, 2), batch_of(2, 9, 2)

    @torch.compile(backend="eager")
    def model(q, k, v):
        return 2 * fa2.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(model(q, k, v), 2 * fa2.flash_attn_func(q, k, v, causal=True))


@pytest.mark.parametrize("version", [2, 3])
def test_transformers(installed, monkeypatch, version):
    transformers = pytest.importorskip("transformers")
    from transformers.utils import import_utils
    if not hasattr(import_utils, "PACKAGE_DISTRIBUTION_MAPPING"):
        pytest.skip("transformers older than 5")
    # It takes flash attention only where there is a CUDA device; the kernels here need none.
    monkeypatch.setattr(import_utils, "is_torch_cuda_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    from transformers import modeling_flash_attention_utils as utils
    monkeypatch.setitem(utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[version], "supported_devices",
                        ((lambda: True, "cpu"),))
    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=6, pad_token_id=0)
    calls = []
    used = fa2 if version == 2 else fa3
    import flash_attn
    import flash_attn_interface
    theirs = flash_attn if version == 2 else flash_attn_interface
    for name in ("flash_attn_func", "flash_attn_varlen_func"):
        def counted(*arguments, function=getattr(used, name), **options):
            calls.append(function.__name__)
            return function(*arguments, **options)
        counted.__signature__ = inspect.signature(getattr(used, name))
        monkeypatch.setattr(theirs, name, counted)
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config).eval()
    tokens = torch.randint(1, 64, (2, 12))
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    expected = model(tokens, attention_mask=mask).logits
    greedy = model.generate(tokens, attention_mask=mask, max_new_tokens=5, do_sample=False)
    model.set_attn_implementation(f"flash_attention_{version}")
    found = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], atol=1e-4, rtol=1e-4)
    again = model.generate(tokens, attention_mask=mask, max_new_tokens=5, do_sample=False)
    assert torch.equal(again, greedy)
    model(tokens)
    assert set(calls) == {"flash_attn_func", "flash_attn_varlen_func"}
