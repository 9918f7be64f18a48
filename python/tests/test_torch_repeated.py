# SPDX-License-Identifier: Apache-2.0
"""The fast path of PyTorch tensors: what it takes, what it hands to the library, what it keeps."""

import ctypes
import threading

import attn
import pytest
from attn import _attention, _library, _plans

torch = pytest.importorskip("torch", minversion="2.5")

import attn.torch  # noqa: E402
from attn import _fast  # noqa: E402
from sdpa import check, qkv  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    attn.clear_plans()
    with torch.no_grad():
        yield
    attn.clear_plans()


def moved(x, elements):
    """The same values, with the first that many elements after a multiple of 16 bytes."""
    memory = torch.empty(x.numel() + 16, dtype=x.dtype)
    assert memory.data_ptr() % 16 == 0
    return memory[elements:elements + x.numel()].view(x.shape).copy_(x)


def rows_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


# ---- results ---------------------------------------------------------------------------------

# What makes of a call another one, which the fast path computes too.
FAST = {
    "query's rows": lambda q, k, v: ((q[:, :, :7], k, v), {}),
    "one row": lambda q, k, v: ((q[:, :, 3:4], k, v), {}),
    "one key": lambda q, k, v: ((q, k[:, :, 3:4], v[:, :, 3:4]), {}),
    "rows of key and value": lambda q, k, v: ((q, k[:, :, :9], v[:, :, :9]), {}),
    "batch": lambda q, k, v: ((q[1:], k[1:], v[1:]), {}),
    "heads": lambda q, k, v: ((q[:, :2], k[:, :2], v[:, :2]), {}),
    "one head": lambda q, k, v: ((q[:, 2:3], k[:, 2:3], v[:, 2:3]), {}),
    "head_dim": lambda q, k, v: ((q[..., :8], k[..., :8], v), {}),
    "head_dim of value": lambda q, k, v: ((q, k, v[..., :8]), {}),
    "query's strides": lambda q, k, v: ((rows_first(q), k, v), {}),
    "key's strides": lambda q, k, v: ((q, rows_first(k), v), {}),
    "value's strides": lambda q, k, v: ((q, k, rows_first(v)), {}),
    "rows apart": lambda q, k, v: ((q[:, :, ::2], k[:, :, ::3], v[:, :, ::3]), {}),
    "one batch for all": lambda q, k, v: ((q, k[:1].expand_as(k), v[:1].expand_as(v)), {}),
    "float16": lambda q, k, v: ((q.half(), k.half(), v.half()), {}),
    "bfloat16": lambda q, k, v: ((q.bfloat16(), k.bfloat16(), v.bfloat16()), {}),
    "query's alignment": lambda q, k, v: ((moved(q, 1), k, v), {}),
    "key's alignment": lambda q, k, v: ((q, moved(k, 2), v), {}),
    "value's alignment": lambda q, k, v: ((q, k, moved(v, 3)), {}),
    "is_causal": lambda q, k, v: ((q, k, v), {"is_causal": True}),
    "scale": lambda q, k, v: ((q, k, v), {"scale": 0.5}),
    "a scale of 0": lambda q, k, v: ((q, k, v), {"scale": 0.0}),
    "groups": lambda q, k, v: ((q, k[:, :2], v[:, :2]), {"enable_gqa": True}),
    "an added mask": lambda q, k, v: ((q, k, v, torch.randn(13, 21)), {}),
    "an added mask of heads": lambda q, k, v: ((q, k, v, torch.randn(4, 1, 21)), {}),
    "a mask": lambda q, k, v: ((q, k, v, torch.rand(13, 21) > 0.5), {}),
    "a mask of batches": lambda q, k, v: ((q, k, v, torch.rand(2, 1, 1, 21) > 0.5), {}),
    "key is value": lambda q, k, v: ((q, k, k), {}),
    "all are one": lambda q, k, v: ((q, q, q), {}),
    "a parameter": lambda q, k, v: ((torch.nn.Parameter(q, requires_grad=False), k, v), {}),
}
# What it leaves to the slow path.
SLOW = {
    "dimensions": lambda q, k, v: ((q[0], k[0], v[0]), {}),
    "one head for all": lambda q, k, v: ((q, k[:, :1], v[:, :1]), {}),
    "one batch": lambda q, k, v: ((q, k[:1], v[:1]), {}),
    "columns apart": lambda q, k, v: ((q, k, v.mT.contiguous().mT), {}),
    "no keys": lambda q, k, v: ((q, k[:, :, :0], v[:, :, :0]), {}),
    "no rows": lambda q, k, v: ((q[:, :, :0], k, v), {}),
    "negatives": lambda q, k, v: ((torch._neg_view(q), k, torch._neg_view(v)), {}),
}


