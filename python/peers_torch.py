# SPDX-License-Identifier: Apache-2.0
"""PyTorch and libattn on one GPU, as peers.py needs them: cases, results, timing, kernel names.

All that touches CUDA is here. Both libraries share the primary context and the current stream.

Invariant: a timed side allocates and computes the way its users would, and both sides go through
the same sets of inputs and keep as many outputs alive.
"""

import contextlib
import ctypes
import gc
import math
import os
import re
import subprocess
import time

import libattn
from peers_report import PEERS

ROWS_VERIFIED = 96
SMI_FIELDS = ("name,driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,power.draw,"
              "power.limit,temperature.gpu,clocks_event_reasons.active")


class NotRun(RuntimeError):
    """This machine cannot do what was asked for."""


class DeviceLost(RuntimeError):
    """The GPU answers nothing any more: what follows would be noise."""


def first_line(error):
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__


def finite(value):
    return value if math.isfinite(value) else None


def per_call_us(seconds, calls):
    """Whole nanoseconds: the clocks do not tell more, and the file stays small."""
    return round(seconds * 1e6 / calls, 3)


def key_is_visible(batch, head, query, key):
    """FlexAttention's causal mask; one function for all cases, or each would be compiled anew."""
    return query >= key


class Side:
    """Somebody who computes attention of input set i. role: ours, variant, peer or host (SDPA as it
    chooses itself); kernel: the name (ours) or the pattern (peers) that the profiler must show."""

    def __init__(self, name, role, kernel, call, context=contextlib.nullcontext):
        self.name, self.role, self.kernel = name, role, kernel
        self.call, self.context = call, context


class Case:
    """One shape with its inputs on the GPU and everyone who computes it."""

    def __init__(self, problem, inputs, plans, sides, default, flops):
        self.problem, self.inputs, self.plans, self.default = problem, inputs, plans, default
        self.ours, *self.others = sides
        self.variant, self.flops, self.sets = plans[0].variant, flops, len(inputs)
        q, k, v = inputs[0]
        self.set_bytes = (2 * q.numel() + k.numel() + v.numel()) * q.element_size()

    def close(self):
        for plan in self.plans:
            plan.close()
        self.inputs = self.ours = self.others = self.default = None


class Graph:
    """`calls` calls of one side over its sets, as one CUDA graph."""

    def __init__(self, torch, side, calls, sets):
        self.torch, self.calls, self.outputs = torch, calls, [None] * sets
        self.graph = torch.cuda.CUDAGraph()
        with side.context(), torch.cuda.graph(self.graph):
            stream = torch.cuda.current_stream().cuda_stream
            for index in range(calls):
                self.outputs[index % sets] = side.call(index % sets, stream)

    def replay_us(self, count):
        """Microseconds per call of each of `count` replays."""
        event = self.torch.cuda.Event
        marks = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
        for start, end in marks:
            start.record()
            self.graph.replay()
            end.record()
        self.torch.cuda.synchronize()
        return [per_call_us(start.elapsed_time(end) * 1e-3, self.calls) for start, end in marks]

    def rerun(self):
        """The outputs of one more replay, NaN wherever it wrote nothing."""
        for output in self.outputs:
            output.fill_(math.nan)
        self.graph.replay()
        self.torch.cuda.synchronize()
        return self.outputs


