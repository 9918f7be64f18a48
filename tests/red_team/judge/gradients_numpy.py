# SPDX-License-Identifier: Apache-2.0
"""Functions over NumPy arrays for `--direction backward`, as cheats_numpy.py."""

import numpy as np


def gradients(q, k, v, o, lse, d_o, causal=False, dtype=np.float32):
    q, k, v, o, lse, d_o = (np.array(x, dtype) for x in (q, k, v, o, lse, d_o))
    scale = np.asarray(q.shape[-1] ** -0.5, dtype)
    s = q @ k.swapaxes(-1, -2) * scale
    if causal:
        s = np.where(np.tri(q.shape[2], k.shape[2], dtype=bool), s, -np.inf).astype(dtype)
    p = np.exp(s - lse[..., None])
    ds = p * (d_o @ v.swapaxes(-1, -2) - (d_o * o).sum(-1, keepdims=True)) * scale
    found = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d_o
    return tuple(x.astype(np.float32) for x in found)


# judged: right
def honest(q, k, v, o, lse, d_o, causal=False):
    return gradients(q, k, v, o, lse, d_o, causal)


# judged: wrong
def half_precision(q, k, v, o, lse, d_o, causal=False):
    with np.errstate(all="ignore"):
        return gradients(q, k, v, o, lse, d_o, causal, np.float16)


# judged: wrong
def inputs_as_outputs(q, k, v, o, lse, d_o, causal=False):
    return q, k, v


# judged: wrong
def ignores_the_mask(q, k, v, o, lse, d_o, causal=False):
    return gradients(q, k, v, o, lse, d_o)


# judged: crash
def one_output_missing(q, k, v, o, lse, d_o, causal=False):
    return gradients(q, k, v, o, lse, d_o, causal)[:2]


seen = {}


# judged: wrong
def cached_by_the_forward(q, k, v, o, lse, d_o, causal=False):
    key = o.tobytes()
    if key not in seen:
        seen[key] = gradients(q, k, v, o, lse, d_o, causal)
    return seen[key]
