# SPDX-License-Identifier: Apache-2.0
"""Which method: a cost model of each, and why the cheapest is that.

A step of compute costs flops / rate, a transfer latency + bytes / bandwidth. A ring's step costs
the longer of the two; transfers of the other methods overlap with nothing.

Invariant: the estimate depends on the arguments alone, so that all ranks choose the same method.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .._arguments import NO_WINDOW
from .._library import InvalidArgument
from ._chunks import ORDER
from ._parts import HELD

METHODS = tuple(name for name in ORDER if name != "auto")
BACKWARD = 2.5  # flops of backward, of forward's
# Bytes per second out of a rank, seconds per transfer, flops per second. Rough: NVLink and a GPU of
# the Hopper class in bf16; processes that share a machine's cores. plan() takes measured ones.
RATES = {"nccl": (200e9, 20e-6, 500e12), "gloo": (2e9, 100e-6, 50e9)}


class Estimate(NamedTuple):
    method: str
    seconds: float   # of the slowest rank
    compute: float   # of these, its own computing
    sent: int        # bytes that a rank sends
    memory: int      # bytes that a rank holds beside its chunks and its results


class Plan(NamedTuple):
    """str() is a table of all methods and the reason."""
    method: str
    order: str  # of the rows, as shard(method=...) cuts them
    estimates: Tuple[Estimate, ...]  # the fastest first
    refused: Dict[str, str]          # method: why it cannot be used
    problem: str

    def __str__(self) -> str:
        lines = [self.problem]
        for one in self.estimates:
            lines.append(f"  {one.method:9} {one.seconds * 1e3:10.3f} ms  compute "
                         f"{one.compute * 1e3:10.3f} ms  sends {one.sent / 1e6:10.3f} MB  buffers "
                         f"{one.memory / 1e6:10.3f} MB")
        lines += [f"  {method:9} no: {why}" for method, why in self.refused.items()]
        best = self.estimates[0]
        hidden = "computing" if best.compute > 0.5 * best.seconds else "transfers"
        lines.append(f"  {self.method}: the least time, most of it {hidden}; rows in "
                     f"{self.order} order")
        return "\n".join(lines)


class _Model(NamedTuple):
    n: int
    pair: float        # seconds for all scores of a chunk of queries and a chunk of keys
    bytes_q: int       # of a chunk of q
    bytes_o: int
    bytes_kv: int      # of a chunk of k and v
    sums: int          # of a chunk's dK and dV in float32
    causal: bool
    keys: float        # chunks of keys that a query sees in a window; 0 is no window
    bandwidth: float
    latency: float
    gradients: bool

    def move(self, size: float, messages: int = 1) -> float:
        return messages * self.latency + size / self.bandwidth if size else 0.0

    def ring(self, method: str) -> Estimate:
        if self.keys:
            steps = min(self.n, math.ceil(self.keys) + 1)
            work = [self.keys / steps] * steps
        elif self.causal:
            steps = self.n
            work = [0.5] * steps if method == "zigzag" else [0.5] + [1.0] * (steps - 1)
        else:
            steps, work = self.n, [1.0] * self.n
        seconds = compute = 0.0
        sent = 0
        for factor, once, after in ((1.0, self.bytes_kv, 0),) + \
                (((BACKWARD, self.bytes_kv, self.sums),) if self.gradients else ()):
            for step, part in enumerate(work):
                size = once * (step + 1 < steps) + after * (0 < step)
                seconds += max(part * factor * self.pair, self.move(size))
                compute += part * factor * self.pair
                sent += size
            if after and steps > 1:
                seconds += self.move(after)
                sent += after
        memory = 2 * (self.bytes_kv + (self.sums if self.gradients else 0)) + \
            min(steps, HELD) * self.bytes_o
        return Estimate(method, seconds, compute, sent, memory if steps > 1 else 0)

    def _passes(self, balanced: bool) -> float:
        causal = self.n / 2 if balanced else self.n - 0.5
        share = self.keys or (causal if self.causal else self.n)
        return share * self.pair * (1 + BACKWARD * self.gradients)

    def allgather(self) -> Estimate:
        others, compute = self.n - 1, self._passes(False)
        gather = others * self.bytes_kv
        back = self.gradients * others * self.sums
        calls = 1 + 2 * self.gradients
        seconds = compute + self.move(gather * (1 + self.gradients) + back, calls)
        return Estimate("allgather", seconds, compute, gather * (1 + self.gradients) + back,
                        self.n * (self.bytes_kv + self.gradients * self.sums))

    def ulysses(self) -> Estimate:
        compute = self._passes(True)
        size = (self.bytes_q + self.bytes_kv + self.bytes_o) * (self.n - 1) // self.n
        size *= 1 + self.gradients
        return Estimate("ulysses", compute + self.move(size, 4 * (1 + self.gradients)), compute,
                        size, 2 * (self.bytes_q + self.bytes_kv + self.bytes_o))


def refusals(ranks: int, heads: int, heads_kv: int, scores: bool) -> Dict[str, str]:
    """Methods that cannot be used. scores: there is a bias or a mask."""
    found = {}
    if heads % ranks or heads_kv % ranks:
        found["ulysses"] = (f"q has {heads} heads and k has {heads_kv}, expected multiples of the "
                            f"{ranks} ranks")
    elif scores:
        found["ulysses"] = "there is a bias or a mask, expected none: its rows are not exchanged"
    return found


def plan(batch: int, heads: int, seq: int, dim: int, *, ranks: int, heads_kv: Optional[int] = None,
         dim_v: Optional[int] = None, seq_kv: Optional[int] = None, item_bytes: int = 2,
         causal: Any = None, window: Sequence[int] = NO_WINDOW, gradients: bool = False,
         scores: bool = False, backend: str = "nccl", methods: Sequence[str] = METHODS,
         bandwidth: Optional[float] = None, latency: Optional[float] = None,
         flops: Optional[float] = None) -> Plan:
    """The fastest of the methods for the whole sequence of seq tokens on `ranks` ranks.

    item_bytes: of an element. gradients: forward and backward. scores: there is a bias or a mask.
    backend: "nccl" or "gloo", whose usual rates count where none is given: bandwidth (bytes per
    second out of a rank), latency (seconds per transfer), flops (per second, of attention).

    >>> from attn.distributed import plan
    >>> found = plan(1, 32, 1 << 20, 128, ranks=8, heads_kv=8, causal=True)
    >>> found.method, found.order
    ('zigzag', 'zigzag')
    >>> plan(1, 32, 8192, 128, ranks=8, heads_kv=4).refused
    {'ulysses': 'q has 32 heads and k has 4, expected multiples of the 8 ranks'}
    """
    if backend not in RATES:
        raise InvalidArgument(f"backend is {backend!r}, expected 'nccl' or 'gloo'")
    usual = RATES[backend]
    bandwidth, latency, flops = (b if a is None else a
                                 for a, b in zip((bandwidth, latency, flops), usual))
    heads_kv, dim_v = heads_kv or heads, dim_v or dim
    rows, keys = seq / ranks, (seq if seq_kv is None else seq_kv) / ranks
    left, right = window[0], 0 if causal else window[1]
    seen = 0.0
    if left >= 0 and right >= 0:
        seen = min((left + 1 + right) / keys, ranks) if keys else 0.0
    elements = batch * keys * heads_kv * (dim + dim_v)
    model = _Model(
        ranks, 2 * (dim + dim_v) * batch * heads * rows * keys / flops,
        int(batch * heads * rows * dim * item_bytes),
        int(batch * heads * rows * dim_v * item_bytes), int(elements * item_bytes),
        int(elements * 4), bool(causal), seen, bandwidth, latency, gradients)
    refused = {method: why for method, why in refusals(ranks, heads, heads_kv, scores).items()
               if method in methods}
    found: List[Estimate] = []
    for method in methods:
        if method not in METHODS:
            raise InvalidArgument(f"method is {method!r}, expected one of {', '.join(METHODS)}")
        if method not in refused:
            found.append(model.ring(method) if method in ("ring", "zigzag") else
                         model.allgather() if method == "allgather" else model.ulysses())
    # Of equals the first one named: sorted() keeps their order.
    found = sorted(found, key=lambda one: one.seconds)
    words = f"{ranks} ranks by {backend}: batch {batch}, heads {heads}/{heads_kv}, {seq} tokens, " \
        f"dim {dim}{', causal' if causal else ''}{f', window {tuple(window)}' if seen else ''}" \
        f"{', with gradients' if gradients else ''}"
    return Plan(found[0].method, ORDER[found[0].method], tuple(found), refused, words)
