# SPDX-License-Identifier: Apache-2.0
"""One chunk of keys for the queries of a rank: partial results, their merge, partial gradients.

Invariant: partial results are merged in the order in which they are added, in float32, HELD at one
time. Nothing else has a part in their bits.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from .. import _autograd
from .._attention import attention
from .._fast import ATTENTION, TRAIN
from .._serving import merge
from ._chunks import Block, Run

Tensor = torch.Tensor
HELD = 8  # partial results, at most, that wait for one merge


class Options(NamedTuple):
    """Of a call, the same for all blocks. alibi: slopes, True or None."""
    scale: Optional[float]
    softcap: float
    bias: Optional[Tensor]  # (.., local rows or 1, all keys or 1)
    mask: Optional[Tensor]
    alibi: Any


def _scores(x: Optional[Tensor], block: Block) -> Optional[Tensor]:
    """Of a bias or a mask, what belongs to a block."""
    if x is None:
        return None
    if x.dim() > 1 and x.shape[-2] > 1:
        x = x[..., block.q0:block.q1, :]
    if x.shape[-1] > 1:
        x = x[..., block.k_at:block.k_at + block.k1 - block.k0]
    return x


def _mask_of(run: Run, options: Options) -> Tuple[Optional[str], Tuple[int, int], int]:
    """causal, window and the offset of queries. Only ALiBi needs to know positions; windows are
    counted from the diagonal of the block, which every kernel has."""
    left, right = run.block.window
    offset = 0 if options.alibi is None else run.block.offset
    if offset:
        return None, (left + offset if left >= 0 else -1, right - offset if right >= 0 else -1), \
            offset
    return ("bottom-right", (left, -1), 0) if right == 0 else (None, (left, right), 0)


def _packed(run: Run, device: torch.device) -> Tuple[Optional[Tensor], ...]:
    """cu_seqlens of queries and keys."""
    if not run.q_lengths:
        return None, None
    both = [list(accumulate(lengths, initial=0)) for lengths in (run.q_lengths, run.k_lengths)]
    return tuple(torch.tensor(both, dtype=torch.int32).to(device).unbind(0))


def forward(run: Run, q: Tensor, k: Tensor, v: Tensor, options: Options,
            out: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """O and LSE of a run's rows. out: where O of all rows lies."""
    block, (causal, window, offset) = run.block, _mask_of(run, options)
    q, k, v = q[:, :, block.q0:block.q1], k[:, :, block.k0:block.k1], v[:, :, block.k0:block.k1]
    out = None if out is None else out[:, :, block.q0:block.q1]
    cu_q, cu_kv = _packed(run, q.device)
    packed = {}
    if cu_q is not None:
        q, k, v, out = q[0], k[0], v[0], None if out is None else out[0]
        packed = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv,
                  "max_seqlen_q": max(run.q_lengths), "max_seqlen_kv": max(run.k_lengths)}
    o, lse = attention(q, k, v, causal=causal, window=window, scale=options.scale,
                       softcap=options.softcap, alibi=options.alibi,
                       bias=_scores(options.bias, block),
                       mask=_scores(options.mask, block), return_lse=True, out=out,
                       threads=torch.get_num_threads(), q_offset=offset, **packed)
    return (o, lse) if o.dim() == 4 else (o[None], lse[None])


