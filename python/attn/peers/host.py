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
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

from .grids import Shape, square
from .machine import Machine, Side

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


def sides_of(machine: Machine, shape: Shape, dtype: str) -> List[Side]:
    import attn.torch
    functional, ours = machine.torch.nn.functional, attn.torch.sdpa
    case = machine.case(shape, dtype, [], 1)
    inputs, grouped = case.inputs, shape.heads_q != shape.heads_kv

    def replaced(index: int, _: ctypes.c_void_p) -> Any:
        return functional.scaled_dot_product_attention(*inputs[index], is_causal=shape.causal,
                                                       enable_gqa=grouped)

    sides = [machine.sdpa_side("attn.torch.sdpa", "host", None, shape, inputs, sdpa=ours),
             Side("replace_sdpa", "host", None, replaced, attn.torch.replace_sdpa),
             Side("attn_forward", "host", None, case.ours.call),
             machine.sdpa_side("PyTorch SDPA", "host", None, shape, inputs)]
    if machine.gpu is not None:  # on a CPU the caller computes
        sides.insert(1, machine.sdpa_side("its Python", "host", None, shape, inputs,
                                          library_does_nothing, ours))
    return sides


def samples_of(machine: Machine, shape: Shape, dtype: str) -> Dict[str, List[float]]:
    sides = sides_of(machine, shape, dtype)
    found: Dict[str, List[float]] = {side.name: [] for side in sides}
    for side in sides:
        machine.host_us(side, 2, CALLS, 1)
    for _ in range(SAMPLES):
        for side in sides:
            found[side.name] += machine.host_us(side, 1, CALLS, 1)
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
