# SPDX-License-Identifier: Apache-2.0
"""A paged KV cache is the gathered one, bit for bit: NumPy and PyTorch, both orders of a page."""

import attn
import numpy as np
import pytest

torch = pytest.importorskip("torch")
B, HQ, HKV, D = 3, 4, 2, 24


def cache(page_size, order, keys=100, dim_v=D, dtype=np.float32, seed=0):
    """K and V (batch, keys, heads, dim) and their pools, whose pages lie in any order; what is not
    used is NaN, in the table -1."""
    rng = np.random.default_rng(seed)
    used = rng.integers(0, keys + 1, B).astype(np.int32)
    used[0] = keys
    most = -(-keys // page_size)
    table = np.full((B, most + 2), -1, np.int32)
    count = int(sum(-(-used // page_size))) + 3
    pages = iter(rng.permutation(count))
    whole, pools = [], []
    for dim in (D, dim_v):
        shape = (count, page_size, HKV, dim) if order == "nhd" else (count, HKV, page_size, dim)
        whole.append(rng.standard_normal((B, keys, HKV, dim)).astype(dtype))
        pools.append(np.full(shape, np.nan, dtype))
    for b in range(B):
        for i in range(-(-int(used[b]) // page_size)):
            table[b, i] = next(pages)
            rows = slice(i * page_size, min((i + 1) * page_size, int(used[b])))
            for pool, all_rows in zip(pools, whole):
                page = pool[table[b, i]]
                page = page if order == "nhd" else page.swapaxes(0, 1)
                page[:rows.stop - rows.start] = all_rows[b, rows]
    return whole, pools, table, used


FRAMEWORKS = [np.asarray, torch.from_numpy]  # the general and the fast path


@pytest.mark.parametrize("made", FRAMEWORKS)
@pytest.mark.parametrize("order", ["nhd", "hnd"])
@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 200])
@pytest.mark.parametrize("queries", [1, 7, 33])
def test_gathered(made, order, page_size, queries):
    (k, v), (k_pages, v_pages), table, used = cache(page_size, order, dim_v=16)
    q = np.random.default_rng(1).standard_normal((B, queries, HQ, D)).astype(np.float32)
    options = {"causal": "bottom-right", "return_lse": True, "layout": "bshd"}
    expected = attn.attention(q, k, v, used_kv=used, **options)
    found = attn.attention(*map(made, (q, k_pages, v_pages)), block_table=made(table),
                           used_kv=made(used), max_seqlen_kv=100, page_layout=order, **options)
    for a, b in zip(found, expected):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_packed_queries_of_torch(dtype):
    (k, v), pools, table, used = cache(16, "nhd")
    k, v, k_pages, v_pages = (torch.from_numpy(x).to(dtype) for x in (k, v, *pools))
    rows = [1, 0, 5]
    cu = torch.tensor(np.cumsum([0, *rows]), dtype=torch.int32)
    q = torch.randn(sum(rows), HQ, D).to(dtype)
    table, used = torch.from_numpy(table), torch.from_numpy(used)
    found = attn.attention(q, k_pages, v_pages, layout="bshd", cu_seqlens_q=cu, used_kv=used,
                           block_table=table, causal="bottom-right")
    for b in range(B):
        own = slice(int(cu[b]), int(cu[b + 1]))
        expected = attn.attention(q[None, own], k[b:b + 1], v[b:b + 1], layout="bshd",
                                  used_kv=used[b:b + 1], causal="bottom-right")[0]
        torch.testing.assert_close(found[own], expected, atol=2e-2, rtol=2e-2)
    assert not found.isnan().any()


def test_options():
    (k, v), (k_pages, v_pages), table, used = cache(16, "nhd", keys=90)
    rng = np.random.default_rng(2)
    q = rng.standard_normal((B, HQ, 5, D)).astype(np.float32)
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    options = {"used_kv": used, "sink": rng.standard_normal(HQ).astype(np.float32), "alibi": True,
               "softcap": 5.0, "window": (40, -1),
               "bias": rng.standard_normal((5, 90)).astype(np.float32),
               "mask": rng.random((B, 1, 5, 90)) < 0.7}
    expected = attn.attention(q, k, v, **options)
    found = attn.attention(q, k_pages, v_pages, block_table=table, max_seqlen_kv=90, **options)
    assert np.array_equal(found, expected)


def test_one_allocation():
    _, (k_pages, v_pages), table, used = cache(16, "nhd")
    pool = np.stack([k_pages, v_pages], 1)
    q = np.random.default_rng(1).standard_normal((B, HQ, 1, D)).astype(np.float32)
    expected = attn.attention(q, k_pages, v_pages, block_table=table, used_kv=used)
    found = attn.attention(q, pool[:, 0], pool[:, 1], block_table=table, used_kv=used)
    assert np.array_equal(found, expected)


WRONG = [
    ({"used_kv": None}, "used_kv is None"),
    ({"cu_seqlens_kv": [0, 1, 2, 3]}, "cu_seqlens_kv is given, expected None"),
    ({"block_table": np.zeros((2, 7), np.int32)}, r"block_table has the shape \(2, 7\)"),
    ({"block_table": np.zeros((3, 7))}, "block_table is no array of int32"),
    ({"block_table": np.full((3, 7), 99)}, r"block_table\[0\]\[0\] = 99, expected"),
    ({"block_table": torch.zeros(7, dtype=torch.int32).expand(3, 7)}, "rows of their own"),
    ({"page_layout": "bshd"}, "page_layout is 'bshd'"),
    ({"max_seqlen_kv": 1000}, "max_seqlen_kv is 1000"),
]


@pytest.mark.parametrize("made", FRAMEWORKS)
@pytest.mark.parametrize("number", range(len(WRONG)))
def test_refusals(made, number):
    change, sentence = WRONG[number]
    _, (k_pages, v_pages), table, used = cache(16, "nhd")
    q = np.zeros((B, HQ, 1, D), np.float32)
    arguments = {"block_table": made(table), "used_kv": made(used), **change}
    with pytest.raises(attn.InvalidArgument, match=sentence):
        attn.attention(*map(made, (q, k_pages, v_pages)), **arguments)


@pytest.mark.parametrize("made", FRAMEWORKS)
def test_shapes_that_do_not_fit(made):
    _, (k_pages, v_pages), table, used = cache(16, "nhd")
    q = np.zeros((B, HQ, 1, D), np.float32)
    for k, v in ((k_pages[0], v_pages), (k_pages, v_pages[1:]), (k_pages[..., 1:], v_pages),
                 (k_pages[:, :0], v_pages[:, :0])):
        with pytest.raises(attn.InvalidArgument):
            attn.attention(*map(made, (q, np.ascontiguousarray(k), np.ascontiguousarray(v))),
                           block_table=made(table), used_kv=made(used))


def test_no_gradients():
    _, pools, table, used = cache(16, "nhd")
    k_pages, v_pages = (torch.from_numpy(x) for x in pools)
    q = torch.zeros(B, HQ, 1, D, requires_grad=True)
    with pytest.raises(attn.Unsupported, match="requires a gradient"):
        attn.attention(q, k_pages, v_pages, block_table=torch.from_numpy(table),
                       used_kv=torch.from_numpy(used))
