# SPDX-License-Identifier: Apache-2.0
"""What one eager call costs its caller: python -m attn.peers --host.

Small problems, so that the caller never waits for the GPU: attn.torch.sdpa; its share that is
Python (the same with a C function in the library's place that does nothing); PyTorch's function
replaced by it; attn_forward alone through ctypes; and PyTorch's own function.

Invariant: everybody's samples are taken in turns, behind calls that warm up.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple

from .grids import Shape, square
from .machine import Machine, per_call_us

MOST_US = 12.0  # of attn.torch.sdpa on a GPU
SAMPLES, CALLS = 60, 50
SCHEMA = "attn-host/1"
SHAPES = (square(1, 4, 4, 16, 64, False), square(2, 8, 8, 128, 64, True),
          Shape(1, 32, 8, 1, 128, 128, False))


@contextlib.contextmanager
def library_does_nothing() -> Iterator[None]:
    """Within it the plans that attn.torch knows call a C function that returns 0 at once."""
    import attn.torch
    nothing = ctypes.CDLL("libm.so.6")["feclearexcept"]
    plans = {known.plan: known.plan.call for known in attn.torch._known.values()}
    for plan in plans:
        plan.call = nothing
    try:
        yield
    finally:
        for plan, call in plans.items():
            plan.call = call


class Caller(NamedTuple):
    """Somebody whose call is timed as users make it."""
    name: str
    call: Callable[[], Any]
    context: Callable[[], ContextManager[Any]] = contextlib.nullcontext


def callers_of(machine: Machine, shape: Shape, dtype: str) -> List[Caller]:
    import attn.torch
    functional = machine.torch.nn.functional
    case = machine.case(shape, dtype, [], 1)
    options = {"is_causal": shape.causal, "enable_gqa": shape.heads_q != shape.heads_kv}
    ours = functools.partial(attn.torch.sdpa, *case.inputs[0], **options)
    theirs = functools.partial(functional.scaled_dot_product_attention, *case.inputs[0], **options)
    query, key, value = case.inputs[0]
    callers = [Caller("attn.torch.sdpa", ours),
               Caller("replace_sdpa",
                      lambda: functional.scaled_dot_product_attention(query, key, value, **options),
                      attn.torch.replace_sdpa),
               Caller("attn_forward", functools.partial(case.ours.call, 0, machine.stream())),
               Caller("PyTorch SDPA", theirs)]
    if machine.gpu is not None:  # on a CPU the caller computes
        callers.insert(1, Caller("its Python", ours, library_does_nothing))
    return callers


def sample_us(machine: Machine, caller: Caller) -> float:
    """Microseconds of the caller's time per call; a GPU works on meanwhile."""
    call, kept = caller.call, None
    with caller.context():
        machine.synchronize()
        start = time.perf_counter()
        for _ in itertools.repeat(None, CALLS):
            kept = call()
        end = time.perf_counter()
    machine.synchronize()
    del kept
    return per_call_us(end - start, CALLS)


def samples_of(machine: Machine, shape: Shape, dtype: str) -> Dict[str, List[float]]:
    callers = callers_of(machine, shape, dtype)
    for caller in callers:
        sample_us(machine, caller)
    found: Dict[str, List[float]] = {caller.name: [] for caller in callers}
    for _ in range(SAMPLES):
        for caller in callers:
            found[caller.name].append(sample_us(machine, caller))
    return found


def run_host(machine: Machine, options: argparse.Namespace) -> int:
    """Exit code 1 if the operator costs more on a GPU than is promised."""
    rows, dtype = [], (options.dtype or ["fp16"])[0]
    with machine.torch.inference_mode():
        for shape in SHAPES:
            samples = samples_of(machine, shape, dtype)
            rows.append({"name": str(shape), "dtype": dtype, "samples_us": samples,
                         "median_us": {name: statistics.median(us)
                                       for name, us in samples.items()},
                         "least_us": {name: min(us) for name, us in samples.items()}})
    report = {"schema": SCHEMA, "environment": machine.environment(), "calls": CALLS,
              "most_us": MOST_US if machine.gpu else None, "rows": rows}
    if options.json and options.json != "-":
        Path(options.json).write_text(json.dumps(report) + "\n")
    if options.json == "-":
        print(json.dumps(report))
    else:
        print_host(report)
    costs = [row["median_us"]["attn.torch.sdpa"] for row in rows]
    if machine.gpu and max(costs) > MOST_US:
        print(f"peers: --host: attn.torch.sdpa costs {max(costs):.1f} us, expected at most "
              f"{MOST_US:g} us", file=sys.stderr)
        return 1
    return 0


def print_host(report: Dict[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in report["environment"].items()))
    names = list(report["rows"][0]["median_us"])
    print("the caller's microseconds for one call: median (least) of samples of "
          f"{report['calls']} calls")
    print(f"{'shape':30} " + " ".join(f"{name:>17}" for name in names))
    for row in report["rows"]:
        cells = (f"{row['median_us'][name]:.2f} ({row['least_us'][name]:.2f})" for name in names)
        print(f"{row['name']:30} " + " ".join(f"{cell:>17}" for cell in cells))
