# SPDX-License-Identifier: Apache-2.0
"""One call on plain PyTorch tensors: the fast path of attn.attention and attn.torch.sdpa.

A call's key is all that a plan depends on: shapes, strides, dtypes, alignment and options, but no
address. A key seen before gives the plan and the form of the output; of a new one, the bytes of
attn_problem are made, which find a plan or become one. PyTorch allocates the workspace of a GPU
anew for each call: its allocator follows streams and graph captures, so that nothing is held and no
lock is taken.

Invariant: forward() gives None for a call that is unusual or wrong in any way. The general path
then computes it, or names what is wrong: no sentence is written here.
"""

from __future__ import annotations

import functools
import math
import struct
from numbers import Number
from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.autograd.forward_ad as _forward_ad

from . import _plans
from ._arguments import MOST_ROWS, MOST_THREADS, NO_WINDOW, integer
from ._library import (AUTO_LSE, BACKWARD, BF16, CAUSAL, FP16, FP32, LAYOUT, NO_OTHERS, PAGE_LAYOUT,
                       PLAIN_OPTIONS, TENSORS_SIZE, OutOfMemory, Unsupported, pack_options,
                       pack_others, pack_problem, pack_tensors, problem_head, with_gradients,
                       tensors_with_offsets, with_addresses, with_offsets, with_serving)
from ._plans import Cache, Plan, caches, keep, open_cache

DTYPES = {torch.float32: FP32, torch.float16: FP16, torch.bfloat16: BF16}
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_HEADS = {dtype: problem_head(code) for dtype, code in DTYPES.items()}
_MASKS = frozenset((torch.bool, torch.uint8))
_FLOAT, _INT = torch.float32, torch.int32
_WORDS = tuple(getattr(torch, name) for name in ("int64", "uint64") if hasattr(torch, name))
_NONE: Tuple[int, ...] = (0, 0, 0, 0)
_NOTHING_RARE = (None, "bhsd", NO_WINDOW, 0.0, False, None, None, (None,) * 7)
_VALUES = (type(None), int, float, Number)  # the last takes longest to ask
# Whose function a call has the form of: attention(); PyTorch's; or transformers', whose inputs are
# (batch, heads, rows, columns) and whose output is (batch, rows, heads, columns).
ATTENTION, SDPA, MODEL = range(3)
TRAIN = 4  # added to the first two where gradients will be asked for

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


def allocator(gpu: int) -> Callable[..., torch.Tensor]:
    """Of a tensor by its shape, strides and dtype."""
    if gpu < 0:
        return _empty_cpu
    if _current_device() != gpu:  # where _empty_cuda would allocate
        return functools.partial(_slow_empty, device=f"cuda:{gpu}")
    return _empty_cuda


# ---- a new call ------------------------------------------------------------------------------


class Unusual(Exception):
    """Left to the general path, as is what Python, PyTorch and the library refuse."""


_LEFT_TO_GENERAL = (Unusual, RuntimeError, TypeError, ValueError, KeyError, AttributeError,
                    OverflowError, IndexError, struct.error)
_NO_MEMORY = (torch.OutOfMemoryError, OutOfMemory)
# A plan, the shape and the strides of the output, and the shape of lse.
_Call = Tuple[Plan, Tuple[int, ...], Tuple[int, ...], Tuple[int, ...]]
# A backward plan, and shape and strides of dq, dk and dv.
_BackwardCall = Tuple[Plan, Tuple[Tuple[Tuple[int, ...], Tuple[int, ...]], ...]]
_Form = Optional[Tuple[Tuple[int, ...], Tuple[int, ...], torch.dtype]]  # shape, strides, dtype


def _bhsd(each: Any, bshd: int, packed: bool) -> Any:
    """Sizes or strides of any layout in the order (batch, heads, rows, columns)."""
    if packed:
        each = [(1, one, two, col) for one, two, col in each]
    return [(batch, two, one, col) for batch, one, two, col in each] if bshd else each


def key_rows(shape: Tuple[int, ...], strides: Tuple[int, ...]) -> int:
    """Rows from the keys of one sequence to those of the next, of (batch, heads, rows, columns).
    0: they are no whole number, or overlap."""
    if shape[0] == 1:
        return shape[2]
    step, rest = divmod(strides[0], max(strides[2], 1))
    return 0 if rest or step < shape[2] else step


