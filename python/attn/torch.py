# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention, computed by libattn.

sdpa() has the signature and the meaning of torch.nn.functional.scaled_dot_product_attention, on
CPUs and NVIDIA GPUs; replace_sdpa() puts it in that function's place. An eager call goes straight
to the library; torch.compile and torch.export see the operator torch.ops.attn.sdpa. Importing this
also adds "attn" to PyTorch's registry of flash attention (_registry.py).

Invariant: what is not supported raises attn.Unsupported with the reason. Nothing falls back unless
replace_sdpa(fallback=True) is in use, which records the reasons.
"""

from __future__ import annotations

import contextlib
import math
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional

from . import _registry
from ._autograd import NO_GRADIENT, attention_lse, functorch_is_active, needs_gradient, train
from ._fast import DTYPES, PLAIN, SDPA, forward
from ._library import InvalidArgument, Unsupported
from ._tangents import refuse_tangents

__all__ = ["Replacement", "replace_sdpa", "sdpa"]


def _slow_any_autocast() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


# Some have no public name. Where one is missing, the public way is taken: right, but slower.
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled",
                                            _slow_any_autocast)
_is_tracing: Callable[[], bool] = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)
_is_compiling = torch.compiler.is_compiling
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
MOST_REASONS = 64  # that replace_sdpa() keeps


# ---- what is supported -----------------------------------------------------------------------


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p > 0.0:
        raise Unsupported(f"dropout_p is {dropout_p}, expected 0: there is no dropout")
    if dropout_p < 0.0:
        raise InvalidArgument(f"dropout_p is {dropout_p}, expected 0")


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
           attn_mask: Optional[torch.Tensor], is_causal: bool) -> None:
    if query.dtype not in DTYPES:
        raise Unsupported(f"query has dtype {query.dtype}, expected torch.float32, torch.float16 "
                          "or torch.bfloat16")
    if query.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"query lies on {query.device}, expected cpu or cuda")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise InvalidArgument(f"{name} is {tensor.dtype} on {tensor.device}, expected "
                                  f"{query.dtype} on {query.device} as of query")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.is_nested or tensor.layout != torch.strided:
            raise Unsupported(f"{name} is {'nested' if tensor.is_nested else tensor.layout}, "
                              "expected a plain tensor")
        if tensor.dim() < 2:
            raise InvalidArgument(f"{name} has {tensor.dim()} dimensions, expected at least 2")
    if query.shape[-1] != key.shape[-1]:
        raise InvalidArgument(f"key has the last dimension {key.shape[-1]}, expected "
                              f"{query.shape[-1]} as of query")
    if key.shape[-2] != value.shape[-2]:
        raise InvalidArgument(f"value has {value.shape[-2]} rows, expected {key.shape[-2]} as of "
                              "key")
    if attn_mask is None:
        return
    if is_causal:
        raise InvalidArgument("is_causal is True and there is an attn_mask, expected one of them")
    if attn_mask.dtype != torch.bool and attn_mask.dtype not in DTYPES:
        raise Unsupported(f"attn_mask has dtype {attn_mask.dtype}, expected torch.bool, "
                          "torch.float32, torch.float16 or torch.bfloat16")
    if attn_mask.is_nested or attn_mask.layout != torch.strided:
        raise Unsupported(f"attn_mask is {'nested' if attn_mask.is_nested else attn_mask.layout}, "
                          "expected a plain tensor")
    if attn_mask.device != query.device:
        raise InvalidArgument(f"attn_mask lies on {attn_mask.device}, expected {query.device}")


def _check_numbers(query: torch.Tensor, scale: Optional[float]) -> None:
    if query.shape[-1] == 0:
        raise Unsupported("query has the last dimension 0, expected at least 1")
    if scale is not None and not math.isfinite(scale):
        raise Unsupported(f"scale is {scale}, expected a finite number or None")


# ---- shapes ----------------------------------------------------------------------------------


class _Shapes(NamedTuple):
    """Leading dimensions after broadcasting: those of the batch, and the heads."""
    batch: Tuple[int, ...]
    heads_q: int
    heads_kv: int


def _shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            enable_gqa: bool) -> _Shapes:
    leads = [t.shape[:-2] for t in (query, key, value)]
    if enable_gqa:
        if min(len(lead) for lead in leads) < 1:
            raise InvalidArgument("enable_gqa is True, expected query, key and value with a "
                                  "dimension of heads")
        heads_q, heads_k, heads_v = (lead[-1] for lead in leads)
        if heads_k != heads_v or heads_k < 1 or heads_q % heads_k:
            raise InvalidArgument(f"query, key and value have {heads_q}, {heads_k} and {heads_v} "
                                  "heads, expected the first to be a multiple of two equal ones")
        leads = [lead[:-1] for lead in leads]
    try:
        lead = tuple(torch.broadcast_shapes(*leads))
    except RuntimeError:
        shapes = [tuple(t.shape) for t in (query, key, value)]
        raise InvalidArgument(f"query, key and value have the shapes {shapes[0]}, {shapes[1]} and "
                              f"{shapes[2]}, expected leading dimensions that broadcast"
                              f"{'' if enable_gqa else ' (heads in groups: enable_gqa=True)'}") \
            from None
    if enable_gqa:
        return _Shapes(lead, heads_q, heads_k)
    heads = lead[-1] if lead else 1
    return _Shapes(lead[:-1], heads, heads)


def _output(query: torch.Tensor, value: torch.Tensor, shapes: _Shapes) -> torch.Tensor:
    """A new tensor whose heads and rows lie in memory in the order of query's."""
    length, dim = query.shape[-2], value.shape[-1]
    has_heads = max(query.dim(), value.dim()) > 2
    heads = (shapes.heads_q,) if has_heads else ()
    if query.dim() == 4 and len(shapes.batch) == 1 and query.stride(1) < query.stride(2):
        return query.new_empty((*shapes.batch, length, *heads, dim)).transpose(-3, -2)
    return query.new_empty((*shapes.batch, *heads, length, dim))


