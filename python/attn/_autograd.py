# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention on tensors of PyTorch: attn_backward as a part of autograd.

Eager calls, and torch.func through them, take an autograd.Function; a compiler sees the operators
torch.ops.attn.attention_lse and attention_backward. Forward keeps q, k, v, o and LSE; backward
recomputes P from them.

Invariant: a call that would lose a gradient raises attn.Unsupported with the reason.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from . import _plans
from ._arguments import NO_WINDOW
from ._fast import (ATTENTION, SDPA, TRAIN, Unusual, _form, _get_num_threads, _new_backward,
                    allocator, forward, gradient_strides, run)
from ._library import (TENSORS_SIZE, AttnError, Unsupported, pack_gradients, pack_tensors,
                       tensors_with_offsets)

Tensor = torch.Tensor
_is_grad_enabled = torch.is_grad_enabled
functorch_is_active = torch._C._are_functorch_transforms_active

NO_VMAP = ("an input has no memory of its own within torch.vmap: make its dimension one of the "
           "batch, and call attention once")
NO_GRADIENT = ("an input requires a gradient, which is computed neither within forward mode nor "
               "for tensors like these: call it on plain, contiguous ones")
NO_SECOND = ("the gradient of attention has no gradient of its own: a second derivative is not "
             "supported, expected one backward pass")


def needs_gradient(*tensors: Any) -> bool:
    if _is_grad_enabled():
        for x in tensors:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


# ---- one call of attn_backward -----------------------------------------------------------------


def _dense(x: Tensor) -> Tuple[Tensor, Tensor]:
    """A bias, and a new tensor for its gradient with the same strides. An expanded one is copied:
    the gradient of each element is wanted, not their sum."""
    gradient = torch.empty_like(x)
    if gradient.stride() != x.stride():
        x = x.contiguous()
        gradient = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return x, gradient


def backward(d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
             bias: Optional[Tensor], alibi: Optional[Tensor], sink: Optional[Tensor],
             mask: Optional[Tensor], used_kv: Optional[Tensor], cu_q: Optional[Tensor],
             cu_kv: Optional[Tensor], offsets: Optional[Tensor], options: Tuple[Any, ...],
             wanted: Tuple[bool, bool, bool]) -> Tuple[Optional[Tensor], ...]:
    """dq, dk, dv, and where wanted those of bias, alibi and sink. options: as in _Attention."""
    (causal, scale, form, grouped, threads, layout, window, softcap, usual, max_q, max_kv,
     offset) = options
    steps = d_o.stride()
    if 0 in steps or steps[-1] != 1 or d_o.is_neg():
        d_o = d_o.resolve_neg().contiguous()  # of sum() it is one number, expanded
        steps = d_o.stride()
    gpu = q.get_device()
    if gpu >= 0 and (d_o.data_ptr() % 16
                     or any(step * d_o.element_size() % 16 for step in steps[:-1])):
        d_o = d_o.clone(memory_format=torch.contiguous_format)  # kernels load 16 bytes at a time
        steps = d_o.stride()
    d_bias = d_alibi = d_sink = None
    if wanted[0]:
        bias, d_bias = _dense(bias)
    if wanted[1]:
        d_alibi = torch.empty_like(alibi)
    if wanted[2]:
        d_sink = torch.empty_like(sink)
    rare, at_others = None, (0,) * 7
    if not (bias is mask is alibi is sink is used_kv is cu_q is None and window == NO_WINDOW
            and softcap == 0.0 and layout == "bhsd" and not usual and offsets is None
            and not offset):
        others = bias, mask, alibi, sink, cu_q, cu_kv, used_kv
        rare = (None, layout, window, softcap, usual, max_q, max_kv,
                tuple([None if x is None else _form(x, gpu) for x in others]))
        at_others = [0 if x is None else x.data_ptr() for x in others]
        if offset or offsets is not None:
            rare += ((None, "nhd", None, None, offset,
                      None if offsets is None else _form(offsets, gpu)),)
    at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    at_o, at_do = o.data_ptr(), d_o.data_ptr()
    calls = _plans.calls
    key = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, gpu,
           (at_q | at_k | at_v | at_o | at_do) & 15, causal, scale, form, grouped,
           _get_num_threads() if threads is None and gpu < 0 else threads, rare, o.stride(), steps)
    plan, forms = calls.get(key) or _new_backward(calls, key)
    empty = allocator(gpu)
    dq, dk, dv = [empty(shape, strides, q.dtype) for shape, strides in forms]
    if cu_q is not None:  # rows of no sequence are not written
        for x in (dq, dk, dv):
            x.zero_()
    at_gradients = pack_gradients(
        *at_others, at_do, dq.data_ptr(), dk.data_ptr(), dv.data_ptr(),
        0 if d_bias is None else d_bias.data_ptr(), 0 if d_sink is None else d_sink.data_ptr(),
        0 if d_alibi is None else d_alibi.data_ptr())
    tensors = pack_tensors(TENSORS_SIZE, at_q, at_k, at_v, at_o, lse.data_ptr(), at_gradients)
    run(plan, gpu, tensors_with_offsets(tensors, 0 if offsets is None else offsets.data_ptr()),
        empty)
    return dq, dk, dv, d_bias, d_alibi, d_sink