def _joined(each: Any) -> Any:
    """Sizes and strides of all sequences as rows of one batch entry, (1, heads, rows, columns)."""
    q, k, v, (q_batch, q_head, q_row, q_col), (_, k_head, k_row, k_col), (_, *v_steps) = each
    (batch, heads, rows, dim), step = q, key_rows(k, each[4])
    if rows == 1:
        q_row = q_batch
    elif batch > 1 and q_batch != rows * q_row:
        raise Unusual
    if not k[0] == v[0] == batch or not step or step != key_rows(v, each[5]):
        raise Unusual
    before = (batch - 1) * step
    return ((1, heads, batch * rows, dim), (1, k[1], before + k[2], k[3]),
            (1, v[1], before + v[2], v[3]), (0, q_head, q_row, q_col), (0, k_head, k_row, k_col),
            (0, *v_steps))


def _check_vector(form: _Form, dtype: torch.dtype, *shape: int) -> None:
    if form is not None and form != (shape, (*shape[1:], 1), dtype):
        raise Unusual


def _score_strides(form: _Form, full: Tuple[int, ...]) -> Tuple[int, ...]:
    """Of a bias or a mask, 0 where it is broadcast to (batch, heads, rows, keys)."""
    if form is None:
        return _NONE
    shape, strides, _ = form
    missing = 4 - len(shape)
    if missing < 0 or any(n != m and n != 1 for n, m in zip(shape, full[missing:])):
        raise Unusual
    return (*_NONE[:missing], *[0 if n == 1 else step for n, step in zip(shape, strides)])


def _from_pages(each: Any, bshd: int, packed: bool, table: _Form, nhd: bool) -> Any:
    """For K and V in pages: sizes and strides in the order (batch, heads, rows, columns), the rows
    of K and V being those of a page; the first arguments of with_serving(); the keys the table
    can hold."""
    q, k, v, q_strides, k_strides, v_strides = each
    (shape, strides, dtype), pages = table, k[0]
    q, q_strides = _bhsd((q, q_strides), bshd, packed)
    k, v, k_strides, v_strides = _bhsd((k, v, k_strides, v_strides), nhd, False)
    if (len(shape) != 2 or dtype is not _INT or (shape[1] > 1 and strides[1] != 1)
            or (shape[0] > 1 and strides[0] < 1) or v[0] != pages or k[2] < 1):
        raise Unusual
    one = q[0]  # batch entries: the caller expects K and V to have as many
    return ((q, (one, *k[1:]), (one, *v[1:]), q_strides, k_strides, v_strides),
            (k[2], pages, strides[0] if shape[0] > 1 else 0), min(shape[1] * k[2], MOST_ROWS))


def _options(full: Tuple[int, ...], window: Any, softcap: Any, usual: bool, forms: Any,
             totals: Tuple[int, int], table: _Form = None) -> bytes:
    """What pack_options() makes of them."""
    bias, mask, slopes, sink, cu_q, cu_kv, used_kv = forms
    batch, heads = full[:2]
    if table is not None:
        if used_kv is None or cu_kv is not None or table[0][0] != batch:
            raise Unusual
    elif (cu_q is None) != (cu_kv is None):
        raise Unusual
    if mask is not None and mask[2] not in _MASKS:
        raise Unusual
    by_batch = slopes is not None and len(slopes[0]) == 2
    _check_vector(slopes, _FLOAT, *full[not by_batch:2])
    _check_vector(sink, _FLOAT, heads)
    _check_vector(cu_q, _INT, batch + 1)
    _check_vector(cu_kv, _INT, batch + 1)
    _check_vector(used_kv, _INT, batch)
    return pack_options(*window, softcap, DTYPES[bias[2]] if bias else 0, bias is not None,
                        mask is not None, usual or slopes is not None, sink is not None,
                        cu_q is not None, used_kv is not None, False, False,
                        *_score_strides(bias, full), *_score_strides(mask, full),
                        heads if by_batch else 0, *totals, 0)


