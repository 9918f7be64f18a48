# SPDX-License-Identifier: Apache-2.0
"""libattn beside PyTorch's attention kernels on one NVIDIA GPU, in one process.

    python3 python/peers.py [--grid canonical small ...] [--dtype fp16|bf16] [--variant NAME|all]
                            [--peers flash,cudnn,...] [--seconds X] [--json FILE] [--quick]
    python3 python/peers.py --show FILE      a written file, worked out again; needs no GPU

Each side's calls run by graph replay and as plain calls, over rotated inputs, in blocks in the
order ours, peer, peer, ours. FlashAttention-3 is a recorded figure, scaled by cuDNN now and then.
Which kernels ran is asked of the profiler after all timing, so that it disturbs none.

Exit code: 0 done, 1 a check failed, 2 bad usage, 3 not run (no GPU, no PyTorch, nothing measured).

Invariant: no number without a checked result: ours against the double-precision reference, peers
against ours, in outputs poisoned with NaN, before the timing and after it.
"""

import argparse
import contextlib
import gc
import json
import math
import re
import sys
import time
from pathlib import Path

import grids
import libattn
from peers_report import (CONTROL, MODES, PEERS, SCHEMA, load_recorded, print_report, row_line, show,
                          summarise)
from peers_torch import DeviceLost, NotRun, first_line, open_machine

ROOT = Path(__file__).resolve().parent.parent
LOOSEST = 0.05  # of a row's length: two right kernels stay far below, a wrong one exceeds it
MOST_SETS, SET_BYTES = 8, 256e6
MOST_CALLS = 200
FEWEST_ROUNDS = 6  # the median of fewer has no 95 % interval
PEAK_FLOPS = {"NVIDIA H200": 989.4e12, "NVIDIA H100 80GB HBM3": 989.4e12}  # dense, by datasheet


# ---- the measurement of one shape ------------------------------------------------------------


