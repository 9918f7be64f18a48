# SPDX-License-Identifier: Apache-2.0
"""q_offset, kv_offset and offsets: chunks of a sequence give what the whole sequence gives."""

import attn
import model
import numpy as np
import pytest

torch = pytest.importorskip("torch")
B, HQ, HKV, S, D = 2, 4, 2, 60, 16
CHUNKS = (0, 13, 32, 41, S)  # of the whole; each is a range of queries, and one of keys
FRAMEWORKS = [np.asarray, torch.from_numpy]  # the general and the fast path
OPTIONS = [dict(causal="top-left"), dict(causal="top-left", window=(9, -1)),
           dict(causal="top-left", alibi=True, softcap=3.0)]


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, heads, S, D)).astype(np.float32) for heads in (HQ, HKV, HKV)]


def chunks():
    return [slice(*two) for two in zip(CHUNKS, CHUNKS[1:])]


@pytest.mark.parametrize("made", FRAMEWORKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_chunks_merge_to_the_whole(made, options):
    q, k, v = map(made, inputs())
    expected, expected_lse = attn.attention(q, k, v, return_lse=True, **options)
    for rows in chunks():
        parts = [attn.attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], return_lse=True,
                                q_offset=rows.start, kv_offset=keys.start, **options)
                 for keys in chunks()]
        out, lse = attn.merge(*zip(*parts))
        np.testing.assert_allclose(out, expected[:, :, rows], 1e-5, 1e-6)
        np.testing.assert_allclose(lse, expected_lse[:, :, rows], 1e-5, 1e-6)
        for (nothing, no_key), keys in zip(parts, chunks()):
            if keys.start > rows.stop:
                assert not nothing.any() and (no_key == -np.inf).all()


@pytest.mark.parametrize("made", FRAMEWORKS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("options", [*OPTIONS, dict(causal="bottom-right", window=(5, -1)),
                                     dict(window=(3, 4), alibi=True)])
def test_one_offset_for_each_sequence(made, packed, options):
    q, k, v = inputs(1)
    offsets = np.array([7, -20], np.int32)
    cu = np.array([0, 25, S], np.int32)
    lengths = {}
    if packed:
        q, k, v = q[0], k[0], v[0]
        lengths = dict(cu_seqlens_q=cu, cu_seqlens_kv=cu)
    out, lse = attn.attention(*map(made, (q, k, v)), q_offset=-3, offsets=made(offsets),
                              return_lse=True, **{n: made(x) for n, x in lengths.items()}, **options)
    expected, expected_lse = model.attention(q, k, v, offsets=offsets - 3, **lengths, **options)
    np.testing.assert_allclose(out, expected, 1e-4, 1e-5)
    np.testing.assert_allclose(lse, expected_lse, 1e-4, 1e-5)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shift", [dict(q_offset=20, kv_offset=-5), dict(offsets=[25, 25]),
                                   dict(kv_offset=40, offsets=[70, 65])])
def test_gradients(options, shift):
    """Against PyTorch's own of the formulas."""
    given = [torch.from_numpy(x).requires_grad_() for x in inputs(2)]
    same = [x.detach().clone().double().requires_grad_() for x in given]
    weights = torch.from_numpy(inputs(3)[0])
    attn.attention(*given, **shift, **options).mul(weights).sum().backward()
    q, k, v = same[0], *(x.repeat_interleave(HQ // HKV, 1) for x in same[1:])
    off = shift.get("q_offset", 0) - shift.get("kv_offset", 0)
    off = torch.tensor([off + x for x in shift.get("offsets", [0] * B)])[:, None, None, None]
    distance = torch.arange(S)[:, None] + off - torch.arange(S)
    s = q @ k.mT / D ** 0.5
    if "softcap" in options:
        s = options["softcap"] * torch.tanh(s / options["softcap"])
    if "alibi" in options:
        s = s - torch.from_numpy(model.usual_slopes(HQ))[:, None, None] * distance.abs()
    hidden = (distance < 0) | (distance > options.get("window", (S + 99, 0))[0])
    p = torch.softmax(s.masked_fill(hidden, -1e9), -1).masked_fill(hidden, 0)
    (p @ v).mul(weights.double()).sum().backward()
    for found, expected in zip(given, same):
        np.testing.assert_allclose(found.grad, expected.grad, 1e-4, 1e-5)


def test_refused():
    q, k, v = inputs()
    with pytest.raises(attn.InvalidArgument, match="q_offset is 1.5"):
        attn.attention(q, k, v, q_offset=1.5)
    with pytest.raises(attn.InvalidArgument, match=f"kv_offset is {1 << 41}"):
        attn.attention(q, k, v, kv_offset=1 << 41)
    with pytest.raises(attn.InvalidArgument, match="the shape of offsets"):
        attn.attention(q, k, v, offsets=[1, 2, 3])
