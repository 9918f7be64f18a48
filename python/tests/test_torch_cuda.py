# SPDX-License-Identifier: Apache-2.0
"""attn.torch.sdpa on an NVIDIA GPU beside PyTorch's: streams, graphs, inference mode, host cost."""

import functools
import json

import pytest

torch = pytest.importorskip("torch", minversion="2.5")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no NVIDIA GPU", allow_module_level=True)

import attn  # noqa: E402
import attn.torch  # noqa: E402
from attn import _plans  # noqa: E402
from attn.peers import program  # noqa: E402

theirs = torch.nn.functional.scaled_dot_product_attention
CLOSE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


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


# ---- gradients ---------------------------------------------------------------------------------

# Of a sum over many rows; beside PyTorch in double precision, as parts of the largest gradient.
CLOSE_GRADIENT = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = list(CLOSE_GRADIENT)


def gradients(function, tensors, d_out):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    return torch.autograd.grad(out, leaves, d_out.to(out.dtype))


def check_gradients(ours, reference, tensors, d_out, least=0.0):
    """least: of the largest gradient, where the exact one is 0."""
    with torch.inference_mode(False):
        tensors, d_out = [x.clone() for x in tensors], d_out.clone()
        found = gradients(ours, tensors, d_out)
        exact = gradients(reference, [x.double() for x in tensors], d_out.double())
        again = gradients(ours, tensors, d_out)
    for one, two, other in zip(found, exact, again):
        assert torch.equal(one, other)
        error, largest = (one.double() - two).abs().max(), two.abs().max().clamp(min=least)
        assert error <= CLOSE_GRADIENT[one.dtype] * largest
    return found


@pytest.mark.parametrize("named", [{}, {"is_causal": True}, {"is_causal": True, "enable_gqa": True},
                                   {"scale": 0.3}], ids=str)
