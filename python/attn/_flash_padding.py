# SPDX-License-Identifier: Apache-2.0
"""flash_attn.bert_padding: from a padded batch to packed sequences, and back.

Invariant: pad_input(*unpad_input(x, mask)[:2], batch, seqlen) is x where the mask is 1, else 0.
"""

from __future__ import annotations

from typing import Optional, Tuple

import torch

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]

Tensor = torch.Tensor


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    return x[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor,
                unused_mask: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Of (batch, seq, ...): the rows whose mask is 1, their indices, cu_seqlens, the longest
    sequence, and the rows of each sequence in attention_mask (without unused_mask)."""
    all_rows = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = all_rows.sum(-1, dtype=torch.int32)
    indices = all_rows.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return (hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, int(lengths.max()),
            attention_mask.sum(-1, dtype=torch.int32))


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.view(batch, seqlen, *hidden_states.shape[1:])
