# SPDX-License-Identifier: Apache-2.0
"""Arrays on a GPU by DLPack, on the virtual GPU: real kernels, real capsules, no copy.

Invariant: the arrays live in the virtual GPU's memory, so that a pointer of the host, a missing
workspace or a wrong stride cannot pass.
"""

import ctypes
import os
import subprocess
import sys
from ctypes import byref, c_int64, c_uint64, c_void_p

import attn
import model
import numpy as np
import pytest
from attn import _arrays, _library, _plans, _problem, _xla

CODES = {"float32": (2, 32), "float16": (2, 16), "int32": (0, 32)}

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]


class OnGpu:
    """An array of some framework, as DLPack shows it."""

    def __init__(self, context, array):
        self.shape, self.dtype, self.bytes = array.shape, array.dtype, max(array.nbytes, 1)
        self.strides = tuple(n // array.itemsize for n in array.strides)
        base = array if array.base is None else array.base
        assert base.flags.c_contiguous
        self.base = base
        self.memory = _plans._DriverMemory(context, max(base.nbytes, 1))
        self.offset = array.ctypes.data - base.ctypes.data
        self.streams = []
        self.copy("cuMemcpyHtoD", c_uint64(self.memory.address), base.ctypes.data_as(c_void_p))

    def copy(self, name, to, source):
        function = self.memory._function(name, type(to), type(source), ctypes.c_size_t)
        assert self.memory._push(self.memory._primary) == 0
        assert function(to, source, self.base.nbytes) == 0
        self.memory._pop(byref(c_void_p()))

    def read(self):
        back = np.empty_like(self.base)
        self.copy("cuMemcpyDtoH", back.ctypes.data_as(c_void_p), c_uint64(self.memory.address))
        steps = tuple(n * self.dtype.itemsize for n in self.strides)
        return np.ndarray(self.shape, self.dtype, back.data, self.offset, steps).copy()

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream):
        self.streams.append(stream)
        n = len(self.shape)
        code, bits = CODES[self.dtype.name]
        self.sizes, self.steps = (c_int64 * n)(*self.shape), (c_int64 * n)(*self.strides)
        self.tensor = _arrays._DLTensor(self.memory.address, 2, 0, n, code, bits, 1, self.sizes,
                                        self.steps, self.offset)
        return new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)


def compiled_in(family):
    """The name of a GPU kernel of that family (None: any) in the library, or None."""
    lib, index = _library.load(), 0
    while True:
        variant = _library.Variant(size=ctypes.sizeof(_library.Variant))
        if lib.attn_variant_get(None, index, byref(variant), None):
            return None
        if variant.device == b"cuda" and family in (None, variant.family.decode()):
            return variant.name.decode()
        index += 1


@pytest.fixture(scope="module")
def gpu():
    driver = attn.library_path().parent / "libvgpu.so"
    if not driver.exists():
        pytest.skip(f"there is no {driver.name} beside the library")
    if compiled_in(None) is None:
        pytest.skip("this library was built without GPU kernels")
    before = os.environ.get("ATTN_DRIVER")
    os.environ["ATTN_DRIVER"] = str(driver)
    attn.clear_plans()
    try:
        yield _plans.open_cache(0, 0).context
    finally:
        attn.clear_plans()
        del os.environ["ATTN_DRIVER"]
        if before is not None:
            os.environ["ATTN_DRIVER"] = before


