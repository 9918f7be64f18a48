# SPDX-License-Identifier: Apache-2.0
"""libattn in torch.nn.attention's registry of flash attention (PyTorch 2.10 and later).

    import attn.torch
    torch.nn.attention.activate_flash_attention_impl("attn")

From then on libattn computes the calls that PyTorch's scaled_dot_product_attention sends to its
flash kernels, on CPUs and GPUs. This includes C++ callers and compiled graphs, which replace_sdpa()
does not see. PyTorch selects these calls: on a GPU those without a mask, in fp16 and bf16.

Invariant: shapes, strides and dtypes of all results are those of the operator that is replaced,
since compiled graphs rely on them. What is not supported raises attn.Unsupported.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from ._arguments import NO_WINDOW
from ._attention import attention
from ._autograd import backward
from ._fast import DTYPES, SDPA, forward
from ._library import Unsupported

Tensor = torch.Tensor
NAME = "attn"


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _rows_first(x: Tensor) -> Tensor:
    """(batch, heads, rows, ...), in memory (batch, rows, heads, ...)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _refuse(query: Tensor, dropout_p: float) -> None:
    if dropout_p:
        raise Unsupported(f"dropout_p is {dropout_p}, expected 0: there is no dropout")
    if query.dtype not in DTYPES:
        raise Unsupported(f"query has dtype {query.dtype}, expected torch.float32, torch.float16 "
                          "or torch.bfloat16")


def _forward(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool,
             attn_mask: Optional[Tensor], scale: Optional[float]) -> Tuple[Tensor, Tensor]:
    """The output, which lies in memory as query does, and LSE."""
    _refuse(query, dropout_p)
    query, key, value = _rows(query), _rows(key), _rows(value)
    causal = "top-left" if is_causal else None
    with torch.no_grad():  # these kernels run below autograd, which is still on
        found = forward(query, key, value, causal, scale, attn_mask, None, SDPA, True, None,
                        want_lse=True)
        if found is None:
            boolean = attn_mask is not None and attn_mask.dtype is torch.bool
            out = torch.empty_like(query[..., :1].expand(*query.shape[:-1], value.shape[-1]))
            found = attention(query, key, value, causal=causal, scale=scale,
                              bias=None if boolean else attn_mask,
                              mask=attn_mask if boolean else None, out=out, return_lse=True,
                              threads=torch.get_num_threads())
    return found


def _backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
              logsumexp: Tensor, dropout_p: float, is_causal: bool, attn_mask: Optional[Tensor],
              scale: Optional[float]) -> Tuple[Tensor, ...]:
    _refuse(query, dropout_p)
    boolean = attn_mask is not None and attn_mask.dtype is torch.bool
    options = ("top-left" if is_causal else None, scale, SDPA, True, None, "bhsd", NO_WINDOW, 0.0,
               False, None, None, 0)
    with torch.no_grad():
        return backward(grad_out, _rows(query), _rows(key), _rows(value), out,
                        logsumexp.contiguous(), None if boolean else attn_mask, None, None,
                        attn_mask if boolean else None, None, None, None, None, options,
                        (False, False, False))[:3]


# ---- the operators of PyTorch ------------------------------------------------------------------


def _cpu(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0,
         is_causal: bool = False, *, attn_mask: Optional[Tensor] = None,
         scale: Optional[float] = None) -> Tuple[Tensor, Tensor]:
    out, lse = _forward(query, key, value, dropout_p, is_causal, attn_mask, scale)
    return out, _rows_first(lse)


def _cpu_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                  logsumexp: Tensor, dropout_p: float, is_causal: bool, *,
                  attn_mask: Optional[Tensor] = None,
                  scale: Optional[float] = None) -> Tuple[Tensor, ...]:
    return tuple(map(_rows_first, _backward(grad_out, query, key, value, out, logsumexp, dropout_p,
                                            is_causal, attn_mask, scale)))


def _cuda(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0,
          is_causal: bool = False, return_debug_mask: bool = False, *,
          scale: Optional[float] = None) -> Tuple[Any, ...]:
    out, lse = _forward(query, key, value, dropout_p, is_causal, None, scale)
    # No offsets of packed sequences; the longest ones; a seed of dropout, which is not read; no
    # weights.
    return (out, lse, None, None, query.shape[2], key.shape[2],
            query.new_empty(2, dtype=torch.uint64), query.new_empty((), dtype=torch.uint64),
            query.new_empty(0))


def _cuda_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                   logsumexp: Tensor, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int,
                   dropout_p: float, is_causal: bool, philox_seed: Tensor, philox_offset: Tensor,
                   *, scale: Optional[float] = None) -> Tuple[Tensor, ...]:
    return _backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, None, scale)


OPERATORS = {("_scaled_dot_product_flash_attention_for_cpu", "CPU"): _cpu,
             ("_scaled_dot_product_flash_attention_for_cpu_backward", "CPU"): _cpu_backward,
             ("_scaled_dot_product_flash_attention", "CUDA"): _cuda,
             ("_scaled_dot_product_flash_attention_backward", "CUDA"): _cuda_backward}


class _Handle:
    """Keeps the operators replaced. remove() is what restore_flash_attention_impl() calls."""

    def __init__(self) -> None:
        self.library: Any = torch.library.Library("aten", "IMPL")
        for (name, key), function in OPERATORS.items():
            self.library.impl(name, function, key)

    def remove(self) -> None:
        self.library = None  # which takes its functions back


def register() -> None:
    """Where PyTorch has a registry: makes NAME known. It is active after
    torch.nn.attention.activate_flash_attention_impl(NAME)."""
    import torch.nn.attention
    function = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if function is not None:
        function(NAME, register_fn=_Handle)
