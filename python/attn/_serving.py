# SPDX-License-Identifier: Apache-2.0
"""append(), merge() and accumulate(): new rows into a KV cache, and partial results into one.

Invariant: an argument that is wrong is named before anything is written.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np

from . import _arrays, _library
from ._arguments import MOST_ROWS, MOST_THREADS, choice, integer
from ._arrays import DTYPE_NAMES, FLOATS, INT32, View
from ._attention import (_cache, _check_rows, _expect, _length, _output, _own_memory, _pages,
                         _scale, _small)
from ._library import (APPEND, FP32, LAYOUT, MERGE, PAGE_LAYOUT, Error, InvalidArgument, Problem,
                       Tensors, Unsupported, fail)
from ._plans import caches, open_cache
from ._problem import alignment_of, free_strides

_ROPE = {False: 1, True: 2}  # interleaved


def _plan(name: str, device: str, threads: Any, problem: Problem, direction: int) -> Any:
    gpu = int(device[len("cuda:"):]) if device != "cpu" else -1
    threads = integer("threads", threads, 0, MOST_THREADS)
    key = (gpu, threads if gpu < 0 else 0)
    cache = caches.get(key) or open_cache(*key)
    if not hasattr(cache.context.lib, name):
        raise Unsupported(f"this libattn has no {name}: it is older than the package")
    return cache.plan(bytes(problem), None, direction)


def _check(function: Callable[..., int], *arguments: Any) -> None:
    error = Error()
    status = function(*arguments, byref(error))
    if status:
        fail(status, error)


def _new_problem(dtype: int, views: Sequence[View]) -> Problem:
    problem = Problem()
    _library.load().attn_problem_init_sized(byref(problem), ctypes.sizeof(problem))
    problem.dtype = dtype
    problem.alignment = alignment_of(*(x.address for x in views if x.size()))
    return problem


def _set(strides: Any, array: View, head: int, row: int, packed: bool) -> None:
    """All three, also those that carry no meaning: three zeros would be a default."""
    free = free_strides(array.shape, array.strides)
    strides.batch, strides.head, strides.row = _library.AUTO if packed else free[0], free[head], \
        free[row]


def _checked(name: str, found: View, like: Optional[View], dims: int, words: str) -> View:
    if len(found.shape) != dims:
        raise InvalidArgument(f"{name} has the shape {found.shape}, expected {words}")
    _check_rows(name, found)
    if like is not None:
        _expect(f"the device of {name}", found.device, like.device)
        if found.dtype in FLOATS:  # not fp8
            _expect(f"the dtype of {name}", DTYPE_NAMES[found.dtype], DTYPE_NAMES[like.dtype])
    return found


def _view(name: str, array: Any, like: Optional[View], dims: int, words: str,
          stream: Optional[int]) -> View:
    return _checked(name, _arrays.view(name, array, stream, FLOATS), like, dims, words)


def _scales(name: str, value: Any, array: Any, cache: View, head: int, row: int, strides: Any,
            new: View, stream: Optional[int]) -> View:
    """Sets `strides`; an array with one scale per token is an output."""
    found, steps = _scale(name, value, cache, head, array, new, stream)
    strides.batch, strides.head, strides.row = steps[0], steps[head + 1], steps[row + 1]
    if strides.row:
        _expect(f"the shape of {name}, which is written", found.shape, cache.shape[:-1])
        if not found.writable or not hasattr(value, "shape"):
            raise InvalidArgument(f"{name} has one scale per token and is no array that can be "
                                  "written")
    return found


def _tables(rope: Any, interleaved: Any, problem: Problem, dim: int, like: View,
            stream: Optional[int]) -> Tuple[View, View]:
    if not isinstance(rope, (tuple, list)) or len(rope) != 2:
        raise InvalidArgument(f"rope is a {type(rope).__name__}, expected (cos, sin)")
    cos, sin = (_arrays.view(name, x, stream, FLOATS) for name, x in zip(("cos", "sin"), rope))
    for name, table in (("cos", cos), ("sin", sin)):
        _expect(f"the device of {name}", table.device, like.device)
        _check_rows(name, table)
        if len(table.shape) != 2 or not 0 < 2 * table.shape[1] <= dim:
            raise InvalidArgument(f"{name} has the shape {table.shape}, expected (positions, up to "
                                  f"{dim // 2})")
        if table.dtype not in (FP32, like.dtype):
            raise InvalidArgument(f"{name} has the dtype {DTYPE_NAMES[table.dtype]}, expected "
                                  f"float32 or {DTYPE_NAMES[like.dtype]}")
    _expect("the shape of sin", sin.shape, cos.shape)
    _expect("the dtype of sin", DTYPE_NAMES[sin.dtype], DTYPE_NAMES[cos.dtype])
    if cos.shape[0] > 1:
        _expect("the strides of sin", sin.strides, cos.strides)
    problem.rope, problem.rope_dtype = choice("interleaved", interleaved, _ROPE), cos.dtype
    problem.rope_dim, problem.rope_rows = 2 * cos.shape[1], cos.shape[0]
    problem.rope_stride = cos.strides[0] if cos.shape[0] > 1 else 0
    return cos, sin


def append(k_new: Any, v_new: Any, k_cache: Any, v_cache: Any, *, used_kv: Any,
           block_table: Any = None, rope: Any = None, interleaved: bool = False, q: Any = None,
           q_out: Any = None, cu_seqlens_q: Any = None, k_scale: Any = None, v_scale: Any = None,
           kv_dtype: Optional[str] = None, layout: str = "bhsd", page_layout: str = "nhd",
           threads: int = 0, stream: Any = None) -> Any:
    """Writes new rows of K and V into a KV cache, in one launch: row i of the n new rows of batch
    entry b becomes key used_kv[b] - n + i. Returns q, rotated, if it was given.

    k_new, v_new: (batch, heads, rows, dim), with layout="bshd" (batch, rows, heads, dim); packed
        rows of all sequences, (heads, total, dim) or (total, heads, dim), with cu_seqlens_q.
    k_cache, v_cache: written. (batch, heads, capacity, dim) in the same layout. With block_table
        pools of pages as attention() takes them: (pages, page_size, heads, dim), with
        page_layout="hnd" (pages, heads, page_size, dim). Packed rows need pages.
    used_kv: int32, the lengths AFTER the append: the same array serves attention(). Rows whose
        place would be below 0 are skipped, so that 0 marks an unused batch entry.
    block_table: int32 (batch, pages of the longest sequence).
    rope: (cos, sin), each (positions, rotary dim / 2), float32 or of the dtype of k_new: K is
        rotated by the row of its key, in the first rotary dim columns. interleaved: columns 2c and
        2c + 1 are a pair, else c and c + rotary dim / 2.
    q: the queries of the same rows, to be rotated likewise; its heads are a multiple of k_new's.
        The result is q_out (which may be q), or a new array.
    k_scale, v_scale, kv_dtype: of fp8 caches, as in attention(). A row is stored as x / scale,
        rounded to nearest, saturated. Scales of the whole cache or of a head are read. An array of
        the shape of the cache without its last dimension has one scale per token: those of the new
        rows are computed (the largest |x| / 448, e5m2: / 57344) and written to it.
    threads, stream: as in attention().

    >>> import numpy as np, attn
    >>> k = np.zeros((1, 1, 4, 2), np.float32)      # room for 4 keys
    >>> v = np.zeros_like(k)
    >>> attn.append(np.ones((1, 1, 1, 2), np.float32), np.full((1, 1, 1, 2), 7, np.float32), k, v,
    ...             used_kv=[3])
    >>> k[0, 0, :, 0], v[0, 0, :, 1]
    (array([0., 0., 1., 0.], dtype=float32), array([0., 0., 7., 0.], dtype=float32))
    """
    where = _arrays.current_stream(k_new, stream) if _arrays.is_on_gpu(k_new) else None
    bshd = choice("layout", layout, LAYOUT)
    packed, paged = cu_seqlens_q is not None, block_table is not None
    if packed and not paged:
        raise InvalidArgument("cu_seqlens_q is given without block_table, expected both")
    words = ("(total, heads, dim)" if bshd else "(heads, total, dim)") if packed else \
        ("(batch, seq, heads, dim)" if bshd else "(batch, heads, seq, dim)")
    head, row = (-2, -3) if bshd else (-3, -2)
    head_kv, row_kv, words_kv = head, row, words
    if paged:
        nhd = choice("page_layout", page_layout, PAGE_LAYOUT)
        words_kv = "(pages, page_size, heads, dim)" if nhd else "(pages, heads, page_size, dim)"
        head_kv, row_kv = (-2, -3) if nhd else (-3, -2)
    kn = _view("k_new", k_new, None, 4 - packed, words, where)
    vn = _view("v_new", v_new, kn, 4 - packed, words, where)
    kc = _checked("k_cache", _cache("k_cache", k_cache, kv_dtype, where), kn, 4, words_kv)
    vc = _checked("v_cache", _cache("v_cache", v_cache, kv_dtype, where), kn, 4, words_kv)
    _expect("the dtype of v_cache", DTYPE_NAMES[vc.dtype], DTYPE_NAMES[kc.dtype])
    heads, rows, dim, dim_v = kn.shape[head], kn.shape[row], kn.shape[-1], vn.shape[-1]
    _expect("the shape of v_new", vn.shape, kn.shape[:-1] + (dim_v,))
    _expect("the shape of v_cache", vc.shape, kc.shape[:-1] + (dim_v,))
    _expect("the heads of k_cache", kc.shape[head_kv], heads)
    _expect("the columns of k_cache", kc.shape[-1], dim)
    views = {"k_new": kn, "v_new": vn, "k_cache": kc, "v_cache": vc}
    vq = vo = None
    if q is not None:
        vq = _view("q", q, kn, 4 - packed, words, where)
        heads_q = vq.shape[head]
        shape = list(kn.shape)
        shape[head] = heads_q
        _expect("the shape of q", vq.shape, tuple(shape))
        q_out, vo = _output("q_out", q_out, vq.shape, vq.dtype, q, vq.device, where)
        _check_rows("q_out", vo)
        same = vo.address == vq.address and vo.strides == vq.strides
        views.update({"q_out": vo} if same else {"q": vq, "q_out": vo})
    elif q_out is not None:
        raise InvalidArgument("q_out is given without q, expected both")
    used = _small("used_kv", used_kv, INT32, kn, where)
    cu = None
    if packed:
        cu, longest = _length("q", cu_seqlens_q, rows if where is not None else None, kn, where)
    batch = cu.shape[0] - 1 if cu else kn.shape[0]
    _expect("the shape of used_kv", used.shape, (batch,))
    pages = None
    if paged:
        pages = _pages(block_table, None, used_kv, None, batch, kc, row_kv, kn, where)
    else:
        _expect("the batch of k_cache", kc.shape[0], batch)
    problem = _new_problem(kn.dtype, list(views.values()))
    written = ["k_cache", "v_cache", "q_out"]
    for name, value, cache, steps in (("k_scale", k_scale, kc, problem.k_scale),
                                      ("v_scale", v_scale, vc, problem.v_scale)):
        if value is not None:
            views[name] = _scales(name, value, k_new, cache, head_kv, row_kv, steps, kn, where)
            written += [name] if steps.row else []
    for name in written:
        if name in views:
            if not views[name].writable:
                raise InvalidArgument(f"{name} is read-only, expected an array that can be "
                                      "written")
            _own_memory(name, views)

    if kc.dtype not in FLOATS:
        problem.dtype_kv = kc.dtype
    problem.layout, problem.batch = bshd, batch
    problem.heads_kv, problem.heads_q = heads, vq.shape[head] if vq else heads
    problem.seq_q, problem.total_q = (longest, rows) if cu else (rows, 0)
    problem.seq_kv = pages.longest if pages else kc.shape[row_kv]
    problem.head_dim, problem.head_dim_v = dim, dim_v
    problem.packed, problem.used_kv = packed, True
    if pages:
        problem.page_size, problem.num_pages = pages.size, pages.count
        problem.block_table_stride = pages.stride
    for strides, array in ((problem.k_new, kn), (problem.v_new, vn), (problem.q, vq),
                           (problem.q_out, vo)):
        if array:
            _set(strides, array, head, row, packed)
    _set(problem.k, kc, head_kv, row_kv, False)
    _set(problem.v, vc, head_kv, row_kv, False)
    tensors = Tensors(ctypes.sizeof(Tensors), k_new=kn.address, v_new=vn.address,
                      k_cache=kc.address, v_cache=vc.address, used_kv=used.address,
                      block_table=pages.table.address if pages else None,
                      cu_seqlens_q=cu.address if cu else None,
                      k_scale=views["k_scale"].address if k_scale is not None else None,
                      v_scale=views["v_scale"].address if v_scale is not None else None)
    if vq and vo:
        tensors.q, tensors.q_out = vq.address, vo.address
    tables = None
    if rope is not None:
        tables = _tables(rope, interleaved, problem, dim, kn, where)
        tensors.rope_cos, tensors.rope_sin = tables[0].address, tables[1].address
    plan = _plan("attn_append", kn.device, threads, problem, APPEND)
    _check(plan.context.lib.attn_append, plan.handle, byref(tensors), where)
    return q_out


# ---- merge and accumulate ------------------------------------------------------------------------


def _check_dims(name: str, part: View) -> None:
    if len(part.shape) not in (3, 4):
        raise InvalidArgument(f"{name} has the shape {part.shape}, expected (batch, heads, seq, "
                              "dim) or (heads, total, dim)")


def _shape_lse(part: View, head: int, row: int) -> Tuple[int, ...]:
    return (*part.shape[:-3], part.shape[head], part.shape[row])


def _check_lse(name: str, lse: View, part: View, shape: Tuple[int, ...]) -> None:
    _expect(f"the device of {name}", lse.device, part.device)
    _expect(f"the shape of {name}", lse.shape, shape)
    _expect(f"the strides of {name}", free_strides(lse.shape, lse.strides),
            free_strides(lse.shape, _arrays.contiguous(lse.shape)))


def _merge_plan(name: str, threads: Any, part: View, views: Sequence[View], dtype_o: int,
                bshd: int) -> Any:
    head, row = (-2, -3) if bshd else (-3, -2)
    packed = len(part.shape) == 3
    problem = _new_problem(part.dtype, views)
    problem.alignment = max(problem.alignment, _arrays.ITEM_BYTES[part.dtype])
    problem.dtype_o, problem.layout, problem.packed = dtype_o, bshd, packed
    problem.batch = 1 if packed else part.shape[0]
    problem.heads_q, problem.seq_q = part.shape[head], part.shape[row]
    problem.total_q = part.shape[row] if packed else 0
    problem.head_dim = part.shape[-1]
    _set(problem.o, part, head, row, packed)
    return _plan(name, part.device, threads, problem, MERGE)


def merge(o: Sequence[Any], lse: Sequence[Any], *, out: Any = None, out_lse: Any = None,
          dtype: Optional[str] = None, layout: str = "bhsd", threads: int = 0,
          stream: Any = None) -> Tuple[Any, Any]:
    """Partial results of the same rows, each over other keys, into one: (out, lse).

    o: up to 32 arrays (batch, heads, seq, dim), with layout="bshd" (batch, seq, heads, dim); or
        packed, (heads, total, dim) or (total, heads, dim). All have one dtype and one set of
        strides.
    lse: as many, float32 and contiguous: (batch, heads, seq), packed (heads, total), natural log,
        as attention(return_lse=True) returns it.
    out, out_lse: arrays to write to, with the strides of the parts; may be o[0] and lse[0]. None
        makes new ones. dtype: of a new out, "float32", "float16" or "bfloat16"; None is that of o.
    threads, stream: as in attention().

    Sums run in float32 in the order of the parts: the result depends on nothing else. A part with
    lse = -inf saw no key, and its o is not used. If all are such, out is 0 and lse -inf.

    >>> import numpy as np, attn
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 1, 2, 6, 8)).astype(np.float32)
    >>> whole = attn.attention(q, k, v)
    >>> parts = [attn.attention(q, k[:, :, s], v[:, :, s], return_lse=True)
    ...          for s in (slice(0, 2), slice(2, 6))]
    >>> merged, lse = attn.merge(*zip(*parts))
    >>> bool(np.abs(merged - whole).max() < 1e-6)
    True
    """
    o, lse = list(o), list(lse)
    if not o or len(o) != len(lse):
        raise InvalidArgument(f"o has {len(o)} and lse {len(lse)} arrays, expected as many of both "
                              "and at least one")
    where = _arrays.current_stream(o[0], stream) if _arrays.is_on_gpu(o[0]) else None
    bshd = choice("layout", layout, LAYOUT)
    parts = [_arrays.view(f"o[{i}]", x, where, FLOATS) for i, x in enumerate(o)]
    sums = [_arrays.view(f"lse[{i}]", x, where, (FP32,)) for i, x in enumerate(lse)]
    first = parts[0]
    _check_dims("o[0]", first)
    head, row = (-2, -3) if bshd else (-3, -2)
    names = {name: code for code, name in DTYPE_NAMES.items() if code in FLOATS}
    wanted = first.dtype if dtype is None else choice("dtype", dtype, names)
    if out is not None and dtype is None:
        wanted = _arrays.view("out", out, where, FLOATS).dtype
    shape_lse = _shape_lse(first, head, row)
    if out is None:
        out = _empty_like(first, wanted, o[0])
    out, vo = _output("out", out, first.shape, wanted, o[0], first.device, where)
    out_lse, vl = _output("out_lse", out_lse, shape_lse, FP32, o[0], first.device, where)
    views = {f"o[{i}]": part for i, part in enumerate(parts)}
    strides = free_strides(first.shape, first.strides)
    for name, part in (*views.items(), ("out", vo)):
        _check_rows(name, part)
        _expect(f"the device of {name}", part.device, first.device)
        _expect(f"the shape of {name}", part.shape, first.shape)
        _expect(f"the strides of {name}", free_strides(part.shape, part.strides), strides)
        if name != "out":
            _expect(f"the dtype of {name}", DTYPE_NAMES[part.dtype], DTYPE_NAMES[first.dtype])
    for name, part in (*((f"lse[{i}]", x) for i, x in enumerate(sums)), ("out_lse", vl)):
        _check_lse(name, part, first, shape_lse)
    for name, mine, given in (("out", vo, parts), ("out_lse", vl, sums)):
        others = {f"{'o' if name == 'out' else 'lse'}[{i}]": x for i, x in enumerate(given)
                  if i or x.address != mine.address}
        _own_memory(name, {**others, name: mine})

    plan = _merge_plan("attn_merge", threads, first, [*parts, vo], wanted, bshd)
    addresses = c_void_p * len(parts)
    _check(plan.context.lib.attn_merge, plan.handle, addresses(*(x.address for x in parts)),
           addresses(*(x.address for x in sums)), len(parts), vo.address, vl.address, where)
    return out, out_lse


def accumulate(o: Any, lse: Any, o_part: Any, lse_part: Any, *, out: Any = None,
               layout: str = "bhsd", threads: int = 0, stream: Any = None) -> Tuple[Any, Any]:
    """Merges a partial result into a running sum (o, lse), in place: keys that arrive in chunks.

    o, lse: the sum, float32; o has the shape and the strides of o_part. lse = -inf begins a sum: o
        may then hold anything, NaN too.
    o_part, lse_part: a part, as merge() takes them: float32, float16 or bfloat16, and float32.
    lse, lse_part = None: the plain sum o += o_part, such as that of partial gradients.
    out: for the last part: takes the result, in float32, float16 or bfloat16; o is only read.
    layout, threads, stream: as in merge().

    Returns (o, lse), or (out, lse). The bits depend on the order of the calls and nothing else.

    >>> import numpy as np, attn
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 1, 2, 6, 8)).astype(np.float32)
    >>> o, lse = np.empty_like(q), np.full((1, 2, 6), -np.inf, np.float32)
    >>> for s in (slice(0, 2), slice(2, 6)):
    ...     part = attn.attention(q, k[:, :, s], v[:, :, s], return_lse=True)
    ...     o, lse = attn.accumulate(o, lse, *part)
    >>> bool(np.abs(o - attn.attention(q, k, v)).max() < 1e-6)
    True
    """
    where = _arrays.current_stream(o_part, stream) if _arrays.is_on_gpu(o_part) else None
    bshd = choice("layout", layout, LAYOUT)
    head, row = (-2, -3) if bshd else (-3, -2)
    part = _arrays.view("o_part", o_part, where, FLOATS)
    _check_dims("o_part", part)
    _check_rows("o_part", part)
    shape = _shape_lse(part, head, row)
    _, total = _output("o", o, part.shape, FP32, o_part, part.device, where)
    if (lse is None) != (lse_part is None):
        raise InvalidArgument(f"{'lse' if lse is None else 'lse_part'} is None, expected both or none "
                              "of lse and lse_part")
    logs = {}
    if lse is not None:
        logs["lse"] = _output("lse", lse, shape, FP32, o_part, part.device, where)[1]
        logs["lse_part"] = _arrays.view("lse_part", lse_part, where, (FP32,))
    views = {"o_part": part, "o": total}
    if out is not None:
        dtype = _arrays.view("out", out, where, FLOATS).dtype
        views["out"] = _output("out", out, part.shape, dtype, o_part, part.device, where)[1]
    for name, array in views.items():
        _check_rows(name, array)
        _expect(f"the strides of {name}", free_strides(array.shape, array.strides),
                free_strides(part.shape, part.strides))
    for name, array in logs.items():
        _check_lse(name, array, part, shape)
    for name, others in (("o", views), ("out", views), ("lse", logs)):
        if name in others:
            _own_memory(name, others)

    target = views.get("out")
    plan = _merge_plan("attn_accumulate", threads, part, list(views.values()),
                       target.dtype if target else FP32, bshd)
    at = {name: array.address for name, array in logs.items()}
    _check(plan.context.lib.attn_accumulate, plan.handle, part.address, at.get("lse_part"),
           total.address, at.get("lse"), target.address if target else None, where)
    return o if out is None else out, lse


def _empty_like(part: View, dtype: int, like: Any) -> Any:
    """With the part's strides, if these leave no gaps; else contiguous, and then refused."""
    order = sorted(range(len(part.shape)), key=lambda i: -part.strides[i])
    new = _arrays.empty(tuple(part.shape[i] for i in order), dtype, like, part.device)
    back = tuple(int(i) for i in np.argsort(order))
    return new.permute(back) if _arrays.is_torch(new) else new.transpose(back)