# ---- eager -------------------------------------------------------------------------------------


def _refuse_vmap(*_: Any) -> Any:
    raise Unsupported(NO_VMAP)


class _Attention(torch.autograd.Function):
    """(o, lse), of which o has a gradient. options: all that is no tensor."""

    vmap = staticmethod(_refuse_vmap)

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        if functorch_is_active():
            return super().apply(*arguments)
        # What that ends with, without the inspection of a signature.
        return super(torch.autograd.Function, cls).apply(*arguments)

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], alibi: Optional[Tensor],
                sink: Optional[Tensor], mask: Optional[Tensor], used_kv: Optional[Tensor],
                cu_q: Optional[Tensor], cu_kv: Optional[Tensor], offsets: Optional[Tensor],
                options: Tuple[Any, ...]) -> Tuple[Tensor, Tensor]:
        (causal, scale, form, grouped, threads, layout, window, softcap, usual, max_q,
         max_kv, offset) = options
        found = forward(q, k, v, causal, scale, bias, mask, form, grouped, threads, None, layout,
                        window, softcap, usual or alibi, sink, used_kv, cu_q, cu_kv, max_q, max_kv,
                        True, offset=offset, offsets=offsets)
        if found is None:
            raise Unusual
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
        q, k, v, *others, options = inputs
        ctx.save_for_backward(q, k, v, *output, *others)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.options = options

    @staticmethod
    def backward(ctx: Any, d_o: Optional[Tensor], _: None) -> Tuple[Optional[Tensor], ...]:
        if d_o is None:
            return (None,) * 12
        arguments = d_o, *ctx.saved_tensors, ctx.options, ctx.needs_input_grad[3:6]
        found = None
        if not (_is_grad_enabled() or functorch_is_active()):
            try:
                found = backward(*arguments)
            except (AttnError, torch.OutOfMemoryError):
                raise
            except RuntimeError:  # a tensor of torch.func, whose memory is that of another one
                pass
        return (*(found or _Gradients.apply(*arguments)), *(None,) * 6)