def _describe(key: Tuple[Any, ...], o_strides: Any = None) -> Tuple[Cache, bytes, Any, Any, Any]:
    """Where a call runs and its problem; the shape and the strides of the output, and the shape of
    lse. o_strides: (batch, head, row), else those of the key or of a new output."""
    *each, dtype, gpu, low, causal, scale, form, grouped, threads, rare = key
    out_strides, layout, window, softcap, usual, max_q, max_kv, forms, *paged = \
        rare or _NOTHING_RARE
    form %= TRAIN
    bshd, cu_q = LAYOUT[layout], forms[4]
    packed, sequences, length = cu_q is not None, each[0][0], each[0][2]
    table, pages, used_q, drafts, offset, offsets = None, (0, 0, 0), None, None, 0, None
    if paged:
        table, page_layout, used_q, drafts, offset, offsets = paged[0]
    if table is not None:
        each, pages, room = _from_pages(each, bshd, packed, table, PAGE_LAYOUT[page_layout])
        max_kv = room if max_kv is None else integer("max_seqlen_kv", max_kv, 0, room)
    elif packed and form == MODEL:
        each = _joined(each)
    elif bshd or packed:
        each = _bhsd(each, bshd, packed)
    ((batch, heads, rows, dim), (batch_k, heads_kv, keys, dim_k),
     (batch_v, heads_v, keys_v, dim_v), (q_batch, q_head, q_row, q_col),
     (k_batch, k_head, k_row, k_col), (v_batch, v_head, v_row, v_col)) = each
    if form and type(rows) is not int:  # but a tensor, which torch.jit.trace follows
        raise Unusual
    size = heads * rows * dim_v
    if (batch_k != batch or batch_v != batch or heads_v != heads_kv or keys_v != keys
            or dim_k != dim or not q_col == k_col == v_col == 1 or not size * batch
            or not (grouped or heads == heads_kv) or scale != scale
            or (key[11] == SDPA and causal and (forms[0] or forms[1]))):
        raise Unusual
    rows_first = bshd or form == MODEL or (form == SDPA and q_head < q_row)
    shape, lse_shape = (batch, heads, rows, dim_v), (batch, heads, rows)
    strides = (size, dim_v, heads * dim_v, 1) if rows_first else (size, rows * dim_v, dim_v, 1)
    o_batch, o_head, o_row = o_strides or (out_strides or strides)[:3]
    if bshd or form == MODEL:
        shape, strides = _bhsd((shape, strides), 1, False)
    seq_q, seq_kv, totals, options = rows, keys, (0, 0), PLAIN_OPTIONS
    if packed:
        if form == MODEL:
            shape, strides = (sequences, length, *shape[2:]), (length * strides[1], *strides[1:])
        else:
            shape, strides, lse_shape = shape[1:], strides[1:], lse_shape[1:]
        batch, seq_q, seq_kv, totals = cu_q[0][0] - 1, max_q, max_kv, (rows, keys)
    if rare:
        seq_kv = max_kv if table is not None else seq_kv
        options = _options((batch, heads, seq_q, seq_kv), window, softcap, usual, forms, totals,
                           table)
    problem = pack_problem(
        _HEADS[dtype], batch, heads, heads_kv, seq_q, seq_kv, dim, dim_v, q_batch, q_head, q_row,
        k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row, AUTO_LSE,
        math.nan if scale is None else scale, CAUSAL[causal], options, low & -low or 16)
    if paged:
        _check_vector(used_q, _INT, batch)
        if drafts is not None:
            if drafts[2] not in _WORDS:
                raise Unusual
            _check_vector(drafts, drafts[2], *((rows,) if packed else (batch, rows)))
        problem = with_serving(problem, *pages, used_q is not None, drafts is not None)
        if offset or offsets is not None:
            _check_vector(offsets, _INT, batch)
            problem = with_offsets(problem, offset, offsets is not None)
    if gpu >= 0 and threads is not None and threads != 0:
        integer("threads", threads, 0, MOST_THREADS)
    where = (gpu, 0 if gpu >= 0 else threads)
    return caches.get(where) or open_cache(*where), problem, shape, strides, lse_shape


