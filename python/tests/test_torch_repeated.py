# SPDX-License-Identifier: Apache-2.0
"""Repeated calls of attn.torch.sdpa: each takes its shortcut, and none takes another's."""

import ctypes
import functools
import gc
import struct
import threading
from ctypes import c_size_t, c_void_p

import attn
import pytest
from attn import _plans

torch = pytest.importorskip("torch", minversion="2.5")

import attn.torch  # noqa: E402
from sdpa import check, qkv  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_repeated_calls_are_told_apart():
    q, k, v = qkv(heads_kv=2)
    for _ in range(3):  # the second call goes straight to the plan
        check(q, k, v, enable_gqa=True)
        check(q, k, v, enable_gqa=True, is_causal=True)
        check(q, k, v, enable_gqa=True, scale=0.1)
        check(q[..., 1:], k[..., 1:], v, enable_gqa=True)
        swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        check(*swapped, enable_gqa=True)
        check(q.half(), k.half(), v.half(), enable_gqa=True)
        check(q.mT.contiguous().mT, k, v, enable_gqa=True)
        check(q, k[:, :1], v[:, :1])
        check(q[0, :2], k[0], v[0])
        with pytest.raises(ValueError):
            attn.torch.sdpa(q, k, v)
    memory = torch.randn(q.numel() + 1)
    for first in (0, 1):  # alike but for where they begin: at a multiple of 16 bytes, and not
        x = memory[first:first + q.numel()].view(q.shape)
        check(x, x, x)
    attn.clear_plans()
    assert not attn.torch._known
    check(q, k, v, enable_gqa=True)


@pytest.fixture
def usual(monkeypatch):
    """A list of the calls of sdpa that took no shortcut."""
    taken, forward, traced = [], attn.torch._forward, attn.torch._traced

    def counted(*arguments, **named):
        if named:  # eager=True; not the operator's
            taken.append("forward")
        return forward(*arguments, **named)

    def counted_traced(*arguments):
        taken.append("traced")
        return traced(*arguments)

    monkeypatch.setattr(attn.torch, "_forward", counted)
    monkeypatch.setattr(attn.torch, "_traced", counted_traced)
    attn.clear_plans()
    yield taken
    attn.clear_plans()


def moved(x, elements):
    """The same values, with the first that many elements behind a multiple of 16 bytes."""
    memory = torch.empty(x.numel() + 16, dtype=x.dtype)
    assert memory.data_ptr() % 16 == 0
    return memory[elements:elements + x.numel()].view(x.shape).copy_(x)


def rows_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def as_parameter(x):
    return torch.nn.Parameter(x, requires_grad=False)


