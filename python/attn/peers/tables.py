# SPDX-License-Identifier: Apache-2.0
"""A report as tables, and a written file shown again.

Invariant: a row with a complaint shows the complaint, and no figure.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, TextIO

from . import grids
from .report import (CONTROL, MODES, PEERS, RECORDED_SCHEMA, SCHEMA, Row, geometric_mean, leading,
                     rival, work_out_again)

WORDS = {"graph": "graph replay", "eager": "plain calls back to back"}


def number(value: Optional[float], digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def ratio_text(ratio: Optional[Dict[str, Any]]) -> str:
    if ratio is None:
        return "-"
    if ratio["low"] is None:
        return f"{ratio['ratio']:.3f} [too few rounds]"
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def row_problem(row: Row) -> Optional[str]:
    if row["reason"]:
        return "not measured: " + row["reason"]
    if row["invalid"]:
        return "INVALID: " + "; ".join(row["invalid"])
    return None


def row_line(row: Row) -> str:
    """A row in a few words, while the kernels of its sides have no name yet."""
    if not row["summary"]:
        return row_problem(row) or "nothing"
    first = leading(row["summary"])
    beside = f", {first['best']} {first['us'][first['best']]:.2f} us" if first["best"] else ""
    return f"ours {first['ours_us']:.2f} us{beside}"


def title(row: Row, rows: List[Row]) -> str:
    """The shape, and its dtype where there is more than one."""
    several = len({other["dtype"] for other in rows}) > 1
    return f"{row['name']} {row['dtype']}" if several else row["name"]


def peer_columns(rows: List[Row]) -> List[str]:
    return [name for name in PEERS if any(name in row["sides"] for row in rows)]


def leading_table(rows: List[Row], out: TextIO) -> None:
    """Everyone's time in the mode that comes first."""
    columns, with_fa3 = peer_columns(rows), any(is_on_gpu(row) for row in rows)
    width = max([30, *(len(title(row, rows)) for row in rows)])
    modes = {next(iter(row["summary"]["modes"])) for row in rows if row["summary"]}
    how = [WORDS[mode] for mode in MODES if mode in modes]
    print(", ".join([*how, "microseconds per call; ratio = best peer / ours, 95 % interval"])
          + ("; FA3*: scaled, not live" if with_fa3 else ""), file=out)
    print(f"{'shape':{width}} {'variant':32} {'ours':>9} {'TFLOP/s':>8} "
          + " ".join(f"{name:>9}" for name in columns)
          + (f" {'FA3*':>9}" if with_fa3 else "") + f" {'best':>9}  ratio", file=out)
    for row in rows:
        summary = row["summary"]
        if not summary:
            print(f"{title(row, rows):{width}} {row_problem(row)}", file=out)
            continue
        first, fa3 = leading(summary), summary["fa3"]
        print(f"{title(row, rows):{width}} {row['variant']:32} {first['ours_us']:9.2f} "
              f"{summary['tflops']:8.{1 if summary['tflops'] >= 10 else 3}f} "
              + " ".join(f"{number(first['us'].get(name)):>9}" for name in columns)
              + (f" {number(fa3 and fa3['us']):>9}" if with_fa3 else "")
              + f" {first['best'] or '-':>9}  "
              + ratio_text(first["ratios"].get(first["best"])), file=out)


def is_on_gpu(row: Row) -> bool:
    return bool(row["pairs"]["graph"])


def eager_table(rows: List[Row], out: TextIO) -> None:
    """Plain calls on a GPU, and what they cost the caller."""
    columns, shown = peer_columns(rows), [row for row in rows if row["summary"] and is_on_gpu(row)]
    if not shown:
        return
    print("\nplain calls back to back, microseconds per call; host: the caller's time for one "
          "call, of libattn,\nof attn.torch.sdpa, of PyTorch's SDPA, and of ctypes with a function "
          "that does nothing", file=out)
    print(f"{'shape':30} {'ours':>9} " + " ".join(f"{name:>9}" for name in columns)
          + f" {'ours host':>10} {'operator':>9} {'SDPA host':>10} {'ctypes':>7}  "
          "ratio to the best", file=out)
    for row in shown:
        eager, host = row["summary"]["modes"]["eager"], row["summary"]["host_us"]
        print(f"{title(row, rows):30} {eager['ours_us']:9.2f} "
              + " ".join(f"{number(eager['us'].get(name)):>9}" for name in columns)
              + f" {number(host.get('ours')):>10} {number(host.get('attn.torch.sdpa')):>9} "
              f"{number(host.get('sdpa')):>10} {number(host.get('empty ctypes call')):>7}  "
              + ratio_text(eager["ratios"].get(eager["best"])), file=out)


