# SPDX-License-Identifier: Apache-2.0
"""Gradients of attn.torch.sdpa and attn.attention on the CPU: beside PyTorch in float64, under the
modes and transformations that PyTorch has, and in a model that is trained."""

import pathlib
import runpy
import sys

import attn
import pytest

torch = pytest.importorskip("torch", minversion="2.5")

import attn.torch  # noqa: E402
from attn import _plans  # noqa: E402
from sdpa import qkv, theirs  # noqa: E402

F = torch.nn.functional
CLOSE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest gradient
DTYPES = list(CLOSE)
TRAIN = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train.py"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def leaves(arguments, change):
    return {name: change(x).detach().requires_grad_()
            if torch.is_tensor(x) and x.is_floating_point() else x for name, x in arguments.items()}


def gradients(function, arguments, d_o):
    """By the names of those that have one."""
    out = function(**arguments)
    d_o = torch.randn(out.shape) if d_o is None else d_o
    named = {name: x for name, x in arguments.items() if torch.is_tensor(x) and x.requires_grad}
    found = torch.autograd.grad(out, list(named.values()), d_o.to(out.dtype))
    return dict(zip(named, found)), d_o


def check(ours, reference, arguments, dtype, keep=lambda x: x, d_o=None, least=0.5):
    """keep: makes a leaf, with the strides that are to be tested. least: a gradient smaller than
    that part of the largest one is so because terms cancel out."""
    mine = leaves(arguments, keep)
    found, d_o = gradients(ours, mine, d_o if d_o is None else d_o.to(dtype))
    d_o = d_o.to(dtype)
    exact, _ = gradients(reference, leaves(arguments, torch.Tensor.double), d_o.double())
    assert found.keys() == exact.keys()
    largest = max(x.abs().max() for x in exact.values())
    for name, gradient in found.items():
        assert gradient.dtype == mine[name].dtype and gradient.shape == mine[name].shape
        error = (gradient.double() - exact[name]).abs().max()
        assert error <= CLOSE[dtype] * max(exact[name].abs().max(), least * largest), name
    return found


def check_sdpa(q, k, v, attn_mask=None, d_o=None, least=0.5, **named):
    arguments = dict(query=q, key=k, value=v, attn_mask=attn_mask, **named)
    return check(attn.torch.sdpa, theirs, arguments, q.dtype, torch.clone, d_o, least)


# ---- sdpa --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("named", [{}, {"is_causal": True}, {"scale": 0.3}, {"scale": 0.0}],
                         ids=str)
def test_arguments(named, dtype):
    check_sdpa(*qkv(dtype=dtype), **named)
    check_sdpa(*qkv(dtype=dtype, seq_q=150, seq_kv=70, dim=40), **named)
    check_sdpa(*qkv(dtype=dtype, seq_q=30, seq_kv=9, dim_v=8), **named)
    check_sdpa(*qkv(dtype=dtype, heads_q=6, heads_kv=2), enable_gqa=True, **named)
    check_sdpa(*qkv(dtype=dtype, seq_q=1, seq_kv=100), **named)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [
    (13, 21), (1, 21), (13, 1), (1, 1), (4, 13, 21), (1, 13, 21), (2, 1, 13, 21), (2, 4, 13, 21),
    (2, 4, 1, 21), (2, 1, 1, 21), (1, 4, 13, 1)], ids=str)
def test_masks(shape, dtype):
    q, k, v = qkv(dtype=dtype)
    boolean = torch.rand(shape) > 0.2
    if shape[-1] > 1:
        boolean[..., 0] = True  # a row that sees nothing is NaN in PyTorch's gradient
        check_sdpa(q, k, v, boolean)
    least = 2 if shape[-1] == 1 else 0.5  # one number for all keys: its gradient is 0
    check_sdpa(q, k, v, torch.randn(shape).to(dtype), least=least)
    check_sdpa(q, k, v, torch.randn(shape).to(dtype).mT.contiguous().mT, least=least)
    check_sdpa(*qkv(dtype=dtype, heads_kv=2), torch.randn(shape), least=least, enable_gqa=True)


def test_an_expanded_mask():
    """Each element has its own gradient; autograd adds them up."""
    q, k, v = qkv()
    mask = torch.randn(1, 1, 13, 21, requires_grad=True)
    wide, d_o = mask.expand(2, 4, 13, 21), torch.randn_like(q)
    one, = torch.autograd.grad(attn.torch.sdpa(q, k, v, mask), mask, d_o)
    each, summed = torch.autograd.grad(attn.torch.sdpa(q, k, v, wide), (wide, mask), d_o)
    torch.testing.assert_close(summed, one)
    torch.testing.assert_close(each.sum((0, 1), keepdim=True), one)
    expected, = torch.autograd.grad(theirs(q, k, v, wide), wide, d_o)
    torch.testing.assert_close(each, expected)