# What makes of a call another one: query, key and value, and named arguments.
CHANGES = {
    "query's rows": lambda q, k, v: ((q[:, :, :7], k, v), {}),
    "rows of key and value": lambda q, k, v: ((q, k[:, :, :9], v[:, :, :9]), {}),
    "batch": lambda q, k, v: ((q[:1], k[:1], v[:1]), {}),
    "heads": lambda q, k, v: ((q[:, :2], k[:, :2], v[:, :2]), {}),
    "head_dim": lambda q, k, v: ((q[..., :8], k[..., :8], v), {}),
    "head_dim of value": lambda q, k, v: ((q, k, v[..., :8]), {}),
    "dimensions": lambda q, k, v: ((q[0], k[0], v[0]), {}),
    "query's strides": lambda q, k, v: ((rows_first(q), k, v), {}),
    "key's strides": lambda q, k, v: ((q, rows_first(k), v), {}),
    "value's strides": lambda q, k, v: ((q, k, rows_first(v)), {}),
    "strides of rows": lambda q, k, v: ((q, k, v.mT.contiguous().mT), {}),
    "float16": lambda q, k, v: ((q.half(), k.half(), v.half()), {}),
    "bfloat16": lambda q, k, v: ((q.bfloat16(), k.bfloat16(), v.bfloat16()), {}),
    "query's alignment": lambda q, k, v: ((moved(q, 1), k, v), {}),
    "key's alignment": lambda q, k, v: ((q, moved(k, 2), v), {}),
    "value's alignment": lambda q, k, v: ((q, k, moved(v, 3)), {}),
    "is_causal": lambda q, k, v: ((q, k, v), {"is_causal": True}),
    "scale": lambda q, k, v: ((q, k, v), {"scale": 0.5}),
    "a scale of 0": lambda q, k, v: ((q, k, v), {"scale": 0.0}),
    "enable_gqa": lambda q, k, v: ((q, k, v), {"enable_gqa": True}),
    "groups": lambda q, k, v: ((q, k[:, :2], v[:, :2]), {"enable_gqa": True}),
    "attn_mask": lambda q, k, v: ((q, k, v, torch.rand(13, 21) > 0.5), {}),
    "key is value": lambda q, k, v: ((q, k, k), {}),
    "query is key": lambda q, k, v: ((q, q, v[:, :, :13]), {}),
    "query is value": lambda q, k, v: ((q, k[:, :, :13], q), {}),
    "all are one": lambda q, k, v: ((q, q, q), {}),
    "negatives": lambda q, k, v: ((torch._neg_view(q), k, torch._neg_view(v)), {}),
    "a parameter": lambda q, k, v: ((as_parameter(q), k, v), {}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_call_takes_no_shortcut(usual, name):
    q, k, v = qkv()
    arguments, named = CHANGES[name](q, k, v)
    for _ in range(3):  # at first there is no plan for it, then it is known
        attn.torch._recent = ()
        check(q, k, v)
        usual.clear()
        check(*(x.clone() for x in (q, k, v)))
        assert not usual and len(attn.torch._recent) == 1
        check(*arguments, **named)
        assert len(usual) == 1
        usual.clear()
        check(q, k, v)
        assert not usual


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_call_may_have_its_own_shortcut(usual, name):
    q, k, v = qkv()
    arguments, named = CHANGES[name](q, k, v)
    check(q, k, v)
    check(*arguments, **named)
    for _ in range(3):
        check(*arguments, **named)
        check(q, k, v)


def test_addresses_between_multiples_of_16_have_no_shortcut(usual):
    """Its plan would serve aligned tensors as well, but not with the best kernel."""
    q, k, v = qkv()
    odd = moved(q, 1)
    for _ in range(2):
        check(odd, k, v)
    assert usual == ["forward"] * 2 and not attn.torch._recent
    check(q, k, v)
    assert len({known.plan for known in attn.torch._known.values()}) == 2


def test_the_same_tensor_twice(usual):
    """Alike but for which of them are the same tensor: each has its own shortcut."""
    q, k, v = (torch.randn(2, 4, 13, 16) for _ in range(3))
    calls = [(q, q, q), (q, k, k), (q, q, v), (q, k, q), (q, k, v)]
    for call in calls:
        attn.torch._recent = ()
        check(*call)
        for other in calls:
            usual.clear()
            found = attn.torch._recent[-1](*other, False, None, False)
            assert (found is not None) == (other is call)
            assert other is not call or torch.equal(found, attn.torch.sdpa(*other))
            assert not usual or other is not call


def test_modes_take_no_shortcut(usual):
    q, k, v = qkv()
    check(q, k, v)
    check(q, k, v)
    assert usual == ["forward"]
    usual.clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert attn.torch.sdpa(q, k, v).dtype == torch.bfloat16
    assert usual[0] == "traced"
    usual.clear()
    torch.jit.trace(lambda *x: attn.torch.sdpa(*x), (q, k, v), check_trace=False)
    assert usual[0] == "traced"
    usual.clear()
    with torch.inference_mode():
        for _ in range(2):
            assert attn.torch.sdpa(q, k, v).is_inference()
    assert usual == ["forward"]
    assert not check(q, k, v).is_inference()  # has its shortcut still
    assert usual == ["forward"]
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
        check(*needs)
        check(*needs)
        with torch.enable_grad(), pytest.raises(attn.Unsupported, match="requires a gradient"):
            attn.torch.sdpa(*needs)
    with pytest.raises(attn.Unsupported, match="dropout"):
        attn.torch.sdpa(q, k, v, dropout_p=0.5)


def test_number_of_threads_takes_no_shortcut(usual):
    q, k, v = qkv()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            check(q, k, v)
        assert usual == ["forward"] * 2
        assert {known.plan.context for known in attn.torch._known.values()} == {
            _plans.context_of("cpu", threads) for threads in (1, 2)}
    finally:
        torch.set_num_threads(before)


def test_shortcuts_of_the_last_few(usual):
    q, k, v = qkv()
    cases = [(q[:, :, :n], k, v) for n in range(1, 2 + attn.torch._MOST_RECENT)]
    for _ in range(2):
        for case in cases[1:]:
            check(*case)
    assert len(usual) == len(cases) - 1
    check(*cases[0])
    check(*cases[0])
    check(*cases[-1])
    assert len(usual) == len(cases)
    check(*cases[1])  # has gone
    assert len(usual) == len(cases) + 1 and len(attn.torch._recent) == attn.torch._MOST_RECENT


def test_shortcuts_outlive_the_cache_of_plans(usual, monkeypatch):
    monkeypatch.setattr(_plans, "CACHED_PLANS", 1)
    q, k, v = qkv()
    check(q, k, v)
    for n in range(1, 4):
        check(q[:, :, :n], k, v)
    gc.collect()
    assert len(_plans._plans) == 1
    usual.clear()
    check(q, k, v)
    assert not usual


def test_shortcuts_while_plans_are_cleared():
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
    attn.clear_plans()
    assert not attn.torch._recent and not attn.torch._known


def test_without_guards(usual, monkeypatch):
    monkeypatch.setattr(attn.torch, "_have_guards", False)
    q, k, v = qkv()
    for _ in range(3):
        check(q, k, v)
    assert len(usual) == 3 and not attn.torch._recent


def test_guards_that_do_not_tell(monkeypatch):
    tell, guard = attn.torch._guards_tell, attn.torch._guard
    assert attn.torch._have_guards and tell()

    def broken(*tensors):
        raise SystemError("another signature")

    def blind_to_autocast(*tensors):
        are_like = guard(*tensors)

        def without(*others):
            with torch.autocast("cpu", enabled=False):
                return are_like(*others)
        return without

    for instead in (broken, blind_to_autocast, lambda *tensors: lambda *others: False,
                    lambda *tensors: lambda *others: not torch.is_autocast_enabled("cpu")):
        monkeypatch.setattr(attn.torch, "_guard", instead)
        assert not tell()
    monkeypatch.setattr(attn.torch, "_guard", guard)
    assert tell()


class Launches:
    """Stands in for attn_forward of a plan, behind ctypes: what reaches a C function."""

    def __init__(self, status=0):
        self.seen, self.status = [], status
        kind = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p,
                                c_void_p)
        self.callback = kind(self.called)
        self.function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.cast(self.callback, c_void_p).value)

    def called(self, plan, tensors, workspace, size, stream, error):
        words = struct.unpack("12Q", ctypes.string_at(tensors, 96))
        self.seen.append((plan, words, workspace, size, stream, error))
        return self.status


