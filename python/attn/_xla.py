# SPDX-License-Identifier: Apache-2.0
"""XLA's foreign function interface for attn.jax: the handler that runs a plan on XLA's buffers.

The structs are those of xla/ffi/api/c_api.h, major version 0. Later minor versions only add fields
at their ends, and XLA passes the size of each struct. The handler is a Python function that XLA
calls through ctypes. Unlike a pure_callback it works on XLA's own buffers, and on a GPU on XLA's
stream. The library computes without the GIL.

One attribute, a string, describes a call: threads, direction, the field of attn_tensors that each
argument and result is, and the bytes of attn_problem.

Invariant: no exception leaves the handler; it becomes an XLA error with the same message.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

from ._library import TENSORS_SIZE, DeviceError, Tensors
from ._plans import Cache, caches, driver_function, keep, open_cache

TARGET = "attn"
FIELDS = [name for name, _ in Tensors._fields_]  # the first is its size
_EXECUTE, _METADATA = 3, 1
_F32 = 11  # XLA's number of float32; results of other types have 2 bytes
_INVALID_ARGUMENT, _UNIMPLEMENTED, _INTERNAL = 3, 12, 13


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", c_uint32)]


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p),
                ("metadata", POINTER(_Metadata))]


class _Buffer(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("dtype", c_int), ("data", c_void_p),
                ("rank", c_int64), ("dims", POINTER(c_int64))]


class _Span(Structure):
    _fields_ = [("text", c_void_p), ("length", c_size_t)]


class _Buffers(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("count", c_int64),
                ("types", c_void_p), ("buffers", POINTER(POINTER(_Buffer)))]


class _Attributes(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("count", c_int64),
                ("types", c_void_p), ("names", c_void_p), ("values", POINTER(POINTER(_Span)))]


class _Failure(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("message", c_char_p),
                ("code", c_int)]


class _Stream(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("context", c_void_p),
                ("stream", c_void_p)]


class _Api(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("version", _Version),
                ("internal", c_void_p),
                ("create_error", ctypes.CFUNCTYPE(c_void_p, POINTER(_Failure))),
                ("get_message", c_void_p), ("destroy", c_void_p), ("register", c_void_p),
                ("get_stream", ctypes.CFUNCTYPE(c_void_p, POINTER(_Stream)))]


class _Frame(Structure):
    _fields_ = [("size", c_size_t), ("extension", POINTER(_Extension)), ("api", POINTER(_Api)),
                ("context", c_void_p), ("stage", c_int), ("arguments", _Buffers),
                ("results", _Buffers), ("attributes", _Attributes)]


# ---- one call ----------------------------------------------------------------------------------


class Call(NamedTuple):
    """What a plan is made of, and the meaning of its buffers."""
    threads: int
    direction: int
    fields: Tuple[str, ...]  # of attn_tensors: arguments, then results
    clears: bool  # zero the results first: packed rows may belong to no sequence
    problem: bytes

    def text(self) -> str:
        places = ",".join(str(FIELDS.index(name)) for name in self.fields)
        return f"{self.threads} {self.direction} {places} {int(self.clears)} {self.problem.hex()}"

    def cache(self, gpu: int) -> Cache:
        """gpu: -1 is the CPU."""
        key = gpu, self.threads if gpu < 0 else 0
        return caches.get(key) or open_cache(*key)


_known: Dict[bytes, Tuple[Call, List[int]]] = {}


def _parse(text: bytes) -> Tuple[Call, List[int]]:
    threads, direction, places, clears, problem = text.decode().split(" ")
    found = [int(place) for place in places.split(",")]
    call = Call(int(threads), int(direction), tuple(FIELDS[i] for i in found), clears == "1",
                bytes.fromhex(problem))
    keep(_known, text, (call, found))
    return call, found


def _bytes_of(buffer: _Buffer, item: int) -> int:
    for i in range(buffer.rank):
        item *= buffer.dims[i]
    return item


def _stream(frame: _Frame) -> Tuple[int, int]:
    """The GPU whose context XLA has made current, and the stream of the call."""
    asked = _Stream(ctypes.sizeof(_Stream), None, frame.context, None)
    if frame.api.contents.get_stream(asked):
        raise DeviceError("XLA names no stream")
    gpu = c_int()
    status = _driver(0, "cuCtxGetDevice", POINTER(c_int))(gpu)
    if status:
        raise DeviceError(f"no CUDA context is current: CUDA error {status}")
    return gpu.value, asked.stream or 0


def _driver(gpu: int, name: str, *arguments: type) -> Any:
    return driver_function((caches.get((gpu, 0)) or open_cache(gpu, 0)).context, name, *arguments)


def _execute(frame: _Frame, on_gpu: bool) -> None:
    span = frame.attributes.values[0].contents
    text = ctypes.string_at(span.text, span.length)
    call, places = _known.get(text) or _parse(text)
    gpu, stream = _stream(frame) if on_gpu else (-1, 0)
    tensors = (ctypes.c_uint64 * len(FIELDS))(TENSORS_SIZE)
    inputs, results = frame.arguments, frame.results
    for i, place in enumerate(places):
        of_results = i - inputs.count
        buffer = (inputs.buffers[i] if of_results < 0 else results.buffers[of_results]).contents
        tensors[place] = buffer.data or 0
        size = _bytes_of(buffer, 4 if buffer.dtype == _F32 else 2)
        if of_results >= 0 and call.clears and size > 0:
            if not on_gpu:
                ctypes.memset(buffer.data, 0, size)
            elif _driver(gpu, "cuMemsetD8Async", ctypes.c_uint64, ctypes.c_ubyte, c_size_t,
                         c_void_p)(buffer.data, 0, size, stream):
                raise DeviceError("the results could not be cleared")
    cache = call.cache(gpu)
    plan = cache.plan(call.problem, None, call.direction)
    if on_gpu:
        cache.run_on_stream(plan, bytes(tensors), stream)
    else:
        plan.run_on_cpu(bytes(tensors))


def _error(api: Any, error: BaseException) -> int:
    code = (_UNIMPLEMENTED if isinstance(error, NotImplementedError) else
            _INVALID_ARGUMENT if isinstance(error, ValueError) else _INTERNAL)
    failure = _Failure(_Failure.code.offset + _Failure.code.size, None, str(error).encode(), code)
    return api.contents.create_error(failure)


_minor = 0


def register(ffi: Any) -> None:
    """Registers the handler with jax.ffi. XLA asks which version of its interface the handler was
    built for. All minor versions agree on what is used here, so it is that of jaxlib's header."""
    global _minor
    header = Path(ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    major, _minor = (int(n) for n in re.findall(r"define XLA_FFI_API_M\w+ (\d+)", header))
    if major != 0:
        raise ImportError(f"XLA's foreign function interface has version {major}.{_minor}, "
                          "expected 0")
    for platform, handler in handlers.items():
        ffi.register_ffi_target(TARGET, ffi.pycapsule(handler), platform=platform)


def _handler(on_gpu: bool) -> Any:
    @ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
    def handler(pointer: Any) -> Any:
        frame = pointer.contents
        try:
            if frame.extension and frame.extension.contents.type == _METADATA:
                metadata = frame.extension.contents.metadata.contents
                metadata.version.major, metadata.version.minor = 0, _minor
                metadata.traits = 0
            elif frame.stage == _EXECUTE:
                _execute(frame, on_gpu)
        except BaseException as error:  # KeyboardInterrupt too: the caller is not Python
            return _error(frame.api, error)
        return None
    return handler


handlers = {"cpu": _handler(False), "CUDA": _handler(True)}
