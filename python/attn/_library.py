# SPDX-License-Identifier: Apache-2.0
"""libattn.so through ctypes: the structs of attn.h, its functions, its errors as exceptions.

Invariant: every struct here has the layout of the header's (python/tests/test_library.py asks the
compiler); nothing is called in a library older than that header (load() asks its version).
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import weakref
from ctypes import (POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p)
from pathlib import Path
from typing import Any, NoReturn, Optional

OK, INVALID, UNSUPPORTED, OUT_OF_MEMORY, DEVICE = range(5)
FP32, FP16, BF16, E4M3, E5M2 = range(5)
FORWARD, BACKWARD, APPEND, MERGE = range(4)
AUTO = -(1 << 63)
OLDEST = 0, 2  # the version of attn.h that the structs below are of; later ones only add to them
CAUSAL = {None: 0, "top-left": 1, "bottom-right": 2}
LAYOUT = {"bhsd": 0, "bshd": 1}
PAGE_LAYOUT = {"hnd": 0, "nhd": 1}  # of a page: heads or rows first
TENSOR_CORES = {"auto": 0, "never": 1, "require": 2}


class Error(Structure):
    _fields_ = [("text", c_char * 384)]


class Options(Structure):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("driver", c_char_p),
                ("threads", c_int32), ("reserved", c_int32)]


class Strides(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64)]


class BiasStrides(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64), ("col", c_int64)]


class Problem(Structure):
    _fields_ = [
        ("size", c_size_t), ("dtype", c_int), ("dtype_kv", c_int32), ("dtype_o", c_int32),
        ("layout", c_int), ("batch", c_int64), ("heads_q", c_int64), ("heads_kv", c_int64),
        ("seq_q", c_int64), ("seq_kv", c_int64), ("head_dim", c_int64), ("head_dim_v", c_int64),
        ("q", Strides), ("k", Strides), ("v", Strides), ("o", Strides), ("lse", Strides),
        ("scale", c_float), ("causal", c_int), ("window_left", c_int64),
        ("window_right", c_int64), ("softcap", c_float), ("bias_dtype", c_int), ("bias", c_bool),
        ("mask", c_bool), ("alibi", c_bool), ("sink", c_bool), ("packed", c_bool),
        ("used_kv", c_bool), ("reserved", c_bool * 2), ("bias_strides", BiasStrides),
        ("mask_strides", BiasStrides), ("alibi_batch_stride", c_int64), ("total_q", c_int64),
        ("total_kv", c_int64), ("tensor_cores", c_int), ("alignment", c_int32), ("dq", Strides),
        ("dk", Strides), ("dv", Strides), ("d_o", Strides), ("page_size", c_int64),
        ("num_pages", c_int64), ("block_table_stride", c_int64), ("used_q", c_bool),
        ("draft", c_bool), ("reserved_serving", c_bool * 6), ("k_scale", Strides),
        ("v_scale", Strides), ("k_new", Strides), ("v_new", Strides), ("q_out", Strides),
        ("rope", c_int), ("rope_dtype", c_int), ("rope_dim", c_int64), ("rope_rows", c_int64),
        ("rope_stride", c_int64), ("q_offset", c_int64), ("kv_offset", c_int64),
        ("offsets", c_bool), ("v_in_k", c_bool), ("reserved_offsets", c_bool * 6),
    ]


class PlanOptions(Structure):
    _fields_ = [("size", c_size_t), ("variant", c_char_p), ("direction", c_int),
                ("deterministic", c_bool), ("batch_invariant", c_bool), ("reserved", c_bool * 2)]


class Tensors(Structure):
    _fields_ = [
        ("size", c_size_t), ("q", c_void_p), ("k", c_void_p), ("v", c_void_p), ("o", c_void_p),
        ("lse", c_void_p), ("bias", c_void_p), ("mask", c_void_p), ("alibi_slopes", c_void_p),
        ("sink", c_void_p), ("cu_seqlens_q", c_void_p), ("cu_seqlens_kv", c_void_p),
        ("used_kv", c_void_p), ("d_o", c_void_p), ("dq", c_void_p), ("dk", c_void_p),
        ("dv", c_void_p), ("d_bias", c_void_p), ("d_sink", c_void_p), ("d_alibi_slopes", c_void_p),
        ("block_table", c_void_p), ("used_q", c_void_p), ("draft_mask", c_void_p),
        ("k_scale", c_void_p), ("v_scale", c_void_p), ("k_new", c_void_p), ("v_new", c_void_p),
        ("k_cache", c_void_p), ("v_cache", c_void_p), ("q_out", c_void_p), ("rope_cos", c_void_p),
        ("rope_sin", c_void_p), ("offsets", c_void_p),
    ]


class Variant(Structure):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("device", c_char_p), ("family", c_char_p),
        ("arch", c_char_p), ("dtypes", c_uint32), ("options", c_uint32), ("tensor_cores", c_bool),
        ("head_dim_max", c_int32), ("head_dim_multiple", c_int32), ("block_q", c_int32),
        ("block_kv", c_int32), ("stages", c_int32), ("warps", c_int32), ("shared_bytes", c_int32),
        ("entry", c_char_p), ("direction", c_int), ("v_in_k", c_int32),
    ]


class Row(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64)]


class Comparison(Structure):
    """`passed` is the header's `pass`, which is a word of Python."""
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
                ("memory", c_int64), ("units", c_int32), ("driver", c_int32), ("shared", c_int32),
                ("reserved", c_int32)]


