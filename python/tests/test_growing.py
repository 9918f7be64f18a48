# SPDX-License-Identifier: Apache-2.0
"""A cache that grows by a key at each call, as in decoding: no length is seen twice, and what is
held does not grow with their number."""

import gc
from pathlib import Path

import attn
import numpy as np
import pytest
from attn import _plans

LENGTHS = 5000
MOST_BYTES = 2 << 20  # of growth over 4000 lengths: 500 bytes for each would not pass


def resident():
    gc.collect()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def arrays():
    generator = np.random.default_rng(0)
    return [generator.standard_normal((1, 2, n, 16), np.float32) for n in (1, LENGTHS, LENGTHS)]


def by_numpy():
    q, k, v = arrays()
    return lambda n: attn.attention(q, k[:, :, :n], v[:, :, :n], threads=1)


def by_torch():
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, arrays())
    return lambda n: attn.attention(q, k[:, :, :n], v[:, :, :n], threads=1)


def by_sdpa():
    torch = pytest.importorskip("torch")
    import attn.torch
    q, k, v = map(torch.from_numpy, arrays())

    def call(n):
        with torch.no_grad():
            return attn.torch.sdpa(q, k[:, :, :n], v[:, :, :n])
    return call


def expected(n):
    q, k, v = (x.astype(np.float64) for x in arrays())
    scores = np.einsum("bhqd,bhkd->bhqk", q, k[:, :, :n]) / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), v[:, :, :n])


@pytest.mark.parametrize("maker", [by_numpy, by_torch, by_sdpa], ids=lambda f: f.__name__)
def test_lengths_on_the_cpu(maker):
    call = maker()
    attn.clear_plans()
    before = most = 0
    for n in range(1, LENGTHS + 1):
        out = call(n)
        if n % 500 == 1:
            np.testing.assert_allclose(np.asarray(out), expected(n), 1e-5, 1e-5)
        (cache,) = _plans.caches.values()
        most = max(most, len(cache.plans))
        if n == LENGTHS // 5:
            before = resident()
    assert most == _plans.CACHED_PLANS
    assert resident() - before < MOST_BYTES
    assert len(cache.context.spare) <= 1
    attn.clear_plans()
