# SPDX-License-Identifier: Apache-2.0
"""The process of a Python candidate of `attest judge` (door.c starts it with this text).

    python3 -c TEXT MODULE:FUNCTION torch|numpy|dlpack ARENA_SIZE own|any forward|backward|autograd
    python3 -c TEXT FILE.py         oracle|candidate   ARENA_SIZE own|any REFERENCE.py

Messages come through descriptor 3, tensors through the memory of descriptor 4. `own`: PyTorch's own
attention must not be called. The judge trusts no message of this process: it checks the memory.

Invariant: an answer is sent after the whole output is written.
"""

import contextlib
import importlib
import importlib.util
import json
import mmap
import os
import socket
import struct
import sys
import threading
import traceback

DONE, REFUSED, FAILED, FOREIGN = range(4)
ELEMENTS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
# The kernels of scaled_dot_product_attention, FlexAttention and nn.MultiheadAttention.
FUSED = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
         "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
         "_scaled_dot_product_fused_attention_overrideable")
KERNELS = ("_flash_attention", "_efficient_attention", "_cudnn_attention")
ATTENTION = FUSED + tuple(name + "_backward" for name in FUSED + KERNELS) + tuple(
    name + "_forward" for name in KERNELS) + (
        "scaled_dot_product_attention", "_scaled_dot_product_attention_math",
        "_native_multi_head_attention", "_transformer_encoder_layer_fwd")
# The input that each gradient belongs to.
LEAVES = {"dq": "q", "dk": "k", "dv": "v", "d_bias": "bias", "d_sink": "sink",
          "d_alibi_slopes": "alibi_slopes"}

foreign = []  # what the candidate called and must not


def forbid_attention(torch):
    """In the dispatcher, where every way to these kernels ends, those from C++ too."""
    library = torch.library.Library("aten", "IMPL")

    def refuse(name):
        def refused(*arguments, **keywords):
            foreign.append("torch: aten::" + name)
            raise RuntimeError("attest judge: aten::" + name + " is not the candidate's own")
        return refused

    for name in ATTENTION:
        for device in ("CPU", "CUDA"):
            if hasattr(torch.ops.aten, name):
                try:
                    library.impl(name, refuse(name), device, allow_override=True)
                except TypeError:  # before 2.8
                    library.impl(name, refuse(name), device)
    return library


def load_file(path, name):
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_function(text):
    where, _, name = text.rpartition(":")
    from_file = where.endswith(".py")
    module = load_file(where, "candidate") if from_file else importlib.import_module(where)
    for part in name.split("."):
        module = getattr(module, part)
    return module