def _four(tensor: torch.Tensor, batch: Tuple[int, ...], heads: int) -> torch.Tensor:
    """As (batch, heads, rows, columns). More batch dimensions than one are merged, which copies
    where strides do not allow it; so do rows whose elements do not lie side by side."""
    if tensor.dim() != 4 or len(batch) != 1:
        tensor = tensor.expand(*batch, heads, *tensor.shape[-2:])
        tensor = tensor.reshape(math.prod(batch), heads, *tensor.shape[-2:])
    elif tensor.shape[0] != batch[0] or tensor.shape[1] != heads:
        tensor = tensor.expand(batch[0], heads, -1, -1)
    return tensor


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _spread(attn_mask: torch.Tensor, full: Tuple[int, ...], shapes: _Shapes) -> torch.Tensor:
    """The mask, broadcast without a copy to (batch, heads, rows, keys)."""
    wanted = (*shapes.batch, shapes.heads_q, *full)
    # Of tensors without heads a mask may still have a dimension of one in front.
    while attn_mask.dim() > len(wanted) and attn_mask.shape[0] == 1:
        attn_mask = attn_mask[0]
    try:
        return _four(attn_mask.expand(wanted), shapes.batch, shapes.heads_q)
    except RuntimeError:
        raise InvalidArgument(f"attn_mask has the shape {tuple(attn_mask.shape)}, expected one "
                              f"that broadcasts to {wanted}") from None


# ---- the call --------------------------------------------------------------------------------


def _slow(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
          attn_mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
          enable_gqa: bool) -> torch.Tensor:
    """Whatever has to be broadcast, merged or copied to have four dimensions, and what is wrong."""
    _check(query, key, value, attn_mask, is_causal)
    try:
        for tensor in (query, key, value, attn_mask):
            if tensor is not None:
                tensor.data_ptr()
    except RuntimeError as error:
        raise Unsupported("query, key, value or attn_mask has no memory of its own, as within "
                          f"torch.vmap: {error}") from error
    shapes = _shapes(query, key, value, enable_gqa)
    out = _output(query, value, shapes)
    if out.numel() == 0:
        return out
    _check_numbers(query, scale)
    q = _rows(_four(query, shapes.batch, shapes.heads_q))
    k = _rows(_four(key, shapes.batch, shapes.heads_kv))
    v = _rows(_four(value, shapes.batch, shapes.heads_kv))
    o = out if out.dim() == 4 else out.view(*q.shape[:3], v.shape[3])
    if attn_mask is not None:
        attn_mask = _spread(attn_mask, (query.shape[-2], key.shape[-2]), shapes)
    causal = "top-left" if is_causal else None
    if forward(q, k, v, causal, scale, attn_mask, None, SDPA, True, None, o) is None:
        from ._attention import attention  # it names what is wrong
        mask = attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else None
        attention(q, k, v, causal=causal, scale=scale, bias=attn_mask if mask is None else None,
                  mask=mask, out=o, threads=torch.get_num_threads())
    return out


