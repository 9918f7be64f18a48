# SPDX-License-Identifier: Apache-2.0
"""The options of a grid's shapes: what they mean to libattn, to SDPA's mask and to FlexAttention.

A shape's `option` is words: "backward" (backward.py), "sink", "alibi", "bias", "window1024",
"softcap50", "mask dense", "mask padding", "mask causal+padding", "packed 32x100-2000", "mla",
"paged16", "fp8", "paged16 step 60x1@500-16000+2x512@8192" (serving.py); several may stand together.

Invariant: all sides compute the same formula; a side that cannot is left out, never approximated.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from .._library import Problem
from .sides import Inputs
from . import serving
from .grids import Shape, lengths_of

ScoreMod = Callable[..., Any]


class Extra:
    """What an option adds to a case."""

    def __init__(self) -> None:
        self.fields: Dict[str, Any] = {}    # of the problem
        self.tensors: Dict[str, Any] = {}   # by the names of attn_tensors
        self.attn_mask: Any = None          # for SDPA
        self.only_native = False            # SDPA has no way to say it
        self.score_mod: Optional[ScoreMod] = None
        self.mask_mod: Optional[ScoreMod] = None
        self.lengths: Optional[List[int]] = None  # packed sequences
        self.visible = 1.0                  # part of the scores that a mask leaves
        self.backward = False               # gradients
        self.v_columns: Optional[int] = None  # of K, which are V
        self.d_o: List[Any] = []            # ... of each set
        self.stores: List[serving.Store] = []  # K and V as our side reads them, one after the other
        self.rounded: Optional[Callable[[Any], Any]] = None  # K and V to what a cache can hold
        self.step: Optional[serving.Step] = None

    def own(self, inputs: Inputs) -> Inputs:
        """What our side reads."""
        q, k, v = inputs
        for store in self.stores:
            k, v = store(k), store(v)
        return q, k, v

    def set(self, problem: Problem) -> None:
        for name, value in self.fields.items():
            if isinstance(value, tuple):
                part = getattr(problem, name)
                part.batch, part.head, part.row, part.col = value
            else:
                setattr(problem, name, value)
        if self.fields.get("bias"):
            problem.bias_dtype = problem.dtype


def _broadcast(tensor: Any) -> Tuple[int, ...]:
    return tuple(0 if n == 1 else step for n, step in zip(tensor.shape, tensor.stride()))


def _window(extra: Extra, left: int) -> None:
    """`left` keys, the row's own included, as transformers counts."""
    extra.fields["window_left"] = left - 1
    extra.only_native = True
    extra.mask_mod = lambda b, h, q, k: (q >= k) & (q - k < left)


def _sink(extra: Extra, torch: Any, shape: Shape, device: Any) -> None:
    extra.fields["sink"] = True
    extra.tensors["sink"] = torch.randn(shape.heads_q, device=device)
    extra.only_native = True


def _alibi(extra: Extra, torch: Any, shape: Shape, device: Any) -> None:
    slopes = 2.0 ** (-8.0 * torch.arange(1, shape.heads_q + 1, device=device) / shape.heads_q)
    extra.fields["alibi"] = True
    extra.tensors["alibi_slopes"] = slopes.float()
    extra.only_native = True
    slope = extra.tensors["alibi_slopes"]
    extra.score_mod = lambda s, b, h, q, k: s - slope[h] * (q - k).abs()


def _bias(extra: Extra, torch: Any, shape: Shape, device: Any, dtype: Any) -> None:
    """Of the dtype of Q, which the problem has already."""
    bias = torch.randn(1, shape.heads_q, shape.seq_q, shape.seq_kv, device=device, dtype=dtype)
    extra.fields.update(bias=True, bias_strides=_broadcast(bias))
    extra.tensors["bias"] = extra.attn_mask = bias
    extra.score_mod = lambda s, b, h, q, k: s + bias[0, h, q, k]


