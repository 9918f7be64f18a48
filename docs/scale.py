#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scale.py - a discrete-event model of context parallelism on 8 to 1024 GPUs.

    python3 docs/scale.py            rewrite the tables of docs/scale.md
    python3 docs/scale.py --check    exit 1 and print a diff if they are not what it would write
    python3 docs/scale.py --self-test   laws that the model must obey
    python3 docs/scale.py GPUS TOKENS   one line for each method

A GPU has a compute stream and a port for each kind of link. An event is a kernel or a message: it
begins when its inputs are there and its stream or port is free. Kernel times come from measured
ones (results/, docs/lab/), links from data sheets, the constants below.

Invariant: no figure of several GPUs here was measured. It is a model.
"""
import argparse
import difflib
import functools
import json
import math
import pathlib
import re
import statistics
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORWARD = "h200-peers-bf16.json"  # of results/: head_dim 128, one H200
METHODS = ("ring", "zigzag", "ulysses", "allgather")
NODE = 8             # GPUs with NVLink between them
ELEMENT, SUM = 2, 4  # bytes: bf16, and fp32 sums of dK and dV
LAUNCH = 5e-6        # s, of a kernel in a step; assumed
LATENCY = 10e-6      # s, of a message or collective; assumed
HBM = 0.8 * 4.8e12   # B/s of merges and sums: 80 % of the data sheet; assumed
MERGE, ADD = 4, 10   # bytes for an element of a part: of O, merged eight at a time; of dQ, into fp32

# Backward, fp16, one H200: docs/lab/2026-11-18-backward-gpu.md. The small calls have head_dim 64.
# (batch, heads, rows, dim, causal, microseconds)
BACKWARD = [(2, 8, 512, 64, False, 31.6), (32, 16, 512, 128, False, 547),
            (8, 16, 2048, 128, False, 1492), (2, 16, 8192, 128, False, 5440),
            (2, 8, 512, 64, True, 26.3), (8, 16, 2048, 128, True, 891),
            (2, 16, 8192, 128, True, 2779)]


class Machine(NamedTuple):
    """Rates in B/s, per GPU and direction."""
    nvlink: float = 450e9  # H200: 900 GB/s in both directions
    fabric: float = 50e9   # NDR InfiniBand, 400 Gb/s for each GPU


class Model(NamedTuple):
    """One attention layer, causal: by default that of Llama 3.1 8B."""
    heads: int = 32
    heads_kv: int = 8
    dim: int = 128


# ---- kernels ------------------------------------------------------------------------------------


def flops(heads, rows, keys, dim, causal=False):
    return 4.0 * heads * rows * keys * dim * (0.5 if causal else 1.0)


@functools.lru_cache(maxsize=None)
def forward_points(causal):
    """(FLOP, FLOP/s) of each verified measurement."""
    run = json.loads((ROOT / "results" / FORWARD).read_text(encoding="utf-8"))
    points = []
    for row in run["rows"]:
        shape = row["shape"]
        if shape["head_dim"] == 128 and shape["causal"] == causal and shape["seq_q"] > 1:
            if not (run["complete"] and row["verified"]["after"]["passed"]):
                raise SystemExit(f"{FORWARD}: {row['name']} is not verified")
            seconds = 1e-6 * row["summary"]["modes"]["graph"]["ours_us"]
            points.append((row["flops"], row["flops"] / seconds))
    return monotone(points)


def backward_points(causal):
    work = [(2.5 * b * flops(h, s, s, d, c), us) for b, h, s, d, c, us in BACKWARD if c == causal]
    return monotone([(w, w / (1e-6 * us)) for w, us in work])


def monotone(points):
    """By work; of equal work the median; a larger call is never slower than a smaller one."""
    work = sorted({w for w, _ in points})
    best, out = 0.0, []
    for w in work:
        best = max(best, statistics.median(r for v, r in points if v == w))
        out.append((w, best))
    return out


class Kernels:
    """Seconds of a call, by interpolation of the measured rates over log(FLOP)."""

    def __init__(self, backward, model):
        self.model, self.factor = model, 2.5 if backward else 1.0
        points = backward_points if backward else forward_points
        self.points = {causal: points(causal) for causal in (False, True)}
        # Small calls were measured with a mask: one without is taken to be as fast for its FLOP.
        full = self.points[False]
        self.points[False] = monotone([p for p in self.points[True] if p[0] < full[0][0]] + full)

    def rate(self, work, causal):
        points = self.points[causal]
        for (w0, r0), (w1, r1) in zip(points, points[1:]):
            if w0 <= work <= w1:
                return r0 + (r1 - r0) * math.log(work / w0) / math.log(w1 / w0)
        if work > points[-1][0]:
            return points[-1][1]
        return points[0][1] * work / points[0][0]  # below: the time of the smallest

    def seconds(self, heads, rows, keys, causal=False):
        work = self.factor * flops(heads, rows, keys, self.model.dim, causal)
        return LAUNCH + work / self.rate(work, causal)

    def merge(self, rows):
        """Of parts of O, or of dQ (dK and dV have fewer heads)."""
        part = MERGE if self.factor == 1.0 else ADD
        return LAUNCH + part * self.model.heads * rows * self.model.dim / HBM

    def best(self, tokens, gpus):
        """An equal share of the whole sequence, at the highest measured rate."""
        work = self.factor * flops(self.model.heads, tokens, tokens, self.model.dim, True)
        return work / max(points[-1][1] for points in self.points.values()) / gpus


# ---- events -------------------------------------------------------------------------------------


def ring_step(kernels, method, rank, source, rows):
    """Seconds of kernels and merges with the keys of one rank."""
    heads = kernels.model.heads
    if source == rank:
        return kernels.seconds(heads, rows, rows, True) + kernels.merge(rows)
    if method == "ring":
        return kernels.seconds(heads, rows, rows) + kernels.merge(rows) if source < rank else 0.0
    if source < rank:
        return kernels.seconds(heads, rows, rows // 2) + kernels.merge(rows)
    return kernels.seconds(heads, rows // 2, rows) + kernels.merge(rows // 2)


def ring_times(kernels, machine, method, gpus, tokens, backward):
    """When each rank ends. Both sides of a message must have begun the step: there are two buffers.
    Sums of dK and dV go on when the rank has added its part."""
    rows = tokens // gpus
    keys = 2 * ELEMENT * rows * kernels.model.heads_kv * kernels.model.dim
    sums = keys // ELEMENT * SUM if backward else 0
    rate = [machine.nvlink if gpus <= NODE or (r + 1) % NODE else machine.fabric
            for r in range(gpus)]  # to the next rank
    cost = {}
    for kind in ("own", "lower", "higher"):
        rank, source = {"own": (0, 0), "lower": (1, 0), "higher": (0, 1)}[kind]
        cost[kind] = ring_step(kernels, method, rank, source, rows)
    here = [0.0] * gpus    # when the step's keys are there
    summed = [0.0] * gpus  # ... and the sums of their gradients
    free = [0.0] * gpus    # when the compute stream is free
    port = [0.0] * gpus    # when the link to the next rank is free
    for step in range(gpus):
        arrived = [0.0] * gpus
        if step + 1 < gpus:
            begun = [max(f, h) for f, h in zip(free, here)]
            for r in range(gpus):
                port[r] = max(port[r], begun[r], begun[(r + 1) % gpus]) + keys / rate[r]
                arrived[(r + 1) % gpus] = port[r] + LATENCY
        for r in range(gpus):
            source = (r - step) % gpus
            kind = "own" if source == r else "lower" if source < r else "higher"
            if cost[kind]:
                free[r] = max(free[r], here[r]) + cost[kind]
        if backward:
            after = [0.0] * gpus
            for r in range(gpus):
                ready = max(summed[r], free[r])
                port[r] = max(port[r], ready) + sums / rate[r]
                after[(r + 1) % gpus] = port[r] + LATENCY
            summed = after
        here = [max(a, h) for a, h in zip(arrived, here)]
    return [max(f, s) for f, s in zip(free, summed)]


def exchange(machine, gpus, bytes_of_gpu):
    """All-to-all: a GPU sends an equal share of its bytes to each."""
    near = (min(gpus, NODE) - 1) / gpus * bytes_of_gpu / machine.nvlink
    far = max(0, gpus - NODE) / gpus * bytes_of_gpu / machine.fabric
    return LATENCY + max(near, far)


def gather(machine, gpus, bytes_of_gpu):
    """All-gather, or reduce-scatter: each chunk enters a node once, by all of its ports, and goes
    around by NVLink."""
    near = (gpus - 1) * bytes_of_gpu / machine.nvlink
    far = max(0, gpus - NODE) * bytes_of_gpu / (NODE * machine.fabric)
    return LATENCY + max(near, far)


def collective_time(kernels, machine, method, gpus, tokens, backward):
    """Communication first, then one call, then communication: all ranks the same, no overlap."""
    model, rows = kernels.model, tokens // gpus
    row = ELEMENT * model.dim
    if method == "ulysses":
        if model.heads % gpus:
            return math.inf
        heads_kv = max(model.heads_kv, gpus)  # heads of K and V are repeated where ranks are more
        before = exchange(machine, gpus, rows * row * (model.heads + (0 if backward else 2 * heads_kv)))
        after = exchange(machine, gpus, rows * row * (model.heads + (2 * heads_kv if backward else 0)))
        return before + kernels.seconds(model.heads // gpus, tokens, tokens, True) + after
    keys = 2 * rows * row * model.heads_kv
    after = gather(machine, gpus, keys // ELEMENT * SUM) if backward else 0.0
    # two chunks of rows, as in zigzag: together they see as many keys as there are
    call = sum(kernels.seconds(model.heads, rows // 2, part)
               for part in (tokens // 4, tokens - tokens // 4))
    return gather(machine, gpus, keys) + call + after


@functools.lru_cache(maxsize=None)
def simulate(method, gpus, tokens, backward=False, machine=Machine(), model=Model()):
    """Seconds until the last rank has its result."""
    kernels = Kernels(backward, model)
    if method in ("ring", "zigzag"):
        return max(ring_times(kernels, machine, method, gpus, tokens, backward))
    return collective_time(kernels, machine, method, gpus, tokens, backward)


def efficiency(method, gpus, tokens, training, machine=Machine(), model=Model()):
    """The ideal time over the model's, of forward, or of forward and backward. 0: not possible."""
    ideal = spent = 0.0
    for backward in (False, True) if training else (False,):
        ideal += Kernels(backward, model).best(tokens, gpus)
        spent += simulate(method, gpus, tokens, backward, machine, model)
    return ideal / spent


