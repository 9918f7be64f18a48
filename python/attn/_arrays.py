# SPDX-License-Identifier: Apache-2.0
"""Where an array lies: NumPy, PyTorch and everything with __dlpack__, seen as one kind of view.

Invariant: nothing is copied. A view holds what keeps the memory alive; a DLPack capsule is never
consumed, so that its own destructor gives it back when the view goes.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import (POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64,
                    c_void_p)
from typing import Any, Dict, NamedTuple, NoReturn, Optional, Tuple

import numpy as np

from ._arguments import integer
from ._library import BF16, E4M3, E5M2, FP16, FP32, InvalidArgument, Unsupported
from ._tangents import refuse_tangent

_ADDRESS_MAX = (1 << 64) - 1
INT32, MASK, BITS = 16, 17, 18  # beside the library's dtypes
DTYPE_NAMES = {FP32: "float32", FP16: "float16", BF16: "bfloat16", INT32: "int32",
               MASK: "bool or uint8", BITS: "int64 or uint64", E4M3: "float8_e4m3fn",
               E5M2: "float8_e5m2"}
ITEM_BYTES = {FP32: 4, FP16: 2, BF16: 2, INT32: 4, MASK: 1, BITS: 8, E4M3: 1, E5M2: 1}
_BY_NAME = {"float32": FP32, "float16": FP16, "bfloat16": BF16, "int32": INT32,
            "uint16": BF16,  # the bits of bfloat16, for who has no such dtype
            "bool": MASK, "uint8": MASK, "int64": BITS, "uint64": BITS, "float8_e4m3fn": E4M3,
            "float8_e5m2": E5M2}
FLOATS = (FP32, FP16, BF16)
CACHE = FLOATS + (E4M3, E5M2)  # of K and V


class View(NamedTuple):
    address: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # in elements
    dtype: int
    device: str  # "cpu" or "cuda:N"
    owner: Any
    writable: bool = True

    def size(self) -> int:
        size = 1
        for n in self.shape:
            size *= n
        return size


def _refuse_dtype(name: str, found: str, dtypes: Tuple[int, ...],
                  of_numpy: bool = False) -> NoReturn:
    words = [DTYPE_NAMES[dtype] for dtype in dtypes]
    if of_numpy and BF16 in dtypes:
        words[dtypes.index(BF16)] += " (of ml_dtypes, or its bits as uint16)"
    expected = " or ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])
    raise InvalidArgument(f"{name} has {found}, expected {expected}"
                          f"{', in native byte order' if of_numpy else ''}")


# ---- DLPack ----------------------------------------------------------------------------------


class _DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class _Versioned(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager", c_void_p),
                ("deleter", c_void_p), ("flags", c_uint64), ("tensor", _DLTensor)]


_READ_ONLY = 1
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL, _E4M3FN, _E5M2 = 0, 1, 2, 4, 6, 10, 12
_BY_CODE = {(_FLOAT, 32): FP32, (_FLOAT, 16): FP16, (_BFLOAT, 16): BF16, (_INT, 32): INT32,
            (_UINT, 8): MASK, (_BOOL, 8): MASK, (_INT, 64): BITS, (_UINT, 64): BITS,
            (_E4M3FN, 8): E4M3, (_E5M2, 8): E5M2}

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype = ctypes.c_int
_capsule_is.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _capsule_of(array: Any, stream: Optional[int]) -> Any:
    # In DLPack's words for CUDA 1 is the legacy default stream, and 0 is not allowed.
    arguments = {} if stream is None else {"stream": stream or 1}
    try:
        return array.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # a producer older than version 1
        return array.__dlpack__(**arguments)


def view_of_capsule(name: str, capsule: Any,
                    dtypes: Tuple[int, ...] = tuple(DTYPE_NAMES)) -> View:
    """What a DLPack capsule, of either version, says."""
    writable = True
    if _capsule_is(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major > 1:
            raise Unsupported(f"{name} speaks DLPack {versioned.major}.{versioned.minor}, expected "
                              "1.x")
        tensor, writable = versioned.tensor, not versioned.flags & _READ_ONLY
    elif _capsule_is(capsule, b"dltensor"):
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise InvalidArgument(f"{name} gave no DLPack capsule that is unused")
    dtype = _BY_CODE.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype not in dtypes:
        _refuse_dtype(name, f"the DLPack type (code {tensor.code}, {tensor.bits} bits, "
                      f"{tensor.lanes} lanes)", dtypes)
    if tensor.device_type in (_CUDA, _CUDA_MANAGED):
        device = f"cuda:{tensor.device_id}"
    elif tensor.device_type in (_CPU, _CUDA_HOST):
        device = "cpu"
    else:
        raise Unsupported(f"{name} lies on a device of DLPack type {tensor.device_type}, expected "
                          "a CPU (1) or CUDA (2)")
    shape = tuple(tensor.shape[:tensor.ndim])
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else contiguous(shape)
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, device, capsule,
                writable)


# ---- any array -------------------------------------------------------------------------------


def contiguous(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


# dtype.name takes longer than all the rest of a view.
_BY_NUMPY: Dict[np.dtype, Optional[int]] = {}


def _view_of_numpy(name: str, array: np.ndarray, dtypes: Tuple[int, ...]) -> View:
    try:
        dtype = _BY_NUMPY[array.dtype]
    except KeyError:
        dtype = _BY_NAME.get(array.dtype.name) if array.dtype.isnative else None
        _BY_NUMPY[array.dtype] = dtype
    if dtype not in dtypes:
        _refuse_dtype(name, f"dtype {array.dtype}", dtypes, of_numpy=True)
    item = array.itemsize
    strides = []
    for step in array.strides:
        if step % item:
            raise InvalidArgument(f"{name} has strides of {array.strides} bytes, expected "
                                  f"multiples of {item}")
        strides.append(step // item)
    return View(array.__array_interface__["data"][0], array.shape, tuple(strides), dtype, "cpu",
                array, array.flags.writeable)


def _view_of_torch(name: str, array: Any, dtypes: Tuple[int, ...]) -> View:
    torch = sys.modules["torch"]
    dtype = _BY_NAME.get(str(array.dtype)[len("torch."):])
    if dtype not in dtypes:
        _refuse_dtype(name, f"dtype {array.dtype}", dtypes)
    if array.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"{name} lies on {array.device}, expected cpu or cuda")
    if array.is_neg():
        raise Unsupported(f"{name} is a view of its negative (is_neg() is True), expected one of "
                          "its values: it would have to be copied (.resolve_neg())")
    refuse_tangent(name, array)
    if array.requires_grad and torch.is_grad_enabled():
        # calls that attention() can differentiate do not come here
        raise Unsupported(f"{name} requires a gradient, and a call with out, lse, return_lse, "
                          "variant, tensor_cores, stream, used_q, draft_mask or "
                          "batch_invariant gives none: call it under torch.no_grad()")
    device = "cpu" if array.device.type == "cpu" else f"cuda:{array.device.index or 0}"
    try:
        return View(array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype, device,
                    array)
    except RuntimeError as error:
        if array.is_nested or array.layout != torch.strided:
            raise Unsupported(f"{name} is {'nested' if array.is_nested else array.layout}, "
                              "expected a plain tensor") from error
        raise Unsupported(f"{name} has no memory of its own, as within torch.vmap: {error}") \
            from error


def _view(name: str, array: Any, stream: Optional[int], dtypes: Tuple[int, ...]) -> View:
    if isinstance(array, np.ndarray):
        return _view_of_numpy(name, array, dtypes)
    if is_torch(array):
        return _view_of_torch(name, array, dtypes)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        capsule = _capsule_of(array, stream if is_on_gpu(array) else None)
        return view_of_capsule(name, capsule, dtypes)
    raise InvalidArgument(f"{name} is a {type(array).__name__}, expected an array of NumPy or "
                          "PyTorch, or one with __dlpack__")


def view(name: str, array: Any, stream: Optional[int] = None,
         dtypes: Tuple[int, ...] = tuple(DTYPE_NAMES)) -> View:
    """The array of that name in error messages, where it lies. stream: that of the call, so that
    a producer on another one makes it wait. dtypes: those it may have."""
    found = _view(name, array, stream, dtypes)
    if found.address & 15:
        if not found.size():
            return found._replace(address=0)  # nothing lies there: no address is a wrong one
        item = ITEM_BYTES[found.dtype]
        if found.address % item:
            raise InvalidArgument(f"{name} lies at the address {found.address:#x}, expected a "
                                  f"multiple of {item}, the bytes of an element")
    return found


class _Places:
    """Where the elements of a view lie, as NumPy reads it; of whatever device, for it only
    compares them."""

    def __init__(self, of: View) -> None:
        item = ITEM_BYTES[of.dtype]
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{item}", "data": (of.address, True), "shape": of.shape,
            "strides": tuple(step * item for step in of.strides)}


def _bounds(of: View) -> Tuple[int, int]:
    """The first byte, and the one after the last."""
    low, high, item = of.address, of.address, ITEM_BYTES[of.dtype]
    for n, step in zip(of.shape, of.strides):
        if step < 0:
            low += (n - 1) * step * item
        else:
            high += (n - 1) * step * item
    return low, high + item


def share_memory(one: View, other: View) -> bool:
    if one.device != other.device or not one.size() or not other.size():
        return False
    mine, theirs = _bounds(one), _bounds(other)
    if mine[1] <= theirs[0] or theirs[1] <= mine[0]:  # as nearly always: NumPy takes its time
        return False
    try:
        return np.shares_memory(np.asarray(_Places(one)), np.asarray(_Places(other)),
                                max_work=1000)  # type: ignore[arg-type]
    except RuntimeError:  # too hard to tell within that work: then better not
        return True


def is_on_gpu(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return False
    if is_torch(array):
        return array.is_cuda
    return hasattr(array, "__dlpack_device__") and \
        array.__dlpack_device__()[0] in (_CUDA, _CUDA_MANAGED)


def current_stream(array: Any, given: Any) -> int:
    """The CUstream to compute on: the one given, else the current one of the framework of the
    array, which is on a GPU."""
    if given is not None:
        for attribute in ("cuda_stream", "ptr"):  # of PyTorch and of CuPy
            if hasattr(given, attribute):
                return int(getattr(given, attribute))
        return integer("stream", given, 0, _ADDRESS_MAX)
    if is_torch(array):
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy.cuda.get_current_stream().ptr
    return 0


def numpy_dtype(dtype: int, like: Any = None) -> np.dtype:
    """like: an array whose dtype is taken where it has the right size (bfloat16 has two names)."""
    if isinstance(like, np.ndarray):
        return like.dtype
    if dtype != BF16:
        return np.dtype(DTYPE_NAMES[dtype])
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    return np.dtype(ml_dtypes.bfloat16)


def empty(shape: Tuple[int, ...], dtype: int, like: Any, device: str) -> Any:
    """A new array of the same framework and device as `like`."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, DTYPE_NAMES[dtype]), device=like.device)
    if device == "cpu":
        return np.empty(shape, numpy_dtype(dtype, like if dtype != FP32 else None))
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(like, cupy.ndarray):
        name = DTYPE_NAMES[dtype]
        return cupy.empty(shape, like.dtype if name not in ("float32", "float16") else name)
    raise Unsupported(f"out is None, and a {type(like).__module__}.{type(like).__name__} on "
                      f"{device} cannot be made and then written: pass out= (and lse=), arrays of "
                      "PyTorch or CuPy")
