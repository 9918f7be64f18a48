# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention, computed by libattn.

sdpa() has the signature and the meaning of torch.nn.functional.scaled_dot_product_attention, on
CPUs and NVIDIA GPUs; replace_sdpa() puts it in that function's place. An eager call goes straight
to the library; torch.compile and torch.export see the operator torch.ops.attn.sdpa.

Invariant: what is not supported raises attn.Unsupported with the reason. Nothing falls back unless
replace_sdpa(fallback=True) was asked to, and that keeps the reasons.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.autograd.forward_ad as _forward_ad
import torch.nn.functional

from . import _library, _plans
from ._library import TENSORS_SIZE, AttnError, InvalidArgument, Unsupported, pack_four
from ._plans import Plan
from ._problem import Key, alignment_of, free_strides, plan_for
from ._tangents import refuse_tangents

__all__ = ["Replacement", "replace_sdpa", "sdpa"]

_DTYPES = {torch.float32: _library.FP32, torch.float16: _library.FP16,
           torch.bfloat16: _library.BF16}
_PLAIN = (torch.Tensor, torch.nn.Parameter)

# ---- functions of PyTorch that cost little ---------------------------------------------------
#
# Some have no public name. Where one is missing, the public way is taken: right, but slower.


def _slow_stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


def _slow_any_autocast() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _slow_stream)
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled",
                                            _slow_any_autocast)
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing",
                                            torch.cuda.is_current_stream_capturing)
_is_tracing: Callable[[], bool] = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)
_is_compiling = torch.compiler.is_compiling
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_get_num_threads = torch.get_num_threads


