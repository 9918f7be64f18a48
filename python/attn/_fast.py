# SPDX-License-Identifier: Apache-2.0
"""One call on plain PyTorch tensors: the fast path of attn.attention and attn.torch.sdpa.

Sizes, strides and addresses go straight into the bytes of attn_problem and attn_tensors, and the
problem's bytes find the plan. PyTorch allocates the workspace of a GPU anew for each call: its
allocator follows streams and graph captures, so that nothing is held and no lock is taken.

Invariant: forward() gives None for a call that is unusual or wrong in any way. The general path
then computes it, or names what is wrong: no sentence is written here.
"""

from __future__ import annotations

import functools
import math
import struct
from ctypes import c_void_p
from typing import Any, Callable, Optional, Tuple

import torch
import torch.autograd.forward_ad as _forward_ad

from ._library import (AUTO_LSE, BF16, CAUSAL, FP16, FP32, LAYOUT, NO_OTHERS, PLAIN_OPTIONS,
                       TENSORS_SIZE, pack_options, pack_others, pack_problem, pack_tensors,
                       problem_head)
from ._plans import Plan, caches, open_cache

DTYPES = {torch.float32: FP32, torch.float16: FP16, torch.bfloat16: BF16}
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_HEADS = {dtype: problem_head(code) for dtype, code in DTYPES.items()}
_MASKS = frozenset((torch.bool, torch.uint8))
_FLOAT, _INT = torch.float32, torch.int32
_NONE: Tuple[int, ...] = (0, 0, 0, 0)
_NO_WINDOW = (-1, -1)

# ---- functions of PyTorch that cost little ---------------------------------------------------
#
# Some have no public name. Where one is missing, the public way is taken: right, but slower.

_is_grad_enabled = torch.is_grad_enabled
_get_num_threads = torch.get_num_threads
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)  # inductor's: no dispatcher


def _slow_stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


def _slow_empty(shape: Tuple[int, ...], strides: Tuple[int, ...], dtype: torch.dtype,
                device: str = "cpu") -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _slow_stream)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice",
                                             torch.cuda.current_device)
_empty_cpu: Callable[..., torch.Tensor] = getattr(_guards, "_empty_strided_cpu", _slow_empty)
_empty_cuda: Callable[..., torch.Tensor] = getattr(
    _guards, "_empty_strided_cuda", functools.partial(_slow_empty, device="cuda"))


def _empty(gpu: int, shape: Tuple[int, ...], strides: Tuple[int, ...],
           dtype: torch.dtype) -> torch.Tensor:
    if gpu < 0:
        return _empty_cpu(shape, strides, dtype)
    if _current_device() != gpu:  # where _empty_cuda would allocate
        return _slow_empty(shape, strides, dtype, f"cuda:{gpu}")
    return _empty_cuda(shape, strides, dtype)


# ---- the arguments ---------------------------------------------------------------------------


class _Unusual(Exception):
    """Left to the general path, as is what Python, PyTorch and the library refuse."""


_LEFT_TO_GENERAL = (_Unusual, RuntimeError, TypeError, ValueError, KeyError, AttributeError,
                    OverflowError, IndexError, struct.error)


def _vector(x: Any, dtype: torch.dtype, gpu: int, shape: Tuple[int, ...]) -> int:
    """The address of a contiguous tensor, 0 of None."""
    if x is None:
        return 0
    if (type(x) not in PLAIN or x.dtype is not dtype or x.get_device() != gpu or x.shape != shape
            or not x.is_contiguous() or x.is_neg() or (x.requires_grad and _is_grad_enabled())):
        raise _Unusual
    return x.data_ptr()


