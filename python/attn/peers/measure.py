# SPDX-License-Identifier: Apache-2.0
"""The measurement of one shape: checks, ABBA blocks, checks again, the proof of kernel names.

Each side's calls run by graph replay (on a GPU) and as plain calls, over rotated inputs, in blocks
in the order ours, peer, peer, ours.

Invariant: no number without a checked result: ours against the double-precision reference, peers
against ours, in outputs poisoned with NaN, before the timing and after it.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .grids import Shape
from .machine import Case, Side, first_line
from .report import CONTROL, MODES

LOOSEST = 0.05  # of a row's length: two right kernels stay far below, a wrong one exceeds it
SET_BYTES = 256e6
MOST_CALLS = 200
FEWEST_ROUNDS = 6  # the median of fewer has no 95 % interval
PEAK_FLOPS = {"NVIDIA H200": 989.4e12, "NVIDIA H100 80GB HBM3": 989.4e12}  # dense, by datasheet
Row = Dict[str, Any]


class Settings:
    def __init__(self, seconds: Optional[float], quick: bool) -> None:
        self.seconds = seconds if seconds is not None else 1.0 if quick else 4.0
        self.rounds = 9 if quick else 12  # enough for an interval without the two extremes
        self.block_seconds = 1e-3


def sets_for(shape: Shape, most: int, element_bytes: int = 2) -> int:
    return max(1, min(most, int(SET_BYTES // (shape.elements() * element_bytes))))


def new_row(shape: Shape, grid: str, dtype: str) -> Row:
    return {"shape": shape._asdict(), "name": str(shape), "grid": grid, "dtype": dtype,
            "reason": None,   # why there is nothing to measure
            "invalid": [],    # why nothing that was measured counts
            "variant": None, "flops": None, "sets": None, "set_bytes": None,
            "sets_exceed_l2": None, "verified": {}, "sides": {},
            "pairs": {mode: {} for mode in MODES}, "calls": {}, "host": {}}


# ---- checks ----------------------------------------------------------------------------------


def guarded(machine: Any, row: Row, side: Side, action: Callable[[], Any]) -> Any:
    """action(), or None with the side's error noted: a peer may fail, the device may not."""
    try:
        return action()
    except Exception as error:  # whatever a peer throws is its own affair
        row["sides"][side.name]["error"] = first_line(error)
        machine.recover(error)
        return None


def check_ours(machine: Any, case: Case, row: Row, outputs: Sequence[Any],
               when: str) -> None:
    found = machine.verify(case, outputs, which=0 if when == "before" else case.sets - 1)
    row["verified"][when] = found
    if not found["passed"]:
        row["invalid"].append(f"our result {when} the timing is wrong: {found['text']}")


def check_side(machine: Any, row: Row, side: Side, outputs: Sequence[Any],
               expected: Sequence[Any], when: str) -> bool:
    """Whether another side's outputs agree with ours; notes it if not."""
    difference = machine.difference(outputs, expected)
    entry = row["sides"][side.name]
    entry["difference"][when] = difference if math.isfinite(difference) else None
    if difference <= LOOSEST:
        return True
    entry["error"] = f"its result {when} the timing is off by {difference:.3g} of a row, or NaN"
    return False


def checked_sides(machine: Any, case: Case, row: Row) -> List[Side]:
    """The other sides whose results are right. Ours is judged into row["invalid"]."""
    for side in [case.ours, *case.others]:
        row["sides"][side.name] = {"role": side.role, "expected_kernel": side.kernel,
                                   "kernels": None, "proven": None, "error": None,
                                   "difference": {}}
    expected = machine.outputs(case.ours, case)
    check_ours(machine, case, row, expected, "before")
    if row["invalid"]:
        return []
    if machine.difference(machine.negative_control(case), expected) <= LOOSEST:
        row["invalid"].append("the comparison takes the mean of V for the result")
        return []
    right = []
    for side in case.others:
        outputs = guarded(machine, row, side, lambda: machine.outputs(side, case))
        if outputs is None or not check_side(machine, row, side, outputs, expected, "before"):
            continue
        if side.role == "variant":  # ours as well, so held to the same rule
            found = machine.verify(case, outputs, which=0)
            if not found["passed"]:
                row["sides"][side.name]["error"] = f"its result is wrong: {found['text']}"
                continue
        right.append(side)
    return right


