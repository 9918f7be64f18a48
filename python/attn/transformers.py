# SPDX-License-Identifier: Apache-2.0
"""libattn as an attention implementation of Hugging Face transformers (4.53 or later).

    import attn.transformers
    attn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attn")

A model's mask comes as a Structure (_masks.py), not as a dense tensor: causal, window, padding and
the used part of a cache become options of the library. So do soft caps, sinks, position biases and
grouped heads.

Invariant: a call that the library cannot compute goes to PyTorch with its reason in seen(), or
raises attn.Unsupported (register(fallback=False)). What both compute is the same formula.
"""

from __future__ import annotations

import warnings
from typing import Any, Dict, Optional, Tuple

import torch
import torch.nn.functional

from ._attention import attention
from ._fast import DTYPES, PLAIN
from ._library import InvalidArgument, Unsupported
from ._masks import Structure, boundaries, learn, mask_function
from .torch import Replacement, _any_autocast, _is_compiling, _is_tracing, _rows

__all__ = ["Structure", "register", "seen"]

Tensor = torch.Tensor
_seen = Replacement()
_fallback = True


def seen() -> Replacement:
    """The calls since register(), and of those that went to PyTorch the reasons. Calls inside a
    compiled graph are not counted."""
    return _seen


def register(name: str = "attn", fallback: bool = True) -> Replacement:
    """Makes attn_implementation=name known to transformers; gives what seen() gives from now on.

    fallback: calls that are not supported (dropout, gradients) go to PyTorch,
    with a warning at the first of each reason; without it they raise attn.Unsupported.
    """
    global _seen, _fallback
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError("attn.transformers needs transformers 4.53 or later, which has "
                          f"AttentionMaskInterface: {error}") from None
    learn()
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, mask_function)
    _seen, _fallback = Replacement(), fallback
    return _seen


# ---- the library -----------------------------------------------------------------------------


def _key_rows(x: Tensor) -> int:
    """Rows from the keys of one sequence to those of the next; 0: they are no whole number."""
    batch, _, length, _ = x.shape
    if batch == 1:
        return length
    step, rest = divmod(x.stride(0), max(x.stride(2), 1))
    return 0 if rest or step < length else step


def _packed(q: Tensor, k: Tensor, v: Tensor, used_kv: Tensor, starts: Tensor,
            structure: Optional[Structure]) -> Tuple[Tensor, Tensor, Tensor, Dict[str, Any]]:
    """Left padding without a mask. All rows of K are one packed sequence after the other, each from
    its first visible key on, of which used_kv exist. Gives Q, K, V and the options that say it."""
    (batch, _, rows, _), length = q.shape, k.shape[2]
    step = _key_rows(k)
    if not step or step != _key_rows(v):
        k, v = k.contiguous(), v.contiguous()
        step = _key_rows(k)
    total = (batch - 1) * step + length
    cu_q, cu_kv, used_kv = boundaries(starts, used_kv, rows, step, total) if structure is None \
        else structure.boundaries(rows, step, total)
    k, v = (x.as_strided((total, x.shape[1], x.shape[3]), (x.stride(2), x.stride(1), 1))
            for x in (k, v))
    # The longest: on a GPU that of the keys which exist; the CPU counts those between them too.
    return q.transpose(1, 2).flatten(0, 1), k, v, {
        "cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv, "used_kv": used_kv, "max_seqlen_q": rows,
        "max_seqlen_kv": length if q.is_cuda else step + length}


def _compute(query: Tensor, key: Tensor, value: Tensor, causal: Optional[str],
             scale: Optional[float], left: int, right: int, softcap: float, bias: Optional[Tensor],
             mask: Optional[Tensor], sink: Optional[Tensor], used_kv: Optional[Tensor],
             starts: Optional[Tensor], structure: Optional[Structure] = None) -> Tensor:
    """(batch, rows, heads, dim), as the models go on with it."""
    batch, heads, rows, _ = query.shape
    query, key, value = _rows(query), _rows(key), _rows(value)
    if starts is None or not query.numel():
        return attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                         causal=causal, scale=scale, window=(left, right), softcap=softcap,
                         bias=bias, mask=mask, sink=sink, used_kv=used_kv, layout="bshd",
                         threads=torch.get_num_threads())
    query, key, value, lengths = _packed(query, key, value, used_kv, starts, structure)
    out = attention(query, key, value, causal=causal, scale=scale, window=(left, right),
                    softcap=softcap, sink=sink, layout="bshd", threads=torch.get_num_threads(),
                    **lengths)
    return out.view(batch, rows, heads, -1)


@torch.library.custom_op("attn::attention", mutates_args=(), schema=(
    "(Tensor query, Tensor key, Tensor value, str? causal, float? scale, int left, int right, "
    "float softcap, Tensor? bias, Tensor? mask, Tensor? sink, Tensor? used_kv, Tensor? starts) "
    "-> Tensor"))
def _operator(query, key, value, causal, scale, left, right, softcap, bias, mask, sink, used_kv,
              starts):
    return _compute(query, key, value, causal, scale, left, right, softcap, bias, mask, sink,
                    used_kv, starts)


