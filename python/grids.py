# SPDX-License-Identifier: Apache-2.0
"""The shapes that attention is measured at, and what was recorded at them.

Invariant: a recorded row belongs to exactly one shape, and every recorded row is in a grid.
"""

import json
from collections import namedtuple
from pathlib import Path

RECORDED = Path(__file__).resolve().parent.parent / "results" / "h200-peers-recorded.json"


class Shape(namedtuple("Shape", "batch heads_q heads_kv seq_q seq_kv head_dim causal")):
    """One attention problem as its sizes; causal is top-left, as PyTorch's is_causal."""

    __slots__ = ()

    def __str__(self):
        heads = f"H{self.heads_q}"
        if self.heads_q != self.heads_kv:
            heads += f"/{self.heads_kv}"
        length = f"S{self.seq_q}"
        if self.seq_q != self.seq_kv:
            length = f"Sq{self.seq_q} Skv{self.seq_kv}"
        mask = " causal" if self.causal else ""
        return f"B{self.batch} {heads} {length} D{self.head_dim}{mask}"

    def elements(self):
        """Of Q, K, V and O together."""
        queries = self.batch * self.heads_q * self.seq_q
        keys = self.batch * self.heads_kv * self.seq_kv
        return 2 * (queries + keys) * self.head_dim


def square(batch, heads_q, heads_kv, seq, head_dim, causal):
    return Shape(batch, heads_q, heads_kv, seq, seq, head_dim, causal)


def small():
    """The canonical shape, short sequences, lengths that no tile divides, GQA."""
    shapes = canonical() + [square(1, 12, 12, seq, 64, False) for seq in (128, 256, 512, 1024)]
    return shapes + [
        square(32, 8, 8, 128, 64, False),
        square(8, 12, 12, 197, 64, False),
        square(4, 16, 16, 577, 64, False),
        square(1, 32, 8, 1000, 128, True),
        square(1, 16, 16, 512, 128, True),
        square(1, 8, 8, 2048, 64, True),
    ]


def full():
    """Training: batch x seq = 16384, heads x head_dim = 2048; then prefill with GQA."""
    shapes = []
    for head_dim in (64, 128, 256):
        heads = 2048 // head_dim
        for seq in (512, 1024, 2048, 4096, 8192, 16384):
            for causal in (False, True):
                shapes.append(square(16384 // seq, heads, heads, seq, head_dim, causal))
    return shapes + [square(1, 32, 8, seq, 128, True) for seq in (1024, 4096, 16384, 65536)]


def decode():
    """One query row against a cache of keys."""
    shapes = [Shape(batch, 32, 8, 1, keys, 128, False) for batch in (1, 8, 64)
              for keys in (1024, 8192, 65536) if batch * keys <= 64 * 8192]
    return shapes + [Shape(1, 32, 32, 1, 8192, 128, False), Shape(16, 64, 8, 1, 8192, 64, False)]


def canonical():
    return [square(2, 8, 8, 512, 64, causal) for causal in (False, True)]


GRIDS = {"canonical": canonical, "small": small, "full": full, "decode": decode}


def shapes_of(names):
    """(grid, shape) of the grids in their order; a shape that is in two is taken once."""
    seen, found = set(), []
    for name in names:
        for shape in GRIDS[name]():
            if shape not in seen:
                seen.add(shape)
                found.append((name, shape))
    return found


def load_recorded(path=RECORDED):
    """The recorded file with its rows keyed by shape under "by_shape"."""
    table = json.loads(Path(path).read_text())
    table["by_shape"] = {Shape(**{field: row[field] for field in Shape._fields}): row["us"]
                         for row in table["rows"]}
    if len(table["by_shape"]) != len(table["rows"]):
        raise ValueError(f"{path} has two rows of one shape")
    return table


def scaled_fa3(recorded, shape, gpu, dtype, cudnn_us):
    """FlashAttention-3 as recorded, times cuDNN now over cuDNN then; None where that is not known.

    It cannot be installed everywhere, so it is not live: the ratio of the other kernel stands in
    for clocks and protocol."""
    if recorded is None or recorded["gpu"] != gpu or recorded["dtype"] != dtype:
        return None
    then = recorded["by_shape"].get(shape)
    if not then or not cudnn_us or not then.get("cudnn"):
        return None
    kept = {name: then[name] for name in ("fa3", "fa3_split") if then.get(name)}
    if not kept:
        return None
    kernel = min(kept, key=kept.get)
    return {"us": kept[kernel] * cudnn_us / then["cudnn"], "live": False,
            "note": "scaled, not live", "kernel": kernel, "recorded_us": kept[kernel],
            "cudnn_now_us": cudnn_us, "cudnn_then_us": then["cudnn"]}
