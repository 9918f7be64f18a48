# SPDX-License-Identifier: Apache-2.0
"""The shapes that attention is measured at, and what was recorded at them.

Invariant: a recorded row belongs to exactly one shape, and every recorded row is in a grid.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

RECORDED = Path(__file__).resolve().parent / "h200-recorded.json"


class Shape(NamedTuple):
    """One attention problem as its sizes; causal is bottom-right; option as options.py has it.

    >>> str(Shape(1, 32, 8, 2, 9, 128, True, "sink"))
    'B1 H32/8 Sq2 Skv9 D128 causal sink'
    """
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: bool
    option: str = ""

    def __str__(self) -> str:
        heads = f"H{self.heads_q}"
        if self.heads_q != self.heads_kv:
            heads += f"/{self.heads_kv}"
        length = f"S{self.seq_q}"
        if self.seq_q != self.seq_kv:
            length = f"Sq{self.seq_q} Skv{self.seq_kv}"
        mask = " causal" if self.causal else ""
        return f"B{self.batch} {heads} {length} D{self.head_dim}{mask} {self.option}".rstrip()

    def elements(self) -> int:
        """Of Q, K, V and O together."""
        queries = self.batch * self.heads_q * self.seq_q
        keys = self.batch * self.heads_kv * self.seq_kv
        return 2 * (queries + keys) * self.head_dim


def square(batch: int, heads_q: int, heads_kv: int, seq: int, head_dim: int,
           causal: bool, option: str = "") -> Shape:
    return Shape(batch, heads_q, heads_kv, seq, seq, head_dim, causal, option)


def lengths_of(text: str) -> List[int]:
    """Of packed sequences: so many of so many rows, or between; and one more after a plus.

    >>> lengths_of("2x64+8192")
    [64, 64, 8192]
    """
    found = re.fullmatch(r"(\d+)x(\d+)(?:-(\d+))?(?:\+(\d+))?", text)
    if not found:
        raise ValueError(f"{text!r} is no list of lengths, expected 32x100-2000 or 63x64+8192")
    count, low, high, more = (int(part) if part else 0 for part in found.groups())
    draw = random.Random(7)
    return [draw.randint(low, high or low) for _ in range(count)] + ([more] if more else [])


def packed(text: str, heads_q: int, heads_kv: int, head_dim: int) -> Shape:
    return square(1, heads_q, heads_kv, sum(lengths_of(text)), head_dim, True, f"packed {text}")


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
    """Between small and full: 85 to 372 query rows per SM of an H200, where the best kernel
    changes."""
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


def chunk() -> List[Shape]:
    """Chunked prefill: some hundred queries against a long cache."""
    sizes = [(1, 32, 8, 128, 4096, 128), (1, 32, 8, 256, 8192, 128), (1, 32, 8, 512, 8192, 128),
             (4, 32, 8, 64, 4096, 128), (1, 32, 8, 1024, 8192, 128), (1, 32, 8, 2048, 16384, 128),
             (1, 64, 8, 512, 32768, 128), (1, 16, 16, 512, 4096, 64), (2, 28, 4, 300, 6000, 128)]
    return [Shape(*size, True) for size in sizes]


def groups() -> List[Shape]:
    """Decode with groups of any size, and large batches of short caches."""
    sizes = [(2, 40, 8, 10000, 128), (2, 40, 8, 30000, 128), (4, 48, 8, 16000, 128),
             (3, 24, 8, 20000, 128), (256, 32, 8, 512, 128), (128, 32, 32, 300, 64),
             (1, 28, 4, 16384, 128), (16, 32, 2, 8192, 128)]
    return [Shape(batch, heads, kv, 1, keys, dim, False) for batch, heads, kv, keys, dim in sizes]


def ragged() -> List[Shape]:
    """Packed batches of sequences of different lengths."""
    return [packed("32x100-2000", 32, 8, 128), packed("8x1-8000", 32, 8, 128),
            packed("256x20-200", 16, 16, 128), packed("63x64+8192", 32, 8, 128)]


def options() -> List[Shape]:
    """What models ask for beside a mask: sinks (gpt-oss), ALiBi, windows, softcap (Gemma 2), a
    relative bias (T5); each beside the plain call."""
    return [square(1, 64, 8, 4096, 64, True, option)
            for option in ("", "sink", "window128", "sink window128")] + \
           [square(1, 32, 32, 4096, 128, True, option) for option in ("", "sink", "alibi")] + \
           [square(1, 16, 16, 2048, 64, False, option) for option in ("", "bias")] + \
           [square(1, 16, 16, 4096, 128, True, "bias"),
            Shape(8, 64, 8, 1, 4096, 64, False, "sink"), Shape(8, 64, 8, 1, 4096, 64, False),
            square(1, 16, 8, 4096, 256, True, "softcap50"),
            square(1, 32, 8, 8192, 128, True, "window1024")]


def masks() -> List[Shape]:
    """Boolean masks as tensors."""
    return [square(4, 32, 32, 1024, 128, False, "mask causal+padding"),
            square(8, 32, 8, 1024, 128, False, "mask causal+padding"),
            square(1, 32, 32, 4096, 128, False, "mask padding"),
            square(8, 16, 16, 512, 64, False, "mask padding"),
            square(1, 16, 16, 2048, 64, False, "mask dense"),
            square(1, 32, 32, 4096, 128, False, "mask dense")]


def bwd() -> List[Shape]:
    """The gradients of training shapes, with GQA as well."""
    return [shape._replace(option="backward") for shape in full() if shape.seq_q <= 16384]


def mla() -> List[Shape]:
    """Latent decode over pages of 64, as DeepSeek's: one KV head of 576 columns, of which the first
    512 are V; 128 query heads, and 16 of them with tensor parallelism. Then wide heads."""
    shapes = [Shape(batch, heads, 1, queries, keys, 576, queries > 1, "mla")
              for batch, keys in ((1, 8192), (16, 8192), (64, 1024), (64, 8192), (16, 65536))
              for heads, queries in ((128, 1), (128, 2), (16, 1))]
    return shapes + [square(1, 8, 4, 4096, 512, causal) for causal in (False, True)]


def paged() -> List[Shape]:
    """Decode and chunks over pages of 16 keys, then over smaller and larger ones."""
    sizes = [(1, 8192), (8, 8192), (64, 2048), (64, 8192), (256, 1024)]
    shapes = [Shape(batch, 32, 8, 1, keys, 128, False, "paged16") for batch, keys in sizes]
    shapes += [Shape(8, 32, 8, 1, 8192, 128, False, f"paged{size}") for size in (1, 64, 256)]
    return shapes + [Shape(1, 32, 8, rows, 8192, 128, True, f"paged{size}")
                     for rows, size in ((512, 16), (512, 64), (2048, 16))]


def fp8() -> List[Shape]:
    """A cache of half the bytes: decode, contiguous and over pages, and prefill."""
    sizes = [(1, 65536), (8, 8192), (16, 32768), (64, 8192)]
    return [Shape(batch, 32, 8, 1, keys, 128, False, option) for batch, keys in sizes
            for option in ("fp8", "paged16 fp8")] + \
           [Shape(1, 32, 8, 512, 8192, 128, True, "fp8"), square(4, 32, 8, 2048, 128, True, "fp8")]


def mixed() -> List[Shape]:
    """Steps of a server: decode, drafts and chunks of prompts in one call."""
    from .serving import step_shape
    steps = ["60x1@500-16000+2x512@2048-8192", "128x1@1000-4000", "32x1@500-32000+1x2048@2048",
             "48x4@500-8000+1x512@16384", "16x1@2000-64000+8x128@128-4096"]
    return [step_shape(step, 32, 8, 128) for step in steps]


def cpu() -> List[Shape]:
    """One of each kind, of a size that a CPU computes in milliseconds."""
    return [square(2, 8, 8, 512, 64, False), square(1, 16, 16, 2048, 128, True),
            square(1, 32, 8, 1024, 128, True), square(1, 8, 8, 4096, 64, False),
            Shape(4, 32, 8, 1, 8192, 128, False)]


def cpu_bwd() -> List[Shape]:
    """Gradients, likewise."""
    return [square(2, 8, 8, 512, 64, False, "backward"),
            square(1, 16, 16, 1024, 128, True, "backward"),
            square(1, 8, 8, 2048, 64, True, "backward")]


GRIDS = {"canonical": canonical, "small": small, "middle": middle, "full": full, "decode": decode,
         "chunk": chunk, "groups": groups, "ragged": ragged, "options": options, "masks": masks,
         "bwd": bwd, "mla": mla, "paged": paged, "fp8": fp8, "mixed": mixed, "cpu": cpu,
         "cpu_bwd": cpu_bwd}


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
    table["by_shape"] = {Shape(**{field: row[field] for field in Shape._fields if field in row}): row["us"]
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
