#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tables.py - writes every figure about speed in README.md and docs/ from results/.

    python3 docs/tables.py            rewrite the text between the markers
    python3 docs/tables.py --check    exit 1 and print a diff if a file is not what it would write

A block begins with <!-- table NAME --> and ends with <!-- /table -->; TABLES has the names.
`--root DIR` takes another tree.

Invariant: a figure is a finite number above 0 of a verified, complete run, or the script fails. An
empty cell means that this peer was not measured on this shape, and nothing else.
"""
import argparse
import difflib
import json
import math
import pathlib
import re
import statistics
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent

BLOCKS = {  # which file has which tables, each once
    "README.md": ["charts", "headline", "summary_text"],
    "docs/benchmarks.md": ["summary", "fp16", "bf16", "middle", "decode", "use", "models", "bwd",
                           "paged", "mixed", "fp8", "mla", "pack", "pack_run", "eager", "host",
                           "cpu", "cpu_run"],
    "docs/judge.md": ["judged"],
    "docs/evolve.md": ["searches"],
    "docs/scale.md": ["ranks_run", "ranks", "moves"],
}
HEADLINE = [  # the rows of README: file, shape
    ("fp16", "B2 H8 S512 D64"),
    ("fp16", "B1 H32/8 S1000 D128 causal"),
    ("fp16", "B16 H16 S1024 D128 causal"),
    ("fp16", "B2 H16 S8192 D128 causal"),
    ("fp16", "B1 H8 S16384 D256"),
    ("decode", "B1 H32/8 Sq1 Skv8192 D128"),
    ("decode", "B8 H32/8 Sq1 Skv1024 D128"),
    ("decode", "B64 H32/8 Sq1 Skv8192 D128"),
]
PEERS = {"cudnn": "cuDNN", "flash": "FlashAttention-2", "flex": "FlexAttention",
         "fa3": "FlashAttention-3", "scaled": "FlashAttention-3, scaled"}

GRIDS = ("fp16", "bf16", "middle", "decode")  # every row measured, with cuDNN and FlashAttention-2

# A figure about speed that no block writes. docs/lab/ is history, api.md comes from the headers.
STRAY = re.compile(r"\d ?(?:×(?! ?\d)|[MGTP]FLOP/s)")
STRAY_README = re.compile(r"\d ?(?:×(?! ?\d)|[MGTP]FLOP/s|µs|us\b|ms\b)")
FREE = {"docs/api.md"}


class Bad(Exception):
    """Results or a file are not what they should be."""


# ---- results ------------------------------------------------------------------------------------


def load(name):
    path = ROOT / "results" / name
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Bad(f"results/{name}: {error}") from None


def number(value, *path):
    """The number at this path: finite and above 0."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise Bad(f"no {key!r} of {'.'.join(map(str, path))}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Bad(f"{'.'.join(map(str, path))} is {value!r}, expected a number")
    if not (math.isfinite(value) and value > 0):
        raise Bad(f"{'.'.join(map(str, path))} is {value}, expected a time or ratio above 0")
    return value


def peers(name):
    """The rows of a run beside peers: shape -> {ours, tflops, ratio, and each peer's time}."""
    data = load(f"h200-peers-{name}.json")
    if data.get("complete") is not True or not data.get("rows"):
        raise Bad(f"h200-peers-{name}.json is not a complete run")
    rows = {}
    for row in data["rows"]:
        where = f"h200-peers-{name}.json, {row.get('name')}"
        if name not in GRIDS and str(row.get("reason")).startswith("the limit of"):
            continue  # the run's time was up
        checks = row.get("verified", {})
        if row.get("reason") or row.get("invalid") or row["name"] in rows or \
                not all(checks.get(k, {}).get("passed") is True for k in ("before", "after")):
            raise Bad(f"{where}: not a verified row")
        try:
            graph = ("summary", "modes", "graph")
            found = {"ours": number(row, *graph, "ours_us"),
                     "tflops": number(row, "summary", "tflops")}
            live = row["summary"]["modes"]["graph"]["us"]
            for peer in PEERS:  # options have fewer peers
                if peer in live or (peer in ("cudnn", "flash") and name in GRIDS):
                    found[peer] = number(row, *graph, "us", peer)
            if row["summary"].get("fa3") is not None:  # recorded for fp16 and some shapes only
                found["scaled"] = number(row, "summary", "fa3", "us")
        except Bad as error:
            raise Bad(f"{where}: {error}") from None
        times_of_peers = [found[k] for k in PEERS if k in found]
        if times_of_peers:  # no peer computes some options
            found["ratio"] = min(times_of_peers) / found["ours"]
        rows[row["name"]] = found
    return rows