def test_rows_without_keys():
    q, k, v = (x.requires_grad_() for x in qkv())
    mask = torch.ones(13, 21, dtype=torch.bool)
    mask[3:7] = False
    dq, dk, dv = torch.autograd.grad(attn.torch.sdpa(q, k, v, mask).sum(), (q, k, v))
    assert not dq[:, :, 3:7].any() and dq[:, :, :3].any()
    assert all(x.isfinite().all() for x in (dq, dk, dv))
    found = attn.torch.sdpa(q, k[:, :, :0], v[:, :, :0])
    assert not torch.autograd.grad(found.sum(), q)[0].any()
    found = attn.torch.sdpa(q[:, :, :0], k, v)
    assert found.shape == (2, 4, 0, 16)
    assert not any(x.any() for x in torch.autograd.grad(found.sum(), (q, k, v)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype):
    rows_first = [torch.randn(2, n, 4, 16).to(dtype).transpose(1, 2) for n in (13, 21, 21)]
    found = check_sdpa(*rows_first, is_causal=True)
    assert all(x.transpose(1, 2).is_contiguous() for x in found.values())
    fused = torch.randn(2, 13, 3, 4, 16).to(dtype).requires_grad_()
    exact = fused.detach().double().requires_grad_()
    d_o = torch.randn(2, 4, 13, 16).to(dtype)
    found, = torch.autograd.grad(attn.torch.sdpa(*fused.permute(2, 0, 3, 1, 4)), fused, d_o)
    exact, = torch.autograd.grad(theirs(*exact.permute(2, 0, 3, 1, 4)), exact, d_o.double())
    assert (found.double() - exact).abs().max() <= CLOSE[dtype] * exact.abs().max()


VIEWS = {
    "columns apart": lambda q, k, v: (q.mT.contiguous().mT, k, v.mT.contiguous().mT),
    "a part of each row": lambda q, k, v: [x[..., 1:9] for x in (q, k, v)],
    "every other row": lambda q, k, v: (q[:, :, ::2], k[:, :, ::2], v[:, :, ::2]),
    "one head for all": lambda q, k, v: (q, k[:, :1], v[:, :1]),
    "one batch": lambda q, k, v: (q[:1], k, v),
    "expanded": lambda q, k, v: (q[:1].expand(q.shape), k, v[:1, :1].expand(v.shape)),
    "no batch": lambda q, k, v: (q[0], k[0], v[0]),
    "no heads": lambda q, k, v: (q[0, 0], k[0, 0], v[0, 0]),
    "batches": lambda q, k, v: [x.unflatten(0, (2, 1)).unflatten(2, (2, 2)) for x in (q, k, v)],
    "the same": lambda q, k, v: (k, k, k + 0 * (q.sum() + v.sum())),
    "negatives": lambda q, k, v: (torch._neg_view(q), k, torch._neg_view(v)),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", list(VIEWS))
def test_views(name, masked):
    def viewed(function):
        def call(attn_mask=None, **named):
            q, k, v = VIEWS[name](**named)
            mask = None if attn_mask is None else attn_mask[:q.shape[-2], :k.shape[-2]]
            return function(q, k, v, mask)
        return call
    q, k, v = qkv(seq_q=14, seq_kv=22)
    arguments = dict(q=q, k=k, v=v, **({"attn_mask": torch.randn(22, 22)} if masked else {}))
    check(viewed(attn.torch.sdpa), viewed(theirs), arguments, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_the_output(dtype):
    """Of sum() it is one number for all; of other operations it lies in any order."""
    q, k, v = qkv(dtype=dtype)
    d_o = torch.randn(2, 4, 13, 16).to(dtype)
    for other in (torch.ones(()).expand(2, 4, 13, 16), d_o[:1, :, :1].expand(2, 4, 13, 16),
                  d_o.transpose(1, 2).contiguous().transpose(1, 2), d_o.mT.contiguous().mT,
                  torch._neg_view(d_o), torch.randn(2, 4, 13, 17).to(dtype)[..., 1:]):
        check_sdpa(q, k, v, d_o=other)


def test_only_what_is_needed():
    q, k, v = qkv()
    mask = torch.randn(13, 21)
    d_o = torch.randn_like(q)
    everything = [x.clone().requires_grad_() for x in (q, k, v, mask)]
    expected = torch.autograd.grad(attn.torch.sdpa(*everything), everything, d_o)
    for number in range(4):
        needs = [x.clone().requires_grad_(n == number) for n, x in enumerate((q, k, v, mask))]
        attn.torch.sdpa(*needs).backward(d_o)
        assert torch.equal(needs[number].grad, expected[number])
        assert all(x.grad is None for n, x in enumerate(needs) if n != number)


# ---- attention ---------------------------------------------------------------------------------


def formula(q, k, v, causal=None, window=(-1, -1), softcap=0.0, alibi=None, bias=None, mask=None,
            sink=None, cu_seqlens_q=None, cu_seqlens_kv=None, used_kv=None, layout="bhsd"):
    """Of include/attn.h, by operations that have gradients."""
    if layout == "bshd":
        q, k, v = (x.transpose(-3, -2) for x in (q, k, v))
    if cu_seqlens_q is not None:
        parts = [formula(q[None, :, i:j], k[None, :, m:n], v[None, :, m:n], causal, window, softcap,
                         alibi, bias, mask, sink)[0] for i, j, m, n in
                 zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_kv, cu_seqlens_kv[1:])]
        o = torch.cat(parts, 1)
    else:
        (batch, heads, rows, dim), keys = q.shape, k.shape[2]
        k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
        s = q @ k.mT * dim ** -0.5
        s = softcap * torch.tanh(s / softcap) if softcap else s
        used = torch.tensor([keys] * batch if used_kv is None else used_kv).view(-1, 1, 1, 1)
        j, off = torch.arange(keys), 0 if causal == "top-left" else used - rows
        i = torch.arange(rows)[:, None] + off
        if alibi is not None:
            slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)]) \
                if alibi is True else alibi
            s = s - slopes.view(-1, heads, 1, 1) * (i - j).abs()
        s = s if bias is None else s + bias
        seen = (j < used) & ((j <= i) if causal else True) & (j <= i + window[1] if window[1] >= 0
                                                              else True)
        seen = seen & (j >= i - window[0]) if window[0] >= 0 else seen
        s = s.masked_fill(~(seen if mask is None else seen & mask.bool()), -torch.inf)
        if sink is not None:
            s = torch.cat((s, sink.view(1, -1, 1, 1).expand(batch, heads, rows, 1)), -1)
        o = torch.softmax(s, -1)[..., :keys] @ v
    return o.transpose(-3, -2) if layout == "bshd" else o