@pytest.fixture
def slow(monkeypatch):
    """A list of the calls of sdpa that left the fast path."""
    taken = []
    for name in ("_slow", "_traced"):
        def counted(*arguments, name=name, original=getattr(attn.torch, name)):
            taken.append(name)
            return original(*arguments)
        monkeypatch.setattr(attn.torch, name, counted)
    return taken


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_a_changed_call(slow, name):
    q, k, v = qkv()
    arguments, named = {**FAST, **SLOW}[name](q, k, v)
    for _ in range(3):  # at first there is no plan for it
        check(*(x.clone() for x in (q, k, v)))
        assert not slow
        check(*arguments, **named)
        assert bool(slow) == (name in SLOW and name != "no keys")
        slow.clear()


def test_outputs_lie_as_query_does():
    q, k, v = qkv()
    for query in (q, rows_first(q)):
        out = check(query, k, v)
        assert out.stride() == query.stride()
        assert torch.equal(out, attn.attention(query, k, v))
        assert attn.attention(query, k, v).is_contiguous()


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
def test_modes(slow):
    q, k, v = known()
    with torch.autocast("cpu", torch.bfloat16):
        assert attn.torch.sdpa(q, k, v).dtype == torch.bfloat16
    assert slow.pop() == "_traced" and not slow
    traced = torch.jit.trace(lambda *x: attn.torch.sdpa(*x), (q, k, v), check_trace=False)
    assert slow.pop() == "_traced" and "attn::sdpa" in str(traced.graph)
    assert "aten::size" not in str(traced.graph)
    slow.clear()
    with torch.inference_mode():
        assert attn.torch.sdpa(q, k, v).is_inference()
    assert not check(q, k, v).is_inference() and not slow
    for wrong in ((q, k, v.double()), (q, k.to("meta"), v), (q, k.to_sparse(), v)):
        with pytest.raises(attn.AttnError):
            attn.torch.sdpa(*wrong)
    nested = torch.nested.nested_tensor([x for x in k])
    for wrong in ((nested, k, v), (q, nested, v), (q, k, nested)):
        with pytest.raises(attn.Unsupported, match="nested"):
            attn.torch.sdpa(*wrong)
    for number, x in enumerate((q, k, v)):
        needs = [q, k, v]
        needs[number] = x.clone().requires_grad_()
        expected = check(*needs)
        with torch.enable_grad():
            for call in (attn.torch.sdpa, attn.attention):
                found = call(*needs)
                assert found.requires_grad and torch.equal(found, expected)
    with pytest.raises(attn.Unsupported, match="dropout"):
        attn.torch.sdpa(q, k, v, dropout_p=0.5)


def test_number_of_threads():
    q, k, v = qkv()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            check(q, k, v)
        assert set(_plans.caches) == {(-1, 1), (-1, 2)}
    finally:
        torch.set_num_threads(before)


def known():
    """The tensors of a call that is known."""
    q, k, v = qkv()
    for _ in range(2):
        check(q, k, v)
    assert len(_plans.calls) == 1
    return q, k, v


