# SPDX-License-Identifier: Apache-2.0
"""Context parallelism on one device: python -m attn.peers --ranks.

The ranks of attn.distributed, one after the other in one process, each on a stream of its own. All
that a rank computes, merges, adds and copies runs; only messages do not. Beside them the one call
that computes the whole. And the rates of merges and sums, beside a copy of the device.

Invariant: a time is reported only for a result that passed the rule: against the double-precision
reference at the measured length, and against the one call in every row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import _library
from .._serving import accumulate, merge
from . import asking, backward
from .grids import square
from .machine import DTYPES, Machine, finite
from .measure import LOOSEST
from .sides import Side

SCHEMA = "attn-ranks/1"
MOST_TIMES, MOST_SPREAD, LEAST_HBM = 1.05, 0.03, 0.80
HBM = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12}  # B/s, by datasheet
FULL = square(1, 32, 8, 131072, 128, True)  # of Llama 3.1 8B
TINY = square(1, 4, 2, 512, 32, True)
METHODS = ("zigzag", "ring")
ROWS, ROUNDS, MOST_RANKS = 24, 3, 8
FILLER = 8  # copies of Q before a sample, so that the device never waits for its caller


class Still:
    """In the place of _transport.Ring: the chunks of all ranks lie here, nothing travels."""

    def __init__(self, rank: int, chunks: List[Any], sums: List[Any], lengths: Any) -> None:
        self.rank, self.chunks, self.sums, self.lengths = rank, chunks, sums, lengths

    def _pack(self, k: Any, v: Any) -> Any:
        from ..distributed._transport import _Shape
        return _Shape(k, v, self.lengths).pack(k, v, self.rank, k.dtype)

    def _order(self) -> List[int]:
        n = len(self.chunks)
        return [(self.rank - step) % n for step in range(n)]

    def forward(self, k: Any, v: Any, use: Callable[..., Any]) -> None:
        self._pack(k, v)
        for chunk in self._order():
            use(chunk, *self.chunks[chunk][1:3])

    def backward(self, k: Any, v: Any, use: Callable[..., Any]) -> Any:
        flat = self._pack(k, v)
        flat.new_zeros(flat.shape, dtype=self.sums[0][0].dtype)  # a ring begins its sums here
        for chunk in self._order():
            for part in use(chunk, *self.chunks[chunk][1:3]):
                part.add_to(*self.sums[chunk])
        return self.sums[self.rank]


class Ranks:
    """n ranks with their chunks of q, k, v and dO."""

    def __init__(self, machine: Machine, inputs: Sequence[Any], n: int, method: str) -> None:
        from ..distributed._chunks import ORDER, chunks, rows_of
        self.machine, self.torch, self.n, self.method = machine, machine.torch, n, method
        self.order, total = ORDER[method], inputs[0].shape[2]
        self.lengths = rows_of(total, n, self.order)
        self.places = chunks(self.lengths, self.order)
        self.chunks = [[self.torch.cat([x[:, :, one.start:one.stop] for one in places], 2)
                        for x in inputs] for places in self.places]
        self.sums: List[Any] = []
        self.graphs: List[Any] = []

    def forward(self, rank: int, chunk: Any = None) -> Tuple[Any, Any]:
        from ..distributed._chunks import geometry
        from ..distributed._parallel import _Call, _Parallel
        where = geometry(rank, self.lengths, self.lengths, self.order, False, True, "top-left",
                         (-1, -1), None)
        call = _Call(where, Still(rank, self.chunks, self.sums, self.lengths), None, 0.0, False)
        return _Parallel.apply(call, *(chunk or self.chunks[rank])[:3], None, None, None, None)

    def forget(self) -> None:
        """New sums; the gradients of the next calls go there."""
        floats = self.torch.float32
        self.sums[:] = [[self.torch.zeros_like(x, dtype=floats) for x in one[1:3]]
                        for one in self.chunks]

    def remember(self, rank: int) -> Tuple[Any, Any]:
        """A forward pass, whose gradients backward() computes."""
        leaves = [x.detach().requires_grad_() for x in self.chunks[rank][:3]]
        with self.torch.enable_grad():
            o, lse = self.forward(rank, leaves)
        self.graphs.append((leaves, o))
        return o.detach(), lse

    def backward(self, rank: int) -> Any:
        leaves, o = self.graphs[rank]
        return self.torch.autograd.grad(o, leaves, self.chunks[rank][3], retain_graph=True)

    def join(self, parts: Sequence[Any]) -> Any:
        """The whole tensor, of a part of each rank."""
        whole = parts[0].new_empty((*parts[0].shape[:2], sum(self.lengths), *parts[0].shape[3:]))
        for places, part in zip(self.places, parts):
            for one in places:
                whole[:, :, one.start:one.stop] = part[:, :, one.row:one.row + one.stop - one.start]
        return whole

    def gradients(self, dq: Sequence[Any]) -> Tuple[Any, ...]:
        """dQ of all ranks and the sums as whole tensors."""
        kv = [self.join([one[i] for one in self.sums]).to(dq[0].dtype) for i in (0, 1)]
        return (self.join(dq), *kv)


# ---- times -----------------------------------------------------------------------------------


class Clock:
    """Times of calls, each on a stream of its own if there is a GPU."""

    def __init__(self, machine: Machine, busy: Any) -> None:
        self.torch, self.gpu, self.busy = machine.torch, machine.gpu is not None, busy
        self.streams = [self.torch.cuda.Stream() for _ in range(MOST_RANKS)] if self.gpu else []

    def _filled(self) -> Any:
        """A current stream with work, so that no call waits for its caller."""
        self.torch.cuda.synchronize()
        scratch = self.torch.empty_like(self.busy)
        for _ in range(FILLER):
            scratch.copy_(self.busy)
        return self.torch.cuda.current_stream()

    def _seconds(self, marks: List[Any]) -> List[float]:
        self.torch.cuda.synchronize()
        return [1e-3 * start.elapsed_time(end) for start, end in marks]

    def each(self, calls: Sequence[Callable[[], Any]]) -> Tuple[List[float], List[Any]]:
        """One after the other: seconds and results."""
        if not self.gpu:
            times, results = [time.perf_counter()], []
            for call in calls:
                results.append(call())
                times.append(time.perf_counter())
            return [b - a for a, b in zip(times, times[1:])], results
        marks, results, before = [], [], self._filled()
        for call, stream in zip(calls, self.streams):
            stream.wait_stream(before)
            with self.torch.cuda.stream(stream):
                marks.append(self._marks())
                marks[-1][0].record()
                results.append(call())
                marks[-1][1].record()
            before = stream
        return self._seconds(marks), results

    def together(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Seconds of all of them at one time."""
        if not self.gpu:
            return sum(self.each(calls)[0])
        main, marks, kept = self._filled(), self._marks(), []
        marks[0].record()
        for call, stream in zip(calls, self.streams):
            stream.wait_stream(main)
            with self.torch.cuda.stream(stream):
                kept.append(call())
        for stream in self.streams:
            main.wait_stream(stream)
        marks[1].record()
        return self._seconds([marks])[0]

    def _marks(self) -> Tuple[Any, Any]:
        event = self.torch.cuda.Event
        return event(enable_timing=True), event(enable_timing=True)

    def samples(self, one: Callable[[], Any], calls: Sequence[Callable[[], Any]],
                rounds: int) -> List[Tuple[float, List[float]]]:
        """The one call and the ranks in turns."""
        return [(self.each([one])[0][0], self.each(calls)[0]) for _ in range(rounds)]


