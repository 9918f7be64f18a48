# SPDX-License-Identifier: Apache-2.0
"""attn.torch.sdpa beside PyTorch's scaled_dot_product_attention on the CPU, over every argument."""

import math
import threading

import attn
import pytest

# The first with enable_gqa, and with 0 in rows without keys; sdpa itself needs 2.4.
torch = pytest.importorskip("torch", minversion="2.5")

import attn.torch  # noqa: E402
from sdpa import CLOSE, check, qkv, theirs  # noqa: E402

F = torch.nn.functional
DTYPES = list(CLOSE)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("named", [
    {}, {"is_causal": True}, {"scale": 0.3}, {"scale": 0.0}, {"is_causal": True, "scale": 2.0},
    {"dropout_p": 0.0, "attn_mask": None}], ids=str)
def test_arguments(named, dtype):
    check(*qkv(dtype=dtype), **named)
    check(*qkv(dtype=dtype, seq_q=30, seq_kv=9, dim_v=8), **named)
    check(*qkv(dtype=dtype, heads_q=6, heads_kv=2), enable_gqa=True, **named)
    check(*qkv(dtype=dtype, seq_q=1, seq_kv=100), **named)


MASKS = [(13, 21), (1, 21), (13, 1), (1, 1), (4, 13, 21), (1, 13, 21), (2, 1, 13, 21),
         (2, 4, 13, 21), (2, 4, 1, 21), (2, 1, 1, 21), (1, 4, 13, 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(shape, dtype):
    q, k, v = qkv(dtype=dtype)
    boolean = torch.rand(shape) > 0.3
    check(q, k, v, boolean)
    check(q, k, v, torch.randn(shape).to(dtype))
    check(q, k, v, torch.zeros(shape, dtype=dtype).masked_fill_(~boolean, -math.inf))
    if len(shape) >= 2:
        check(q, k, v, torch.randn(shape).to(dtype).mT.contiguous().mT)
    grouped = qkv(dtype=dtype, heads_kv=2)
    check(*grouped, boolean, enable_gqa=True)


def test_rows_without_keys():
    q, k, v = qkv()
    mask = torch.ones(13, 21, dtype=torch.bool)
    mask[3:7] = False
    found = check(q, k, v, mask)
    assert not found[:, :, 3:7].any()
    assert not attn.torch.sdpa(q, k[:, :, :0], v[:, :, :0]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_position_bias_with_the_lowest_number(dtype):
    """As T5 has it: no scale, and hidden keys at or below the lowest finite number, where the sum
    with a position bias may be -inf. A row of the lowest numbers is a mean, a row of -inf is 0."""
    q, k, v = (torch.randn(2, 4, 40, 64).to(dtype) for _ in range(3))
    q, position, low = 0.3 * q, torch.randn(1, 4, 40, 40).to(dtype), torch.finfo(dtype).min
    seen = torch.ones(2, 1, 1, 40, dtype=torch.bool)
    seen[0, ..., 25:] = False
    once = torch.where(seen, position, low)
    twice = once + torch.where(seen, 0.0, low).to(dtype)
    lowest, nothing = once.clone(), once.clone()
    lowest[1, :, 3], nothing[1, :, 3] = low, -math.inf
    assert twice.isinf().any() and not once.isinf().any()
    for bias in (once, twice, lowest, nothing):
        weights = torch.softmax(q.double() @ k.double().mT + bias.double(), -1).nan_to_num(0.0)
        torch.testing.assert_close(attn.torch.sdpa(q, k, v, bias, scale=1.0).double(),
                                   weights @ v.double(), rtol=CLOSE[dtype], atol=CLOSE[dtype])


def test_masks_of_another_dtype():
    q, k, v = qkv(dtype=torch.bfloat16)
    mask = torch.randn(13, 21)
    found = attn.torch.sdpa(q, k, v, mask)
    expected = theirs(q.double(), k.double(), v.double(), mask.double())
    torch.testing.assert_close(found.double(), expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype):
    q, k, v = (torch.randn(2, n, 4, 16).to(dtype).transpose(1, 2) for n in (13, 21, 21))
    found = check(q, k, v, is_causal=True)
    assert found.transpose(1, 2).is_contiguous()  # as query lies, so that models need not copy
    fused = torch.randn(2, 13, 3, 4, 16).to(dtype).permute(2, 0, 3, 1, 4)
    check(*fused.unbind(0))
    check(q.mT.contiguous().mT, k, v)  # rows whose elements are apart
    check(q[..., 1:9], k[..., 1:9], v[..., 3:])
    check(q[:, :, ::3], k[:, :, ::2], v[:, :, ::2])
    check(q, k[:1, :1].expand(2, 4, 21, 16), v[:1].expand(2, 4, 21, 16))


def test_shapes():
    check(*(x[0] for x in qkv()))             # (heads, rows, dim)
    check(*(x[0, 0] for x in qkv()))          # (rows, dim)
    check(*(x[0, 0] for x in qkv()), torch.randn(13, 21))
    check(*qkv(batch=(2, 3)))
    check(*qkv(batch=(2, 3)), torch.randn(3, 1, 13, 21))
    check(*qkv(batch=(2, 3), heads_kv=2), enable_gqa=True)
    q, k, v = qkv()
    check(q, k[:, :1], v[:, :1])              # heads and batches that broadcast
    check(q[:1], k, v)
    check(q, k[0], v[0])
    check(q[:, :, :0], k, v)
    check(q[:0], k[:0], v[:0])
    check(*qkv(dim=7, dim_v=5))
    check(*qkv(dim=1))


Q, K, V = qkv()
BOTH = torch.ones(13, 21, dtype=torch.bool)
REFUSED = [
    ((Q, K, V), {"dropout_p": 0.5}, NotImplementedError, "dropout_p is 0.5"),
    ((Q.double(), K.double(), V.double()), {}, NotImplementedError, "torch.float64"),
    ((Q, K.half(), V), {}, ValueError, "key is torch.float16"),
    ((Q, K, V, BOTH), {"is_causal": True}, ValueError, "is_causal is True and there is"),
    ((Q, K, V, BOTH.int()), {}, NotImplementedError, "attn_mask has dtype torch.int32"),
    ((Q, K, V, BOTH[:5]), {}, ValueError, r"attn_mask has the shape \(5, 21\)"),
    ((Q, K[:, :2], V[:, :2]), {}, ValueError, "enable_gqa=True"),
    ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}, ValueError, "4, 3 and 3 heads"),
    ((Q, K[..., :8], V), {}, ValueError, "key has the last dimension 8"),
    ((Q, K, V[:, :, 1:]), {}, ValueError, "value has 20 rows"),
    ((Q, K, V), {"scale": math.nan}, NotImplementedError, "scale is nan"),
    ((Q[0, 0, 0], K, V), {}, ValueError, "query has 1 dimensions"),
    ((Q.to("meta"), K.to("meta"), V.to("meta")), {}, NotImplementedError, "query lies on meta"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number):
    arguments, named, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        attn.torch.sdpa(*arguments, **named)


def test_tensors_that_are_not_plain():
    nested = torch.nested.nested_tensor([torch.randn(4, 3, 16), torch.randn(4, 5, 16)])
    with pytest.raises(attn.Unsupported, match="query is nested"):
        attn.torch.sdpa(nested, nested, nested)
    sparse = Q.to_sparse()
    with pytest.raises(attn.Unsupported, match="query is torch.sparse_coo"):
        attn.torch.sdpa(sparse, sparse, sparse)
    with pytest.raises(attn.Unsupported, match="no memory of its own"):
        torch.vmap(attn.torch.sdpa)(Q, K, V)
    with pytest.raises(attn.Unsupported, match="no memory of its own"):
        torch.vmap(lambda q: attn.torch.sdpa(q, K[0], V[0], BOTH))(Q)
    with pytest.raises(attn.Unsupported, match="attn_mask is torch.sparse_coo"):
        attn.torch.sdpa(Q, K, V, torch.ones(13, 21).to_sparse())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    q, k, v = qkv()
    with torch.autocast("cpu", dtype):
        found, expected = attn.torch.sdpa(q, k.to(dtype), v), theirs(q, k.to(dtype), v)
        assert found.dtype == expected.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
        mask = torch.rand(13, 21) > 0.3
        torch.testing.assert_close(attn.torch.sdpa(q, k, v, mask), theirs(q, k, v, mask), rtol=3e-2,
                                   atol=3e-2)


def test_jit_trace():
    traced = torch.jit.trace(lambda q, k, v: attn.torch.sdpa(q, k, v), qkv())
    others = qkv()
    assert torch.equal(traced(*others), attn.torch.sdpa(*others))


def test_no_gradient_is_kept_without_need():
    q, k, v = qkv()
    q.requires_grad_()
    assert not check(q, k, v).requires_grad
    with torch.inference_mode():
        check(q, k, v)


def test_forward_mode_gradients_are_refused():
    forward_ad = torch.autograd.forward_ad
    q, k, v = qkv()
    mask, tangent = torch.randn(13, 21), torch.randn_like(q)
    attn.torch.sdpa(q, k, v)  # now there is a plan for it
    with forward_ad.dual_level():
        check(q, k, v)  # where there are some, but not of these
        dual = forward_ad.make_dual(q, tangent)
        for call in (attn.torch.sdpa, attn.attention,
                     lambda *qkv: torch.ops.attn.sdpa(*qkv, None, False, None, False),
                     torch.compile(lambda *qkv: attn.torch.sdpa(*qkv), backend="eager")):
            with pytest.raises(attn.Unsupported, match="has a forward-mode gradient"):
                call(dual, k, v)
        with pytest.raises(attn.Unsupported, match="attn_mask has a forward-mode gradient"):
            attn.torch.sdpa(q, k, v, forward_ad.make_dual(mask, torch.ones_like(mask)))
        with torch.inference_mode():
            check(q, k, v)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            expected = forward_ad.unpack_dual(theirs(dual, k, v)).tangent
            with attn.torch.replace_sdpa(fallback=True) as seen:
                found = F.scaled_dot_product_attention(dual, k, v)
            assert torch.equal(forward_ad.unpack_dual(found).tangent, expected)
        assert seen.calls == 1 and "query has a forward-mode gradient" in list(seen.reasons)[0]
    for jvp in (torch.func.jvp, torch.compile(torch.func.jvp, backend="eager")):
        with pytest.raises(attn.Unsupported, match="query has a forward-mode gradient"):
            jvp(lambda x: attn.torch.sdpa(x, k, v), (q,), (tangent,))
    check(q, k, v)


def test_threads_do_not_change_bits():
    q, k, v = qkv(seq_q=100, seq_kv=100)
    expected, usual = attn.torch.sdpa(q, k, v), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(attn.torch.sdpa(q, k, v), expected)
    finally:
        torch.set_num_threads(usual)


# ---- torch.compile, torch.export -------------------------------------------------------------


def test_operator():
    q, k, v = qkv(heads_kv=2)
    for mask, causal in ((None, True), (torch.rand(13, 21) > 0.5, False)):
        torch.library.opcheck(torch.ops.attn.sdpa, (q, k, v, mask, causal, None, True))
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    torch.library.opcheck(torch.ops.attn.sdpa, (*transposed, None, False, 0.5, True))


def block(q, k, v, mask):
    return attn.torch.sdpa(q * 2, k, v, mask) + attn.torch.sdpa(q, k, v, is_causal=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for seq in (13, 17, 19):  # the second length makes it dynamic
        q, k, v = qkv(seq_q=seq)
        mask = torch.rand(seq, 21) > 0.3
        torch.testing.assert_close(compiled(q, k, v, mask), block(q, k, v, mask))
    assert not torch._dynamo.explain(block)(q, k, v, mask).graph_break_count


def test_export():
    class Block(torch.nn.Module):
        def forward(self, q, k, v, mask):
            return block(q, k, v, mask)

    q, k, v = qkv()
    mask = torch.rand(13, 21) > 0.3
    exported = torch.export.export(Block(), (q, k, v, mask))
    assert "attn.sdpa" in str(exported.graph)
    torch.testing.assert_close(exported.module()(q, k, v, mask), block(q, k, v, mask))


# ---- replace_sdpa ----------------------------------------------------------------------------


class SelfAttention(torch.nn.Module):
    """As models write it: fused projection, a transposed view, the function from its module."""

    def __init__(self, width=32, heads=4, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x):
        batch, rows, width = x.shape
        q, k, v = self.project(x).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return self.out(o.transpose(1, 2).reshape(batch, rows, width))


def test_replace_in_a_model():
    model, x = SelfAttention(), torch.randn(2, 11, 32)
    expected = model(x)
    with attn.torch.replace_sdpa() as seen:
        assert F.scaled_dot_product_attention is not theirs
        found = model(x)
    assert F.scaled_dot_product_attention is theirs
    assert (seen.calls, seen.by_pytorch, seen.reasons) == (1, 0, {})
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    graphs = []
    with attn.torch.replace_sdpa() as seen:
        assert not seen.compiled
        compiled = torch.compile(model, fullgraph=True,
                                 backend=lambda graph, _: graphs.append(graph) or graph)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-5)
    assert seen.calls == 0 and seen.compiled and "compiled graphs are not counted" in repr(seen)
    assert len(graphs) == 1


def test_replace_in_multihead_attention():
    model, x = torch.nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(2, 11, 32)
    hidden = torch.rand(11, 11) > 0.7
    expected = model(x, x, x, attn_mask=hidden, need_weights=False)[0]
    with attn.torch.replace_sdpa() as seen:
        found = model(x, x, x, attn_mask=hidden, need_weights=False)[0]
    assert seen.calls == 1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_fallback():
    model, x = SelfAttention(dropout=0.5), torch.randn(2, 11, 32)
    with attn.torch.replace_sdpa(), pytest.raises(attn.Unsupported, match="dropout_p is 0.5"):
        model(x)
    assert F.scaled_dot_product_attention is theirs
    with attn.torch.replace_sdpa(fallback=True) as seen:
        model(x)
        with pytest.raises(ValueError):  # what is wrong stays wrong
            F.scaled_dot_product_attention(Q, K[:, :2], V[:, :2])
    assert seen.calls == 2
    assert seen.reasons == {"dropout_p is 0.5, expected 0: there is no dropout": 1}


def test_reasons_are_bounded():
    with attn.torch.replace_sdpa(fallback=True) as seen:
        for n in range(1, 101):
            for _ in range(2):
                F.scaled_dot_product_attention(Q, K, V, dropout_p=n / 200)
    assert repr(seen) == "<200 calls, 200 of them by PyTorch>"
    assert len(seen.reasons) == attn.torch.MOST_REASONS and set(seen.reasons.values()) == {2}


def test_threads_at_once():
    cases = [qkv(seq_q=n, seq_kv=n) for n in (5, 20, 40)]
    expected = [attn.torch.sdpa(*case) for case in cases]
    wrong = []

    def work(first):
        with torch.no_grad():
            for n in range(40):
                at = (first + n) % len(cases)
                if not torch.equal(attn.torch.sdpa(*cases[at]), expected[at]):
                    wrong.append(at)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
