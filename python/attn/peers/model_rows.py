# SPDX-License-Identifier: Apache-2.0
"""The rows of --models in words: ratios, their geometric mean, and what misses its bar.

Invariant: a side that PyTorch computed in part has no ratio; it is named as not ours.
"""

from __future__ import annotations

import statistics
from typing import Any, Dict, Iterator, List, Tuple

OURS = ("replace_sdpa", "attn")
AT_LEAST, AT_LEAST_GENERATING = 1.0, 1.05  # of sdpa's speed; the second: one sequence with a cache
TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 8e-2}


def put_ratios(row: Dict[str, Any]) -> None:
    """How many times as fast as sdpa, or as eager attention where a model has no sdpa. None: not
    measured, or computed by PyTorch in part."""
    times = {side["name"]: side["median_ms"] for side in row["sides"]}
    base = times.get("sdpa") or times.get("eager")
    for side in row["sides"]:
        if side["name"] in OURS and side["median_ms"] and base and not side["by_pytorch"]:
            side["ratio"] = round(base / side["median_ms"], 4)


def ours(rows: List[Dict[str, Any]]) -> Iterator[Tuple[Dict[str, Any], Dict[str, Any]]]:
    """Each row with each of our sides."""
    for row in rows:
        for side in row["sides"]:
            if side["name"] in OURS:
                yield row, side


def at_least(row: Dict[str, Any]) -> float:
    alone = "generate" in row["work"] and (row["sizes"] or "").startswith("B1 ")
    return AT_LEAST_GENERATING if alone else AT_LEAST


def summary(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Geometric means of the ratios, and what is below its bar or not ours."""
    means: Dict[str, Any] = {}
    for name in OURS:
        ratios = [side["ratio"] for _, side in ours(rows) if side["name"] == name and side["ratio"]]
        means[name] = round(statistics.geometric_mean(ratios), 4) if ratios else None
    return {
        "geometric_mean": means,
        "below": [f"{title(row)}: {side['name']} {side['ratio']:.2f}x, expected at least "
                  f"{at_least(row):g} ({', '.join(side['kernels']) or 'no kernel'})"
                  for row, side in ours(rows) if side["ratio"] and side["ratio"] < at_least(row)],
        "not_ours": [f"{title(row)}: {side['name']}: {side['by_pytorch']} of {side['calls']} calls "
                     f"by PyTorch: {'; '.join(side['reasons'])[:150]}"
                     for row, side in ours(rows) if side["by_pytorch"]]}


def summary_lines(found: Dict[str, Any]) -> List[str]:
    return ["geometric mean: " + ", ".join(
        f"{name} {mean:.3f}x" if mean else f"{name} -"
        for name, mean in found["geometric_mean"].items()),
        *(f"below: {line}" for line in found["below"]),
        *(f"not ours: {line}" for line in found["not_ours"])]


def is_wrong(side: Dict[str, Any], dtype: str) -> bool:
    return side["difference"] is not None and not side["difference"] <= TOLERANCE[dtype]


def wrong(row: Dict[str, Any], dtype: str) -> List[str]:
    return [f"{title(row)}: {side['name']} differs by {side['difference']:.3g}, expected at most "
            f"{TOLERANCE[dtype]:g} ({', '.join(side['kernels'])}; worst call by itself: "
            f"{side['worst_call']})" for side in row["sides"] if is_wrong(side, dtype)]


def title(row: Dict[str, Any]) -> str:
    return f"{row['model']}, {row['work']}" + (f" {row['sizes']}" if row["sizes"] else "")


def row_text(row: Dict[str, Any]) -> str:
    if row["reason"]:
        return f"not run: {row['reason']}"
    parts = []
    for side in row["sides"]:
        name, took = side["name"], side["median_ms"]
        text = f"{name} -" if took is None else f"{name} {took:.2f} ms"
        if side["ratio"]:
            text += f" ({side['ratio']:.2f}x{', below' if side['ratio'] < at_least(row) else ''})"
        if side["by_pytorch"]:
            text += f", not ours: {side['by_pytorch']} of {side['calls']} calls by PyTorch"
        if (side["same_tokens"] or 1.0) < 1.0:
            text += f", {100 * side['same_tokens']:.0f} % of the tokens before the first difference"
        parts.append(text)
    reasons = dict.fromkeys(side["reason"][:90] for side in row["sides"] if side["reason"])
    return ", ".join(parts) + "".join(f"; {reason}" for reason in reasons)
