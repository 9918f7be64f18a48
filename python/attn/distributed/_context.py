# SPDX-License-Identifier: Apache-2.0
"""context_parallel(): the attention of an unmodified model over the ranks of a group.

Invariant: within the context every call of PyTorch's function is the distributed one, or raises.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional

import torch
import torch.distributed as dist

from .._library import InvalidArgument
from ..torch import Replacement, _refuse_dropout, replaced
from ._parallel import attention


@contextlib.contextmanager
def context_parallel(group: Optional[dist.ProcessGroup] = None, method: str = "ring",
                     **options: Any) -> Iterator[Replacement]:
    """Within it torch.nn.functional.scaled_dot_product_attention is attention() over the group, for
    all threads, as in attn.torch.replace_sdpa(). Query, key and value have four dimensions.

    The model computes on its chunk of the rows: pass it shard()ed tokens and positions, in the
    method's order. An attn_mask has the local rows and all keys. options: of attention(), such as
    window, for every call.

    Backward may run outside of it. The gradients of parameters are this rank's share: sum them over
    the group, as DistributedDataParallel does (it divides by the number of ranks).
    """

    def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             attn_mask: Optional[torch.Tensor] = None, dropout_p: float = 0.0,
             is_causal: bool = False, scale: Optional[float] = None,
             enable_gqa: bool = False) -> torch.Tensor:
        _refuse_dropout(dropout_p)
        if not enable_gqa and query.shape[-3] != key.shape[-3]:
            raise InvalidArgument(f"query has {query.shape[-3]} heads and key {key.shape[-3]}, "
                                  "expected as many (heads in groups: enable_gqa=True)")
        kind = query.device.type
        if torch.is_autocast_enabled(kind):
            lower = torch.get_autocast_dtype(kind)
            query, key, value = (x.to(lower) for x in (query, key, value))
        boolean = attn_mask is not None and attn_mask.dtype is torch.bool
        return attention(query, key, value, group=group, method=method, causal=is_causal,
                         scale=scale, bias=None if boolean else attn_mask,
                         mask=attn_mask if boolean else None, **options)

    with replaced(sdpa) as seen:
        yield seen