# ---- docs/scale.md ------------------------------------------------------------------------------

K = 1024
CASES = [(8, 64 * K), (8, 256 * K), (8, K * K), (32, 256 * K), (32, K * K), (64, 256 * K),
         (64, K * K), (64, 4 * K * K), (1024, K * K), (1024, 4 * K * K), (1024, 16 * K * K)]


def size_name(tokens):
    return f"{tokens // (K * K)}M" if tokens % (K * K) == 0 else f"{tokens // K}k"


def cell(value):
    return f"{100 * value:.0f} %" if value > 0 else ""


def table(training):
    lines = ["| GPUs | tokens | per GPU | " + " | ".join(METHODS) + " | best |",
             "|---|---|---|" + "---|" * (len(METHODS) + 1)]
    for gpus, tokens in CASES:
        values = [efficiency(m, gpus, tokens, training) for m in METHODS]
        best = [m for m, value in zip(METHODS, values) if value > max(values) - 0.01]
        lines.append(f"| {gpus} | {size_name(tokens)} | {size_name(tokens // gpus)} | "
                     + " | ".join(map(cell, values)) + f" | {', '.join(best)} |")
    return lines


def rates():
    lines = ["| kernels | smallest call, TFLOP/s | largest call, TFLOP/s | source |",
             "|---|---|---|---|"]
    for name, points, source in (("forward", forward_points, f"results/{FORWARD}"),
                                 ("backward", backward_points,
                                  "docs/lab/2026-11-18-backward-gpu.md")):
        for causal in (False, True):
            found = points(causal)
            lines.append(f"| {name}{', causal' if causal else ''} | {found[0][1] / 1e12:.0f} | "
                         f"{found[-1][1] / 1e12:.0f} | {source} |")
    return lines


