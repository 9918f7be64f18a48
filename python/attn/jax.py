# SPDX-License-Identifier: Apache-2.0
"""Attention of JAX arrays on CPUs and NVIDIA GPUs, inside and outside of jax.jit.

    import attn.jax
    o = attn.jax.attention(q, k, v, causal="bottom-right")
    dq = jax.grad(lambda q: attn.jax.attention(q, k, v).sum())(q)

XLA calls the library on its own buffers (_xla.py): nothing is copied. Gradients are those of
attn_backward. jax.vmap computes one entry after the other; use the batch dimension instead.

Invariant: wrong shapes, dtypes and options raise when a function is traced, with the library's
message.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Dict, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from ._arguments import MOST_ROWS, NO_WINDOW, choice, integer, number
from ._arguments import window as window_of
from ._library import (BACKWARD, BF16, CAUSAL, FORWARD, FP16, FP32, LAYOUT, DeviceError,
                       InvalidArgument, Unsupported)
from ._problem import Strides, problem
from ._xla import TARGET, Call, register

__all__ = ["attention"]

Array = Any
_DTYPES = {"float32": FP32, "float16": FP16, "bfloat16": BF16}
_INPUTS = ("q", "k", "v", "bias", "mask", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_kv",
           "used_kv")
_WITH_GRADIENT = {"q": "dq", "k": "dk", "v": "dv", "bias": "d_bias", "sink": "d_sink",
                  "alibi_slopes": "d_alibi_slopes"}

register(jax.ffi)


def is_traced(x: Array) -> bool:
    return isinstance(x, jax.core.Tracer)


class _Form(NamedTuple):
    """A call without its arrays."""
    problem: bytes
    out: Tuple[int, ...]
    lse: Tuple[int, ...]
    packed: bool
    threads: int
    gpu: int  # -1: the CPU
    known: bool  # False: all arrays are traced, and gpu is where they lie by default


def _call(form: _Form, direction: int, inputs: Dict[str, Array],
          results: Dict[str, jax.ShapeDtypeStruct]) -> Dict[str, Array]:
    call = Call(form.threads, direction, (*inputs, *results), form.packed, form.problem)
    try:  # now, so that a refusal raises while tracing
        call.cache(form.gpu).plan(call.problem, None, direction)
    except (DeviceError, Unsupported):
        if form.known or form.gpu < 0:
            raise
        call.cache(-1).plan(call.problem, None, direction)  # the arrays may lie on the CPU
    run = jax.ffi.ffi_call(TARGET, tuple(results.values()), vmap_method="sequential")
    return dict(zip(results, run(*inputs.values(), call=call.text())))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(form: _Form, arrays: Dict[str, Array]) -> Tuple[Array, Array]:
    if 0 in form.out:
        return (jnp.zeros(form.out, arrays["q"].dtype),
                jnp.full(form.lse, -math.inf, jnp.float32))
    found = _call(form, FORWARD, arrays, {
        "o": jax.ShapeDtypeStruct(form.out, arrays["q"].dtype),
        "lse": jax.ShapeDtypeStruct(form.lse, jnp.float32)})
    return found["o"], found["lse"]


def _forward(form: _Form, arrays: Dict[str, Array]) -> Any:
    found = _attention(form, arrays)
    return found, (arrays, *found)


def _backward(form: _Form, kept: Any, gradients: Tuple[Array, Array]) -> Any:
    arrays, o, lse = kept
    wanted = {name: of for name, of in _WITH_GRADIENT.items() if name in arrays}
    if 0 in form.out:
        return ({name: jnp.zeros_like(x) if name in wanted else None
                 for name, x in arrays.items()},)
    found = _call(form, BACKWARD, {**arrays, "o": o, "lse": lse, "d_o": gradients[0]}, {
        of: jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype)
        for name, of in wanted.items()})
    return ({name: found[wanted[name]] if name in wanted else None for name in arrays},)


_attention.defvjp(_forward, _backward)
_compiled = jax.jit(_attention, static_argnums=0)  # so that eager calls are traced once


# ---- arguments ---------------------------------------------------------------------------------


def _expect(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise InvalidArgument(f"{what} is {found}, expected {expected}")


def _dtype(name: str, x: Array) -> int:
    if x.dtype.name not in _DTYPES:
        raise InvalidArgument(f"{name} has dtype {x.dtype.name}, expected float32, float16 or "
                              "bfloat16")
    return _DTYPES[x.dtype.name]


def _dense(shape: Tuple[int, ...]) -> Strides:
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def _along(shape: Tuple[int, ...], bshd: int) -> Strides:
    """(batch, head, row) of a dense array; packed sequences have no batch."""
    *batch, one, two, _ = _dense(shape)
    return (*(batch or (0,)), *((two, one) if bshd else (one, two)))


def _scores(name: str, x: Array, full: Tuple[int, ...]) -> Strides:
    shape = (1,) * (4 - x.ndim) + x.shape
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, full)):
        raise InvalidArgument(f"{name} has the shape {x.shape}, expected one that broadcasts to "
                              f"{full}")
    return tuple(0 if n == 1 else step for n, step in zip(shape, _dense(shape)))


def _longest(name: str, cu_seqlens: Array, given: Optional[int]) -> int:
    if given is None:
        if is_traced(cu_seqlens):
            raise InvalidArgument(f"max_seqlen_{name} is None, expected the longest sequence: "
                                  "lengths are not known while a function is traced")
        given = np.diff(np.asarray(cu_seqlens)).max(initial=0)
    return integer(f"max_seqlen_{name}", given, 0, MOST_ROWS)


def attention(q: Array, k: Array, v: Array, *, causal: Optional[str] = None,
              scale: Optional[float] = None, window: Tuple[int, int] = NO_WINDOW,
              softcap: float = 0.0, alibi: Any = None, bias: Optional[Array] = None,
              mask: Optional[Array] = None, sink: Optional[Array] = None,
              cu_seqlens_q: Optional[Array] = None, cu_seqlens_kv: Optional[Array] = None,
              max_seqlen_q: Optional[int] = None, max_seqlen_kv: Optional[int] = None,
              used_kv: Optional[Array] = None, layout: str = "bhsd", return_lse: bool = False,
              threads: int = 0) -> Any:
    """attn.attention of JAX arrays, with the same meaning of arguments. Under jax.jit options are
    static, and packed sequences need max_seqlen_q and max_seqlen_kv.

    Reverse mode gives gradients of q, k, v, bias, sink and slopes; lse has none.

    >>> import jax, jax.numpy as jnp, attn.jax
    >>> q = jnp.ones((1, 2, 3, 8))
    >>> v = jnp.arange(48.0).reshape(q.shape)
    >>> jax.jit(lambda q, v: attn.jax.attention(q, q, v, causal="top-left"))(q, v)[0, 0, :, 0]
    Array([0., 4., 8.], dtype=float32)
    """
    q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
    devices = [d for x in (q, k, v) if not is_traced(x) for d in x.devices()]
    platforms = {d.platform for d in devices}
    platform = platforms.pop() if len(platforms) == 1 else jax.default_backend()
    if platforms or platform not in ("cpu", "gpu"):
        raise Unsupported(f"q, k and v lie on {sorted(platforms) or platform}, expected a CPU or an "
                          "NVIDIA GPU")
    given: Dict[str, Any] = {"q": q, "k": k, "v": v, "bias": bias, "mask": mask, "sink": sink,
                             "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv,
                             "used_kv": used_kv}
    if alibi is not None and not isinstance(alibi, bool):
        given["alibi_slopes"] = alibi
    arrays = {name: jnp.asarray(given[name]) for name in _INPUTS if given.get(name) is not None}
    dtype = _dtype("q", q)
    _expect("the dtype of k", k.dtype.name, q.dtype.name)
    _expect("the dtype of v", v.dtype.name, q.dtype.name)
    packed = "cu_seqlens_q" in arrays
    _expect("cu_seqlens_kv", "given" if "cu_seqlens_kv" in arrays else None,
            "given" if packed else None)
    for name, x in (("q", q), ("k", k), ("v", v)):
        _expect(f"the number of dimensions of {name}", x.ndim, 4 - packed)
    bshd = choice("layout", layout, LAYOUT)
    head, row = (-2, -3) if bshd else (-3, -2)
    expected = list(q.shape)
    expected[head], expected[row] = k.shape[head], k.shape[row]
    _expect("the shape of k", k.shape, tuple(expected))
    _expect("the shape of v", v.shape, (*k.shape[:-1], v.shape[-1]))
    batch, seq_q, seq_kv = q.shape[0], q.shape[row], k.shape[row]
    if packed:
        batch = arrays["cu_seqlens_q"].shape[0] - 1
        seq_q = _longest("q", cu_seqlens_q, max_seqlen_q)
        seq_kv = _longest("kv", cu_seqlens_kv, max_seqlen_kv)
    heads, full = q.shape[head], (batch, q.shape[head], seq_q, seq_kv)
    for name, kind, shapes in (("cu_seqlens_q", "int32", [(batch + 1,)]),
                               ("cu_seqlens_kv", "int32", [(batch + 1,)]),
                               ("used_kv", "int32", [(batch,)]), ("sink", "float32", [(heads,)]),
                               ("alibi_slopes", "float32", [(heads,), (batch, heads)])):
        if name in arrays:
            _expect(f"the dtype of {name}", arrays[name].dtype.name, kind)
            if arrays[name].shape not in shapes:
                _expect(f"the shape of {name}", arrays[name].shape, shapes[0])
    if "mask" in arrays and arrays["mask"].dtype.name not in ("bool", "uint8"):
        _expect("the dtype of mask", arrays["mask"].dtype.name, "bool")
    out = (*q.shape[:-1], v.shape[-1])
    slopes = arrays.get("alibi_slopes")
    form = _Form(problem(
        dtype=dtype, sizes=(batch, heads, k.shape[head], seq_q, seq_kv, q.shape[-1], v.shape[-1]),
        q=_along(q.shape, bshd), k=_along(k.shape, bshd), v=_along(v.shape, bshd),
        o=_along(out, bshd), scale=None if scale is None else number("scale", scale),
        causal=choice("causal", causal, CAUSAL), window=window_of(window),
        softcap=number("softcap", softcap),
        bias=None if bias is None else (_dtype("bias", arrays["bias"]),
                                        _scores("bias", arrays["bias"], full)),
        mask=None if mask is None else _scores("mask", arrays["mask"], full),
        alibi=None if alibi is None or alibi is False else
        heads if slopes is not None and slopes.ndim == 2 else 0,
        sink=sink is not None, packed=(q.shape[row], k.shape[row]) if packed else None,
        used_kv=used_kv is not None), out,
        (heads, q.shape[row]) if packed else (batch, heads, seq_q), packed, threads,
        -1 if platform == "cpu" else (devices or jax.local_devices())[0].local_hardware_id,
        bool(devices))
    o, lse = _compiled(form, arrays)
    return (o, jax.lax.stop_gradient(lse)) if return_lse else o