def row_of(ranks: Ranks, direction: str, checks: Dict[str, Any],
           samples: List[Tuple[float, List[float]]], together: Optional[float]) -> Dict[str, Any]:
    times = [statistics.median(of_rank) for of_rank in zip(*(each for _, each in samples))]
    spread = (max(times) - min(times)) / statistics.mean(times)
    ratio = statistics.median(sum(each) / one for one, each in samples)
    return {"direction": direction, "method": ranks.method, "ranks": ranks.n, "checks": checks,
            "one_s": [one for one, _ in samples], "each_s": [each for _, each in samples],
            "together_s": together, "ratio": ratio, "spread": spread,
            "met": ranks.machine.gpu is None or (
                ratio <= MOST_TIMES and (ranks.method != "zigzag" or spread <= MOST_SPREAD))}


# ---- checks ----------------------------------------------------------------------------------


class Wrong(RuntimeError):
    """A result that is not the one call's."""


class Checker:
    """Results of the ranks against the reference, by the rule, and against the one call."""

    def __init__(self, machine: Machine, case: Any) -> None:
        self.machine, self.case = machine, case
        self.host = tuple(x.cpu() for x in case.inputs[0])
        self.host_d_o = [x.cpu() for x in case.extra.d_o or []]

    def _judged(self, what: str, result: Dict[str, Any], found: Any,
                expected: Any) -> Dict[str, Any]:
        near = self.machine.difference([found], [expected])
        if not result["passed"] or not near <= LOOSEST:
            raise Wrong(f"{what}: {result['text']}; a row differs from the one call's by {near:.3g} "
                        "of its length")
        return {"max_error": result["max_error"], "max_allowed": result["max_allowed"],
                "from_one_call": near}

    def output(self, what: str, o: Any, expected: Any) -> Dict[str, Any]:
        context, host = self.machine.context, o.cpu()
        tensors = _library.tensors(*(x.data_ptr() for x in (*self.host, host)))
        found = asking.verified(context, self.case.problem, tensors, ROWS, self.machine.seed)
        result = {"passed": bool(found.passed), "text": asking.in_words(context, found),
                  "max_error": finite(found.max_error), "max_allowed": finite(found.max_allowed)}
        return self._judged(what, result, o, expected)

    def gradients(self, what: str, o: Any, lse: Any, found: Tuple[Any, ...],
                  expected: Tuple[Any, ...]) -> Dict[str, Any]:
        case = SimpleNamespace(problem=self.case.problem, inputs=[self.host],
                               extra=SimpleNamespace(d_o=self.host_d_o),
                               ours=SimpleNamespace(kept=[None, (o, lse)]))
        return self._judged(what, backward.verify(self.machine, case, found, 0, ROWS), found,
                            expected)

    def control(self, ranks: Ranks, parts: Sequence[Any], expected: Any) -> None:
        """Chunks in another order are found."""
        if self.machine.difference([ranks.join(parts[::-1])], [expected]) <= LOOSEST:
            raise Wrong("the comparison takes the chunks of other ranks for the result")


