# SPDX-License-Identifier: Apache-2.0
"""What attn.flash_attn and attn.flash_attn_interface share: one call, and one step with a KV cache.

Tensors are (batch, seq, heads, dim), or (total, heads, dim) with cu_seqlens. The causal diagonal
ends in the bottom right corner.

The library has no option for used lengths of queries or for the first key of a cache. compute()
expresses both by 2 batch + 1 packed sequences: those of the call, and before, between and after
them the rows that belong to none, as sequences without keys.

Invariant: what the library does not compute raises attn.Unsupported with the reason; no argument
that changes the result is ignored.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from ._attention import attention, differentiable, needs_gradient
from ._library import InvalidArgument, Unsupported
from ._flash_options import (FP8, chunk_mask, pieces, places, scaled, wide, with_qv,
                             without_gradient)
from ._serving import append
from .torch import _is_dynamo_compiling, _refuse_dropout, _rows

Tensor = torch.Tensor
Scales = Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]
_INT = torch.int32


# ---- one call ----------------------------------------------------------------------------------


def _packed(x: Tensor) -> Tuple[Tensor, int]:
    """All rows of (batch, seq, heads, dim) as (total, heads, dim), and the number of rows from one
    sequence to the next. A view where strides allow it."""
    batch, rows = x.shape[:2]
    step, rest = divmod(x.stride(0), max(x.stride(1), 1))
    if batch > 1 and (rest or step < rows):
        x = x.contiguous()
        step = rows
    step = step if batch > 1 else rows
    total = (batch - 1) * step + rows if batch else 0
    return x.as_strided((total, *x.shape[2:]), x.stride()[1:]), step


def _bounds(starts: Tensor, lengths: Tensor, total: Any) -> Tensor:
    """cu_seqlens of 2 batch + 1 sequences: those at odd places are the given ones."""
    ends = torch.stack((starts, starts + lengths), 1).flatten().to(_INT)
    last = total if isinstance(total, Tensor) else ends.new_full((1,), total)
    return torch.cat((ends.new_zeros(1), ends, last))


def _every_other(x: Tensor) -> Tensor:
    """One entry for each sequence of _bounds, 0 for those between."""
    spread = x.new_zeros((2 * x.shape[0] + 1, *x.shape[1:]))
    spread[1::2] = x
    return spread


def _lengths(cu: Tensor, used: Optional[Tensor]) -> Tensor:
    return cu[1:] - cu[:-1] if used is None else used


def _ranges(q: Tensor, k: Tensor, v: Tensor, cu_q: Any, cu_k: Any, max_q: Any, max_k: Any,
            used_q: Any, used_k: Any, first_k: Any, chunk: int) -> Tuple[Any, ...]:
    """q, k and v packed, and the options of attention() that say which rows count."""
    if cu_q is None:
        batch, max_q = q.shape[:2]
        cu_q = torch.arange(batch + 1, dtype=_INT, device=q.device) * max_q
        q = q.reshape(batch * max_q, *q.shape[2:])
    starts_q, lengths_q = cu_q[:-1], _lengths(cu_q, used_q)
    if cu_k is None:
        batch, rows = k.shape[:2]
        (k, step), (v, step_v) = _packed(k), _packed(v)
        if step != step_v:
            raise InvalidArgument(f"the sequences of v lie {step_v} rows apart, expected {step} as "
                                  "those of k")
        starts = torch.arange(batch, dtype=_INT, device=k.device) * step
        lengths = torch.full_like(starts, rows) if used_k is None else used_k
        if first_k is not None:
            starts, lengths = starts + first_k, lengths - first_k
        total, most = k.shape[0], rows
        # The longest sequence. The CPU backend also checks the rows between the given ones.
        max_k = rows if q.is_cuda else rows + step
    else:
        starts, lengths = cu_k[:-1], _lengths(cu_k, used_k)
        total, most = cu_k[-1:], max_k
    if chunk:
        starts_q, lengths_q, starts, lengths = pieces(starts_q, lengths_q, starts, lengths, chunk,
                                                      most)
    bounds_q = _bounds(starts_q, lengths_q, cu_q[-1:])
    bounds_k = _bounds(starts, lengths, total)
    return q, k, v, dict(cu_seqlens_q=bounds_q, cu_seqlens_kv=bounds_k, max_seqlen_q=max_q,
                         max_seqlen_kv=max_k, used_kv=_every_other(lengths.to(_INT)))


def compute(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, scale: Optional[float],
            causal: bool, window: Any, softcap: float, alibi: Optional[Tensor] = None,
            sink: Optional[Tensor] = None, cu_q: Optional[Tensor] = None,
            cu_k: Optional[Tensor] = None, max_q: Any = None, max_k: Any = None,
            used_q: Optional[Tensor] = None, used_k: Optional[Tensor] = None,
            first_k: Optional[Tensor] = None, want_lse: bool = True,
            table: Optional[Tensor] = None, qv: Optional[Tensor] = None,
            scales: Scales = (None, None, None), chunk: int = 0,
            cache: bool = False) -> Tuple[Tensor, Any]:
    """out and, if wanted, lse. first_k: the first visible key of each batch entry; used_k counts
    keys from 0 on, also those before it. table: the block table; k and v are then pages. scales: of
    q, k and v, each (batch, heads_k). chunk: attention_chunk. cache: fp8 keys are read as such."""
    if _is_dynamo_compiling():  # the graph breaks here
        return _outside_of_graphs(q, k, v, dropout_p, scale, causal, window, softcap, alibi, sink,
                                  cu_q, cu_k, max_q, max_k, used_q, used_k, first_k, want_lse,
                                  table, qv, scales, chunk, cache)
    if sink is not None:
        sink = sink.reshape(-1).float()
    _refuse_dropout(dropout_p)
    left, right = window
    window = (-1 if left is None or left < 0 else left, -1 if right is None or right < 0 else right)
    q = scaled(wide(q), scales[:2], cu_q)
    k, v = (k, v) if cache else (wide(k), wide(v))
    if qv is not None:
        qv = scaled(wide(qv), scales[::2], cu_q)
        q, k, v = with_qv(q, k, v, qv)
    q, k, v = _rows(q), _rows(k), _rows(v)
    shape = q.shape
    max_q, max_k = (x if x is None else int(x) for x in (max_q, max_k))
    mask, rows = None, {}  # rows: of q that exist
    train = table is None and needs_gradient(q, alibi, sink, k, v)
    if table is not None:
        lengths = used_k if cu_k is None else _lengths(cu_k, used_k)
        keys = table.shape[1] * k.shape[1]
        first = 0 if first_k is None else first_k[:, None]
        if first_k is not None:  # positions count from the last key, so a mask suffices
            mask = (torch.arange(keys, device=q.device) >= first)[:, None, None]
        if chunk and lengths is not None:  # None: refused below
            rows_q = q.shape[1] if cu_q is None else _lengths(cu_q, used_q)[:, None]
            same = chunk_mask(max_q or q.shape[1], rows_q, keys, first, lengths, chunk)
            mask = same if mask is None else same & mask
        which = dict(cu_seqlens_q=cu_q, cu_seqlens_kv=None, max_seqlen_q=max_q, max_seqlen_kv=max_k,
                     used_kv=lengths)
    elif (first_k is None and not chunk and (cu_q is None) == (cu_k is None)
          and (used_q is None or not train)):
        rows = {} if used_q is None else {"used_q": used_q}
        which = dict(cu_seqlens_q=cu_q, cu_seqlens_kv=cu_k, max_seqlen_q=max_q,
                     max_seqlen_kv=max_k, used_kv=used_k)
    else:
        if alibi is not None and alibi.dim() == 2:
            alibi = _every_other(alibi)
        q, k, v, which = _ranges(q, k, v, cu_q, cu_k, max_q, max_k, used_q, used_k, first_k, chunk)
    options = dict(causal="bottom-right" if causal else None, scale=scale, window=window,
                   softcap=max(softcap, 0.0), alibi=alibi, bias=None, mask=mask, sink=sink, **which,
                   layout="bshd", threads=torch.get_num_threads() if q.is_cpu else 0)
    lse = None
    if table is not None:
        out, lse = attention(q, k, v, return_lse=True, block_table=table, **options)
    elif train:
        try:
            out, lse = differentiable(q, k, v, *options.values())
        except Unsupported as error:
            with torch.no_grad():
                out, lse = attention(q, k, v, return_lse=True, **options, **rows)
            out = without_gradient(out, error, q, k, v, alibi, sink)
    elif want_lse:
        out, lse = attention(q, k, v, return_lse=True, **options, **rows)
    else:
        out = attention(q, k, v, **options, **rows)
    if len(shape) == 4 and out.dim() == 3:
        out = out.view(*shape[:3], -1)
        if lse is not None:
            lse = lse.view(-1, *shape[:2]).transpose(0, 1).contiguous()
    return scaled(out, scales[2:], cu_q), lse


_outside_of_graphs = torch.compiler.disable(compute)


# ---- a KV cache --------------------------------------------------------------------------------


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Rotary position embedding of the first 2 * cos.shape[1] columns."""
    half = cos.shape[1]
    cos, sin = (table[positions].unsqueeze(-2).float() for table in (cos, sin))
    turned = x[..., :2 * half].float()
    one, two = ((turned[..., ::2], turned[..., 1::2]) if interleaved
                else (turned[..., :half], turned[..., half:]))
    pair = one * cos - two * sin, one * sin + two * cos
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half:]), -1)


