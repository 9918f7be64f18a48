# SPDX-License-Identifier: Apache-2.0
"""The ratios of a report as an SVG picture: bars from 1 to the right where libattn is faster.

The axis is logarithmic: twice as fast and half as fast are equally long.

Invariant: every requested row is in it; one without a figure says so.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Tuple
from xml.sax.saxutils import escape

from .report import GPU_PEERS, geometric_mean, leading, rival
from .tables import title

ROW, TOP, LEFT, PLOT, RIGHT = 18, 64, 250, 420, 170
FASTER, SLOWER, LINE, TEXT, PAPER = "#2f7d4f", "#b5432e", "#c9c9c9", "#222222", "#ffffff"
TICKS = (0.125, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 8, 16, 32, 64, 128)
NAMES = {"flash": "FlashAttention-2", "cudnn": "cuDNN", "efficient": "efficient", "flex": "Flex",
         "sdpa": "PyTorch", "fa3": "FlashAttention-3", "FA3*": "FA3 (scaled)"}


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12,
         colour: str = TEXT, weight: str = "normal") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour}" font-weight="{weight}">{escape(words)}</text>')


class Axis:
    """Ratios to places: 1 and all of the ratios lie within."""

    def __init__(self, ratios: List[float]) -> None:
        low, high = min(ratios + [0.9]), max(ratios + [1.25])
        self.low, self.high = math.log(low * 0.95), math.log(high * 1.05)
        self.ticks = [tick for tick in TICKS if low * 0.95 <= tick <= high * 1.05]

    def at(self, ratio: float) -> float:
        return LEFT + PLOT * (math.log(ratio) - self.low) / (self.high - self.low)


def bar(row: Dict[str, Any], axis: Axis, y: float) -> List[str]:
    found = rival(row["summary"]) if row["summary"] else None
    if found is None:
        words = "not measured" if row["reason"] else "no peer" if row["summary"] else "invalid"
        return [text(axis.at(1) + 5, y + 13, words, size=11, colour=SLOWER)]
    name, ratio = found
    begin, end = sorted((axis.at(1), axis.at(ratio)))
    colour = FASTER if ratio >= 1 else SLOWER
    drawn = [f'<rect x="{begin:.1f}" y="{y + 3:.1f}" width="{max(end - begin, 0.5):.1f}" '
             f'height="{ROW - 6}" fill="{colour}"/>']
    interval = leading(row["summary"])["ratios"].get(name)
    if interval and interval["low"] is not None:
        low, high, middle = axis.at(interval["low"]), axis.at(interval["high"]), y + ROW / 2
        drawn.append(f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}" stroke="{TEXT}"/>')
        end = max(end, high)
    drawn.append(text(max(end, axis.at(1)) + 5, y + 13, f"{ratio:.2f}× {NAMES[name]}", size=11))
    return drawn


def heading(report: Dict[str, Any], ratios: List[float]) -> Tuple[str, str]:
    environment, rows = report["environment"], report["rows"]
    dtypes = ", ".join(sorted({row["dtype"] for row in rows}))
    device = environment.get("gpu") or environment.get("device", "")
    on_gpu = any(name in GPU_PEERS for row in rows for name in row["sides"])
    how = "calls replayed from a CUDA graph" if on_gpu else f"{environment.get('threads')} threads"
    below = sum(ratio < 1 for ratio in ratios)
    backward = all("backward" in row["shape"].get("option", "").split() for row in rows)
    return (f"libattn beside the fastest of its peers: {device}, {dtypes}, "
            f"{'backward' if backward else 'forward'}",
            f"time of the fastest peer over libattn's, {how}; geometric mean "
            f"{geometric_mean(ratios):.2f}× over {len(ratios)} shapes, {below} of them below 1")


def picture(report: Dict[str, Any]) -> str:
    """SVG of a report whose summaries are worked out; ValueError if there is no ratio in it."""
    rows = report["rows"]
    found = [rival(row["summary"]) for row in rows if row["summary"]]
    ratios = [one[1] for one in found if one is not None]
    if not ratios:
        raise ValueError("no ratio in this report")
    axis = Axis(ratios)
    width, height = LEFT + PLOT + RIGHT, TOP + ROW * len(rows) + 12
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             f'width="{width}" height="{height}" font-family="system-ui, sans-serif">',
             f'<rect width="{width}" height="{height}" fill="{PAPER}"/>']
    first, second = heading(report, ratios)
    drawn += [text(12, 20, first, size=14, weight="bold"), text(12, 38, second)]
    for tick in axis.ticks:
        x = axis.at(tick)
        drawn.append(f'<path d="M{x:.1f} {TOP - 4}V{height - 8}" stroke='
                     f'"{TEXT if tick == 1 else LINE}"/>')
        drawn.append(text(x, TOP - 8, f"{tick:g}×", "middle", 11))
    for index, row in enumerate(rows):
        y = TOP + ROW * index
        drawn.append(text(LEFT - 8, y + 13, title(row, rows), "end"))
        drawn += bar(row, axis, y)
    return "\n".join([*drawn, "</svg>"]) + "\n"