def random(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check(gpu, arrays, options, stream=None, **on_gpu):
    q, k, v = (OnGpu(gpu, x) for x in arrays)
    shape = arrays[0].shape[:-1] + arrays[2].shape[-1:]
    out = OnGpu(gpu, np.full(shape, np.nan, np.float16))
    lse = OnGpu(gpu, np.full(shape[:3], np.nan, np.float32))
    found = attn.attention(q, k, v, out=out, lse=lse, return_lse=True, stream=stream, **options,
                           **{name: OnGpu(gpu, value) for name, value in on_gpu.items()})
    assert found == (out, lse)
    options = {name: value for name, value in options.items() if name != "variant"}
    expected = model.attention(*arrays, **options, **on_gpu)
    np.testing.assert_allclose(out.read().astype(np.float64), expected[0], 4e-3, 4e-3)
    np.testing.assert_allclose(lse.read(), expected[1], 1e-4, 1e-4)
    return q


def test_attention(gpu):
    shapes = (1, 2, 20, 64), (1, 1, 33, 64), (1, 1, 33, 64)
    arrays = [random(shape, np.float16, n) for n, shape in enumerate(shapes)]
    for _ in range(2):  # the second call finds the workspace of the first
        q = check(gpu, arrays, {"causal": "bottom-right"})
        assert set(q.streams) == {1}  # the legacy default stream, in DLPack's numbers
    strided = [random((1, n, 2, 64), np.float16, 5).swapaxes(1, 2) for n in (20, 33, 33)]
    check(gpu, strided, {})
    check(gpu, [random((1, 2, n, 64), np.float16, 6)[:, :, 3:] for n in (9, 20, 20)], {})


@pytest.fixture
def allocated(monkeypatch):
    """The sizes of all memory that is allocated from now on; it holds anything."""
    sizes = []

    class Poisoned(_plans._DriverMemory):
        def __init__(self, context, size):
            super().__init__(context, size)
            fill = self._function("cuMemsetD8", c_uint64, ctypes.c_ubyte, ctypes.c_size_t)
            assert self._push(self._primary) == 0 and fill(self.address, 0xFF, size) == 0
            self._pop(byref(c_void_p()))
            sizes.append(size)

    monkeypatch.setattr(_plans, "_DriverMemory", Poisoned)
    return sizes


def test_workspace(gpu, allocated):
    """No kernel expects anything in it, and all plans share the one of their stream."""
    variant = compiled_in("fwd_hopper_causal")  # takes its tiles from a counter in the workspace
    if variant is None:
        pytest.skip("this library has no kernel that needs a workspace")
    attn.clear_plans()
    gpu = _plans.open_cache(0, 0).context
    for call, rows in enumerate((300, 300, 290, 200)):
        arrays = [random((1, 2, rows, 64), np.float16, n) for n in range(3)]
        before = len(allocated)
        check(gpu, arrays, {"causal": "top-left", "variant": variant})
        # Five arrays, and the workspace for the first call alone.
        assert len(allocated) - before == (6 if call == 0 else 5)


def test_a_growing_cache(gpu, allocated):
    """Hundreds of lengths, each seen once: a bounded number of plans, one workspace that grows."""
    attn.clear_plans()
    cache, most = _plans.open_cache(0, 0), 200
    q, k, v, out = (OnGpu(cache.context, random((1, 1, n, 64), np.float16, n))
                    for n in (1, most, most, 1))
    before = len(allocated)
    for n in range(1, most + 1):
        k.shape = v.shape = (1, 1, n, 64)
        attn.attention(q, k, v, out=out, scale=0.125)
        assert len(cache.plans) <= _plans.CACHED_PLANS
    expected = model.attention(*(x.read() for x in (q, k, v)), scale=0.125)[0]
    np.testing.assert_allclose(out.read().astype(np.float64), expected, 4e-3, 4e-3)
    assert len(allocated) - before <= 3 and len(cache._workspaces) <= 1


def test_options(gpu):
    arrays = [random((2, 2, n, 32), np.float16, n) for n in (9, 17, 17)]
    check(gpu, arrays, {"softcap": 5.0, "window": (6, 2)}, used_kv=np.array([5, 17], np.int32),
          sink=random((2,), np.float32, 1), bias=random((1, 1, 9, 17), np.float32, 2),
          alibi=random((2, 2), np.float32, 3))

def test_pages(gpu):
    """Packed queries over a paged KV cache, as an engine calls it; unused entries are -1."""
    if compiled_in("fwd_mma_full") is None:
        pytest.skip("this library has no GPU kernels that take pages")
    rows, used, page = [1, 3], np.array([37, 20], np.int32), 16
    table = np.array([[4, 0, 2], [1, 3, -1]], np.int32)
    cu = np.array([0, 1, 4], np.int32)
    q = random((4, 4, 64), np.float16, 1)
    pools = [random((5, page, 2, 64), np.float16, n) for n in (2, 3)]
    out = OnGpu(gpu, np.full((4, 4, 64), np.nan, np.float16))
    on_gpu = [OnGpu(gpu, x) for x in (q, *pools, table, used, cu)]
    attn.attention(*on_gpu[:3], block_table=on_gpu[3], used_kv=on_gpu[4], cu_seqlens_q=on_gpu[5],
                   max_seqlen_q=3, layout="bshd", causal="bottom-right", out=out)
    for b in range(2):
        k, v = (np.concatenate(pool[table[b][table[b] >= 0]])[None, :used[b]] for pool in pools)
        own = q[None, cu[b]:cu[b] + rows[b]]
        expected = model.attention(own, k, v, layout="bshd", causal="bottom-right")[0]
        np.testing.assert_allclose(out.read()[None, cu[b]:cu[b] + rows[b]].astype(np.float64),
                                   expected, 4e-3, 4e-3)



def test_nothing_is_found(gpu, tmp_path):
    """The virtual GPU checks every access, and reports when its process ends: in one of our own."""
    report = tmp_path / "report.txt"
    run = subprocess.run([sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                          __file__, "-k", "not found"], text=True, capture_output=True,
                         env={**os.environ, "VGPU_REPORT": str(report)})
    assert run.returncode == 0, run.stdout
    assert report.read_text().startswith("0 errors, 0 warnings"), report.read_text()


def test_refusals(gpu):
    q = OnGpu(gpu, random((1, 1, 4, 12), np.float32, 0))
    with pytest.raises(attn.Unsupported, match="no variant applies.*head_dim = 12"):
        attn.attention(q, q, q, out=OnGpu(gpu, np.zeros((1, 1, 4, 12), np.float32)))
    q = OnGpu(gpu, random((1, 1, 4, 64), np.float32, 0))
    with pytest.raises(attn.InvalidArgument, match="the device of k is cpu, expected cuda:0"):
        attn.attention(q, np.zeros((1, 1, 4, 64), np.float32), q)
    with pytest.raises(attn.Unsupported, match="out is None"):
        attn.attention(q, q, q)
    packed = OnGpu(gpu, random((1, 4, 64), np.float32, 0))
    ends = OnGpu(gpu, np.array([0, 4], np.int32))
    with pytest.raises(attn.InvalidArgument, match="max_seqlen_q is None"):
        attn.attention(packed, packed, packed, cu_seqlens_q=ends, cu_seqlens_kv=ends)
    with pytest.raises(attn.InvalidArgument, match="sink is a list"):
        attn.attention(q, q, q, sink=[1.0], out=q)


@pytest.mark.parametrize("rows", [1, 40], ids=["decode", "prefill"])
def test_left_padding_as_packed_sequences(gpu, allocated, rows):
    """What attn.transformers makes of a left-padded cache: sequences that begin at their first
    key, of which used_kv exist; max_seqlen_kv counts those, not the rows up to the next one."""
    heads, heads_kv, length, dim, starts = 4, 2, 40, 64, np.array([7, 0, 19])
    batch, step = len(starts), heads_kv * length
    total = (batch - 1) * step + length
    q = random((batch, rows, heads, dim), np.float16, 1)
    cache = random((2, batch, heads_kv, length, dim), np.float16, 2)
    packed = [np.ndarray((heads_kv, total, dim), np.float16, x, 0, (length * dim * 2, dim * 2, 2))
              for x in cache]
    arrays = [q.reshape(-1, heads, dim).swapaxes(0, 1), *packed]
    exist = {"cu_seqlens_q": np.array([0, *np.arange(batch + 1) * rows], np.int32),
             "cu_seqlens_kv": np.array([0, *np.arange(batch) * step + starts, total], np.int32),
             "used_kv": np.array([0, *(length - starts)], np.int32)}
    out = OnGpu(gpu, np.full((heads, batch * rows, dim), np.nan, np.float16))
    attn.attention(*(OnGpu(gpu, x) for x in arrays), out=out, causal="bottom-right",
                   max_seqlen_q=rows, max_seqlen_kv=length,
                   **{name: OnGpu(gpu, x) for name, x in exist.items()})
    mask = np.arange(length) >= starts[:, None]
    expected = model.attention(q.swapaxes(1, 2), *cache, causal="bottom-right",
                               mask=mask[:, None, None])[0]
    found = out.read().reshape(heads, batch, rows, dim).swapaxes(0, 1)
    np.testing.assert_allclose(found.astype(np.float64), expected, 4e-3, 4e-3)


# ---- XLA's calls -------------------------------------------------------------------------------


def xla_call(call, inputs, results):
    """What XLA's GPU client does: _xla's handler, on the current context. The message of an error,
    or None."""
    messages, kept = [], []

    def create_error(failure):
        messages.append(failure.contents.message.decode())
        return 1

    def get_stream(asked):
        asked.contents.stream = None
        return None

    def buffers(arrays):
        each = (ctypes.POINTER(_xla._Buffer) * len(arrays))()
        for i, x in enumerate(arrays):
            dims = (c_int64 * len(x.shape))(*x.shape)
            code = _xla._F32 if x.dtype == np.float32 else 10
            buffer = _xla._Buffer(0, None, code, x.memory.address, len(x.shape), dims)
            kept.extend((dims, buffer))
            each[i] = ctypes.pointer(buffer)
        return _xla._Buffers(0, None, len(arrays), None, each)

    text = call.text().encode()
    span = _xla._Span(ctypes.cast(ctypes.c_char_p(text), c_void_p), len(text))
    values = (ctypes.POINTER(_xla._Span) * 1)(ctypes.pointer(span))
    fields = dict(_xla._Api._fields_)
    api = _xla._Api(create_error=fields["create_error"](create_error),
                    get_stream=fields["get_stream"](get_stream))
    frame = _xla._Frame(0, None, ctypes.pointer(api), None, _xla._EXECUTE, buffers(inputs),
                        buffers(results), _xla._Attributes(0, None, 1, None, None, values))
    memory = inputs[0].memory
    assert memory._push(memory._primary) == 0
    try:
        failed = _xla.handlers["CUDA"](ctypes.pointer(frame))
    finally:
        memory._pop(byref(c_void_p()))
    assert bool(failed) == bool(messages)
    return messages[0] if messages else None


@pytest.mark.parametrize("packed", [False, True])
def test_xla(gpu, packed):
    heads, dim, lengths = 2, 64, (40, 24)
    rows, batch = (sum(lengths), 2) if packed else (lengths[0], 2)
    shape = (heads, rows + 8, dim) if packed else (batch, heads, rows, dim)  # 8 rows of no sequence
    arrays = [random(shape, np.float16, seed) for seed in (1, 2, 3)]
    step = shape[-2] * dim
    strides = (0 if packed else heads * step, step, dim)
    inputs, names = [OnGpu(gpu, x) for x in arrays], ["q", "k", "v"]
    if packed:
        cu = np.array([0, lengths[0], rows], np.int32)
        inputs += [OnGpu(gpu, cu), OnGpu(gpu, cu)]
        names += ["cu_seqlens_q", "cu_seqlens_kv"]
    out = OnGpu(gpu, np.full(shape, np.nan, np.float16))
    lse = OnGpu(gpu, np.full(shape[:-1], np.nan, np.float32))
    longest = max(lengths) if packed else rows

    def call_of(dim_v):
        return _xla.Call(0, _library.FORWARD, (*names, "o", "lse"), packed, _problem.problem(
            dtype=_library.FP16, sizes=(batch, heads, heads, longest, longest, dim, dim_v),
            q=strides, k=strides, v=strides, o=strides, causal=_library.CAUSAL["top-left"],
            packed=(shape[-2],) * 2 if packed else None))
    assert xla_call(call_of(dim), inputs, [out, lse]) is None
    parts = [slice(0, lengths[0]), slice(lengths[0], rows)] if packed else [slice(0, rows)]
    for part in parts:
        one = [(x[None] if packed else x)[:, :, part] for x in arrays]
        expected, _ = model.attention(*one, causal="top-left")
        found = (out.read()[None] if packed else out.read())[:, :, part]
        np.testing.assert_allclose(found.astype(np.float32), expected, 2e-3, 2e-3)
    if packed:
        assert not out.read()[:, rows:].any()  # cleared
    assert "head_dim_v = 7" in xla_call(call_of(7), inputs, [out, lse])
