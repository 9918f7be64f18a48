# SPDX-License-Identifier: Apache-2.0
"""Which rows lie on which rank, and which blocks of scores a rank computes with a chunk of keys.

A sequence is cut into segments, ranges of positions. With the contiguous order a rank has one, with
zigzag two: of 2n pieces, rank r has pieces r and 2n - 1 - r, which balances a causal mask.

Invariant: every visible (query, key) lies in exactly one block of exactly one rank, and no block
has a row or a key that is not needed. All ranks compute the same geometry.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from itertools import accumulate
from typing import Dict, List, NamedTuple, Optional, Tuple

from .._library import InvalidArgument

ORDER = {"ring": "contiguous", "ulysses": "contiguous", "allgather": "contiguous",
         "auto": "contiguous", "zigzag": "zigzag"}
Lengths = Tuple[int, ...]


def even(total: int, parts: int) -> Lengths:
    """Lengths that differ by at most one, the longer ones first."""
    return tuple(total // parts + (i < total % parts) for i in range(parts))


def rows_of(total: int, n: int, order: str) -> Lengths:
    """How many rows each of n ranks gets."""
    if order == "contiguous":
        return even(total, n)
    pieces = even(total, 2 * n)
    return tuple(pieces[rank] + pieces[2 * n - 1 - rank] for rank in range(n))


class Segment(NamedTuple):
    start: int  # position in the whole sequence
    stop: int
    row: int    # of the chunk, where it starts


@functools.lru_cache(maxsize=256)
def chunks(lengths: Lengths, order: str) -> Tuple[Tuple[Segment, ...], ...]:
    """The segments of each rank, by the number of rows it has."""
    n, zigzag = len(lengths), order == "zigzag"
    pieces = even(sum(lengths), 2 * n) if zigzag else lengths
    starts = list(accumulate(pieces, initial=0))
    expected = rows_of(sum(lengths), n, order)
    if zigzag and lengths != expected:
        raise InvalidArgument(f"the ranks have {list(lengths)} rows in the order of zigzag, "
                              f"expected {list(expected)}, as shard() cuts them")
    found = []
    for rank in range(n):
        mine, row = [], 0
        for piece in (rank, 2 * n - 1 - rank) if zigzag else (rank,):
            mine.append(Segment(starts[piece], starts[piece] + pieces[piece], row))
            row += pieces[piece]
        found.append(tuple(mine))
    return tuple(found)


class Block(NamedTuple):
    """Rows [q0, q1) of a chunk of queries and [k0, k1) of a chunk of keys; window: keys visible
    (before, after) the diagonal that ends in the last row and key, -1 for no bound; offset: from
    that diagonal to the one of equal positions; k_at: the position of the first key."""
    q0: int
    q1: int
    k0: int
    k1: int
    window: Tuple[int, int]
    offset: int
    k_at: int


def _block(q0: int, q1: int, k0: int, k1: int, left: int, right: int) -> Optional[Block]:
    """Of queries at the positions [q0, q1) and keys at [k0, k1), what is visible."""
    if left >= 0:
        k0 = max(k0, q0 - left)
    if right >= 0:
        k1 = min(k1, q1 + right)
        q0 = max(q0, k0 - right)
    if left >= 0:
        q1 = min(q1, k1 + left)
    if q0 >= q1 or k0 >= k1:
        return None
    return Block(q0, q1, k0, k1, (left + k1 - q1 if left >= 0 else -1,
                                  right + q1 - k1 if right >= 0 else -1), q1 - k1, k0)


class Run(NamedTuple):
    """Blocks of neighbouring sequences with one window: one call. q_lengths and k_lengths: of
    packed sequences, else empty."""
    block: Block
    q_lengths: Lengths
    k_lengths: Lengths


def _runs(blocks: List[Block]) -> List[Run]:
    found: List[List[Block]] = []
    for block in blocks:
        last = found[-1][-1] if found else None
        if last and (last.q1, last.k1, last.window, last.offset) == \
                (block.q0, block.k0, block.window, block.offset):
            found[-1].append(block)
        else:
            found.append([block])
    runs = []
    for many in found:
        first, last = many[0], many[-1]
        if len(many) > 1:
            runs.append(Run(first._replace(q1=last.q1, k1=last.k1),
                            tuple(b.q1 - b.q0 for b in many), tuple(b.k1 - b.k0 for b in many)))
            continue
        left, right = first.window
        rows, keys = first.q1 - first.q0, first.k1 - first.k0
        # A bound that hides nothing in this block: kernels without masks are faster.
        left, right = (-1 if left >= keys - 1 else left), (-1 if right >= rows - 1 else right)
        runs.append(Run(first._replace(window=(left, right)), (), ()))
    return runs


_UNMASKED = (-1, -1)


def _join(each: List[List[Run]]) -> List[List[Run]]:
    """Blocks that are neighbours in a rank's memory, though not in their positions, in one call:
    keys before those of a block that all its rows see, and rows that see the same keys."""
    found: List[List[Run]] = []
    for runs in each:
        rest = []
        for run in runs:
            one = run.block
            for some in found:
                for i, other in enumerate(some):
                    before = other.block
                    if before.window == _UNMASKED and one.window[0] < 0 and \
                            (before.q0, before.q1, before.k1) == (one.q0, one.q1, one.k0):
                        some[i] = Run(one._replace(k0=before.k0), (), ())
                        break
                else:
                    continue
                break
            else:
                rest.append(run)
        found.append(rest)
    for i, runs in enumerate(found):
        joined: List[Run] = []
        for run in runs:
            last, one = joined[-1].block if joined else None, run.block
            if last and last.window == one.window == _UNMASKED and \
                    (last.q1, last.k0, last.k1) == (one.q0, one.k0, one.k1):
                joined[-1] = Run(last._replace(q1=one.q1), (), ())
            else:
                joined.append(run)
        found[i] = joined
    return found


class Geometry:
    """Of one rank. whole: all keys are one chunk. join: scores do not depend on positions but for
    their visibility."""

    def __init__(self, rank: int, q_lengths: Lengths, kv_lengths: Lengths, order: str, whole: bool,
                 join: bool, causal: Optional[str], window: Tuple[int, int],
                 cu_seqlens: Optional[Lengths]) -> None:
        self.rank, self.cu, self.join = rank, cu_seqlens, join and cu_seqlens is None
        self.left, self.right = window[0], 0 if causal else window[1]
        self.q_chunks, self.kv_chunks = chunks(q_lengths, order), chunks(kv_lengths, order)
        total_q, total_kv = sum(q_lengths), sum(kv_lengths)
        if whole:
            self.kv_chunks = ((Segment(0, total_kv, 0),),)
        # Of a query's position from its row: diagonals end in the last row and key.
        self.shift = 0 if causal == "top-left" or cu_seqlens is not None else total_kv - total_q
        self._known: Dict[int, List[List[Run]]] = {}

    def runs(self, chunk: int) -> List[List[Run]]:
        """What this rank computes with a chunk of keys. A row is at most once in each list."""
        found = self._known.get(chunk)
        if found is None:
            found = [self._of(segment) for segment in self.kv_chunks[chunk]]
            if self.join:
                found = _join(found)
            found = self._known[chunk] = [runs for runs in found if runs]
        return found

    def _of(self, keys: Segment) -> List[Run]:
        blocks = []
        for q in self.q_chunks[self.rank]:
            for first, last in self._sequences(q):
                q0, q1 = max(q.start, first) + self.shift, min(q.stop, last) + self.shift
                k0, k1 = (keys.start, keys.stop) if self.cu is None else \
                    (max(keys.start, first), min(keys.stop, last))
                found = _block(q0, q1, k0, k1, self.left, self.right)
                if found:
                    row, key = q.row - q.start - self.shift, keys.row - keys.start
                    blocks.append(found._replace(q0=found.q0 + row, q1=found.q1 + row,
                                                 k0=found.k0 + key, k1=found.k1 + key))
        return _runs(blocks)

    def _sequences(self, q: Segment) -> List[Tuple[int, int]]:
        if self.cu is None:
            return [(q.start, q.stop)]
        i = max(bisect_right(self.cu, q.start) - 1, 0)
        found = []
        while i + 1 < len(self.cu) and self.cu[i] < q.stop:
            found.append((self.cu[i], self.cu[i + 1]))
            i += 1
        return found

    @functools.cached_property
    def steps(self) -> int:
        """Of a ring, until no rank needs a chunk any more."""
        n, needed = len(self.kv_chunks), 1
        if self.left < 0:
            return n
        for rank in range(n):
            for step in range(needed, n):
                if any(_block(q.start + self.shift, q.stop + self.shift, k.start, k.stop, self.left,
                              self.right)
                       for q in self.q_chunks[rank] for k in self.kv_chunks[(rank - step) % n]):
                    needed = step + 1
        return needed


@functools.lru_cache(maxsize=64)
def geometry(*arguments) -> Geometry:
    return Geometry(*arguments)
