# SPDX-License-Identifier: Apache-2.0
"""What one call costs its caller: python -m attn.peers --host.

attn.torch.sdpa and attn.attention on tensors so small that a GPU never holds the caller up: a shape
that was seen before, a new length at every call (a growing cache), and each option by itself;
beside PyTorch's function for what it can do. And the memory that 5000 lengths hold afterwards. On a
CPU the time holds the computation too: there are no targets for it.

Invariant: only calls are timed, each with its tensors ready; the samples of all cases are taken in
turns, and the stream is drained before each.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from .._library import AttnError
from .machine import DTYPES, Machine, per_call_us

KNOWN_US, NEW_US, OPTION_US = 10.0, 20.0, 3.0  # on a GPU; the last beside "known"
HELD_MB = 8.0
SAMPLES, CALLS, LENGTHS = 60, 50, 5000
SECONDS = 3.0  # of one case: cuDNN takes milliseconds for a new shape
SCHEMA = "attn-host/2"
DIM = 64
OURS = ("attn.torch.sdpa", "attn.attention")
Call = Callable[[], Any]


class Case(NamedTuple):
    """One cell of the table."""
    row: str
    caller: str                         # of OURS, or PyTorch's function
    calls: Callable[[int], List[Call]]  # of the sample of that number
    limit_us: Optional[float] = None    # None: that of "known" and OPTION_US more


class Tensors:
    """Inputs of all cases: keys and values are views of a cache."""

    def __init__(self, machine: Machine, dtype: str) -> None:
        torch, device = machine.torch, machine.device
        heads, rows = (4, 16) if machine.gpu else (1, 1)  # a CPU computes them meanwhile
        make = functools.partial(torch.randn, device=device,
                                 dtype=getattr(torch, DTYPES[dtype][0]))
        self.one, self.cache = make(1, heads, 1, DIM), make(2, 1, heads, LENGTHS, DIM)
        self.known = (make(1, heads, rows, DIM), *self.cache[..., :rows, :])
        self.packed = tuple(x[0] for x in self.known)
        self.floats = torch.zeros(heads, device=device)
        self.bias = make(rows, rows)
        self.mask = self.bias < 9
        self.ends = torch.tensor([0, rows], dtype=torch.int32, device=device)
        self.rows = rows

    def at(self, length: int) -> Any:
        return (self.one, *self.cache[..., :length, :])


def same(call: Call) -> Callable[[int], List[Call]]:
    return lambda sample: [call] * CALLS


def growing(function: Callable[..., Any], tensors: Tensors, most: int,
            first: float) -> Callable[[int], List[Call]]:
    """Every sample has a scale of its own, so that no call of it has a plan."""
    def calls(sample: int) -> List[Call]:
        scale = 1 / (first + sample)
        lengths = (1 + (sample * CALLS + n) % most for n in range(CALLS))
        return [functools.partial(function, *tensors.at(n), scale=scale) for n in lengths]
    return calls


def cases_of(machine: Machine, dtype: str, tensors: Tensors) -> List[Case]:
    import attn.torch
    attention = functools.partial(attn.attention, threads=machine.threads)
    functions: Dict[str, Callable[..., Any]] = {
        OURS[0]: attn.torch.sdpa, OURS[1]: attention,
        "PyTorch SDPA": machine.torch.nn.functional.scaled_dot_product_attention}
    most = LENGTHS if machine.gpu else CALLS  # few keys, for a CPU computes them
    cases = []
    for number, (name, function) in enumerate(functions.items()):
        cases.append(Case("known", name, same(functools.partial(function, *tensors.known)),
                          KNOWN_US))
        cases.append(Case("new length", name, growing(function, tensors, most, 1e3 * (number + 1)),
                          NEW_US))
        if name != OURS[1]:
            for row, mask in (("bias", tensors.bias), ("mask", tensors.mask)):
                cases.append(Case(row, name, same(functools.partial(function, *tensors.known,
                                                                    attn_mask=mask))))
    ends = {"cu_seqlens_q": tensors.ends, "cu_seqlens_kv": tensors.ends,
            "max_seqlen_q": tensors.rows, "max_seqlen_kv": tensors.rows}
    for row, named in {"bias": {"bias": tensors.bias}, "mask": {"mask": tensors.mask},
                       "window": {"window": (8, 0)}, "sink": {"sink": tensors.floats},
                       "softcap": {"softcap": 30.0}, "alibi": {"alibi": tensors.floats},
                       "packed": ends, "used_kv": {"used_kv": tensors.ends[1:]},
                       "return_lse": {"return_lse": True}}.items():
        inputs = tensors.packed if row == "packed" else tensors.known
        cases.append(Case(row, OURS[1], same(functools.partial(attention, *inputs, **named))))
    return cases


# ---- measuring -------------------------------------------------------------------------------


def sample_us(machine: Machine, calls: List[Call]) -> float:
    """Microseconds of the caller's time for each; a GPU works on meanwhile."""
    kept = None
    machine.synchronize()
    start = time.perf_counter()
    for call in calls:
        kept = call()
    end = time.perf_counter()
    del kept
    return per_call_us(end - start, len(calls))


