# SPDX-License-Identifier: Apache-2.0
"""What the runner queries from libattn besides calls: variants, device, reference.

Invariant: a failure is an exception with the function's name and the library's message.
"""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any, List, Optional

from .._library import (CAUSAL, UNSUPPORTED, AttnError, Comparison, Device, Error, Problem, Row,
                        Variant, fail)
from .._plans import Context
from .grids import Shape


def call(context: Context, function: str, *arguments: Any) -> None:
    error = Error()
    status = getattr(context.lib, function)(*arguments, byref(error))
    if status:
        fail(status, Error(f"{function}: ".encode() + error.text[:300]))


def device(context: Context) -> Device:
    found = Device(size=ctypes.sizeof(Device))
    call(context, "attn_device_get", context.handle, byref(found))
    return found


def variants(context: Context, function: str = "attn_variant_get") -> List[Variant]:
    """Every variant of the context, best first, also those that this machine cannot run."""
    found: List[Variant] = []
    while True:
        variant = Variant(size=ctypes.sizeof(Variant))
        try:
            call(context, function, context.handle, len(found), byref(variant))
        except AttnError:
            if not found and function == "attn_variant_get":
                raise
            return found
        found.append(variant)


def refusal(context: Context, variant: str, problem: Problem) -> Optional[str]:
    """None if the variant of that name computes the problem here, else the reason."""
    error = Error()
    status = context.lib.attn_variant_check(context.handle, variant.encode(), byref(problem),
                                            byref(error))
    if status in (0, UNSUPPORTED):
        return error.text.decode(errors="replace") if status else None
    fail(status, error)


def problem_of(context: Context, shape: Shape, dtype: int) -> Problem:
    problem = Problem()
    context.lib.attn_problem_init_sized(byref(problem), ctypes.sizeof(problem))
    problem.dtype = dtype
    problem.batch = shape.batch
    problem.heads_q, problem.heads_kv = shape.heads_q, shape.heads_kv
    problem.seq_q, problem.seq_kv, problem.head_dim = shape.seq_q, shape.seq_kv, shape.head_dim
    problem.causal = CAUSAL["bottom-right" if shape.causal else None]
    return problem


def verified(context: Context, problem: Problem, tensors: bytes, count: int,
             seed: int) -> Comparison:
    """The comparison of `count` sampled rows with the double-precision reference."""
    rows = (Row * count)()
    result = Comparison(size=ctypes.sizeof(Comparison))
    call(context, "attn_rows_sample", byref(problem), seed, rows, count)
    call(context, "attn_verify", context.handle, byref(problem), tensors, rows, count,
         byref(result))
    return result


def verified_gradient(context: Context, problem: Problem, tensors: bytes, gradient: int,
                      count: int, seed: int) -> Comparison:
    """Likewise of dq (0), dk (1) or dv (2); of the latter rows of one head."""
    rows = (Row * count)()
    result = Comparison(size=ctypes.sizeof(Comparison))
    call(context, "attn_gradient_sample", byref(problem), gradient, seed, rows, count)
    for row in rows:
        if gradient:
            row.batch, row.head = rows[0].batch, rows[0].head
    call(context, "attn_verify_backward", context.handle, byref(problem), tensors, gradient, rows,
         count, byref(result))
    return result


def in_words(context: Context, comparison: Comparison) -> str:
    line = ctypes.create_string_buffer(1024)
    context.lib.attn_comparison_print(byref(comparison), line, len(line))
    return line.value.decode()