def _slow_train(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                attn_mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
                enable_gqa: bool, traced: bool) -> torch.Tensor:
    """As _slow, by operations that have gradients themselves. traced: as an operator."""
    _check(query, key, value, attn_mask, is_causal)
    shapes = _shapes(query, key, value, enable_gqa)
    out = _output(query, value, shapes)
    if out.numel() == 0:
        return out + 0 * (query.sum() + key.sum() + value.sum())  # whose gradients are 0
    _check_numbers(query, scale)
    q = _rows(_four(query, shapes.batch, shapes.heads_q))
    k = _rows(_four(key, shapes.batch, shapes.heads_kv))
    v = _rows(_four(value, shapes.batch, shapes.heads_kv))
    bias = mask = None
    if attn_mask is not None:
        spread = _spread(attn_mask, (query.shape[-2], key.shape[-2]), shapes)
        if attn_mask.dim() > 4 or len(shapes.batch) > 1:
            attn_mask = spread
        # Else as it is: the library sums the gradient of what it broadcasts.
        bias, mask = (None, attn_mask) if attn_mask.dtype == torch.bool else (attn_mask, None)
    causal = "top-left" if is_causal else None
    if traced:
        found = attention_lse(q, k, v, bias, None, mask, None, causal, scale, -1, -1, 0.0)[0]
    else:
        found = train(q, k, v, causal, scale, bias, mask)
    if found is None:
        raise Unsupported(NO_GRADIENT)
    return found if found.shape == out.shape else found.view(out.shape)


@torch.library.custom_op("attn::sdpa", mutates_args=(), schema=(
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, "
    "bool enable_gqa) -> Tensor"))
