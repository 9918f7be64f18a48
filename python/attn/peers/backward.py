# SPDX-License-Identifier: Apache-2.0
"""The backward pass in the place of attention: shapes whose option is "backward".

A call computes dq, dk and dv from q, k, v, dO, O and LSE. Each side has the O and LSE of its own
forward pass, which was computed before.

Invariant: no forward pass is timed; an output is the three gradients, in the layout of q, k and v.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, List, Tuple

from .. import _library
from .._plans import Plan
from . import asking
from .grids import Shape
from .sides import Inputs, Side

KERNELS = {"flash": "flash_bwd", "cudnn": "cudnn", "fa3": "FlashAttnBwd|flash::",
           "sdpa": "scaled_dot_product"}
GRADIENTS = ("dq", "dk", "dv")
LAUNCHES = 2  # of ours: rows, tiles
MOST_PAIRS = 1 << 24  # of a head whose dK and dV are compared: each row needs all of its queries


def our_side(machine: Any, plan: Plan, forward: Plan, inputs: List[Inputs], d_o: List[Any],
             name: str, role: str, kernel: str) -> Side:
    torch, sets = machine.torch, []
    memory, address = machine.workspace(plan)
    workspace = ctypes.c_void_p(address)
    outputs = [tuple(torch.full_like(x, math.nan) for x in three) for three in inputs]
    kept: List[Any] = [memory]
    scratch, at_scratch = machine.workspace(forward)
    for (q, k, v), d_out, gradients in zip(inputs, d_o, outputs):
        o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
        addresses = [x.data_ptr() for x in (q, k, v, o, lse)]
        forward.run(_library.tensors(*addresses), ctypes.c_void_p(at_scratch), machine.stream())
        sets.append(_library.tensors(*addresses, d_o=d_out.data_ptr(), **{
            one: x.data_ptr() for one, x in zip(GRADIENTS, gradients)}))
        kept.append((o, lse))
    machine.synchronize()
    del scratch

    def call(index: int, stream: ctypes.c_void_p, owner: Any = kept) -> Any:
        plan.run(sets[index], workspace, stream)
        return outputs[index]
    side = Side(name, role, kernel, call, outputs=outputs, launches=LAUNCHES)
    side.kept = kept  # O and LSE, for the reference
    return side


def summed(gradients: Tuple[Any, Any, Any], heads_kv: int) -> Tuple[Any, Any, Any]:
    """dk and dv of repeated heads, as PyTorch's autograd adds them up."""
    dq, dk, dv = gradients
    if dk.shape[1] == heads_kv:
        return dq, dk, dv
    return (dq, *(x.unflatten(1, (heads_kv, -1)).sum(2) for x in (dk, dv)))


def repeated(x: Any, heads: int) -> Any:
    return x.repeat_interleave(heads // x.shape[1], 1)


def operator_side(machine: Any, name: str, shape: Shape, inputs: List[Inputs],
                  d_o: List[Any]) -> Side:
    """PyTorch's, by their operators: a CUDA graph does not capture autograd, whose stream is that of
    the forward pass. cuDNN shares heads, others take repeated ones."""
    aten, causal, sets = machine.torch.ops.aten, shape.causal, []
    for q, *kv in inputs:
        k, v = kv if name == "cudnn" else (repeated(x, shape.heads_q) for x in kv)
        if name == "flash":
            out, lse, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
            sets.append((q, k, v, out, lse, *rest[:4], 0.0, causal, *rest[4:6]))
        elif name == "cudnn":
            out, lse, *rest = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0,
                                                                       causal)
            sets.append((q, k, v, out, lse, *rest[4:6], None, *rest[:4], 0.0, causal))
        else:
            out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
            sets.append((q, k, v, out, lse, 0.0, causal))
    function = {"flash": aten._scaled_dot_product_flash_attention_backward,
                "cudnn": aten._scaled_dot_product_cudnn_attention_backward,
                "sdpa": aten._scaled_dot_product_flash_attention_for_cpu_backward}[name]

    def call(index: int, _: ctypes.c_void_p) -> Any:
        return summed(function(d_o[index], *sets[index]), shape.heads_kv)
    return Side(name, "peer", KERNELS[name], call)


def fa3_side(machine: Any, shape: Shape, inputs: List[Inputs], d_o: List[Any]) -> Side:
    """On (batch, seq, heads, dim), as its users have it; not deterministic, as it is by default."""
    torch, sets = machine.torch, []
    for three, d_out in zip(inputs, d_o):
        q, k, v, d = (x.transpose(1, 2).contiguous() for x in (*three, d_out))
        out, lse = machine.fa3.fwd(q, k, v, is_causal=shape.causal)[:2]
        sets.append(((d, q, k, v, out, lse),
                     {one: torch.empty_like(x) for one, x in zip(GRADIENTS, (q, k, v))}))

    def call(index: int, _: ctypes.c_void_p) -> Any:
        given, gradients = sets[index]
        machine.fa3.bwd(*given, **gradients, is_causal=shape.causal)
        return tuple(x.transpose(1, 2) for x in gradients.values())
    return Side("fa3", "peer", KERNELS["fa3"], call)


def peer_side(machine: Any, name: str, shape: Shape, inputs: List[Inputs],
              d_o: List[Any]) -> Side:
    if name == "fa3":
        return fa3_side(machine, shape, inputs, d_o)
    return operator_side(machine, name, shape, inputs, d_o)


def verify(machine: Any, case: Any, gradients: Tuple[Any, ...], which: int,
           count: int) -> Dict[str, Any]:
    """Sampled rows of dq against the double-precision reference; of dk and dv, too, in one head,
    where the sequence is short enough."""
    host = [x.contiguous().cpu() for x in (*case.inputs[which], *case.ours.kept[1 + which],
                                          case.extra.d_o[which], *gradients)]
    q, k, v, o, lse, d_o, dq, dk, dv = (x.data_ptr() for x in host)
    tensors = _library.tensors(q, k, v, o, lse, d_o=d_o, dq=dq, dk=dk, dv=dv)
    pairs = case.problem.seq_q * case.problem.seq_kv
    compared = range(3) if pairs <= MOST_PAIRS else range(1)
    found = [asking.verified_gradient(machine.context, case.problem, tensors, gradient,
                                      count if gradient == 0 else 8, machine.seed)
             for gradient in compared]
    worst = max(found, key=lambda one: (not one.passed, one.max_error / (one.max_allowed or 1.0)))
    return {"passed": all(one.passed for one in found), "set": which, "rows": count,
            "gradients": [GRADIENTS[n] for n in compared],
            "max_error": worst.max_error if math.isfinite(worst.max_error) else None,
            "max_allowed": worst.max_allowed if math.isfinite(worst.max_allowed) else None,
            "nans": sum(one.nans for one in found),
            "text": asking.in_words(machine.context, worst)}
