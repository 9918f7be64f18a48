# SPDX-License-Identifier: Apache-2.0
"""attn.torch.sdpa on an NVIDIA GPU beside PyTorch's: streams, graphs, inference mode, host cost."""

import functools
import time

import pytest

torch = pytest.importorskip("torch", minversion="2.5")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no NVIDIA GPU", allow_module_level=True)

import attn  # noqa: E402
import attn.torch  # noqa: E402
from attn.peers import host  # noqa: E402

theirs = torch.nn.functional.scaled_dot_product_attention
CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
MOST_HOST_US = 12.0


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def qkv(dtype=torch.float16, heads_kv=8, seq_q=200, seq_kv=300, dim=64):
    return [torch.randn(2, heads, rows, dim, device="cuda", dtype=dtype)
            for heads, rows in ((8, seq_q), (heads_kv, seq_kv), (heads_kv, seq_kv))]


def check(q, k, v, *arguments, **named):
    close = CLOSE[q.dtype]
    torch.testing.assert_close(attn.torch.sdpa(q, k, v, *arguments, **named),
                               theirs(q, k, v, *arguments, **named), rtol=close, atol=close)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_arguments(dtype, dim):
    q, k, v = qkv(dtype, dim=dim)
    for _ in range(2):
        check(q, k, v)
        check(q, k, v, is_causal=True)
        check(q, k, v, scale=0.2)
        check(*qkv(dtype, 2, dim=dim), is_causal=True, enable_gqa=True)
        check(*(torch.randn(2, 99, 8, dim, device="cuda", dtype=dtype).transpose(1, 2)
                for _ in range(3)))


def test_masks():
    q, k, v = qkv()
    check(q, k, v, torch.rand(200, 300, device="cuda") > 0.3)
    check(q, k, v, torch.randn(2, 1, 200, 300, device="cuda", dtype=q.dtype))


def test_on_another_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for n in range(20):  # each input is made on that stream just before
            q, k, v = qkv(seq_q=64 + n)
            check(q, k, v, is_causal=True)
    stream.synchronize()


def test_graph():
    q, k, v = qkv()
    attn.torch.sdpa(q, k, v)  # kernels are loaded when a plan is made, not within a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attn.torch.sdpa(q, k, v)
    for _ in range(3):
        q.copy_(torch.randn_like(q))
        graph.replay()
        torch.testing.assert_close(out, theirs(q, k, v), rtol=4e-3, atol=4e-3)


def test_compile():
    compiled = torch.compile(lambda q, k, v: attn.torch.sdpa(q * 2, k, v), fullgraph=True,
                             backend="aot_eager")
    q, k, v = qkv()
    torch.testing.assert_close(compiled(q, k, v), theirs(q * 2, k, v), rtol=4e-3, atol=4e-3)


def test_attention():
    q, k, v = qkv()
    found, lse = attn.attention(q, k, v, causal="top-left", return_lse=True)
    torch.testing.assert_close(found, theirs(q, k, v, is_causal=True), rtol=4e-3, atol=4e-3)
    assert lse.is_cuda and lse.shape == q.shape[:3] and lse.isfinite().all()


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q, k, v = (cupy.from_dlpack(x.clone()) for x in qkv())
    expected = theirs(*(torch.from_dlpack(x) for x in (q, k, v)))
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        torch.cuda.synchronize()
        with stream:
            found = attn.attention(q, k, v)
        stream.synchronize()
        assert isinstance(found, cupy.ndarray)
        torch.testing.assert_close(torch.from_dlpack(found), expected, rtol=4e-3, atol=4e-3)


def test_jax(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("JAX sees no NVIDIA GPU")
    tensors = qkv()
    q, k, v = (jax.device_put(x.cpu().numpy(), jax.devices("gpu")[0]) for x in tensors)
    with pytest.raises(attn.Unsupported, match="pass out="):
        attn.attention(q, k, v)
    out = torch.empty_like(tensors[0])
    torch.cuda.synchronize()
    attn.attention(q, k, v, out=out)
    torch.cuda.synchronize()
    torch.testing.assert_close(out, theirs(*tensors), rtol=4e-3, atol=4e-3)


def test_known_calls_go_to_the_right_gpu():
    """The output of a repeated call lies beside its input, whichever GPU is the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one NVIDIA GPU")
    first = qkv()
    second = [x.to("cuda:1") for x in first]
    for _ in range(3):
        for tensors in (first, second):  # alike but for the GPU
            check(*tensors)
            assert attn.torch.sdpa(*tensors).device == tensors[0].device


def test_repeated_calls_are_told_apart():
    """Each takes its shortcut, and none takes another's: the second round knows them all."""
    q, k, v = qkv(heads_kv=8)
    memory = torch.randn(q.numel() + 8, device="cuda", dtype=q.dtype)
    odd = memory[1:1 + q.numel()].view(q.shape)
    assert odd.data_ptr() % 16
    streams = torch.cuda.Stream(), torch.cuda.current_stream()
    for n in range(3):
        check(q, k, v)
        check(q, k, v, is_causal=True)
        check(q, k, v, scale=0.2)
        check(q[:, :, :33], k, v)
        check(q, k[:, :, :50], v[:, :, :50])
        check(q, k[:, :2], v[:, :2], enable_gqa=True)
        check(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
        check(q.bfloat16(), k.bfloat16(), v.bfloat16())
        try:
            check(odd, k, v)
        except attn.Unsupported as error:  # not every library has a kernel for it
            assert "alignment = 2" in str(error)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[n % 2]):
            check(q.clone(), k, v, is_causal=True)
        torch.cuda.synchronize()


def least_us(call, *arguments):
    best = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(100):
            call(*arguments)
        best = min(best, (time.perf_counter() - begin) / 100)
    return best * 1e6


@pytest.mark.parametrize("named", [{}, {"is_causal": True}], ids=str)
def test_host_cost(capsys, monkeypatch, named):
    """What one call costs its caller, and of what that is made."""
    q, k, v = qkv(seq_q=16, seq_kv=16)
    attn.clear_plans()
    sdpa = functools.partial(attn.torch.sdpa, **named) if named else attn.torch.sdpa
    sdpa(q, k, v)
    known, = attn.torch._known.values()
    guard = attn.torch._guard(q, k, v)
    forward = attn.torch._forward
    monkeypatch.setattr(attn.torch, "_forward", None)  # all of them take the shortcut
    whole = least_us(sdpa, q, k, v)
    with host.library_does_nothing():
        python = least_us(sdpa, q, k, v)
        empty = least_us(known.plan.call, known.plan.handle_argument, bytes(96), None, None, None,
                         None)
    monkeypatch.setattr(attn.torch, "_forward", forward)
    output, recognised, addresses = (least_us(known.output), least_us(guard, q, k, v),
                                     4 * least_us(q.data_ptr))
    split = (f"attn.torch.sdpa {whole:.2f} us = attn_forward {whole - python:.2f} + its Python "
             f"{python:.2f} (output {output:.2f}, guard {recognised:.2f}, addresses "
             f"{addresses:.2f}, ctypes {empty:.2f}); workspace of {known.plan.size} bytes")
    with capsys.disabled():
        print(f"\n{named or ''} {split}")
    assert whole <= MOST_HOST_US, split
