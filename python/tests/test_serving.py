# SPDX-License-Identifier: Apache-2.0
"""attn.append, attn.merge and attn.accumulate: NumPy and PyTorch on the CPU against plain loops, and refusals."""

import pathlib
import runpy
import sys

import attn
import numpy as np
import pytest

torch = pytest.importorskip("torch")
HQ, HKV, D = 4, 2, 16
FRAMEWORKS = [np.asarray, torch.from_numpy]


def rotate(x, cos, sin, position, interleaved):
    half = cos.shape[1]
    one, two = (x[..., :2 * half:2], x[..., 1:2 * half:2]) if interleaved \
        else (x[..., :half], x[..., half:2 * half])
    c, s = cos[position], sin[position]
    turned = one * c - two * s, two * c + one * s
    out = x.copy()
    if interleaved:
        out[..., :2 * half:2], out[..., 1:2 * half:2] = turned
    else:
        out[..., :half], out[..., half:2 * half] = turned
    return out


def tables(positions, half, seed=3):
    angle = np.random.default_rng(seed).normal(size=(positions, half)).astype(np.float32)
    return np.cos(angle), np.sin(angle)


@pytest.mark.parametrize("made", FRAMEWORKS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_contiguous(made, layout, interleaved):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    rows = lambda heads, n: (3, heads, n, D) if layout == "bhsd" else (3, n, heads, D)
    k_new, v_new, q = draw(*rows(HKV, 2)), draw(*rows(HKV, 2)), draw(*rows(HQ, 2))
    k, v = draw(*rows(HKV, 9)), draw(*rows(HKV, 9))
    want_k, want_v, want_q = k.copy(), v.copy(), q.copy()
    used, (cos, sin) = np.array([9, 1, 4], np.int32), tables(9, 6)
    for b in range(3):
        for i in range(2):
            at = used[b] - 2 + i
            if at < 0:
                continue
            of = lambda x, row: x[b, :, row] if layout == "bhsd" else x[b, row]
            of(want_k, at)[:] = rotate(of(k_new, i), cos, sin, at, interleaved)
            of(want_v, at)[:] = of(v_new, i)
            of(want_q, i)[:] = rotate(of(q, i), cos, sin, at, interleaved)
    k, v, turned = made(k), made(v), made(q.copy())
    found = attn.append(made(k_new), made(v_new), k, v, used_kv=made(used), layout=layout,
                        rope=(made(cos), made(sin)), interleaved=interleaved, q=turned,
                        q_out=turned)
    assert found is turned
    assert np.array_equal(np.asarray(v), want_v)
    for a, b in ((k, want_k), (turned, want_q)):
        np.testing.assert_allclose(np.asarray(a), b, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("page_layout", ["nhd", "hnd"])
def test_packed_pages_then_attention(dtype, page_layout):
    """An append and attention() with the same lengths and table is attention over all keys."""
    torch.manual_seed(0)
    rows, before, size = [1, 0, 3], [5, 2, 11], 4
    keys = [a + b for a, b in zip(rows, before)]
    k, v = ([torch.randn(n, HKV, D).to(dtype) for n in keys] for _ in range(2))
    table = torch.tensor([[6, 1, -1, -1], [3, -1, -1, -1], [0, 7, 2, 5]], dtype=torch.int32)
    shape = (8, size, HKV, D) if page_layout == "nhd" else (8, HKV, size, D)
    pools = [torch.full(shape, float("nan"), dtype=dtype) for _ in range(2)]
    place = lambda pool, b, j: (pool[table[b, j // size], j % size] if page_layout == "nhd"
                                else pool[table[b, j // size], :, j % size])
    for b in range(3):
        for j in range(before[b]):
            for pool, all_rows in zip(pools, (k, v)):
                place(pool, b, j).copy_(all_rows[b][j])
    new = [torch.cat([x[b][before[b]:] for b in range(3)]) for x in (k, v)]
    cu = torch.tensor([0, 1, 1, 4], dtype=torch.int32)
    used = torch.tensor(keys, dtype=torch.int32)
    assert attn.append(*new, *pools, used_kv=used, block_table=table, cu_seqlens_q=cu,
                       layout="bshd", page_layout=page_layout) is None
    q = torch.randn(4, HQ, D).to(dtype)
    found = attn.attention(q, *pools, block_table=table, used_kv=used, cu_seqlens_q=cu,
                           max_seqlen_q=3, causal="bottom-right", layout="bshd",
                           page_layout=page_layout)
    for b in range(3):
        part = slice(int(cu[b]), int(cu[b + 1]))
        if rows[b]:
            alone = attn.attention(q[None, part], k[b][None], v[b][None], causal="bottom-right",
                                   layout="bshd")
            assert torch.equal(found[part], alone[0])


def test_appended_refusals():
    new, cache = np.zeros((2, 2, 1, 8), np.float32), np.zeros((2, 2, 4, 8), np.float32)
    other, used = np.zeros_like(cache), [1, 1]
    for words, arguments, options in (
            ("the shape of v_new", (new, new[:, :1], cache, other), {}),
            ("heads of k_cache", (new, new, cache[:, :1], other[:, :1]), {}),
            ("dtype of k_cache", (new, new, cache.astype(np.float16), other), {}),
            ("k_cache shares memory with v_cache", (new, new, cache, cache), {}),
            ("batch of k_cache", (new, new, cache[:1], other[:1]), {}),
            ("used_kv", (new, new, cache, other), {"used_kv": [1]}),
            (r"used_kv\[0\] = 5", (new, new, cache, other), {"used_kv": [5, 1]}),
            ("expected both", (new, new, cache, other), {"cu_seqlens_q": [0, 1, 2]}),
            ("rope is a float", (new, new, cache, other), {"rope": 1.0}),
            ("cos has the shape", (new, new, cache, other), {"rope": tables(4, 5)}),
            ("rope_rows = 1", (new, new, cache, other), {"rope": tables(1, 4), "used_kv": [2, 1]}),
            ("q_out is given without q", (new, new, cache, other), {"q_out": new}),
            ("the shape of q ", (new, new, cache, other), {"q": cache})):
        with pytest.raises(attn.InvalidArgument, match=words):
            attn.append(*arguments, **{"used_kv": used, **options})
    cache.flags.writeable = False
    with pytest.raises(attn.InvalidArgument, match="k_cache is read-only"):
        attn.append(new, new, cache, other, used_kv=used)


# ---- merge -------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", FRAMEWORKS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_parts_of_the_keys(made, layout):
    rng = np.random.default_rng(5)
    shape = (2, HQ, 30, D) if layout == "bhsd" else (2, 30, HQ, D)
    q, k, v = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    whole, lse = attn.attention(q, k, v, layout=layout, return_lse=True)
    axis = 2 if layout == "bhsd" else 1
    parts = [attn.attention(q, a, b, layout=layout, return_lse=True)
             for a, b in zip(np.split(k, (7, 7, 20), axis), np.split(v, (7, 7, 20), axis))]
    o, sums = zip(*parts)
    assert np.isneginf(sums[1]).all()
    o[1][:] = np.nan  # nothing was seen there
    o, sums = [made(x) for x in o], [made(x) for x in sums]
    merged, merged_lse = attn.merge(o, sums, layout=layout)
    np.testing.assert_allclose(np.asarray(merged), whole, atol=2e-6)
    np.testing.assert_allclose(np.asarray(merged_lse), lse, atol=2e-6)
    again, _ = attn.merge(o, sums, out=o[0], out_lse=sums[0], layout=layout)
    assert again is o[0] and np.array_equal(np.asarray(again), np.asarray(merged))


def test_dtypes_and_strides():
    parts = [torch.randn(2, 5, 3, 8).transpose(1, 2) for _ in range(3)]  # (batch, heads, rows, dim)
    lse = [torch.randn(2, 3, 5) for _ in range(3)]
    exact, _ = attn.merge([x.contiguous() for x in parts], lse)
    same, _ = attn.merge(parts, lse)
    assert same.stride() == parts[0].stride() and torch.equal(same, exact)
    for dtype in (torch.float16, torch.bfloat16):
        narrow, _ = attn.merge(parts, lse, dtype=str(dtype)[len("torch."):])
        assert narrow.dtype == dtype and torch.equal(narrow, exact.to(dtype))
        wide, _ = attn.merge([x.to(dtype) for x in parts], lse, dtype="float32")
        assert wide.dtype == torch.float32


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_accumulated(dtype, layout):
    shape = (2, HQ, 5, D) if layout == "bhsd" else (2, 5, HQ, D)
    parts = [torch.randn(shape).to(dtype) for _ in range(3)]
    sums = [torch.randn(2, HQ, 5) for _ in range(3)]
    sums[1][0] = -np.inf
    parts[1][0] = np.nan
    wide, lse = torch.full(shape, np.nan), torch.full((2, HQ, 5), -np.inf)
    for n, (part, part_lse) in enumerate(zip(parts, sums)):
        want, want_lse = attn.merge([wide.clone(), part.float()], [lse, part_lse], layout=layout)
        out = torch.empty(shape, dtype=dtype) if n == 2 else None
        got, same = attn.accumulate(wide, lse, part, part_lse, out=out, layout=layout)
        assert got is (wide if out is None else out) and same is lse
        assert torch.equal(got, want.to(got.dtype)) and torch.equal(lse, want_lse)
    whole, _ = attn.merge([x.float() for x in parts], sums, layout=layout)
    torch.testing.assert_close(got.float(), whole, atol=1e-2 if dtype != torch.float32 else 2e-6,
                               rtol=1e-2 if dtype != torch.float32 else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_accumulated_without_lse(dtype):
    parts = [torch.randn(2, HQ, 5, D).to(dtype) for _ in range(2)]
    total, none = attn.accumulate(torch.ones(2, HQ, 5, D), None, parts[0], None)
    out, _ = attn.accumulate(total, None, parts[1], None, out=torch.empty_like(parts[1]))
    expected = torch.ones(2, HQ, 5, D) + parts[0]
    assert none is None and torch.equal(total, expected)
    assert torch.equal(out, (expected + parts[1]).to(dtype))


def test_accumulated_refusals():
    o, lse = np.zeros((2, 3, 4, 8), np.float32), np.zeros((2, 3, 4), np.float32)
    part, part_lse = o.astype(np.float16), lse.copy()
    for words, arguments, options in (
            ("the dtype of o is float16", (part, lse, part.copy(), part_lse), {}),
            ("the shape of o is", (o[:1], lse, part, part_lse), {}),
            ("the shape of lse_part", (o, lse, part, lse[:1]), {}),
            ("lse shares memory", (o, lse, part, lse), {}),
            ("lse_part is None, expected both or none", (o, lse, part, None), {}),
            ("the strides of o", (o.transpose(1, 0, 2, 3).copy().transpose(1, 0, 2, 3), lse, part,
                                  part_lse), {}),
            ("o shares memory with out", (o, lse, part, part_lse), {"out": o}),
            ("the shape of out", (o, lse, part, part_lse), {"out": part[:1]})):
        with pytest.raises(attn.InvalidArgument, match=words):
            attn.accumulate(*arguments, **options)


def test_merged_refusals():
    o, lse = np.zeros((2, 3, 4, 8), np.float32), np.zeros((2, 3, 4), np.float32)
    for words, arguments, options in (
            ("expected as many", ([o], []), {}),
            ("expected as many", ([], []), {}),
            ("the shape of lse", ([o], [lse[:1]]), {}),
            ("dtype of o", ([o, o.astype(np.float16)], [lse, lse]), {}),
            ("the strides of o", ([o, o.transpose(1, 0, 2, 3).copy().transpose(1, 0, 2, 3)],
                                  [lse, lse]), {}),
            ("dtype is 'int8'", ([o], [lse]), {"dtype": "int8"}),
            ("out shares memory", ([o.copy(), o], [lse, lse]), {"out": o}),
            ("count = 33", ([o] * 33, [lse] * 33), {})):
        with pytest.raises(attn.InvalidArgument, match=words):
            attn.merge(*arguments, **options)


def test_the_example(monkeypatch, capsys):
    """Evictions happen, and each request gives the same tokens alone."""
    path = pathlib.Path(__file__).resolve().parents[2] / "examples" / "serve.py"
    names = runpy.run_path(str(path))
    names["main"].__globals__.update(LAYERS=2, PAGES=40)
    monkeypatch.setattr(sys, "argv", [str(path), "cpu", "5"])
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        names["main"]()
    finally:
        torch.set_num_threads(usual)
    said = capsys.readouterr().out
    assert "the same tokens" in said and " 0 evictions" not in said
