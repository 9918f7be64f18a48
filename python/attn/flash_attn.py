# SPDX-License-Identifier: Apache-2.0
"""The functions of the flash-attn package (2.x), computed by libattn on CPUs and NVIDIA GPUs.

    from attn.flash_attn import flash_attn_func, flash_attn_varlen_func

Same arguments, defaults and return values. attn.flash_attn_interface has those of FlashAttention-3.
After install(), `import flash_attn` and `import flash_attn_interface` find them.

Beyond flash-attn they take float32, CPU tensors, on the CPU any head_dim, a v whose head_dim
differs from that of k, and s_aux, a sink logit per head. deterministic and num_splits change
nothing: the same inputs always give the same bits. Gradients exist where attn.torch has them.

Invariant: what libattn does not compute (dropout) raises attn.Unsupported with the reason.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch

from ._flash import compute, with_kvcache
from ._flash_install import install, uninstall

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
           "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache", "install", "uninstall"]

Tensor = torch.Tensor
Window = Tuple[int, int]
_ALL = (-1, -1)


def _result(q: Tensor, found: Tuple[Tensor, Tensor], return_attn_probs: bool) -> Any:
    """return_attn_probs adds lse and an empty tensor: flash-attn has probabilities only with
    dropout."""
    return (*found, q.new_empty(0)) if return_attn_probs else found[0]


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
                    softmax_scale: Optional[float] = None, causal: bool = False,
                    window_size: Window = _ALL, softcap: float = 0.0,
                    alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                    return_attn_probs: bool = False, *, s_aux: Optional[Tensor] = None) -> Any:
    """q: (batch, seq_q, heads, dim); k, v: (batch, seq_k, heads_k, dim), heads_k divides heads.

    causal, window_size and alibi_slopes count from the bottom right corner: query i is at key
    i + seq_k - seq_q. Rows that see no key are 0.

    return_attn_probs: gives (out, lse, an empty tensor); lse: (batch, heads, seq_q), float32.

    >>> import torch
    >>> from attn.flash_attn import flash_attn_func
    >>> q, k, v = torch.randn(1, 2, 4, 16), torch.randn(1, 5, 2, 16), torch.randn(1, 5, 2, 16)
    >>> flash_attn_func(q, k, v, causal=True).shape
    torch.Size([1, 2, 4, 16])
    """
    return _result(q, compute(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap,
                              alibi_slopes, s_aux, want_lse=return_attn_probs), return_attn_probs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0,
                             softmax_scale: Optional[float] = None, causal: bool = False,
                             window_size: Window = _ALL, softcap: float = 0.0,
                             alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Any:
    """As flash_attn_func; kv: (batch, seq_k, 2, heads_k, dim)."""
    return flash_attn_func(q, *kv.unbind(-3), dropout_p, softmax_scale, causal, window_size,
                           softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0,
                              softmax_scale: Optional[float] = None, causal: bool = False,
                              window_size: Window = _ALL, softcap: float = 0.0,
                              alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Any:
    """As flash_attn_func; qkv: (batch, seq, 3, heads, dim)."""
    return flash_attn_func(*qkv.unbind(-3), dropout_p, softmax_scale, causal, window_size,
                           softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
                           cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                           causal: bool = False, window_size: Window = _ALL, softcap: float = 0.0,
                           alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Optional[Tensor] = None, *,
                           s_aux: Optional[Tensor] = None) -> Any:
    """Packed sequences. q: (total_q, heads, dim); k, v: (total_k, heads_k, dim);
    cu_seqlens: batch + 1 int32, from 0 upwards; lse: (heads, total_q). block_table: k and v are
    pages, (pages, page_size, heads_k, dim), of any size; no gradients."""
    return _result(q, compute(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap,
                              alibi_slopes, s_aux, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                              max_seqlen_k, want_lse=return_attn_probs, table=block_table),
                   return_attn_probs)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor,
                                    cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                                    dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                                    causal: bool = False, window_size: Window = _ALL,
                                    softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
                                    deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Any:
    """As flash_attn_varlen_func; kv: (total_k, 2, heads_k, dim)."""
    return flash_attn_varlen_func(q, *kv.unbind(-3), cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                  max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
                                  softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                     dropout_p: float = 0.0,
                                     softmax_scale: Optional[float] = None, causal: bool = False,
                                     window_size: Window = _ALL, softcap: float = 0.0,
                                     alibi_slopes: Optional[Tensor] = None,
                                     deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Any:
    """As flash_attn_varlen_func; qkv: (total, 3, heads, dim)."""
    return flash_attn_varlen_func(*qkv.unbind(-3), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                                  dropout_p, softmax_scale, causal, window_size, softcap,
                                  alibi_slopes, deterministic, return_attn_probs)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor,
                            k: Optional[Tensor] = None, v: Optional[Tensor] = None,
                            rotary_cos: Optional[Tensor] = None,
                            rotary_sin: Optional[Tensor] = None,
                            cache_seqlens: Optional[Union[int, Tensor]] = None,
                            cache_batch_idx: Optional[Tensor] = None,
                            cache_leftpad: Optional[Tensor] = None,
                            block_table: Optional[Tensor] = None,
                            softmax_scale: Optional[float] = None, causal: bool = False,
                            window_size: Window = _ALL, softcap: float = 0.0,
                            rotary_interleaved: bool = True,
                            alibi_slopes: Optional[Tensor] = None, num_splits: int = 0,
                            return_softmax_lse: bool = False) -> Any:
    """One step with a KV cache: k and v, if given, are written into it at cache_seqlens, in place;
    then q (batch, seq_q, heads, dim) is computed against all of its keys. No gradients.

    k_cache, v_cache: (batch_cache, seq_cache, heads_k, dim). rotary_cos, rotary_sin: (positions,
    rotary_dim / 2); k and q are rotated first. cache_batch_idx: the cache entry of each sequence of
    q; these entries are copied. cache_leftpad: the first visible key of each sequence. block_table:
    (batch, pages of a sequence) int32; the cache is (pages, page_size, heads_k, dim), pages of any
    size.

    >>> import torch
    >>> from attn.flash_attn import flash_attn_with_kvcache
    >>> cache = torch.zeros(1, 64, 2, 16)
    >>> token = torch.ones(1, 1, 2, 16)
    >>> out = flash_attn_with_kvcache(token, cache, cache.clone(), token, token, cache_seqlens=5)
    >>> cache[0, 4:7, 0, 0]
    tensor([0., 1., 0.])
    """
    found = with_kvcache(q, k_cache, v_cache, k, v,
                         (rotary_cos, rotary_sin, rotary_interleaved, None), cache_seqlens,
                         cache_batch_idx, cache_leftpad, softmax_scale, causal, window_size,
                         softcap, alibi_slopes, want_lse=return_softmax_lse, table=block_table)
    return found if return_softmax_lse else found[0]
