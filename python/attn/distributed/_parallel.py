# SPDX-License-Identifier: Apache-2.0
"""attention() over the ranks of a group, with gradients.

ring, zigzag and allgather are one algorithm: for each chunk of keys that comes, partial results of
the local queries, merged into a running (O, LSE). ulysses exchanges rows for heads and makes one
plain call.

Invariant: every rank makes the same transfers in the same order, whatever it has to compute.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from .._arguments import NO_WINDOW, choice, number
from .._arguments import window as window_of
from .._attention import attention as _attention
from .._attention import differentiable
from .._autograd import needs_gradient
from .._fast import DTYPES
from .._library import CAUSAL, LAYOUT, InvalidArgument
from . import _parts
from ._agree import agree, size_and_rank
from ._chunks import ORDER, Geometry, chunks, geometry, rows_of
from ._plan import METHODS, plan, refusals
from ._transport import Gathered, Ring, exchange

Tensor = torch.Tensor
_METHODS = {name: 0 for name in (*METHODS, "auto")}
_log = logging.getLogger("attn.distributed")


class _Call(NamedTuple):
    """All that is no tensor."""
    geometry: Geometry
    transport: Union[Ring, Gathered]
    scale: Optional[float]
    softcap: float
    usual: bool  # ALiBi with the usual slopes

    def options(self, bias: Any, mask: Any, alibi: Any) -> _parts.Options:
        return _parts.Options(self.scale, self.softcap, bias, mask, True if self.usual else alibi)


class _Parallel(torch.autograd.Function):
    """(O, LSE), of which O has a gradient."""

    @staticmethod
    def forward(ctx: Any, call: _Call, q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor],
                alibi: Optional[Tensor], sink: Optional[Tensor], mask: Optional[Tensor]) -> Any:
        running = _parts.Running(q, v.shape[3], sink, call.options(bias, mask, alibi))

        def use(chunk: int, k: Tensor, v: Tensor) -> None:
            if not q.numel():
                return
            for runs in call.geometry.runs(chunk):
                running.add(runs, k, v)

        call.transport.forward(k, v, use)
        o, lse = running.result()
        ctx.call = call
        ctx.save_for_backward(q, k, v, o, lse, bias, alibi, sink, mask)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(True)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor, _: Any) -> Tuple[Optional[Tensor], ...]:
        call, (q, k, v, o, lse, bias, alibi, sink, mask) = ctx.call, ctx.saved_tensors
        options, needs = call.options(bias, mask, alibi), ctx.needs_input_grad
        d_o = d_o.contiguous()
        sums = _parts.Sums(q, options, (needs[4], needs[5]))

        def use(chunk: int, k: Tensor, v: Tensor) -> List[_parts.KeyGradients]:
            if not q.numel():
                return []
            return [_parts.backward(run, d_o, q, k, v, o, lse, options, sums)
                    for runs in call.geometry.runs(chunk) for run in runs]

        dk, dv = call.transport.backward(k, v, use)
        d_sink = None
        if needs[6]:  # -sum over rows of exp(sink - LSE) * D
            weight = torch.exp(sink[None, :, None] - lse)
            d_sink = -(weight * (d_o.float() * o.float()).sum(-1)).sum((0, 2))
        d_bias = None if sums.bias is None else sums.bias.to(bias.dtype)
        return (None, sums.q.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), d_bias, sums.alibi,
                d_sink, None)


class _Exchange(torch.autograd.Function):
    """Rows for heads (gather), or heads for rows; the gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tuple[int, ...], group: Any, gather: bool) -> Tensor:
        ctx.others = lengths, group, gather
        return exchange(x, lengths, group, gather)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> Tuple[Optional[Tensor], ...]:
        lengths, group, gather = ctx.others
        return exchange(d, lengths, group, not gather), None, None, None


# ---- arguments ---------------------------------------------------------------------------------


def _expect(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise InvalidArgument(f"{what} is {found}, expected {expected}")


def _scores(name: str, x: Any, q: Tensor) -> int:
    """Its columns: one for each of all keys, or 1."""
    if x is None:
        return 1
    batch, heads, rows, _ = q.shape
    shape = (1,) * (4 - x.dim()) + tuple(x.shape)
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, (batch, heads, rows))):
        raise InvalidArgument(f"{name} has the shape {tuple(x.shape)}, expected one that "
                              f"broadcasts to ({batch}, {heads}, {rows}, all keys)")
    return shape[3]