@pytest.fixture
def on_gpu(monkeypatch):
    """The known call of CPU tensors made one of GPU 0, with a workspace of that many bytes."""
    stream, capturing = [0], [False]
    monkeypatch.setattr(attn.torch, "_stream", lambda index: stream[0] + index)
    monkeypatch.setattr(attn.torch, "_is_capturing", lambda: capturing[0])

    def install(q, k, v, size, status=0, count=1):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        attn.clear_plans()
        attn.torch.sdpa(q, k, v)
        (signature, known), = attn.torch._known.items()
        plan, launches = known.plan, Launches(status)
        plan.size, plan.size_argument = size, c_size_t.from_param(size)
        plan.call = launches.function
        known = attn.torch._known[signature] = known._replace(gpu=0)
        attn.torch._recent = ()
        attn.torch._remember(q, k, v, False, None, False, known)
        assert len(attn.torch._recent) == 1
        return plan, launches, stream, capturing

    yield install
    attn.clear_plans()


@pytest.mark.parametrize("size", [0, 64])
def test_a_known_call_on_a_gpu(on_gpu, usual, size):
    """What a repeated call hands to the library there: addresses, workspace, current stream."""
    q, k, v = qkv()
    plan, launches, stream, _ = on_gpu(q, k, v, size)
    usual.clear()
    workspaces = {}
    for stream[0] in (0, 7 << 32, 0, 9, 7 << 32):
        tensors = [x.clone() for x in (q, k, v)]
        out = attn.torch.sdpa(*tensors)
        assert (out.shape, out.stride(), out.dtype) == (q.shape, q.stride(), q.dtype)
        handle, words, workspace, bytes_, on, error = launches.seen.pop()
        addresses = tuple(x.data_ptr() for x in (*tensors, out))
        assert words == (96, *addresses, 0, 0, 0, 0, 0, 0, 0)
        assert (handle, bytes_, on or 0, error) == (plan.handle.value, size, stream[0], None)
        assert bool(workspace) == bool(size) and not plan.lock.locked()
        assert workspaces.setdefault(stream[0], workspace) == workspace
    assert not usual and not launches.seen
    assert len(set(workspaces.values())) == (3 if size else 1)