PACKED = {"cu_seqlens_q": [0, 5, 13], "cu_seqlens_kv": [0, 9, 21], "causal": "bottom-right"}
OPTIONS = {
    "nothing": {}, "causal": {"causal": "bottom-right"}, "window": {"window": (9, 3)},
    "softcap": {"softcap": 2.0}, "alibi": {"alibi": True},
    "slopes": {"alibi": torch.rand(4), "causal": "top-left"},
    "slopes of batches": {"alibi": torch.rand(2, 4)}, "sink": {"sink": torch.randn(4)},
    "used_kv": {"used_kv": [7, 20], "sink": torch.randn(4)},
    "mask and bias": {"mask": torch.rand(2, 1, 13, 21) > 0.3, "bias": torch.randn(4, 1, 21),
                      "sink": torch.randn(4), "softcap": 3.0, "alibi": torch.rand(4)},
    "packed": PACKED, "packed sink": {**PACKED, "sink": torch.randn(4)},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_options(name, layout, dtype):
    tensors = qkv(heads_kv=2, dim_v=8, dtype=dtype)
    if layout == "bshd":
        tensors = [x.transpose(1, 2).contiguous() for x in tensors]
    if "packed" in name:
        tensors = [x[0] for x in tensors]
    arguments = dict(zip("qkv", tensors), **OPTIONS[name], layout=layout)
    check(attn.attention, formula, arguments, dtype)


def test_rows_of_no_sequence():
    q, k, v = (x[0].requires_grad_() for x in qkv())
    found = attn.attention(q, k, v, cu_seqlens_q=[0, 5, 9], cu_seqlens_kv=[0, 9, 15])
    dq, dk, dv = torch.autograd.grad(found[:, :9].sum(), (q, k, v))
    assert not dq[:, 9:].any() and not dk[:, 15:].any() and not dv[:, 15:].any()


def test_wrong_arguments_are_named():
    q, k, v = (x.requires_grad_() for x in qkv())
    for named, text in (({"sink": torch.zeros(3)}, "the shape of sink"),
                        ({"bias": torch.zeros(5, 5)}, "bias has the shape"),
                        ({"causal": "x"}, "causal is"), ({"threads": -1}, "threads is -1")):
        with pytest.raises(attn.InvalidArgument, match=text):
            attn.attention(q, k, v, **named)
    for named in ({"return_lse": True}, {"out": torch.empty_like(q.detach())},
                  {"tensor_cores": "never"}, {"variant": "cpu_row"}):
        with pytest.raises(attn.Unsupported, match="q requires a gradient, and a call with out"):
            attn.attention(q, k, v, **named)
    with pytest.raises(attn.InvalidArgument, match="value has 20 rows"):
        attn.torch.sdpa(q, k, v[:, :, 1:])
    with pytest.raises(attn.InvalidArgument, match="is_causal is True and there is"):
        attn.torch.sdpa(q, k, v, torch.zeros(13, 21), is_causal=True)
    with pytest.raises(attn.Unsupported, match="float64"):
        attn.torch.sdpa(q.double(), k.double(), v.double())
    with pytest.raises(attn.Unsupported, match="dropout"):
        attn.torch.sdpa(q, k, v, dropout_p=0.1)


def test_a_refusal_comes_with_forward(monkeypatch):
    """Of a library that has no backward pass: there PyTorch can still take the call."""
    create = _plans.Plan.__init__

    def refuse(self, context, problem, variant=None, direction=0, *others):
        if direction:
            raise attn.Unsupported("no backward here")
        create(self, context, problem, variant, direction, *others)
    monkeypatch.setattr(_plans.Plan, "__init__", refuse)
    attn.clear_plans()
    q, k, v = (x.requires_grad_() for x in qkv())
    with pytest.raises(attn.Unsupported, match="no backward here"):
        attn.torch.sdpa(q, k, v)
    with pytest.raises(attn.Unsupported, match="no backward here"):
        attn.attention(q, k, v)
    with attn.torch.replace_sdpa(fallback=True) as seen:
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    assert seen.reasons == {"no backward here": 1} and q.grad is not None
    attn.clear_plans()


# ---- PyTorch's modes -----------------------------------------------------------------------------


def block(q, k, v, mask):
    return attn.torch.sdpa(q * 2, k, v, mask) + attn.torch.sdpa(q, k, v, is_causal=True)


def grads(function, *tensors):
    """Of the sum of squares, by each tensor."""
    tensors = [x.detach().clone().requires_grad_() for x in tensors]
    return torch.autograd.grad(function(*tensors).float().pow(2).sum(), tensors)


def close(found, expected):
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for seq in (13, 17):  # the second length makes it dynamic
        tensors = *qkv(seq_q=seq), torch.randn(seq, 21)
        close(grads(compiled, *tensors), grads(block, *tensors))
        with torch.no_grad():
            torch.testing.assert_close(compiled(*tensors), block(*tensors))


def test_compile_options():
    """Groups, shapes that broadcast, masks of one row."""
    def call(q, k, v, mask):
        o = attn.torch.sdpa(q, k, v, mask, enable_gqa=True)
        return o + attn.torch.sdpa(q[0], k[0, :1], v[0, :1])
    tensors = *qkv(heads_kv=2), torch.randn(2, 1, 1, 21)
    close(grads(torch.compile(call, fullgraph=True, backend="aot_eager"), *tensors),
          grads(call, *tensors))


def test_operators():
    q, k, v = (x.requires_grad_() for x in qkv(heads_kv=2))
    bias, sink = torch.randn(4, 1, 21, requires_grad=True), torch.randn(4, requires_grad=True)
    for arguments in ((None, None, None, None, "top-left", None, -1, -1, 0.0),
                      (bias, sink, None, torch.tensor([7, 20], dtype=torch.int32), None, 0.3, 5, 2,
                       2.0)):
        torch.library.opcheck(torch.ops.attn.attention_lse, (q, k, v, *arguments))


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint
    tensors = *qkv(), torch.randn(13, 21)
    expected = grads(block, *tensors)
    for reentrant in (False, True):
        inputs = [x.clone().requires_grad_() for x in tensors]
        checkpoint(block, *inputs, use_reentrant=reentrant).pow(2).sum().backward()
        assert all(torch.equal(x.grad, one) for x, one in zip(inputs, expected))


def test_saved_tensors_in_another_order():
    """Hooks may give back a copy with other strides."""
    tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv()]

    def hooked(*x):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach(),
                                                      lambda x: x.contiguous()):
            return attn.torch.sdpa(*x)
    close(grads(hooked, *tensors), grads(attn.torch.sdpa, *tensors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    tensors = *qkv(), torch.randn(13, 21)

    def cast(function):
        def call(*x):
            with torch.autocast("cpu", dtype):
                return function(*x)
        return call
    found = grads(cast(attn.torch.sdpa), *tensors)
    for one, other in zip(found, grads(theirs, *tensors)):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() <= CLOSE[dtype] * other.abs().max()


def test_func():
    q, k, v = qkv()
    mask = torch.randn(13, 21)

    def loss(*x):
        return block(*x).pow(2).sum()
    found = torch.func.grad(loss, (0, 1, 2, 3))(q, k, v, mask)
    assert all(torch.equal(*pair) for pair in zip(found, grads(block, q, k, v, mask)))
    out, pull = torch.func.vjp(block, q, k, v, mask)
    close(pull(2 * out), found)
    frozen = torch.func.grad(lambda q: (attn.torch.sdpa(q.detach(), k, v) * q).sum())(q)
    assert torch.equal(frozen, attn.torch.sdpa(q, k, v))
    found = torch.func.grad(lambda q: attn.attention(q, k, v).pow(2).sum())(q)
    close([found], grads(lambda q: attn.attention(q, k, v), q))


def test_vmap_is_refused():
    q, k, v = qkv()
    stacked = torch.stack((q, q))

    def loss(q):
        return attn.torch.sdpa(q, k, v).sum()
    with pytest.raises(attn.Unsupported, match="within torch.vmap: make its dimension one"):
        torch.vmap(torch.func.grad(loss))(stacked)
    with pytest.raises(attn.Unsupported, match="within torch.vmap: make its dimension one"):
        torch.func.grad(lambda x: torch.vmap(loss)(x).sum())(stacked)
    q.requires_grad_()
    with pytest.raises(attn.Unsupported, match="within torch.vmap: make its dimension one"):
        torch.autograd.grad(attn.torch.sdpa(q, k, v), q, torch.randn(2, *q.shape),
                            is_grads_batched=True)


def test_second_derivatives_are_refused():
    q, k, v = (x.requires_grad_() for x in qkv())
    for function in (attn.torch.sdpa, torch.compile(attn.torch.sdpa, backend="eager")):
        first, = torch.autograd.grad(function(q, k, v).sum(), q, create_graph=True)
        assert torch.equal(first, torch.autograd.grad(function(q, k, v).sum(), q)[0])
        with pytest.raises(attn.Unsupported, match="a second derivative is not supported"):
            first.sum().backward()
    with pytest.raises(attn.Unsupported, match="a second derivative is not supported"):
        torch.func.grad(lambda x: torch.func.grad(
            lambda y: attn.torch.sdpa(y, k, v).sum())(x).sum())(q.detach())


def test_changed_in_place():
    """What backward needs may not change before it: PyTorch sees that."""
    q, k, v = (x.requires_grad_() for x in qkv())
    out = attn.torch.sdpa(q * 1, k, v)
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_threads_do_not_change_bits():
    tensors = *qkv(seq_q=100, seq_kv=120, heads_kv=2), torch.randn(4, 1, 120)

    def call(*x):
        return attn.torch.sdpa(*x, enable_gqa=True)
    usual, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 1, 2):
            torch.set_num_threads(threads)
            runs.append(grads(call, *tensors))
    finally:
        torch.set_num_threads(usual)
    for run in runs[1:]:
        assert all(torch.equal(*pair) for pair in zip(run, runs[0]))


def test_plans_are_kept():
    tensors = qkv()
    attn.clear_plans()
    for _ in range(3):
        grads(attn.torch.sdpa, *tensors)
    assert len(_plans.calls) == 2 and {len(cache.plans) for cache in _plans.caches.values()} == {2}


# ---- a model -------------------------------------------------------------------------------------


def test_a_model_learns_as_with_pytorch():
    """300 steps of a small GPT on one thread: the loss as with PyTorch's own attention, nearer than
    another seed's; and the same bits in every run."""
    train = runpy.run_path(str(TRAIN))["train"]
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected, other = train(300), train(300, seed=1)
        with attn.torch.replace_sdpa() as seen:
            found, again = train(300), train(300)
    finally:
        torch.set_num_threads(usual)
    assert (seen.calls, seen.by_pytorch) == (1200, 0)
    assert found == again
    assert found[-1] < 0.7 * found[0]
    found, expected, other = (torch.tensor(losses) for losses in (found, expected, other))
    assert (found - expected).abs().max() < (other - expected).abs().max()
    assert (found - expected).abs().mean() < 0.1 * (other - expected).abs().mean()


def test_the_example(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(TRAIN), "3"])
    runpy.run_path(str(TRAIN), run_name="__main__")
    assert "<6 calls, 0 of them by PyTorch>" in capsys.readouterr().out
