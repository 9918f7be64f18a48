# SPDX-License-Identifier: Apache-2.0
"""libattn through ctypes: the structs of include/attn.h and little else.

Invariant: every struct here has the layout of the header's (tests/test_peers.sh compares them), and
the size that the library expects (attn_*_init writes it, Library.init checks).
"""

import ctypes
from ctypes import (POINTER, Structure, byref, c_bool, c_char, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_size_t, c_uint32, c_void_p)

OK, UNSUPPORTED = 0, 2
FP32, FP16, BF16 = 0, 1, 2
CAUSAL_NONE, CAUSAL_TOP_LEFT, CAUSAL_BOTTOM_RIGHT = 0, 1, 2


class Error(Structure):
    _fields_ = [("text", c_char * 384)]


class Options(Structure):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("driver", c_char_p),
                ("threads", c_int32)]


class Strides(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64)]


class BiasStrides(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64), ("col", c_int64)]


class Problem(Structure):
    _fields_ = [
        ("size", c_size_t), ("dtype", c_int), ("batch", c_int64), ("heads_q", c_int64),
        ("heads_kv", c_int64), ("seq_q", c_int64), ("seq_kv", c_int64), ("head_dim", c_int64),
        ("head_dim_v", c_int64), ("layout", c_int), ("q", Strides), ("k", Strides), ("v", Strides),
        ("o", Strides), ("lse", Strides), ("scale", c_float), ("causal", c_int),
        ("window_left", c_int64), ("window_right", c_int64), ("softcap", c_float),
        ("alibi", c_bool), ("alibi_batch_stride", c_int64), ("sink", c_bool), ("bias", c_bool),
        ("bias_dtype", c_int), ("bias_strides", BiasStrides), ("packed", c_bool),
        ("total_q", c_int64), ("total_kv", c_int64), ("used_kv", c_bool), ("tensor_cores", c_int),
        ("alignment", c_int32),
    ]


class Tensors(Structure):
    _fields_ = [
        ("size", c_size_t), ("q", c_void_p), ("k", c_void_p), ("v", c_void_p), ("o", c_void_p),
        ("lse", c_void_p), ("bias", c_void_p), ("alibi_slopes", c_void_p), ("sink", c_void_p),
        ("cu_seqlens_q", c_void_p), ("cu_seqlens_kv", c_void_p), ("used_kv", c_void_p),
    ]


class Row(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64)]


class Comparison(Structure):
    _fields_ = [
        ("size", c_size_t), ("passed", c_bool), ("o_pass", c_bool), ("lse_pass", c_bool),
        ("elements", c_int64), ("nans", c_int64), ("infs", c_int64), ("max_error", c_double),
        ("mean_error", c_double), ("twin_max", c_double), ("twin_mean", c_double),
        ("max_allowed", c_double), ("mean_allowed", c_double), ("lse_error", c_double),
        ("worst", Row), ("worst_col", c_int64), ("worst_out", c_double),
        ("worst_expected", c_double),
    ]


class Device(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char * 96), ("arch", c_char * 96),
                ("units", c_int32), ("memory", c_int64), ("driver", c_int32), ("shared", c_int32)]


class Variant(Structure):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("device", c_char_p), ("family", c_char_p),
        ("arch", c_char_p), ("dtypes", c_uint32), ("options", c_uint32), ("tensor_cores", c_bool),
        ("head_dim_max", c_int32), ("head_dim_multiple", c_int32), ("block_q", c_int32),
        ("block_kv", c_int32), ("stages", c_int32), ("warps", c_int32), ("shared_bytes", c_int32),
        ("entry", c_char_p),
    ]


class AttnError(RuntimeError):
    """What the library answered: its sentence, and the status in front of it."""

    def __init__(self, text, status=None):
        super().__init__(text)
        self.status = status