# attn_problem as bytes: its fields in the header's order, strides one by one. They are what a plan
# is made of, and the key that finds it again. Three runs of fields that few calls touch are bytes
# themselves: up to layout (problem_head), the strides of lse (AUTO_LSE), and from window_left to
# tensor_cores (pack_options). The last fields are zero: with_gradients() sets the strides of
# gradients, with_serving() what a paged or an fp8 KV cache and a step of a server need. Fields of
# attn_append are not among them, but before those of with_offsets(), which makes it longer.
_head = struct.Struct("N4i")
_options = struct.Struct("2qfi8?8q3qi")
_gradients = struct.Struct("12q")
_serving = struct.Struct("3q2?6x6q")
_problem = struct.Struct(
    f"{_head.size}s19q24sfi{_options.size}si{_gradients.size}x{_serving.size}x")
_offsets = struct.Struct(f"{Problem.q_offset.offset - _problem.size}x2q??6x")
_size = struct.Struct("N")
pack_options, pack_problem = _options.pack, _problem.pack
AUTO_LSE = struct.pack("3q", AUTO, AUTO, AUTO)
PLAIN_OPTIONS = pack_options(-1, -1, *(0,) * 22)


def problem_head(dtype: int, dtype_kv: int = -1) -> bytes:
    return _head.pack(_problem.size, dtype, dtype_kv, -1, 0)


def _replaced(problem: bytes, fields: bytes, end: int) -> bytes:
    """`fields` in their place, which ends there."""
    return problem[:end - len(fields)] + fields + problem[end:]


def with_gradients(problem: bytes, *strides: int) -> bytes:
    """strides: (batch, head, row) of dq, dk, dv and d_o."""
    return _replaced(problem, _gradients.pack(*strides), _problem.size - _serving.size)


def with_serving(problem: bytes, page_size: int, num_pages: int, table_stride: int, used_q: bool,
                 draft: bool, *scales: int) -> bytes:
    """scales: strides (batch, head, row) of k_scale and v_scale; none: 0."""
    return _replaced(problem, _serving.pack(page_size, num_pages, table_stride, used_q, draft,
                                            *(scales or (0,) * 6)), _problem.size)


def _longer(fields: bytes, more: bytes) -> bytes:
    """A struct, whose first field is its size, with `more` at its end."""
    return _size.pack(len(fields) + len(more)) + fields[_size.size:] + more