def _keep(calls: Dict[Tuple[Any, ...], Any], key: Tuple[Any, ...], call: Any) -> None:
    """At once: a model's other layers ask for the same."""
    _, window, softcap, _, max_q, max_kv, _ = (key[14] or _NOTHING_RARE)[1:8]
    # A tensor in place of a number is equal to itself even when its value has changed.
    if all(isinstance(x, _VALUES) for x in (key[10], *key[12:14], softcap, max_q, max_kv, *window)):
        keep(calls, key, call)


def _new_call(calls: Dict[Tuple[Any, ...], _Call], key: Tuple[Any, ...]) -> _Call:
    cache, problem, *forms = _describe(key)
    call = cache.plan(problem), *forms
    if key[11] >= TRAIN:  # what backward does not support is refused now, while there is a choice
        _new_backward({}, (*key, forms[1], forms[1]))
    _keep(calls, key, call)
    return call


def _three(strides: Tuple[int, ...], bshd: int) -> Tuple[int, ...]:
    """Strides of any layout as (batch, head, row); packed sequences have no batch."""
    *batch, one, two, _ = strides
    return (*(batch or (0,)), *((two, one) if bshd else (one, two)))


def gradient_strides(shape: Tuple[int, ...], strides: Tuple[int, ...]) -> Tuple[int, ...]:
    """Of a new tensor whose heads and rows lie in memory in the order of another one's."""
    *_, one, two, dim = shape
    inner = (dim, one * dim) if strides[-3] < strides[-2] else (two * dim, dim)
    return (one * two * dim, *inner, 1)[-len(shape):]


def _new_backward(calls: Dict[Tuple[Any, ...], _BackwardCall],
                  key: Tuple[Any, ...]) -> _BackwardCall:
    *forward_key, o_strides, d_o_strides = key
    bshd = LAYOUT[(key[14] or _NOTHING_RARE)[1]]
    cache, problem, *_ = _describe(forward_key, _three(o_strides, bshd))
    gradients = tuple([(tuple(shape), gradient_strides(shape, strides))
                       for shape, strides in zip(key[:3], key[3:6])])
    problem = with_gradients(problem, *[
        step for strides in (*[strides for _, strides in gradients], d_o_strides)
        for step in _three(strides, bshd)])
    call = cache.plan(problem, None, BACKWARD), gradients
    _keep(calls, key, call)
    return call


# ---- any call --------------------------------------------------------------------------------


def _form(x: Any, gpu: int) -> _Form:
    if (type(x) not in PLAIN or x.get_device() != gpu or x.is_neg()
            or (x.requires_grad and _is_grad_enabled())):
        raise Unusual
    return x.shape, x.stride(), x.dtype


def run(plan: Plan, gpu: int, tensors: bytes, empty: Callable[..., torch.Tensor]) -> None:
    """On the CPU (gpu is -1), or on the current stream of the GPU. empty: allocator(gpu)."""
    if gpu < 0:
        plan.run_on_cpu(tensors)
    elif plan.size:
        workspace = empty((plan.size,), (1,), torch.uint8)
        plan.run(tensors, workspace.data_ptr(), _stream(gpu))
    else:
        plan.run(tensors, None, _stream(gpu))


