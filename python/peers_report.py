# SPDX-License-Identifier: Apache-2.0
"""What a run of peers.py says: the statistics, the tables, and a written file worked out again.

The ratio of two sides is the median over rounds of (median of the peer's two blocks) / (median of
our two blocks). Its interval is that of a median by order statistics, which assumes nothing about
the distribution of the rounds and needs at least six of them.

Invariant: every figure is computed from the raw samples of a row by summarise(), and by nothing
else; a row with a complaint has no figures.
"""

import contextlib
import io
import json
import math
import statistics
import sys
from pathlib import Path

import grids

SCHEMA = "attn-peers/1"
RECORDED_SCHEMA = "attn-peers-recorded/1"
MODES = ("graph", "eager")
CONTROL = "ours again"  # the A/A pair: its interval should hold 1
PEERS = {  # name: what the name of one of its kernels must contain
    "flash": "flash_fwd",
    "cudnn": "cudnn",
    "efficient": "fmha_cutlass|efficient",
    "flex": "triton",
}

# ---- statistics ------------------------------------------------------------------------------


def median_interval(values, level=0.95):
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


def paired_ratio(rounds):
    """The other side's time over ours, with its interval, from ABBA rounds."""
    ratios = [statistics.median(sum(entry["other"], [])) / statistics.median(sum(entry["ours"], []))
              for entry in rounds]
    interval = median_interval(ratios)
    low, high, coverage = interval if interval else (None, None, None)
    return {"ratio": statistics.median(ratios), "low": low, "high": high, "coverage": coverage,
            "rounds": len(ratios)}


def p50(rounds, side):
    return statistics.median([us for entry in rounds for block in entry[side] for us in block])


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def summarise(row, recorded, gpu):
    """Every figure of a row, from its raw samples; None for a row that has none to give."""
    if row["reason"] or row["invalid"] or not row["pairs"]["graph"]:
        return None
    summary = {"modes": {}, "host_us": {name: statistics.median(samples)
                                        for name, samples in row["host"].items()}}
    for mode in MODES:
        pairs = row["pairs"][mode]
        if not pairs:
            continue
        ours = p50([entry for rounds in pairs.values() for entry in rounds], "ours")
        us = {name: p50(rounds, "other") for name, rounds in pairs.items()}
        peers = {name: us[name] for name in us if name in PEERS}
        summary["modes"][mode] = {
            "ours_us": ours, "us": us, "best": min(peers, key=peers.get) if peers else None,
            "ratios": {name: paired_ratio(rounds) for name, rounds in pairs.items()}}
    graph = summary["modes"]["graph"]
    summary["tflops"] = row["flops"] / graph["ours_us"] / 1e6
    summary["fa3"] = grids.scaled_fa3(recorded, grids.Shape(**row["shape"]), gpu, row["dtype"],
                                      graph["us"].get("cudnn"))
    return summary


# ---- the table -------------------------------------------------------------------------------


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def ratio_text(ratio):
    if ratio is None:
        return "-"
    if ratio["low"] is None:
        return f"{ratio['ratio']:.3f} [too few rounds]"
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def row_problem(row):
    if row["reason"]:
        return "not measured: " + row["reason"]
    if row["invalid"]:
        return "INVALID: " + "; ".join(row["invalid"])
    return None


def row_line(row):
    """A row in a few words, while the kernels of its sides have no name yet."""
    if not row["summary"]:
        return row_problem(row)
    graph = row["summary"]["modes"]["graph"]
    beside = f", {graph['best']} {graph['us'][graph['best']]:.2f} us" if graph["best"] else ""
    return f"ours {graph['ours_us']:.2f} us{beside}"


def peer_columns(rows):
    return [name for name in PEERS if any(name in row["sides"] for row in rows)]


def graph_table(rows, out):
    columns = peer_columns(rows)
    print("graph replay, microseconds per call; ratio = best peer / ours, 95 % interval; "
          "FA3*: scaled, not live", file=out)
    print(f"{'shape':30} {'variant':32} {'ours':>9} {'TFLOP/s':>8} "
          + " ".join(f"{name:>9}" for name in columns)
          + f" {'FA3*':>9} {'best':>9}  ratio", file=out)
    for row in rows:
        summary = row["summary"]
        if not summary:
            print(f"{row['name']:30} {row_problem(row)}", file=out)
            continue
        graph, fa3 = summary["modes"]["graph"], summary["fa3"]
        print(f"{row['name']:30} {row['variant']:32} {graph['ours_us']:9.2f} "
              f"{summary['tflops']:8.1f} "
              + " ".join(f"{number(graph['us'].get(name)):>9}" for name in columns)
              + f" {number(fa3 and fa3['us']):>9} {graph['best'] or '-':>9}  "
              + ratio_text(graph["ratios"].get(graph["best"])), file=out)