class Running:
    """(O, LSE) of all rows of a rank. Parts wait until there are HELD of them and are then merged at
    one time: a sum in float32 is read and written once, not for each. A sink is a part of its own,
    the first: O = 0, LSE = sink."""

    def __init__(self, q: Tensor, dim_v: int, sink: Optional[Tensor], options: Options) -> None:
        self._q, self._shape, self._options = q, (*q.shape[:3], dim_v), options
        self._held: List[Tuple[Tensor, Tensor]] = []
        self._sum: List[Tuple[Tensor, Tensor]] = []  # at most one, float32
        if sink is not None:
            o, lse = self._nothing()
            lse.copy_(sink[None, :, None].expand_as(lse))
            self._held.append((o.zero_(), lse))

    def _nothing(self) -> Tuple[Tensor, Tensor]:
        """Where LSE is -inf, merge() does not read O."""
        return (self._q.new_empty(self._shape),
                self._q.new_full(self._shape[:3], -torch.inf, dtype=torch.float32))

    def add(self, runs: List[Run], k: Tensor, v: Tensor) -> None:
        """runs: of different rows."""
        block = runs[0].block
        if block.q1 - block.q0 == self._shape[2]:
            part = forward(runs[0], self._q, k, v, self._options)
        else:
            part = self._nothing()
            for run in runs:
                _, lse = forward(run, self._q, k, v, self._options, part[0])
                part[1][:, :, run.block.q0:run.block.q1] = lse
        if len(self._held) == HELD:
            self._sum = [self._merged(torch.float32)]
            self._held = []
        self._held.append(part)

    def _merged(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        name, threads = str(dtype).rpartition(".")[2], torch.get_num_threads()
        parts = self._held
        if self._sum:
            parts = [*self._sum, merge(*zip(*parts), dtype="float32", threads=threads)]
        return merge(*zip(*parts), dtype=name, threads=threads)

    def result(self) -> Tuple[Tensor, Tensor]:
        """In the dtype of q, and float32. No more parts may follow."""
        return self._merged(self._q.dtype) if self._held else (self._q.new_zeros(self._shape),
                                                               self._nothing()[1])


class Sums:
    """Gradients of a rank's queries and options, in float32."""

    def __init__(self, q: Tensor, options: Options, wanted: Tuple[bool, bool]) -> None:
        bias, alibi = options.bias, options.alibi
        self.q = torch.zeros_like(q, dtype=torch.float32)
        self.bias = torch.zeros_like(bias, dtype=torch.float32) if wanted[0] else None
        self.alibi = torch.zeros_like(alibi) if wanted[1] else None


class KeyGradients(NamedTuple):
    """Parts of dK and dV, of the keys [k0, k1) of a chunk."""
    k0: int
    k1: int
    dk: Tensor
    dv: Tensor

    def add_to(self, dk: Tensor, dv: Tensor) -> None:
        """To the sums of the whole chunk."""
        dk[:, :, self.k0:self.k1] += self.dk
        dv[:, :, self.k0:self.k1] += self.dv


def backward(run: Run, d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
             options: Options, sums: Sums) -> KeyGradients:
    """Adds a run's gradients to sums; dk and dv of its keys. o and lse are those of all keys, so that
    P = exp(S - LSE) is exact; a sink is in lse, and needs no more."""
    block, (causal, window, offset) = run.block, _mask_of(run, options)
    rows, keys = slice(block.q0, block.q1), slice(block.k0, block.k1)
    cu_q, cu_kv = _packed(run, q.device)
    given = [d_o[:, :, rows], q[:, :, rows], k[:, :, keys], v[:, :, keys], o[:, :, rows],
             lse[:, :, rows].contiguous()]
    most: Tuple[Optional[int], Optional[int]] = None, None
    if cu_q is not None:
        given, most = [x[0] for x in given], (max(run.q_lengths), max(run.k_lengths))
    usual = options.alibi is True
    found = _autograd.backward(
        *given, _scores(options.bias, block), None if usual else options.alibi, None,
        _scores(options.mask, block), None, cu_q, cu_kv, None,
        (causal, options.scale, ATTENTION + TRAIN, True, torch.get_num_threads(), "bhsd", window,
         options.softcap, usual, *most, offset),
        (sums.bias is not None, sums.alibi is not None, False))
    dq, dk, dv = (x if x.dim() == 4 else x[None] for x in found[:3])
    sums.q[:, :, rows] += dq
    if sums.bias is not None:
        total = _scores(sums.bias, block)
        total += found[3]
    if sums.alibi is not None:
        sums.alibi += found[4]
    return KeyGradients(block.k0, block.k1, dk, dv)
