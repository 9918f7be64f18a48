# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention-3's module flash_attn_interface, computed by libattn.

Same arguments, defaults and return values; attn.flash_attn lists the differences. num_splits,
pack_gqa, sm_margin and scheduler_metadata change nothing: libattn chooses by itself.

fp8 inputs are computed as bfloat16, and the result is bfloat16; an fp8 KV cache is read as it lies.
As there, fp8, qv and a V wider than 256 have no gradients: the backward pass raises.

Invariant: what libattn does not compute raises attn.Unsupported with the reason.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch

from ._flash import compute, with_kvcache

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_with_kvcache", "get_scheduler_metadata"]

Tensor = torch.Tensor
Window = Tuple[int, int]
_ALL = (-1, -1)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: Optional[float] = None,
                    causal: bool = False, qv: Optional[Tensor] = None,
                    q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
                    v_descale: Optional[Tensor] = None, window_size: Window = _ALL,
                    attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                    pack_gqa: Optional[bool] = None, deterministic: bool = False,
                    sm_margin: int = 0, return_attn_probs: bool = False, *,
                    s_aux: Optional[Tensor] = None) -> Any:
    """As attn.flash_attn.flash_attn_func; return_attn_probs gives (out, lse)."""
    found = compute(q, k, v, 0.0, softmax_scale, causal, window_size, softcap, None, s_aux,
                    want_lse=return_attn_probs, qv=qv, scales=(q_descale, k_descale, v_descale),
                    chunk=attention_chunk)
    return found if return_attn_probs else found[0]


def flash_attn_qkvpacked_func(qkv: Tensor, softmax_scale: Optional[float] = None,
                              causal: bool = False, q_descale: Optional[Tensor] = None,
                              k_descale: Optional[Tensor] = None,
                              v_descale: Optional[Tensor] = None, window_size: Window = _ALL,
                              attention_chunk: int = 0, softcap: float = 0.0,
                              deterministic: bool = False, num_heads_q: Optional[int] = None,
                              sm_margin: int = 0, return_attn_probs: bool = False) -> Any:
    """qkv: (batch, seq, 3, heads, dim), or (batch, seq, heads_q + 2 heads_k, dim) and
    num_heads_q."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(-3)
    else:
        heads = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split((num_heads_q, heads, heads), 2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale,
                           window_size, attention_chunk, softcap,
                           return_attn_probs=return_attn_probs)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
                           cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None,
                           softmax_scale: Optional[float] = None, causal: bool = False,
                           qv: Optional[Tensor] = None, q_descale: Optional[Tensor] = None,
                           k_descale: Optional[Tensor] = None, v_descale: Optional[Tensor] = None,
                           window_size: Window = _ALL, attention_chunk: int = 0,
                           softcap: float = 0.0, num_splits: int = 1,
                           pack_gqa: Optional[bool] = None, deterministic: bool = False,
                           sm_margin: int = 0, return_attn_probs: bool = False, *,
                           s_aux: Optional[Tensor] = None) -> Any:
    """As attn.flash_attn.flash_attn_varlen_func. seqused_q, seqused_k: how many rows of each
    sequence exist, from its first on. Rows of the result after them are not written, as in
    FlashAttention-3; where there are gradients they are 0, with lse = -inf. return_attn_probs gives
    (out, lse)."""
    found = compute(q, k, v, 0.0, softmax_scale, causal, window_size, softcap, None, s_aux,
                    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k,
                    want_lse=return_attn_probs, qv=qv, scales=(q_descale, k_descale, v_descale),
                    chunk=attention_chunk)
    return found if return_attn_probs else found[0]


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor,
                            k: Optional[Tensor] = None, v: Optional[Tensor] = None,
                            qv: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
                            rotary_sin: Optional[Tensor] = None,
                            cache_seqlens: Optional[Union[int, Tensor]] = None,
                            cache_batch_idx: Optional[Tensor] = None,
                            cache_leftpad: Optional[Tensor] = None,
                            page_table: Optional[Tensor] = None,
                            cu_seqlens_q: Optional[Tensor] = None,
                            cu_seqlens_k_new: Optional[Tensor] = None,
                            max_seqlen_q: Optional[int] = None,
                            rotary_seqlens: Optional[Tensor] = None,
                            q_descale: Optional[Tensor] = None,
                            k_descale: Optional[Tensor] = None,
                            v_descale: Optional[Tensor] = None,
                            softmax_scale: Optional[float] = None, causal: bool = False,
                            window_size: Window = _ALL, attention_chunk: int = 0,
                            softcap: float = 0.0, rotary_interleaved: bool = True,
                            scheduler_metadata: Any = None, num_splits: int = 0,
                            pack_gqa: Optional[bool] = None, sm_margin: int = 0,
                            return_softmax_lse: bool = False, *,
                            s_aux: Optional[Tensor] = None) -> Any:
    """As attn.flash_attn.flash_attn_with_kvcache. With cu_seqlens_q, q is (total_q, heads, dim);
    with cu_seqlens_k_new, so are k and v. rotary_seqlens: the first position of each sequence, in
    place of cache_seqlens. return_softmax_lse gives (out, lse, two empty tensors), where
    FlashAttention-3 returns the partial results of split-KV."""
    found = with_kvcache(q, k_cache, v_cache, k, v,
                         (rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens),
                         cache_seqlens, cache_batch_idx, cache_leftpad, softmax_scale, causal,
                         window_size, softcap, None, s_aux, cu_seqlens_q, cu_seqlens_k_new,
                         max_seqlen_q, return_softmax_lse, page_table, qv,
                         (q_descale, k_descale, v_descale), attention_chunk)
    return (*found, q.new_empty(0), q.new_empty(0)) if return_softmax_lse else found[0]


def get_scheduler_metadata(*_: Any, **__: Any) -> None:
    """None: libattn needs none."""


def flash_attn_combine(out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None,
                       out_dtype: Optional[torch.dtype] = None) -> Tuple[Tensor, Tensor]:
    """Merges partial results over splits of the keys: (splits, batch, seq, heads, dim) and lse
    (splits, batch, seq, heads), both float32."""
    lse = lse_partial.logsumexp(0)
    weights = (lse_partial - lse.masked_fill(lse == float("-inf"), 0.0)).exp()
    found = (weights.unsqueeze(-1) * out_partial).sum(0)
    if out is not None:
        return out.copy_(found), lse
    return found if out_dtype is None else found.to(out_dtype), lse