def _vector(name: str, x: Any, q: Tensor, shapes: List[Tuple[int, ...]]) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.device != q.device \
            or tuple(x.shape) not in shapes:
        words = f"{x.dtype} {tuple(x.shape)} on {x.device}" if isinstance(x, Tensor) else repr(x)
        raise InvalidArgument(f"{name} is {words}, expected torch.float32 "
                              f"{' or '.join(map(str, shapes))} on {q.device}")


def check_tensors(q: Tensor, k: Tensor, v: Tensor, group: Any, alike: bool = True) -> None:
    """alike: k and v have the dtype of q."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise InvalidArgument(f"{name} is a {type(x).__name__}, expected a tensor of PyTorch")
    if q.dtype not in DTYPES:
        raise InvalidArgument(f"q has dtype {q.dtype}, expected torch.float32, torch.float16 or "
                              "torch.bfloat16")
    backends = str(dist.get_backend_config(group))
    if f"{q.device.type}:" not in backends:
        raise InvalidArgument(f"q lies on {q.device} and the group has the backends {backends}, "
                              f"expected one for {q.device.type}")
    for name, x in (("k", k), ("v", v)):
        _expect(f"the dtype of {name}", x.dtype if alike else q.dtype, q.dtype)
        _expect(f"the device of {name}", x.device, q.device)


def _describe(q: Tensor, k: Tensor, v: Tensor, group: Any, method: str, causal: Any, scale: Any,
              window: Any, softcap: Any, alibi: Any, bias: Any, mask: Any, sink: Any, cu: Any,
              layout: str, gradients: bool) -> Tuple[Tuple[int, ...], Dict[str, Any]]:
    check_tensors(q, k, v, group)
    dims = 4 if cu is None else 3
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != dims:
            raise InvalidArgument(f"{name} has the shape {tuple(x.shape)}, expected {dims} "
                                  f"dimensions{'' if cu is None else ' with cu_seqlens'}")
    bhsd = [_to_bhsd(x, layout) for x in (q, k, v)]
    (batch, heads, rows, dim), (_, heads_kv, keys, _), (*_, dim_v) = (x.shape for x in bhsd)
    _expect("the shape of k", tuple(bhsd[1].shape), (batch, heads_kv, keys, dim))
    _expect("the shape of v", tuple(bhsd[2].shape), (batch, heads_kv, keys, dim_v))
    if heads_kv < 1 or heads % heads_kv:
        raise InvalidArgument(f"q has {heads} heads and k has {heads_kv}, expected a multiple")
    choice("method", method, _METHODS)
    choice("causal", causal, CAUSAL)
    if sink is not None:
        _vector("sink", sink, q, [(heads,)])
    if alibi is not None and not isinstance(alibi, bool):
        _vector("alibi", alibi, q, [(heads,)] if cu is not None else [(heads,), (batch, heads)])
    if cu is not None and (bias is not None or mask is not None):
        raise InvalidArgument("there is a bias or a mask beside cu_seqlens, expected none")
    digest = None if cu is None else hashlib.sha256(repr(cu).encode()).hexdigest()[:16]
    own = rows, keys, _scores("bias", bias, bhsd[0]), _scores("mask", mask, bhsd[0])
    return own, {
        "the dtype of q": str(q.dtype), "the device of q": q.device.type, "batch": batch,
        "the number of heads of q": heads, "the number of heads of k": heads_kv,
        "the last dimension of q": dim, "the last dimension of v": dim_v, "method": method,
        "causal": causal,
        "window": window_of(window), "scale": None if scale is None else number("scale", scale),
        "softcap": number("softcap", softcap), "layout": layout,
        "the hash of cu_seqlens": digest, "an argument with a gradient": gradients,
        "alibi": alibi is not None and alibi is not False, "bias": bias is not None,
        "mask": mask is not None, "sink": sink is not None}


def _to_bhsd(x: Tensor, layout: str) -> Tensor:
    """A view; packed sequences are one batch entry."""
    if choice("layout", layout, LAYOUT):
        x = x.transpose(-3, -2)
    return x if x.dim() == 4 else x[None]


def _lengths(own: List[Tuple[int, ...]], cu: Optional[Tuple[int, ...]]) \
        -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Rows of q and of k on each rank, which all ranks check alike."""
    q_rows, kv_rows = (tuple(one[i] for one in own) for i in (0, 1))
    keys = sum(kv_rows)
    for rank, one in enumerate(own):
        for name, columns in zip(("bias", "mask"), one[2:]):
            if columns not in (1, keys):
                raise InvalidArgument(f"rank {rank}: {name} has {columns} columns, expected 1 or "
                                      f"one for each of all {keys} keys")
    if cu is not None:
        _expect("the number of keys of each rank", kv_rows, q_rows)
        if not cu or cu[0] != 0 or list(cu) != sorted(cu) or cu[-1] != keys:
            raise InvalidArgument(f"cu_seqlens has the ends {cu[:1]} and {cu[-1:]}, expected "
                                  f"numbers that rise from 0 to {keys}, the rows of all ranks")
    return q_rows, kv_rows