def test_known_calls_are_of_plain_tensors(slow):
    """What is wrong or unusual beside the shapes is seen although the call is known."""
    q, k, v = known()
    check(torch._neg_view(q), k, v)
    assert slow.pop() == "_traced"
    for number in range(3):
        for make in (torch.Tensor.double, torch.Tensor.half, lambda x: x.to("meta")):
            wrong = [make(x) if n == number else x for n, x in enumerate((q, k, v))]
            with pytest.raises(attn.AttnError):
                attn.torch.sdpa(*wrong)
            with pytest.raises(attn.AttnError):
                attn.attention(*wrong, threads=torch.get_num_threads())
    with pytest.raises(attn.AttnError):
        attn.torch.sdpa(*(x.to("meta") for x in (q, k, v)))
    with torch.enable_grad():
        assert attn.torch.sdpa(q, k.clone().requires_grad_(), v).requires_grad
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(attn.Unsupported, match="forward-mode"):
            attn.torch.sdpa(dual, k, v)
    with pytest.raises(attn.Unsupported, match="vmap"):
        torch.vmap(attn.torch.sdpa)(*(torch.stack((x, x)) for x in (q, k, v)))


def test_numbers_are_compared_by_value():
    """A tensor in place of a number may have another value in the next call; 1 is not True."""
    q, k, v = qkv()
    scale, longest = torch.tensor(0.5), torch.tensor(13)
    packed = {"cu_seqlens_q": ints(0, 13), "cu_seqlens_kv": ints(0, 21), "max_seqlen_kv": 21}
    for value in (0.5, 0.5, 0.5, 2.0):
        scale.fill_(value)
        expected = attn.attention(q, k, v, scale=value)
        assert torch.equal(attn.attention(q, k, v, scale=scale), expected)
        attn.attention(q[0], k[0], v[0], max_seqlen_q=longest, **packed)
        attn.attention(q, k, v, alibi=True)
    assert len(_plans.calls) == 3  # without the tensors
    with pytest.raises(attn.InvalidArgument, match="alibi"):
        attn.attention(q, k, v, alibi=1)


def test_a_refusal_is_planned_once(monkeypatch):
    """A model asks in every layer of every step, and the sentence takes long to write."""
    q, k, v = qkv()
    attn.clear_plans()
    made = []
    create = _plans.Plan.__init__
    monkeypatch.setattr(_plans.Plan, "__init__", lambda self, *rest: (made.append(rest),
                                                                      create(self, *rest))[1])
    for _ in range(3):
        with pytest.raises(attn.Unsupported, match="no variant applies"):
            attn.attention(q, k, v, scale=0.0, tensor_cores="require", threads=1)
    assert len(made) == 1
    assert torch.equal(attn.attention(q, k, v, threads=1), attn.attention(q, k, v, threads=1))


def test_known_calls_do_not_grow(monkeypatch):
    monkeypatch.setattr(_plans, "CACHED_PLANS", 4)
    q, k, v = qkv()
    for n in range(1, 14):
        for _ in range(3):
            check(q[:, :, :n], k, v)
        assert 0 < len(_plans.calls) <= 4
    attn.clear_plans()
    assert not _plans.calls


@pytest.mark.parametrize("threads", [-5, 1025, 2.5, "2", None])
def test_threads_are_checked(threads):
    """On a GPU too, which does not use them."""
    q, k, v = known()
    with pytest.raises(attn.InvalidArgument, match="^threads is "):
        attn.attention(q, k, v, threads=threads)
    (key,) = _plans.calls
    of_gpu = key[:7] + (0,) + key[8:13] + (threads,) + key[14:]
    if threads is not None:  # which attn.torch.sdpa passes
        with pytest.raises(attn.InvalidArgument, match="^threads is "):
            _fast._new_call({}, of_gpu)


