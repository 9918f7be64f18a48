# SPDX-License-Identifier: Apache-2.0
"""Contexts, plans and workspaces, kept between calls.

Invariant: a plan or context lives as long as the cache or a call holds it: what the cache drops
while another thread computes with it is destroyed when that call is done. What is kept does not
grow with the number of problems seen: at most CACHED_PLANS plans of a context, as many refusals and
calls of _fast.py, and on a GPU one workspace for each stream that was passed, or that arrays of
other frameworks than PyTorch were computed on.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from ctypes import byref, c_char, c_size_t, c_void_p
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _library as library
from ._arguments import MOST_THREADS, integer
from ._library import Error, Unsupported, fail

CACHED_PLANS = 512
MOST_STREAMS = 64
PER_THREAD = 2  # CU_STREAM_PER_THREAD
GRAIN = 1 << 16  # bytes: workspaces grow by more than a problem does

# Makes what ctypes passes on as it is: objects of its types it would convert at every call.
_pointer = c_void_p.from_param


def keep(table: Dict[Any, Any], key: Any, value: Any) -> None:
    """table[key] = value, and at most CACHED_PLANS of them: the oldest half is dropped first."""
    if len(table) >= CACHED_PLANS:
        for old in list(table)[:(CACHED_PLANS + 1) // 2]:
            table.pop(old, None)
    table[key] = value


class Context:
    """One opened device."""

    def __init__(self, device: str, threads: int = 0) -> None:
        self.lib = library.load()
        self.device = device
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
        # Without argtypes: half the time of a call.
        self.plan_create, self.plan_destroy, self.workspace_size = (
            self.lib[name] for name in ("attn_plan_create", "attn_plan_destroy",
                                        "attn_workspace_size"))
        self.functions = [(self.lib[name], getattr(self.lib, name))  # by direction
                          for name in ("attn_forward", "attn_backward") if hasattr(self.lib, name)]
        self.plan_destroy.restype, self.workspace_size.restype = None, c_size_t
        self.spare: List[ctypes.Array] = []  # workspaces of the CPU that no call uses
    # When Python ends, the system takes everything back; a driver may be gone by then, and so may
    # this module's names.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "handle", None) and not ending():
            self._close(self.handle)


class Plan:
    """A variant chosen for one problem and direction: the bytes of _library.pack_problem(). Tensors
    are the bytes of _library.pack_tensors()."""

    __slots__ = ("context", "handle", "size", "_size", "_call", "_call_again")

    def __init__(self, context: Context, problem: bytes, variant: Optional[str] = None,
                 direction: int = library.FORWARD, batch_invariant: bool = False) -> None:
        self.context = context
        handle, options = c_void_p(), None
        if variant is not None or direction or batch_invariant:
            name = None if variant is None else variant.encode()
            options = byref(library.PlanOptions(ctypes.sizeof(library.PlanOptions), name,
                                                direction, False, batch_invariant))
        if context.plan_create(context.handle, problem, options, byref(handle), None):
            error = Error()  # again, for the message
            status = context.lib.attn_plan_create(context.handle, problem, options, byref(handle),
                                                  byref(error))
            if status:
                fail(status, error)
        self.handle = _pointer(handle.value)
        self.size: int = context.workspace_size(self.handle)
        self._size = c_size_t.from_param(self.size)
        if direction < len(context.functions):  # _serving.py calls the others
            self._call, self._call_again = context.functions[direction]

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "handle") and not ending():
            self.context.plan_destroy(self.handle)

    @property
    def variant(self) -> str:
        return self.context.lib.attn_plan_variant(self.handle).decode()

    def __str__(self) -> str:
        line = ctypes.create_string_buffer(4096)
        self.context.lib.attn_plan_print(self.handle, line, len(line))
        return line.value.decode()

    def run(self, tensors: bytes, workspace: Any, stream: Optional[int]) -> None:
        """workspace: an address, an array of ctypes, or None: there is none."""
        workspace, stream = _pointer(workspace), _pointer(stream)
        if self._call(self.handle, tensors, workspace, self._size, stream, None):
            error = Error()  # again, for the message
            status = self._call_again(self.handle, tensors, workspace, self.size, stream,
                                      byref(error))
            if status:
                fail(status, error)

    def run_on_cpu(self, tensors: bytes) -> None:
        """With a workspace that the context keeps: one for each call in flight, the largest."""
        size = self.size
        if not size:
            return self.run(tensors, None, None)
        spare = self.context.spare
        try:
            memory = spare.pop()
        except IndexError:
            memory = None
        if memory is None or len(memory) < size:
            memory = (c_char * -(-size // GRAIN * GRAIN))()
        try:
            self.run(tensors, memory, None)
        finally:
            spare.append(memory)


class Cache:
    """A context, its plans by their problems, and the workspaces of its streams."""

    __slots__ = ("context", "plans", "refused", "_workspaces", "_lock")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.plans: Dict[bytes, Plan] = {}
        self.refused: Dict[bytes, str] = {}  # why there is no plan: a model asks in every layer
        self._workspaces: Dict[Any, _DriverMemory] = {}
        self._lock = library.new_lock()  # of the workspaces: nothing is freed before it is enqueued

    def plan(self, problem: bytes, variant: Optional[str] = None,
             direction: int = library.FORWARD, batch_invariant: bool = False) -> Plan:
        key = problem
        if direction or batch_invariant:
            key += bytes((direction, batch_invariant))
        if variant is not None:
            key += b"\xff" + variant.encode()
        return self.plans.get(key) or self.new_plan(problem, variant, direction, key,
                                                    batch_invariant)

    def new_plan(self, problem: bytes, variant: Optional[str], direction: int, key: bytes,
                 batch_invariant: bool = False) -> Plan:
        reason = self.refused.get(key)
        if reason is not None:
            raise Unsupported(reason)
        try:
            plan = Plan(self.context, problem, variant, direction, batch_invariant)
        except Unsupported as error:
            keep(self.refused, key, str(error))
            raise
        keep(self.plans, key, plan)
        return plan

    def run_on_stream(self, plan: Plan, tensors: bytes, stream: int) -> None:
        """With a workspace that the cache keeps for the stream, which runs calls in order."""
        if not plan.size:
            return plan.run(tensors, None, stream)
        # The per-thread default stream has one handle for all threads.
        key = (stream, threading.get_ident()) if stream == PER_THREAD else stream
        with self._lock:
            memory = self._workspaces.get(key)
            if memory is None or memory.size < plan.size:
                if len(self._workspaces) >= MOST_STREAMS:
                    self._workspaces.clear()  # cuMemFree waits for all that uses it
                held = memory.size if memory else GRAIN
                memory = _DriverMemory(self.context, max(plan.size, 2 * held))
                self._workspaces[key] = memory
            plan.run(tensors, memory.address, stream)


def driver_function(context: Context, name: str, *arguments: type) -> Callable[..., int]:
    """A function of the driver that the context was opened with."""
    found, error = c_void_p(), Error()
    status = context.lib.attn_driver_function(context.handle, name.encode(), byref(found),
                                              byref(error))
    if status:
        fail(status, error)
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(found.value or 0)


class _DriverMemory:
    """Memory of a GPU in its primary context, by the driver that the context was opened with."""

    def __init__(self, context: Context, size: int) -> None:
        self.context, self.size = context, size
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
        return driver_function(self.context, name, *arguments)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "address", None) and not ending():
            if not self._push(self._primary):
                self._free(self.address)
                self._pop(byref(c_void_p()))


_lock = library.new_lock()
caches: Dict[Tuple[int, int], Cache] = {}  # by the number of the GPU (-1: the CPU) and of threads
calls: Dict[Tuple[Any, ...], Any] = {}  # what _fast.py knows of calls: plans, and forms of outputs


def open_cache(gpu: int, threads: int) -> Cache:
    """caches[gpu, threads], made if it is not there."""
    threads = integer("threads", threads, 0, MOST_THREADS)
    with _lock:
        found = caches.get((gpu, threads))
        if found is None:
            device = "cpu" if gpu < 0 else f"cuda:{gpu}"
            found = Cache(Context(device, threads))
            caches[gpu, threads] = found
        return found


def clear_plans() -> None:
    """Forgets every plan, every context and every workspace: the next call makes its own."""
    global calls
    with _lock:
        # A new table: a call of another thread that is under way puts its plan into the old one.
        dropped, calls = [calls, *caches.values()], {}
        caches.clear()
    del dropped  # outside the lock