def chart():
    """Zigzag, forward and backward, by tokens per GPU."""
    lines = ["```", "zigzag, forward and backward: % of ideal, by tokens per GPU", ""]
    for gpus in (8, 64, 1024):
        for rows in (1, 4, 16):
            value = 100 * efficiency("zigzag", gpus, gpus * rows * K, True)
            lines.append(f"{gpus:5} GPUs {rows:3}k {'#' * round(value / 2):50} {value:3.0f}")
        lines.append("")
    return lines[:-1] + ["```"]


def published():
    """The benchmark of ring-flash-attention in this model: 8 H800 (NVLink of 200 GB/s each way),
    8k tokens on each, with kernels as measured here."""
    slow = Machine(nvlink=200e9)
    lines = ["| 8 GPUs, 8k tokens each, Llama 3.1 8B | ring | zigzag |", "|---|---|---|",
             "| ring-flash-attention, measured by its authors, forward | 52 % | 85 % |",
             "| ring-flash-attention, forward and backward | 54 % | 90 % |"]
    for name, training in (("forward", False), ("forward and backward", True)):
        cells = [cell(efficiency(m, 8, 64 * K, training, slow)) for m in ("ring", "zigzag")]
        lines.append(f"| this model with that NVLink, {name} | " + " | ".join(cells) + " |")
    return lines