def _operator(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attn_mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
              enable_gqa: bool) -> torch.Tensor:
    refuse_tangents(query=query, key=key, value=value, attn_mask=attn_mask)
    out = forward(query, key, value, "top-left" if is_causal else None, scale, attn_mask, None,
                  SDPA, enable_gqa, None)
    if out is None:
        out = _slow(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return out


@_operator.register_fake
def _(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    _check(query, key, value, attn_mask, is_causal)
    return _output(query, value, _shapes(query, key, value, enable_gqa))


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
         attn_mask: Optional[torch.Tensor] = None, dropout_p: float = 0.0,
         is_causal: bool = False, scale: Optional[float] = None,
         enable_gqa: bool = False) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by libattn.

    float32, float16 and bfloat16 on CPUs and NVIDIA GPUs, there on the current stream; boolean
    masks (True is visible) and additive ones, broadcast; leading dimensions broadcast; any strides.
    Rows that see no key are 0. On the CPU it uses torch.get_num_threads() threads.

    It has gradients, also of an additive mask. Raises attn.Unsupported for dropout_p > 0, second
    derivatives, forward mode, and other dtypes.

    >>> import torch, attn.torch
    >>> q, k, v = torch.randn(3, 1, 4, 10, 16).unbind(0)
    >>> ours = attn.torch.sdpa(q, k, v, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.testing.assert_close(ours, theirs)
    """
    if not (_is_dynamo_compiling() or dropout_p or _any_autocast()):
        out = forward(query, key, value, "top-left" if is_causal else None, scale, attn_mask, None,
                      SDPA, enable_gqa, None)
        if out is not None:
            return out
        tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        if not (_is_compiling() or _is_tracing()) \
                and all(type(x) in PLAIN and not x.is_neg() for x in tensors):
            refuse_tangents(query=query, key=key, value=value, attn_mask=attn_mask)
            _refuse_dropout(dropout_p)
            if not needs_gradient(*tensors) and not functorch_is_active():
                return _slow(query, key, value, attn_mask, is_causal, scale, enable_gqa)
            boolean = attn_mask is not None and attn_mask.dtype is torch.bool
            out = None
            if attn_mask is None or not is_causal:
                out = train(query, key, value, "top-left" if is_causal else None, scale,
                            None if boolean else attn_mask, attn_mask if boolean else None,
                            grouped=enable_gqa)
            if out is None:
                out = _slow_train(query, key, value, attn_mask, is_causal, scale, enable_gqa, False)
            return out
    return _traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _traced(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            attn_mask: Optional[torch.Tensor], dropout_p: float, is_causal: bool,
            scale: Optional[float], enable_gqa: bool) -> torch.Tensor:
    """sdpa through the dispatcher: under a compiler, a tracer, autocast or a subclass of Tensor,
    and for tensors with the negative bit set, which PyTorch resolves for operators."""
    refuse_tangents(query=query, key=key, value=value, attn_mask=attn_mask)
    _refuse_dropout(dropout_p)
    if torch.is_autocast_enabled("cuda" if query.is_cuda else "cpu"):
        return _autocast(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if query.is_nested:
        raise Unsupported("query is nested, expected a plain tensor")
    if needs_gradient(query, key, value, attn_mask):
        return _slow_train(query, key, value, attn_mask, is_causal, scale, enable_gqa, True)
    return _operator(query, key, value, attn_mask, is_causal, scale, enable_gqa)


def _autocast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attn_mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
              enable_gqa: bool) -> torch.Tensor:
    """PyTorch's function is one of those that torch.autocast gives its lower precision."""
    kind = "cuda" if query.is_cuda else "cpu"
    lower = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        query, key, value = (t.to(lower) if t.dtype in DTYPES else t for t in (query, key, value))
        if attn_mask is not None and attn_mask.dtype in DTYPES:
            attn_mask = attn_mask.to(lower)
        return sdpa(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)


# ---- in an unmodified model ------------------------------------------------------------------


class Replacement:
    """What replace_sdpa() saw. Calls inside a compiled graph are not counted, nor their reasons
    kept: torch.compile asks once, when it traces. `compiled` says that there were some."""

    def __init__(self) -> None:
        self.calls = 0
        self.compiled = False
        self.by_pytorch = 0                # of these, the calls that went to PyTorch's function
        self.reasons: Dict[str, int] = {}  # and why: how many for each of the first MOST_REASONS

    def __repr__(self) -> str:
        more = "; those of compiled graphs are not counted" if self.compiled else ""
        return f"<{self.calls} calls, {self.by_pytorch} of them by PyTorch{more}>"

    def _note(self, reason: str) -> None:
        self.by_pytorch += 1
        if reason in self.reasons or len(self.reasons) < MOST_REASONS:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1


@contextlib.contextmanager
def replace_sdpa(fallback: bool = False) -> Iterator[Replacement]:
    """Within it torch.nn.functional.scaled_dot_product_attention is sdpa, for all threads.

    fallback: calls that sdpa does not support go to PyTorch's own function, and their reasons, each
    with its number, into what the context gives; without it they raise.

    Code that took the function out of its module before (from torch.nn.functional import ...) keeps
    PyTorch's, and so does what does not call it: the fast path of nn.MultiheadAttention in eval
    mode (torch.backends.mha.set_fastpath_enabled(False) turns that off).

    >>> import torch, attn.torch
    >>> q = torch.zeros(1, 2, 3, 8)
    >>> with attn.torch.replace_sdpa(fallback=True) as seen:
    ...     o = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    ...     o = torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
    >>> seen
    <2 calls, 1 of them by PyTorch>
    >>> seen.reasons
    {'dropout_p is 0.1, expected 0: there is no dropout': 1}
    """
    with replaced(sdpa, fallback) as seen:
        yield seen


@contextlib.contextmanager
def replaced(function: Callable[..., torch.Tensor],
             fallback: bool = False) -> Iterator[Replacement]:
    """As replace_sdpa(), by any function with sdpa's arguments."""
    original = torch.nn.functional.scaled_dot_product_attention
    seen = Replacement()

    def scaled_dot_product_attention(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            attn_mask: Optional[torch.Tensor] = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: Optional[float] = None,
            enable_gqa: bool = False) -> torch.Tensor:
        compiling = _is_compiling()
        if compiling:
            seen.compiled = True  # not read: a graph is compiled again when what it reads changes
        else:
            seen.calls += 1
        if not fallback:
            return function(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        try:
            return function(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        except Unsupported as error:
            if not compiling:
                seen._note(str(error))
        grouped = {"enable_gqa": True} if enable_gqa else {}  # PyTorch 2.4 does not know it
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **grouped)

    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield seen
    finally:
        torch.nn.functional.scaled_dot_product_attention = original


_registry.register()
