# SPDX-License-Identifier: Apache-2.0
"""An NVIDIA GPU for the runner. All that touches CUDA is here.

Invariant: PyTorch and libattn share the primary context and the current stream.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import os
import re
import subprocess
from typing import Any, Dict, List, Optional, Tuple

from .. import _library
from .._plans import Context
from . import asking, serving
from .grids import Shape
from .machine import DeviceLost, Machine, NotRun, Side, first_line, parts_of, per_call_us
from .options import Extra
from .report import GPU_PEERS

SMI_FIELDS = ("name,driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,power.draw,"
              "power.limit,temperature.gpu,clocks_event_reasons.active")


def flex_with_sink(attend: Any, q: Any, k: Any, v: Any, sink: Any, **options: Any) -> Any:
    """FlexAttention knows no sink: its output is scaled by what the sink takes of the sum."""
    out, lse = attend(q, k, v, return_lse=True, **options)
    return out * (lse - sink[None, :, None]).sigmoid()[..., None].to(out.dtype)


class Graph:
    """`calls` calls of one side over its sets, as one CUDA graph."""

    def __init__(self, torch: Any, side: Side, calls: int, sets: int) -> None:
        self.torch, self.calls = torch, calls
        self.outputs: List[Any] = [None] * sets
        self.graph = torch.cuda.CUDAGraph()
        with side.context(), torch.cuda.graph(self.graph):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            for index in range(calls):
                self.outputs[index % sets] = side.call(index % sets, stream)

    def replay_us(self, count: int) -> List[float]:
        """Microseconds per call of each of `count` replays."""
        event = self.torch.cuda.Event
        marks = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
        for start, end in marks:
            start.record()
            self.graph.replay()
            end.record()
        self.torch.cuda.synchronize()
        return [per_call_us(start.elapsed_time(end) * 1e-3, self.calls) for start, end in marks]

    def rerun(self) -> List[Any]:
        """The outputs of one more replay, NaN wherever it wrote nothing."""
        for output in parts_of(self.outputs):
            output.fill_(math.nan)
        self.graph.replay()
        self.torch.cuda.synchronize()
        return self.outputs


class GpuMachine(Machine):
    modes = ("graph", "eager")
    most_sets = 8

    def __init__(self, torch: Any, context: Context, variant: Optional[str], seed: int,
                 device: str) -> None:
        super().__init__(torch, context, variant, seed, device)
        properties = torch.cuda.get_device_properties(self.device)
        self.gpu, self.l2_bytes = properties.name, properties.L2_cache_size
        self.flex: Dict[bool, Any] = {}  # compiled, with a sink or without
        self.fa3: Any = None             # torch.ops.flash_attn_3, where --fa3 gave a build of it

    # -- peers

    def can(self, name: str, shape: Shape, extra: Extra) -> bool:
        if name == "fa3":
            takes = not shape.option or extra.lengths or \
                (extra.stores and serving.fa3_options(extra) is not None)
            return self.fa3 is not None and bool(takes) and shape.head_dim in (64, 128, 256)
        if name == "flex":
            return not extra.lengths and not extra.step and shape.seq_q > 1
        if name == "flash" and (extra.attn_mask is not None or shape.head_dim > 256):
            return False
        return super().can(name, shape, extra)

    def peer_side(self, name: str, shape: Shape, inputs: List[Tuple[Any, Any, Any]],
                  extra: Extra) -> Side:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        if name == "flex":
            return self.flex_side(shape, inputs, extra)
        if name == "fa3":
            return self.fa3_side(shape, inputs, extra)
        backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                   "efficient": SDPBackend.EFFICIENT_ATTENTION}[name]
        return self.sdpa_side(name, "peer", GPU_PEERS[name], shape, inputs,
                              lambda: sdpa_kernel([backend]), mask=extra.attn_mask)

    def fa3_side(self, shape: Shape, inputs: List[Tuple[Any, Any, Any]], extra: Extra) -> Side:
        """On (batch, seq, heads, dim), as its users have it; splits and packing as it chooses."""
        options: Dict[str, Any] = {"is_causal": shape.causal}
        if extra.stores:  # its pages are ours
            own = [[q.transpose(1, 2).contiguous(), k, v] for q, k, v in map(extra.own, inputs)]
            if extra.step:
                own = [[q[0], k, v] for q, k, v in own]
            options.update(serving.fa3_options(extra) or {})
        else:
            own = [[tensor.transpose(1, 2).contiguous() for tensor in three] for three in inputs]
        if extra.lengths:
            own = [[tensor[0] for tensor in three] for three in own]
            ends, longest = extra.tensors["cu_seqlens_q"], max(extra.lengths)
            options.update(cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=longest,
                           max_seqlen_k=longest)

        def call(index: int, _: ctypes.c_void_p) -> Any:
            out = self.fa3.fwd(*own[index], **options)[0]
            return (out[None] if extra.lengths or extra.step else out).transpose(1, 2)
        return Side("fa3", "peer", GPU_PEERS["fa3"], call)

    def flex_side(self, shape: Shape, inputs: List[Tuple[Any, Any, Any]], extra: Extra) -> Side:
        grouped, sink = shape.heads_q != shape.heads_kv, extra.tensors.get("sink")
        compiled: List[Any] = []

        def call(index: int, _: ctypes.c_void_p) -> Any:
            if not compiled:  # here, so that a failure to compile is this side's own
                compiled.extend((self.flex_function(sink is not None),
                                 self.flex_mask(shape, extra)))
            options = {"block_mask": compiled[1], "score_mod": extra.score_mod,
                       "enable_gqa": grouped}
            if sink is not None:
                return compiled[0](*inputs[index], sink, **options)
            return compiled[0](*inputs[index], **options)
        return Side("flex", "peer", GPU_PEERS["flex"], call)

    def flex_function(self, with_sink: bool) -> Any:
        from torch.nn.attention.flex_attention import flex_attention
        if with_sink not in self.flex:
            self.torch._dynamo.config.cache_size_limit = 512  # one compilation for each shape
            function = functools.partial(flex_with_sink, flex_attention)
            self.flex[with_sink] = self.torch.compile(function if with_sink else flex_attention,
                                                      dynamic=False)
        return self.flex[with_sink]

    def flex_mask(self, shape: Shape, extra: Extra) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask
        offset = shape.seq_kv - shape.seq_q
        visible = extra.mask_mod
        if visible is None and shape.causal:
            def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
                return query + offset >= key
        if visible is None:
            return None
        batch = shape.batch if extra.attn_mask is not None else None
        return create_block_mask(visible, batch, None, shape.seq_q, shape.seq_kv,
                                 device=self.device)

    # -- timing

    def stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def capture(self, side: Side, calls: int, sets: int) -> Graph:
        return Graph(self.torch, side, calls, sets)

    def eager_us(self, side: Side, samples: int, calls: int, sets: int) -> List[float]:
        """Microseconds per call of plain calls back to back, by events around them; one more
        sample warms up."""
        event, stream, times = self.torch.cuda.Event, self.stream(), []
        kept: List[Any] = [None] * sets
        with side.context():
            for sample in range(samples + 1):
                start, end = event(enable_timing=True), event(enable_timing=True)
                self.synchronize()
                start.record()
                for index in range(sample * calls, (sample + 1) * calls):
                    kept[index % sets] = side.call(index % sets, stream)
                end.record()
                self.synchronize()
                times.append(per_call_us(start.elapsed_time(end) * 1e-3, calls))
        return times[1:]

    # -- evidence

    def kernels(self, side: Side) -> List[str]:
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

    def proves(self, side: Side, kernels: List[str]) -> bool:
        if side.role == "peer":
            return any(re.search(side.kernel or "", name) for name in kernels)
        expected = side.kernel if isinstance(side.kernel, list) else [side.kernel] * side.launches
        return kernels == expected

    def state(self) -> Dict[str, str]:
        """What nvidia-smi says about clocks, power, temperature and throttling."""
        command = ["nvidia-smi", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader",
                   f"--id={self.device.index or 0}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            values = [value.strip() for value in done.stdout.splitlines()[0].split(",")]
        except (OSError, subprocess.SubprocessError, IndexError) as error:
            return {"error": first_line(error)}
        return dict(zip(SMI_FIELDS.split(","), values))

    def environment(self) -> Dict[str, Any]:
        device = asking.device(self.context)
        return {**super().environment(), "gpu": self.gpu, "multiprocessors": device.units,
                "cuda_driver": device.driver, "cudnn": self.torch.backends.cudnn.version(),
                "l2_bytes": self.l2_bytes}

    def used_mb(self) -> Tuple[float, ...]:
        """What PyTorch's allocator has given out, and what is not free on the GPU."""
        self.synchronize()
        self.torch.cuda.empty_cache()
        free, total = self.torch.cuda.mem_get_info(self.device)
        return self.torch.cuda.memory_allocated(self.device) / 1e6, (total - free) / 1e6

    def recover(self, error: BaseException) -> None:
        super().recover(error)
        gc.collect()
        try:
            self.synchronize()
            self.torch.cuda.empty_cache()
        except RuntimeError as gone:
            raise DeviceLost(f"the GPU does not answer after {first_line(error)}: "
                             f"{first_line(gone)}") from None


def load_fa3(torch: Any, library: str) -> Any:
    """FlashAttention-3's operators out of a build of it; NotRun with the reason."""
    try:
        torch.ops.load_library(library)
        return torch.ops.flash_attn_3
    except OSError as error:
        raise NotRun(f"--fa3: {first_line(error)}") from None


def open_gpu(torch: Any, variant: Optional[str], seed: int,
             fa3: Optional[str] = None) -> GpuMachine:
    """NotRun if libattn has nothing for the GPU that PyTorch sees."""
    device = f"cuda:{torch.cuda.current_device()}"
    torch.zeros(1, device=device)  # makes the primary context, which libattn then shares
    os.environ.setdefault("TEARDOWN_CUPTI", "0")  # the profiler's end and CUDA graphs do not agree
    torch.cuda.set_stream(torch.cuda.Stream())  # the legacy stream waits for all others
    try:
        context = Context(device)
    except _library.Unsupported as error:
        raise NotRun(str(error)) from None
    machine = GpuMachine(torch, context, variant, seed, device)
    machine.fa3 = load_fa3(torch, fa3) if fa3 else None
    return machine