def variant_table(rows: List[Row], out: TextIO) -> None:
    """Each configuration beside the plan's choice, where more than one was measured."""
    heading: Optional[str] = ("\nconfigurations; ratio = its time / the plan's choice, 95 % "
                              "interval")
    for row in rows:
        names = [name for name, side in row["sides"].items() if side["role"] == "variant"]
        if not row["summary"] or not names:
            continue
        first = leading(row["summary"])
        times = {row["variant"]: first["ours_us"],
                 **{name: first["us"][name] for name in names if name in first["us"]}}
        name = title(row, rows)
        print(f"{heading}\n{name}" if heading else name, file=out)
        heading = None
        best = first["us"].get(first["best"])
        for name in sorted(times, key=lambda known: times[known]):
            against = f"{best / times[name]:6.3f} x {first['best']}" if best else ""
            print(f"  {name:34} {times[name]:9.2f} us {row['flops'] / times[name] / 1e6:8.1f} "
                  f"TFLOP/s  {against}  {ratio_text(first['ratios'].get(name))}", file=out)


def closing(rows: List[Row], out: TextIO) -> None:
    for row in rows:
        for name, side in row["sides"].items():
            if side["error"]:
                print(f"{title(row, rows)}: {name} not timed: {side['error']}", file=out)
    counted = [row for row in rows if row["summary"]]
    for mode in MODES:
        ratios = []
        for row in counted:
            figures = row["summary"]["modes"].get(mode)
            if figures and figures["best"]:
                ratios.append((figures["ratios"][figures["best"]]["ratio"],
                               title(row, rows)))
        if ratios:
            worst = min(ratios)
            print(f"{mode}: best peer / ours: geometric mean "
                  f"{geometric_mean([value for value, _ in ratios]):.3f}, worst {worst[0]:.3f} "
                  f"({worst[1]}), {len(ratios)} shapes", file=out)
    with_fa3 = [(found[1], title(row, rows)) for row in counted
                for found in [rival(row["summary"])] if found and row["summary"]["fa3"]]
    if with_fa3:
        print(f"graph: with FA3 (scaled, not live) among the peers: geometric mean "
              f"{geometric_mean([value for value, _ in with_fa3]):.3f}, worst "
              f"{min(with_fa3)[0]:.3f} ({min(with_fa3)[1]}), {len(with_fa3)} shapes", file=out)
    controls = [row["summary"]["modes"][mode]["ratios"][CONTROL] for row in counted
                for mode in row["summary"]["modes"]]
    held = sum(control["low"] is not None and control["low"] <= 1 <= control["high"]
               for control in controls)
    print(f"control, ours beside ours: {held} of {len(controls)} intervals hold 1", file=out)
    print(f"{len(rows)} shapes: {len(counted)} measured, "
          f"{sum(bool(row['invalid']) for row in rows)} invalid, "
          f"{sum(bool(row['reason']) for row in rows)} not measured", file=out)


def print_report(report: Dict[str, Any], out: Optional[TextIO] = None) -> None:
    out = out or sys.stdout
    environment = report["environment"]
    print(", ".join(f"{key} {value}" for key, value in environment.items()
                    if not isinstance(value, dict)), file=out)
    for when in ("before", "after"):
        if environment.get(when):
            print(f"{when}: " + ", ".join(f"{key} {value}" for key, value
                                          in environment[when].items()), file=out)
    rows = report["rows"]
    leading_table(rows, out)
    eager_table(rows, out)
    variant_table(rows, out)
    print(file=out)
    closing(rows, out)
    if report.get("memory"):
        print(f"extra memory at {report['memory']['name']} fp32: workspace "
              f"{report['memory']['workspace_mb']:.1f} MB, the process grew by "
              f"{report['memory']['grown_mb']:.1f} MB", file=out)


def print_recorded(table: Dict[str, Any], out: Optional[TextIO] = None) -> None:
    out = out or sys.stdout
    columns = list(table["columns"])
    print(f"{table['what']}; {table['gpu']}, {table['dtype']}, {table['date']}, PyTorch "
          f"{table['torch']}, cuDNN {table['cudnn']}, {table['fa3']}\n{table['method']}", file=out)
    for name, meaning in table["columns"].items():
        print(f"  {name:18} {meaning}", file=out)
    print(f"{'shape':30} " + " ".join(f"{name[:10]:>10}" for name in columns), file=out)
    for shape, us in table["by_shape"].items():
        print(f"{str(shape):30} " + " ".join(f"{number(us.get(name)):>10}" for name in columns),
              file=out)


def show(path: str) -> int:
    """Prints a written file; its figures are worked out again from the samples. Exit code."""
    try:
        report = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        print(f"peers: --show: {path} cannot be read: {error}", file=sys.stderr)
        return 2
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema not in (SCHEMA, RECORDED_SCHEMA):
        print(f"peers: --show: {path} has schema {schema!r}, expected {SCHEMA!r}", file=sys.stderr)
        return 2
    out = io.StringIO()  # nothing is shown of a file that turns out to lack something
    try:
        with contextlib.redirect_stdout(out):
            if schema == RECORDED_SCHEMA:
                print_recorded(grids.load_recorded(Path(path)))
                differing, complete = [], True
            else:
                differing, complete = work_out_again(report), report["complete"]
                print_report(report)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        print(f"peers: --show: {path} has schema {schema!r} and is no such file: "
              f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(out.getvalue(), end="")
    for name in differing:
        print(f"peers: --show: {path}: the figures of {name} are not those of its samples",
              file=sys.stderr)
    if not complete:
        print(f"peers: --show: {path}: the run did not come to its end; no kernel is proven",
              file=sys.stderr)
    return 1 if differing or not complete else 0