# ---- the function ------------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, *, group: Optional[dist.ProcessGroup] = None,
              method: str = "auto", causal: Any = None, scale: Optional[float] = None,
              window: Tuple[int, int] = NO_WINDOW, softcap: float = 0.0, alibi: Any = None,
              bias: Optional[Tensor] = None, mask: Optional[Tensor] = None,
              sink: Optional[Tensor] = None, cu_seqlens: Any = None, layout: str = "bhsd",
              return_lse: bool = False, check: bool = True) -> Any:
    """attn.attention over a sequence that is spread over the ranks of a group. Every rank passes
    its chunk of q, k and v and gets its chunk of the result. Chunks may differ in length.

    q, k, v: as for attn.attention; tensors on the CPU (gloo) or a GPU (NCCL).
    method: "ring": chunks of k and v go around; "zigzag": likewise, with rows in the order that
        balances a causal mask (shard(..., method="zigzag")); "ulysses": heads for rows, which needs
        heads of q and of k that the ranks divide; "allgather": all of k and v on every rank;
        "auto": ring, ulysses or allgather, by plan(), which is logged ("attn.distributed", INFO).
    causal: also True ("top-left") and False. window, softcap, scale: as for attn.attention.
    alibi: True, or slopes float32 (heads,) or (batch, heads). sink: float32 (heads,).
    bias, mask: of the local rows and of all keys, in the order of positions; not with ulysses or
        packed sequences.
    cu_seqlens: packed sequences, the bounds in the whole sequence, as numbers or on the CPU; q, k
        and v then have no batch. Sequences may cross ranks.
    return_lse: the result is (o, lse), lse in the shape of attn.attention's.
    check: False takes it for granted that all ranks pass the same shapes and options. It saves one
        all_gather of 2 KB, which waits for the GPU if the group has no backend for the CPU.

    Gradients: of q, k, v and bias, and this rank's share of those of alibi and sink, as of all
    parameters that ranks share: sum them over the group. All ranks must call backward.

    Results are merged and gradients summed in float32 in a fixed order: their bits depend on the
    method and the number of ranks, never on timing.
    """
    n, rank = size_and_rank(group)
    causal = {True: "top-left", False: None}.get(causal, causal) \
        if isinstance(causal, bool) else causal
    gradients = needs_gradient(q, k, v, bias, alibi, sink)
    cu = None

    def describe() -> Tuple[Tuple[int, ...], Dict[str, Any]]:
        nonlocal cu
        if cu_seqlens is not None:
            cu = tuple(int(x) for x in
                       (cu_seqlens.tolist() if hasattr(cu_seqlens, "tolist") else cu_seqlens))
        return _describe(q, k, v, group, method, causal, scale, window, softcap, alibi, bias, mask,
                         sink, cu, layout, gradients)

    own = agree(group, q, describe) if check else [describe()[0]] * n
    q_rows, kv_rows = _lengths(own, cu)
    usual = alibi is True
    slopes = None if isinstance(alibi, bool) else alibi
    q, k, v = (_to_bhsd(x, layout) for x in (q, k, v))
    scores = bias is not None or mask is not None
    refused = refusals(n, q.shape[1], k.shape[1], scores)
    if method == "auto":
        found = plan(q.shape[0], q.shape[1], sum(q_rows), q.shape[3], ranks=n, heads_kv=k.shape[1],
                     dim_v=v.shape[3], seq_kv=sum(kv_rows), item_bytes=q.element_size(),
                     causal=causal, window=window_of(window), gradients=gradients, scores=scores,
                     backend="gloo" if q.device.type == "cpu" else "nccl",
                     methods=("ring", "ulysses", "allgather"))
        _log.info("%s", found)
        method = found.method
    elif method in refused:
        raise InvalidArgument(f"method is 'ulysses' and {refused[method]}")
    if method == "ulysses":
        o, lse = _ulysses(q, k, v, group, q_rows, kv_rows, causal, scale, window, softcap, usual,
                          slopes, sink, cu, return_lse)
    else:
        whole = method == "allgather"
        join = not scores and (alibi is None or alibi is False)
        where = geometry(rank, q_rows, kv_rows, ORDER[method], whole, join, causal,
                         window_of(window), cu)
        transport = Gathered(group, kv_rows) if whole else Ring(group, kv_rows, where.steps)
        o, lse = _Parallel.apply(_Call(where, transport, scale, softcap, usual), q, k, v, bias,
                                 slopes, sink, mask)
    o, lse = (o, lse) if cu is None else (o[0], None if lse is None else lse[0])
    o = o.transpose(-3, -2) if LAYOUT[layout] else o
    return (o, lse) if return_lse else o