def with_offsets(problem: bytes, offset: int, offsets: bool, v_in_k: bool = False) -> bytes:
    """The last of all. offset: q_offset - kv_offset."""
    kv_offset = -(offset // 2)  # each of the two is at most 2^40
    return _longer(problem, _offsets.pack(offset + kv_offset, kv_offset, offsets, v_in_k))


# attn_tensors as bytes: made in a fifth of the time of the struct, and never shared by threads. The
# last field of pack_tensors, from bias on, is the bytes of pack_others, or of pack_gradients, which
# adds the fields of backward. Those of with_addresses() come last; tensors_with_offsets() makes it
# longer.
_others = struct.Struct("7Q96x")
_tensors = struct.Struct(f"6Q{_others.size}s")
TENSORS_SIZE = _tensors.size
pack_others, pack_tensors = _others.pack, _tensors.pack
pack_gradients = struct.Struct("14Q40x").pack
_all = struct.Struct("19Q")
NO_OTHERS = bytes(_others.size)
_addresses = struct.Struct("3Q")
_tail = struct.Struct(f"{Tensors.offsets.offset - _tensors.size}xQ")


def with_addresses(others: bytes, block_table: int, used_q: int, draft_mask: int) -> bytes:
    return _replaced(others, _addresses.pack(block_table, used_q, draft_mask),
                     _others.size - 16)


def tensors_with_offsets(found: bytes, offsets: int) -> bytes:
    """The result of pack_tensors() with the address of tensors.offsets; 0 is absent."""
    return _longer(found, _tail.pack(offsets)) if offsets else found


def tensors(q: int, k: int, v: int, o: int, lse: int = 0, bias: int = 0, mask: int = 0,
            alibi_slopes: int = 0, sink: int = 0, cu_seqlens_q: int = 0, cu_seqlens_kv: int = 0,
            used_kv: int = 0, d_o: int = 0, dq: int = 0, dk: int = 0, dv: int = 0,
            d_bias: int = 0, d_sink: int = 0, d_alibi_slopes: int = 0,
            block_table: int = 0, used_q: int = 0, draft_mask: int = 0, k_scale: int = 0,
            v_scale: int = 0, offsets: int = 0) -> bytes:
    """attn_tensors with these addresses; 0 is absent."""
    return tensors_with_offsets(pack_tensors(TENSORS_SIZE, q, k, v, o, lse, _all.pack(
        bias, mask, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_kv, used_kv, d_o, dq, dk, dv,
        d_bias, d_sink, d_alibi_slopes, block_table, used_q, draft_mask, k_scale, v_scale)), offsets)


class AttnError(RuntimeError):
    """What the library answered: a sentence with the argument, its value and what was expected."""


class InvalidArgument(AttnError, ValueError):
    """An argument is wrong, whatever the device."""


class Unsupported(AttnError, NotImplementedError):
    """Legal, but this device, this build or the requested variant does not do it."""


class OutOfMemory(AttnError, MemoryError):
    """An allocation failed, of the library or of its driver."""


class DeviceError(AttnError):
    """The device or its driver reported a failure."""


_ERRORS = {INVALID: InvalidArgument, UNSUPPORTED: Unsupported, OUT_OF_MEMORY: OutOfMemory,
           DEVICE: DeviceError}


def fail(status: int, error: Error) -> NoReturn:
    raise _ERRORS.get(status, AttnError)(error.text.decode(errors="replace"))


def library_path() -> Path:
    """The libattn.so to load: $ATTN_LIBRARY, else the package's own, else the system's."""
    chosen = os.environ.get("ATTN_LIBRARY")
    packaged = Path(__file__).resolve().parent / "lib" / "libattn.so"
    return Path(chosen) if chosen else packaged if packaged.is_file() else Path("libattn.so.1")


def _declare(lib: ctypes.CDLL) -> None:
    error = POINTER(Error)
    pointer = POINTER(c_void_p)
    for name, result, arguments in (
            ("attn_version", c_char_p, []),
            ("attn_options_init_sized", None, [POINTER(Options), c_size_t]),
            ("attn_problem_init_sized", None, [POINTER(Problem), c_size_t]),
            ("attn_open", c_int, [POINTER(Options), pointer, error]),
            ("attn_close", None, [c_void_p]),
            ("attn_plan_create", c_int, [c_void_p, c_char_p, POINTER(PlanOptions), pointer, error]),
            ("attn_plan_destroy", None, [c_void_p]),
            ("attn_plan_variant", c_char_p, [c_void_p]),
            ("attn_plan_print", c_size_t, [c_void_p, c_char_p, c_size_t]),
            ("attn_problem_flops", c_double, [POINTER(Problem)]),
            ("attn_workspace_size", c_size_t, [c_void_p]),
            ("attn_workspace_alignment", c_size_t, [c_void_p]),
            ("attn_device_get", c_int, [c_void_p, POINTER(Device), error]),
            ("attn_variant_get", c_int, [c_void_p, c_int32, POINTER(Variant), error]),
            ("attn_variant_check", c_int, [c_void_p, c_char_p, POINTER(Problem), error]),
            ("attn_driver_function", c_int, [c_void_p, c_char_p, pointer, error]),
            ("attn_rows_sample", c_int, [POINTER(Problem), c_uint64, POINTER(Row), c_size_t,
                                         error]),
            ("attn_verify", c_int, [c_void_p, POINTER(Problem), c_char_p, POINTER(Row), c_size_t,
                                    POINTER(Comparison), error]),
            ("attn_comparison_print", c_size_t, [POINTER(Comparison), c_char_p, c_size_t]),
            ("attn_forward", c_int, [c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, error])):
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    if hasattr(lib, "attn_backward"):  # a library without it refuses every backward plan
        lib.attn_backward.restype, lib.attn_backward.argtypes = c_int, arguments
        for name, arguments in (
                ("attn_variant_get_backward", [c_void_p, c_int32, POINTER(Variant), error]),
                ("attn_gradient_sample", [POINTER(Problem), c_int, c_uint64, POINTER(Row), c_size_t,
                                          error]),
                ("attn_verify_backward", [c_void_p, POINTER(Problem), c_char_p, c_int,
                                          POINTER(Row), c_size_t, POINTER(Comparison), error])):
            function = getattr(lib, name)
            function.restype, function.argtypes = c_int, arguments
    if hasattr(lib, "attn_append"):  # likewise
        lib.attn_append.argtypes = [c_void_p, POINTER(Tensors), c_void_p, error]
        lib.attn_merge.argtypes = [c_void_p, pointer, pointer, c_int32, c_void_p, c_void_p, c_void_p,
                                   error]
    if hasattr(lib, "attn_accumulate"):
        lib.attn_accumulate.argtypes = [c_void_p] * 7 + [error]


_locks: "weakref.WeakSet[Any]" = weakref.WeakSet()


def new_lock() -> Any:
    """A lock that is free in a forked child, even if another thread held it: that thread does not
    exist there. (Guarded state changes in single steps, so it is consistent in the child.)"""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_locks() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # as threading and logging do; in place, for who holds .acquire


os.register_at_fork(after_in_child=_free_locks)

_lock = new_lock()
_lib: Optional[ctypes.CDLL] = None


def load() -> ctypes.CDLL:
    """The library, loaded at the first call; ImportError with the path if it cannot be."""
    global _lib
    with _lock:
        if _lib is None:
            path = library_path()
            try:
                lib = ctypes.CDLL(str(path))
                lib.attn_version.restype = c_char_p
                version = lib.attn_version().decode()
                if tuple(map(int, version.split(".")[:2])) < OLDEST:
                    raise ImportError(f"{path} is libattn {version}, expected "
                                      f"{OLDEST[0]}.{OLDEST[1]} or newer")
                _declare(lib)
            except (OSError, AttributeError) as error:
                raise ImportError(f"{path} is no libattn that can be loaded ({error}); set "
                                  "ATTN_LIBRARY to one, or install the wheel of attn") from error
            _lib = lib
        return _lib