class _Gradients(torch.autograd.Function):
    """backward(), as a function that autograd sees: it has no gradient."""

    vmap = staticmethod(_refuse_vmap)

    @staticmethod
    def forward(*arguments: Any) -> Tuple[Optional[Tensor], ...]:
        try:
            return backward(*arguments)
        except (AttnError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            raise Unsupported(f"{NO_VMAP} ({error})") from error

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Any, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(NO_SECOND)


def train(q: Tensor, k: Tensor, v: Tensor, causal: Optional[str], scale: Optional[float],
          bias: Optional[Tensor] = None, mask: Optional[Tensor] = None,
          sink: Optional[Tensor] = None, used_kv: Optional[Tensor] = None,
          window: Tuple[int, int] = NO_WINDOW, softcap: float = 0.0,
          grouped: bool = True) -> Optional[Tensor]:
    """As forward() of _fast.py with the form SDPA, and with gradients; None likewise."""
    try:
        return _Attention.apply(q, k, v, bias, None, sink, mask, used_kv, None, None, None, (
            causal, scale, SDPA + TRAIN, grouped, None, "bhsd", window, softcap, False, None,
            None, 0))[0]
    except Unusual:
        return None


def _as_tensor(x: Any) -> Any:
    """Of a list of lengths, as attention() takes it on the CPU."""
    if x is None or isinstance(x, Tensor):
        return x
    found = torch.as_tensor(x)
    return found if found.is_floating_point() else found.to(torch.int32)


def attention(q: Tensor, k: Any, v: Any, causal: Any, scale: Any, window: Any, softcap: Any,
              alibi: Any, bias: Any, mask: Any, sink: Any, cu_q: Any, cu_kv: Any, max_q: Any,
              max_kv: Any, used_kv: Any, layout: str, threads: Any, offset: int = 0,
              offsets: Any = None) -> Optional[Tuple[Tensor, Tensor]]:
    """out and lse of attn.attention; None: it is wrong or has no elements."""
    try:
        cu_q, cu_kv, used_kv, offsets = (_as_tensor(x) for x in (cu_q, cu_kv, used_kv, offsets))
        if cu_q is not None and cu_kv is not None:
            max_q, max_kv = (int((cu[1:] - cu[:-1]).max()) if most is None else most
                             for cu, most in ((cu_q, max_q), (cu_kv, max_kv)))
        usual = alibi is True
        return _Attention.apply(
            q, k, v, bias, None if usual or alibi is False else alibi, sink, mask, used_kv, cu_q,
            cu_kv, offsets, (causal, scale, ATTENTION + TRAIN, True, threads, layout, window,
                             softcap, usual, max_q, max_kv, offset))
    except (Unusual, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, Unsupported):
            raise
        return None


# ---- what a compiler sees ----------------------------------------------------------------------

_OPTIONS = ("Tensor? bias, Tensor? sink, Tensor? mask, Tensor? used_kv, str? causal, float? scale, "
            "SymInt left, SymInt right, float softcap")


@torch.library.custom_op("attn::attention_lse", mutates_args=(), schema=(
    f"(Tensor query, Tensor key, Tensor value, {_OPTIONS}) -> (Tensor, Tensor)"))
def attention_lse(query, key, value, bias, sink, mask, used_kv, causal, scale, left, right,
                  softcap):
    found = forward(query, key, value, causal, scale, bias, mask, SDPA + TRAIN, True, None, None,
                    "bhsd", (left, right), softcap, None, sink, used_kv, want_lse=True)
    if found is None:
        from ._attention import attention as general  # it names what is wrong
        found = general(query, key, value, causal=causal, scale=scale, bias=bias, mask=mask,
                        sink=sink, used_kv=used_kv, window=(left, right), softcap=softcap,
                        return_lse=True, threads=_get_num_threads())
    return found


@attention_lse.register_fake
def _(query, key, value, *_):
    batch, heads, rows, _ = shape = (*query.shape[:3], value.shape[3])
    return (query.new_empty_strided(shape, gradient_strides(shape, query.stride())),
            query.new_empty((batch, heads, rows), dtype=torch.float32))


@torch.library.custom_op("attn::attention_backward", mutates_args=(), schema=(
    f"(Tensor d_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, {_OPTIONS}, "
    "bool of_bias, bool of_sink) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"))
def attention_backward(d_out, query, key, value, out, lse, bias, sink, mask, used_kv, causal, scale,
                       left, right, softcap, of_bias, of_sink):
    options = (causal, scale, SDPA + TRAIN, True, None, "bhsd", (left, right), softcap, False, None,
               None, 0)
    dq, dk, dv, d_bias, _, d_sink = backward(
        d_out, query, key, value, out, lse, bias, None, sink, mask, used_kv, None, None, None,
        options, (of_bias, False, of_sink))
    nothing = d_out.new_empty(0)
    return (dq, dk, dv, nothing if d_bias is None else d_bias,
            nothing.clone() if d_sink is None else d_sink)


@attention_backward.register_fake
def _(d_out, query, key, value, out, lse, bias, sink, mask, used_kv, causal, scale, left, right,
      softcap, of_bias, of_sink):
    return (*[x.new_empty_strided(x.shape, gradient_strides(x.shape, x.stride()))
              for x in (query, key, value)],
            _dense(bias)[1] if of_bias else d_out.new_empty(0),
            torch.empty_like(sink) if of_sink else d_out.new_empty(0))


def _save(ctx, inputs, output):
    query, key, value, *tensors, causal, scale, left, right, softcap = inputs
    ctx.save_for_backward(query, key, value, *output, *tensors)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.options = causal, scale, left, right, softcap


def _differentiate(ctx, d_out, _):
    if d_out is None:
        return (None,) * 12
    needs = ctx.needs_input_grad
    dq, dk, dv, d_bias, d_sink = attention_backward(d_out, *ctx.saved_tensors, *ctx.options,
                                                    needs[3], needs[4])
    return (dq, dk, dv, d_bias if needs[3] else None, d_sink if needs[4] else None, *(None,) * 7)


def _refuse_second(ctx, *_):
    raise Unsupported(NO_SECOND)


attention_lse.register_autograd(_differentiate, setup_context=_save)
attention_backward.register_autograd(_refuse_second)
