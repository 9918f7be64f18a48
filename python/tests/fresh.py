# SPDX-License-Identifier: Apache-2.0
"""fresh.py - the installed package in an environment with NumPy, PyTorch, both or neither: imports,
computes what can be computed there and checks it. python/ci.sh and tests/meta/packages.sh run it.

Invariant: needs nothing that is not in the environment; exit code 0 iff all of it is right.
"""
import subprocess
import sys

SECONDS = "import time; t = time.process_time(); import attn; print(time.process_time() - t)"


def try_import():
    """CPU seconds, the fewest of five: other processes may be running."""
    best = min(float(subprocess.check_output([sys.executable, "-c", SECONDS])) for _ in range(5))
    assert best < 0.1, f"import attn takes {best:.3f} s, expected at most 0.1"
    import attn
    assert "torch" not in sys.modules and "numpy" not in sys.modules
    return f"libattn {attn.version()}, imported in {1000 * best:.0f} ms"


def try_numpy():
    try:
        import numpy as np
    except ImportError:
        return "no numpy"
    import attn
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 8, 100, 64), dtype=np.float32)
    s = np.exp(q @ k.swapaxes(2, 3) / 8)
    assert np.abs(attn.attention(q, k, v) - s @ v / s.sum(-1, keepdims=True)).max() < 1e-5
    return f"numpy {np.__version__}"


def try_torch():
    try:
        import torch
    except ImportError:
        return "no torch"
    import attn.torch
    q, k, v = torch.randn(3, 2, 8, 100, 64, requires_grad=True)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with attn.torch.replace_sdpa() as seen:
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert seen.calls == 1, seen
    assert (o - expected).abs().max() < 1e-5
    ours, = torch.autograd.grad(o.square().sum(), q)
    theirs, = torch.autograd.grad(expected.square().sum(), q)
    assert (ours - theirs).abs().max() < 1e-4
    return f"torch {torch.__version__}"


if __name__ == "__main__":
    print(", ".join([try_import(), try_numpy(), try_torch()]))