def test_a_known_call_on_a_gpu_in_a_graph(on_gpu, usual):
    """Each call of a graph gets a workspace of its own."""
    q, k, v = qkv()
    plan, launches, stream, capturing = on_gpu(q, k, v, 64)
    forwarded = []
    plan.forward = lambda tensors, workspace, on: forwarded.append((workspace, on))
    stream[0], capturing[0] = 5, True
    usual.clear()
    for _ in range(2):
        attn.torch.sdpa(q, k, v)
    assert usual == ["forward"] * 2 and not launches.seen and not plan.places
    assert [(bool(workspace), on) for workspace, on in forwarded] == [(True, 5)] * 2
    assert len(attn.torch._recent) == 1  # nothing was put in front of it


@pytest.mark.parametrize("size", [0, 64])
def test_a_known_call_that_fails_on_a_gpu(on_gpu, usual, size):
    """It is done once more the usual way, which raises the library's sentence."""
    q, k, v = qkv()
    plan, launches, _, _ = on_gpu(q, k, v, size, status=4)
    usual.clear()

    def forward(tensors, workspace, stream):
        raise attn.DeviceError("the device is lost")

    plan.forward = forward
    with pytest.raises(attn.DeviceError, match="is lost"):
        attn.torch.sdpa(q, k, v)
    assert usual == ["forward"] and len(launches.seen) == 2 and not plan.lock.locked()


def test_outputs_where_there_are_several_gpus(on_gpu, monkeypatch):
    """PyTorch's quick way gives memory of the current GPU: where that is another, the slow one."""
    q, k, v = qkv()
    on_gpu(q, k, v, 0, count=2)
    made = []
    monkeypatch.setattr(attn.torch, "_slow_empty", lambda *x: made.append(x) or torch.empty(1))
    assert attn.torch.sdpa(q, k, v).shape == (1,)  # the CPU's is not GPU 0
    assert made == [(q.device, tuple(q.shape), q.stride(), q.dtype)]


def test_outputs_are_made_the_public_way_too(monkeypatch):
    q, k, v = (torch.randn(2, n, 4, 16).transpose(1, 2) for n in (13, 21, 21))
    expected = attn.torch.sdpa(q, k, v)
    monkeypatch.setattr(attn.torch, "_maker", lambda device: functools.partial(
        attn.torch._slow_empty, device))
    attn.clear_plans()
    for _ in range(2):
        found = attn.torch.sdpa(q, k, v)
        assert torch.equal(found, expected) and found.stride() == expected.stride()
    attn.clear_plans()