def _maker(device: torch.device) -> Callable[..., torch.Tensor]:
    """torch.empty_strided(shape, strides, dtype) there; inductor's has no dispatcher in between.
    A GPU's gives memory of whichever GPU is the current one."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found = getattr(guards, f"_empty_strided_{device.type}", None)
    return found or functools.partial(_slow_empty, device)


def _slow_empty(device: torch.device, shape: Tuple[int, ...], strides: Tuple[int, ...],
                dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


_Guard = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]


def _guard(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> _Guard:
    """A function that tells whether three tensors are like these, by the guards of torch.compile:
    types, dtypes, devices, shapes, strides and requires_grad, and no mode (autocast, tracing, vmap,
    dispatch to Python) but those that are on now; and whether two are the same. Not for nested
    tensors: such a guard cannot raise, and ends the process."""
    distinct = {id(tensor): tensor for tensor in (query, key, value)}.values()
    are_like = torch._C._dynamo.guards.TensorGuards(
        *distinct, dynamic_dims_sizes=None, dynamic_dims_strides=None).check  # all to be distinct
    if len(distinct) == 3:
        return are_like
    if len(distinct) == 1:
        return lambda q, k, v: q is k and k is v and are_like(q)
    if key is value:
        return lambda q, k, v: k is v and are_like(q, k)
    if query is key:
        return lambda q, k, v: q is k and are_like(q, v)
    return lambda q, k, v: q is v and are_like(q, k)


def _guards_tell() -> bool:
    """Whether they are there, and see what they are to see."""
    try:
        with torch.inference_mode(False), torch.no_grad():
            one, two, three = (torch.zeros(2, 3, 4, 4) for _ in range(3))
            are_like = _guard(one, two, three)
            others = (two[:1], two.mT, two[..., :3], two[0], two.half(), two.to("meta"),
                      two.clone().requires_grad_(), torch._neg_view(two), one)
            with torch.autocast("cpu", torch.bfloat16):
                tell = not are_like(one, two, three)
            return (tell and are_like(three, two, one) is True
                    and not any(are_like(one, other, three) for other in others))
    except Exception:  # of whatever PyTorch may have in their place some day
        return False


_have_guards = _guards_tell()


# ---- what may be asked -----------------------------------------------------------------------


def _refuse_training(dropout_p: float, *tensors: Optional[torch.Tensor]) -> None:
    if dropout_p > 0.0:
        raise Unsupported(f"dropout_p is {dropout_p}, expected 0: there is no dropout")
    if dropout_p < 0.0:
        raise InvalidArgument(f"dropout_p is {dropout_p}, expected 0")
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise Unsupported("an input requires a gradient, and there is no backward pass yet: call "
                          "it under torch.no_grad() or torch.inference_mode()")


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
           attn_mask: Optional[torch.Tensor], is_causal: bool) -> None:
    if query.dtype not in _DTYPES:
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
    if attn_mask.dtype != torch.bool and attn_mask.dtype not in _DTYPES:
        raise Unsupported(f"attn_mask has dtype {attn_mask.dtype}, expected torch.bool, "
                          "torch.float32, torch.float16 or torch.bfloat16")
    if attn_mask.is_nested or attn_mask.layout != torch.strided:
        raise Unsupported(f"attn_mask is {'nested' if attn_mask.is_nested else attn_mask.layout}, "
                          "expected a plain tensor")
    if attn_mask.device != query.device:
        raise InvalidArgument(f"attn_mask lies on {attn_mask.device}, expected {query.device}")


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


def _bias(attn_mask: torch.Tensor, full: Tuple[int, ...], shapes: _Shapes) -> torch.Tensor:
    """What is added to the scores, broadcast without a copy to (batch, heads, rows, keys)."""
    if attn_mask.dtype == torch.bool:
        hidden = ~attn_mask
        attn_mask = torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, -math.inf)
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


def _device(tensor: torch.Tensor) -> str:
    return "cpu" if tensor.device.type == "cpu" else f"cuda:{tensor.device.index or 0}"


def _plan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
          bias: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
          alignment: int) -> Plan:
    batch, heads_q, seq_q, dim = q.shape
    seq_kv, heads_kv = k.shape[2], k.shape[1]
    if scale is not None and not math.isfinite(scale):
        raise Unsupported(f"scale is {scale}, expected a finite number or None")
    return plan_for(Key(
        _device(q), torch.get_num_threads() if not q.is_cuda else 0, None, _DTYPES[q.dtype],
        (batch, heads_q, heads_kv, seq_q, seq_kv, dim, v.shape[3]),
        free_strides(q.shape[:3], q.stride()), free_strides(k.shape[:3], k.stride()),
        free_strides(v.shape[:3], v.stride()), free_strides(o.shape[:3], o.stride()), scale,
        int(is_causal), bias=None if bias is None else (_DTYPES[bias.dtype], tuple(bias.stride())),
        alignment=alignment))


_Allocator = Callable[[int], Tuple[torch.Tensor, int]]


def _allocate(device: torch.device, size: int) -> Tuple[torch.Tensor, int]:
    memory = torch.empty(size, dtype=torch.uint8, device=device)
    return memory, memory.data_ptr()


def _launch(plan: Plan, tensors: bytes, gpu: int, allocate: _Allocator) -> None:
    """gpu: its number, or -1: the CPU."""
    if gpu < 0:
        plan.forward_on_cpu(tensors)
    elif plan.size and _is_capturing():
        # A graph may be replayed beside other calls: it has its own workspace, from its own pool.
        workspace = allocate(plan.size)
        plan.forward(tensors, workspace[1], _stream(gpu))
    else:
        plan.forward_on_stream(tensors, _stream(gpu), allocate)


class _Known(NamedTuple):
    """A call that was seen before and can go straight to its plan."""
    plan: Plan
    make: Callable[..., torch.Tensor]
    shape: Tuple[int, ...]    # of the output
    strides: Tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    gpu: int                  # its number; -1: the CPU
    allocate: _Allocator      # of workspaces

    def output(self) -> torch.Tensor:
        out = self.make(self.shape, self.strides, self.dtype)
        if self.gpu >= 0 and out.get_device() != self.gpu:
            out = _slow_empty(self.device, self.shape, self.strides, self.dtype)
        return out


# By all that _slow_forward looks at where there is no mask and nothing is to be reshaped.
_known: Dict[Tuple[Any, ...], _Known] = {}
_MOST_KNOWN = 1024

# Functions of query, key, value, is_causal, scale and enable_gqa for the last few of them: each
# computes a call like its own and answers None to others. Never changed, only replaced: other
# threads may be looking through it.
_Shortcut = Callable[..., Optional[torch.Tensor]]
_recent: Tuple[_Shortcut, ...] = ()
_MOST_RECENT = 4


def _forget() -> None:
    global _recent
    _known.clear()
    _recent = ()


_plans.when_cleared.append(_forget)


def _remember(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool,
              scale: Optional[float], enable_gqa: bool, known: _Known) -> None:
    """Puts a call, all of whose addresses were multiples of 16, in front of the recent ones."""
    global _recent
    if (_have_guards and not (query.requires_grad or key.requires_grad or value.requires_grad)
            and not (known.gpu >= 0 and _is_capturing())):
        shortcut = _shortcut_on_cpu if known.gpu < 0 else _shortcut_on_gpu
        _recent = (shortcut(_guard(query, key, value), is_causal, scale, enable_gqa, known),
                   *_recent[:_MOST_RECENT - 1])


# What a shortcut need not look at: addresses that are no multiples of 16, and whatever else can
# fail. The library refuses those, and the call goes the usual way, to another plan or an exception.


def _shortcut_on_cpu(are_like: _Guard, causal: bool, factor: Optional[float],
                     grouped: bool, known: _Known) -> _Shortcut:
    threads = _get_num_threads()

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool,
            scale: Optional[float], enable_gqa: bool) -> Optional[torch.Tensor]:
        if (is_causal is not causal or enable_gqa is not grouped
                or (scale is not factor and scale != factor)
                or query.is_nested or key.is_nested or value.is_nested
                or not are_like(query, key, value) or _get_num_threads() != threads):
            return None
        out = known.output()
        try:
            known.plan.forward_on_cpu(pack_four(TENSORS_SIZE, query.data_ptr(), key.data_ptr(),
                                                value.data_ptr(), out.data_ptr()))
        except AttnError:
            return None
        return out
    return run


def _shortcut_on_gpu(are_like: _Guard, causal: bool, factor: Optional[float],
                     grouped: bool, known: _Known) -> _Shortcut:
    """In the cost of a call one sees each attribute and each function in between: all is at hand
    here, and only what may change is asked for."""
    plan, make, shape, strides, dtype, device, gpu, allocate = known
    others = torch.cuda.device_count() > 1  # then make() may give memory of another GPU
    has_workspace, places, acquire, release = (plan.size > 0, plan.places, plan.lock.acquire,
                                               plan.lock.release)
    handle, size = plan.handle_argument, plan.size_argument
    is_capturing, stream_of, pack, total = _is_capturing, _stream, pack_four, TENSORS_SIZE

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool,
            scale: Optional[float], enable_gqa: bool) -> Optional[torch.Tensor]:
        if (is_causal is not causal or enable_gqa is not grouped
                or (scale is not factor and scale != factor)
                or query.is_nested or key.is_nested or value.is_nested
                or not are_like(query, key, value)):
            return None
        stream = stream_of(gpu)
        if has_workspace and stream and is_capturing():  # the default stream 0 never is
            return None
        place = places.get(stream) or plan.new_place(stream, allocate)
        out = make(shape, strides, dtype)
        if others and out.get_device() != gpu:
            out = _slow_empty(device, shape, strides, dtype)
        tensors = pack(total, query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr())
        if not has_workspace:
            failed = plan.call(handle, tensors, place[0], size, place[1], None)
        else:
            acquire()
            try:
                failed = plan.call(handle, tensors, place[0], size, place[1], None)
            finally:
                release()
        return None if failed else out
    return run


def _forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             attn_mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
             enable_gqa: bool, eager: bool = False) -> torch.Tensor:
    try:
        q, k, v = query.data_ptr(), key.data_ptr(), value.data_ptr()
        if attn_mask is not None:
            attn_mask.data_ptr()
        else:
            low = (q | k | v) & 15
            signature = (query.shape, query.stride(), key.shape, key.stride(), value.shape,
                         value.stride(), query.dtype, key.dtype, value.dtype, query.device,
                         key.device, value.device, is_causal, scale, enable_gqa,
                         _get_num_threads(), low)
    except RuntimeError as error:
        _check(query, key, value, attn_mask, is_causal)
        raise Unsupported("query, key, value or attn_mask has no memory of its own, as within "
                          f"torch.vmap: {error}") from error
    if attn_mask is not None:
        return _slow_forward(query, key, value, attn_mask, is_causal, scale, enable_gqa)[0]
    known = _known.get(signature)
    if known is None:
        out, plan = _slow_forward(query, key, value, None, is_causal, scale, enable_gqa)
        if plan is None:
            return out
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[signature] = _Known(
            plan, _maker(query.device), tuple(out.shape), out.stride(), query.dtype, query.device,
            query.get_device(), functools.partial(_allocate, query.device))
    else:
        out = known.output()
        _launch(known.plan, pack_four(TENSORS_SIZE, q, k, v, out.data_ptr()), known.gpu,
                known.allocate)
    if eager and not low:
        _remember(query, key, value, is_causal, scale, enable_gqa, known)
    return out


def _slow_forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                  attn_mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
                  enable_gqa: bool) -> Tuple[torch.Tensor, Optional[Plan]]:
    """The output, and the plan if another call like this could use it as it is."""
    _check(query, key, value, attn_mask, is_causal)
    shapes = _shapes(query, key, value, enable_gqa)
    out = _output(query, value, shapes)
    if out.numel() == 0:
        return out, None
    if query.shape[-1] == 0:
        raise Unsupported("query has the last dimension 0, expected at least 1")
    q = _rows(_four(query, shapes.batch, shapes.heads_q))
    k = _rows(_four(key, shapes.batch, shapes.heads_kv))
    v = _rows(_four(value, shapes.batch, shapes.heads_kv))
    o = out if out.dim() == 4 else out.view(q.shape[0], q.shape[1], q.shape[2], v.shape[3])
    bias = None
    if attn_mask is not None:
        bias = _bias(attn_mask, (query.shape[-2], key.shape[-2]), shapes)
    addresses = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
    plan = _plan(q, k, v, o, bias, is_causal, scale, alignment_of(*addresses))
    tensors = _library.tensors(*addresses, bias=0 if bias is None else bias.data_ptr())
    _launch(plan, tensors, query.get_device(), functools.partial(_allocate, query.device))
    return out, plan if (q is query and k is key and v is value and o is out) else None


@torch.library.custom_op("attn::sdpa", mutates_args=(), schema=(
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, "
    "bool enable_gqa) -> Tensor"))
def _operator(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attn_mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
              enable_gqa: bool) -> torch.Tensor:
    refuse_tangents(query=query, key=key, value=value, attn_mask=attn_mask)
    return _forward(query, key, value, attn_mask, is_causal, scale, enable_gqa)


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

    Raises attn.Unsupported for dropout_p > 0, gradients of either mode, and other dtypes.

    >>> import torch, attn.torch
    >>> q, k, v = torch.randn(3, 1, 4, 10, 16).unbind(0)
    >>> ours = attn.torch.sdpa(q, k, v, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.testing.assert_close(ours, theirs)
    """
    if getattr(_forward_ad, "_current_level", 0) >= 0:
        refuse_tangents(query=query, key=key, value=value, attn_mask=attn_mask)
    if _is_dynamo_compiling():
        return _traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is None and not dropout_p:
        for shortcut in _recent:
            out = shortcut(query, key, value, is_causal, scale, enable_gqa)
            if out is not None:
                return out
    if (_is_compiling() or _any_autocast() or type(query) not in _PLAIN or type(key) not in _PLAIN
            or type(value) not in _PLAIN or query.is_neg() or key.is_neg() or value.is_neg()
            or (attn_mask is not None and attn_mask.is_neg()) or _is_tracing()):
        return _traced(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if dropout_p or _is_grad_enabled():
        _refuse_training(dropout_p, query, key, value, attn_mask)
    return _forward(query, key, value, attn_mask, is_causal, scale, enable_gqa, eager=True)


def _traced(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            attn_mask: Optional[torch.Tensor], dropout_p: float, is_causal: bool,
            scale: Optional[float], enable_gqa: bool) -> torch.Tensor:
    """sdpa where somebody watches: a compiler, a tracer, autocast, a subclass of Tensor; and of
    tensors whose memory holds their negatives, which PyTorch resolves for operators."""
    _refuse_training(dropout_p, query, key, value, attn_mask)
    if torch.is_autocast_enabled("cuda" if query.is_cuda else "cpu"):
        return _autocast(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if query.is_nested:
        raise Unsupported("query is nested, expected a plain tensor")
    return _operator(query, key, value, attn_mask, is_causal, scale, enable_gqa)


def _autocast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attn_mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float],
              enable_gqa: bool) -> torch.Tensor:
    """PyTorch's function is one of those that torch.autocast gives its lower precision."""
    kind = "cuda" if query.is_cuda else "cpu"
    lower = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        query, key, value = (t.to(lower) if t.dtype in _DTYPES else t for t in (query, key, value))
        if attn_mask is not None and attn_mask.dtype in _DTYPES:
            attn_mask = attn_mask.to(lower)
        return sdpa(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)