def _entries(cache: Tensor, at: Tensor) -> Tensor:
    """A copy of these entries. PyTorch does not index fp8."""
    if cache.dtype in FP8:
        return cache.view(torch.uint8)[at].view(cache.dtype)
    return cache[at]


_append = torch.compiler.disable(append)


def _append_rows(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor,
                 rotary: Tuple[Any, Any, bool, Any], used: Tensor, after: Tensor,
                 entries: Optional[Tensor], moves: bool, cu_q: Optional[Tensor],
                 cu_new: Optional[Tensor], table: Optional[Tensor]) -> Tensor:
    """k and v into the cache; q, rotated. moves: query i is at the place of its key, else all are
    at that of the first. One launch does all where q has the rows of k."""
    cos, sin, interleaved, positions = rotary
    k, v, cos, sin = wide(k), wide(v), wide(cos), wide(sin)
    rope, together = None, False
    if cos is not None:
        start = used if positions is None else positions
        if positions is None:
            rope = tuple(x.contiguous() if x.dtype in (torch.float32, k.dtype)
                         else x.float().contiguous() for x in (cos, sin))
        else:
            entry, place = places(k, cu_new)
            k = _rotate(k, cos, sin, start[entry] + place, interleaved)
        together = rope is not None and moves and cu_q is cu_new and q.shape[:-2] == k.shape[:-2]
        if not together:
            of_q, place_q = places(q, cu_q)
            q = _rotate(q, cos, sin, start[of_q] + (place_q if moves else 0 * place_q), interleaved)
    if table is None and (entries is not None or cu_new is not None):
        # an entry of the cache is a page
        table = torch.arange(after.shape[0], dtype=_INT, device=q.device) if entries is None \
            else entries.to(_INT)
        table = table[:, None]
    elif table is not None and entries is not None:
        table = table[entries.long()]
    turned = _append(_rows(k), _rows(v), k_cache, v_cache, used_kv=after, block_table=table,
                     rope=rope, interleaved=interleaved, q=_rows(q) if together else None,
                     cu_seqlens_q=cu_new, layout="bshd",
                     threads=torch.get_num_threads() if q.is_cpu else 0)
    return turned if together else q