class DLPack:
    """A tensor that offers nothing but the protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Torch:
    def __init__(self, arena, own):
        import torch
        self.library, self.arena = torch, arena
        self.exact = torch.Tensor
        self.forbidden = forbid_attention(torch) if own else None
        torch.set_grad_enabled(False)

    @contextlib.contextmanager
    def aside(self):
        """For a new thread, which begins with the default stream and with gradients enabled."""
        cuda = self.library.cuda
        stream = cuda.stream(cuda.Stream()) if cuda.is_initialized() else contextlib.nullcontext()
        with self.library.no_grad(), stream:
            yield

    def view(self, where):
        dtype = getattr(self.library, ELEMENTS.get(where["dtype"], where["dtype"]))
        reach = 1 + sum((n - 1) * s for n, s in zip(where["shape"], where["strides"]))
        return self.library.frombuffer(self.arena, dtype=dtype, offset=where["at"],
                                       count=reach).as_strided(where["shape"], where["strides"])


class NumPy:
    def __init__(self, arena, own):
        import numpy
        self.library, self.arena, self.exact = numpy, arena, numpy.ndarray

    def view(self, where):
        dtype = self.library.dtype(ELEMENTS.get(where["dtype"], where["dtype"]))
        strides = [s * dtype.itemsize for s in where["strides"]]
        return self.library.ndarray(where["shape"], dtype, self.arena, where["at"], strides)

    def aside(self):
        return contextlib.nullcontext()


class Function:
    """forward:  function(q, k, v, **options) -> o, or (o, lse) with lse=True
    backward: function(q, k, v, o, lse, d_o, **options) -> (dq, dk, dv)
    autograd: as forward, differentiated by PyTorch"""

    def __init__(self, text, kind, arena, own, direction):
        self.wraps = kind == "dlpack"
        if kind == "dlpack":
            kind = "torch" if importlib.util.find_spec("torch") else "numpy"
        self.arrays = (Torch if kind == "torch" else NumPy)(arena, own)
        self.function = load_function(text)
        self.compute = self.differentiate if direction == "autograd" else self.call
        self.inputs = ("q", "k", "v", "o", "lse", "d_o") if direction == "backward" else ("q", "k", "v")
        self.outputs = ("o", "lse") if direction == "forward" else tuple(LEAVES)

    def call(self, views, options, outputs):
        inputs = [views.pop(name) for name in self.inputs]
        return self.function(*inputs, **views, **options)

    def differentiate(self, views, options, outputs):
        torch, d_o = self.arrays.library, views.pop("d_o")
        leaves = [views[LEAVES[name]].requires_grad_() for name in outputs]
        with torch.enable_grad():
            o = self.call(views, options, outputs)
        return torch.autograd.grad(o, leaves, d_o)

    def __call__(self, call):
        if not call["aside"]:
            return self.compute_call(call)
        raised = []

        def work():
            try:
                with self.arrays.aside():
                    self.compute_call(call)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    def compute_call(self, call):
        views = {}
        for name, where in call["tensors"].items():
            try:
                views[name] = self.arrays.view(where)
                if name == "mask":
                    views[name] = views[name] != 0
            except (TypeError, AttributeError):
                raise NotImplementedError(where["dtype"] + " in these arrays") from None
        outputs = {name: views.pop(name) for name in self.outputs if name in views}
        if self.wraps:
            views = {name: DLPack(view) for name, view in views.items()}
        options = dict(call["options"])
        if "window" in options:
            options["window"] = tuple(options["window"])
        got = self.compute(views, options, outputs)
        got = got if isinstance(got, (tuple, list)) else [got]
        if len(got) != len(outputs):
            raise ValueError("%d outputs, expected %d" % (len(got), len(outputs)))
        for (name, to), value in zip(outputs.items(), got):
            if not isinstance(value, self.arrays.exact) and hasattr(value, "__dlpack__"):
                value = self.arrays.library.from_dlpack(value)
            if type(value) is not self.arrays.exact:
                raise TypeError("%s is a %s, expected a tensor" % (name, type(value).__name__))
            if tuple(value.shape) != tuple(to.shape) or value.dtype != to.dtype:
                raise ValueError("%s is %s of %s, expected %s of %s" % (
                    name, value.dtype, tuple(value.shape), to.dtype, tuple(to.shape)))
            to[...] = value


def code_of(path):
    """Of Model.forward, without running the file."""
    with open(path) as file:
        parts = [compile(file.read(), path, "exec")]
    for name in ("Model", "forward"):
        parts = [inner for part in parts for inner in part.co_consts
                 if getattr(inner, "co_name", "") == name]
    return [part.co_code for part in parts]


class Model:
    """ModelNew(*get_init_inputs())(*inputs); of the oracle Model, in float64 and as it is."""

    def __init__(self, path, role, arena, own, reference):
        self.own = own and role == "candidate"
        self.arrays = Torch(arena, self.own)
        self.code = code_of(reference) if self.own else []  # before the candidate can rewrite it
        self.role, self.module, self.models = role, load_file(path, role), {}
        self.names = {getattr(self.arrays.library, name): short for short, name in ELEMENTS.items()}
        if self.own and hasattr(self.module, "Model"):
            del self.module.Model  # for ModelNew to call

    def check(self, made):
        for part in made.modules():
            code = getattr(type(part).forward, "__code__", None)
            if code is not None and code.co_code in self.code:
                foreign.append("ModelNew is Model, or has one")

    def model(self, seed, init, dtype=None):
        key = (seed, str(dtype))
        if key not in self.models:
            self.arrays.library.manual_seed(seed)
            made = getattr(self.module, "ModelNew" if self.role == "candidate" else "Model")(*init)
            if self.own:
                self.check(made)
            made = made.eval()
            self.models[key] = made.to(dtype) if dtype is not None else made
        return self.models[key]

    def values(self, call, widen):
        for value in call["inputs"]:
            if isinstance(value, dict):
                tensor = self.arrays.view(value)
                yield tensor.double() if widen and tensor.is_floating_point() else tensor
            else:
                yield value

    def inputs(self, call):
        """Makes inputs and says what they are."""
        torch, at, described = self.arrays.library, call["at"], []
        torch.manual_seed(call["weights"])
        init = self.module.get_init_inputs()
        torch.manual_seed(call["seed"])
        for value in self.module.get_inputs():
            if not isinstance(value, torch.Tensor):
                described.append(value)
                continue
            value = value.contiguous()
            where = {"at": at, "dtype": self.names.get(value.dtype, str(value.dtype)[6:]),
                     "shape": list(value.shape), "strides": list(value.stride())}
            self.arrays.view(where).copy_(value)
            described.append(where)
            at += (value.numel() * value.element_size() + 8191) // 4096 * 4096
        return json.dumps({"inputs": described, "init": init, "end": at})

    def __call__(self, call):
        if call["what"] == "inputs":
            return self.inputs(call)
        torch = self.arrays.library
        widen = call["what"] == "exact"
        model = self.model(call["weights"], call["init"], torch.float64 if widen else None)
        got = model(*self.values(call, widen))
        if type(got) is not torch.Tensor:
            raise TypeError("the output is a %s, expected a tensor" % type(got).__name__)
        dtype, where = self.names.get(got.dtype, ""), call.get("o")
        if where is not None and list(got.shape) != where["shape"]:
            raise ValueError("the output has the shape %s, expected %s" % (
                tuple(got.shape), tuple(where["shape"])))
        if where is None or widen or self.role == "oracle":
            got = got.to(torch.float64)
            where = {"at": call["at"], "dtype": "fp64", "shape": list(got.shape),
                     "strides": list(got.contiguous().stride())}
        self.arrays.view(where).copy_(got)
        return json.dumps({"shape": where["shape"], "dtype": dtype})


def main():
    text, kind, size, libraries = sys.argv[1:5]
    door = socket.socket(fileno=3)

    def answer(status, words):
        door.send(struct.pack("<i4092s", status, words.encode(errors="replace")[:4091]))

    try:
        arena = mmap.mmap(4, int(size))
        maker = Model if kind in ("oracle", "candidate") else Function
        candidate = maker(text, kind, arena, libraries == "own", *sys.argv[5:])
    except BaseException as error:
        traceback.print_exc()
        answer(FAILED, "%s: %s" % (type(error).__name__, error))
        os._exit(1)
    answer(DONE, "")
    for message in iter(lambda: door.recv(1 << 18), b""):
        status, words = DONE, ""
        try:
            words = candidate(json.loads(message)) or ""
        except NotImplementedError as error:
            status, words = REFUSED, str(error)
        except BaseException as error:  # also SystemExit: the process is to stay
            traceback.print_exc()
            status, words = FAILED, "%s: %s" % (type(error).__name__, error)
        answer(FOREIGN if foreign else status, foreign[0] if foreign else words)
    os._exit(0)


main()