def eager_table(rows, out):
    columns = peer_columns(rows)
    print("\nplain calls back to back, microseconds per call; host: the caller's time for one call",
          file=out)
    print(f"{'shape':30} {'ours':>9} " + " ".join(f"{name:>9}" for name in columns)
          + f" {'ours host':>10} {'ctypes':>7} {'SDPA host':>10}  ratio to the best", file=out)
    for row in rows:
        eager = row["summary"] and row["summary"]["modes"].get("eager")
        if not eager:
            continue
        host = row["summary"]["host_us"]
        print(f"{row['name']:30} {eager['ours_us']:9.2f} "
              + " ".join(f"{number(eager['us'].get(name)):>9}" for name in columns)
              + f" {number(host.get('ours')):>10} {number(host.get('empty ctypes call')):>7} "
              f"{number(host.get('sdpa')):>10}  "
              + ratio_text(eager["ratios"].get(eager["best"])), file=out)


def variant_table(rows, out):
    """Each configuration beside the plan's choice, where more than one was measured."""
    heading = "\nconfigurations, graph replay; ratio = its time / the plan's choice, 95 % interval"
    for row in rows:
        names = [name for name, side in row["sides"].items() if side["role"] == "variant"]
        if not row["summary"] or not names:
            continue
        graph = row["summary"]["modes"]["graph"]
        times = {row["variant"]: graph["ours_us"],
                 **{name: graph["us"][name] for name in names if name in graph["us"]}}
        print(f"{heading}\n{row['name']}" if heading else row["name"], file=out)
        heading = None
        best = graph["us"].get(graph["best"])
        for name in sorted(times, key=times.get):
            against = f"{best / times[name]:6.3f} x {graph['best']}" if best else ""
            print(f"  {name:34} {times[name]:9.2f} us {row['flops'] / times[name] / 1e6:8.1f} "
                  f"TFLOP/s  {against}  {ratio_text(graph['ratios'].get(name))}", file=out)


def closing(rows, out):
    for row in rows:
        for name, side in row["sides"].items():
            if side["error"]:
                print(f"{row['name']}: {name} not timed: {side['error']}", file=out)
    counted = [row for row in rows if row["summary"]]
    for mode in MODES:
        ratios = []
        for row in counted:
            figures = row["summary"]["modes"].get(mode)
            if figures and figures["best"]:
                ratios.append((figures["ratios"][figures["best"]]["ratio"], row["name"]))
        if ratios:
            worst = min(ratios)
            print(f"{mode}: best peer / ours: geometric mean "
                  f"{geometric_mean([value for value, _ in ratios]):.3f}, worst {worst[0]:.3f} "
                  f"({worst[1]}), {len(ratios)} shapes", file=out)
    with_fa3 = []
    for row in counted:
        graph, fa3 = row["summary"]["modes"]["graph"], row["summary"]["fa3"]
        if fa3:
            rival = min([fa3["us"], *(graph["us"][name] for name in graph["us"] if name in PEERS)])
            with_fa3.append((rival / graph["ours_us"], row["name"]))
    if with_fa3:
        print(f"graph: with FA3 (scaled, not live) among the peers: geometric mean "
              f"{geometric_mean([value for value, _ in with_fa3]):.3f}, worst "
              f"{min(with_fa3)[0]:.3f} ({min(with_fa3)[1]})", file=out)
    controls = [row["summary"]["modes"][mode]["ratios"][CONTROL] for row in counted
                for mode in row["summary"]["modes"]]
    held = sum(control["low"] is not None and control["low"] <= 1 <= control["high"]
               for control in controls)
    print(f"control, ours beside ours: {held} of {len(controls)} intervals hold 1", file=out)
    print(f"{len(rows)} shapes: {len(counted)} measured, "
          f"{sum(bool(row['invalid']) for row in rows)} invalid, "
          f"{sum(bool(row['reason']) for row in rows)} not measured", file=out)


def print_report(report, out=sys.stdout):
    environment = report["environment"]
    print(", ".join(f"{key} {value}" for key, value in environment.items()
                    if not isinstance(value, dict)), file=out)
    for when in ("before", "after"):
        state = environment.get(when) or {}
        print(f"{when}: " + ", ".join(f"{key} {value}" for key, value in state.items()), file=out)
    rows = report["rows"]
    graph_table(rows, out)
    eager_table(rows, out)
    variant_table(rows, out)
    print(file=out)
    closing(rows, out)


def print_recorded(table, out=sys.stdout):
    columns = list(table["columns"])
    print(f"{table['what']}; {table['gpu']}, {table['dtype']}, {table['date']}, PyTorch "
          f"{table['torch']}, cuDNN {table['cudnn']}, {table['fa3']}\n{table['method']}", file=out)
    for name, meaning in table["columns"].items():
        print(f"  {name:18} {meaning}", file=out)
    print(f"{'shape':30} " + " ".join(f"{name[:10]:>10}" for name in columns), file=out)
    for shape, us in table["by_shape"].items():
        print(f"{str(shape):30} " + " ".join(f"{number(us.get(name)):>10}" for name in columns),
              file=out)


def show(path):
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
                print_recorded(grids.load_recorded(path))
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


def work_out_again(report):
    """The rows' summaries anew, from their samples; the names of those that were different."""
    differing = []
    for row in report["rows"]:
        again = summarise(row, load_recorded(), report["environment"]["gpu"])
        again = json.loads(json.dumps(again))
        if again != row["summary"]:
            differing.append(row["name"])
        row["summary"] = again
    return differing


def load_recorded():
    return grids.load_recorded() if grids.RECORDED.exists() else None
