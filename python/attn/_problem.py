# SPDX-License-Identifier: Apache-2.0
"""Problems: what the arguments of a call amount to, as the key of its plan.

Invariant: all that the problem depends on is in the key of the plan cache (Key), and the problem
is made from the key alone; addresses are not in it. NumPy is not needed.
"""

from __future__ import annotations

from ctypes import byref, sizeof
from typing import NamedTuple, Optional, Sequence, Tuple

from . import _library
from ._library import AUTO, Problem
from ._plans import Plan, context_of, plan_of

Strides = Tuple[int, ...]


class Key(NamedTuple):
    """A problem as Python compares it. Strides are (batch, head, row), of bias also col."""
    device: str
    threads: int
    variant: Optional[str]
    dtype: int
    sizes: Tuple[int, ...]  # batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v
    q: Strides
    k: Strides
    v: Strides
    o: Strides
    scale: Optional[float]
    causal: int = 0
    window: Tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi: Optional[int] = None  # the batch stride of the slopes
    sink: bool = False
    bias: Optional[Tuple[int, Strides]] = None  # dtype, strides
    packed: Optional[Tuple[int, int]] = None  # total_q, total_kv
    used_kv: bool = False
    tensor_cores: int = 0
    alignment: int = 16


def _problem(key: Key) -> Problem:
    p = Problem()
    _library.load().attn_problem_init_sized(byref(p), sizeof(p))
    p.dtype = key.dtype
    (p.batch, p.heads_q, p.heads_kv, p.seq_q, p.seq_kv, p.head_dim, p.head_dim_v) = key.sizes
    p.q, p.k, p.v, p.o = key.q, key.k, key.v, key.o
    if key.scale is not None:
        p.scale = key.scale
    p.causal = key.causal
    p.window_left, p.window_right = key.window
    p.softcap = key.softcap
    if key.alibi is not None:
        p.alibi, p.alibi_batch_stride = True, key.alibi
    p.sink = key.sink
    if key.bias is not None:
        p.bias, p.bias_dtype, p.bias_strides = True, key.bias[0], key.bias[1]
    if key.packed is not None:
        p.packed = True
        p.total_q, p.total_kv = key.packed
    p.used_kv = key.used_kv
    p.tensor_cores = key.tensor_cores
    p.alignment = key.alignment
    return p


def plan_for(key: Key) -> Plan:
    return plan_of(key, lambda: Plan(context_of(key.device, key.threads), _problem(key),
                                     key.variant))


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
