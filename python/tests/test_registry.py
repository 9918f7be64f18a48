# SPDX-License-Identifier: Apache-2.0
"""libattn as PyTorch's flash attention: the operators, and torch.nn.attention's registry."""

import pytest
import torch
import torch.nn.attention as registry
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attn.torch
from attn import _registry

aten = torch.ops.aten


@pytest.fixture
def replaced(monkeypatch):
    """The operators, by libattn, and how often each was called."""
    calls = []
    for at, function in _registry.OPERATORS.items():
        def counted(*args, at=at, function=function, **kwargs):
            calls.append(at[0])
            return function(*args, **kwargs)
        monkeypatch.setitem(_registry.OPERATORS, at, counted)
    handle = _registry._Handle()
    yield calls
    handle.remove()


def tensors(heads_kv=4, rows=9, keys=14, dim=40, dtype=torch.float32, rows_first=False):
    torch.manual_seed(0)
    shapes = (2, 4, rows, dim), (2, heads_kv, keys, dim), (2, heads_kv, keys, dim)
    if rows_first:
        return [torch.randn(b, s, h, d, dtype=dtype).transpose(1, 2) for b, h, s, d in shapes]
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def expected(q, k, v, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("options", [
    {}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.randn(9, 14)},
    {"attn_mask": torch.randn(2, 1, 9, 14) > 0}], ids=str)
def test_forward_and_gradients_on_the_cpu(replaced, options, rows_first):
    inputs = [x.requires_grad_() for x in tensors(rows_first=rows_first)]
    right = [x.detach().clone().requires_grad_() for x in inputs]
    out = scaled_dot_product_attention(*inputs, **options)
    theirs = expected(*right, **options)
    torch.testing.assert_close(out, theirs)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    theirs.backward(gradient)
    for x, y in zip(inputs, right):
        torch.testing.assert_close(x.grad, y.grad)
    assert replaced == ["_scaled_dot_product_flash_attention_for_cpu",
                        "_scaled_dot_product_flash_attention_for_cpu_backward"]


@pytest.mark.parametrize("rows_first", [False, True])
def test_results_have_the_forms_that_compiled_graphs_expect(replaced, rows_first):
    q, k, v = tensors(keys=9, rows_first=rows_first)
    operators = [("_scaled_dot_product_flash_attention_for_cpu", "CPU")]
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8):  # 2.5 has another seed
        operators.append(("_scaled_dot_product_flash_attention", "CUDA"))
    for name, kind in operators:
        function, meta = _registry.OPERATORS[name, kind], [x.to("meta") for x in (q, k, v)]
        found, wanted = function(q, k, v), getattr(aten, name)(*meta)
        for x, y in zip(found, wanted):
            if isinstance(x, torch.Tensor):
                assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype), name
            else:
                assert x == y, name
        backward = _registry.OPERATORS[name + "_backward", kind]
        rest = (0.0, False) if kind == "CPU" else (*found[2:6], 0.0, False, *found[6:8])
        ours = backward(found[0], q, k, v, *found[:2], *rest)
        if kind == "CPU":
            theirs = getattr(aten, name + "_backward")(
                *(x.to("meta") for x in (found[0], q, k, v, *found[:2])), *rest)
            assert [x.stride() for x in ours] == [x.stride() for x in theirs]
        else:
            assert [x.stride() for x in ours] == [x.stride() for x in (q, k, v)]


def test_the_functions_for_gpus_compute(replaced):
    """On the CPU, which they take as well."""
    q, k, v = [x.requires_grad_() for x in tensors(heads_kv=2, dtype=torch.float32)]
    theirs = expected(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True)
    gradient = torch.randn_like(theirs)
    wanted = torch.autograd.grad(theirs, (q, k, v), gradient)
    out, lse, *rest = _registry._cuda(q, k, v, 0.0, True)
    torch.testing.assert_close(out, theirs)
    found = _registry._cuda_backward(gradient, q, k, v, out, lse, *rest[:4], 0.0, True, *rest[4:6])
    for x, y in zip(found, wanted):
        torch.testing.assert_close(x, y)


def test_callers_that_replace_sdpa_does_not_see(replaced):
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval()
    x, (q, k, v) = torch.randn(2, 6, 32), tensors()
    compiled = torch.compile(lambda q, k, v: scaled_dot_product_attention(q, k, v) + 1,
                             backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(q, k, v), expected(q, k, v) + 1)
        assert len(replaced) == 1
        with sdpa_kernel(SDPBackend.MATH):
            right = layer(x)
        torch.testing.assert_close(layer(x), right)


def test_refused(replaced):
    with pytest.raises(attn.Unsupported, match="torch.float64"):
        scaled_dot_product_attention(*(x.double() for x in tensors()))
    with pytest.raises(attn.Unsupported, match="dropout_p is 0.5"):
        _registry._cuda(*tensors(), 0.5)


def test_registering(monkeypatch):
    known = {}
    monkeypatch.setattr(registry, "register_flash_attention_impl",
                        lambda name, register_fn: known.update({name: register_fn}), raising=False)
    _registry.register()
    q, k, v = (x.double() for x in tensors())
    before = scaled_dot_product_attention(q, k, v)
    handle = known.pop("attn")()
    with pytest.raises(attn.Unsupported):
        scaled_dot_product_attention(q, k, v)
    handle.remove()
    assert torch.equal(scaled_dot_product_attention(q, k, v), before) and not known


if hasattr(registry, "register_flash_attention_impl"):
    def test_registry_of_pytorch():
        q, k, v = tensors()
        assert "attn" in registry.list_flash_attention_impls()
        registry.activate_flash_attention_impl("attn")
        try:
            assert registry.current_flash_attention_impl() == "attn"
            torch.testing.assert_close(scaled_dot_product_attention(q, k, v), expected(q, k, v))
            with pytest.raises(attn.Unsupported):
                scaled_dot_product_attention(q.double(), k.double(), v.double())
        finally:
            registry.restore_flash_attention_impl()
        scaled_dot_product_attention(q.double(), k.double(), v.double())
        assert registry.current_flash_attention_impl() is None
