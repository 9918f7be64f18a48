# SPDX-License-Identifier: Apache-2.0
"""attn.attention on NumPy arrays: options against the float64 model, strides, errors, threads."""

import re
import threading

import attn
import ml_dtypes
import model
import numpy as np
import pytest
from attn import _plans
from dlpack import Foreign

BF16 = np.dtype(ml_dtypes.bfloat16)
# |error| <= tolerance * (1 + |expected|): some roundings of the dtype
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 4e-3, BF16: 3e-2}
DTYPES = list(TOLERANCE)
B, HQ, HKV, SQ, SKV, D = 2, 4, 2, 13, 21, 16


def random(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(dtype=np.float32, seq_q=SQ, seq_kv=SKV, dim_v=D):
    return (random((B, HQ, seq_q, D), dtype, 1), random((B, HKV, seq_kv, D), dtype, 2),
            random((B, HKV, seq_kv, dim_v), dtype, 3))


def agree(found, expected, dtype):
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    infinite = np.isneginf(expected)
    assert np.array_equal(np.isneginf(found), infinite)
    found, expected = found[~infinite], expected[~infinite]
    error = np.abs(found - expected)
    allowed = TOLERANCE[np.dtype(dtype)] * (1 + np.abs(expected))
    assert (error <= allowed).all(), f"largest error {error.max()}"


def check(q, k, v, **options):
    o, lse = attn.attention(q, k, v, return_lse=True, **options)
    assert o.dtype == q.dtype and lse.dtype == np.float32
    expected_o, expected_lse = model.attention(q, k, v, **{
        name: value for name, value in options.items() if name not in ("variant", "threads")})
    agree(o, expected_o, q.dtype)
    agree(lse, expected_lse, np.float32)


OPTIONS = {
    "plain": {}, "scale": {"scale": 0.7}, "scale 0": {"scale": 0.0}, "negative": {"scale": -0.3},
    "top-left": {"causal": "top-left"}, "bottom-right": {"causal": "bottom-right"},
    "window": {"window": (3, 2)}, "left": {"window": (5, -1)}, "right": {"window": (-1, 0)},
    "causal window": {"causal": "bottom-right", "window": (4, -1)},
    "top-left window": {"causal": "top-left", "window": (2, 1)}, "softcap": {"softcap": 2.0},
    "alibi": {"alibi": True}, "no alibi": {"alibi": False},
    "slopes": {"alibi": np.array([0.1, 0.2, 0.3, 0.4], np.float32)},
    "slopes of batches": {"alibi": random((B, HQ), seed=9)}, "a list": {"alibi": [1, 0, 0.5, 2]},
    "sink": {"sink": random((HQ,), seed=8)}, "sink -inf": {"sink": [-np.inf, 0, 1, 2]},
    "used_kv": {"used_kv": [7, SKV]}, "used_kv int64": {"used_kv": np.array([0, 3])},
    "bias": {"bias": random((B, HQ, SQ, SKV), seed=7)},
    "bias row": {"bias": random((SKV,), seed=7)}, "bias col": {"bias": random((SQ, 1), seed=7)},
    "bias of heads": {"bias": random((HQ, 1, SKV), seed=7)},
    "bias of batches": {"bias": random((B, 1, 1, 1), seed=7)},
    "bias fp16": {"bias": random((1, HQ, SQ, SKV), np.float16, 7)},
    "bias bf16": {"bias": random((1, HQ, SQ, SKV), BF16, 7)},
    "bias strides": {"bias": random((HQ, SKV, SQ), seed=7).transpose(0, 2, 1)},
    "bias hides": {"bias": np.where(random((SQ, SKV), seed=6) > 0, 0, -np.inf).astype(np.float32)},
    "mask": {"mask": random((B, HQ, SQ, SKV), seed=5) > 0},
    "mask of keys": {"mask": random((B, 1, 1, SKV), seed=5) > 0},
    "mask row": {"mask": random((SKV,), seed=5) > 0}, "mask all": {"mask": np.zeros((1, 1), bool)},
    "mask uint8": {"mask": np.array([0, 1, 255] * 7, np.uint8)},
    "mask strides": {"mask": (random((HQ, SKV, SQ), seed=5) > 0).transpose(0, 2, 1)},
    "mask and bias": {"mask": random((SQ, 1), seed=5) > 0, "bias": random((SKV,), seed=7)},
    "mask, causal, sink": {"mask": random((SQ, SKV), seed=5) > 0, "causal": "bottom-right",
                           "sink": random((HQ,), seed=8)},
    "threads": {"threads": 1},
    "all": {"scale": 0.5, "causal": "bottom-right", "window": (6, -1), "softcap": 3.0,
            "alibi": True, "bias": random((SQ, SKV), seed=7), "sink": random((HQ,), seed=8),
            "used_kv": [9, 20]},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, dtype):
    check(*inputs(dtype), **OPTIONS[name])


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("causal", [None, "top-left", "bottom-right"])
def test_packed(layout, causal):
    cu_q, cu_kv = [0, 5, 5, 13], [0, 9, 12, 21]
    q, k, v = (x[0] for x in inputs())
    if layout == "bshd":
        q, k, v = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (q, k, v))
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv, "layout": layout, "causal": causal}
    check(q, k, v, **options)
    check(q, k, v, used_kv=[4, 3, 8], alibi=True, **options)
    found = attn.attention(q, k, v, max_seqlen_q=8, max_seqlen_kv=9, **options)
    assert np.array_equal(found, attn.attention(q, k, v, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype):
    q, k, v = inputs(dtype)
    expected = attn.attention(q, k, v)
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    assert np.array_equal(attn.attention(*swapped, layout="bshd"), expected.swapaxes(1, 2))
    assert np.array_equal(attn.attention(*(x.swapaxes(1, 2) for x in swapped)), expected)
    padded = []
    for x in (q, k, v):  # rows that begin anywhere, at odd elements
        wide = np.zeros((*x.shape[:2], 2 * x.shape[2], x.shape[3] + 5), dtype)
        wide[:, :, ::2, 3:3 + x.shape[3]] = x
        padded.append(wide[:, :, ::2, 3:3 + x.shape[3]])
    out = np.full((B, SQ, HQ, D + 1), np.nan, dtype)
    into = out.swapaxes(1, 2)[..., :D]
    assert attn.attention(*padded, out=into) is into
    agree(into, expected, dtype)
    assert np.isnan(out[..., D].astype(np.float32)).all()
    one = np.broadcast_to(k[:1, :1], k.shape)  # strides of 0
    check(q, one, one)


@pytest.mark.parametrize("bound", [2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**70])
def test_windows_beyond_all_keys_are_no_bound(bound):
    q, k, v = inputs()
    for wide, none in (((bound, 0), (-1, 0)), ((1, bound), (1, -1))):
        expected = attn.attention(q, k, v, window=none)
        assert np.array_equal(attn.attention(q, k, v, window=wide), expected)


def test_dims():
    check(*inputs(dim_v=24))
    check(random((1, 1, 1, 1)), random((1, 1, 1, 1)), random((1, 1, 1, 1)))
    check(random((1, 8, 1, 64)), random((1, 1, 3000, 64), seed=1), random((1, 1, 3000, 64), seed=2))
    q, k, v = inputs()
    assert attn.attention(q[:0], k[:0], v[:0]).shape == (0, HQ, SQ, D)
    o, lse = attn.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert not o.any() and np.isneginf(lse).all()
    flat = np.zeros(k.size + 4, np.float32)  # nor is any address of nothing a wrong one
    for start in range(4):
        empty = flat[start:][:k.size].reshape(k.shape)[:, :, :0]
        assert not attn.attention(q, empty, empty).any()
        assert attn.attention(empty, k, v).size == 0
        assert attn.attention(q[:, :, :0], k, v, out=empty.repeat(2, 1)).size == 0


def test_bits_of_bfloat16():
    q, k, v = inputs(BF16)
    found = attn.attention(*(x.view(np.uint16) for x in (q, k, v)))
    assert found.dtype == np.uint16
    assert np.array_equal(found.view(BF16), attn.attention(q, k, v))


def test_out_and_lse_are_written():
    q, k, v = inputs()
    out, lse = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
    found = attn.attention(q, k, v, out=out, lse=lse, return_lse=True)
    assert found[0] is out and found[1] is lse
    assert np.isfinite(out).all() and np.isfinite(lse).all()
    assert attn.attention(q, k, v, out=out) is out


Q, K, V = inputs()
READ_ONLY = np.empty_like(Q)
READ_ONLY.flags.writeable = False
OUT = np.empty_like(Q)
INSIDE_Q, INSIDE_OUT = (x.reshape(-1)[:B * HQ * SQ].reshape(B, HQ, SQ) for x in (Q, OUT))
ODD = np.zeros(Q.nbytes + 16, np.uint8)[1:][:Q.nbytes].view(np.float32).reshape(Q.shape)
REFUSED = [
    ((Q, K, V), {"causal": True}, "causal is True, expected None, 'top-left' or 'bottom-right'"),
    ((Q, K, V), {"layout": "sbhd"}, "layout is 'sbhd'"),
    ((Q, K, V), {"scale": "big"}, "scale is 'big', expected a number"),
    ((Q, K, V), {"scale": np.nan}, "scale is nan"), ((Q, K, V), {"window": 3}, "window is 3"),
    ((Q, K, V), {"softcap": -1.0}, "softcap"),
    ((Q, K, V), {"window": (-2, 0)}, "window is (-2, 0)"),
    ((Q, K, V), {"window": (-2**64, 0)}, "window is (-18446744073709551616, 0), expected"),
    ((Q, K, V), {"window": (np.inf, 0)}, "window is (inf, 0), expected (left, right)"),
    ((Q, K, V), {"window": (1.5, 0)}, "window is (1.5, 0)"),
    ((Q, K, V), {"threads": -1}, "threads is -1"), ((Q, K, V), {"threads": "2"}, "threads is '2'"),
    ((Q, K, V), {"threads": 2**32 + 1}, "threads is 4294967297, expected an integer from 0 to"),
    ((Q, K, V), {"scale": 10**400}, "scale is 1000"),
    ((Q, K, V), {"variant": "no_such"}, "no_such"), ((Q, K, V), {"variant": ""}, 'variant = ""'),
    ((Q, K, V), {"variant": 3}, "variant is 3, expected None or the name"),
    ((Q, K, V), {"variant": ["x"]}, "variant is ['x'], expected None or the name"),
    ((Q, K, V), {"variant": "cpu\0"}, "variant is 'cpu"),
    ((Q[0], K, V), {}, "q has the shape"), ((Q.astype(np.float64), K, V), {}, "float64"),
    ((Q.astype(float), K, V), {}, "expected float32, float16 or bfloat16 (of ml_dtypes"),
    ((Q.astype(np.int32), K, V), {}, "q has dtype int32, expected float32, float16 or bfloat16"),
    ((ODD, K, V), {}, f"q lies at the address {ODD.ctypes.data:#x}, expected a multiple of 4"),
    ((Q, K, V), {"out": ODD}, "out lies at the address"),
    ((Q, K.astype(np.float16), V), {}, "the dtype of k is float16, expected float32"),
    ((Q, K, V[:, :, :-1]), {}, "the shape of v"), ((Q, K[:1], V[:1]), {}, "the shape of k"),
    ((Q[:, :3], K, V), {}, "heads"), ((Q[..., ::2], K[..., :8], V), {}, "q has 2 elements between"),
    ((Q, K[:, :, ::-1], V), {}, "stride"), ((Q.tolist(), K, V), {}, "q is a list"),
    ((Q, K, V), {"bias": np.zeros((2, 2), np.float32)}, "bias has the shape"),
    ((Q, K, V), {"bias": np.zeros((SQ, SKV), bool)}, "bias has dtype bool"),
    ((Q, K, V), {"bias": np.zeros((SQ, SKV))}, "bias has dtype float64, expected float32, float16"),
    ((Q, K, V), {"bias": np.zeros((SQ, SKV), np.int32)}, "bias has dtype int32, expected float32"),
    ((Q, K, V), {"mask": np.zeros((2, 2), bool)}, "mask has the shape (2, 2), expected one that"),
    ((Q, K, V), {"mask": Q[0, 0, :, :1]}, "mask has dtype float32, expected bool or uint8"),
    ((Q, K, V), {"mask": [True]}, "mask is a list"),
    ((Q, K, V), {"sink": [1, 2]}, "the shape of sink"),
    ((Q, K, V), {"alibi": [1, 2]}, "alibi has the shape"),
    ((Q, K, V), {"used_kv": [1.5, 2]}, "used_kv is no array of int32"),
    ((Q, K, V), {"used_kv": [1, 2**40]}, "used_kv is no array of int32"),
    ((Q, K, V), {"used_kv": [1, SKV + 1]}, "used_kv"),
    ((Q[0], K[0], V[0]), {"cu_seqlens_q": [0, 3]}, "cu_seqlens_kv is None"),
    ((Q[0], K[0], V[0]), {"cu_seqlens_q": [0, 13], "cu_seqlens_kv": [0, 22]}, "cu_seqlens_kv"),
    ((Q[0], K[0], V[0]), {"cu_seqlens_q": [5, 0], "cu_seqlens_kv": [0, 21]}, "cu_seqlens_q"),
    ((Q[0], K[0], V[0]), {"cu_seqlens_q": [0, 13], "cu_seqlens_kv": [0, 21],
                          "max_seqlen_q": 2**64 + 13}, "max_seqlen_q is 18446744073709551629"),
    ((Q, K, V), {"out": Q}, "out shares memory with q"),
    ((Q, K, V), {"lse": INSIDE_Q}, "lse shares memory with q, expected memory of its own"),
    ((Q, K, V), {"lse": INSIDE_OUT, "out": OUT}, "out shares memory with lse"),
    ((Q, K, V), {"out": Foreign(Q)}, "out shares memory with q"),
    ((Q, K, V), {"out": READ_ONLY}, "out is read-only"),
    ((Q, K, V), {"out": np.empty((1,), np.float32)}, "the shape of out"),
    ((Q, K, V), {"tensor_cores": True}, "tensor_cores is True"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number):
    arrays, options, text = REFUSED[number]
    with pytest.raises(attn.AttnError, match=re.escape(text)) as caught:
        attn.attention(*arrays, **options)
    assert isinstance(caught.value, (ValueError, NotImplementedError))


def test_plan_cache_forgets():
    attn.clear_plans()
    cache, most = _plans.open_cache(-1, 0), _plans.CACHED_PLANS
    for length in range(1, most + 1):
        x = np.ones((1, 1, length, 1), np.float32)
        assert attn.attention(x, x, x)[0, 0, -1, 0] == pytest.approx(1)
    plans = dict(cache.plans)
    assert len(plans) == most
    attn.attention(x, x, x)
    assert cache.plans == plans
    attn.attention(x, x, x, scale=0.5)  # the oldest half makes place
    assert list(cache.plans)[:-1] == list(plans)[most // 2:]
    attn.clear_plans()
    assert not _plans.caches


def test_threads_at_once(monkeypatch):
    monkeypatch.setattr(_plans, "CACHED_PLANS", 3)  # plans are dropped while others compute
    lengths = [5, 17, 33, 64, 80]
    cases = [(random((1, 4, n, 32), seed=n), random((1, 4, n, 32), seed=n + 1)) for n in lengths]
    expected = [attn.attention(q, k, k) for q, k in cases]
    wrong = []

    def work(first):
        for n in range(60):
            at = (first + n) % len(cases)
            q, k = cases[at]
            if not np.array_equal(attn.attention(q, k, k), expected[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