class Library:
    """One loaded libattn and one context of it."""

    def __init__(self, path, threads=0, device=None, driver=None):
        """device: "cpu" (None), "cuda" or "cuda:N"; driver: path of a CUDA driver, or None."""
        self.lib = ctypes.CDLL(path)
        for name in ("attn_plan_variant", "attn_version"):
            getattr(self.lib, name).restype = c_char_p
        self.lib.attn_problem_flops.restype = c_double
        for name in ("attn_workspace_size", "attn_workspace_alignment", "attn_plan_print",
                     "attn_comparison_print"):
            getattr(self.lib, name).restype = c_size_t
        self.lib.attn_forward.argtypes = [c_void_p, POINTER(Tensors), c_void_p, c_size_t, c_void_p,
                                          POINTER(Error)]
        self.lib.attn_workspace_init.argtypes = [c_void_p, c_void_p, c_size_t, c_void_p,
                                                 POINTER(Error)]
        for name in ("attn_workspace_size", "attn_workspace_alignment", "attn_plan_variant",
                     "attn_plan_destroy", "attn_close"):
            getattr(self.lib, name).argtypes = [c_void_p]
        options = self.init("attn_options_init", Options)
        options.threads = threads
        options.device = device.encode() if device else None
        options.driver = driver.encode() if driver else None
        self.context = c_void_p()
        self.call("attn_open", byref(options), byref(self.context))

    def close(self):
        self.lib.attn_close(self.context)
        self.context = c_void_p()

    def init(self, function, struct):
        value = struct()
        getattr(self.lib, function)(byref(value))
        if value.size != ctypes.sizeof(struct):
            raise AttnError(f"{struct.__name__} has {value.size} bytes in the library, "
                            f"{ctypes.sizeof(struct)} here")
        return value

    def call(self, function, *arguments):
        error = Error()
        status = getattr(self.lib, function)(*arguments, byref(error))
        if status != OK:
            raise AttnError(f"{function}: {error.text.decode()}", status)

    def device(self):
        device = Device(size=ctypes.sizeof(Device))
        self.call("attn_device_get", self.context, byref(device))
        return device

    def version(self):
        return self.lib.attn_version().decode()

    def variants(self):
        """Every variant of the context, best first, also those that this machine cannot run."""
        found = []
        while True:
            variant = Variant(size=ctypes.sizeof(Variant))
            try:
                self.call("attn_variant_get", self.context, c_int32(len(found)), byref(variant))
            except AttnError:
                if not found:
                    raise
                return found
            found.append(variant)

    def refusal(self, variant, problem):
        """None if the variant of that name computes the problem here, else the reason."""
        try:
            self.call("attn_variant_check", self.context, variant.encode(), byref(problem))
        except AttnError as error:
            return str(error)
        return None

    def describe(self, comparison):
        buffer = ctypes.create_string_buffer(1024)
        self.lib.attn_comparison_print(byref(comparison), buffer, c_size_t(len(buffer)))
        return buffer.value.decode()

    def flops(self, problem):
        return self.lib.attn_problem_flops(byref(problem))

    def verify(self, problem, tensors, count, seed):
        """The comparison of `count` sampled rows with the double-precision reference."""
        rows = (Row * count)()
        result = Comparison(size=ctypes.sizeof(Comparison))
        self.call("attn_rows_sample", byref(problem), ctypes.c_uint64(seed), rows, c_size_t(count))
        self.call("attn_verify", self.context, byref(problem), byref(tensors), rows,
                  c_size_t(count), byref(result))
        return result


class Plan:
    def __init__(self, library, problem, allocate, variant=None, stream=None):
        """allocate(bytes) returns (owner, address) of 64-byte aligned memory of the device;
        variant: a name, or None for the library's choice; stream: where the workspace is made
        ready."""
        self.library = library
        self.handle = c_void_p()
        library.call("attn_plan_create", library.context, byref(problem),
                     variant.encode() if variant else None, byref(self.handle))
        self.variant = library.lib.attn_plan_variant(self.handle).decode()
        self.size = library.lib.attn_workspace_size(self.handle)
        self.owner, self.workspace = allocate(max(self.size, 64))
        alignment = library.lib.attn_workspace_alignment(self.handle)
        if self.workspace % max(alignment, 1):
            raise AttnError(f"{self.variant}: the workspace is at {self.workspace:#x}, expected a "
                            f"multiple of {alignment} bytes")
        self.error = Error()
        library.call("attn_workspace_init", self.handle, self.workspace, self.size, stream)

    def forward(self, tensors, stream=None):
        self.prepared(tensors)(stream)

    def prepared(self, tensors):
        """A function of the stream alone: the call with all else converted beforehand."""
        function, handle, size = self.library.lib.attn_forward, self.handle, self.size
        workspace, error = c_void_p(self.workspace), byref(self.error)
        where = byref(tensors)

        def call(stream):
            if function(handle, where, workspace, size, stream, error) != OK:
                raise AttnError(self.error.text.decode())
        return call

    def close(self):
        self.library.lib.attn_plan_destroy(self.handle)
        self.handle = c_void_p()