def sets_for(shape, element_bytes=2):
    return max(1, min(MOST_SETS, int(SET_BYTES // (shape.elements() * element_bytes))))


def new_row(shape, grid, dtype):
    return {"shape": shape._asdict(), "name": str(shape), "grid": grid, "dtype": dtype,
            "reason": None,   # why there is nothing to measure
            "invalid": [],    # why nothing that was measured counts
            "variant": None, "flops": None, "sets": None, "set_bytes": None,
            "sets_exceed_l2": None, "verified": {}, "sides": {},
            "pairs": {mode: {} for mode in MODES}, "calls": {}, "host": {}}


def guarded(machine, row, side, action):
    """action(), or None with the side's error noted: a peer may fail, the GPU may not."""
    try:
        return action()
    except Exception as error:  # whatever a peer throws is its own affair
        row["sides"][side.name]["error"] = first_line(error)
        machine.recover(error)
        return None


def check_ours(machine, case, row, outputs, when):
    found = machine.verify(case, outputs, which=0 if when == "before" else case.sets - 1)
    row["verified"][when] = found
    if not found["passed"]:
        row["invalid"].append(f"our result {when} the timing is wrong: {found['text']}")


def check_side(machine, row, side, outputs, expected, when):
    """Whether another side's outputs agree with ours; notes it if not."""
    difference = machine.difference(outputs, expected)
    entry = row["sides"][side.name]
    entry["difference"][when] = difference if math.isfinite(difference) else None
    if difference <= LOOSEST:
        return True
    entry["error"] = f"its result {when} the timing is off by {difference:.3g} of a row, or NaN"
    return False


def checked_sides(machine, case, row):
    """The other sides whose results are right. Ours is judged into row["invalid"]."""
    for side in [case.ours, *case.others]:
        row["sides"][side.name] = {"role": side.role, "expected_kernel": side.kernel,
                                   "kernels": None, "proven": None, "error": None,
                                   "difference": {}}
    expected = machine.outputs(case.ours, case)
    check_ours(machine, case, row, expected, "before")
    if row["invalid"]:
        return []
    if machine.difference(machine.impostor(case), expected) <= LOOSEST:
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


def captured(machine, row, side, sets, seconds):
    """A graph of about `seconds` that goes through the sets a whole number of times, and how long
    it takes."""
    graph = machine.capture(side, sets, sets)
    per_call = graph.replay_us(2)[1] * 1e-6
    calls = max(sets, min(MOST_CALLS, int(seconds / per_call)) // sets * sets)
    if calls != sets:
        graph = machine.capture(side, calls, sets)
    row["calls"][side.name] = calls
    return graph, calls * per_call


def abba(ours, others, rounds, block):
    """block(name) gives one block's samples; every second round goes through the others
    backwards."""
    pairs = {name: [] for name in others}
    for index in range(rounds):
        for name in others if index % 2 == 0 else reversed(others):
            first, one, two, last = block(ours), block(name), block(name), block(ours)
            pairs[name].append({"ours": [first, last], "other": [one, two]})
    return pairs


def pace(budget, most_rounds, ours_seconds, others_seconds):
    """(rounds, timed samples of one block) that fit into the budget in seconds; one more sample
    warms each block up. Slow sides get fewer rounds, but never too few for an interval."""
    one_sample = sum(2 * ours_seconds + 2 * seconds for seconds in others_seconds)
    rounds = max(FEWEST_ROUNDS, min(most_rounds, int(budget / (2 * one_sample))))
    return rounds, max(1, min(20, int(budget / (rounds * one_sample)) - 1))


def time_graphs(machine, case, row, others, settings):
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
    rounds, count = pace(settings.seconds * 0.6, settings.rounds, seconds[ours],
                         [seconds[name] for name in timed])
    row["pairs"]["graph"] = abba(ours, timed, rounds,
                                 lambda name: graphs[name].replay_us(count + 1)[1:])
    return graphs


def time_eager(machine, case, row, others, settings):
    """Fills row["pairs"]["eager"] and row["host"]."""
    ours = case.ours.name
    sides = {ours: case.ours, **{side.name: side for side in others}, CONTROL: case.ours}
    calls, seconds = {}, {}
    for name, side in sides.items():
        per_call = machine.eager_us(side, 2, 2, case.sets)[1] * 1e-6
        calls[name] = max(1, min(20, int(settings.block_seconds / per_call)))
        seconds[name] = calls[name] * per_call
    timed = [name for name in sides if name != ours]
    rounds, count = pace(settings.seconds * 0.3, settings.rounds, seconds[ours],
                         [seconds[name] for name in timed])
    row["pairs"]["eager"] = abba(
        ours, timed, rounds,
        lambda name: machine.eager_us(sides[name], count + 1, calls[name], case.sets)[1:])
    for name in sides:
        if name != CONTROL:
            row["host"][name] = machine.host_us(sides[name], 9, calls[name], case.sets)
    row["host"]["sdpa"] = machine.host_us(case.default, 9, min(calls.values()), case.sets)
    row["host"]["empty ctypes call"] = machine.empty_call_us(9, 200)


def check_after(machine, case, row, others, graphs):
    """What the timed graphs leave behind in poisoned outputs must be right too."""
    expected = graphs[case.ours.name].rerun()
    check_ours(machine, case, row, expected, "after")
    for side in others:
        outputs = graphs[side.name].rerun()
        if not check_side(machine, row, side, outputs, expected, "after"):
            row["invalid"].append(f"{side.name}: {row['sides'][side.name]['error']}")


def measure(machine, case, row, settings):
    """Checks, times and checks again one shape; what went wrong stands in the row."""
    row.update(variant=case.variant, flops=case.flops, sets=case.sets, set_bytes=case.set_bytes,
               sets_exceed_l2=case.sets * case.set_bytes > machine.l2_bytes)
    inputs = machine.checksum(case)
    others = checked_sides(machine, case, row)
    if row["invalid"]:
        return
    graphs = time_graphs(machine, case, row, others, settings)
    others = [side for side in others if side.name in graphs]
    time_eager(machine, case, row, others, settings)
    check_after(machine, case, row, others, graphs)
    if machine.checksum(case) != inputs:
        row["invalid"].append("an input was changed by one of the sides")
    peak = PEAK_FLOPS.get(machine.gpu)
    fastest = min(us for rounds in row["pairs"]["graph"].values() for entry in rounds
                  for side in ("ours", "other") for block in entry[side] for us in block)
    if peak and row["flops"] / (fastest * 1e-6) > peak:
        row["invalid"].append(f"{row['flops'] / fastest / 1e6:.0f} TFLOP/s is more than the GPU "
                              f"can do ({peak / 1e12:.0f})")


def judge_kernels(row, side, kernels):
    """Names of everything that one call ran on the GPU, against what it should have run."""
    entry = row["sides"][side.name]
    entry["kernels"] = kernels
    if side.role == "peer":
        entry["proven"] = any(re.search(side.kernel, name) for name in kernels)
    else:
        entry["proven"] = kernels == [side.kernel]
    if not entry["proven"]:
        row["invalid"].append(f"{side.name} ran {', '.join(kernels) or 'no kernel'} where "
                              f"{side.kernel} was expected")


def prove(machine, row, peers):
    """Names the kernels of one call of each side that was timed."""
    try:
        with contextlib.closing(machine.case(grids.Shape(**row["shape"]), peers, 1)) as case:
            for side in [case.ours, *case.others]:
                if not row["sides"][side.name]["error"]:
                    judge_kernels(row, side, machine.kernels(side))
    except Exception as error:  # without names there is no proof, whatever the reason
        row["invalid"].append(f"the kernels could not be named: {first_line(error)}")
        machine.recover(error)


# ---- the program -----------------------------------------------------------------------------


class Settings:
    def __init__(self, seconds, quick):
        self.seconds = seconds if seconds is not None else 1.0 if quick else 4.0
        self.rounds = 9 if quick else 12  # enough for an interval without the two extremes
        self.block_seconds = 1e-3


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        print(f"peers: {message}", file=sys.stderr)
        raise SystemExit(2)


def parse(arguments):
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", default=str(ROOT / "build" / "libattn.so"))
    parser.add_argument("--grid", nargs="+", default=["canonical"], choices=list(grids.GRIDS))
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"])
    parser.add_argument("--variant", metavar="NAME|all", help="instead of the plan's choice; all: "
                        "every other one that applies beside it")
    parser.add_argument("--peers", metavar="LIST", help=f"with commas, of {','.join(PEERS)} "
                        "[flash,cudnn,efficient; the canonical grid flex too]")
    parser.add_argument("--seconds", type=float, help="of timing per shape [4; --quick 1]")
    parser.add_argument("--quick", action="store_true", help="9 rounds instead of 12, 1 second")
    parser.add_argument("--seed", type=int, help="of the inputs [from the clock]")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--show", metavar="FILE", help="print a written file and end")
    options = parser.parse_args(arguments)
    if options.peers is not None:
        options.peers = [name for name in options.peers.split(",") if name]
        for name in options.peers:
            if name not in PEERS:
                parser.error(f"--peers: {name!r} is none of {', '.join(PEERS)}")
    if options.seconds is not None and not 0 < options.seconds <= 600:
        parser.error(f"--seconds: {options.seconds} is not between 0 and 600")
    if options.seed is None:
        options.seed = time.time_ns() & 0x7FFFFFFF
    return options


def peers_of(options, grid):
    if options.peers is not None:
        return options.peers
    return [name for name in PEERS if name != "flex" or grid == "canonical"]


def new_report(machine, options):
    machine.recorded = load_recorded()
    return {"schema": SCHEMA, "complete": False,
            "environment": {**machine.environment(), "seed": options.seed,
                            "before": machine.state()},
            "arguments": {key: value for key, value in vars(options).items() if key != "lib"},
            "rows": []}


def measured_row(machine, options, settings, grid, shape, rows):
    """One more row, whatever happens."""
    row, case, started = new_row(shape, grid, options.dtype), None, time.perf_counter()
    try:
        case = machine.case(shape, peers_of(options, grid), sets_for(shape))
        measure(machine, case, row, settings)
    except DeviceLost as error:
        row["invalid"].append(str(error))
        raise
    except Exception as error:  # a refusal of libattn, memory, a failed launch: the row says it
        if case is None:
            row["reason"] = first_line(error)
        else:
            row["invalid"].append(first_line(error))
        machine.recover(error)
    finally:
        if case is not None:
            case.close()
        gc.collect()
        row["seconds"] = round(time.perf_counter() - started, 2)
        row["summary"] = summarise(row, machine.recorded, machine.gpu)
        rows.append(row)


def save(report, path):
    if path:
        partial = Path(path + ".partial")
        partial.write_text(json.dumps(report) + "\n")
        partial.replace(path)


def run(machine, options, report):
    """Fills the report; the exit code."""
    settings = Settings(options.seconds, options.quick)
    shapes, rows = grids.shapes_of(options.grid), report["rows"]
    started = time.perf_counter()
    try:
        for done, (grid, shape) in enumerate(shapes, 1):
            measured_row(machine, options, settings, grid, shape, rows)
            left = (time.perf_counter() - started) / done * (len(shapes) - done)
            print(f"[{done}/{len(shapes)}] {shape}: {row_line(rows[-1])}, "
                  f"{rows[-1]['seconds']:.1f} s, about {left:.0f} s left", file=sys.stderr,
                  flush=True)
            save(report, options.json)
        for row in rows:
            if row["summary"]:
                prove(machine, row, peers_of(options, row["grid"]))
                row["summary"] = summarise(row, machine.recorded, machine.gpu)
        report["complete"] = True
    except DeviceLost as error:
        print(f"peers: {error}; the rest is not measured", file=sys.stderr)
        for row in rows:
            if row["summary"] and not row["sides"]["ours"]["proven"]:
                row["invalid"].append("the GPU was lost before its kernels were named")
                row["summary"] = None
    report["environment"]["after"] = machine.state()
    save(report, options.json)
    print_report(report)
    if not report["complete"] or any(row["invalid"] or wrong_variants(row) for row in rows):
        return 1
    return 0 if any(row["summary"] for row in rows) else 3


def wrong_variants(row):
    return [name for name, side in row["sides"].items()
            if side["role"] == "variant" and side["error"]]


def main(arguments=None):
    options = parse(arguments)
    if options.show:
        return show(options.show)
    if not Path(options.lib).is_file():
        print(f"peers: --lib: there is no file {options.lib}", file=sys.stderr)
        return 2
    try:
        machine = open_machine(options)
    except NotRun as error:
        print(f"peers: NOT RUN: {error}", file=sys.stderr)
        return 3
    except libattn.AttnError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    gc.freeze()
    gc.disable()  # its pauses would be somebody's samples; each case ends with a collection
    return run(machine, options, new_report(machine, options))


if __name__ == "__main__":
    sys.exit(main())
