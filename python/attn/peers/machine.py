# SPDX-License-Identifier: Apache-2.0
"""PyTorch and libattn on one device, as measure.py needs them: cases, results, times.

Machine is what a CPU and a GPU have in common; cpu.py and gpu.py have the rest of it.

Invariant: a timed side allocates and computes the way its users would, and both sides go through
the same sets of inputs and keep as many outputs alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import time
from typing import (Any, Callable, ContextManager, Dict, List, Optional, Pattern, Sequence,
                    Tuple)

from .. import _library
from .._library import BF16, FP16, FP32, InvalidArgument, Problem
from .._plans import Context, Plan
from . import asking, backward, serving
from .grids import Shape
from .sides import Inputs, Side
from .options import Extra, extra_of

ROWS_VERIFIED = 96
DTYPES = {"fp32": ("float32", FP32), "fp16": ("float16", FP16), "bf16": ("bfloat16", BF16)}


class NotRun(RuntimeError):
    """This machine cannot do what was requested."""


class DeviceLost(RuntimeError):
    """The GPU answers nothing any more: what follows would be noise."""


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__


def finite(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


def per_call_us(seconds: float, calls: int) -> float:
    """Whole nanoseconds: the clocks do not tell more, and the file stays small."""
    return round(seconds * 1e6 / calls, 3)


def parts_of(outputs: Sequence[Any]) -> List[Any]:
    """Tensors, of outputs that are tensors or tuples of them."""
    return [part for one in outputs for part in (one if isinstance(one, tuple) else (one,))]


class Case:
    """One shape with its inputs on the device and all sides that compute it."""

    def __init__(self, problem: Problem, extra: Extra, inputs: List[Inputs],
                 variant: str, sides: List[Side], hosts: List[Side], flops: float) -> None:
        self.problem, self.extra, self.inputs, self.variant = problem, extra, inputs, variant
        self.ours, *self.others = sides
        self.hosts, self.flops, self.sets = hosts, flops, len(inputs)
        q, k, v = inputs[0]
        cached = k.numel() + (0 if extra.v_columns else v.numel())
        self.set_bytes = (q.numel() + q.numel() // q.shape[-1] * v.shape[-1]) * q.element_size() \
            + cached * (1 if "dtype_kv" in extra.fields else k.element_size())
        if extra.d_o:
            self.set_bytes *= 2

    def close(self) -> None:
        del self.extra, self.inputs, self.ours, self.others, self.hosts


def beside(variant: Optional[str]) -> Optional[Pattern[str]]:
    """What `all` of --variant means: a pattern of names; None: not requested."""
    if variant is None or variant.partition("/")[0] != "all":
        return None
    try:
        return re.compile(variant.partition("/")[2])
    except re.error as error:
        raise InvalidArgument(f"--variant: {variant!r} has no regular expression: {error}") from None


class Machine:
    """One device as PyTorch and libattn see it. variant: None, a name, "all", or
    "all/REGEX"."""

    modes: Tuple[str, ...] = ("eager",)
    gpu: Optional[str] = None
    l2_bytes: Optional[int] = None
    most_sets = 1
    threads = 0  # of the CPU

    def __init__(self, torch: Any, context: Context, variant: Optional[str], seed: int,
                 device: str) -> None:
        self.torch, self.context, self.device = torch, context, torch.device(device)
        self.variant, self.seed = variant, seed
        self.beside = beside(variant)
        self.entries = {known.name.decode(): (known.entry or b"").decode()
                        for known in asking.variants(context)}
        self.entries_backward = {known.name.decode(): (known.entry or b"").decode()
                                 for known in asking.variants(context, "attn_variant_get_backward")}
        if variant is not None and self.beside is None \
                and variant not in {**self.entries, **self.entries_backward}:
            raise InvalidArgument(f"--variant: {variant!r} is no variant of this library")

    # -- building a case

    def case(self, shape: Shape, dtype: str, peers: Sequence[str], sets: int) -> Case:
        problem = asking.problem_of(self.context, shape, DTYPES[dtype][1])
        torch_dtype = getattr(self.torch, DTYPES[dtype][0])
        extra = extra_of(self.torch, shape, torch_dtype, self.device)
        extra.set(problem)
        flops = self.context.lib.attn_problem_flops(problem) * extra.visible
        if extra.lengths:  # the library does not read them
            flops *= sum(n * n for n in extra.lengths) / problem.batch / max(extra.lengths) ** 2
        if extra.step:
            flops = 4 * extra.step.scores() * shape.heads_q * shape.head_dim
        if problem.packed:
            for part, heads in ((problem.q, shape.heads_q), (problem.k, shape.heads_kv),
                                (problem.v, shape.heads_kv), (problem.o, shape.heads_q)):
                part.head, part.row = shape.head_dim, heads * shape.head_dim
        if problem.page_size and extra.stores:
            serving.strides_of_pages(problem, shape.heads_kv, shape.head_dim)
        if extra.backward:
            flops *= 2.5  # five GEMMs for two
        self.check_size(flops)
        plans = self.plans(problem, extra.backward)  # first: a refusal costs no memory
        generator = self.torch.Generator(device=self.device)
        generator.manual_seed(self.seed)

        def random(heads: int, seq: int) -> Any:
            sizes = (shape.batch, heads, seq, shape.head_dim)
            if problem.packed:  # rows of all heads together, as packed batches come
                sizes = (shape.batch, seq, heads, shape.head_dim)
            made = self.torch.randn(sizes, device=self.device, dtype=torch_dtype,
                                    generator=generator)
            return made.transpose(1, 2) if problem.packed else made

        inputs = [(random(shape.heads_q, shape.seq_q), random(shape.heads_kv, shape.seq_kv),
                   random(shape.heads_kv, shape.seq_kv)) for _ in range(sets)]
        if extra.rounded:
            inputs = [(q, extra.rounded(k), extra.rounded(v)) for q, k, v in inputs]
        theirs, their_shape = inputs, shape
        if extra.v_columns:  # SDPA has K and V of every head, expanded
            inputs = [(q, k, k[..., :extra.v_columns]) for q, k, _ in inputs]
            theirs = [(q, k.expand(-1, shape.heads_q, -1, -1), v.expand(-1, shape.heads_q, -1, -1))
                      for q, k, v in inputs]
            their_shape = shape._replace(heads_kv=shape.heads_q)
        if extra.backward:
            extra.d_o = [random(shape.heads_q, shape.seq_q) for _ in range(sets)]
            sides = self.backward_sides(plans, problem, shape, inputs, extra.d_o, peers)
        else:
            sides = [self.our_side(plan, inputs, extra, plan is plans[0]) for plan in plans]
            if extra.step:
                sides.append(self.separate_side(problem, inputs, extra))
            elif extra.stores:
                plain = Plan(self.context, bytes(asking.problem_of(self.context, shape,
                                                                   problem.dtype)))
                sides.append(self.our_side(plain, inputs, Extra(), False, "plain"))
            sides += [self.peer_side(name, their_shape, theirs, extra) for name in peers
                      if self.can(name, shape, extra)]
        hosts = [] if shape.option else self.host_sides(shape, inputs)
        return Case(problem, extra, inputs, plans[0].variant, sides, hosts, flops)

    def check_size(self, flops: float) -> None:
        """NotRun where a call takes too long here to be worth anyone's time."""

    def backward_sides(self, plans: List[Plan], problem: Problem, shape: Shape,
                       inputs: List[Inputs], d_o: List[Any], peers: Sequence[str]) -> List[Side]:
        forward = Plan(self.context, bytes(problem))
        sides = [backward.our_side(self, plan, forward, inputs, d_o,
                                   *(("ours", "ours") if plan is plans[0]
                                     else (plan.variant, "variant")),
                                   self.entries_backward[plan.variant]) for plan in plans]
        return sides + [backward.peer_side(self, name, shape, inputs, d_o) for name in peers
                        if name in backward.KERNELS
                        and (name != "fa3" or getattr(self, "fa3", None) is not None)]

    def plans(self, problem: Problem, backward: bool = False) -> List[Plan]:
        """The plan's choice (or the requested one) first, then what `all` adds."""
        direction = _library.BACKWARD if backward else _library.FORWARD
        if self.beside is None:
            return [Plan(self.context, bytes(problem), self.variant, direction)]
        plans = [Plan(self.context, bytes(problem), None, direction)]
        return plans + [Plan(self.context, bytes(problem), name, direction)
                        for name in (self.entries_backward if backward else self.entries)
                        if name != plans[0].variant and self.beside.search(name)
                        and not asking.refusal(self.context, name, problem)]

    def workspace(self, plan: Plan) -> Tuple[Any, int]:
        """(owner, address) of memory for calls of the plan."""
        memory = self.torch.empty(plan.size + 256, dtype=self.torch.uint8, device=self.device)
        return memory, (memory.data_ptr() + 255) // 256 * 256

    def can(self, name: str, shape: Shape, extra: Extra) -> bool:
        """Whether that peer computes the same formula."""
        return not extra.only_native

    def our_side(self, plan: Plan, inputs: List[Inputs], extra: Extra, chosen: bool,
                 name: Optional[str] = None) -> Side:
        outputs = [self.torch.full_like(q[..., :v.shape[-1]], math.nan)  # poisoned
                   for q, _, v in inputs]
        memory, address = self.workspace(plan)
        workspace = ctypes.c_void_p(address)
        others = {name: tensor.data_ptr() for name, tensor in extra.tensors.items()}
        own = [extra.own(three) for three in inputs]
        tensors = [_library.tensors(*(t.data_ptr() for t in (*three, o)), **others)
                   for three, o in zip(own, outputs)]

        def call(index: int, stream: ctypes.c_void_p, owner: Any = (memory, own)) -> Any:
            plan.run(tensors[index], workspace, stream)
            return outputs[index]

        name, role = ("ours", "ours") if chosen else (name or plan.variant, "variant")
        return Side(name, role, self.entries[plan.variant], call, outputs=outputs)

    def separate_side(self, problem: Problem, inputs: List[Inputs], extra: Extra) -> Side:
        """A call for each group of a step: what a step is without packed calls."""
        outputs = [self.torch.full_like(q, math.nan) for q, _, _ in inputs]
        own, groups = [extra.own(three) for three in inputs], []
        for part, sequence, row in serving.separate_problems(problem, extra.step):
            plan = Plan(self.context, bytes(part))
            groups.append((plan, self.workspace(plan),
                           [serving.separate_tensors(extra, *three, o, sequence, row)
                            for three, o in zip(own, outputs)]))

        def call(index: int, stream: ctypes.c_void_p, owner: Any = own) -> Any:
            for plan, (_, workspace), tensors in groups:
                plan.run(tensors[index], ctypes.c_void_p(workspace), stream)
            return outputs[index]
        return Side("separate", "variant", [self.entries[plan.variant] for plan, _, _ in groups],
                    call, outputs=outputs)

    def sdpa_side(self, name: str, role: str, kernel: Optional[str], shape: Shape,
                  inputs: List[Inputs],
                  context: Callable[[], ContextManager[Any]] = contextlib.nullcontext,
                  sdpa: Optional[Callable[..., Any]] = None, mask: Any = None) -> Side:
        sdpa = sdpa or self.torch.nn.functional.scaled_dot_product_attention
        causal, grouped = shape.causal, shape.heads_q != shape.heads_kv
        if causal and (shape.seq_q != shape.seq_kv or mask is not None):
            rows = self.torch.ones(shape.seq_q, shape.seq_kv, dtype=self.torch.bool,
                                   device=self.device).tril(shape.seq_kv - shape.seq_q)
            causal, mask = False, rows if mask is None else mask.masked_fill(~rows, -math.inf)

        def call(index: int, _: ctypes.c_void_p) -> Any:
            return sdpa(*inputs[index], attn_mask=mask, is_causal=causal, enable_gqa=grouped)
        return Side(name, role, kernel, call, context)

    def peer_side(self, name: str, shape: Shape, inputs: List[Inputs],
                  extra: Extra) -> Side:
        raise NotImplementedError

    def host_sides(self, shape: Shape, inputs: List[Inputs]) -> List[Side]:
        """Whose cost for the caller is of interest: the operator, and PyTorch's as it chooses."""
        import attn.torch
        return [self.sdpa_side("attn.torch.sdpa", "host", None, shape, inputs,
                               sdpa=attn.torch.sdpa),
                self.sdpa_side("sdpa", "host", None, shape, inputs)]

    # -- results

    def outputs(self, side: Side, case: Case) -> List[Any]:
        """One plain call for each set; the memory that a peer is likely to get holds NaN."""
        results, stream = [], self.stream()
        poison = [self.torch.full_like(q, math.nan) for q, _, _ in case.inputs]
        del poison
        with side.context():
            for index in range(case.sets):
                results.append(side.call(index, stream))
        self.synchronize()
        return results

    def verify(self, case: Case, outputs: Sequence[Any], which: int) -> Dict[str, Any]:
        """Sampled rows of one set against the double-precision reference."""
        if case.extra.backward:
            return backward.verify(self, case, outputs[which], which, ROWS_VERIFIED)
        host = [tensor.cpu() for tensor in (*case.extra.own(case.inputs[which]),
                                            outputs[which])]
        if case.extra.v_columns:
            host[2] = host[1]
        others = {name: tensor.cpu() for name, tensor in case.extra.tensors.items()}
        tensors = _library.tensors(*(tensor.data_ptr() for tensor in host),
                                   **{name: tensor.data_ptr() for name, tensor in others.items()})
        found = asking.verified(self.context, case.problem, tensors, ROWS_VERIFIED, self.seed)
        return {"passed": bool(found.passed), "set": which, "rows": ROWS_VERIFIED,
                "max_error": finite(found.max_error), "max_allowed": finite(found.max_allowed),
                "nans": found.nans, "text": asking.in_words(self.context, found)}

    def difference(self, outputs: Sequence[Any], expected: Sequence[Any]) -> float:
        """The largest distance of a row of O from the expected one, over that one's length;
        infinite where something is missing or NaN. Rows of gradients may be 0 but for rounding: the
        length is at least that of a usual row."""
        if len(outputs) != len(expected):
            return math.inf
        worst = 0.0
        several = any(isinstance(one, tuple) for one in expected)
        for one, other in zip(parts_of(outputs), parts_of(expected)):
            if one.shape != other.shape or one.dtype != other.dtype:
                return math.inf
            right = other.float()
            distance, length = (one.float() - right).norm(dim=-1), right.norm(dim=-1)
            least = length.square().mean().sqrt().item() if several else 1e-30
            ratio = (distance / length.clamp_min(max(least, 1e-30))).max().item()
            worst = max(worst, ratio if math.isfinite(ratio) else math.inf)
        return worst

    def negative_control(self, case: Case) -> List[Any]:
        """The output of a kernel that ignores Q and K: the mean of V; gradients of 0."""
        if case.extra.backward:
            return [tuple(self.torch.zeros_like(x) for x in three) for three in case.inputs]
        return [v.float().mean(2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1)
                .expand(*q.shape[:3], v.shape[-1]).to(q.dtype) for q, _, v in case.inputs]

    def checksum(self, case: Case) -> List[int]:
        return [int(tensor.view(self.torch.int16).sum(dtype=self.torch.int64))
                for inputs in case.inputs for tensor in inputs]

    def blank(self, outputs: Sequence[Any]) -> None:
        for output in parts_of(outputs):
            output.fill_(math.nan)

    # -- timing

    def stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p()

    def synchronize(self) -> None:
        pass

    def host_us(self, side: Side, samples: int, calls: int, sets: int) -> List[float]:
        """Microseconds of the caller's time per call; a GPU works on meanwhile."""
        stream, times = self.stream(), []
        kept: List[Any] = [None] * sets
        with side.context():
            for sample in range(samples):
                self.synchronize()
                start = time.perf_counter()
                for index in range(sample * calls, (sample + 1) * calls):
                    kept[index % sets] = side.call(index % sets, stream)
                times.append(per_call_us(time.perf_counter() - start, calls))
        self.synchronize()
        return times

    def empty_call_us(self, samples: int, calls: int) -> List[float]:
        """What ctypes takes for a call with attn_forward's arguments of a function that does
        nothing with them."""
        address = ctypes.cast(self.context.lib.attn_version, ctypes.c_void_p).value
        empty, times = ctypes.CFUNCTYPE(ctypes.c_int)(address or 0), []
        tensors, handle, size = bytes(_library.TENSORS_SIZE), ctypes.c_void_p(), ctypes.c_size_t()
        for _ in range(samples):
            start = time.perf_counter()
            for _ in range(calls):
                empty(handle, tensors, handle, size, handle, None)
            times.append(per_call_us(time.perf_counter() - start, calls))
        return times

    def environment(self) -> Dict[str, Any]:
        device = asking.device(self.context)
        return {"device": device.name.decode(), "arch": device.arch.decode(),
                "libattn": self.context.lib.attn_version().decode(),
                "torch": self.torch.__version__, "date": time.strftime("%Y-%m-%d")}

    def used_mb(self) -> Tuple[float, ...]:
        """Memory in use, in each of the ways to count it."""
        raise NotImplementedError

    def state(self) -> Dict[str, str]:
        return {}

    def recover(self, error: BaseException) -> None:
        """After a failure: memory back, and DeviceLost if the device is gone with it."""
        error.__traceback__ = None  # its frames hold tensors
