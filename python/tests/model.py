# SPDX-License-Identifier: Apache-2.0
"""The formulas of include/attn.h in float64 NumPy, one (batch, head) at a time.

Invariant: written from the header alone; nothing of the package is imported.
"""

import numpy as np


def usual_slopes(heads):
    return np.array([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)])


def one_head(q, k, v, *, scale, causal=None, window=(-1, -1), softcap=0.0, slope=None, bias=None,
             mask=None, sink=None, offset=0):
    """q (rows, dim), k and v (keys, dim): O and LSE."""
    rows, keys = len(q), len(k)
    s = scale * (q @ k.T)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    i, j = np.arange(rows)[:, None], np.arange(keys)[None, :]
    diagonal = i + (0 if causal == "top-left" else keys - rows) + offset
    if slope is not None:
        s = s - slope * np.abs(diagonal - j)
    if bias is not None:
        s = s + bias
    visible = np.ones((rows, keys), bool)
    if mask is not None:
        visible &= mask != 0
    if causal is not None:
        visible &= j <= diagonal
    if window[0] >= 0:
        visible &= j >= diagonal - window[0]
    if window[1] >= 0:
        visible &= j <= diagonal + window[1]
    s = np.where(visible, s, -np.inf)
    top = np.max(s, axis=1, initial=-np.inf if sink is None else sink)
    finite = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(s - finite[:, None])
    total = weights.sum(axis=1) + (0.0 if sink is None else np.exp(sink - finite))
    with np.errstate(divide="ignore"):
        lse = finite + np.log(total)
    return (weights @ v) / np.where(total > 0, total, 1.0)[:, None], lse


def attention(q, k, v, *, scale=None, alibi=None, bias=None, mask=None, sink=None,
              cu_seqlens_q=None, cu_seqlens_kv=None, used_kv=None, layout="bhsd", offsets=None, **options):
    """As attn.attention with return_lse=True, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    if layout == "bshd":
        q, k, v = (np.swapaxes(x, -3, -2) for x in (q, k, v))
    packed = cu_seqlens_q is not None
    heads = q.shape[-3]
    group = heads // k.shape[-3]
    batch = len(cu_seqlens_q) - 1 if packed else q.shape[0]
    o = np.zeros(q.shape[:-1] + v.shape[-1:])
    lse = np.full(q.shape[:-1], -np.inf)
    slopes = None
    if alibi is not None and alibi is not False:
        slopes = np.broadcast_to(usual_slopes(heads) if alibi is True else alibi, (batch, heads))
    for b in range(batch):
        at_q, at_kv = (slice(cu_seqlens_q[b], cu_seqlens_q[b + 1]),
                       slice(cu_seqlens_kv[b], cu_seqlens_kv[b + 1])) if packed else \
            (slice(None), slice(None))
        for h in range(heads):
            pick = (lambda x, n, at: x[n, at]) if packed else (lambda x, n, at: x[b, n, at])
            qs, ks, vs = pick(q, h, at_q), pick(k, h // group, at_kv), pick(v, h // group, at_kv)
            if used_kv is not None:
                ks, vs = ks[:used_kv[b]], vs[:used_kv[b]]

            def scores(given):
                if given is None:
                    return None
                wide = np.asarray(given, np.float64)
                wide = wide.reshape((1,) * (4 - wide.ndim) + wide.shape)
                extra = wide[b if wide.shape[0] > 1 else 0, h if wide.shape[1] > 1 else 0]
                extra = extra[:len(qs) if extra.shape[0] > 1 else 1]
                return extra[:, :len(ks) if extra.shape[1] > 1 else 1]

            found = one_head(qs, ks, vs, scale=q.shape[-1] ** -0.5 if scale is None else scale,
                             slope=None if slopes is None else slopes[b, h],
                             bias=scores(bias), mask=scores(mask),
                             sink=None if sink is None else sink[h],
                             offset=0 if offsets is None else offsets[b], **options)
            where = (h, at_q) if packed else (b, h)
            o[where], lse[where] = found
    return (np.swapaxes(o, -3, -2) if layout == "bshd" else o), lse
