# SPDX-License-Identifier: Apache-2.0
"""The CPU for the runner: libattn beside PyTorch's scaled_dot_product_attention.

Invariant: both use the same number of threads, and no block begins while the threads of the other
side may still be spinning.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from .. import _library
from .._plans import Context, Plan
from . import asking
from .grids import Shape, square
from .machine import DTYPES, Machine, NotRun, Side, per_call_us
from .options import Extra
from .report import CPU_PEERS

MOST_FLOPS = 2e11  # of one call: some seconds
SLEEP_SECONDS = 0.02
WARM_SECONDS = 0.05
MEMORY_SHAPE = square(1, 8, 8, 16384, 128, True)


class CpuMachine(Machine):
    def __init__(self, torch: Any, context: Context, variant: Optional[str], seed: int,
                 threads: int) -> None:
        super().__init__(torch, context, variant, seed, "cpu")
        self.threads = threads

    def check_size(self, flops: float) -> None:
        if flops > MOST_FLOPS:
            raise NotRun(f"one call has {flops:.2g} floating-point operations, expected at most "
                         f"{MOST_FLOPS:.2g} on a CPU")

    def peer_side(self, name: str, shape: Shape, inputs: List[Tuple[Any, Any, Any]],
                  extra: Extra) -> Side:
        return self.sdpa_side(name, "peer", CPU_PEERS[name], shape, inputs, mask=extra.attn_mask)

    def host_sides(self, shape: Shape, inputs: List[Tuple[Any, Any, Any]]) -> List[Side]:
        return []  # the caller waits for all of it

    def eager_us(self, side: Side, samples: int, calls: int, sets: int) -> List[float]:
        """Microseconds per call, one per sample; the first sample is a warm-up, unless it is long."""
        stream, times = self.stream(), []
        kept: List[Any] = [None] * sets
        time.sleep(SLEEP_SECONDS)
        for sample in range(samples + 1):
            start = time.perf_counter()
            for index in range(sample * calls, (sample + 1) * calls):
                kept[index % sets] = side.call(index % sets, stream)
            seconds = time.perf_counter() - start
            if sample > 0 or seconds > WARM_SECONDS:
                times.append(per_call_us(seconds, calls))
            if len(times) == samples:
                break
        return times

    def kernels(self, side: Side) -> List[str]:
        """Operators of PyTorch that compute attention, of one call."""
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            side.call(0, self.stream())
        return sorted({event.name for event in profiler.events() if "attention" in event.name})

    def proves(self, side: Side, kernels: List[str]) -> bool:
        if side.role == "peer":
            return any(re.search(side.kernel or "", name) for name in kernels)
        return not kernels  # ours calls no PyTorch kernel

    def environment(self) -> Dict[str, Any]:
        return {**super().environment(), "threads": self.threads}

    def used_mb(self) -> Tuple[float, ...]:
        return (resident_mb("VmRSS"),)

    def extra_memory(self) -> Dict[str, Any]:
        """How much the process grows in one call of a long sequence, workspace included."""
        problem = asking.problem_of(self.context, MEMORY_SHAPE, DTYPES["fp32"][1])
        shape = (MEMORY_SHAPE.batch, MEMORY_SHAPE.heads_q, MEMORY_SHAPE.seq_q,
                 MEMORY_SHAPE.head_dim)
        tensors = [self.torch.zeros(shape).fill_(0.5) for _ in range(4)]  # their pages exist
        before = resident_mb("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        plan = Plan(self.context, bytes(problem))
        plan.run_on_cpu(_library.tensors(*(tensor.data_ptr() for tensor in tensors)))
        return {"name": str(MEMORY_SHAPE), "workspace_mb": plan.size / 1e6,
                "grown_mb": round(resident_mb("VmHWM") - before, 3)}


def resident_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")


def open_cpu(torch: Any, variant: Optional[str], seed: int, threads: int) -> CpuMachine:
    torch.set_num_threads(threads)
    return CpuMachine(torch, Context("cpu", threads), variant, seed, threads)