class Machine:
    """The GPU as PyTorch and libattn see it. `variant`: None, a name or "all"."""

    def __init__(self, torch, library, dtype, variant, seed, device):
        self.torch, self.library, self.device = torch, library, torch.device(device)
        self.dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
        self.dtype_code = {"fp16": libattn.FP16, "bf16": libattn.BF16}[dtype]
        self.variant, self.seed, self.flex = variant, seed, None
        self.entries = {variant.name.decode(): (variant.entry or b"").decode()
                        for variant in library.variants()}
        if variant not in (None, "all") and variant not in self.entries:
            raise ValueError(f"--variant: {variant!r} is no variant of this library")
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            self.gpu, self.l2_bytes = properties.name, properties.L2_cache_size

    # -- building a case

    def case(self, shape, peers, sets):
        problem = self.library.init("attn_problem_init", libattn.Problem)
        problem.dtype = self.dtype_code
        problem.batch = shape.batch
        problem.heads_q, problem.heads_kv = shape.heads_q, shape.heads_kv
        problem.seq_q, problem.seq_kv, problem.head_dim = shape.seq_q, shape.seq_kv, shape.head_dim
        problem.causal = libattn.CAUSAL_TOP_LEFT if shape.causal else libattn.CAUSAL_NONE
        plans = self.plans(problem)  # first: a refusal costs no memory
        try:
            return self.filled_case(shape, peers, sets, problem, plans)
        except Exception:
            for plan in plans:
                plan.close()
            raise

    def filled_case(self, shape, peers, sets, problem, plans):
        generator = self.torch.Generator(device=self.device)
        generator.manual_seed(self.seed)

        def random(heads, seq):
            return self.torch.randn(shape.batch, heads, seq, shape.head_dim, dtype=self.dtype,
                                    device=self.device, generator=generator)

        inputs = [(random(shape.heads_q, shape.seq_q), random(shape.heads_kv, shape.seq_kv),
                   random(shape.heads_kv, shape.seq_kv)) for _ in range(sets)]
        sides = [self.our_side(plan, inputs, plan is plans[0]) for plan in plans]
        sides += [self.peer_side(name, shape, inputs) for name in peers]
        default = self.sdpa_side("sdpa", "host", None, shape, inputs, contextlib.nullcontext)
        return Case(problem, inputs, plans, sides, default, self.library.flops(problem))

    def plans(self, problem):
        """The plan's choice (or the one asked for) first, then what `all` adds."""
        def allocate(size):
            memory = self.torch.empty(size + 256, dtype=self.torch.uint8, device=self.device)
            return memory, (memory.data_ptr() + 255) // 256 * 256

        stream = self.stream()
        plans = [libattn.Plan(self.library, problem, allocate,
                              None if self.variant == "all" else self.variant, stream)]
        if self.variant == "all":
            plans += [libattn.Plan(self.library, problem, allocate, name, stream)
                      for name in self.entries
                      if name != plans[0].variant and not self.library.refusal(name, problem)]
        return plans

    def our_side(self, plan, inputs, chosen):
        outputs = [self.torch.full_like(q, math.nan) for q, _, _ in inputs]  # poisoned
        calls = []
        for (q, k, v), o in zip(inputs, outputs):
            tensors = self.library.init("attn_tensors_init", libattn.Tensors)
            tensors.q, tensors.k, tensors.v, tensors.o = (t.data_ptr() for t in (q, k, v, o))
            calls.append(plan.prepared(tensors))

        def call(index, stream):
            calls[index](stream)
            return outputs[index]

        name, role = ("ours", "ours") if chosen else (plan.variant, "variant")
        return Side(name, role, self.entries[plan.variant], call)

    def sdpa_side(self, name, role, kernel, shape, inputs, context):
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        causal, grouped = shape.causal, shape.heads_q != shape.heads_kv

        def call(index, _):
            return sdpa(*inputs[index], is_causal=causal, enable_gqa=grouped)
        return Side(name, role, kernel, call, context)

    def peer_side(self, name, shape, inputs):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        if name == "flex":
            return self.flex_side(shape, inputs)
        backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                   "efficient": SDPBackend.EFFICIENT_ATTENTION}[name]
        return self.sdpa_side(name, "peer", PEERS[name], shape, inputs,
                              lambda: sdpa_kernel([backend]))

    def flex_side(self, shape, inputs):
        grouped, mask = shape.heads_q != shape.heads_kv, []

        def call(index, _):
            if not mask:  # here, so that a failure to compile is this side's own
                mask.append(self.flex_mask(shape))
            return self.flex(*inputs[index], block_mask=mask[0], enable_gqa=grouped)
        return Side("flex", "peer", PEERS["flex"], call)

    def flex_mask(self, shape):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        if self.flex is None:
            self.torch._dynamo.config.cache_size_limit = 512  # one compilation for each shape
            self.flex = self.torch.compile(flex_attention, dynamic=False)
        if not shape.causal:
            return None
        return create_block_mask(key_is_visible, None, None, shape.seq_q, shape.seq_kv,
                                 device=self.device)

    # -- results

    def outputs(self, side, case):
        """One plain call for each set; the memory that a peer is likely to get holds NaN."""
        results, stream = [], self.stream()
        poison = [self.torch.full_like(q, math.nan) for q, _, _ in case.inputs]
        del poison
        with side.context():
            for index in range(case.sets):
                results.append(side.call(index, stream))
        self.synchronize()
        return results

    def verify(self, case, outputs, which):
        """Sampled rows of one set against the double-precision reference."""
        host = [tensor.cpu() for tensor in (*case.inputs[which], outputs[which])]
        tensors = self.library.init("attn_tensors_init", libattn.Tensors)
        tensors.q, tensors.k, tensors.v, tensors.o = (tensor.data_ptr() for tensor in host)
        found = self.library.verify(case.problem, tensors, ROWS_VERIFIED, self.seed)
        return {"passed": bool(found.passed), "set": which, "rows": ROWS_VERIFIED,
                "max_error": finite(found.max_error), "max_allowed": finite(found.max_allowed),
                "nans": found.nans, "text": self.library.describe(found)}

    def difference(self, outputs, expected):
        """The largest distance of a row of O from the expected one, over that one's length;
        infinite where something is missing or NaN."""
        if len(outputs) != len(expected):
            return math.inf
        worst = 0.0
        for one, other in zip(outputs, expected):
            if one.shape != other.shape or one.dtype != other.dtype:
                return math.inf
            right = other.float()
            distance = (one.float() - right).norm(dim=-1)
            ratio = (distance / right.norm(dim=-1).clamp_min(1e-30)).max().item()
            worst = max(worst, ratio if math.isfinite(ratio) else math.inf)
        return worst

    def impostor(self, case):
        """What a kernel gives that ignores Q and K: the mean of V."""
        return [v.float().mean(2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1)
                .expand(q.shape).to(q.dtype) for q, _, v in case.inputs]

    def checksum(self, case):
        return [int(tensor.view(self.torch.int16).sum(dtype=self.torch.int64))
                for inputs in case.inputs for tensor in inputs]

    # -- timing

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def synchronize(self):
        self.torch.cuda.synchronize()

    def capture(self, side, calls, sets):
        return Graph(self.torch, side, calls, sets)

    def eager_us(self, side, samples, calls, sets):
        """Microseconds per call of plain calls back to back, by events around them."""
        event, stream, kept, times = self.torch.cuda.Event, self.stream(), [None] * sets, []
        with side.context():
            for sample in range(samples):
                start, end = event(enable_timing=True), event(enable_timing=True)
                self.synchronize()
                start.record()
                for index in range(sample * calls, (sample + 1) * calls):
                    kept[index % sets] = side.call(index % sets, stream)
                end.record()
                self.synchronize()
                times.append(per_call_us(start.elapsed_time(end) * 1e-3, calls))
        return times

    def host_us(self, side, samples, calls, sets):
        """Microseconds of the caller's time per call; the GPU works on meanwhile."""
        stream, kept, times = self.stream(), [None] * sets, []
        with side.context():
            for sample in range(samples):
                self.synchronize()
                start = time.perf_counter()
                for index in range(sample * calls, (sample + 1) * calls):
                    kept[index % sets] = side.call(index % sets, stream)
                times.append(per_call_us(time.perf_counter() - start, calls))
        self.synchronize()
        return times

    def empty_call_us(self, samples, calls):
        """What ctypes takes for a call with attn_forward's arguments of a function that does
        nothing with them."""
        forward = self.library.lib.attn_forward
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *forward.argtypes)
        empty = prototype(ctypes.cast(self.library.lib.attn_version, ctypes.c_void_p).value)
        tensors, error = ctypes.byref(libattn.Tensors()), ctypes.byref(libattn.Error())
        handle, workspace, times = ctypes.c_void_p(), ctypes.c_void_p(), []
        for _ in range(samples):
            start = time.perf_counter()
            for _ in range(calls):
                empty(handle, tensors, workspace, 0, 0, error)
            times.append(per_call_us(time.perf_counter() - start, calls))
        return times

    # -- evidence

    def kernels(self, side):
        """Names of all that one call runs on the GPU: kernels, copies and fills."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile
        stream, names = self.stream(), []
        for _ in range(3):  # the first profile of a process may come back empty
            with side.context():
                side.call(0, stream)
                self.synchronize()
                with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                    side.call(0, stream)
                    self.synchronize()
            names = [event.name for event in profiler.events()
                     if event.device_type == DeviceType.CUDA
                     and not getattr(event, "is_user_annotation", False)
                     and not re.match(r"(Context|Stream|Event) (Sync|Wait)", event.name)]
            if names:
                break
        return names

    def state(self):
        """What nvidia-smi says about clocks, power, temperature and throttling."""
        command = ["nvidia-smi", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader",
                   f"--id={self.device.index or 0}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            values = [value.strip() for value in done.stdout.splitlines()[0].split(",")]
        except (OSError, subprocess.SubprocessError, IndexError) as error:
            return {"error": first_line(error)}
        return dict(zip(SMI_FIELDS.split(","), values))

    def environment(self):
        device = self.library.device()
        return {"gpu": self.gpu, "arch": device.arch.decode(), "multiprocessors": device.units,
                "cuda_driver": device.driver, "libattn": self.library.version(),
                "torch": self.torch.__version__, "cudnn": self.torch.backends.cudnn.version(),
                "l2_bytes": self.l2_bytes, "date": time.strftime("%Y-%m-%d")}

    def recover(self, error):
        """After a failure: memory back, and DeviceLost if the GPU is gone with it."""
        error.__traceback__ = None  # its frames hold tensors
        gc.collect()
        try:
            self.synchronize()
            self.torch.cuda.empty_cache()
        except RuntimeError as gone:
            raise DeviceLost(f"the GPU does not answer after {first_line(error)}: "
                             f"{first_line(gone)}") from None


def open_machine(options):
    """The Machine for parsed options of peers.py; NotRun if there is no GPU for it."""
    try:
        import torch
    except ImportError as error:
        raise NotRun(f"PyTorch is not there ({error})") from None
    if not torch.cuda.is_available():
        raise NotRun("PyTorch sees no CUDA device")
    device = f"cuda:{torch.cuda.current_device()}"
    torch.zeros(1, device=device)  # makes the primary context, which libattn then shares
    torch.set_grad_enabled(False)
    os.environ.setdefault("TEARDOWN_CUPTI", "0")  # the profiler's end and CUDA graphs do not agree
    torch.cuda.set_stream(torch.cuda.Stream())  # the legacy stream waits for all others
    try:
        library = libattn.Library(options.lib, device=device)
    except libattn.AttnError as error:
        if error.status != libattn.UNSUPPORTED:
            raise
        raise NotRun(str(error)) from None
    return Machine(torch, library, options.dtype, options.variant, options.seed, device)
