# SPDX-License-Identifier: Apache-2.0
"""attn_problem as bytes, by the names of its parts: for the general path of attention().

Invariant: all that a plan depends on is in the bytes, and nothing else; addresses are not. NumPy is
not needed.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence, Tuple

from ._library import AUTO, AUTO_LSE, pack_options, pack_problem, problem_head, with_offsets, with_serving

Strides = Tuple[int, ...]  # (batch, head, row), of bias and mask also col
_ANY = (0, 0, 0, 0)


def problem(*, dtype: int, sizes: Strides, q: Strides, k: Strides, v: Strides, o: Strides,
            scale: Optional[float] = None, causal: int = 0, window: Tuple[int, int] = (-1, -1),
            softcap: float = 0.0, bias: Optional[Tuple[int, Strides]] = None,
            mask: Optional[Strides] = None, alibi: Optional[int] = None, sink: bool = False,
            packed: Optional[Tuple[int, int]] = None, used_kv: bool = False,
            tensor_cores: int = 0, alignment: int = 16,
            pages: Optional[Tuple[int, int, int]] = None, used_q: bool = False,
            draft: bool = False, dtype_kv: int = -1, scales: Strides = (), offset: int = 0,
            offsets: bool = False, v_in_k: bool = False) -> bytes:
    """sizes: batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v. bias: dtype and
    strides. alibi: the batch stride of the slopes. packed: total_q and total_kv. pages: page_size,
    num_pages and the stride of the block table. scales: strides of k_scale, then of v_scale.
    offset: q_offset - kv_offset."""
    bias_dtype, bias_strides = bias or (0, _ANY)
    options = pack_options(
        *window, softcap, bias_dtype, bias is not None, mask is not None, alibi is not None, sink,
        packed is not None, used_kv, False, False, *bias_strides, *(mask or _ANY), alibi or 0,
        *(packed or (0, 0)), tensor_cores)
    packed_problem = pack_problem(problem_head(dtype, dtype_kv), *sizes, *q, *k, *v, *o, AUTO_LSE,
                                  math.nan if scale is None else scale, causal, options, alignment)
    if pages or used_q or draft or any(scales):
        packed_problem = with_serving(packed_problem, *(pages or (0, 0, 0)), used_q, draft,
                                      *scales)
    if offset or offsets or v_in_k:
        packed_problem = with_offsets(packed_problem, offset, offsets, v_in_k)
    return packed_problem


def alignment_of(*addresses: int) -> int:
    """The largest power of two, up to 16, that all are multiples of."""
    bits = 16
    for address in addresses:
        bits |= address
    return bits & -bits


def free_strides(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """The strides, those that carry no meaning (of one element, of nothing) left to the library."""
    if 0 in shape:
        return (AUTO,) * len(shape)
    return tuple([AUTO if n == 1 else step for n, step in zip(shape, strides)])