# ---- forward and backward ----------------------------------------------------------------------


def call_of(machine: Machine, case: Any) -> Callable[[], Any]:
    """The one call, on the current stream."""
    return lambda: case.ours.call(0, machine.stream())


def forward_rows(machine: Machine, shape: Any, dtype: str, counts: Sequence[int],
                 rounds: int) -> List[Dict[str, Any]]:
    case = machine.case(shape, dtype, [], 1)
    clock, checker = Clock(machine, case.inputs[0][0]), Checker(machine, case)
    one = call_of(machine, case)
    expected = machine.outputs(case.ours, case)[0].clone()
    checker.output("one call", expected, expected)
    rows = []
    for method in METHODS:
        for n in counts:
            ranks = Ranks(machine, case.inputs[0], n, method)
            calls = [lambda rank=rank: ranks.forward(rank) for rank in range(n)]
            parts = [o for o, _ in clock.each(calls)[1]]
            checker.control(ranks, parts, expected)
            checks = checker.output(f"{method}, {n} ranks", ranks.join(parts), expected)
            del parts
            rows.append(row_of(ranks, "forward", checks, clock.samples(one, calls, rounds),
                               clock.together(calls)))
    return rows


def backward_rows(machine: Machine, shape: Any, dtype: str, counts: Sequence[int],
                  rounds: int) -> List[Dict[str, Any]]:
    case = machine.case(shape._replace(option="backward"), dtype, [], 1)
    clock, checker = Clock(machine, case.inputs[0][0]), Checker(machine, case)
    one, d_o = call_of(machine, case), case.extra.d_o[0]
    expected = tuple(x.clone() for x in machine.outputs(case.ours, case)[0])
    checker.gradients("one call", *case.ours.kept[1], expected, expected)
    rows = []
    for method in METHODS[:1] if rounds > 1 else METHODS:
        for n in counts:
            ranks = Ranks(machine, (*case.inputs[0], d_o), n, method)
            ranks.forget()
            made = clock.each([lambda rank=rank: ranks.remember(rank) for rank in range(n)])[1]
            o, lse = (ranks.join(x) for x in zip(*made))
            calls = [lambda rank=rank: ranks.backward(rank) for rank in range(n)]
            dq = [x for x, _, _ in clock.each(calls)[1]]
            checks = checker.gradients(f"gradients, {method}, {n} ranks", o, lse,
                                       ranks.gradients(dq), expected)
            del made, o, lse, dq
            rows.append(row_of(ranks, "backward", checks, clock.samples(one, calls, rounds), None))
    return rows