def test_while_plans_are_cleared():
    q, k, v = qkv()
    expected, wrong, done = attn.torch.sdpa(q, k, v), [], threading.Event()

    def work():
        with torch.no_grad():
            while not done.is_set():
                if not torch.equal(attn.torch.sdpa(q, k, v), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        attn.clear_plans()
        attn.torch.sdpa(q, k, v)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- what reaches the library ----------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """The (problem, tensors) of each call, in place of its computation: also of problems that no
    kernel of this machine computes."""
    calls = []

    def whole(struct, start):  # the fields of attn_append come last
        return struct.from_buffer_copy(start + bytes(ctypes.sizeof(struct) - len(start)))

    class Recorded:
        size = 0

        def __init__(self, context, problem, variant=None, direction=0, *others):
            self.problem = problem

        def run_on_cpu(self, tensors):
            resolved = whole(_library.Problem, self.problem)
            error = _library.Error()
            assert not _library.load().attn_problem_resolve(
                ctypes.byref(resolved), ctypes.byref(resolved), ctypes.byref(error)), error.text
            calls.append((resolved, whole(_library.Tensors, tensors)))

    monkeypatch.setattr(_plans, "Plan", Recorded)
    return calls


def floats(*shape):
    return torch.randn(*shape)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


OPTIONS = {
    "plain": {}, "scale": {"scale": 0.7}, "top-left": {"causal": "top-left"},
    "bottom-right": {"causal": "bottom-right"}, "window": {"window": (3, 2)},
    "softcap": {"softcap": 2.0}, "alibi": {"alibi": True}, "no alibi": {"alibi": False},
    "slopes": {"alibi": floats(4)}, "slopes of batches": {"alibi": floats(2, 4)},
    "sink": {"sink": floats(4)}, "used_kv": {"used_kv": ints(7, 21)},
    "bias": {"bias": floats(2, 4, 13, 21)}, "bias row": {"bias": floats(21)},
    "bias of heads": {"bias": floats(4, 1, 21)}, "bias fp16": {"bias": floats(13, 21).half()},
    "bias strides": {"bias": floats(4, 21, 13).mT}, "bias col": {"bias": floats(13, 1)},
    "mask": {"mask": floats(2, 4, 13, 21) > 0}, "mask row": {"mask": floats(21) > 0},
    "mask of batches": {"mask": floats(2, 1, 1, 21) > 0},
    "mask uint8": {"mask": ints(0, 1, 2).to(torch.uint8).repeat(7)},
    "mask strides": {"mask": (floats(1, 4, 21, 13) > 0).mT},
    "mask and bias": {"mask": floats(13, 21) > 0, "bias": floats(21)},
    "lse": {"return_lse": True}, "bshd": {"layout": "bshd"}, "threads": {"threads": 1},
    "all": {"scale": 0.5, "causal": "bottom-right", "window": (6, -1), "softcap": 3.0,
            "alibi": True, "bias": floats(13, 21), "mask": floats(21) > 0, "sink": floats(4),
            "used_kv": ints(9, 20), "return_lse": True},
}
PACKED = {"cu_seqlens_q": ints(0, 5, 13), "cu_seqlens_kv": ints(0, 9, 21), "max_seqlen_q": 8,
          "max_seqlen_kv": 12}


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("name", OPTIONS)
def test_both_paths_ask_for_the_same(seen, monkeypatch, name, packed):
    q, k, v = qkv(heads_kv=2)
    options = dict(OPTIONS[name])
    if packed:
        q, k, v = q[0], k[0], v[0]
        options.update(PACKED)
        for one in options.keys() & {"bias", "mask"}:
            options[one] = options[one][(..., slice(8), slice(12))[-options[one].dim():]]
    if options.get("layout") == "bshd":
        q, k, v = (x.transpose(-3, -2).contiguous() for x in (q, k, v))
    with monkeypatch.context() as patched:
        patched.setattr(_attention, "_general", None)
        for _ in range(2):
            attn.attention(q, k, v, **options)
        patched.setattr(_fast, "_new_call", None)  # it is known now
        fast = attn.attention(q, k, v, **options)
    monkeypatch.setattr(_attention, "_fast_paths", {torch.Tensor: None})
    general = attn.attention(q, k, v, **options)
    results = [x if isinstance(x, tuple) else (x,) for x in (fast, general)]
    assert [(x.shape, x.stride(), x.dtype) for x in results[0]] == \
        [(x.shape, x.stride(), x.dtype) for x in results[1]]
    assert len(seen) == 4
    (problem, tensors), (other_problem, other_tensors) = seen[2:]
    for struct, other in ((problem, other_problem), (problem.q, other_problem.q),
                          (problem.k, other_problem.k), (problem.v, other_problem.v),
                          (problem.o, other_problem.o),
                          (problem.bias_strides, other_problem.bias_strides),
                          (problem.mask_strides, other_problem.mask_strides),
                          (tensors, other_tensors)):
        for field, kind in struct._fields_:
            mine, theirs = getattr(struct, field), getattr(other, field)
            if issubclass(kind, (ctypes.Structure, ctypes.Array)) or field in ("o", "lse"):
                continue  # outputs are new
            if packed and field == "batch" and kind is ctypes.c_int64 and struct is not problem:
                continue  # not used
            assert mine == theirs, field
    for name in ("bias", "mask", "sink", "used_kv", "cu_seqlens_q", "cu_seqlens_kv"):
        given = options.get(name)
        assert getattr(tensors, name) == (None if given is None else given.data_ptr())


@pytest.mark.parametrize("shape", [(13, 21), (1, 21), (13, 1), (21,), (4, 13, 21), (2, 1, 1, 21),
                                   (1, 4, 13, 1), (2, 4, 13, 21)], ids=str)
@pytest.mark.parametrize("boolean", [True, False])
def test_masks_are_read_where_they_lie(seen, shape, boolean):
    q, k, v = qkv()
    mask = torch.randn(shape)
    if boolean:
        mask = mask > 0
    attn.torch.sdpa(q, k, v, mask)
    ((problem, tensors),) = seen
    asked, strides, address = (problem.mask, problem.mask_strides, tensors.mask) if boolean else \
        (problem.bias, problem.bias_strides, tensors.bias)
    assert asked and address == mask.data_ptr()
    assert (problem.bias, problem.mask) == (not boolean, boolean)
    expected = mask.expand(2, 4, 13, 21).stride()
    assert (strides.batch, strides.head, strides.row, strides.col) == expected


def test_a_call_that_fails_is_named_by_the_general_path(monkeypatch):
    """Whatever the library answers to the fast path, the sentence is that of the general one."""
    q, k, v = qkv()
    lost = _library.Error(b"lost")
    monkeypatch.setattr(_plans.Plan, "run", lambda *_: _library.fail(4, lost))
    for call in (attn.torch.sdpa, attn.attention):
        with pytest.raises(attn.DeviceError, match="^lost$"):
            call(q, k, v)


# ---- a GPU, as far as that goes without one --------------------------------------------------


class OnGpu:
    """A plan whose calls are noted."""

    def __init__(self, size):
        self.size, self.calls = size, []

    def run(self, tensors, workspace, stream):
        self.calls.append((tensors, workspace, stream))


@pytest.mark.parametrize("size", [0, 64])
def test_workspaces_of_a_gpu(monkeypatch, size):
    """Each call has memory of PyTorch's for the current stream, and keeps none of it."""
    made, plan = [], OnGpu(size)

    def empty(shape, strides, dtype):
        made.append(torch.empty_strided(shape, strides, dtype=dtype))
        return made[-1]

    monkeypatch.setattr(_fast, "_stream", lambda gpu: (7 << 32) + gpu)
    _fast.run(plan, 1, b"tensors", empty)
    (call,) = plan.calls
    assert call[0] == b"tensors" and call[2] == (7 << 32) + 1
    if size:
        (memory,) = made
        assert call[1] == memory.data_ptr()
        assert (memory.dtype, memory.shape) == (torch.uint8, (size,))
    else:
        assert not made and call[1] is None


def test_outputs_where_there_are_several_gpus(monkeypatch):
    """PyTorch's quick way gives memory of the current GPU: where that is another, the slow one, and
    nothing is allocated on the current one."""
    made = []
    monkeypatch.setattr(_fast, "_current_device", lambda: 0)
    monkeypatch.setattr(_fast, "_empty_cuda", lambda *like: pytest.fail("on the current GPU"))
    monkeypatch.setattr(_fast, "_slow_empty",
                        lambda *like, device: made.append((like, device)) or torch.empty(2))
    assert _fast.allocator(1)((2,), (1,), torch.uint8).shape == (2,)
    assert made == [(((2,), (1,), torch.uint8), "cuda:1")]


def test_outputs_are_made_the_public_way_too(monkeypatch):
    q, k, v = (torch.randn(2, n, 4, 16).transpose(1, 2) for n in (13, 21, 21))
    expected = attn.torch.sdpa(q, k, v)
    monkeypatch.setattr(_fast, "_empty_cpu", _fast._slow_empty)
    found = attn.torch.sdpa(q, k, v)
    assert torch.equal(found, expected) and found.stride() == expected.stride()