def _mask(extra: Extra, torch: Any, shape: Shape, device: Any, kind: str) -> None:
    """dense: half of the keys, at random; padding: a length for each sequence; causal+padding:
    what transformers passes for a padded batch."""
    rows = torch.arange(shape.seq_q, device=device)[:, None]
    keys = torch.arange(shape.seq_kv, device=device)
    lengths = torch.linspace(shape.seq_kv, shape.seq_kv // 2, shape.batch, device=device).int()
    if kind == "dense":
        mask = torch.rand(1, 1, shape.seq_q, shape.seq_kv, device=device) < 0.5
        mask |= rows == keys
        extra.score_mod = lambda s, b, h, q, k: torch.where(mask[0, 0, q, k], s, -float("inf"))
    else:
        mask = (keys < lengths[:, None])[:, None, None, :]
        causal = kind == "causal+padding"
        if causal:
            mask = mask & (keys <= rows)
        extra.mask_mod = (lambda b, h, q, k: (k < lengths[b]) & (k <= q)) if causal else \
            (lambda b, h, q, k: k < lengths[b])
    extra.fields.update(mask=True, mask_strides=_broadcast(mask))
    extra.tensors["mask"] = extra.attn_mask = mask
    extra.visible = float(mask.float().mean())


def _packed(extra: Extra, torch: Any, device: Any, text: str) -> None:
    extra.lengths = lengths_of(text)
    ends = torch.tensor([0, *extra.lengths]).cumsum(0).int().to(device)
    extra.tensors.update(cu_seqlens_q=ends, cu_seqlens_kv=ends)
    longest, total = max(extra.lengths), sum(extra.lengths)
    extra.fields.update(packed=True, batch=len(extra.lengths), seq_q=longest, seq_kv=longest,
                        total_q=total, total_kv=total)
    extra.only_native = True


def _mla(extra: Extra, torch: Any, shape: Shape, device: Any) -> None:
    """Pages of 64 in the order of memory, so that peers have the same K without pages."""
    pages = shape.seq_kv // 64
    extra.v_columns = 512
    extra.fields.update(v_in_k=True, head_dim_v=512, used_kv=True, page_size=64,
                        num_pages=shape.batch * pages)
    extra.tensors["block_table"] = torch.arange(shape.batch * pages, device=device).int()
    extra.tensors["used_kv"] = torch.full((shape.batch,), shape.seq_kv, device=device).int()


def extra_of(torch: Any, shape: Shape, dtype: Any, device: Any) -> Extra:
    """The option of a shape; ValueError with its name if it is none."""
    extra, words = Extra(), shape.option.split()
    while words:
        word = words.pop(0)
        if word.startswith("window"):
            _window(extra, int(word[len("window"):]))
        elif word.startswith("softcap"):
            cap = float(word[len("softcap"):])
            extra.fields["softcap"] = cap
            extra.only_native = True
            extra.score_mod = lambda s, b, h, q, k: cap * torch.tanh(s / cap)
        elif word == "backward":
            extra.backward = True
        elif word.startswith("paged"):
            size = int(word[len("paged"):])
            if words[:1] == ["step"]:
                serving.step(extra, torch, device, words[1], size)
                del words[:2]
            else:
                serving.paged(extra, torch, shape, device, size)
        elif word == "fp8":
            serving.fp8(extra, torch, device, dtype)
        elif word == "mla":
            _mla(extra, torch, shape, device)
        elif word == "sink":
            _sink(extra, torch, shape, device)
        elif word == "alibi":
            _alibi(extra, torch, shape, device)
        elif word == "bias":
            _bias(extra, torch, shape, device, dtype)
        elif word == "mask" and words:
            _mask(extra, torch, shape, device, words.pop(0))
        elif word == "packed" and words:
            _packed(extra, torch, device, words.pop(0))
        else:
            raise ValueError(f"{shape.option!r} has {word!r}, which is no option")
    return extra
