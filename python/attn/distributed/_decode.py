# SPDX-License-Identifier: Apache-2.0
"""decode() over a KV cache that is spread over ranks.

Invariant: partial results are merged in the order of ranks, on every rank: all get the same bits.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
import torch.distributed as dist

from .._arguments import number
from .._attention import attention
from .._serving import merge
from ._agree import agree, size_and_rank
from ._parallel import check_tensors

MOST_PARTS = 32  # of one attn_merge


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, used_kv: Any = None,
           group: Optional[dist.ProcessGroup] = None, scale: Optional[float] = None,
           softcap: float = 0.0, sink: Optional[torch.Tensor] = None, layout: str = "bhsd",
           return_lse: bool = False, check: bool = True, **cache: Any) -> Any:
    """Attention of the same queries on all ranks over keys of which each rank has a part. Every
    rank gets the whole result.

    q: the same on all ranks. k, v: this rank's keys, any number of them, also none. used_kv: for
        each batch entry, how many of them exist. Every query sees all of them.
    scale, softcap, sink, layout: as for attn.attention, and the same on all ranks.
    cache: block_table, page_layout, k_scale, v_scale and kv_dtype of attn.attention.
    return_lse, check: as for attention().
    """
    n, rank = size_and_rank(group)

    def describe() -> Tuple[Tuple[int, ...], Dict[str, Any]]:
        check_tensors(q, k, v, group, alike=not cache)
        return (), {"the dtype of q": str(q.dtype), "the shape of q": list(q.shape),
                    "the last dimension of v": v.shape[-1], "layout": layout,
                    "scale": None if scale is None else number("scale", scale),
                    "softcap": number("softcap", softcap), "sink": sink is not None}

    if check:
        agree(group, q, describe)
    with torch.no_grad():
        o, lse = attention(q, k, v, scale=scale, softcap=softcap, used_kv=used_kv,
                           sink=sink if rank == 0 else None, layout=layout, return_lse=True,
                           threads=torch.get_num_threads(), **cache)
        if n > 1:
            o, lse = _merge(o, lse, n, group, layout)
    return (o, lse) if return_lse else o


def _merge(o: torch.Tensor, lse: torch.Tensor, n: int, group: Any,
           layout: str) -> Tuple[torch.Tensor, torch.Tensor]:
    """LSE and O travel as one vector of bytes, O from a multiple of 16 on."""
    o, at = o.contiguous(), (lse.numel() * 4 + 15) // 16 * 16
    sent = o.new_zeros(at + o.numel() * o.element_size(), dtype=torch.uint8)
    sent[:lse.numel() * 4].view(torch.float32).copy_(lse.flatten())
    sent[at:].view(o.dtype).copy_(o.flatten())
    received = [torch.empty_like(sent) for _ in range(n)]
    dist.all_gather(received, sent, group=group)
    parts = [x[at:].view(o.dtype).view(o.shape) for x in received]
    sums = [x[:lse.numel() * 4].view(torch.float32).view(lse.shape) for x in received]
    dtype = str(o.dtype).rpartition(".")[2]
    if n > MOST_PARTS:
        parts = [x.float() for x in parts]
    while len(parts) > MOST_PARTS:
        first = merge(parts[:MOST_PARTS], sums[:MOST_PARTS], layout=layout,
                      threads=torch.get_num_threads())
        parts, sums = [first[0], *parts[MOST_PARTS:]], [first[1], *sums[MOST_PARTS:]]
    return merge(parts, sums, dtype=dtype, layout=layout, threads=torch.get_num_threads())
