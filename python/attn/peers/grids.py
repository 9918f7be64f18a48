# SPDX-License-Identifier: Apache-2.0
"""The shapes that attention is measured at, and what was recorded at them.

Invariant: a recorded row belongs to exactly one shape, and every recorded row is in a grid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

RECORDED = Path(__file__).resolve().parent / "h200-recorded.json"


class Shape(NamedTuple):
    """One attention problem as its sizes; causal is top-left, as PyTorch's is_causal.

    >>> str(Shape(1, 32, 8, 1, 9, 128, True))
    'B1 H32/8 Sq1 Skv9 D128 causal'
    """
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: bool

    def __str__(self) -> str:
        heads = f"H{self.heads_q}"
        if self.heads_q != self.heads_kv:
            heads += f"/{self.heads_kv}"
        length = f"S{self.seq_q}"
        if self.seq_q != self.seq_kv:
            length = f"Sq{self.seq_q} Skv{self.seq_kv}"
        mask = " causal" if self.causal else ""
        return f"B{self.batch} {heads} {length} D{self.head_dim}{mask}"

    def elements(self) -> int:
        """Of Q, K, V and O together."""
        queries = self.batch * self.heads_q * self.seq_q
        keys = self.batch * self.heads_kv * self.seq_kv
        return 2 * (queries + keys) * self.head_dim


def square(batch: int, heads_q: int, heads_kv: int, seq: int, head_dim: int,
           causal: bool) -> Shape:
    return Shape(batch, heads_q, heads_kv, seq, seq, head_dim, causal)


def canonical() -> List[Shape]:
    return [square(2, 8, 8, 512, 64, causal) for causal in (False, True)]


def small() -> List[Shape]:
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


def middle() -> List[Shape]:
    """Between small and full: 85 to 372 rows of queries to a multiprocessor of an H200, where the
    choice of a kernel turns."""
    sizes = [(1, 16, 16, 1024, 64), (2, 12, 12, 1024, 64), (1, 32, 32, 1024, 64),
             (1, 16, 16, 2048, 64), (4, 12, 12, 1024, 64), (1, 16, 16, 700, 128),
             (1, 16, 16, 1024, 128), (1, 24, 24, 1000, 128), (1, 32, 8, 1200, 128),
             (1, 32, 8, 1500, 128)]
    return [square(*size, causal) for size in sizes for causal in (False, True)]


def full() -> List[Shape]:
    """Training: batch x seq = 16384, heads x head_dim = 2048; then prefill with GQA."""
    shapes = []
    for head_dim in (64, 128, 256):
        heads = 2048 // head_dim
        for seq in (512, 1024, 2048, 4096, 8192, 16384):
            for causal in (False, True):
                shapes.append(square(16384 // seq, heads, heads, seq, head_dim, causal))
    return shapes + [square(1, 32, 8, seq, 128, True) for seq in (1024, 4096, 16384, 65536)]


def decode() -> List[Shape]:
    """One query row against a cache of keys."""
    shapes = [Shape(batch, 32, 8, 1, keys, 128, False) for batch in (1, 8, 64)
              for keys in (1024, 8192, 65536) if batch * keys <= 64 * 8192]
    return shapes + [Shape(1, 32, 32, 1, 8192, 128, False), Shape(16, 64, 8, 1, 8192, 64, False)]


def cpu() -> List[Shape]:
    """One of each kind, of a size that a CPU computes in milliseconds."""
    return [square(2, 8, 8, 512, 64, False), square(1, 16, 16, 2048, 128, True),
            square(1, 32, 8, 1024, 128, True), square(1, 8, 8, 4096, 64, False),
            Shape(4, 32, 8, 1, 8192, 128, False)]


GRIDS = {"canonical": canonical, "small": small, "middle": middle, "full": full, "decode": decode,
         "cpu": cpu}


def shapes_of(names: Iterable[str]) -> List[Tuple[str, Shape]]:
    """(grid, shape) of the grids in their order; a shape that is in two is taken once.

    >>> [str(shape) for _, shape in shapes_of(["canonical"])]
    ['B2 H8 S512 D64', 'B2 H8 S512 D64 causal']
    """
    seen, found = set(), []
    for name in names:
        for shape in GRIDS[name]():
            if shape not in seen:
                seen.add(shape)
                found.append((name, shape))
    return found


def load_recorded(path: Path = RECORDED) -> Dict[str, Any]:
    """The recorded file with its rows keyed by shape under "by_shape"."""
    table = json.loads(Path(path).read_text())
    table["by_shape"] = {Shape(**{field: row[field] for field in Shape._fields}): row["us"]
                         for row in table["rows"]}
    if len(table["by_shape"]) != len(table["rows"]):
        raise ValueError(f"{path} has two rows of one shape")
    return table


def scaled_fa3(recorded: Dict[str, Any], shape: Shape, gpu: Optional[str], dtype: str,
               cudnn_us: Optional[float]) -> Optional[Dict[str, Any]]:
    """FlashAttention-3 as recorded, times cuDNN now over cuDNN then; None where that is not known.

    It cannot be installed everywhere, so it is not live: the ratio of the other kernel stands in
    for clocks and protocol."""
    if recorded["gpu"] != gpu or recorded["dtype"] != dtype:
        return None
    then = recorded["by_shape"].get(shape)
    if not then or not cudnn_us or not then.get("cudnn"):
        return None
    kept = {name: then[name] for name in ("fa3", "fa3_split") if then.get(name)}
    if not kept:
        return None
    kernel = min(kept, key=lambda name: kept[name])
    return {"us": kept[kernel] * cudnn_us / then["cudnn"], "live": False,
            "note": "scaled, not live", "kernel": kernel, "recorded_us": kept[kernel],
            "cudnn_now_us": cudnn_us, "cudnn_then_us": then["cudnn"]}
