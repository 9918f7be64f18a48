# SPDX-License-Identifier: Apache-2.0
"""Contexts, plans and workspaces, kept between calls.

Invariant: a plan or context lives as long as somebody holds it, in the cache or in a call: what
the cache drops while another thread computes with it is destroyed when that call is done.
"""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Tuple

from . import _library as library
from ._library import Error, Problem, fail

CACHED_PLANS = 256
_Allocator = Callable[[int], Tuple[Any, int]]


class Context:
    """One opened device."""

    def __init__(self, device: str, threads: int = 0) -> None:
        self.lib = library.load()
        self.device = device
        self.cpu = device == "cpu"
        self._close = self.lib.attn_close
        self.handle = c_void_p()
        options = library.Options()
        self.lib.attn_options_init_sized(byref(options), ctypes.sizeof(options))
        options.device = device.encode()
        options.threads = threads
        error = Error()
        status = self.lib.attn_open(byref(options), byref(self.handle), byref(error))
        if status:
            fail(status, error)
        # Without argtypes, for callers who convert once: half the time of a call.
        self.forward: Callable[..., int] = self.lib["attn_forward"]
        self.spare: List[ctypes.Array] = []  # workspaces of the CPU that no call uses

    # When Python ends, the system takes everything back; a driver may be gone by then, and so may
    # this module's names.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "handle", None) and not ending():
            self._close(self.handle)


class Plan:
    """A variant chosen for one problem. Tensors are the bytes of _library.tensors()."""

    def __init__(self, context: Context, problem: Problem, variant: Optional[str]) -> None:
        lib = context.lib
        self.context = context
        self._destroy = lib.attn_plan_destroy
        self.call = context.forward
        self.handle = c_void_p()
        error = Error()
        options = library.PlanOptions(ctypes.sizeof(library.PlanOptions),
                                      None if variant is None else variant.encode())
        status = lib.attn_plan_create(context.handle, byref(problem), byref(options),
                                      byref(self.handle), byref(error))
        if status:
            fail(status, error)
        self.variant = lib.attn_plan_variant(self.handle).decode()
        self.size: int = lib.attn_workspace_size(self.handle)
        # What ctypes passes on as it is: objects of its types it would convert at every call.
        self.handle_argument = c_void_p.from_param(self.handle.value)
        self.size_argument = c_size_t.from_param(self.size)
        self.places: Dict[int, _Place] = {}
        self.lock = library.new_lock()  # of the workspaces: nobody else may enqueue in between

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "handle", None) and not ending():
            self._destroy(self.handle)

    def __str__(self) -> str:
        line = ctypes.create_string_buffer(4096)
        self.context.lib.attn_plan_print(self.handle, line, len(line))
        return line.value.decode()

    def forward(self, tensors: bytes, workspace: int, stream: int) -> None:
        error = Error()
        status = self.context.lib.attn_forward(self.handle, tensors, workspace, self.size, stream,
                                               byref(error))
        if status:
            fail(status, error)

    def prepared(self, tensors: bytes, workspace: int) -> Callable[[c_void_p], None]:
        """A function of the stream alone: the call with all else converted beforehand."""
        call, handle, size = self.call, self.handle_argument, self.size_argument
        where = c_void_p.from_param(workspace)

        def forward(stream: c_void_p) -> None:
            if call(handle, tensors, where, size, stream, None):
                self.forward(tensors, workspace, stream.value or 0)  # once more, for its sentence
        return forward

    def forward_on_cpu(self, tensors: bytes) -> None:
        """With a workspace that the context keeps: one for each call in flight, the largest."""
        spare = self.context.spare
        try:
            memory = spare.pop()
        except IndexError:
            memory = None
        if memory is None or len(memory) < self.size:
            memory = (ctypes.c_char * max(self.size, 1))()
        workspace = ctypes.addressof(memory)
        try:
            self.forward(tensors, workspace, 0)
        finally:
            spare.append(memory)

    def forward_on_stream(self, tensors: bytes, stream: int,
                          allocate: Optional[_Allocator] = None) -> None:
        """With a workspace that the plan keeps, one for each stream: a stream runs calls in order.
        allocate(bytes) gives the owner of new memory and its address; None: by the driver."""
        place = self.places.get(stream) or self.new_place(stream, allocate)
        arguments = (self.handle_argument, tensors, place.workspace, self.size_argument,
                     place.stream, None)
        if self.size:
            with self.lock:
                status = self.call(*arguments)
        else:
            status = self.call(*arguments)
        if status:  # once more, for its sentence
            self.forward(tensors, place.address, stream)

    def new_place(self, stream: int, allocate: Optional[_Allocator]) -> _Place:
        owner: Any = None
        address = 0
        with self.lock:
            if self.size:
                if allocate is not None:
                    owner, address = allocate(self.size)
                else:
                    owner = _DriverMemory(self.context, self.size)
                    address = owner.address
            place = _Place(c_void_p.from_param(address), c_void_p.from_param(stream), address,
                           owner)
            return self.places.setdefault(stream, place)


