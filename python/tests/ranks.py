# SPDX-License-Identifier: Apache-2.0
"""ranks.py - worlds of gloo ranks, as processes of this machine, that run the cases of
test_distributed.py. Prints one JSON object: world: case: what each rank said, "" where it passed.

Ranks are forked from a process that has imported PyTorch but has computed nothing.

Invariant: a case that does not end, or whose process dies, is no pass; NaN passes no comparison.
"""

import contextlib
import json
import os
import random
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.fx.experimental.symbolic_shapes  # noqa: F401 - by torch.autograd.grad, in each rank

import attn
import attn.distributed as ad
import attn.torch
from attn.distributed import _parts, _transport

METHODS = ("ring", "zigzag", "ulysses", "allgather")
WORLDS = (1, 2, 3, 4, 8)
TOLERANCES = {torch.float32: (3e-6, 2e-5), torch.bfloat16: (1.6e-2, 4e-2)}  # of o, of gradients
TOLERANCE_LSE = 3e-6
DEVICE = "cpu"  # ranks_gpu.py: the GPU


def same(what, found, expected, tolerance):
    assert found.shape == expected.shape, f"{what}: {found.shape} and {expected.shape}"
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} and {expected.dtype}"
    found, expected = found.detach().double(), expected.detach().double()
    assert torch.equal(found.isinf(), expected.isinf()), f"{what}: infinite elsewhere"
    limit = tolerance * expected.nan_to_num(posinf=0, neginf=0).abs().max().clamp(min=1) \
        if expected.numel() else 0
    wrong = ~((found == expected) | ((found - expected).abs() <= limit))  # NaN is wrong
    assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} differ, at most by " \
        f"{(found - expected).abs().max():.3g}, expected {float(limit):.3g}"