@pytest.mark.parametrize("dim", [40, 64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients(dtype, dim, named):
    q, k, v = qkv(dtype, 2 if "enable_gqa" in named else 8, dim=dim)
    check_gradients(lambda *x: attn.torch.sdpa(*x, **named), lambda *x: theirs(*x, **named),
                    (q, k, v), torch.randn_like(q))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_a_mask(dtype):
    q, k, v = qkv(dtype)
    with torch.inference_mode(False):
        mask = torch.rand(200, 300, device="cuda") < 0.7
        bias = torch.randn(2, 1, 200, 300, device="cuda", dtype=dtype)
    check_gradients(lambda *x: attn.torch.sdpa(*x, mask), lambda *x: theirs(*x, mask), (q, k, v),
                    torch.randn_like(q))
    check_gradients(lambda *x: attn.torch.sdpa(*x, bias),
                    lambda *x: theirs(*x, bias.to(x[0].dtype)), (q, k, v), torch.randn_like(q))
    # a row of dS has the sum 0: where keys share the bias, what is left is rounding of these rows
    for sizes, rows in (((2, 8, 200, 300), 0), ((1, 8, 200, 300), 0), ((2, 1, 1, 300), 0),
                        ((8, 200, 1), 2), ((1, 1), 3200)):
        shared = torch.randn(sizes, device="cuda", dtype=dtype)
        check_gradients(attn.torch.sdpa, theirs, (q, k, v, shared), torch.randn_like(q),
                        least=rows ** 0.5)


def test_gradients_of_attention():
    """Packed sequences; a window, softcap, slopes and sinks beside the same on the CPU."""
    q, k, v = (torch.randn(300, 8, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    with torch.inference_mode(False):
        cu = torch.tensor([0, 17, 17, 140, 300], device="cuda", dtype=torch.int32)

    def packed(q, k, v):
        return attn.attention(q, k, v, causal="bottom-right", layout="bshd", cu_seqlens_q=cu,
                              cu_seqlens_kv=cu, max_seqlen_q=160, max_seqlen_kv=160)

    def apart(q, k, v):
        ends = cu.tolist()
        each = [theirs(*(x[a:b].transpose(0, 1) for x in (q, k, v)), is_causal=True).transpose(0, 1)
                for a, b in zip(ends, ends[1:])]
        return torch.cat(each)

    check_gradients(packed, apart, (q, k, v), torch.randn_like(q))

    q, k, v = qkv(torch.bfloat16, 2, dim=128)
    sink, slopes = torch.randn(8, device="cuda"), torch.rand(8, device="cuda")
    options = dict(causal="bottom-right", window=(100, 0), softcap=5.0)
    with torch.inference_mode(False):
        d_out, tensors = torch.randn_like(q), [x.clone() for x in (q, k, v, sink, slopes)]

        def all_options(q, k, v, sink, alibi):
            return attn.attention(q, k, v, sink=sink, alibi=alibi, **options)

        found = gradients(all_options, tensors, d_out)
        on_cpu = gradients(all_options, [x.cpu().float() for x in tensors], d_out.cpu())
    for one, two in zip(found, on_cpu):
        assert (one.cpu().float() - two).abs().max() <= 3e-2 * two.abs().max()


def test_gradients_in_a_model():
    """replace_sdpa, autocast, torch.compile; what no kernel computes goes to PyTorch."""
    with torch.inference_mode(False):
        q, k, v = (x.clone().requires_grad_() for x in qkv(torch.float32))
        with attn.torch.replace_sdpa() as seen, torch.autocast("cuda", torch.bfloat16):
            theirs_name = torch.nn.functional.scaled_dot_product_attention
            theirs_name(q, k, v, is_causal=True).float().sum().backward()
        assert seen.calls == 1 and q.grad.dtype == torch.float32 and q.grad.abs().max() > 0
        wide = [torch.randn(1, 1, 8, 512, device="cuda", requires_grad=True) for _ in range(3)]
        with pytest.raises(attn.Unsupported):  # no backward kernel takes this head_dim
            attn.torch.sdpa(*wide)
        with attn.torch.replace_sdpa(fallback=True) as seen:
            torch.nn.functional.scaled_dot_product_attention(*wide).sum().backward()
        assert seen.by_pytorch == 1

        h = [x.detach().half().requires_grad_() for x in (q, k, v)]
        compiled = torch.compile(lambda q, k, v: attn.torch.sdpa(q * 2, k, v, is_causal=True))
        d_out = torch.randn_like(h[0])
        one = torch.autograd.grad(compiled(*h), h, d_out)
        two = torch.autograd.grad(attn.torch.sdpa(h[0] * 2, h[1], h[2], is_causal=True), h, d_out)
        for a, b in zip(one, two):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


def test_gradients_on_a_stream():
    with torch.inference_mode(False):
        q, k, v = (x.clone().requires_grad_() for x in qkv())
        d_out = torch.randn_like(q)
        expected = torch.autograd.grad(attn.torch.sdpa(q, k, v), (q, k, v), d_out)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = torch.autograd.grad(attn.torch.sdpa(q, k, v), (q, k, v), d_out)
        side.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("rows, keys, causal", [(1500, 1500, False), (256, 256, True),
                                                (256, 1500, False), (1, 1500, False)])
def test_output_in_another_order(batch, rows, keys, causal):
    """Whisper's: heads before rows in Q, K and V, and rows before heads in O."""
    pytest.importorskip("transformers")
    import attn.transformers
    q, k, v = (torch.randn(batch, 20, n, 64, device="cuda", dtype=torch.bfloat16)
               for n in (rows, keys, keys))
    q *= 0.125
    for _ in range(3):
        found, _ = attn.transformers.attention_forward(
            torch.nn.Module(), q, k, v, None, scaling=1.0, is_causal=causal)
        expected = theirs(q, k, v, is_causal=causal, scale=1.0).transpose(1, 2)
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


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


@pytest.mark.parametrize("call", [
    attn.torch.sdpa, attn.attention, functools.partial(attn.torch.sdpa, is_causal=True),
    functools.partial(attn.attention, causal="top-left")], ids=range(4))
def test_graph(call):
    """The first call of a shape may be captured, on a stream that the library has not seen."""
    attn.clear_plans()
    graph, graph_of_decoding = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    q, k, v = qkv()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        out = call(q, k, v)
    with torch.cuda.graph(graph_of_decoding):  # split keys: it has a workspace
        one = attn.torch.sdpa(q[:, :, :1], k, v)
    for _ in range(3):
        q.copy_(torch.randn_like(q))
        graph.replay()
        call(*qkv())  # beside it: with other memory
        graph_of_decoding.replay()
        torch.testing.assert_close(out, theirs(q, k, v, is_causal=bool(
            getattr(call, "keywords", None))), rtol=4e-3, atol=4e-3)
        torch.testing.assert_close(one, theirs(q[:, :, :1], k, v), rtol=4e-3, atol=4e-3)


def test_many_streams():
    """Calls on many streams end, and give the bits of a call alone."""
    forms = [(qkv(seq_q=512, seq_kv=512), {"is_causal": True}), (qkv(seq_q=1, seq_kv=4096), {}),
             (qkv(heads_kv=2, seq_q=205, seq_kv=333), {"enable_gqa": True})]
    alone = [attn.torch.sdpa(*x, **named) for x, named in forms]
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(16)], []
    for n in range(20 * len(streams)):
        with torch.cuda.stream(streams[n % len(streams)]):
            x, named = forms[n % len(forms)]
            found.append(attn.torch.sdpa(*x, **named))
    torch.cuda.synchronize()
    assert all(torch.equal(o, alone[n % len(forms)]) for n, o in enumerate(found))


def test_memory_of_many_lengths():
    q, k, v = qkv(seq_q=1, seq_kv=5000)

    def used():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), -torch.cuda.mem_get_info()[0]

    for step in (50, 1):  # the first loads every kernel
        before = used()
        for n in range(1, 5001, step):
            attn.torch.sdpa(q, k[:, :, :n], v[:, :, :n])
            attn.attention(q, k[:, :, :n], v[:, :, :n], scale=0.1)
    assert max(now - then for now, then in zip(used(), before)) < 8 << 20
    assert len(_plans.caches[0, 0].plans) <= _plans.CACHED_PLANS


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
    for found in (attn.attention(q, k, v), jax.jit(attn.attention)(q, k, v)):
        torch.testing.assert_close(torch.from_dlpack(found), theirs(*tensors), rtol=4e-3, atol=4e-3)
    weights = jax.random.normal(jax.random.key(0), q.shape)
    gradients = jax.jit(jax.grad(lambda *x: (attn.attention(*x).astype("float32") * weights).sum(),
                                 (0, 1, 2)))(q, k, v)
    with torch.enable_grad():
        inputs = [x.clone().requires_grad_() for x in tensors]
        expected = torch.autograd.grad(theirs(*inputs), inputs,
                                       torch.from_dlpack(weights).to(tensors[0].dtype))
    for one, other in zip(gradients, expected):
        torch.testing.assert_close(torch.from_dlpack(one), other, rtol=1e-2, atol=1e-2)
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
    """None takes the plan of another: the second round knows them all."""
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


def test_host_cost(tmp_path, capsys):
    """attn.peers --host measures every case, and nothing is held. Times depend on the processor:
    --check judges them."""
    path = tmp_path / "host.json"
    assert program.main(["--host", "--lib", str(attn.library_path()), "--json", str(path)]) == 0
    with capsys.disabled():
        print("\n" + capsys.readouterr().out)
    report = json.loads(path.read_text())
    assert report["held_mb"] < 8 and not any(cell["reason"] for cell in report["cells"])