@_operator.register_fake
def _(query, key, value, causal, scale, left, right, softcap, bias, mask, sink, used_kv, starts):
    batch, heads, rows, _ = query.shape
    return query.new_empty((batch, rows, heads, value.shape[3]))


# ---- what it does not compute ------------------------------------------------------------------


def _refusal(query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor],
             dropout: float) -> Optional[str]:
    if dropout > 0.0:
        return f"dropout is {dropout}, expected 0: there is no dropout"
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad
                                    or (bias is not None and bias.requires_grad)):
        return ("an input requires a gradient, and there is no backward pass yet: call the model "
                "under torch.no_grad() or torch.inference_mode()")
    if query.dtype not in DTYPES:
        return (f"query has dtype {query.dtype}, expected torch.float32, torch.float16 or "
                "torch.bfloat16")
    if query.device.type not in ("cpu", "cuda"):
        return f"query lies on {query.device}, expected cpu or cuda"
    if bias is not None and bias.dtype not in DTYPES:
        return f"the mask or position bias has dtype {bias.dtype}, expected floats of 16 or 32 bits"
    return None


def _by_pytorch(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: Optional[float],
                softcap: float, bias: Optional[Tensor], mask: Optional[Tensor],
                sink: Optional[Tensor], dropout: float) -> Tensor:
    """causal: top-left. PyTorch's function where it has the options, else the formula itself."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) if group > 1 else x for x in (key, value))
    if bias is not None:
        bias = bias.to(query.dtype)
        hidden = torch.finfo(query.dtype).min
        if causal:
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool,
                              device=query.device).tril()
        mask, causal = bias if mask is None else bias.masked_fill(~mask, hidden), False
    if not softcap and sink is None:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, dropout, causal, scale=scale).transpose(1, 2).contiguous()
    scores = query @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        mask = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores + mask if mask.dtype != torch.bool else \
            scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sink is not None:
        column = sink.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, column), -1)
    weights = torch.softmax(scores, -1, torch.float32).to(query.dtype)[..., :key.shape[2]]
    weights = torch.nn.functional.dropout(weights, dropout) if dropout else weights
    return (weights @ value).transpose(1, 2).contiguous()


# ---- the implementation ------------------------------------------------------------------------


def _note(reason: str) -> None:
    if reason not in _seen.reasons:
        warnings.warn(f"attn.transformers: PyTorch computes this attention: {reason}", stacklevel=3)
    _seen._note(reason)


def _lower(x: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    return x.to(dtype) if x is not None and x.dtype in DTYPES else x


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Any, dropout: float = 0.0, scaling: Optional[float] = None,
                      is_causal: Optional[bool] = None, softcap: Optional[float] = None,
                      s_aux: Optional[Tensor] = None, position_bias: Optional[Tensor] = None,
                      **others: Any) -> Tuple[Tensor, None]:
    """As sdpa_attention_forward of transformers. Without a mask is_causal (or the module's) holds;
    a mask says everything, as it does for eager attention."""
    rows, softcap = query.shape[2], softcap or 0.0
    structure = attention_mask if isinstance(attention_mask, Structure) else \
        getattr(attention_mask, "structure", None)
    causal, window, mask, used_kv, starts = None, (-1, -1), None, None, None
    if structure is not None:
        (_, _, expected, most), end = structure.shape, structure.end
        if rows != expected or not end <= key.shape[2] <= most:
            raise InvalidArgument(f"the mask is one of {expected} queries and {most} keys, the "
                                  f"layer has {rows} and {key.shape[2]}")
        if key.shape[2] > end:
            key, value = key[:, :, :end], value[:, :, :end]
        window = structure.window
        causal, mask, used_kv, starts = structure.options(position_bias is not None)
    elif attention_mask is not None:
        mask = attention_mask[..., :key.shape[2]]
    elif rows > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        causal = "top-left"
        if key.shape[2] > rows:  # a cache with room for more
            key, value = key[:, :, :rows], value[:, :, :rows]
    bias = position_bias
    if bias is not None and bias.shape[-1] > key.shape[2]:
        bias = bias[..., :key.shape[2]]
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = None, mask if bias is None else bias + mask
    if _any_autocast() and torch.is_autocast_enabled(query.device.type):
        lower = torch.get_autocast_dtype(query.device.type)
        query, key, value = (_lower(x, lower) for x in (query, key, value))

    compiling = _is_compiling()
    if not compiling:
        _seen.calls += 1
    reason = _refusal(query, key, value, bias, dropout)
    if reason is None:
        sink = None if s_aux is None else s_aux.detach().reshape(-1).to(torch.float32).contiguous()
        arguments = (query, key, value, causal, scaling, *window, softcap, bias, mask, sink,
                     used_kv, starts)
        if compiling or _is_tracing() or type(query) not in PLAIN:
            return _operator(*arguments), None
        try:
            return _compute(*arguments, structure), None
        except Unsupported as error:
            reason = str(error)
    if not _fallback:
        raise Unsupported(reason)
    if not compiling:
        _note(reason)
    if structure is not None:
        causal, mask = None, structure.dense(rows, key.shape[2], query.device)
    return _by_pytorch(query, key, value, causal is not None, scaling, softcap, bias, mask, s_aux,
                       dropout), None
