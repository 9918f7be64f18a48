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
from torch.utils.weak import WeakIdKeyDictionary

from ._arguments import NO_WINDOW
from ._attention import attention
from ._autograd import NO_GRADIENT, attention_lse, needs_gradient, train
from ._fast import DTYPES, MODEL, PLAIN, forward, key_rows
from ._library import InvalidArgument, Unsupported
from ._masks import Dense, Structure, learn, mask_function
from .torch import Replacement, _any_autocast, _is_compiling, _is_tracing, _rows

__all__ = ["Structure", "register", "seen"]

Tensor = torch.Tensor
NO_WEIGHTS = ("attn.transformers: output_attentions=True, but attention weights are never stored; "
              'attn_implementation="eager" has them')
_seen = Replacement()
_fallback = True
_sinks = WeakIdKeyDictionary()  # by the model's parameter: its state, and _sink() of that


def seen() -> Replacement:
    """The calls since register(), and of those that went to PyTorch the reasons. Calls inside a
    compiled graph are not counted."""
    return _seen


def register(name: str = "attn", fallback: bool = True) -> Replacement:
    """Makes attn_implementation=name known to transformers; gives what seen() gives from now on.

    fallback: calls that are not supported (dropout; on GPUs gradients in float32 or of a bias) go
    to PyTorch, with a warning at the first of each reason; without it they raise attn.Unsupported.
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


def _by_views(query: Tensor, key: Tensor, value: Tensor, step: int, most: Optional[int],
              **options: Any) -> Tensor:
    """What _fast.py leaves. step: rows from the keys of a sequence to the next one's; 0: the
    sequences are not packed."""
    batch, heads, rows, _ = query.shape
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if step:
        q, options["max_seqlen_q"], options["max_seqlen_kv"] = q.flatten(0, 1), rows, most
        total = (batch - 1) * step + key.shape[2]
        k, v = (x.as_strided((total, *x.shape[2:]), x.stride()[1:]) for x in (k, v))
    out = attention(q, k, v, layout="bshd", threads=torch.get_num_threads(), **options)
    return out.view(batch, rows, heads, -1)


def _compute(query: Tensor, key: Tensor, value: Tensor, causal: Optional[str],
             scale: Optional[float], left: int, right: int, softcap: float, bias: Optional[Tensor],
             mask: Optional[Tensor], sink: Optional[Tensor], used_kv: Optional[Tensor],
             padding: Optional[Structure] = None) -> Tensor:
    """(batch, rows, heads, dim), as the models go on with it.

    padding: one with runs. No mask then: all rows of K are one packed sequence after the other,
    each from its first visible key on, of which used_kv exist."""
    cu_q, cu_kv, rows, step, most = None, None, None, 0, None
    if padding is not None:
        shape, rows = key.shape, query.shape[2]
        step = key_rows(shape, key.stride())
        if not step or step != key_rows(value.shape, value.stride()):
            value = value.contiguous()
            if step != key_rows(shape, value.stride()):
                key = key.contiguous()
                step = key_rows(shape, key.stride())
        cu_q, cu_kv, used_kv = padding.boundaries(rows, step, (shape[0] - 1) * step + shape[2])
        # The longest: on a GPU that of the keys which exist; the CPU counts those between them too.
        most = shape[2] if query.is_cuda else step + shape[2]
    out = forward(query, key, value, causal, scale, bias, mask, MODEL, True, None, None, "bhsd",
                  (left, right), softcap, None, sink, used_kv, cu_q, cu_kv, rows, most)
    return out if out is not None else _by_views(
        _rows(query), _rows(key), _rows(value), step, most, causal=causal, scale=scale,
        window=(left, right), softcap=softcap, bias=bias, mask=mask, sink=sink, used_kv=used_kv,
        cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv)


@torch.library.custom_op("attn::attention", mutates_args=(), schema=(
    "(Tensor query, Tensor key, Tensor value, str? causal, float? scale, int left, int right, "
    "float softcap, Tensor? bias, Tensor? mask, Tensor? sink, Tensor? used_kv) -> Tensor"))
def _operator(query, key, value, causal, scale, left, right, softcap, bias, mask, sink, used_kv):
    return _compute(query, key, value, causal, scale, left, right, softcap, bias, mask, sink,
                    used_kv)


@_operator.register_fake
def _(query, key, value, causal, scale, left, right, softcap, bias, mask, sink, used_kv):
    batch, heads, rows, _ = query.shape
    return query.new_empty((batch, rows, heads, value.shape[3]))


def _compute_train(query: Tensor, key: Tensor, value: Tensor, causal: Optional[str],
                   scale: Optional[float], left: int, right: int, softcap: float,
                   bias: Optional[Tensor], mask: Optional[Tensor], sink: Optional[Tensor],
                   used_kv: Optional[Tensor], plain: bool) -> Tensor:
    """As _compute, with gradients. plain: not as an operator."""
    query, key, value = _rows(query), _rows(key), _rows(value)
    if plain:
        out = train(query, key, value, causal, scale, bias, mask, sink, used_kv, (left, right),
                    softcap)
        if out is None:
            raise Unsupported(NO_GRADIENT)
    else:
        out = attention_lse(query, key, value, bias, sink, mask, used_kv, causal, scale, left,
                            right, softcap)[0]
    return out.transpose(1, 2)


# ---- what it does not compute ------------------------------------------------------------------


def _refusal(query: Tensor, bias: Optional[Tensor], dropout: float,
             training: bool) -> Optional[str]:
    if dropout > 0.0:
        return f"dropout is {dropout}, expected 0: there is no dropout"
    if training and query.is_cuda and needs_gradient(bias):
        return "a bias on a GPU requires a gradient, which no GPU kernel computes yet"
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


def _sink(s_aux: Tensor, plain: bool, training: bool) -> Tensor:
    """One per head, as the library takes it. Of a parameter in another dtype it is kept: converted
    in every layer of every step it would cost as much as a short attention."""
    if training:
        return s_aux.reshape(-1).to(torch.float32).contiguous()
    if not plain or s_aux.is_inference():  # no versions to compare
        return s_aux.detach().reshape(-1).to(torch.float32).contiguous()
    state = s_aux._version, s_aux.data_ptr()
    known = _sinks.get(s_aux)
    if known is None or known[0] != state:
        known = state, s_aux.detach().reshape(-1).to(torch.float32).contiguous()
        _sinks[s_aux] = known
    return known[1]


def _continued(module: torch.nn.Module, key: Tensor, value: Tensor, mask: Any, cache: Any,
               step: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
    """All keys and values of a step of continuous batching, whose mask separates the sequences."""
    if mask is None or step.get("block_table") is not None:
        raise Unsupported("continuous batching for flash attention, expected for sdpa")
    return cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=step)


def _selected(module: torch.nn.Module, mask: Any, indices: Optional[Tensor],
              blocks: Optional[Tensor], query: Tensor, key: Tensor) -> Tensor:
    """The mask without the keys that an indexer did not choose for a query: indices (batch, rows,
    chosen), or blocks of keys (batch, groups, rows, chosen); -1 is none. For eager attention the
    layer itself does this."""
    (batch, heads, rows, _), length = query.shape, key.shape[2]
    chosen, size = (indices.unsqueeze(1), 1) if blocks is None else \
        (blocks, module.indexer.block_size)
    count = -(-length // size)
    chosen = torch.where((chosen < 0) | (chosen >= count), count, chosen).long()
    seen = torch.zeros(*chosen.shape[:3], count + 1, dtype=torch.bool, device=query.device)
    seen = seen.scatter(-1, chosen, True)[..., :count]
    if size > 1:
        seen = seen.repeat_interleave(size, -1)[..., :length]
    if seen.shape[1] not in (1, heads):
        seen = seen.repeat_interleave(heads // seen.shape[1], 1)
    if mask is None:
        mask = torch.ones(rows, length, dtype=torch.bool,
                          device=query.device).tril(length - rows)
    elif type(mask) is Structure or hasattr(mask, "structure"):
        mask = getattr(mask, "structure", mask).dense(rows, length, query.device)
    if mask.dtype == torch.bool:
        return seen & mask[..., :length]
    return mask[..., :length].masked_fill(~seen, torch.finfo(mask.dtype).min)


def _placed(mask: Structure, query: Tensor, key: Tensor,
            value: Tensor) -> Tuple[Tensor, Tensor]:
    """The keys and values that a mask is about; InvalidArgument if it is one of others."""
    (_, _, expected, most), end = mask.shape, mask.end
    rows, length = query.shape[2], key.shape[2]
    full = mask.causal is None and mask.window == NO_WINDOW
    if full and mask.keys is None and end == most:  # nothing to place
        return key, value
    if not (rows == expected or (full and expected == 1)) or not end <= length <= most:
        raise InvalidArgument(f"the mask is one of {expected} queries and {most} keys, the layer "
                              f"has {rows} and {length}")
    return (key, value) if length == end else (key[:, :, :end], value[:, :, :end])


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Any, dropout: float = 0.0, scaling: Optional[float] = None,
                      is_causal: Optional[bool] = None, softcap: Optional[float] = None,
                      s_aux: Optional[Tensor] = None, position_bias: Optional[Tensor] = None,
                      indices: Optional[Tensor] = None, block_indices: Optional[Tensor] = None,
                      cache: Any = None, **others: Any) -> Tuple[Tensor, None]:
    """As eager attention of transformers: the mask says everything, and None hides nothing, unless
    the call says is_causal=True. (sdpa asks the module then, and not all modules are right.)"""
    rows, structure, bias, softcap = query.shape[2], None, position_bias, softcap or 0.0
    causal, left, right, mask, used_kv, padding = None, -1, -1, None, None, None
    plain = not (_is_compiling() or _is_tracing()) and type(query) in PLAIN
    if others.get("output_attentions") and plain:
        warnings.warn(NO_WEIGHTS, stacklevel=2)
    if type(attention_mask) is Dense:
        attention_mask = attention_mask.tensor
    if cache is not None:
        key, value = _continued(module, key, value, attention_mask, cache, others)
    if indices is not None or block_indices is not None:
        attention_mask = _selected(module, attention_mask, indices, block_indices, query, key)
    if attention_mask is None:
        if rows > 1 and is_causal:
            causal = "top-left"
            if key.shape[2] > rows:  # a cache with room for more
                key, value = key[:, :, :rows], value[:, :, :rows]
    elif type(attention_mask) is Structure or hasattr(attention_mask, "structure"):
        structure = getattr(attention_mask, "structure", attention_mask)
        key, value = _placed(structure, query, key, value)
        causal = structure.causal
    if attention_mask is None or (structure is not None and structure.plain):
        if plain and bias is s_aux is None and not (dropout or _any_autocast()):
            # Nearly every step of generate(). What it leaves is looked at below.
            out = forward(query, key, value, causal, scaling, None, None, MODEL, True, None, None,
                          "bhsd", NO_WINDOW, softcap)
            if out is not None:
                _seen.calls += 1
                return out, None
    if query.shape[0] != key.shape[0]:  # broadcast, as by torch.matmul
        batch = max(query.shape[0], key.shape[0])
        query, key, value = (x if x.shape[0] == batch else
                             x.expand(batch, -1, -1, -1).contiguous() for x in (query, key, value))
    training = needs_gradient(query, key, value, position_bias, attention_mask, s_aux)
    if structure is not None:
        left, right = structure.window
        if structure.keys is not None and structure.shape[0] != query.shape[0]:  # broadcast
            causal, left, right = None, -1, -1
            mask = structure.dense(rows, key.shape[2], query.device)
        elif (structure.runs is not None and plain and bias is None and query.numel()
                and not training):
            padding = structure
        else:  # a bias counts keys from the first one on, so that none may be left out
            causal, mask, used_kv = structure.options()
    elif attention_mask is not None:
        mask = attention_mask if attention_mask.shape[-1] == key.shape[2] else \
            attention_mask[..., :key.shape[2]]
    if bias is not None and bias.shape[-1] > key.shape[2]:
        bias = bias[..., :key.shape[2]]
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = None, mask if bias is None else bias + mask
    if _any_autocast() and torch.is_autocast_enabled(query.device.type):
        lower = torch.get_autocast_dtype(query.device.type)
        query, key, value = (_lower(x, lower) for x in (query, key, value))

    compiling = not plain and _is_compiling()
    if compiling:
        _seen.compiled = True
    else:
        _seen.calls += 1
    reason = _refusal(query, bias, dropout, training)
    if reason is None:
        arguments = (query, key, value, causal, scaling, left, right, softcap, bias, mask,
                     None if s_aux is None else _sink(s_aux, plain, training), used_kv)
        try:
            if training:
                return _compute_train(*arguments, plain), None
            return (_compute(*arguments, padding) if plain else _operator(*arguments)), None
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
