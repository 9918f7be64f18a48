# SPDX-License-Identifier: Apache-2.0
"""KV caches as servers have them: pages, fp8, and the sequences of one step in one call.

Peers get the same keys and values contiguous and in 16 bits, or the pages (FlashAttention-3). A
side "plain" is libattn on that contiguous cache; "separate" is a call of libattn for each group of
a step.

Invariant: what is stored holds exactly the values that the other sides get.
"""

from __future__ import annotations

import random
import re
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from .. import _library
from .._library import Problem
from .grids import Shape

KV_SCALE = 1 / 64  # of fp8 caches: N(0, 1) reaches 300 of e4m3's 448

Store = Callable[[Any], Any]  # (batch, heads, keys, dim) -> as our side reads it


class Group(NamedTuple):
    """Sequences of a step that have as many rows: decode, drafts, chunks."""
    count: int
    rows: int
    least: int
    most: int


def groups_of(text: str) -> List[Group]:
    """Of COUNTxROWS@KEYS or COUNTxROWS@LEAST-MOST, joined by plus.

    >>> groups_of("60x1@500-16000+2x512@8192")
    [Group(count=60, rows=1, least=500, most=16000), Group(count=2, rows=512, least=8192, most=8192)]
    """
    found = [re.fullmatch(r"(\d+)x(\d+)@(\d+)(?:-(\d+))?", part) for part in text.split("+")]
    if not all(found):
        raise ValueError(f"{text!r} is no step, expected 60x1@500-16000+2x512@8192")
    return [Group(*(int(one.group(n) or one.group(3)) for n in (1, 2, 3, 4)))
            for one in found if one]


class Step:
    """The rows and keys of each sequence of a step, over pages of `size` rows.

    >>> Step("2x1@5+1x4@20", 16).keys, Step("2x1@5+1x4@20", 16).pages()
    ([5, 5, 20], 4)
    """

    def __init__(self, text: str, size: int) -> None:
        draw = random.Random(7)
        self.groups, self.size = groups_of(text), size
        self.rows = [group.rows for group in self.groups for _ in range(group.count)]
        self.keys = [draw.randint(group.least, group.most) for group in self.groups
                     for _ in range(group.count)]

    def pages(self) -> int:
        return sum(-(-n // self.size) for n in self.keys)

    def scores(self) -> float:
        """That a causal mask leaves, of one head."""
        return sum(n * (keys - n) + n * (n + 1) / 2 for n, keys in zip(self.rows, self.keys))


def step_shape(text: str, heads_q: int, heads_kv: int, head_dim: int, size: int = 16) -> Shape:
    step = Step(text, size)
    return Shape(1, heads_q, heads_kv, sum(step.rows), step.pages() * size, head_dim, True,
                 f"paged{size} step {text}")


def strides_of_pages(problem: Problem, heads: int, columns: int) -> None:
    """(page, row, head, column)."""
    for part in (problem.k, problem.v):
        part.batch, part.head, part.row = (problem.page_size * heads * columns, columns,
                                           heads * columns)


def store_pages(torch: Any, shape: Shape, size: int, table: Any) -> Store:
    keys = table.shape[1] * size

    def store(x: Any) -> Any:
        rows = x.new_full((shape.batch, keys, *x.shape[1::2]), float("nan"))
        rows[:, :shape.seq_kv] = x.transpose(1, 2)
        pool = torch.empty_like(rows).reshape(-1, size, *x.shape[1::2])
        pool[table.flatten().long()] = rows.reshape(pool.shape)
        return pool
    return store


def paged(extra: Any, torch: Any, shape: Shape, device: Any, size: int) -> None:
    """Pages in random order."""
    count = -(-shape.seq_kv // size)
    table = torch.randperm(shape.batch * count, device=device).int().reshape(shape.batch, count)
    extra.fields.update(page_size=size, num_pages=table.numel(), used_kv=True)
    extra.tensors.update(block_table=table, used_kv=torch.full(
        (shape.batch,), shape.seq_kv, device=device, dtype=torch.int32))
    extra.stores.append(store_pages(torch, shape, size, table))


def fp8(extra: Any, torch: Any, device: Any, dtype: Any) -> None:
    """e4m3 with one scale; the values are such as have no other representation."""
    scale = torch.full((1,), KV_SCALE, device=device)
    extra.fields["dtype_kv"] = _library.E4M3
    extra.tensors.update(k_scale=scale, v_scale=scale)
    extra.rounded = lambda x: ((x.float() / KV_SCALE).to(torch.float8_e4m3fn).float() *
                               KV_SCALE).to(dtype)
    extra.stores.append(lambda x: (x.float() / KV_SCALE).to(torch.float8_e4m3fn))


def step(extra: Any, torch: Any, device: Any, text: str, size: int) -> None:
    """Packed queries over pages in random order."""
    extra.step = found = Step(text, size)
    longest = max(-(-n // size) for n in found.keys)
    order = torch.randperm(found.pages(), device=device).int()
    table = torch.full((len(found.keys), longest), -1, device=device, dtype=torch.int32)
    at = 0
    for sequence, keys in enumerate(found.keys):
        count = -(-keys // size)
        table[sequence, :count] = order[at:at + count]
        at += count
    numbers = lambda values: torch.tensor(values, device=device, dtype=torch.int32)
    extra.fields.update(packed=True, batch=len(found.keys), seq_q=max(found.rows),
                        seq_kv=max(found.keys), total_q=sum(found.rows), used_kv=True,
                        page_size=size, num_pages=found.pages(), block_table_stride=longest)
    ends = numbers([sum(found.rows[:n]) for n in range(len(found.rows) + 1)])
    extra.tensors.update(cu_seqlens_q=ends, used_kv=numbers(found.keys), block_table=table)
    extra.only_native = True
    extra.stores.append(lambda x: x.transpose(1, 2).reshape(found.pages(), size, *x.shape[1::2]))


def separate_problems(problem: Problem, found: Step) -> List[Tuple[Problem, int, int]]:
    """For each group its own problem, its first sequence and its first row."""
    made, sequence, row = [], 0, 0
    for group in found.groups:
        one = Problem.from_buffer_copy(problem)
        one.packed, one.total_q, one.batch, one.seq_q = False, 0, group.count, group.rows
        one.seq_kv = group.most
        for part in (one.q, one.o):
            part.batch = group.rows * part.row
        made.append((one, sequence, row))
        sequence, row = sequence + group.count, row + group.count * group.rows
    return made


def separate_tensors(extra: Any, q: Any, k: Any, v: Any, o: Any, sequence: int,
                     row: int) -> bytes:
    """Of one group; q and o are (1, heads, rows, dim) with the rows of all heads together."""
    at = {name: tensor[sequence:].data_ptr() for name, tensor in extra.tensors.items()
          if name in ("used_kv", "block_table")}
    return _library.tensors(q[:, :, row:].data_ptr(), k.data_ptr(), v.data_ptr(),
                            o[:, :, row:].data_ptr(), **at)


def fa3_options(extra: Any) -> Optional[dict]:
    """FlashAttention-3's arguments for pages; None: it has no such cache."""
    if "block_table" not in extra.tensors or extra.v_columns or "dtype_kv" in extra.fields:
        return None
    options = {"page_table": extra.tensors["block_table"], "seqused_k": extra.tensors["used_kv"]}
    if extra.step:
        options.update(cu_seqlens_q=extra.tensors["cu_seqlens_q"],
                       max_seqlen_q=max(extra.step.rows))
    return options
