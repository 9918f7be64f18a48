# SPDX-License-Identifier: Apache-2.0
"""attn.jax against the formula in jax.numpy: options, jit, gradients, packed sequences; no copies,
errors, threads."""

import concurrent.futures

import attn
import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.5")
jnp = jax.numpy

import attn.jax  # noqa: E402
from attn import _xla  # noqa: E402

BATCH, HEADS, HEADS_KV, ROWS, KEYS, DIM = 2, 4, 2, 5, 9, 16


def normal(seed, *shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def qkv(dtype=jnp.float32):
    return (normal(0, BATCH, HEADS, ROWS, DIM, dtype=dtype),
            normal(1, BATCH, HEADS_KV, KEYS, DIM, dtype=dtype),
            normal(2, BATCH, HEADS_KV, KEYS, 8, dtype=dtype))


def formula(q, k, v, causal=None, scale=None, window=(-1, -1), softcap=0.0, alibi=None, bias=None,
            mask=None, sink=None, used_kv=None):
    """(batch, heads, rows, dim); out and lse."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    rows, keys = q.shape[2], k.shape[2]
    used = jnp.full((q.shape[0],), keys) if used_kv is None else used_kv
    shift = 0 if causal == "top-left" else used[:, None, None, None] - rows
    distance = jnp.arange(rows)[:, None] + shift - jnp.arange(keys)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    if alibi is not None:
        scores -= (alibi[:, None, None] if alibi.ndim == 1 else alibi[..., None, None]) \
            * jnp.abs(distance)
    if bias is not None:
        scores += bias.astype(jnp.float32)
    seen = jnp.arange(keys) < used[:, None, None, None]
    if causal:
        seen &= distance >= 0
    if window[0] >= 0:
        seen &= distance <= window[0]
    if window[1] >= 0:
        seen &= distance >= -window[1]
    if mask is not None:
        seen &= mask
    scores = jnp.where(seen, scores, -1e30)
    top = scores.max(-1, keepdims=True)
    weights = jnp.where(seen, jnp.exp(scores - top), 0.0)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total += jnp.exp(sink[:, None, None] - top)
    return (jnp.einsum("bhqk,bhkd->bhqd", weights / total, v),
            (jnp.log(total) + top)[..., 0])


CASES = [
    dict(), dict(causal="top-left"), dict(causal="bottom-right"), dict(scale=0.3),
    dict(window=(3, 2)), dict(softcap=1.5), dict(alibi=normal(3, HEADS) ** 2),
    dict(alibi=normal(3, BATCH, HEADS) ** 2), dict(bias=normal(4, HEADS, ROWS, KEYS)),
    dict(bias=normal(4, BATCH, 1, 1, KEYS)), dict(mask=normal(5, BATCH, 1, ROWS, KEYS) > -0.5),
    dict(sink=normal(6, HEADS)), dict(used_kv=jnp.array([6, 9], jnp.int32)),
    dict(causal="bottom-right", window=(4, 0), softcap=2.0, sink=normal(6, HEADS),
         used_kv=jnp.array([7, 8], jnp.int32)),
]


def close(found, expected, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32),
                               tolerance, tolerance)


@pytest.mark.parametrize("options", CASES)
def test_options(options):
    arrays = qkv()
    o, lse = attn.jax.attention(*arrays, return_lse=True, **options)
    assert isinstance(o, jax.Array) and lse.dtype == jnp.float32
    expected = formula(*arrays, **options)
    close(o, expected[0])
    close(lse, expected[1])
    compiled = jax.jit(lambda *x: attn.jax.attention(*x, **options))
    assert (compiled(*arrays) == o).all()


@pytest.mark.parametrize("options", CASES)
def test_gradients(options):
    arrays = qkv()
    learnt = [name for name in ("bias", "sink", "alibi") if name in options]
    others = {name: value for name, value in options.items() if name not in learnt}
    weight = normal(9, BATCH, HEADS, ROWS, 8)

    def loss(function, arrays, learnt):
        found = function(*arrays, **learnt, **others)
        return ((found[0] if isinstance(found, tuple) else found) * weight).sum()
    values = {name: options[name] for name in learnt}
    found = jax.jit(jax.grad(lambda *x: loss(attn.jax.attention, *x), (0, 1)))(arrays, values)
    expected = jax.grad(lambda *x: loss(formula, *x), (0, 1))(arrays, values)
    jax.tree.map(lambda one, other: close(one, other, 1e-4), found, expected)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half(dtype):
    arrays = qkv(dtype)
    o = attn.jax.attention(*arrays, causal="bottom-right")
    assert o.dtype == dtype
    close(o, formula(*arrays, causal="bottom-right")[0], 2e-2)


def test_layout():
    q, k, v = qkv()
    turned = [jnp.swapaxes(x, 1, 2) for x in (q, k, v)]
    o = attn.jax.attention(*turned, layout="bshd", causal="top-left")
    close(jnp.swapaxes(o, 1, 2), formula(q, k, v, causal="top-left")[0])


@pytest.mark.parametrize("compiled", [False, True])
def test_packed(compiled):
    cu_q, cu_kv = jnp.array([0, 3, 3, 7], jnp.int32), jnp.array([0, 5, 6, 10], jnp.int32)
    q, k, v = normal(0, 8, 4, DIM), normal(1, 12, 2, DIM), normal(2, 12, 2, DIM)
    weight = normal(3, 8, 4, DIM)

    def loss(q, k, v, cu_q, cu_kv):
        o = attn.jax.attention(
            q, k, v, layout="bshd", causal="bottom-right", cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv,
            **(dict(max_seqlen_q=4, max_seqlen_kv=5) if compiled else {}))
        return (o * weight).sum(), o

    def expected_loss(q, k, v):
        o = jnp.zeros((8, 4, DIM))
        for (a, b), (c, d) in (((0, 3), (0, 5)), ((3, 7), (6, 10))):
            one = [jnp.swapaxes(x, 0, 1)[None] for x in (q[a:b], k[c:d], v[c:d])]
            o = o.at[a:b].set(jnp.swapaxes(formula(*one, causal="bottom-right")[0][0], 0, 1))
        return (o * weight).sum(), o
    run = jax.grad(loss, (0, 1, 2), has_aux=True)
    gradients, o = (jax.jit(run) if compiled else run)(q, k, v, cu_q, cu_kv)
    expected, expected_o = jax.grad(expected_loss, (0, 1, 2), has_aux=True)(q, k, v)
    close(o, expected_o)
    jax.tree.map(lambda one, other: close(one, other, 1e-4), gradients, expected)


def test_vmap():
    arrays = [jnp.stack([x, -x, 2 * x]) for x in qkv()]
    found = jax.vmap(lambda *x: attn.jax.attention(*x, causal="top-left"))(*arrays)
    for i in range(3):
        close(found[i], formula(*[x[i] for x in arrays], causal="top-left")[0])


def test_nothing_is_copied(monkeypatch):
    seen, original = [], _xla._execute
    monkeypatch.setattr(_xla, "_execute", lambda frame, on_gpu: (seen.append(
        {frame.arguments.buffers[i].contents.data for i in range(3)}), original(frame, on_gpu)))
    arrays = qkv()
    attn.jax.attention(*arrays).block_until_ready()
    assert seen == [{x.unsafe_buffer_pointer() for x in arrays}]


def test_traced_arrays_of_the_cpu_beside_a_gpu(monkeypatch):
    """Where traced arrays lie is not known: a GPU's refusal is not theirs."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    q, k, v = qkv()
    assert (jax.jit(attn.jax.attention)(q, k, v) == attn.jax.attention(q, k, v)).all()
    assert jax.grad(lambda q: attn.jax.attention(q, k, v).sum())(q).shape == q.shape


def test_empty():
    q, k, v = qkv()
    assert attn.jax.attention(q[:, :, :0], k, v).shape == (BATCH, HEADS, 0, 8)
    o, lse = attn.jax.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert (o == 0).all() and (lse == -jnp.inf).all()
    gradient = jax.grad(lambda q: attn.jax.attention(q, k, v).sum())(q[:, :, :0])
    assert gradient.shape == (BATCH, HEADS, 0, DIM)


def test_threads():
    arrays = qkv()
    compiled = jax.jit(lambda s, *x: attn.jax.attention(s * x[0], *x[1:]))
    expected = [compiled(float(i), *arrays) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            found = list(pool.map(lambda i: compiled(float(i), *arrays), range(8)))
            assert all((one == other).all() for one, other in zip(found, expected))


def test_errors():
    q, k, v = qkv()
    for sentence, arguments, options in (
            ("the shape of k", (q, k[..., :8], v), {}),
            ("the dtype of v", (q, k, v.astype(jnp.float16)), {}),
            ("q has dtype int32", (q.astype(jnp.int32), k, v), {}),
            ("heads_kv = 2", (q[:, :3], k, v), {}),
            ("causal is 'left'", (q, k, v), dict(causal="left")),
            ("mask has the shape", (q, k, v), dict(mask=jnp.ones((2, 3), bool))),
            ("the dtype of used_kv is float32", (q, k, v), dict(used_kv=jnp.ones(2))),
            ("the number of dimensions of q", (q[0], k, v), {})):
        for run in (attn.jax.attention, jax.jit(lambda *x: attn.jax.attention(*x, **options))):
            with pytest.raises(attn.InvalidArgument, match=sentence):
                run(*arguments, **(options if run is attn.jax.attention else {}))
    packed = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    cu = jnp.array([0, 5], jnp.int32)
    with pytest.raises(attn.InvalidArgument, match="max_seqlen_q is None"):
        jax.jit(lambda cu: attn.jax.attention(*packed, layout="bshd", cu_seqlens_q=cu,
                                              cu_seqlens_kv=cu))(cu)


def test_an_error_while_it_runs():
    q, k, v = qkv()
    with pytest.raises(Exception, match=r"used_kv\[1\] = 10, expected 0 to 9"):
        attn.jax.attention(q, k, v, used_kv=jnp.array([1, 10], jnp.int32)).block_until_ready()


def test_by_attention():
    q, k, v = qkv()
    o = attn.attention(q, k, v, causal="top-left")
    assert isinstance(o, jax.Array)
    close(o, formula(q, k, v, causal="top-left")[0])
    assert (jax.jit(lambda *x: attn.attention(*x, causal="top-left"))(q, k, v) == o).all()
    written = np.empty((BATCH, HEADS, ROWS, 8), np.float32)
    assert attn.attention(q, k, v, causal="top-left", out=written) is written
    close(written, o)
