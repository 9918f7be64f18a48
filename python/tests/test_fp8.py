# SPDX-License-Identifier: Apache-2.0
"""An fp8 KV cache: the result is that of the dequantised cache, bit by bit."""

import numpy as np
import pytest

import attn

torch = pytest.importorskip("torch")
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def cache(shape, dtype, seed):
    torch.manual_seed(seed)
    return torch.randn(shape).to(FP8[dtype])


def dequantised(x, scale, dtype):
    return (x.float() * scale).to(dtype)


def same(a, b):
    assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("fp8", FP8)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_scales(fp8, dtype, layout):
    bshd = layout == "bshd"
    q = torch.randn(2, *((5, 4) if bshd else (4, 5)), 32).to(dtype)
    shape = (2, 70, 2, 32) if bshd else (2, 2, 70, 32)
    k, v = cache(shape, fp8, 1), cache(shape, fp8, 2)
    heads = torch.tensor([0.3, -2.0])
    tokens = torch.rand(shape[:-1]) + 0.1
    along = heads if bshd else heads[:, None]
    for k_scale, v_scale, k_wide, v_wide in (
            (None, None, 1.0, 1.0), (0.37, torch.tensor(1.7), 0.37, 1.7),
            (heads, tokens, along[..., None], tokens[..., None]),
            (tokens[:1], tokens[..., :1], tokens[:1, ..., None], tokens[..., :1, None])):
        given = attn.attention(q, k, v, k_scale=k_scale, v_scale=v_scale, layout=layout,
                               causal="bottom-right")
        same(given, attn.attention(q, dequantised(k, k_wide, dtype), dequantised(v, v_wide, dtype),
                                   layout=layout, causal="bottom-right"))


def test_pages():
    q = torch.randn(2, 1, 4, 64, dtype=torch.bfloat16)
    k, v = cache((9, 16, 2, 64), "e4m3", 1), cache((9, 16, 2, 64), "e4m3", 2)
    table = torch.tensor([[3, 0, 8, -1], [5, 4, -1, -1]], dtype=torch.int32)
    used = torch.tensor([40, 17], dtype=torch.int32)
    scale = torch.rand(9, 16, 2) + 0.1
    options = dict(block_table=table, used_kv=used, layout="bshd")
    given = attn.attention(q, k, v, k_scale=scale, v_scale=scale[:, :, :1], **options)
    same(given, attn.attention(q, dequantised(k, scale[..., None], q.dtype),
                               dequantised(v, scale[:, :, :1, None], q.dtype), **options))


@pytest.mark.parametrize("fp8", FP8)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_append(fp8, dtype, layout):
    """Given scales divide the new rows, those per token are computed, other rows keep theirs."""
    bshd, most = layout == "bshd", torch.finfo(FP8[fp8]).max
    rows = lambda n: (2, n, 3, 32) if bshd else (2, 3, n, 32)
    row = lambda x, b, i: x[b, i] if bshd else x[b, :, i]
    k_new, v_new = (torch.randn(rows(2)).mul(s).to(dtype) for s in (1, 40))
    used = torch.tensor([7, 2], dtype=torch.int32)
    heads, tokens = torch.tensor([0.5, 3.0, 0.01]), torch.full(rows(9)[:-1], 77.0)
    for k_scale in (None, 0.25, heads):
        k, v = cache(rows(9), fp8, 1), cache(rows(9), fp8, 2)
        want_k, want_v, want_tokens = k.clone(), v.clone(), tokens.clone()
        by = torch.tensor(1.0) if k_scale is None else torch.as_tensor(k_scale).reshape(-1, 1)
        for b in range(2):
            for i in range(2):
                at = int(used[b]) - 2 + i
                scale = row(v_new, b, i).float().abs().amax(-1, True) / most
                row(want_tokens, b, at)[:] = scale[..., 0]
                row(want_v, b, at)[:] = (row(v_new, b, i).float() / scale).to(FP8[fp8])
                row(want_k, b, at)[:] = (row(k_new, b, i).float() / by).clamp(-most, most).to(
                    FP8[fp8])
        v_scale = tokens.clone()
        attn.append(k_new, v_new, k, v, used_kv=used, layout=layout, k_scale=k_scale,
                    v_scale=v_scale)
        same(v_scale, want_tokens)
        for given, wanted in ((k, want_k), (v, want_v)):
            same(given.view(torch.uint8), wanted.view(torch.uint8))


