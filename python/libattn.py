# SPDX-License-Identifier: Apache-2.0
"""libattn through ctypes: the structs of include/attn.h and little else.

Invariant: every struct here has the size the library expects (attn_*_init writes it, load() checks).
"""

import ctypes
from ctypes import (POINTER, Structure, byref, c_bool, c_char, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_size_t, c_void_p)

FP32, FP16, BF16 = 0, 1, 2
CAUSAL_NONE, CAUSAL_TOP_LEFT, CAUSAL_BOTTOM_RIGHT = 0, 1, 2


class Error(Structure):
    _fields_ = [("text", c_char * 384)]


class Options(Structure):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("driver", c_char_p), ("threads", c_int32)]


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
                ("units", c_int32), ("memory", c_int64)]


class AttnError(RuntimeError):
    pass


class Library:
    """One loaded libattn and one context of it."""

    def __init__(self, path, threads):
        self.lib = ctypes.CDLL(path)
        for name in ("attn_plan_variant", "attn_version"):
            getattr(self.lib, name).restype = c_char_p
        self.lib.attn_problem_flops.restype = c_double
        for name in ("attn_workspace_size", "attn_plan_print", "attn_comparison_print"):
            getattr(self.lib, name).restype = c_size_t
        self.lib.attn_forward.argtypes = [c_void_p, POINTER(Tensors), c_void_p, c_size_t, c_void_p,
                                          POINTER(Error)]
        for name in ("attn_workspace_size", "attn_plan_variant", "attn_plan_destroy"):
            getattr(self.lib, name).argtypes = [c_void_p]
        options = self.init("attn_options_init", Options)
        options.threads = threads
        self.context = c_void_p()
        self.call("attn_open", byref(options), byref(self.context))

    def init(self, function, struct):
        value = struct()
        getattr(self.lib, function)(byref(value))
        if value.size != ctypes.sizeof(struct):
            raise AttnError(f"{struct.__name__} has {value.size} bytes in the library, "
                            f"{ctypes.sizeof(struct)} here")
        return value

    def call(self, function, *arguments):
        error = Error()
        if getattr(self.lib, function)(*arguments, byref(error)) != 0:
            raise AttnError(f"{function}: {error.text.decode()}")

    def device(self):
        device = Device(size=ctypes.sizeof(Device))
        self.call("attn_device_get", self.context, byref(device))
        return device

    def verify(self, problem, tensors, count, seed):
        """The comparison of `count` sampled rows with the double-precision reference."""
        rows = (Row * count)()
        result = Comparison(size=ctypes.sizeof(Comparison))
        self.call("attn_rows_sample", byref(problem), ctypes.c_uint64(seed), rows, c_size_t(count))
        self.call("attn_verify", self.context, byref(problem), byref(tensors), rows,
                  c_size_t(count), byref(result))
        return result


class Plan:
    def __init__(self, library, problem, allocate):
        """allocate(bytes) returns (owner, address) of 64-byte aligned memory."""
        self.library = library
        self.handle = c_void_p()
        library.call("attn_plan_create", library.context, byref(problem), None, byref(self.handle))
        self.variant = library.lib.attn_plan_variant(self.handle).decode()
        self.size = library.lib.attn_workspace_size(self.handle)
        self.owner, self.workspace = allocate(max(self.size, 64))
        self.error = Error()

    def forward(self, tensors):
        status = self.library.lib.attn_forward(self.handle, byref(tensors), self.workspace,
                                               self.size, None, byref(self.error))
        if status != 0:
            raise AttnError(self.error.text.decode())

    def close(self):
        self.library.lib.attn_plan_destroy(self.handle)
