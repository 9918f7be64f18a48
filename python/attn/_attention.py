# SPDX-License-Identifier: Apache-2.0
"""attention(): from arrays and options to the bytes of a problem, and one attn_forward.

Plain tensors of PyTorch take the fast path (_fast.py); everything else goes through views of any
kind of array here.

Invariant: an argument that is wrong is named before anything is computed.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from . import _arrays, _library
from ._arguments import (MOST_ROWS, MOST_THREADS, NO_WINDOW, choice, integer, number,
                         offset_of, variant_name)
from ._arguments import window as window_of
from ._arrays import BITS, CACHE, FLOATS, INT32, MASK, View
from ._library import (AUTO, BF16, CAUSAL, E4M3, E5M2, FP32, LAYOUT, PAGE_LAYOUT, TENSOR_CORES,
                       InvalidArgument)
from ._plans import caches, open_cache
from ._problem import Strides, alignment_of, free_strides, problem

# ---- arguments -------------------------------------------------------------------------------


def _expect(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise InvalidArgument(f"{what} is {found}, expected {expected}")


def _check_rows(name: str, array: View) -> None:
    if array.shape[-1] > 1 and array.strides[-1] != 1 and array.size():
        raise InvalidArgument(f"{name} has {array.strides[-1]} elements between neighbours of its "
                              "last dimension, expected 1: it would have to be copied "
                              "(numpy.ascontiguousarray, or .contiguous())")


def _small(name: str, value: Any, dtype: int, q: View, stream: Optional[int]) -> View:
    """A vector of a few numbers: on the CPU converted if need be, on a GPU as it is."""
    if q.device == "cpu" and not _arrays.is_torch(value):
        wanted = np.int32 if dtype == INT32 else np.float32
        try:
            given = np.asarray(value)
            if dtype == INT32 and given.dtype.kind not in "iu":
                raise TypeError(f"{given.dtype} is not an integer type")
            value = np.ascontiguousarray(given, wanted)
            if dtype == INT32 and not np.array_equal(value, given):
                raise ValueError("a number does not fit into 32 bits")
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{name} is no array of {np.dtype(wanted).name} and cannot "
                                  f"become one: {error}") from None
    found = _arrays.view(name, value, stream, (dtype,))
    _expect(f"the device of {name}", found.device, q.device)
    if found.shape and found.shape[-1] > 1:
        _expect(f"the last stride of {name}", found.strides[-1], 1)
    return found


def _scores(name: str, array: View, full: Tuple[int, ...], device: str) -> Strides:
    """Its strides, 0 where it is broadcast to (batch, heads_q, seq_q, seq_kv)."""
    _expect(f"the device of {name}", array.device, device)
    shape = (1,) * (4 - len(array.shape)) + array.shape
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, full)):
        raise InvalidArgument(f"{name} has the shape {array.shape}, expected one that broadcasts "
                              f"to {full}")
    strides = (0,) * (4 - len(array.shape)) + array.strides
    return tuple(0 if n == 1 else step for n, step in zip(shape, strides))


KV_DTYPE = {"e4m3": E4M3, "e5m2": E5M2}


def _cache(name: str, array: Any, kv_dtype: Any, stream: Optional[int]) -> View:
    """k or v; with kv_dtype the bytes of fp8 numbers."""
    if kv_dtype is None:
        return _arrays.view(name, array, stream, CACHE)
    code = choice("kv_dtype", kv_dtype, KV_DTYPE)
    return _arrays.view(name, array, stream, (MASK, code))._replace(dtype=code)


def _scale(name: str, value: Any, cache: View, head: int, like: Any, q: View,
           stream: Optional[int]) -> Tuple[View, Tuple[int, ...]]:
    """The scales of k or v, and their strides in the order of its dimensions."""
    if cache.dtype <= BF16:
        raise InvalidArgument(f"{name} is given, expected None: {name[0]} is no fp8 array")
    if isinstance(value, (int, float)) and _arrays.is_torch(like):
        import torch
        value = torch.full((1,), value, dtype=torch.float32, device=like.device)
    elif isinstance(value, (int, float)):
        value = [value]
    found = _small(name, value, FP32, q, stream) if q.device == "cpu" and \
        not _arrays.is_torch(value) else _arrays.view(name, value, stream, (FP32,))
    _expect(f"the device of {name}", found.device, q.device)
    full = cache.shape[:-1]
    strides = tuple(0 if n == 1 else step for n, step in zip(found.shape, found.strides))
    if found.size() == 1:
        return found, (0,) * len(full)
    if found.shape == (full[head + 1],):  # one for each head
        at = len(full) + head + 1
        return found, tuple(strides[0] if i == at else 0 for i in range(len(full)))
    if len(found.shape) != len(full) or any(n not in (1, m) for n, m in zip(found.shape, full)):
        raise InvalidArgument(f"{name} has the shape {found.shape}, expected one number, "
                              f"({full[head + 1]},), or one that broadcasts to {full}")
    return found, strides


class _Lengths(NamedTuple):
    """Sequences packed one after the other. kv is None for a paged KV cache."""
    batch: int
    longest_q: int
    longest_kv: int
    q: View
    kv: Optional[View]


def _length(name: str, value: Any, most: Optional[int], q: View, stream: Optional[int]) \
        -> Tuple[View, int]:
    """cu_seqlens_q or cu_seqlens_kv, and the longest sequence."""
    array = _small(f"cu_seqlens_{name}", value, INT32, q, stream)
    if len(array.shape) != 1 or array.shape[0] < 1:
        raise InvalidArgument(f"cu_seqlens_{name} has the shape {array.shape}, expected "
                              "(batch + 1,)")
    if most is None:
        if q.device != "cpu":
            raise InvalidArgument(f"max_seqlen_{name} is None, expected the longest sequence: "
                                  "cu_seqlens on a GPU is not read back")
        most = np.diff(np.asarray(array.owner)).max(initial=0)
    return array, integer(f"max_seqlen_{name}", most, 0, MOST_ROWS)


def _lengths(cu_q: Any, cu_kv: Any, longest: Tuple[Optional[int], Optional[int]], q: View,
             stream: Optional[int]) -> _Lengths:
    if cu_q is None or cu_kv is None:
        missing = "cu_seqlens_q" if cu_q is None else "cu_seqlens_kv"
        raise InvalidArgument(f"{missing} is None, expected an array beside the other cu_seqlens")
    of_q, longest_q = _length("q", cu_q, longest[0], q, stream)
    of_kv, longest_kv = _length("kv", cu_kv, longest[1], q, stream)
    _expect("the length of cu_seqlens_kv", of_kv.shape[0], of_q.shape[0])
    return _Lengths(of_q.shape[0] - 1, longest_q, longest_kv, of_q, of_kv)


class _Pages(NamedTuple):
    """A paged KV cache."""
    table: View
    size: int
    count: int
    stride: int  # of the table
    longest: int  # keys of a sequence, at most


def _pages(block_table: Any, longest: Any, used_kv: Any, cu_kv: Any, batch: int, k: View, row: int,
           q: View, stream: Optional[int]) -> _Pages:
    if used_kv is None:
        raise InvalidArgument("used_kv is None, expected an array beside block_table")
    if cu_kv is not None:
        raise InvalidArgument("cu_seqlens_kv is given, expected None beside block_table: used_kv "
                              "has the lengths")
    table = _small("block_table", block_table, INT32, q, stream)
    if len(table.shape) != 2 or table.shape[0] != batch:
        raise InvalidArgument(f"block_table has the shape {table.shape}, expected ({batch}, pages)")
    count, size = k.shape[0], k.shape[row]
    if size < 1:
        raise InvalidArgument(f"k has the shape {k.shape}, expected pages of 1 row or more")
    if batch > 1 and table.shape[1] and table.strides[0] < 1:
        raise InvalidArgument(f"block_table has the strides {table.strides}, expected rows of "
                              "their own")
    most = min(table.shape[1] * size, MOST_ROWS)
    return _Pages(table, size, count, table.strides[0] if batch > 1 else 0,
                  most if longest is None else integer("max_seqlen_kv", longest, 0, most))


def _output(name: str, given: Any, shape: Tuple[int, ...], dtype: int, q: Any, device: str,
            stream: Optional[int]) -> Tuple[Any, View]:
    if given is None:
        given = _arrays.empty(shape, dtype, q, device)
    array = _arrays.view(name, given, stream, FLOATS)
    _expect(f"the shape of {name}", array.shape, shape)
    _expect(f"the dtype of {name}", _arrays.DTYPE_NAMES[array.dtype], _arrays.DTYPE_NAMES[dtype])
    _expect(f"the device of {name}", array.device, device)
    if not array.writable:
        raise InvalidArgument(f"{name} is read-only, expected an array that can be written")
    return given, array


def _own_memory(name: str, others: Dict[str, Optional[View]]) -> None:
    mine = others[name]
    for other, array in others.items():
        if mine and array and other != name and _arrays.share_memory(mine, array):
            raise InvalidArgument(f"{name} shares memory with {other}, expected memory of its own")


# ---- the call --------------------------------------------------------------------------------


def _run(device: str, threads: int, problem_bytes: bytes, variant: Optional[str], tensors: bytes,
         stream: Optional[int], batch_invariant: bool) -> None:
    """stream: None is PyTorch's current one, with a workspace of PyTorch's."""
    gpu = int(device[len("cuda:"):]) if device != "cpu" else -1
    key = (gpu, threads if gpu < 0 else 0)
    cache = caches.get(key) or open_cache(*key)
    plan = cache.plan(problem_bytes, variant, batch_invariant=batch_invariant)
    if gpu < 0:
        plan.run_on_cpu(tensors)
    elif stream is None:
        from ._fast import allocator, run
        run(plan, gpu, tensors, allocator(gpu))
    else:
        cache.run_on_stream(plan, tensors, stream)


def _general(q: Any, k: Any, v: Any, causal: Any, scale: Any, window: Any, softcap: Any, alibi: Any,
             bias: Any, mask: Any, sink: Any, cu_seqlens_q: Any, cu_seqlens_kv: Any,
             max_seqlen_q: Any, max_seqlen_kv: Any, used_kv: Any, layout: Any, out: Any, lse: Any,
             return_lse: bool, variant: Any, tensor_cores: Any, threads: Any, stream: Any,
             block_table: Any = None, page_layout: Any = "nhd", used_q: Any = None,
             draft_mask: Any = None, k_scale: Any = None, v_scale: Any = None,
             kv_dtype: Any = None, batch_invariant: bool = False, offset: int = 0,
             offsets: Any = None) -> Any:
    if not isinstance(batch_invariant, bool):
        raise InvalidArgument(f"batch_invariant = {batch_invariant!r}, expected True or False")
    where = _arrays.current_stream(q, stream) if _arrays.is_on_gpu(q) else None
    vq = _arrays.view("q", q, where, FLOATS)
    vk, vv = _cache("k", k, kv_dtype, where), _cache("v", v, kv_dtype, where)
    dtype_kv = vk.dtype if vk.dtype > BF16 else vq.dtype
    for name, array in (("k", vk), ("v", vv)):
        _expect(f"the device of {name}", array.device, vq.device)
        _expect(f"the dtype of {name}", _arrays.DTYPE_NAMES[array.dtype],
                _arrays.DTYPE_NAMES[dtype_kv])

    bshd = choice("layout", layout, LAYOUT)
    paged = block_table is not None
    packed = cu_seqlens_q is not None or (cu_seqlens_kv is not None and not paged)
    words = ("(total, heads, dim)" if bshd else "(heads, total, dim)") if packed else \
        ("(batch, seq, heads, dim)" if bshd else "(batch, heads, seq, dim)")
    words_kv = words
    head, row = (-2, -3) if bshd else (-3, -2)
    head_kv, row_kv = head, row
    if paged:
        nhd = choice("page_layout", page_layout, PAGE_LAYOUT)
        words_kv = "(pages, page_size, heads, dim)" if nhd else "(pages, heads, page_size, dim)"
        head_kv, row_kv = (-2, -3) if nhd else (-3, -2)
    for name, array, dims, expected in (("q", vq, 4 - packed, words),
                                        ("k", vk, 4 - (packed and not paged), words_kv),
                                        ("v", vv, 4 - (packed and not paged), words_kv)):
        if len(array.shape) != dims:
            raise InvalidArgument(f"{name} has the shape {array.shape}, expected {expected}")
        _check_rows(name, array)

    def along(array: View) -> Strides:
        """Strides as (batch, head, row)."""
        free = free_strides(array.shape, array.strides)
        return (AUTO if packed else free[0], free[head], free[row])

    def along_kv(array: View) -> Strides:
        """Of pages as (page, head, row)."""
        free = free_strides(array.shape, array.strides)
        return (free[0], free[head_kv], free[row_kv]) if paged else along(array)

    def along_scale(steps: Tuple[int, ...]) -> Strides:
        """Of scales, which have no columns, as (batch or page, head, row)."""
        return (0 if packed and not paged else steps[0], steps[head_kv + 1], steps[row_kv + 1])

    heads_q, rows_q, dim = vq.shape[head], vq.shape[row], vq.shape[-1]
    heads_kv, rows_kv, dim_v = vk.shape[head_kv], vk.shape[row_kv], vv.shape[-1]
    _expect("the shape of v", vv.shape, vk.shape[:-1] + (dim_v,))
    shape_k = list(vk.shape if paged else vq.shape)
    shape_k[head_kv], shape_k[row_kv], shape_k[-1] = heads_kv, rows_kv, dim
    _expect("the shape of k", vk.shape, tuple(shape_k))
    lengths = pages = None
    if paged:
        if packed:
            cu_q, seq_q = _length("q", cu_seqlens_q, max_seqlen_q, vq, where)
            lengths = _Lengths(cu_q.shape[0] - 1, seq_q, 0, cu_q, None)
        batch, seq_q = (lengths.batch, lengths.longest_q) if lengths else (vq.shape[0], rows_q)
        pages = _pages(block_table, max_seqlen_kv, used_kv, cu_seqlens_kv, batch, vk, row_kv, vq,
                       where)
        seq_kv, rows_kv = pages.longest, 0
    elif packed:
        lengths = _lengths(cu_seqlens_q, cu_seqlens_kv, (max_seqlen_q, max_seqlen_kv), vq, where)
        batch, seq_q, seq_kv = lengths.batch, lengths.longest_q, lengths.longest_kv
    else:
        batch, seq_q, seq_kv = vq.shape[0], rows_q, rows_kv

    shape = vq.shape[:-1] + (dim_v,)
    given = [name for name, array in (("out", out), ("lse", lse)) if array is not None]
    out, vo = _output("out", out, shape, vq.dtype, q, vq.device, where)
    _check_rows("out", vo)
    vl = None
    if return_lse or lse is not None:
        lse_shape = (heads_q, rows_q) if packed else (batch, heads_q, rows_q)
        lse, vl = _output("lse", lse, lse_shape, FP32, q, vq.device, where)
        if free_strides(vl.shape, vl.strides) != \
                free_strides(vl.shape, _arrays.contiguous(vl.shape)):
            raise InvalidArgument(f"lse has the strides {vl.strides}, expected a contiguous array")

    slopes = biases = masks = sinks = used = used_rows = drafts = shifts = None
    scales: List[Optional[View]] = [None, None]
    scale_strides: Strides = ()
    for i, (name, value, array) in enumerate((("k_scale", k_scale, vk), ("v_scale", v_scale, vv))):
        steps: Tuple[int, ...] = (0, 0, 0)
        if value is not None:
            scales[i], steps = _scale(name, value, array, head_kv, q, vq, where)
            steps = along_scale(steps)
        scale_strides += steps
    full = (batch, heads_q, seq_q, seq_kv)
    if bias is not None:
        biases = _arrays.view("bias", bias, where, FLOATS)
        bias_strides = _scores("bias", biases, full, vq.device)
    if mask is not None:
        masks = _arrays.view("mask", mask, where, (MASK,))
        mask_strides = _scores("mask", masks, full, vq.device)
    if alibi is not None and not isinstance(alibi, bool):
        slopes = _small("alibi", alibi, FP32, vq, where)
        if slopes.shape not in ((heads_q,), (batch, heads_q)):
            raise InvalidArgument(f"alibi has the shape {slopes.shape}, expected ({heads_q},) or "
                                  f"({batch}, {heads_q})")
    if sink is not None:
        sinks = _small("sink", sink, FP32, vq, where)
        _expect("the shape of sink", sinks.shape, (heads_q,))
    if used_kv is not None:
        used = _small("used_kv", used_kv, INT32, vq, where)
        _expect("the shape of used_kv", used.shape, (batch,))
    if used_q is not None:
        used_rows = _small("used_q", used_q, INT32, vq, where)
        _expect("the shape of used_q", used_rows.shape, (batch,))
    if offsets is not None:
        shifts = _small("offsets", offsets, INT32, vq, where)
        _expect("the shape of offsets", shifts.shape, (batch,))
    if draft_mask is not None:
        drafts = _arrays.view("draft_mask", draft_mask, where, (BITS,))
        _expect("the shape of draft_mask", drafts.shape, (rows_q,) if packed else (batch, rows_q))
        _expect("the device of draft_mask", drafts.device, vq.device)
        if free_strides(drafts.shape, drafts.strides) != \
                free_strides(drafts.shape, _arrays.contiguous(drafts.shape)):
            raise InvalidArgument(f"draft_mask has the strides {drafts.strides}, expected a "
                                  "contiguous array")
    others = {"q": vq, "k": vk, "v": vv, "bias": biases, "mask": masks, "alibi": slopes,
              "sink": sinks, "cu_seqlens_q": lengths and lengths.q,
              "cu_seqlens_kv": lengths and lengths.kv, "used_kv": used,
              "block_table": pages and pages.table, "used_q": used_rows, "draft_mask": drafts,
              "k_scale": scales[0], "v_scale": scales[1], "offsets": shifts,
              "lse": vl, "out": vo}
    for name in given:
        _own_memory(name, others)

    scale = None if scale is None else number("scale", scale)
    if scale is not None and not math.isfinite(scale):
        raise InvalidArgument(f"scale is {scale}, expected a finite number or None")
    threads = integer("threads", threads, 0, MOST_THREADS)
    bytes_ = problem(
        dtype=vq.dtype, sizes=(batch, heads_q, heads_kv, seq_q, seq_kv, dim, dim_v), q=along(vq),
        k=along_kv(vk), v=along_kv(vv), o=along(vo), scale=scale, causal=choice("causal", causal, CAUSAL),
        window=window_of(window), softcap=number("softcap", softcap),
        bias=None if biases is None else (biases.dtype, bias_strides),
        mask=None if masks is None else mask_strides,
        alibi=None if alibi is None or alibi is False else
        slopes.strides[0] if slopes and len(slopes.shape) == 2 else 0,
        sink=sinks is not None, packed=(rows_q, rows_kv) if packed else None,
        used_kv=used is not None, tensor_cores=choice("tensor_cores", tensor_cores, TENSOR_CORES),
        alignment=alignment_of(*(x.address for x in (vq, vk, vv, vo) if x.size())),
        pages=pages and (pages.size, pages.count, pages.stride), used_q=used_rows is not None,
        draft=drafts is not None, dtype_kv=dtype_kv, scales=scale_strides, offset=offset,
        offsets=shifts is not None,
        v_in_k=vv.address == vk.address and vv.strides == vk.strides and dim_v <= dim)

    def at(array: Optional[View]) -> int:
        return 0 if array is None else array.address

    tensors = _library.tensors(vq.address, vk.address, vv.address, vo.address, at(vl), at(biases),
                               at(masks), at(slopes), at(sinks), at(lengths and lengths.q),
                               at(lengths and lengths.kv), at(used),
                               block_table=at(pages and pages.table), used_q=at(used_rows),
                               draft_mask=at(drafts), k_scale=at(scales[0]),
                               v_scale=at(scales[1]), offsets=at(shifts))
    _run(vq.device, threads, bytes_, variant_name(variant), tensors,
         None if _arrays.is_torch(q) and stream is None else where or 0, batch_invariant)
    return (out, lse) if return_lse else out


# ---- gradients ---------------------------------------------------------------------------------


def needs_gradient(q: Any, *others: Any) -> bool:
    from . import _autograd
    return _autograd.needs_gradient(q, *others) or _autograd.functorch_is_active()


def differentiable(q: Any, k: Any, v: Any, *options: Any, offset: int = 0,
                   offsets: Any = None) -> Any:
    """out, which has a gradient, and lse, which has none."""
    import torch

    from . import _autograd
    *given, threads = options
    found = _autograd.attention(q, k, v, *given, threads, offset, offsets)
    if found is None:
        with torch.no_grad():  # it names what is wrong
            out, lse = _general(q, k, v, *given, None, None, True, None, "auto", threads, None,
                                offset=offset, offsets=offsets)
        if out.numel():
            raise _library.Unsupported(_autograd.NO_GRADIENT)
        found = out + 0 * sum(x.sum() for x in (q, k, v)), lse  # whose gradients are 0
    return found


# ---- the function ------------------------------------------------------------------------------

_fast_paths: Dict[type, Optional[Callable[..., Any]]] = {}  # by the type of q


def _by_jax(q: Any, k: Any, v: Any, causal: Any, scale: Any, bias: Any, mask: Any, _: Any, __: Any,
            threads: Any, ___: Any, layout: Any, window: Any, softcap: Any, alibi: Any, sink: Any,
            used_kv: Any, cu_q: Any, cu_kv: Any, max_q: Any, max_kv: Any, return_lse: bool,
            block_table: Any, ____: Any, used_q: Any, draft_mask: Any, offset: int,
            offsets: Any) -> Any:
    """As forward() of _fast.py, for arrays of JAX, which cannot be written. None: with offsets, and
    with what only servers need."""
    if not (block_table is used_q is draft_mask is offsets is None) or offset:
        return None
    from . import jax
    return jax.attention(q, k, v, causal=causal, scale=scale, window=window, softcap=softcap,
                         alibi=alibi, bias=bias, mask=mask, sink=sink, cu_seqlens_q=cu_q,
                         cu_seqlens_kv=cu_kv, max_seqlen_q=max_q, max_seqlen_kv=max_kv,
                         used_kv=used_kv, layout=layout, return_lse=return_lse, threads=threads)


def _fast_path(q: Any) -> Optional[Callable[..., Any]]:
    if type(q).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return _by_jax
    if not _arrays.is_torch(q):
        return None
    from ._fast import forward
    return forward


def attention(q: Any, k: Any, v: Any, *, causal: Optional[str] = None,
              scale: Optional[float] = None, window: Tuple[int, int] = NO_WINDOW,
              softcap: float = 0.0, alibi: Any = None, bias: Any = None, mask: Any = None,
              sink: Any = None, cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
              max_seqlen_q: Optional[int] = None, max_seqlen_kv: Optional[int] = None,
              used_kv: Any = None, layout: str = "bhsd", out: Any = None, lse: Any = None,
              return_lse: bool = False, variant: Optional[str] = None,
              tensor_cores: str = "auto", threads: int = 0, stream: Any = None,
              block_table: Any = None, page_layout: str = "nhd", used_q: Any = None,
              draft_mask: Any = None, k_scale: Any = None, v_scale: Any = None,
              kv_dtype: Optional[str] = None, batch_invariant: bool = False, q_offset: int = 0,
              kv_offset: int = 0, offsets: Any = None) -> Any:
    """softmax(scale * q k^T + bias, masked) v.

    q, k, v: float32, float16 or bfloat16 (of ml_dtypes, or its bits as uint16), all three alike.
        (batch, heads, seq, dim) in the layout "bhsd", (batch, seq, heads, dim) in "bshd"; packed
        without batch, and all sequences in a row. The heads of q are a multiple of those of k and
        v; v may have its own dim. Any strides, but neighbours of the last dimension must lie side
        by side: nothing is copied.
    causal: None, "top-left" (query i sees keys j <= i, as in PyTorch) or "bottom-right"
        (j <= i + seq_kv - seq_q, as in FlashAttention and for decoding).
    scale: of q k^T; None is 1 / sqrt(dim).
    window: keys visible (before, after) the diagonal; -1 is no bound.
    softcap: scores become softcap * tanh(score / softcap); 0 is none.
    alibi: True (the usual slopes), or slopes of shape (heads,) or (batch, heads).
    bias: added to the scores; broadcast to (batch, heads, seq_q, seq_kv), of any of the dtypes.
    mask: bool or uint8, 0 hides a key; broadcast likewise, and read where it lies.
    sink: a logit per head that joins the denominator.
    cu_seqlens_q, cu_seqlens_kv: packed sequences; batch + 1 numbers from 0 upwards. On a GPU
        max_seqlen_q and max_seqlen_kv must be given, else they are worked out.
    used_kv: for each batch entry, how many of its keys exist.
    block_table: a paged KV cache; int32 (batch, pages of the longest sequence). k and v are pools
        (pages, page_size, heads, dim), with page_layout "hnd" (pages, heads, page_size, dim). Key j
        of batch entry b is row j % page_size of page block_table[b, j // page_size]. Needs used_kv;
        entries after the used pages are not read. Packed queries need cu_seqlens_q, and no
        cu_seqlens_kv. max_seqlen_kv: the largest value in used_kv; None: the table's capacity.
        There are no gradients.
    used_q: for each batch entry, how many of its queries exist: the others are not used, and their
        rows of the result are not written. Causal masks and windows go by the real numbers.
    draft_mask: a tree of drafts; int64 or uint64 (batch, seq_q), packed (total_q). Of a batch entry
        with n <= 64 queries, query i sees key seq_kv - n + t, 0 <= t < n, only if bit t of its word
        is set. There are no gradients.
    v may be a view of k, such as k[..., :512] (MLA): memory and strides tell, and kernels then read
        k once.
    k_scale, v_scale: of an fp8 KV cache, where k and v are float8_e4m3fn or float8_e5m2 and q is
        not: key j is round(k[j] * k_scale), in the dtype of q. float32: one number, (heads,), or
        what broadcasts to the shape of k without its last dimension. None: 1. kv_dtype: "e4m3" or
        "e5m2", if k and v are the bytes of such numbers, as uint8. There are no gradients.
    out, lse: arrays to write to, of any strides (lse: contiguous); None makes new ones.
    return_lse: the result is (out, lse); lse = ln(sum(exp(score))), float32, (batch, heads, seq_q),
        packed (heads, total_q).
    variant: the name of a kernel; None is the best that applies. tensor_cores: "auto", "never" or
        "require". threads: of the CPU; 0 is all that the process may use.
    stream: of the GPU: a CUstream as a number, or a stream of PyTorch or CuPy; None is the current
        one of the framework of q (the legacy default stream where there is no such thing).
    batch_invariant: a row has the same bits whatever else is in the call, and whether it is
        computed by prefill, in chunks or token by token (causal "bottom-right").
    q_offset, kv_offset: q, k and v are chunks of longer sequences: positions of their first query
        and first key, for the causal mask "top-left", windows and ALiBi (the other mask and
        causal=None add seq_kv - seq_q). offsets: int32 (batch,), added to q_offset - kv_offset of
        each batch entry. Only the difference matters.

    Rows that see no key are 0, with lse = -inf. For PyTorch's tensors the result has gradients of
    q, k, v, bias, alibi and sink (not with out, lse, return_lse, variant, tensor_cores, stream,
    used_q, draft_mask or batch_invariant).

    >>> import numpy as np, attn
    >>> q = np.ones((1, 2, 3, 8), np.float32)
    >>> v = np.arange(48, dtype=np.float32).reshape(q.shape)
    >>> attn.attention(q, q, v, causal="top-left")[0, 0, :, 0]
    array([0., 4., 8.], dtype=float32)

    Two sequences of 1 and 2 tokens, packed:

    >>> packed, values = q[0], v[0]
    >>> o, lse = attn.attention(packed, packed, values, cu_seqlens_q=[0, 1, 3],
    ...                         cu_seqlens_kv=[0, 1, 3], scale=1, return_lse=True)
    >>> o[0, :, 0], lse.shape
    (array([ 0., 12., 12.], dtype=float32), (2, 3))
    """
    offset = offset_of(q_offset, kv_offset) if q_offset != 0 or kv_offset != 0 else 0
    try:
        forward = _fast_paths[type(q)]
    except KeyError:
        forward = _fast_paths[type(q)] = _fast_path(q)
    if (forward is not None and out is lse is variant is stream is None
            and k_scale is v_scale is kv_dtype is None and threads is not None
            and tensor_cores == "auto" and not batch_invariant):
        found = forward(q, k, v, causal, scale, bias, mask, 0, True, threads, None, layout,
                        window, softcap, alibi, sink, used_kv, cu_seqlens_q, cu_seqlens_kv,
                        max_seqlen_q, max_seqlen_kv, return_lse, block_table, page_layout,
                        used_q, draft_mask, offset, offsets)
        if found is not None:
            return found
        if (return_lse is False and block_table is used_q is draft_mask is None
                and "float8" not in str(getattr(k, "dtype", None))
                and needs_gradient(q, k, v, bias, alibi, sink)):
            return differentiable(q, k, v, causal, scale, window, softcap, alibi, bias, mask, sink,
                                  cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv,
                                  used_kv, layout, threads, offset=offset,
                                  offsets=offsets)[0]
    return _general(q, k, v, causal, scale, window, softcap, alibi, bias, mask, sink, cu_seqlens_q,
                    cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, used_kv, layout, out, lse,
                    return_lse, variant, tensor_cores, threads, stream, block_table, page_layout,
                    used_q, draft_mask, k_scale, v_scale, kv_dtype, batch_invariant, offset,
                    offsets)