def test_append_to_pages():
    """Bytes of NumPy, with scales per token in the order of the pages."""
    new = np.random.default_rng(2).standard_normal((2, 2, 1, 16)).astype(np.float16)
    k, v = np.zeros((4, 8, 2, 16), np.uint8), np.zeros((4, 8, 2, 16), np.uint8)
    scales = [np.ones((4, 8, 2), np.float32) for _ in range(2)]
    table, used = np.array([[2, 0], [3, -1]], np.int32), np.array([9, 4], np.int32)
    attn.append(new, 2 * new, k, v, used_kv=used, block_table=table, kv_dtype="e4m3",
                k_scale=scales[0], v_scale=scales[1])
    for b, page, line in ((0, 0, 0), (1, 3, 3)):
        for cache_, scale, times in ((k, scales[0], 1), (v, scales[1], 2)):
            stored = torch.from_numpy(cache_[page, line]).view(torch.float8_e4m3fn).float().numpy()
            np.testing.assert_allclose(stored * scale[page, line][:, None],
                                       times * new[b, :, 0].astype(np.float32), rtol=0.07,
                                       atol=0.01)
            assert np.count_nonzero(scale != 1) == 4 and np.count_nonzero(cache_) <= 4 * 16


def test_append_refusals():
    new, k, v = torch.zeros(1, 2, 1, 16), *(cache((1, 2, 5, 16), "e4m3", n) for n in (1, 2))
    shared = torch.ones(1, 2, 5)
    for options, word in (({"k_scale": torch.ones(3)}, "k_scale has the shape"),
                          ({"k_scale": torch.ones(1, 1, 5)}, "the shape of k_scale"),
                          ({"k_scale": shared, "v_scale": shared}, "shares memory"),
                          ({"kv_dtype": "e5m2"}, "k_cache has dtype")):
        with pytest.raises(attn.InvalidArgument, match=word):
            attn.append(new, new, k, v, used_kv=[1], **options)
    with pytest.raises(attn.InvalidArgument, match="the dtype of v_cache"):
        attn.append(new, new, k, cache((1, 2, 5, 16), "e5m2", 1), used_kv=[1])
    with pytest.raises(attn.InvalidArgument, match="k_scale is given"):
        attn.append(new, new, torch.zeros(1, 2, 5, 16), torch.zeros(1, 2, 5, 16), used_kv=[1],
                    k_scale=1.0)


def test_bytes_of_numpy():
    q = np.random.default_rng(1).standard_normal((1, 2, 3, 16)).astype(np.float16)
    k = cache((1, 2, 50, 16), "e4m3", 1)
    bytes_ = k.view(torch.uint8).numpy()
    given = attn.attention(q, bytes_, bytes_, kv_dtype="e4m3", k_scale=0.5, v_scale=[1.5, 2.5])
    wide = dequantised(k, torch.tensor([1.5, 2.5])[:, None, None], torch.float16).numpy()
    k_wide = dequantised(k, 0.5, torch.float16).numpy()
    assert np.array_equal(given, attn.attention(q, k_wide, wide))


def test_refusals():
    q = torch.randn(1, 2, 3, 16, dtype=torch.float16)
    k = cache((1, 2, 50, 16), "e4m3", 1)
    for options, word in (({"k_scale": torch.ones(3)}, "k_scale has the shape"),
                          ({"v_scale": torch.ones(2, dtype=torch.float64)}, "v_scale"),
                          ({"kv_dtype": "e3m4"}, "kv_dtype"),
                          ({"kv_dtype": "e5m2"}, "k has dtype")):
        with pytest.raises(attn.InvalidArgument, match=word):
            attn.attention(q, k, k, **options)
    with pytest.raises(attn.InvalidArgument, match="k_scale is given"):
        attn.attention(q, q, q, k_scale=1.0)
    with pytest.raises(attn.InvalidArgument, match="the dtype of v"):
        attn.attention(q, k, cache((1, 2, 50, 16), "e5m2", 1))
    with pytest.raises(attn.Unsupported, match="gradient"):
        attn.attention(q.requires_grad_(), k, k)