def forward(q: Any, k: Any, v: Any, causal: Optional[str], scale: Any, bias: Any = None,
            mask: Any = None, form: int = ATTENTION, grouped: bool = True,
            threads: Optional[int] = 0, out: Any = None, layout: str = "bhsd",
            window: Any = NO_WINDOW, softcap: Any = 0.0, alibi: Any = None, sink: Any = None,
            used_kv: Any = None, cu_q: Any = None, cu_kv: Any = None, max_q: Any = None,
            max_kv: Any = None, want_lse: bool = False, block_table: Any = None,
            page_layout: str = "nhd", used_q: Any = None, draft_mask: Any = None,
            offset: int = 0, offsets: Any = None) -> Any:
    """As attention(), or None. form: SDPA is as PyTorch's function, whose attn_mask is bias here: a
    new output has heads and rows in the order of q's in memory. MODEL: with cu_q and cu_kv they
    count the rows of all sequences from the first of q and of k on. grouped: heads of q may share
    one of k. threads: None is torch.get_num_threads(). out: of the right shape, and memory of its
    own. offset: q_offset - kv_offset."""
    try:
        dtype, gpu = q.dtype, q.get_device()
        if not (type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN
                and k.dtype is dtype and v.dtype is dtype
                and k.get_device() == gpu and v.get_device() == gpu
                and (q.is_cuda if gpu >= 0 else q.is_cpu)) \
                or q.is_neg() or k.is_neg() or v.is_neg() or _forward_ad._current_level >= 0 \
                or (_is_grad_enabled()
                    and (q.requires_grad or k.requires_grad or v.requires_grad)):
            return None
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if at_k == at_v and form == ATTENTION and (k.shape != v.shape or k.shape[-1] > 256):
            return None  # MLA: v_in_k
        low, rare, at_others = (at_q | at_k | at_v) & 15, None, NO_OTHERS
        if not (bias is mask is alibi is sink is used_kv is cu_q is cu_kv is out is block_table is
                used_q is draft_mask is offsets is None and window == NO_WINDOW and softcap == 0.0
                and layout == "bhsd" and not offset):
            out_strides = None
            if out is not None:
                low, out_strides = low | out.data_ptr() & 15, out.stride()
            if form == SDPA and bias is not None and bias.dtype is torch.bool:
                bias, mask = None, bias
            usual = alibi is True
            if usual or alibi is False:
                alibi = None
            rare = (out_strides, layout, window, softcap, usual, max_q, max_kv,
                    (None if bias is None else _form(bias, gpu),
                     None if mask is None else _form(mask, gpu),
                     None if alibi is None else _form(alibi, gpu),
                     None if sink is None else _form(sink, gpu),
                     None if cu_q is None else _form(cu_q, gpu),
                     None if cu_kv is None else _form(cu_kv, gpu),
                     None if used_kv is None else _form(used_kv, gpu)))
            at_others = pack_others(0 if bias is None else bias.data_ptr(),
                                    0 if mask is None else mask.data_ptr(),
                                    0 if alibi is None else alibi.data_ptr(),
                                    0 if sink is None else sink.data_ptr(),
                                    0 if cu_q is None else cu_q.data_ptr(),
                                    0 if cu_kv is None else cu_kv.data_ptr(),
                                    0 if used_kv is None else used_kv.data_ptr())
            if not (block_table is used_q is draft_mask is offsets is None and not offset):
                rare += ((None if block_table is None else _form(block_table, gpu), page_layout,
                          None if used_q is None else _form(used_q, gpu),
                          None if draft_mask is None else _form(draft_mask, gpu), offset,
                          None if offsets is None else _form(offsets, gpu)),)
                at_others = with_addresses(at_others,
                                           0 if block_table is None else block_table.data_ptr(),
                                           0 if used_q is None else used_q.data_ptr(),
                                           0 if draft_mask is None else draft_mask.data_ptr())
        if threads is None and gpu < 0:
            threads = _get_num_threads()
        calls = _plans.calls
        key = (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), dtype, gpu, low,
               causal, scale, form, grouped, threads, rare)
        plan, shape, strides, lse_shape = calls.get(key) or _new_call(calls, key)
        empty, lse, at_lse = allocator(gpu), None, 0
        if out is None:
            out = empty(shape, strides, dtype)
        at_out = out.data_ptr()
        if at_out & 15 & ~low:  # not what the plan takes for granted
            return None
        if want_lse:
            *_, heads, rows = lse_shape
            lse = empty(lse_shape, (heads * rows, rows, 1)[-len(lse_shape):], _FLOAT)
            at_lse = lse.data_ptr()
        tensors = pack_tensors(TENSORS_SIZE, at_q, at_k, at_v, at_out, at_lse, at_others)
        if offsets is not None:
            tensors = tensors_with_offsets(tensors, offsets.data_ptr())
        run(plan, gpu, tensors, empty)
        return (out, lse) if want_lse else out
    except _LEFT_TO_GENERAL as error:
        # The general path has no gradients: it cannot repeat the call to name what is wrong.
        if form >= TRAIN and (type(error) is Unsupported or isinstance(error, _NO_MEMORY)):
            raise
        return None