def _scores(x: Any, gpu: int, full: Tuple[int, ...]) -> Tuple[int, ...]:
    """The strides of a bias or a mask, 0 where it is broadcast to (batch, heads, rows, keys)."""
    if (type(x) not in PLAIN or x.get_device() != gpu or x.is_neg()
            or (x.requires_grad and _is_grad_enabled())):
        raise _Unusual
    shape, strides = x.shape, x.stride()
    missing = 4 - len(shape)
    if missing < 0:
        raise _Unusual
    if shape != full[missing:]:
        if any(n != m and n != 1 for n, m in zip(shape, full[missing:])):
            raise _Unusual
        strides = tuple([0 if n == 1 else step for n, step in zip(shape, strides)])
    return _NONE[:missing] + strides


def _options(gpu: int, full: Tuple[int, ...], window: Any, softcap: Any, bias: Any, mask: Any,
             alibi: Any, sink: Any, used_kv: Any, cu_q: Any, cu_kv: Any,
             totals: Tuple[int, int]) -> Tuple[bytes, bytes]:
    """What pack_options() and pack_others() make of them."""
    batch, heads, at_bias, at_mask, at_alibi = *full[:2], 0, 0, 0
    bias_dtype, bias_strides, mask_strides, alibi_stride = 0, _NONE, _NONE, 0
    if bias is not None:
        bias_dtype, bias_strides, at_bias = \
            DTYPES[bias.dtype], _scores(bias, gpu, full), bias.data_ptr()
    if mask is not None:
        if mask.dtype not in _MASKS:
            raise _Unusual
        mask_strides, at_mask = _scores(mask, gpu, full), mask.data_ptr()
    if alibi is not None and alibi is not True and alibi is not False:
        alibi_stride = heads if alibi.dim() == 2 else 0
        at_alibi = _vector(alibi, _FLOAT, gpu, (batch, heads) if alibi_stride else (heads,))
    packed, ends = cu_q is not None, (batch + 1,)
    if packed != (cu_kv is not None):
        raise _Unusual
    return (pack_options(*window, softcap, bias_dtype, bias is not None, mask is not None,
                         alibi is not None and alibi is not False, sink is not None, packed,
                         used_kv is not None, False, False, *bias_strides, *mask_strides,
                         alibi_stride, *totals, 0),
            pack_others(at_bias, at_mask, at_alibi, _vector(sink, _FLOAT, gpu, (heads,)),
                        _vector(cu_q, _INT, gpu, ends), _vector(cu_kv, _INT, gpu, ends),
                        _vector(used_kv, _INT, gpu, (batch,))))


def _are_plain(q: Any, k: Any, v: Any, dtype: torch.dtype, gpu: int) -> bool:
    return (type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN
            and k.dtype is dtype and v.dtype is dtype
            and k.get_device() == gpu and v.get_device() == gpu
            and (q.is_cuda if gpu >= 0 else q.is_cpu)
            and not (q.is_neg() or k.is_neg() or v.is_neg() or _forward_ad._current_level >= 0
                     or (_is_grad_enabled()
                         and (q.requires_grad or k.requires_grad or v.requires_grad))))


def _bhsd(each: Any, bshd: int, packed: bool) -> Any:
    """Sizes or strides of any layout in the order (batch, heads, rows, columns)."""
    if packed:
        each = [(1, one, two, col) for one, two, col in each]
    return [(batch, two, one, col) for batch, one, two, col in each] if bshd else each


def _output(gpu: int, dtype: torch.dtype, shape: Tuple[int, ...], strides: Tuple[int, ...],
            bshd: int, packed: bool) -> torch.Tensor:
    """The inverse of _bhsd(), as a new tensor."""
    if bshd:
        shape, strides = _bhsd((shape, strides), 1, False)
    return _empty(gpu, shape[packed:], strides[packed:], dtype)


# ---- the call --------------------------------------------------------------------------------


def run(plan: Plan, gpu: int, tensors: bytes) -> None:
    """On the CPU (gpu is -1), or on the current stream of the GPU."""
    if gpu < 0:
        plan.forward_on_cpu(tensors)
    elif plan.size:
        workspace = _empty(gpu, (plan.size,), (1,), torch.uint8)
        plan.forward(tensors, c_void_p(workspace.data_ptr()), c_void_p(_stream(gpu)))
    else:
        plan.forward(tensors, None, c_void_p(_stream(gpu)))


