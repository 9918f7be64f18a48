# SPDX-License-Identifier: Apache-2.0
"""Options that only FlashAttention-3 has, expressed by what libattn computes.

fp8 inputs are computed as bfloat16, the scales folded into Q and O. qv, a second query that meets
V, joins Q as more columns. attention_chunk cuts each sequence into packed ones.

Invariant: where V and K lie side by side in memory (MLA), nothing of K and V is copied.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from ._library import InvalidArgument

Tensor = torch.Tensor
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def wide(x: Optional[Tensor]) -> Optional[Tensor]:
    """fp8 numbers as bfloat16, which has all of them."""
    return x.to(torch.bfloat16) if x is not None and x.dtype in FP8 else x


def places(x: Tensor, cu: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """For each row of x: its batch entry, and its place in that sequence."""
    if cu is None:
        return (torch.arange(x.shape[0], device=x.device)[:, None],
                torch.arange(x.shape[1], device=x.device))
    rows = torch.arange(x.shape[0], dtype=cu.dtype, device=x.device)
    entry = torch.searchsorted(cu[1:-1].contiguous(), rows, right=True)
    return entry, rows - cu[entry]


def scaled(x: Tensor, scales: Tuple[Optional[Tensor], ...], cu: Optional[Tensor]) -> Tensor:
    """x (batch, seq, heads, dim) times scales, each (batch, heads_k). cu: x is packed, (total,
    heads, dim)."""
    given = [scale for scale in scales if scale is not None]
    if not given:
        return x
    for scale in given:
        if scale.dim() != 2:
            raise InvalidArgument(f"a descale has the shape {tuple(scale.shape)}, expected (batch, "
                                  "heads_k)")
    factor = torch.stack([scale.float() for scale in given]).prod(0)
    factor = factor.repeat_interleave(x.shape[-2] // factor.shape[1], 1)[..., None]
    factor = factor[:, None] if cu is None else factor[places(x, cu)[0]]
    return (x.float() * factor).to(x.dtype)


def with_qv(q: Tensor, k: Tensor, v: Tensor, qv: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Q, K and V whose scores are q k^T + qv v^T."""
    size = v.shape[-1]
    if (k.data_ptr() == v.data_ptr() + size * v.element_size() and k.stride() == v.stride()
            and k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()):
        keys = v.as_strided((*v.shape[:-1], size + k.shape[-1]), v.stride())
    else:
        keys = torch.cat((v, k), -1)
    return torch.cat((qv, q), -1), keys, keys[..., :size]


def pieces(starts_q: Tensor, lengths_q: Tensor, starts_k: Tensor, lengths_k: Tensor, chunk: int,
           most: int) -> Tuple[Tensor, ...]:
    """Sequences cut where a chunk of keys ends, as four vectors like those given. The first piece
    of each has the queries before key 0, and no keys. most: the longest sequence of keys."""
    edges = chunk * torch.arange(-(-most // chunk) + 1, device=lengths_k.device)
    of_q = edges - (lengths_k - lengths_q)[:, None]
    found = []
    for starts, lengths, at in ((starts_q, lengths_q, of_q),
                                (starts_k, lengths_k, edges.expand_as(of_q))):
        at = torch.minimum(at.clamp(min=0), lengths[:, None])
        at = torch.nn.functional.pad(at, (1, 0))
        found += [(starts[:, None] + at[:, :-1]).flatten(), at.diff().flatten()]
    return tuple(found)


def chunk_mask(rows: int, lengths_q: Any, keys: int, first: Any, lengths_k: Tensor,
               chunk: int) -> Tensor:
    """The mask (batch, 1, rows, keys) of chunks that count from key `first` of each sequence."""
    place = torch.arange(keys, device=lengths_k.device) - first
    query = torch.arange(rows, device=lengths_k.device) + (lengths_k[:, None] - first
                                                           - lengths_q)
    return (place[..., None, :] // chunk == query[:, :, None] // chunk)[:, None]


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, error: Exception, *_: Any) -> Tensor:
        ctx.error = error.with_traceback(None)  # whose frames would keep the tensors alive
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise ctx.error


def without_gradient(out: Tensor, error: Exception, *inputs: Optional[Tensor]) -> Tensor:
    """out, whose backward pass raises the error."""
    return _NoGradient.apply(out, error, *inputs)