# ---- times -----------------------------------------------------------------------------------


def abba(ours: str, others: Sequence[str], rounds: int,
         block: Callable[[str], List[float]]) -> Dict[str, List[Dict[str, List[List[float]]]]]:
    """block(name) gives one block's samples; every second round goes through the others
    backwards."""
    pairs: Dict[str, List[Dict[str, List[List[float]]]]] = {name: [] for name in others}
    for index in range(rounds):
        for name in others if index % 2 == 0 else reversed(others):
            first, one, two, last = block(ours), block(name), block(name), block(ours)
            pairs[name].append({"ours": [first, last], "other": [one, two]})
    return pairs


def pace(budget: float, most_rounds: int, ours_seconds: float,
         others_seconds: Sequence[float]) -> Tuple[int, int]:
    """(rounds, timed samples of one block) that fit into the budget in seconds; one more sample
    warms each block up. Slow sides get fewer rounds, but never too few for an interval."""
    one_sample = sum(2 * ours_seconds + 2 * seconds for seconds in others_seconds)
    rounds = max(FEWEST_ROUNDS, min(most_rounds, int(budget / (2 * one_sample))))
    return rounds, max(1, min(20, int(budget / (rounds * one_sample)) - 1))


def captured(machine: Any, row: Row, side: Side, sets: int, seconds: float) -> Tuple[Any, float]:
    """A graph of about `seconds` that goes through the sets a whole number of times, and how long
    it takes."""
    graph = machine.capture(side, sets, sets)
    per_call = graph.replay_us(2)[1] * 1e-6
    calls = max(sets, min(MOST_CALLS, int(seconds / per_call)) // sets * sets)
    if calls != sets:
        graph = machine.capture(side, calls, sets)
    row["calls"][side.name] = calls
    return graph, calls * per_call


def time_graphs(machine: Any, case: Case, row: Row, others: List[Side], settings: Settings,
                budget: float) -> Dict[str, Any]:
    """Fills row["pairs"]["graph"]; returns the graph of each side that could be captured."""
    graphs, seconds, ours = {}, {}, case.ours.name
    graphs[ours], seconds[ours] = captured(machine, row, case.ours, case.sets,
                                           settings.block_seconds)
    for side in others:
        made = guarded(machine, row, side, lambda: captured(
            machine, row, side, case.sets, settings.block_seconds))
        if made:
            graphs[side.name], seconds[side.name] = made
    graphs[CONTROL], seconds[CONTROL] = graphs[ours], seconds[ours]
    timed = [name for name in graphs if name != ours]
    rounds, count = pace(budget, settings.rounds, seconds[ours],
                         [seconds[name] for name in timed])
    row["pairs"]["graph"] = abba(ours, timed, rounds,
                                 lambda name: graphs[name].replay_us(count + 1)[1:])
    return graphs


def time_eager(machine: Any, case: Case, row: Row, others: List[Side], settings: Settings,
               budget: float) -> Dict[str, int]:
    """Fills row["pairs"]["eager"]; the number of calls of one sample of each side."""
    ours = case.ours.name
    sides = {ours: case.ours, **{side.name: side for side in others}, CONTROL: case.ours}
    calls, seconds = {}, {}
    for name, side in sides.items():
        per_call = machine.eager_us(side, 1, 2, case.sets)[0] * 1e-6
        calls[name] = max(1, min(20, int(settings.block_seconds / per_call)))
        seconds[name] = calls[name] * per_call
    timed = [name for name in sides if name != ours]
    rounds, count = pace(budget, settings.rounds, seconds[ours],
                         [seconds[name] for name in timed])
    row["pairs"]["eager"] = abba(
        ours, timed, rounds,
        lambda name: machine.eager_us(sides[name], count, calls[name], case.sets))
    return calls


def time_hosts(machine: Any, case: Case, row: Row, others: List[Side],
               calls: Dict[str, int]) -> None:
    """Fills row["host"]: the host time of a call, where the device runs asynchronously."""
    for side in [case.ours, *others]:
        row["host"][side.name] = machine.host_us(side, 9, calls[side.name], case.sets)
    for side in case.hosts:
        machine.host_us(side, 1, case.sets, case.sets)  # the first call of a shape makes its plan
        row["host"][side.name] = machine.host_us(side, 9, min(calls.values()), case.sets)
    row["host"]["empty ctypes call"] = machine.empty_call_us(9, 200)


def check_after(machine: Any, case: Case, row: Row, others: List[Side],
                again: Callable[[Side], Sequence[Any]]) -> None:
    """The outputs of the timed calls, poisoned before, must be right too."""
    expected = again(case.ours)
    check_ours(machine, case, row, expected, "after")
    for side in others:
        if not check_side(machine, row, side, again(side), expected, "after"):
            row["invalid"].append(f"{side.name}: {row['sides'][side.name]['error']}")


def measure(machine: Any, case: Case, row: Row, settings: Settings) -> None:
    """Checks, times and checks again one shape; what went wrong stands in the row."""
    row.update(variant=case.variant, flops=case.flops, sets=case.sets, set_bytes=case.set_bytes)
    if machine.l2_bytes is not None:
        row["sets_exceed_l2"] = case.sets * case.set_bytes > machine.l2_bytes
    inputs = machine.checksum(case)
    others = checked_sides(machine, case, row)
    if row["invalid"]:
        return
    if "graph" in machine.modes:
        graphs = time_graphs(machine, case, row, others, settings, settings.seconds * 0.6)
        others = [side for side in others if side.name in graphs]
        calls = time_eager(machine, case, row, others, settings, settings.seconds * 0.3)
        time_hosts(machine, case, row, others, calls)
        check_after(machine, case, row, others, lambda side: graphs[side.name].rerun())
    else:
        for side in [case.ours, *others]:
            machine.blank(side.outputs)
        time_eager(machine, case, row, others, settings, settings.seconds * 0.9)
        check_after(machine, case, row, others,
                    lambda side: side.outputs or machine.outputs(side, case))
    if machine.checksum(case) != inputs:
        row["invalid"].append("an input was changed by one of the sides")
    peak = PEAK_FLOPS.get(machine.gpu)
    fastest = min(us for pairs in row["pairs"].values() for rounds in pairs.values()
                  for entry in rounds for side in ("ours", "other") for block in entry[side]
                  for us in block)
    if peak and row["flops"] / (fastest * 1e-6) > peak:
        row["invalid"].append(f"{row['flops'] / fastest / 1e6:.0f} TFLOP/s is more than the GPU "
                              f"can do ({peak / 1e12:.0f})")


# ---- the proof of kernel names ---------------------------------------------------------------


def judge_kernels(machine: Any, row: Row, side: Side, kernels: List[str]) -> None:
    """Names of everything that one call ran, against what it should have run."""
    entry = row["sides"][side.name]
    entry["kernels"] = kernels
    entry["proven"] = machine.proves(side, kernels)
    if not entry["proven"]:
        row["invalid"].append(f"{side.name} ran {', '.join(kernels) or 'no kernel'} where "
                              f"{side.kernel or 'nothing of PyTorch'} was expected")


def prove(machine: Any, row: Row, peers: Sequence[str]) -> None:
    """Names the kernels of one call of each side that was timed."""
    try:
        with contextlib.closing(machine.case(Shape(**row["shape"]), row["dtype"], peers,
                                             1)) as case:
            for side in [case.ours, *case.others]:
                if not row["sides"][side.name]["error"]:
                    judge_kernels(machine, row, side, machine.kernels(side))
    except Exception as error:  # without names there is no proof, whatever the reason
        row["invalid"].append(f"the kernels could not be named: {first_line(error)}")
        machine.recover(error)
