# SPDX-License-Identifier: Apache-2.0
"""What the samples of a run say: ratios of medians with intervals, and every other figure.

The ratio of two sides is the median over rounds of (median of the peer's two blocks) / (median of
our two blocks). Its interval is that of a median by order statistics, which assumes nothing about
the distribution of the rounds and needs at least six of them.

Invariant: every figure is computed from the raw samples of a row by summarise(), and by nothing
else; a row with a complaint has no figures.
"""

from __future__ import annotations

import json
import math
import statistics
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import grids

SCHEMA = "attn-peers/1"
RECORDED_SCHEMA = "attn-peers-recorded/1"
MODES = ("graph", "eager")
CONTROL = "ours again"  # the A/A pair: its interval should hold 1
GPU_PEERS = {  # name: what the name of one of its kernels must contain
    "flash": "flash_fwd",
    "cudnn": "cudnn",
    "efficient": "fmha_cutlass|efficient",
    "flex": "triton",
    "fa3": "FlashAttnFwdSm90|flash::",
}
CPU_PEERS = {"sdpa": "scaled_dot_product"}  # as PyTorch chooses
PEERS = {**GPU_PEERS, **CPU_PEERS}
Row = Dict[str, Any]
Summary = Dict[str, Any]


def median_interval(values: Sequence[float],
                    level: float = 0.95) -> Optional[Tuple[float, float, float]]:
    """(low, high, coverage) of the median by order statistics; None if there are too few values.

    The k-th from below and above enclose the median with 1 - 2 P(Binomial(n, 1/2) < k)."""
    ordered, n = sorted(values), len(values)
    best, below = None, 0.0
    for k in range(1, n // 2 + 1):
        below += math.comb(n, k - 1) / 2.0 ** n
        if 1 - 2 * below < level:
            break
        best = (ordered[k - 1], ordered[n - k], 1 - 2 * below)
    return best


def paired_ratio(rounds: List[Dict[str, List[List[float]]]]) -> Dict[str, Any]:
    """The other side's time over ours, with its interval, from ABBA rounds."""
    ratios = [statistics.median(sum(entry["other"], [])) / statistics.median(sum(entry["ours"], []))
              for entry in rounds]
    interval = median_interval(ratios)
    low, high, coverage = interval if interval else (None, None, None)
    return {"ratio": statistics.median(ratios), "low": low, "high": high, "coverage": coverage,
            "rounds": len(ratios)}


def p50(rounds: List[Dict[str, List[List[float]]]], side: str) -> float:
    return statistics.median([us for entry in rounds for block in entry[side] for us in block])


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summarise(row: Row, recorded: Dict[str, Any], gpu: Optional[str]) -> Optional[Summary]:
    """Every figure of a row, from its raw samples; None for a row that has none to give."""
    if row["reason"] or row["invalid"] or not any(row["pairs"].values()):
        return None
    summary: Summary = {"modes": {}, "host_us": {name: statistics.median(samples)
                                        for name, samples in row["host"].items()}}
    for mode in MODES:
        pairs = row["pairs"][mode]
        if not pairs:
            continue
        ours = p50([entry for rounds in pairs.values() for entry in rounds], "ours")
        us = {name: p50(rounds, "other") for name, rounds in pairs.items()}
        peers = {name: us[name] for name in us if name in PEERS}
        summary["modes"][mode] = {
            "ours_us": ours, "us": us,
            "best": min(peers, key=lambda name: peers[name]) if peers else None,
            "ratios": {name: paired_ratio(rounds) for name, rounds in pairs.items()}}
    first = leading(summary)
    summary["tflops"] = row["flops"] / first["ours_us"] / 1e6
    summary["fa3"] = None if "fa3" in first["us"] else grids.scaled_fa3(
        recorded, grids.Shape(**row["shape"]), gpu, row["dtype"], first["us"].get("cudnn"))
    return summary


def leading(summary: Summary) -> Dict[str, Any]:
    """The figures of the mode that the GPU itself is seen in; on a CPU there is but one."""
    return next(iter(summary["modes"].values()))


def rival(summary: Summary) -> Optional[Tuple[str, float]]:
    """(name, time over ours) of the fastest of all others, FlashAttention-3 included."""
    first, fa3 = leading(summary), summary["fa3"]
    ratios = {name: first["ratios"][name]["ratio"] for name in first["us"] if name in PEERS}
    if fa3:
        ratios["FA3*"] = fa3["us"] / first["ours_us"]
    return min(ratios.items(), key=lambda item: item[1]) if ratios else None


def work_out_again(report: Dict[str, Any]) -> List[str]:
    """The rows' summaries anew, from their samples; the names of those that were different."""
    differing = []
    recorded = grids.load_recorded()
    for row in report["rows"]:
        again = summarise(row, recorded, report["environment"].get("gpu"))
        again = json.loads(json.dumps(again))
        if again != row["summary"]:
            differing.append(row["name"])
        row["summary"] = again
    return differing