# ---- in an unmodified model ------------------------------------------------------------------


class Replacement:
    """What replace_sdpa() saw. Calls inside a compiled graph are not counted, nor their reasons
    kept: torch.compile asks once, when it traces."""

    def __init__(self) -> None:
        self.calls = 0
        self.reasons: List[str] = []  # of each call that went to PyTorch's function

    def __repr__(self) -> str:
        return f"<{self.calls} calls, {len(self.reasons)} of them by PyTorch>"


@contextlib.contextmanager
def replace_sdpa(fallback: bool = False) -> Iterator[Replacement]:
    """Within it torch.nn.functional.scaled_dot_product_attention is sdpa, for all threads.

    fallback: calls that sdpa does not support go to PyTorch's own function, and their reasons into
    the list that the context gives; without it they raise.

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
    ['dropout_p is 0.1, expected 0: there is no dropout']
    """
    original = torch.nn.functional.scaled_dot_product_attention
    seen = Replacement()

    def scaled_dot_product_attention(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            attn_mask: Optional[torch.Tensor] = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: Optional[float] = None,
            enable_gqa: bool = False) -> torch.Tensor:
        compiling = _is_compiling()
        if not compiling:
            seen.calls += 1
        if not fallback:
            return sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        try:
            return sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        except Unsupported as error:
            if not compiling:
                seen.reasons.append(str(error))
        grouped = {"enable_gqa": True} if enable_gqa else {}  # PyTorch 2.4 does not know it
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **grouped)

    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield seen
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