@torch.no_grad()
def with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor],
                 v: Optional[Tensor], rotary: Tuple[Any, Any, bool, Any], cache_seqlens: Any,
                 entries: Optional[Tensor], first_k: Optional[Tensor], scale: Optional[float],
                 causal: bool, window: Any, softcap: float, alibi: Optional[Tensor] = None,
                 sink: Optional[Tensor] = None, cu_q: Optional[Tensor] = None,
                 cu_new: Optional[Tensor] = None, max_q: Optional[int] = None,
                 want_lse: bool = True, table: Optional[Tensor] = None,
                 qv: Optional[Tensor] = None, scales: Scales = (None, None, None),
                 chunk: int = 0) -> Tuple[Tensor, Any]:
    """Appends k and v to the cache at cache_seqlens, and computes q against all keys of it.
    rotary: cos, sin, interleaved, and the first position of each sequence (None: cache_seqlens).
    entries: the cache entry of each sequence."""
    used, q = cache_seqlens, wide(q)
    if isinstance(used, int):
        batch = q.shape[0] if cu_q is None else cu_q.shape[0] - 1
        used = torch.full((batch,), used, dtype=_INT, device=q.device)
    if (k is None) != (v is None):
        raise InvalidArgument("one of k and v is None, expected both or none")
    if k is None and rotary[0] is not None:
        raise InvalidArgument("rotary_cos is given without k and v, expected both: keys are "
                              "rotated when they are appended")
    if k is not None:
        if used is None:
            raise InvalidArgument("cache_seqlens is None, expected the lengths at which k and v "
                                  "are appended")
        after = (used + (k.shape[1] if cu_new is None else cu_new[1:] - cu_new[:-1])).to(_INT)
        q = _append_rows(q, k_cache, v_cache, k, v, rotary, used, after, entries,
                         causal or tuple(window) != (-1, -1), cu_q, cu_new, table)
        used = after
    if entries is not None and table is not None:
        table = table[entries.long()]
    elif entries is not None:
        k_cache, v_cache = (_entries(x, entries.long()) for x in (k_cache, v_cache))
    return compute(q, k_cache, v_cache, 0.0, scale, causal, window, softcap, alibi, sink, cu_q,
                   None, max_q, None, None, None if used is None else used.to(_INT), first_k,
                   want_lse, table, qv, scales, chunk, True)