def cells_of(machine: Machine, cases: List[Case]) -> List[Dict[str, Any]]:
    """A cell for each case, with its samples, or with the reason why there are none."""
    cells: List[Dict[str, Any]] = [{"row": case.row, "caller": case.caller, "samples_us": [],
                                    "reason": None} for case in cases]
    for sample in range(SAMPLES + 1):  # the first one warms up
        for case, cell in zip(cases, cells):
            try:
                took_us = CALLS * sum(cell["samples_us"])
                if cell["reason"] is None and (sample < 2 or took_us < 1e6 * SECONDS):
                    cell["samples_us"].append(sample_us(machine, case.calls(sample)))
            except AttnError as error:
                cell["reason"] = str(error)
    for cell in cells:
        cell["samples_us"] = [] if cell["reason"] else cell["samples_us"][1:]
    return cells


def held_mb(machine: Machine, tensors: Tensors) -> float:
    """What grows with LENGTHS lengths, after some of them that load every kernel."""
    import attn.torch
    for step in (LENGTHS // 50, 1):
        before = machine.used_mb()
        for length in range(1, LENGTHS + 1, step):
            attn.torch.sdpa(*tensors.at(length))
            attn.attention(*tensors.at(length), scale=0.1, threads=machine.threads)
            if length % 128 == 0:
                machine.synchronize()
    after = machine.used_mb()
    return round(max(now - then for now, then in zip(after, before)), 3)


# ---- targets ---------------------------------------------------------------------------------


def judge(machine: Machine, cases: List[Case], cells: List[Dict[str, Any]]) -> None:
    """Adds medians, targets (of our own functions, on a GPU) and whether they are met."""
    known = {}
    for case, cell in zip(cases, cells):
        cell["median_us"] = statistics.median(cell["samples_us"]) if cell["samples_us"] else None
        cell["least_us"] = min(cell["samples_us"], default=None)
        if case.row == "known":
            known[case.caller] = cell["median_us"]
        cell["target_us"] = None
        if machine.gpu and case.caller in OURS and known[case.caller] is not None:
            cell["target_us"] = case.limit_us or round(known[case.caller] + OPTION_US, 3)
        cell["met"] = cell["reason"] is None and (
            cell["target_us"] is None or cell["median_us"] <= cell["target_us"])


def missed(report: Dict[str, Any]) -> List[str]:
    found = [f"{cell['caller']}, {cell['row']}: " + (
        cell["reason"] or f"{cell['median_us']:.1f} us, expected at most {cell['target_us']:g} us")
        for cell in report["cells"] if not cell["met"]]
    if not report["held_mb"] < HELD_MB:
        found.append(f"{report['lengths']} lengths hold {report['held_mb']:g} MB, expected less "
                     f"than {HELD_MB:g} MB")
    return found


def print_host(report: Dict[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in report["environment"].items()))
    print(f"the caller's microseconds for one call: median (least) of up to {SAMPLES} samples of "
          f"{report['calls']} calls; < the target")
    callers = list(dict.fromkeys(cell["caller"] for cell in report["cells"]))
    rows: Dict[str, Dict[str, str]] = {}
    for cell in report["cells"]:
        text = "refused"
        if cell["reason"] is None:
            text = f"{cell['median_us']:.2f} ({cell['least_us']:.2f})"
        if cell["target_us"] is not None:
            text += f" {'<' if cell['met'] else 'NOT <'} {cell['target_us']:.3g}"
        rows.setdefault(cell["row"], {})[cell["caller"]] = text
    print(f"{'':12}" + "".join(f"{caller:>26}" for caller in callers))
    for row, texts in rows.items():
        print(f"{row:12}" + "".join(f"{texts.get(caller, ''):>26}" for caller in callers))
    print(f"{report['lengths']} lengths of both functions hold {report['held_mb']:g} MB, expected "
          f"less than {HELD_MB:g} MB")


def run_host(machine: Machine, options: argparse.Namespace) -> int:
    """With --check exit code 1 if a target is missed."""
    dtype = (options.dtype or ["fp16" if machine.gpu else "fp32"])[0]
    with machine.torch.inference_mode():
        tensors = Tensors(machine, dtype)
        cases = cases_of(machine, dtype, tensors)
        cells = cells_of(machine, cases)
        judge(machine, cases, cells)
        report = {"schema": SCHEMA, "environment": machine.environment(), "dtype": dtype,
                  "calls": CALLS, "cells": cells, "lengths": LENGTHS,
                  "held_mb": held_mb(machine, tensors)}
    if options.json and options.json != "-":
        Path(options.json).write_text(json.dumps(report) + "\n")
    if options.json == "-":
        print(json.dumps(report))
    else:
        print_host(report)
    for line in missed(report):
        print(f"peers: --host: {line}", file=sys.stderr)
    return 1 if options.check and missed(report) else 0