class _Place(NamedTuple):
    """Where calls on one stream work."""
    workspace: Any  # this and the stream as arguments that ctypes passes on as they are
    stream: Any
    address: int    # of the workspace
    owner: Any


class _DriverMemory:
    """Memory of a GPU in its primary context, by the driver that the context was opened with."""

    def __init__(self, context: Context, size: int) -> None:
        self.context = context
        self._free = self._function("cuMemFree", ctypes.c_uint64)
        self._push = self._function("cuCtxPushCurrent", c_void_p)
        self._pop = self._function("cuCtxPopCurrent", ctypes.POINTER(c_void_p))
        retain = self._function("cuDevicePrimaryCtxRetain", ctypes.POINTER(c_void_p), ctypes.c_int)
        allocate = self._function("cuMemAlloc", ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t)
        self._primary = c_void_p()
        address = ctypes.c_uint64()
        # The library's context has retained it as well, or the caller's framework has.
        ordinal = int(context.device.partition(":")[2] or 0)
        status = retain(byref(self._primary), ordinal) or self._push(self._primary)
        if not status:
            status = allocate(byref(address), size)
            self._pop(byref(c_void_p()))
        if status:
            raise library.OutOfMemory(f"a workspace of {size} bytes on {context.device} could not "
                                      f"be allocated: CUDA error {status}")
        self.address = address.value

    def _function(self, name: str, *arguments: type) -> Callable[..., int]:
        found, error = c_void_p(), Error()
        status = self.context.lib.attn_driver_function(self.context.handle, name.encode(),
                                                       byref(found), byref(error))
        if status:
            fail(status, error)
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(found.value or 0)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "address", None) and not ending():
            if not self._push(self._primary):
                self._free(self.address)
                self._pop(byref(c_void_p()))


_lock = library.new_lock()
_contexts: Dict[Tuple[str, int], Context] = {}
_plans: "OrderedDict[Hashable, Plan]" = OrderedDict()
when_cleared: List[Callable[[], None]] = []  # who else keeps plans


def context_of(device: str, threads: int = 0) -> Context:
    with _lock:
        found = _contexts.get((device, threads))
        if found is None:
            found = _contexts[device, threads] = Context(device, threads)
        return found


def plan_of(key: Hashable, make: Callable[[], Plan]) -> Plan:
    """The plan that was made for an equal key, else make()'s. The least recently used ones go."""
    with _lock:
        plan = _plans.get(key)
        if plan is not None:
            _plans.move_to_end(key)
            return plan
    plan = make()
    with _lock:
        plan = _plans.setdefault(key, plan)
        _plans.move_to_end(key)
        dropped = [_plans.popitem(last=False)[1] for _ in range(len(_plans) - CACHED_PLANS)]
    del dropped  # their destructors run outside the lock
    return plan


def clear_plans() -> None:
    """Forgets every plan and every context: the next call makes its own."""
    with _lock:
        dropped = list(_plans.values()), list(_contexts.values())
        _plans.clear()
        _contexts.clear()
    for forget in when_cleared:
        forget()
    del dropped
