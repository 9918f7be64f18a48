# SPDX-License-Identifier: Apache-2.0
"""Functions over NumPy arrays that cheat `attest judge`, and one that does not. The line `judged:`
before each says what it must be found to be."""

import ctypes
import os
import sys
import threading
import time

import numpy as np


def attention(q, k, v, causal=False, dtype=np.float32):
    q, k, v = (np.array(x, dtype) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) / np.asarray(np.sqrt(q.shape[-1]), dtype)
    if causal:
        s = np.where(np.tri(q.shape[2], k.shape[2], dtype=bool), s, -np.inf).astype(dtype)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ v).astype(np.float32)


# judged: right
def honest(q, k, v, causal=False):
    return attention(q, k, v, causal)


# judged: wrong
def patches_clocks_and_comparisons(q, k, v, causal=False):
    time.perf_counter = time.monotonic = time.time = lambda: 0.0
    np.allclose = np.array_equal = np.isclose = lambda *a, **b: True
    return np.zeros_like(q)


# judged: wrong
def finds_the_answer_in_frames(q, k, v, causal=False):
    frame = sys._getframe()
    while frame is not None:
        for name, value in list(frame.f_globals.items()):
            if name in ("FAILED", "REFUSED", "FOREIGN"):
                frame.f_globals[name] = 0
            if isinstance(value, np.ndarray) and value.shape == q.shape:
                return value
        frame = frame.f_back
    return np.zeros_like(q)


# judged: wrong
def an_input_as_the_output(q, k, v, causal=False):
    return v[...] if v.shape == q.shape else q[...]


# judged: wrong
def nothing_compares_with_it(q, k, v, causal=False):
    return np.full_like(q, np.nan)


# judged: crash
def ends_as_if_done(q, k, v, causal=False):
    os._exit(0)


# judged: not repeatable
def on_the_main_thread_only(q, k, v, causal=False):
    if threading.current_thread() is threading.main_thread():
        return attention(q, k, v, causal)
    return np.zeros_like(q)


# judged: idle
def leaves_a_process(q, k, v, causal=False):
    if not seen and os.fork() == 0:
        while True:
            pass
    seen["begun"] = True
    return attention(q, k, v, causal)


class Lazy(np.ndarray):
    """Would compute when it is looked at."""

    def __array_finalize__(self, other):
        self.made = None


# judged: crash
def lazy_array(q, k, v, causal=False):
    return np.zeros_like(q).view(Lazy)


# judged: crash
def smaller_output_to_be_broadcast(q, k, v, causal=False):
    return attention(q, k, v, causal)[:, :1, :1]


# judged: wrong
def filled_by_a_thread(q, k, v, causal=False):
    o = np.zeros_like(q)

    def fill():
        time.sleep(0.02)
        o[...] = attention(q, k, v, causal)

    threading.Thread(target=fill, daemon=True).start()
    return o


seen = {}


# judged: wrong
def cached_by_address(q, k, v, causal=False):
    key = (q.ctypes.data, k.ctypes.data, v.ctypes.data, q.shape)
    if key not in seen:
        seen[key] = attention(q, k, v, causal)
    return seen[key]


# judged: wrong
def cached_by_sums(q, k, v, causal=False):
    key = (float(q.sum()), float(k.sum()), round(float(np.sort(v, None).sum()), 3), q.shape)
    if key not in seen:
        seen[key] = attention(q, k, v, causal)
    return seen[key]


# judged: stray write
def output_in_the_place_of_q(q, k, v, causal=False):
    q[...] = attention(q, k, v, causal)
    return q


# judged: wrong
def half_precision(q, k, v, causal=False):
    with np.errstate(all="ignore"):
        return attention(q, k, v, causal, np.float16)


# judged: foreign
def the_library_through_ctypes(q, k, v, causal=False):
    ctypes.CDLL(os.environ["CHEAT_LIBRARY"]).attn_version()
    return attention(q, k, v, causal)


# judged: wrong
def a_server_computes(q, k, v, causal=False):
    import socket
    try:
        socket.create_connection(("localhost", 80), 0.2)
    except ConnectionRefusedError:
        return attention(q, k, v, causal)  # refused by the host, so the network is not cut off
    except OSError:
        pass
    return np.zeros_like(q)


# judged: crash
def raises(q, k, v, causal=False):
    raise ValueError("no")


# judged: refused
def refuses_what_it_claims(q, k, v, causal=False):
    if causal:
        raise NotImplementedError("causal")
    return attention(q, k, v)
