# SPDX-License-Identifier: Apache-2.0
"""How chunks of keys and values come to a rank, and partial gradients back: around a ring, or all
at once. torch.distributed moves the bytes.

Invariant: sums of gradients run in float32 and in an order that only the ranks' numbers decide:
around the ring from the owner on, or from rank 0 on.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.distributed as dist

Tensor = torch.Tensor
Use = Callable[[int, Tensor, Tensor], Any]


class _Shape:
    """Of K and V of a chunk, which travel as one vector."""

    def __init__(self, k: Tensor, v: Tensor, lengths: Tuple[int, ...]) -> None:
        batch, heads, _, dim = k.shape
        self.forms = [((batch, heads, rows, dim), (batch, heads, rows, v.shape[3]))
                      for rows in lengths]
        # Never 0: every rank takes part in every transfer.
        self.sizes = [max(batch * heads * rows * (dim + v.shape[3]), 1) for rows in lengths]

    def views(self, flat: Tensor, chunk: int) -> Tuple[Tensor, Tensor]:
        form_k, form_v = self.forms[chunk]
        rows = form_k[0] * form_k[1] * form_k[2]
        end_k, end_v = rows * form_k[3], rows * (form_k[3] + form_v[3])
        return flat[:end_k].view(form_k), flat[end_k:end_v].view(form_v)

    def pack(self, k: Tensor, v: Tensor, chunk: int, dtype: torch.dtype) -> Tensor:
        """In a new vector that has room for any chunk."""
        flat = k.new_empty(max(self.sizes), dtype=dtype)
        for place, x in zip(self.views(flat, chunk), (k, v)):
            place.copy_(x)
        return flat


class Ring:
    """At step s rank r has the chunk of rank r - s. The next chunk is on its way while this one is
    computed with: two buffers. On GPUs NCCL's stream carries it; work enqueued before a transfer
    ends before the transfer begins, so that no buffer is overwritten too early."""

    def __init__(self, group: Optional[dist.ProcessGroup], lengths: Tuple[int, ...],
                 steps: int) -> None:
        self.group, self.lengths, self.steps = group, lengths, steps
        self.n, self.rank = len(lengths), dist.get_rank(group)

    def _peer(self, offset: int) -> int:
        rank = (self.rank + offset) % self.n
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _start(self, moves: List[Tuple[Tensor, int, Tensor, int]], hop: int = 1) -> List[Any]:
        """moves: (vector to send, its length, vector to receive, its length)."""
        operations = []
        for tag, (sent, n_sent, received, n_received) in enumerate(moves):
            operations += [
                dist.P2POp(dist.isend, sent[:n_sent], self._peer(hop), self.group, tag),
                dist.P2POp(dist.irecv, received[:n_received], self._peer(-hop), self.group, tag)]
        return dist.batch_isend_irecv(operations)

    def forward(self, k: Tensor, v: Tensor, use: Use) -> None:
        if self.steps == 1:
            use(self.rank, k, v)
            return
        shape = _Shape(k, v, self.lengths)
        mine = shape.pack(k, v, self.rank, k.dtype)
        other = torch.empty_like(mine)
        for step in range(self.steps):
            chunk, after = (self.rank - step) % self.n, (self.rank - step - 1) % self.n
            works = []
            if step + 1 < self.steps:
                works = self._start([(mine, shape.sizes[chunk], other, shape.sizes[after])])
            use(chunk, *shape.views(mine, chunk))
            for work in works:
                work.wait()
            mine, other = other, mine

    def backward(self, k: Tensor, v: Tensor, use: Use) -> Tuple[Tensor, Tensor]:
        """use: gives parts of dK and dV of a chunk. Sums travel one step after their chunk: rank r
        adds to what ranks r - s to r - 1 have added."""
        shape = _Shape(k, v, self.lengths)
        sizes = shape.sizes
        mine = shape.pack(k, v, self.rank, k.dtype)
        total = mine.new_zeros(mine.shape, dtype=torch.float32)
        if self.steps > 1:
            other, incoming = torch.empty_like(mine), torch.empty_like(total)
        for step in range(self.steps):
            chunk, after = (self.rank - step) % self.n, (self.rank - step - 1) % self.n
            moves = []
            if step + 1 < self.steps:
                moves.append((mine, sizes[chunk], other, sizes[after]))
            if step > 0:  # the sums of the chunk before go on, those of this one come
                before = (self.rank - step + 1) % self.n
                moves.append((total, sizes[before], incoming, sizes[chunk]))
            works = self._start(moves) if moves else []
            found = use(chunk, *shape.views(mine, chunk))
            for work in works:
                work.wait()
            if step > 0:
                total, incoming = incoming, total
            for part in found:
                part.add_to(*shape.views(total, chunk))
            if step + 1 < self.steps:
                mine, other = other, mine
        if self.steps > 1:
            chunk = (self.rank - self.steps + 1) % self.n
            for work in self._start([(total, sizes[chunk], incoming, sizes[self.rank])],
                                    1 - self.steps):
                work.wait()
            total = incoming
        return shape.views(total, self.rank)


class Gathered:
    """All keys at once, on every rank."""

    def __init__(self, group: Optional[dist.ProcessGroup], lengths: Tuple[int, ...]) -> None:
        self.group, self.lengths = group, lengths
        self.rank = dist.get_rank(group)

    def _all(self, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        if len(self.lengths) == 1:
            return k, v
        shape = _Shape(k, v, self.lengths)
        mine = shape.pack(k, v, self.rank, k.dtype)
        received = [torch.empty_like(mine) for _ in self.lengths]
        dist.all_gather(received, mine, group=self.group)
        each = [shape.views(flat, rank) for rank, flat in enumerate(received)]
        return torch.cat([x for x, _ in each], 2), torch.cat([x for _, x in each], 2)

    def forward(self, k: Tensor, v: Tensor, use: Use) -> None:
        use(0, *self._all(k, v))

    def backward(self, k: Tensor, v: Tensor, use: Use) -> Tuple[Tensor, Tensor]:
        shape = _Shape(k, v, self.lengths)
        found = [x.new_zeros((*x.shape[:2], sum(self.lengths), x.shape[3]), dtype=torch.float32)
                 for x in (k, v)]
        for part in use(0, *self._all(k, v)):
            part.add_to(*found)
        if len(self.lengths) == 1:
            return found
        sent = torch.cat([x.flatten() for pair in zip(*(x.split(list(self.lengths), 2)
                                                        for x in found)) for x in pair])
        n, row = len(self.lengths), sent.numel() // max(sum(self.lengths), 1)
        sizes = [rows * row for rows in self.lengths]
        received = sent.new_empty((n, sizes[self.rank]))
        dist.all_to_all_single(received.view(-1), sent, [sizes[self.rank]] * n, sizes,
                               group=self.group)
        total = torch.zeros_like(received[0])
        for part in received:
            total += part
        return shape.views(total, self.rank)


def exchange(x: Tensor, lengths: Tuple[int, ...], group: Optional[dist.ProcessGroup],
             gather: bool) -> Tensor:
    """From (batch, heads, local rows, dim) to (batch, heads / n, all rows, dim), or back."""
    n, rank = len(lengths), dist.get_rank(group)
    batch, heads, rows, dim = x.shape
    if gather:
        heads //= n
        sent = x.reshape(batch, n, heads, rows, dim).movedim(1, 0).contiguous().view(-1)
    else:
        rows = lengths[rank]
        sent = torch.cat([part.flatten() for part in x.split(list(lengths), 2)])
    sizes = [batch * heads * length * dim for length in lengths]
    mine = [batch * heads * rows * dim] * n
    received = sent.new_empty(sum(sizes) if gather else sum(mine))
    dist.all_to_all_single(received, sent, *((sizes, mine) if gather else (mine, sizes)),
                           group=group)
    if not gather:
        return received.view(n, batch, heads, rows, dim).movedim(0, 1).flatten(1, 2)
    return torch.cat([part.view(batch, heads, length, dim)
                      for part, length in zip(received.split(sizes), lengths)], 2)