BLOCKS = {"rates": rates, "forward": lambda: table(False), "training": lambda: table(True),
          "chart": chart, "published": published}


def rewrite(text):
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- model {name} -->\n).*?(<!-- /model -->)", re.S)
        if len(pattern.findall(text)) != 1:
            raise SystemExit(f"docs/scale.md: has not one block '{name}'")
        body = "\n".join(make()) + "\n"
        text = pattern.sub(lambda m, body=body: m.group(1) + body + m.group(2), text)
    return text


# ---- laws ---------------------------------------------------------------------------------------


def self_test():
    fast = Machine(nvlink=1e18, fabric=1e18)
    kernels = Kernels(False, Model())
    ends = ring_times(kernels, fast, "zigzag", 8, 8 * 64 * K, False)
    assert max(ends) < 1.03 * min(ends), "zigzag is not balanced"
    ends = ring_times(kernels, fast, "ring", 8, 8 * 64 * K, False)
    assert max(ends) > 10 * min(ends), "ring is balanced"
    for gpus, tokens, training in ((8, 64 * K, True), (32, 256 * K, False), (64, K * K, True)):
        for method in METHODS:
            usual = efficiency(method, gpus, tokens, training)
            assert 0 <= usual < 1.02, (method, gpus, usual)
            slower = efficiency(method, gpus, tokens, training, Machine(nvlink=45e9, fabric=5e9))
            assert slower <= usual, (method, "gains from slower links")
            assert (usual == 0) == (method == "ulysses" and gpus > Model().heads), (method, usual)
        longer = efficiency("zigzag", gpus, 4 * tokens, training)
        assert longer >= efficiency("zigzag", gpus, tokens, training), "a longer sequence is worse"
    assert efficiency("zigzag", 8, K * K, False, fast) > 0.9, "free links are not free"
    assert efficiency("ring", 8, K * K, False, fast) < 0.56, "a causal ring of 8 can reach 8/15"
    # a message of 1 s on one link delays the ring by as much, and no more
    base = simulate("zigzag", 2, 2 * K, machine=fast)
    keys = 2 * ELEMENT * K * Model().heads_kv * Model().dim
    late = simulate("zigzag", 2, 2 * K, machine=Machine(nvlink=keys, fabric=1e18))
    assert 0.99 < late - base < 1.01, (base, late)


def main():
    parser = argparse.ArgumentParser(description="A model of context parallelism.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("gpus", nargs="?", type=int)
    parser.add_argument("tokens", nargs="?", type=int)
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        print("scale.py: every law holds")
    elif arguments.tokens:
        for method in METHODS:
            value = efficiency(method, arguments.gpus, arguments.tokens, True)
            print(f"{method:10} forward and backward: {cell(value) or 'not possible'} of ideal")
    else:
        path = ROOT / "docs" / "scale.md"
        old = path.read_text(encoding="utf-8")
        new = rewrite(old)
        if arguments.check:
            sys.stdout.writelines(difflib.unified_diff(
                old.splitlines(True), new.splitlines(True), "docs/scale.md", "as modelled"))
            sys.exit(old != new)
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
