# SPDX-License-Identifier: Apache-2.0
"""Arrays of others: DLPack capsules read without a copy, NumPy's on the CPU; PyTorch's tensors."""

import ctypes
import gc
import sys

import attn
import numpy as np
import pytest
from attn import _arrays, _library
from dlpack import Foreign, newest


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("dtype, code", [(np.float32, _library.FP32), (np.float16, _library.FP16),
                                         (np.int32, _arrays.INT32)])
def test_capsules(legacy, dtype, code):
    array = np.arange(120, dtype=dtype).reshape(2, 3, 4, 5)[:, ::2].swapaxes(1, 2)[1:]
    found = _arrays.view("x", Foreign(array, legacy))
    assert found.address == array.ctypes.data and found.shape == array.shape
    assert found.strides == tuple(n // array.itemsize for n in array.strides)
    assert (found.dtype, found.device, found.writable) == (code, "cpu", True)


def test_capsules_are_given_back():
    array = np.zeros((2, 3), np.float32)
    before = sys.getrefcount(array)
    found = _arrays.view("x", Foreign(array))
    assert sys.getrefcount(array) > before
    del found
    gc.collect()
    assert sys.getrefcount(array) <= before


def test_offsets_and_missing_strides():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    sizes = (ctypes.c_int64 * 2)(3, 4)
    tensor = _arrays._DLTensor(array.ctypes.data, 1, 0, 2, 2, 32, 1, sizes, None, 48)
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    found = _arrays.view_of_capsule("x", capsule(ctypes.addressof(tensor), b"dltensor", None))
    assert found.address == array[1].ctypes.data
    assert (found.shape, found.strides) == ((3, 4), (4, 1))


def test_attention_by_dlpack():
    q = np.random.default_rng(0).standard_normal((1, 2, 7, 16), np.float32)
    expected, lse = attn.attention(q, q, q, causal="top-left", return_lse=True)
    for legacy in (True, False):
        x = Foreign(q, legacy)
        found = attn.attention(x, x, x, causal="top-left", return_lse=True)
        assert np.array_equal(found[0], expected) and np.array_equal(found[1], lse)
        assert x.streams and set(x.streams) == {None}


def test_read_only():
    q = np.zeros((1, 1, 2, 8), np.float32)
    out = np.empty_like(q)
    out.flags.writeable = False
    if not newest():
        pytest.skip("NumPy 1 exports no read-only array")
    with pytest.raises(attn.InvalidArgument, match="out is read-only"):
        attn.attention(q, q, q, out=Foreign(out))


def test_refusals():
    with pytest.raises(attn.InvalidArgument, match="x has the DLPack type .code 2, 64 bits"):
        _arrays.view("x", Foreign(np.zeros(3)))
    with pytest.raises(attn.InvalidArgument, match="x gave no DLPack capsule"):
        _arrays.view_of_capsule("x", object())
    used = np.zeros(3, np.float32).__dlpack__()

    class Once:
        def __dlpack__(self, **_):
            return used

        def __dlpack_device__(self):
            return (1, 0)

    np.from_dlpack(Once())
    with pytest.raises(attn.InvalidArgument, match="unused"):
        _arrays.view_of_capsule("x", used)


def test_streams_of_a_gpu():
    class OnGpu:
        def __dlpack_device__(self):
            return (2, 1)

        def __dlpack__(self, *, stream=None, max_version=None):
            raise BufferError(f"stream {stream}")

    for given, told in ((None, 1), (0, 1), (77, 77)):
        with pytest.raises(BufferError, match=f"^stream {told}$"):
            attn.attention(OnGpu(), OnGpu(), OnGpu(), stream=given)

    class TorchStream:
        cuda_stream = 5

    class CupyStream:
        ptr = 6

    assert [_arrays.current_stream(None, s) for s in (TorchStream(), CupyStream(), 7)] == [5, 6, 7]


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    for dtype, close in ((torch.float32, 2e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
        q = torch.randn(1, 2, 7, 16).to(dtype)
        found, lse = attn.attention(q, q, q, causal="top-left", return_lse=True)
        assert isinstance(found, torch.Tensor) and found.dtype == dtype
        assert lse.dtype == torch.float32 and lse.shape == (1, 2, 7)
        expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        torch.testing.assert_close(found, expected, rtol=close, atol=close)
    packed = attn.attention(q[0], q[0], q[0], cu_seqlens_q=torch.tensor([0, 7], dtype=torch.int32),
                            cu_seqlens_kv=[0, 7], causal="top-left")
    assert torch.equal(packed, found[0])
    with pytest.raises(attn.Unsupported, match="q requires a gradient"):
        attn.attention(q.requires_grad_(), q, q, return_lse=True)


def test_torch_tensors_that_are_not_plain():
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(3, 1, 2, 7, 16).unbind(0)
    negative, bias = torch._neg_view(q), torch.randn(7, 7, dtype=torch.cfloat).conj().imag
    for name, arrays, named in (("q", (negative, k, v), {}), ("v", (q, k, negative), {}),
                                ("bias", (q, k, v), {"bias": bias}),
                                ("out", (q, k, v), {"out": torch._neg_view(torch.empty_like(q))})):
        with pytest.raises(attn.Unsupported, match=f"^{name} is a view of its negative"):
            attn.attention(*arrays, **named)
    assert torch.equal(attn.attention(negative.resolve_neg(), k, v), attn.attention(-q, k, v))
    with pytest.raises(attn.InvalidArgument, match="^q has dtype torch.complex64, expected float3"):
        attn.attention(q.to(torch.cfloat).conj(), k, v)
    with pytest.raises(attn.Unsupported, match="^k is torch.sparse_coo, expected a plain tensor"):
        attn.attention(q, k.to_sparse(), v)
    with pytest.raises(attn.Unsupported, match="^q is nested"):
        attn.attention(torch.nested.nested_tensor([q[0], q[0, :, :3]]), k, v)
    with pytest.raises(attn.Unsupported, match="no memory of its own within torch.vmap"):
        torch.vmap(lambda x: attn.attention(x, k, v))(q[None])
    with pytest.raises(attn.InvalidArgument, match="^used_kv has dtype torch.int64, expected int3"):
        attn.attention(q, k, v, used_kv=torch.tensor([3]))


def test_memory_of_torch_that_is_shared():
    torch = pytest.importorskip("torch")
    memory = torch.randn(2, 1, 2, 7, 16)
    q, flat = memory[0], memory.view(-1)
    for out in (q, q.view(q.shape), flat[16:16 + q.numel()].view(q.shape)):
        with pytest.raises(attn.InvalidArgument, match="^out shares memory with q"):
            attn.attention(q, memory[1], memory[1], out=out)
    with pytest.raises(attn.InvalidArgument, match="^lse shares memory with k"):
        attn.attention(q, memory[1], q, lse=memory[1].view(-1)[:14].view(1, 2, 7))
    beside = torch.zeros(1, 2, 7, 2, 16)  # rows in turns: no element is of both
    beside[:, :, :, 0] = q
    attn.attention(beside[:, :, :, 0], q, q, out=beside[:, :, :, 1])
    assert torch.equal(beside[:, :, :, 1], attn.attention(q, q, q))