# ---- merges and sums ---------------------------------------------------------------------------


class Move(NamedTuple):
    """Something whose time is that of its bytes."""
    name: str
    bytes: float
    call: Callable[[], Any]
    check: Callable[[], bool]


def moves_of(machine: Machine, shape: Any, dtype: str) -> List[Move]:
    """Over O of the whole sequence, as merges, and over one of eight chunks of it."""
    torch, wide = machine.torch, machine.torch.float32
    narrow = getattr(torch, DTYPES[dtype][0])
    moves = []
    for rows, most in ((shape.seq_q, 2), (shape.seq_q // 8, 8)):
        sizes = (shape.batch, shape.heads_q, rows, shape.head_dim)
        parts = [torch.randn(sizes, device=machine.device, dtype=narrow) for _ in range(most)]
        sums = [torch.randn(sizes[:3], device=machine.device) for _ in range(most)]
        out, total = torch.empty_like(parts[0]), torch.empty(sizes, device=machine.device)
        lse, lse_total = torch.empty_like(sums[0]), torch.empty_like(sums[0])
        elements, bytes_row = out.numel(), 4 * lse.numel()
        size, spot = out.element_size(), slice(None, None, max(1, rows // 64))

        def near(found: Any, count: int, parts: Any = parts, sums: Any = sums,
                 spot: Any = spot) -> bool:
            """Some rows, by their definition in float64."""
            weights = torch.stack([x[:, :, spot].double() for x in sums[:count]]).softmax(0)
            values = torch.stack([x[:, :, spot].double() for x in parts[:count]])
            expected = (weights[..., None] * values).sum(0)
            return machine.difference([found[:, :, spot].double().to(wide)],
                                      [expected.to(wide)]) <= 0.01

        def merged(count: int, parts: Any = parts, sums: Any = sums, out: Any = out,
                   lse: Any = lse) -> Any:
            return merge(parts[:count], sums[:count], out=out, out_lse=lse,
                         threads=machine.threads)

        def summed(parts: Any = parts, sums: Any = sums, total: Any = total,
                   lse_total: Any = lse_total) -> Any:
            return accumulate(total, lse_total, parts[1], sums[1], threads=machine.threads)

        def begun(parts: Any = parts, sums: Any = sums, total: Any = total,
                  lse_total: Any = lse_total, summed: Any = summed, near: Any = near) -> bool:
            total.copy_(parts[0])
            lse_total.copy_(sums[0])
            summed()
            return near(total, 2)

        def plain(parts: Any = parts, total: Any = total) -> Any:
            return accumulate(total, None, parts[1], None, threads=machine.threads)[0]

        def added(parts: Any = parts, total: Any = total) -> Any:
            return total.add_(parts[1])

        def copied(parts: Any = parts, out: Any = out) -> Any:
            return out.copy_(parts[1])

        moves += [
            Move(f"copy of {rows} rows", 2 * size * elements, copied,
                 lambda copied=copied, parts=parts: bool((copied() == parts[1]).all())),
            *(Move(f"merge of {count} parts, {rows} rows",
                   (count + 1) * (size * elements + bytes_row),
                   lambda count=count, merged=merged: merged(count),
                   lambda count=count, merged=merged, near=near: near(merged(count)[0], count))
              for count in sorted({2, most})),
            Move(f"accumulate, {rows} rows", (size + 8) * elements + 3 * bytes_row, summed, begun),
            *(Move(f"{name}, {rows} rows", (size + 8) * elements, call,
                   lambda total=total, call=call, parts=parts: bool(
                       (total.zero_() is call()) and (total == parts[1]).all()))
              for name, call in (("sum without LSE", plain), ("PyTorch's sum", added)))]
    return moves


def move_rows(machine: Machine, shape: Any, dtype: str, samples: int) -> List[Dict[str, Any]]:
    rows = []
    for move in moves_of(machine, shape, dtype):
        if not move.check():
            raise Wrong(f"{move.name}: another result than its formula's")
        side = Side(move.name, "ours", None, lambda index, stream, move=move: move.call())
        if machine.gpu:
            graph = machine.capture(side, 4, 1)
            graph.replay_us(1)
            times = graph.replay_us(samples)
        else:
            times = machine.eager_us(side, samples, 1, 1)
        rate = 1e6 * move.bytes / statistics.median(times)
        peak = HBM.get(machine.gpu or "")
        rows.append({"name": move.name, "bytes": move.bytes, "us": times, "rate": rate,
                     "of_hbm": peak and rate / peak,
                     "met": peak is None or move.name.startswith(("copy", "PyTorch")) or
                     rate >= LEAST_HBM * peak})
    return rows


# ---- the report --------------------------------------------------------------------------------


def print_ranks(report: Dict[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in report["environment"].items()))
    print(f"{report['shape']} {report['dtype']}: the ranks one after the other, medians. sum: over "
          f"the one call's time, expected at most {MOST_TIMES:g}; spread: (slowest - fastest rank) / "
          f"mean, of zigzag at most {MOST_SPREAD:.0%}")
    print(f"{'':9}{'':8}{'ranks':>6}{'one call':>11}{'sum':>8}{'spread':>8}{'together':>10}"
          f"{'from one':>10}")
    for row in report["rows"]:
        whole, together = statistics.median(row["one_s"]), row["together_s"]
        print(f"{row['direction']:9}{row['method']:8}{row['ranks']:6}{1e3 * whole:8.2f} ms"
              f"{row['ratio']:8.3f}{row['spread']:8.1%}"
              f"{'' if together is None else format(together / whole, '.3f'):>10}"
              f"{row['checks']['from_one_call']:10.1e}{'' if row['met'] else '  MISSED'}")
    for row in report["moves"]:
        share = "" if row["of_hbm"] is None else f"{row['of_hbm']:8.1%} of HBM's peak"
        print(f"{row['name']:34}{row['rate'] / 1e9:9.0f} GB/s{share}"
              f"{'' if row['met'] else '  MISSED'}")


def run_ranks(machine: Machine, options: argparse.Namespace) -> int:
    """1 if a result is wrong; with --check also if a target is missed."""
    counts = options.ranks or [2, 4, 8]
    dtype = (options.dtype or ["bf16" if machine.gpu else "fp32"])[0]
    full = machine.gpu is not None and not options.tiny
    shape = FULL if full else TINY
    if any(shape.seq_q % (2 * n) for n in counts):
        raise _library.InvalidArgument(f"--ranks: {counts}, expected divisors of "
                                       f"{shape.seq_q // 2}")
    rounds = ROUNDS if full else 1
    report: Dict[str, Any] = {
        "schema": SCHEMA, "complete": False, "shape": str(shape), "dtype": dtype,
        "environment": {**machine.environment(), "before": machine.state()}, "rows": [],
        "moves": []}
    try:
        if full:  # where the reference has every gradient
            small = shape._replace(seq_q=4096, seq_kv=4096)
            forward_rows(machine, small, dtype, counts, 1)
            backward_rows(machine, small, dtype, counts, 1)
        report["rows"] += forward_rows(machine, shape, dtype, counts, rounds)
        report["rows"] += backward_rows(machine, shape, dtype, counts, rounds)
        report["moves"] = move_rows(machine, shape, dtype, 9 if full else 2)
        report["complete"] = True
    except Wrong as error:
        report["wrong"] = str(error)
    report["environment"]["after"] = machine.state()
    text = json.dumps(report)
    if options.json and options.json != "-":
        Path(options.json).write_text(text + "\n")
    if options.json == "-":
        print(text)
    else:
        print_ranks(report)
    if not report["complete"]:
        print(f"peers: --ranks: {report['wrong']}", file=sys.stderr)
        return 1
    missed = [row for row in (*report["rows"], *report["moves"]) if not row["met"]]
    return 1 if options.check and missed else 0
