# SPDX-License-Identifier: Apache-2.0
"""used_q and draft_mask: a shorter sequence, and a boolean mask. NumPy and PyTorch."""

import attn
import numpy as np
import pytest

torch = pytest.importorskip("torch")
B, HQ, HKV, SQ, SKV, D = 3, 4, 2, 9, 40, 16
FRAMEWORKS = [np.asarray, torch.from_numpy]  # the general and the fast path


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32)
            for shape in ((B, HQ, SQ, D), (B, HKV, SKV, D), (B, HKV, SKV, D))]


@pytest.mark.parametrize("made", FRAMEWORKS)
@pytest.mark.parametrize("causal", [None, "top-left", "bottom-right"])
def test_used_q(made, causal):
    q, k, v = inputs()
    used, used_kv = np.array([3, 0, 9], np.int32), np.array([40, 7, 20], np.int32)
    for b in range(B):
        q[b, :, used[b]:] = np.nan
    out, lse = attn.attention(*map(made, (q, k, v)), used_q=made(used), used_kv=made(used_kv),
                              causal=causal, return_lse=True)
    for b in range(B):
        n, keys = used[b], used_kv[b]
        if n:
            expected, expected_lse = attn.attention(
                q[b:b + 1, :, :n], k[b:b + 1, :, :keys], v[b:b + 1, :, :keys], causal=causal,
                return_lse=True)
            np.testing.assert_allclose(out[b, :, :n], expected[0], 1e-5, 1e-6)
            np.testing.assert_allclose(lse[b, :, :n], expected_lse[0], 1e-5, 1e-6)


def test_rows_that_are_not_written():
    q, k, v = inputs()
    out = np.full(q.shape, 7, np.float32)
    attn.attention(q, k, v, used_q=[2, 9, 0], out=out)
    assert (out[0, :, 2:] == 7).all() and (out[2] == 7).all() and (out[1] != 7).any()


@pytest.mark.parametrize("made", FRAMEWORKS)
def test_packed(made):
    """A mixed step over pages: a decode row, three drafts, an empty sequence, padded rows."""
    rng = np.random.default_rng(3)
    pools = [rng.standard_normal((20, 16, HKV, D)).astype(np.float32) for _ in range(2)]
    table = rng.permutation(20)[:12].reshape(4, 3).astype(np.int32)
    cu = np.array([0, 4, 8, 12, 16], np.int32)
    used, used_kv = np.array([1, 3, 0, 4], np.int32), np.array([40, 33, 5, 17], np.int32)
    drafts = np.full(16, -1, np.int64)
    drafts[4:7] = 0b001, 0b011, 0b101  # both are children of the first
    q = rng.standard_normal((16, HQ, D)).astype(np.float32)
    out = attn.attention(*map(made, (q, *pools)), layout="bshd", cu_seqlens_q=made(cu),
                         max_seqlen_q=4, used_q=made(used), used_kv=made(used_kv),
                         block_table=made(table), causal="bottom-right", draft_mask=made(drafts))
    for b in range(4):
        n, keys = int(used[b]), int(used_kv[b])
        k, v = (pool[table[b]].reshape(48, HKV, D)[None, :keys] for pool in pools)
        mask = np.ones((1, 1, n, keys), bool)
        for i in range(n):
            for t in range(n):
                mask[0, 0, i, keys - n + t] = drafts[cu[b] + i] >> t & 1
        if n:
            rows = slice(cu[b], cu[b] + n)
            expected = attn.attention(q[None, rows], k, v, layout="bshd", causal="bottom-right",
                                      mask=mask)
            np.testing.assert_allclose(out[rows], expected[0], 1e-5, 1e-6)


@pytest.mark.parametrize("change, words", [
    ({"used_q": [1, 2]}, "the shape of used_q"),
    ({"used_q": [1, 2, SQ + 1]}, "used_q"),
    ({"used_q": [0.5, 2, 3]}, "used_q is no array of int32"),
    ({"draft_mask": np.zeros((B, SQ), np.int32)}, "draft_mask"),
    ({"draft_mask": np.zeros((B, SQ + 1), np.int64)}, "the shape of draft_mask"),
    ({"draft_mask": np.zeros((SQ, B), np.int64).T}, "contiguous"),
])
def test_refused(change, words):
    with pytest.raises(attn.InvalidArgument, match=words):
        attn.attention(*inputs(), **change)