def _ulysses(q: Tensor, k: Tensor, v: Tensor, group: Any, q_rows: Tuple[int, ...],
             kv_rows: Tuple[int, ...], causal: Any, scale: Any, window: Any, softcap: Any,
             usual: bool, slopes: Optional[Tensor], sink: Optional[Tensor],
             cu: Optional[Tuple[int, ...]], return_lse: bool) -> Tuple[Tensor, Optional[Tensor]]:
    n, rank, heads = len(q_rows), dist.get_rank(group), q.shape[1]
    mine = slice(heads // n * rank, heads // n * (rank + 1))
    if usual:
        slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)],
                              device=q.device)
    slopes, sink = (None if x is None else x[..., mine].contiguous() for x in (slopes, sink))
    q, k, v = (_Exchange.apply(x, rows, group, True)
               for x, rows in ((q, q_rows), (k, kv_rows), (v, kv_rows)))
    bounds = most = None
    if cu is not None:
        bounds = torch.tensor(cu, dtype=torch.int32).to(q.device)
        most = max((b - a for a, b in zip(cu, cu[1:])), default=0)
        q, k, v = q[0], k[0], v[0]
    threads = torch.get_num_threads()
    if needs_gradient(q, k, v, slopes, sink):
        o, lse = differentiable(q, k, v, causal, scale, window, softcap, slopes, None, None, sink,
                                bounds, bounds, most, most, None, "bhsd", threads)
    else:
        o, lse = _attention(q, k, v, causal=causal, scale=scale, window=window, softcap=softcap,
                            alibi=slopes, sink=sink, cu_seqlens_q=bounds, cu_seqlens_kv=bounds,
                            max_seqlen_q=most, max_seqlen_kv=most, return_lse=True,
                            threads=threads)
    if cu is not None:
        o, lse = o[None], lse[None]
    lse = exchange(lse[..., None], q_rows, group, False)[..., 0] if return_lse else None
    return _Exchange.apply(o, q_rows, group, False), lse


# ---- rows of a whole tensor --------------------------------------------------------------------


def _dim(x: Tensor, dim: Any) -> int:
    """From 0 on."""
    if not isinstance(x, Tensor) or x.dim() == 0:
        raise InvalidArgument(f"x is {x!r:.60}, expected a tensor with dimensions")
    if not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        raise InvalidArgument(f"dim is {dim!r}, expected {-x.dim()} to {x.dim() - 1}, as x has the "
                              f"shape {tuple(x.shape)}")
    return dim % x.dim()


def shard(x: Tensor, dim: int, group: Optional[dist.ProcessGroup] = None,
          method: str = "ring") -> Tensor:
    """This rank's rows of a tensor that all ranks have, in the order of a method: contiguous, for
    "zigzag" the r-th and the r-th last of 2n pieces. Also for tokens, positions and labels."""
    n, rank = size_and_rank(group)
    choice("method", method, _METHODS)
    dim = _dim(x, dim)
    total, order = x.shape[dim], ORDER[method]
    return torch.cat([x.narrow(dim, one.start, one.stop - one.start)
                      for one in chunks(rows_of(total, n, order), order)[rank]], dim)


def unshard(x: Tensor, dim: int, group: Optional[dist.ProcessGroup] = None,
            method: str = "ring") -> Tensor:
    """The whole tensor, on every rank, of chunks in the order of a method. It has no gradient."""
    n, _ = size_and_rank(group)

    def describe() -> Tuple[Tuple[int, ...], Dict[str, Any]]:
        choice("method", method, _METHODS)
        at = _dim(x, dim)
        return (x.shape[at],), {"the shape of x without dim": [*x.shape[:at], *x.shape[at + 1:]],
                                "dim": at, "the dtype of x": str(x.dtype), "method": method}

    rows = tuple(one[0] for one in agree(group, x, describe))
    dim %= x.dim()
    x = x.detach().movedim(dim, 0)
    sent = x.new_zeros((max(rows), *x.shape[1:]))
    sent[:x.shape[0]] = x
    received = [torch.empty_like(sent) for _ in range(n)]
    dist.all_gather(received, sent, group=group)
    whole = x.new_empty((sum(rows), *x.shape[1:]))
    for segments, chunk in zip(chunks(rows, ORDER[method]), received):
        for one in segments:
            whole[one.start:one.stop] = chunk[one.row:one.row + one.stop - one.start]
    return whole.movedim(0, dim)