def pack_row(stage):
    pack = load("h200/evidence.json")
    if pack.get("verdict") != "PASS":
        raise Bad(f"results/h200: the verdict is {pack.get('verdict')!r}")
    rows = [r for r in pack["rows"] if r["stage"] == stage and r["device"] == "cuda:0"]
    if len(rows) != 1 or rows[0]["verdict"] != "PASS" or not rows[0]["subjects"]:
        raise Bad(f"results/h200: no PASS of {stage} on cuda:0")
    return pack, rows[0]["subjects"]


# ---- text ---------------------------------------------------------------------------------------


def us(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def ms(value):
    return us(value) + " ms"


def times(ratio):
    """Two digits; three below 1, where a loss must not read as 1."""
    return f"{ratio:.2f}×" if ratio >= 1 else f"{min(ratio, 0.999):.3f}×"


def table(head, rows):
    if not rows:
        raise Bad("a table without rows")
    lines = [head, ["---"] * len(head)] + rows
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def peer_line(shape, row, columns, tflops=True):
    return ([shape, us(row["ours"])] + ([f"{row['tflops']:.0f}"] if tflops else []) +
            [us(row[k]) if k in row else "" for k in columns] +
            [times(row["ratio"]) if "ratio" in row else ""])


def peer_table(name, tflops=True, rows=None):
    rows = rows or peers(name)
    columns = [k for k in PEERS if any(k in row for row in rows.values())]
    head = (["problem", "libattn"] + (["TFLOP/s"] if tflops else []) +
            [PEERS[k] for k in columns] + ["ratio"])
    return table(head, [peer_line(shape, row, columns, tflops) for shape, row in rows.items()])


def wrap(text):
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


# ---- blocks -------------------------------------------------------------------------------------


def headline():
    runs = {name: peers(name) for name, _ in HEADLINE}
    for name, shape in HEADLINE:
        if shape not in runs[name]:
            raise Bad(f"h200-peers-{name}.json has no row {shape!r}")
    rows = [(shape, runs[name][shape]) for name, shape in HEADLINE]
    columns = [k for k in PEERS if any(k in row for _, row in rows)]
    return table(["problem", "libattn"] + [PEERS[k] for k in columns] + ["ratio"],
                 [peer_line(shape, row, columns, False) for shape, row in rows])


def charts():
    """In one line: a picture for each run, beside each other."""
    found = [("fp16", "libattn beside the best peer on an H200, fp16"),
             ("use", "the same in real use: options, masks, chunks, packed"),
             ("bwd", "the same for gradients")]
    for name, _ in found:
        if not (ROOT / "results" / f"h200-peers-{name}.svg").is_file():
            raise Bad(f"no picture results/h200-peers-{name}.svg")
    return " ".join(f"![{words}](results/h200-peers-{name}.svg)" for name, words in found)


def bwd():
    rows = {shape.replace(" backward", ""): row for shape, row in peers("bwd").items()}
    return peer_table("bwd", rows=rows)


def models():
    """Of whole models: our two ways beside PyTorch's sdpa, or eager where a model has no sdpa."""
    data, rows = load("models-h200.json"), []
    for row in data["rows"]:
        sides = {side["name"]: side for side in row["sides"]}
        base = "sdpa" if sides.get("sdpa", {}).get("median_ms") else "eager"
        line = [row["model"], f"{row['work']} {row['sizes']}",
                ms(number(sides, base, "median_ms")) + (" (eager)" if base == "eager" else "")]
        for ours in ("replace_sdpa", "attn"):
            side = sides.get(ours, {})
            line.append(f"{ms(number(side, 'median_ms'))}, {times(number(side, 'ratio'))}"
                        if side.get("ratio") else "")
        rows.append(line)
    return table(["model", "work", "PyTorch", "replace_sdpa", "attn"], rows)


def spreads():
    """Of each run: its name, the number of shapes, the geometric mean and the lowest ratio."""
    for name, words in (("fp16", "fp16"), ("bf16", "bf16, without FlashAttention-3"),
                        ("middle", "fp16, sizes between those"), ("decode", "fp16 decode"),
                        ("use", "fp16, options, masks, chunks, odd groups, packed"),
                        ("mixed", "fp16, mixed steps over pages"),
                        ("bwd", "fp16 gradients")):
        ratios = [row["ratio"] for row in peers(name).values() if "ratio" in row]
        mean = math.exp(sum(math.log(r) for r in ratios) / len(ratios))
        yield [words, str(len(ratios)), times(mean), times(min(ratios))]


def summary():
    return table(["ratio of the best peer's time to libattn's", "shapes", "geometric mean",
                  "lowest"], list(spreads()))


def summary_text():
    return wrap("Geometric mean of these ratios, and the lowest: " + "; ".join(
        f"{words} ({count} shapes) {mean}, {low}" for words, count, mean, low in spreads()) + ".")


def pack():
    """The longest sequences of the pack: the fastest variant of each problem."""
    best = {}
    for subject in pack_row("bench")[1]:
        for timing in subject["timings"]:
            if (timing["mode"], timing["cache"]) == ("graph", "warm") and \
                    " S16384 " in timing["problem"] + " ":
                seconds, rate = number(timing, "p50", "value"), number(timing, "tflops")
                if timing["problem"] not in best or seconds < best[timing["problem"]][0]:
                    best[timing["problem"]] = seconds, subject["variant"], rate
    return table(["problem", "kernel", "µs", "TFLOP/s"],
                 [[problem, f"`{variant}`", us(seconds * 1e6), f"{rate:.0f}"]
                  for problem, (seconds, variant, rate) in sorted(best.items())])


def pack_run():
    data, subjects = pack_row("parity")
    return wrap(f"The pack in [results/h200](../results/h200) is a full run of commit "
                f"{data['commit'][:7]}: {len(subjects)} GPU kernels through all six stages in "
                f"{number(data, 'gpu_seconds'):.0f} seconds of GPU time, verdict {data['verdict']}.")


def eager():
    row = load("h200-peers-fp16.json")["rows"][0]
    modes = ("summary", "modes", "eager")
    return wrap(f"Calls back to back from Python, without a graph, {row['name']} in fp16: libattn "
                f"{number(row, *modes, 'ours_us'):.1f} µs, cuDNN through PyTorch "
                f"{number(row, *modes, 'us', 'cudnn'):.1f} µs, FlashAttention-2 through PyTorch "
                f"{number(row, *modes, 'us', 'flash'):.1f} µs.")


def host():
    cells = {}
    for cell in load("host-h200.json")["cells"]:
        if cell.get("reason"):
            raise Bad(f"host-h200.json: {cell['row']}: {cell['reason']}")
        cells[cell["row"], cell["caller"]] = us(number(cell, "median_us"))
    callers = ["attn.torch.sdpa", "attn.attention", "PyTorch SDPA"]
    kinds = list(dict.fromkeys(kind for kind, _ in cells))
    for kind in kinds:
        if (kind, callers[1]) not in cells:
            raise Bad(f"host-h200.json: no {callers[1]} for {kind!r}")
    return table(["call"] + [f"`{c}`" for c in callers[:2]] + callers[2:],
                 [[kind] + [cells.get((kind, c), "") for c in callers] for kind in kinds])


def cpu():
    machines = [load("cpu-neoverse-v1.json"), load("cpu-xeon-amx.json")]
    rows = [{(r["shape"], r["dtype"]): r for r in m["rows"]} for m in machines]
    if set(rows[0]) != set(rows[1]):
        raise Bad("the two CPU files have different rows")
    lines = []
    for key in rows[0]:
        line = list(key)
        for row in (r[key] for r in rows):
            if not 0 <= row["max_error"] <= row["max_allowed"]:
                raise Bad(f"{key}: not a verified row")
            ours, theirs = number(row, "attn_ms"), number(row, "torch_ms")
            line += [f"{ours:.2f} / {theirs:.2f}", times(number(row, "ratio"))]
        lines.append(line)
    return table(["problem", "dtype", "Neoverse-V1, 2 threads: ms", "ratio",
                  "Xeon with AMX, 16 threads: ms", "ratio"], lines)


def cpu_run():
    arm, xeon = load("cpu-neoverse-v1.json"), load("cpu-xeon-amx.json")
    size = [f"{number(m, 'memory', 'workspace_mb'):.1f} MB" for m in (arm, xeon)]
    return wrap(f"PyTorch {arm['torch'].split('+')[0]} on the Neoverse, "
                f"{xeon['torch'].split('+')[0]} on the Xeon; {arm['date']} and {xeon['date']}. "
                f"Workspace of {arm['memory']['shape']}: {size[0]} on {arm['threads']} threads, "
                f"{size[1]} on {xeon['threads']}.")


def judged():
    """A table for each recorded run of `attn.peers --judge` and each direction."""
    columns = ["right", "wrong", "imprecise", "NaN leaks", "not repeatable", "stray write", "late",
               "crash", "refused"]
    blocks = []
    for path in sorted((ROOT / "results").glob("judge-*.json")):
        run = load(path.name)
        for direction in ("forward", "backward"):
            lines = []
            for name, row in run[direction].items():
                counts = [row["counts"].get(column, 0) for column in columns]
                if sum(counts) != row["cases"] or not row["cases"]:
                    raise Bad(f"{path.name}: {direction} {name}: not all cases are counted")
                lines.append([name, str(row["cases"])] + [str(count or "") for count in counts])
            blocks.append(wrap(
                f"{direction.capitalize()}, {run['device']}, PyTorch {run['torch']}, seed "
                f"{run['seed']}, until {run['wanted']} cases were answered or "
                f"{number(run, 'seconds'):.0f} s were over:") + "\n\n" +
                table(["candidate", "cases"] + columns, lines))
    if not blocks:
        raise Bad("no results/judge-*.json")
    return "\n\n".join(blocks)


def searches():
    """The leaderboard of each recorded search: its baseline, and the best other candidate."""
    lines = []
    paths = [*(ROOT / "results").glob("evolve-*.json"), *(ROOT / "results/evolve").glob("*.json")]
    for path in sorted(paths):
        run = load(str(path.relative_to(ROOT / "results")))
        timed = [c for c in run["candidates"] if c["ratio"] and c["name"] not in run["baselines"]]
        best = max(timed, key=lambda c: c["ratio"]["value"])
        ratio = [number(best, "ratio", key) for key in ("value", "low", "high")]
        targets = ", ".join(t["shape"] if isinstance(t, dict) else t for t in run["targets"])
        lines.append([f"[{path.stem}](../{path.relative_to(ROOT)})", targets,
                      "<br>".join(dict.fromkeys(run["baselines"])), str(len(run["candidates"])),
                      best["name"], "{:.3f} ({:.3f} to {:.3f})".format(*ratio),
                      "yes" if run["promoted"] else "no"])
    return table(["search", "targets", "baseline", "candidates", "best other", "ratio (95 %)",
                  "promoted"], lines)


def ranks_of(what):
    """The rows of the run of simulated ranks. Each was checked before it was timed, else the run
    ended there."""
    data = load("ranks-h200.json")
    if data.get("complete") is not True or not data.get(what):
        raise Bad("ranks-h200.json is not a complete run")
    for row in data["rows"]:
        checks = row["checks"]
        if not 0 <= checks["max_error"] <= checks["max_allowed"] or \
                not 0 <= checks["from_one_call"] <= 0.05:
            raise Bad(f"ranks-h200.json, {row['method']} of {row['ranks']}: not a verified row")
    return data[what]


def ranks_run():
    data = load("ranks-h200.json")
    machine, rounds = data["environment"], len(data["rows"][0]["one_s"])
    return wrap(f"{data['shape']}, {data['dtype']}, {machine['gpu']}, {machine['date']}. Medians of "
                f"{rounds} rounds.")


def ranks():
    lines = []
    for row in ranks_of("rows"):
        one = statistics.median(number(row, "one_s", i) for i in range(len(row["one_s"])))
        together = number(row, "together_s") / one if row["together_s"] is not None else None
        lines.append([row["direction"], row["method"], str(row["ranks"]), f"{1e3 * one:.1f}",
                      f"{number(row, 'ratio'):.3f}", f"{100 * row['spread']:.1f} %",
                      "" if together is None else f"{together:.3f}"])
    return table(["pass", "method", "ranks", "one call, ms", "sum of the ranks", "spread",
                  "all at one time"], lines)


def moves():
    return table(["what", "GB/s", "of HBM"],
                 [[row["name"], f"{number(row, 'rate') / 1e9:.0f}",
                   f"{100 * number(row, 'of_hbm'):.0f} %"] for row in ranks_of("moves")])


TABLES = {
    "judged": judged, "searches": searches,
    "headline": headline, "summary": summary, "summary_text": summary_text,
    "pack": pack, "pack_run": pack_run, "eager": eager, "host": host, "cpu": cpu,
    "cpu_run": cpu_run, "charts": charts, "bwd": bwd, "models": models,
    "paged": lambda: peer_table("paged", tflops=False), "mixed": lambda: peer_table("mixed"),
    "fp8": lambda: peer_table("fp8", tflops=False), "mla": lambda: peer_table("mla"),
    "fp16": lambda: peer_table("fp16"), "bf16": lambda: peer_table("bf16"),
    "middle": lambda: peer_table("middle"), "decode": lambda: peer_table("decode", tflops=False),
    "use": lambda: peer_table("use", tflops=False),
    "ranks_run": ranks_run, "ranks": ranks, "moves": moves,
}

# ---- files --------------------------------------------------------------------------------------

BLOCK = re.compile(r"<!-- table (\w+) -->\n(.*?)<!-- /table -->", re.S)


def rewrite(name, text):
    expected = BLOCKS.get(name, [])
    found = [match[1] for match in BLOCK.finditer(text)]
    marks = len(re.findall(r"<!-- /?table\b", text))
    if sorted(found) != sorted(expected) or marks != 2 * len(expected):
        raise Bad(f"{name}: has the tables {found} ({marks} markers), expected {expected}")
    for match in (STRAY_README if name == "README.md" else STRAY).finditer(BLOCK.sub("", text)):
        if name not in FREE:
            raise Bad(f"{name}: {match[0]!r} stands outside of a table")
    return BLOCK.sub(lambda m: f"<!-- table {m[1]} -->\n{TABLES[m[1]]()}\n<!-- /table -->"
                     .replace("\n\n<!--", "\n<!--"), text)


def main():
    global ROOT
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a diff")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    options = parser.parse_args()
    ROOT = options.root
    files = sorted(set(BLOCKS) | {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")})
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in files}
    changed = {name: new for name, old in texts.items() if (new := rewrite(name, old)) != old}
    for name, new in changed.items():
        if options.check:
            sys.stdout.writelines(difflib.unified_diff(
                texts[name].splitlines(True), new.splitlines(True), name, f"{name}, by tables.py"))
        else:
            (ROOT / name).write_text(new, encoding="utf-8")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Bad, OSError) as error:
        sys.exit(f"tables.py: {error}")