def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def problem(n, rows, dtype=torch.float32, keys=None, dim_v=16):
    """q, k, v and dO of the whole sequence: heads in groups of two, for ulysses a multiple of n."""
    keys, heads = rows if keys is None else keys, 2 * n if n > 1 else 4
    return (draw(1, 2, heads, rows, 16, dtype=dtype), draw(2, 2, heads // 2, keys, 16, dtype=dtype),
            draw(3, 2, heads // 2, keys, dim_v, dtype=dtype),
            draw(4, 2, heads, rows, dim_v, dtype=dtype))


def cut(x, dim, method, lengths=None):
    """The chunk of this rank: lengths says where a contiguous order is cut."""
    if lengths is not None:
        return x.split(lengths, dim)[dist.get_rank()].contiguous()
    return ad.shard(x, dim, method=method)


def compare(what, tensors, method, options=(), lengths=None, lengths_kv=None, rows=2):
    """Result, LSE and gradients of all ranks against one call. rows: the dimension of rows."""
    *qkv, d_o = tensors
    options = dict(options)
    shared = [name for name in ("alibi", "sink") if isinstance(options.get(name), torch.Tensor)]
    scores = [name for name in ("bias", "mask") if name in options]
    packed = options.pop("cu_seqlens", None)
    both = {} if packed is None else {"cu_seqlens_q": packed, "cu_seqlens_kv": packed}
    whole = [x.clone().requires_grad_() for x in qkv]
    leaves = {name: options[name].clone().requires_grad_() for name in (*shared, *scores)
              if name != "mask"}
    causal = {True: "top-left", False: None}.get(options.get("causal"), options.get("causal"))
    one = {**options, **leaves, **both, "causal": causal, "threads": 1}
    o = attn.attention(*whole, **one)
    with torch.no_grad():
        _, lse = attn.attention(*whole, **one, return_lse=True)
    expected = torch.autograd.grad(o, [*whole, *leaves.values()], d_o)

    mine = [cut(x, rows, method, lens).requires_grad_()
            for x, lens in zip(qkv, (lengths, lengths_kv or lengths, lengths_kv or lengths))]
    for name in scores:
        options[name] = cut(options[name], 2, method, lengths) if options[name].shape[2] > 1 \
            else options[name].clone()
    for name in leaves:
        options[name] = options[name].clone().requires_grad_()
    if packed is not None:
        options["cu_seqlens"] = packed
    found, sums = ad.attention(*mine, method=method, return_lse=True, **options)
    gradients = list(torch.autograd.grad(found, [*mine, *(options[name] for name in leaves)],
                                         cut(d_o, rows, method, lengths)))
    tolerance, tolerance_grad = TOLERANCES[qkv[0].dtype]
    what = f"{method} {what}"
    same(f"{what}: o", found, cut(o, rows, method, lengths), tolerance)
    same(f"{what}: lse", sums, cut(lse, lse.dim() - 1, method, lengths), TOLERANCE_LSE)
    for i, (name, a, b) in enumerate(zip(("dq", "dk", "dv", *leaves), gradients, expected)):
        if name in shared or (name == "bias" and b.shape[2] == 1):
            dist.all_reduce(a)
        elif name == "bias":
            b = cut(b, 2, method, lengths)
        else:
            b = cut(b, rows, method, lengths if i == 0 else lengths_kv or lengths)
        same(f"{what}: {name}", a, b, tolerance_grad)


def some(items, method, n):
    """With many ranks not all of them, for each method others."""
    step = {4: 2, 8: 3}.get(n, 1)
    return list(items)[METHODS.index(method) % step::step]


# ---- cases: (rank, n) --------------------------------------------------------------------------


def case_plain(rank, n):
    for method in METHODS:
        for rows in some((8 * n, 8 * n + 5, 3), method, n):
            compare(f"{rows} rows", problem(n, rows), method)
        compare("causal", problem(n, 8 * n + 5, dim_v=8), method, {"causal": True})
        for causal in (False, True):
            compare(f"bf16, causal {causal}", problem(n, 9 * n + 1, torch.bfloat16), method,
                    {"causal": causal})


def case_options(rank, n):
    rows = 9 * n + 2
    tensors = problem(n, rows)
    heads = tensors[0].shape[1]
    slopes, sink = draw(5, heads).abs() / 4, draw(6, heads)
    for method in METHODS:
        for what, options in some({
                "window": {"causal": True, "window": (7, -1)},
                "window of both sides": {"window": (11, 4)},
                "window to the right": {"window": (-1, 2)},
                "softcap and scale": {"softcap": 1.5, "scale": 0.4, "causal": True},
                "sink": {"causal": True, "sink": sink},
                "sink and window": {"window": (3, 3), "sink": sink},
                "alibi": {"alibi": slopes, "causal": True},
                "alibi, both sides": {"alibi": slopes, "window": (9, 9)},
                "alibi by batch": {"alibi": torch.stack([slopes, slopes.flip(0)])},
                "usual alibi": {"alibi": True}}.items(), method, n):
            compare(what, tensors, method, options)
        if method == "ulysses":
            continue
        mask = draw(7, 2, 1, rows, rows) > -0.5
        compare("bias", tensors, method, {"bias": draw(8, 2, heads, rows, rows), "causal": True})
        compare("bias of keys", tensors, method, {"bias": draw(8, 1, 1, 1, rows)})
        compare("mask", tensors, method, {"mask": mask, "window": (13, -1)})


def case_lengths(rank, n):
    """Chunks of any length, also without rows; queries and keys that differ in number."""
    lengths = [(7 * i + 3) % 5 * (i % 3 != 1) for i in range(n)]
    lengths[-1] += 4
    keys = [lengths[-1 - i] + 2 * (i % 2) for i in range(n)]
    for method in ("ring", "ulysses", "allgather"):
        compare("any lengths", problem(n, sum(lengths)), method, {"causal": True}, lengths)
        compare("any lengths, window", problem(n, sum(lengths)), method, {"window": (2, 1)},
                lengths)
        for causal in (None, "top-left", "bottom-right"):
            compare(f"keys elsewhere, {causal}", problem(n, sum(lengths), keys=sum(keys)), method,
                    {"causal": causal}, lengths, keys)
        compare("keys elsewhere, window", problem(n, sum(lengths), keys=sum(keys)), method,
                {"window": (3, 2)}, lengths, keys)


def case_packed(rank, n):
    for bounds in ([0, 5, 5, 11, 11 * n, 11 * n + 2], [0, *range(1, 4 * n), 7 * n], [0, 6 * n]):
        tensors = [x[0].contiguous() for x in problem(n, bounds[-1])]
        slopes = draw(5, tensors[0].shape[0]).abs() / 4
        for method in METHODS:
            for options in some(({}, {"causal": True}, {"window": (3, 2)}, {"alibi": slopes}),
                                method, n):
                compare(f"packed {bounds[:4]} {options}", tensors, method,
                        {**options, "cu_seqlens": torch.tensor(bounds, dtype=torch.int32)}, rows=1)


def case_layout(rank, n):
    tensors = problem(n, 6 * n + 1)
    for method in METHODS:
        mine = [cut(x, 2, method) for x in tensors[:3]]
        a = ad.attention(*mine, method=method, causal=True)
        b = ad.attention(*(x.transpose(1, 2).contiguous() for x in mine), method=method,
                         causal=True, layout="bshd")
        assert torch.equal(a, b.transpose(1, 2)), f"{method}: bshd differs"
        c = ad.attention(*mine, method=method, causal=True, check=False) \
            if (6 * n + 1) % n == 0 else a
        assert torch.equal(a, c), f"{method}: check=False differs"
        leaves = [x.clone().requires_grad_() for x in mine]
        o = ad.attention(*leaves, method=method, causal=True)
        d = torch.autograd.grad(o, leaves, torch.ones_like(o), retain_graph=True)
        for x, y in zip(d, torch.autograd.grad(o.sum(), leaves)):  # of one number, expanded
            assert torch.equal(x, y), f"{method}: the gradient of a sum differs"
        for dim in (2, -2):
            assert torch.equal(ad.unshard(cut(tensors[0], dim, method), dim, method=method),
                               tensors[0]), f"{method}: unshard is not the inverse of shard"


def case_bits(rank, n):
    """Repeats with delays in random places: the same bits."""
    rng, delayed = random.Random(rank), []
    originals = _parts.forward, _parts.backward, _transport.Ring._start

    def late(function):
        def call(*arguments, **named):
            if rng.random() < 0.3:
                delayed.append(time.sleep(rng.random() / 50))
            return function(*arguments, **named)
        return call

    for method in METHODS:
        for dtype in some((torch.float32, torch.bfloat16), method, min(n, 4)):
            tensors = [cut(x, 2, method) for x in problem(n, 8 * n + 3, dtype)]
            runs = []
            for _ in range(3):
                leaves = [x.clone().requires_grad_() for x in tensors[:3]]
                o = ad.attention(*leaves, method=method, causal=True)
                runs.append([o, *torch.autograd.grad(o, leaves, tensors[3])])
                _parts.forward, _parts.backward, _transport.Ring._start = map(late, originals)
            _parts.forward, _parts.backward, _transport.Ring._start = originals
            for run in runs[1:]:
                for name, a, b in zip(("o", "dq", "dk", "dv"), run, runs[0]):
                    assert torch.equal(a, b), f"{method} {dtype}: bits of {name} differ"
    assert delayed


def case_subgroup(rank, n):
    """Ranks of a group are not those of the world."""
    members = sorted({n // 2, n - 1})
    group = dist.new_group(members)
    tensors = problem(len(members), 9)
    if rank not in members:
        with contextlib.suppress(attn.InvalidArgument):
            ad.shard(tensors[0], 2, group)
            raise AssertionError("a process outside of the group")
        return
    whole = [x.clone().requires_grad_() for x in tensors[:3]]
    o = attn.attention(*whole, causal="top-left", threads=1)
    expected = torch.autograd.grad(o, whole, tensors[3])
    for method in METHODS:
        mine = [ad.shard(x, 2, group, method).requires_grad_() for x in tensors]
        found = ad.attention(*mine[:3], group=group, method=method, causal=True)
        same(f"{method}: o", ad.unshard(found, 2, group, method), o, 3e-6)
        for x, y in zip(torch.autograd.grad(found, mine[:3], mine[3].detach()), expected):
            same(f"{method}: a gradient", ad.unshard(x, 2, group, method), y, 2e-5)
    same("decode", ad.decode(tensors[0], *(ad.shard(x, 2, group) for x in tensors[1:3]),
                             group=group), attn.attention(*tensors[:3]), 3e-6)


def case_overlap(rank, n):
    """The next chunk is on its way before the current one is computed with."""
    events, originals = [], (_parts.forward, _transport.Ring._start)

    def noting(name, function):
        return lambda *arguments: (events.append(name), function(*arguments))[1]

    _parts.forward = noting("compute", originals[0])
    _transport.Ring._start = noting("start", originals[1])
    mine = [cut(x, 2, "ring") for x in problem(n, 4 * n)[:3]]
    ad.attention(*mine, method="ring")
    _parts.forward, _transport.Ring._start = originals
    assert events == ["start", "compute"] * (n - 1) + ["compute"], events
    # As many bytes as the plan says, with gradients.
    sent = []
    _transport.Ring._start = lambda self, moves, hop=1: (
        sent.extend(x.element_size() * size for x, size, _, _ in moves),
        originals[1](self, moves, hop))[1]
    leaves = [x.requires_grad_() for x in mine]
    torch.autograd.grad(ad.attention(*leaves, method="ring").sum(), leaves)
    batch, heads, rows, dim = leaves[0].shape
    expected, = ad.plan(batch, heads, n * rows, dim, ranks=n, heads_kv=leaves[1].shape[1],
                        item_bytes=4, gradients=True, methods=["ring"]).estimates
    assert sum(sent) == expected.sent, f"{sum(sent)} bytes, expected {expected.sent}"
    # A window ends the ring early.
    mine = [x.detach() for x in mine]
    events.clear()
    _transport.Ring._start = noting("start", originals[1])
    ad.attention(*mine, method="ring", causal=True, window=(4, -1))
    _transport.Ring._start = originals[1]
    assert events == ["start"] * (n > 1), events


def case_refusals(rank, n):
    """One rank passes something else: all ranks raise one sentence, and then still work."""
    q, k, v, _ = problem(n, 4 * n)
    cases = {
        "heads": lambda: ad.attention(*(x[:, :1] for x in mine), method="ring"),
        "dtype of k is torch.float16": lambda: ad.attention(mine[0], mine[1].half(), mine[2]),
        "dtype": lambda: ad.attention(*(x.half() for x in mine), method="ring"),
        "last dimension": lambda: ad.attention(mine[0][..., :8], mine[1][..., :8], mine[2],
                                               method="ring"),
        "causal": lambda: ad.attention(*mine, method="ring", causal=True),
        "method": lambda: ad.attention(*mine, method="allgather"),
        "'left'": lambda: ad.attention(*mine, method="ring", causal="left"),
        "expected 4 dimensions": lambda: ad.attention(*(x[0] for x in mine), method="ring"),
        "gradient": lambda: ad.attention(mine[0].clone().requires_grad_(), *mine[1:],
                                         method="ring"),
        "bias": lambda: ad.attention(*mine, method="ring", bias=torch.zeros(1, 1, 1, 1)),
        "window": lambda: ad.attention(*mine, method="ring", window=(1, 1)),
        "OverflowError": lambda: ad.attention(*mine, cu_seqlens=[0, float("inf")]),
        "scale": lambda: ad.attention(*mine, method="ring", scale=float("nan"))}
    for i, (words, different) in enumerate(cases.items()):
        mine = [cut(x, 2, "ring") for x in (q, k, v)]
        said = ""
        try:
            if rank == i % n:
                different()
            else:
                ad.attention(*mine, method="ring")
        except attn.InvalidArgument as error:
            said = str(error)
        all_said = [None] * n
        dist.all_gather_object(all_said, said)
        if n > 1 or words in ("dtype of k is torch.float16", "'left'", "OverflowError"):
            assert words in said, f"{words!r} is not in {said!r}"
        assert len(set(all_said)) == 1, f"{words}: {all_said}"
    packed = [cut(x[0], 1, "ring") for x in (q, k, v)]
    for call in (lambda: ad.attention(*mine, bias=torch.zeros(1, 1, 1, 2 + (rank == n - 1))),
                 lambda: ad.attention(*packed, method="ring", cu_seqlens=[0, 4 * n + 1]),
                 lambda: ad.attention(*(x[:, :1] for x in mine), method="ulysses"),
                 lambda: ad.unshard(mine[0], 2 if rank else 4),
                 lambda: ad.shard(mine[0], 4)):
        with contextlib.suppress(attn.InvalidArgument):
            call()
            assert n == 1, "it was not refused"
    compare("after refusals", problem(n, 4 * n), "ring")


def case_decode(rank, n):
    for dtype, tolerance in ((torch.float32, 3e-6), (torch.bfloat16, 1.6e-2)):
        q, (k, v) = draw(1, 3, 8, 1, 16, dtype=dtype), draw(2, 2, 3, 2, 5 * n, 16, dtype=dtype)
        sink = draw(3, 8)
        used = torch.tensor([5 * n, 7 % (5 * n), 0], dtype=torch.int32)
        local = (used - 5 * rank).clamp(0, 5).to(torch.int32)
        mine = [x[:, :, 5 * rank:5 * rank + 5].contiguous() for x in (k, v)]
        for options in ({}, {"softcap": 2.0, "sink": sink}):
            expected, lse = attn.attention(q, k, v, used_kv=used, return_lse=True, **options)
            found, sums = ad.decode(q, *mine, used_kv=local, return_lse=True, **options)
            same("o", found, expected, tolerance)
            same("lse", sums, lse, 3e-6)
            each = [torch.empty_like(found) for _ in range(n)]
            dist.all_gather(each, found)
            assert all(torch.equal(x, found) for x in each), "ranks differ"
        # Only the first rank has keys.
        nothing = [x[:, :, :0] if rank else x for x in (k, v)]
        same("keys on one rank", ad.decode(q, *nothing), attn.attention(q, k, v), tolerance)


def case_context(rank, n):
    """A model that knows nothing of ranks, and the gradients of its parameters."""
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

        def forward(self, x):
            q, k, v = self.inner(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.outer(o.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model, x = Model(), draw(1, 2, 6 * n + 1, 16)
    with attn.torch.replace_sdpa():
        expected = model(x)
    gradients = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    for method in ("zigzag", "allgather", "auto"):
        with ad.context_parallel(method=method) as seen:
            y = model(ad.shard(x, 1, method=method))
        assert seen.calls == 1
        same("y", y, ad.shard(expected, 1, method=method), 3e-6)
        found = torch.autograd.grad(y.square().sum(), list(model.parameters()))
        for a, b in zip(found, gradients):
            dist.all_reduce(a)
            same("a gradient", a, b, 2e-5)


# ---- faults that cases must find ---------------------------------------------------------------


def plant_skipped_step():
    original = _transport.Ring.forward

    def forward(self, k, v, use):
        original(self, k, v, lambda chunk, k, v: None if chunk == 1 and self.rank == 2
                 else use(chunk, k, v))
    _transport.Ring.forward = forward


def plant_merge_order():
    """Chunks are merged in an order that depends on the clock."""
    original = _transport.Ring.forward

    def forward(self, k, v, use):
        chunks = []
        original(self, k, v, lambda chunk, k, v: chunks.append((chunk, k.clone(), v.clone())))
        random.Random(time.perf_counter_ns()).shuffle(chunks)
        for chunk in chunks:
            use(*chunk)
    _transport.Ring.forward = forward


def plant_wrong_owner():
    """Sums of dK and dV end at the rank after their owner."""
    original = _transport.Ring._start
    _transport.Ring._start = lambda self, moves, hop=1: original(self, moves,
                                                                 hop if hop > 0 else hop + 1)


def plant_shifted_rows():
    original = _transport.Ring.backward

    def backward(self, k, v, use):
        dk, dv = original(self, k, v, use)
        return dk.roll(1, 2), dv
    _transport.Ring.backward = backward


def plant_local_lse():
    original = _parts.backward

    def backward(run, d_o, q, k, v, o, lse, *others):
        return original(run, d_o, q, k, v, o, lse + 0.01, *others)
    _parts.backward = backward


def plant_lost_sum():
    """Parts that come after a merge replace it."""
    original = _parts.Running._merged

    def merged(self, dtype):
        self._sum = []
        return original(self, dtype)
    _parts.Running._merged, _parts.HELD = merged, 1


# The case that must find each, in a world of 3.
FAULTS = {"skipped_step": "plain", "merge_order": "bits", "wrong_owner": "plain",
          "shifted_rows": "plain", "local_lse": "plain", "lost_sum": "plain"}


# ---- processes ---------------------------------------------------------------------------------


def run_rank(rank, n, folder, cases, plant, timeout):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=n,
                            timeout=timedelta(seconds=timeout))
    if plant:
        globals()[f"plant_{plant}"]()
    said = {}
    for case in cases:
        start = time.perf_counter()
        try:
            globals()[f"case_{case}"](rank, n)
            said[case] = ""
        except BaseException:
            said[case] = f"rank {rank}: {traceback.format_exc()}"
        print(f"{n} ranks, {case}: {time.perf_counter() - start:.1f} s", file=sys.stderr) \
            if rank == 0 else None
        all_said = [None] * n
        if not plant:
            dist.all_gather_object(all_said, said[case])  # which fails if a rank is elsewhere
            if any(all_said):
                break
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(said, file)
    dist.destroy_process_group()


def run_dying(rank, n, folder, cases, plant, timeout):
    """After the first call rank 1 ends, or is silent. The others must learn it from the second."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=n)
    mine = [cut(x, 2, "ring") for x in problem(n, 4 * n)[:3]]
    ad.attention(*mine, method="ring")
    group = dist.new_group(timeout=timedelta(seconds=timeout))
    if rank == 1:
        while cases[0] == "silent" and len(os.listdir(folder)) < n:  # the store and two files
            time.sleep(0.1)
        os._exit(0)
    said, start = "no error", time.perf_counter()
    try:
        ad.attention(*mine, method="ring", group=group, check=cases[0] == "dead")
    except RuntimeError as error:
        said = "" if time.perf_counter() - start < 3 * timeout else f"late: {error}"
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump({cases[0]: said}, file)
    os._exit(0)


def world(n, cases, plant=None, function=run_rank, timeout=240):
    """What each rank said of each case."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(n):
            process = os.fork()
            if not process:
                try:
                    function(rank, n, folder, cases, plant, timeout)
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(0)
            processes.append(process)
        for process in processes:
            os.waitpid(process, 0)
        said = {}
        for rank in range(n):
            try:
                with open(f"{folder}/{rank}.json") as file:
                    mine = json.load(file)
            except FileNotFoundError:
                mine = {}
            for case in cases:
                said.setdefault(case, []).append(mine.get(case, f"rank {rank} did not end it"))
    return said


LOST = ("dead", "silent")  # rank 1
ALL = [name[len("case_"):] for name in list(globals()) if name.startswith("case_")]


def main(arguments):
    worlds = [int(x) for x in arguments if x.isdigit()] or list(WORLDS)
    cases = [x for x in arguments if x in ALL] or ALL
    result = {str(n): world(n, cases) for n in worlds}
    if not arguments or "faults" in arguments:
        for fault, case in FAULTS.items():
            result[fault] = world(3, [case], fault)
        for case in LOST:
            result[case] = world(3, [case], None, run_dying, 6)
    print(f"{sum(os.times()[2:4]):.1f} s of CPU", file=sys.stderr)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