def forward(q: Any, k: Any, v: Any, causal: Optional[str], scale: Any, bias: Any = None,
            mask: Any = None, sdpa: bool = False, grouped: bool = True,
            threads: Optional[int] = 0, out: Any = None, layout: str = "bhsd",
            window: Any = (-1, -1), softcap: Any = 0.0, alibi: Any = None, sink: Any = None,
            used_kv: Any = None, cu_q: Any = None, cu_kv: Any = None, max_q: Any = None,
            max_kv: Any = None, want_lse: bool = False) -> Any:
    """As attention(), or None. sdpa: as PyTorch's function, whose attn_mask is bias here: a new
    output has heads and rows in the order of q's in memory. grouped: heads of q may share one of k.
    threads: None is torch.get_num_threads(). out: of the right shape, and memory of its own."""
    try:
        dtype, gpu = q.dtype, q.get_device()
        if not _are_plain(q, k, v, dtype, gpu):
            return None
        each = q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()
        bshd, packed = LAYOUT[layout], cu_q is not None
        if bshd or packed:
            each = _bhsd(each, bshd, packed)
        ((batch, heads, rows, dim), (batch_k, heads_kv, keys, dim_k),
         (batch_v, heads_v, keys_v, dim_v), (q_batch, q_head, q_row, q_col),
         (k_batch, k_head, k_row, k_col), (v_batch, v_head, v_row, v_col)) = each
        size = heads * rows * dim_v
        if (batch_k != batch or batch_v != batch or heads_v != heads_kv or keys_v != keys
                or dim_k != dim or not q_col == k_col == v_col == 1 or not size * batch
                or not (grouped or heads == heads_kv) or scale != scale
                or (sdpa and causal and bias is not None)):
            return None
        if out is None:
            rows_first = bshd or (sdpa and q_head < q_row)
            o_batch = size
            o_head, o_row = (dim_v, heads * dim_v) if rows_first else (rows * dim_v, dim_v)
            out = _output(gpu, dtype, (batch, heads, rows, dim_v), (size, o_head, o_row, 1), bshd,
                          packed)
        else:
            o_batch, o_head, o_row, _ = out.stride()
        lse = _empty(gpu, (batch, heads, rows)[packed:], (heads * rows, rows, 1)[packed:],
                     _FLOAT) if want_lse else None
        seq_q, seq_kv, options, others = rows, keys, PLAIN_OPTIONS, NO_OTHERS
        if not (bias is mask is alibi is sink is used_kv is cu_q is cu_kv is None
                and window == _NO_WINDOW and softcap == 0.0):
            totals = (0, 0)
            if sdpa and bias.dtype is torch.bool:
                bias, mask = None, bias
            if packed:
                batch, seq_q, seq_kv, totals = cu_q.shape[0] - 1, max_q, max_kv, (rows, keys)
            options, others = _options(gpu, (batch, heads, seq_q, seq_kv), window, softcap, bias,
                                       mask, alibi, sink, used_kv, cu_q, cu_kv, totals)
        at_q, at_k, at_v, at_o = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        low = (at_q | at_k | at_v | at_o) & 15
        problem = pack_problem(
            _HEADS[dtype], batch, heads, heads_kv, seq_q, seq_kv, dim, dim_v, q_batch, q_head,
            q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
            AUTO_LSE, math.nan if scale is None else scale, CAUSAL[causal], options,
            low & -low or 16)
        where = (gpu, 0 if gpu >= 0 else _get_num_threads() if threads is None else threads)
        cache = caches.get(where) or open_cache(*where)
        plan = cache.plans.get(problem) or cache.new_plan(problem, None, problem)
        run(plan, gpu, pack_tensors(TENSORS_SIZE, at_q, at_k, at_v, at_o,
                                    0 if lse is None else lse.data_ptr(), others))
        return (out, lse) if want_lse else out
    except _LEFT_TO_GENERAL:
        return None
