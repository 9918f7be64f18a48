# SPDX-License-Identifier: Apache-2.0
"""fresh.py - the installed package in an environment with NumPy, PyTorch, both or neither: imports,
computes what can be computed there and checks it. python/ci.sh and the packages' checks run it.

Invariant: needs nothing that is not in the environment; exit code 0 iff all of it is right.
"""
import subprocess
import sys

# CPU seconds of the import, the fewest of five: other processes may be running.
SECONDS = "import time; t = time.process_time(); import attn; print(time.process_time() - t)"
best = min(float(subprocess.check_output([sys.executable, "-c", SECONDS])) for _ in range(5))
assert best < 0.1, f"import attn takes {best:.3f} s, expected at most 0.1"

import attn  # noqa: E402

done = [f"libattn {attn.version()}, imported in {1000 * best:.0f} ms"]
assert "torch" not in sys.modules and "numpy" not in sys.modules

try:
    import numpy as np
except ImportError:
    done.append("no numpy")
else:
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 8, 100, 64), dtype=np.float32)
    s = np.exp(q @ k.swapaxes(2, 3) / 8)
    assert np.abs(attn.attention(q, k, v) - s @ v / s.sum(-1, keepdims=True)).max() < 1e-5
    done.append(f"numpy {np.__version__}")

try:
    import torch
except ImportError:
    done.append("no torch")
else:
    import attn.torch
    q, k, v = torch.randn(3, 2, 8, 100, 64, requires_grad=True)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with attn.torch.replace_sdpa() as seen:
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (o - expected).abs().max() < 1e-5
    assert seen.calls == 1, seen
    ours, = torch.autograd.grad(o.square().sum(), q)
    theirs, = torch.autograd.grad(expected.square().sum(), q)
    assert (ours - theirs).abs().max() < 1e-4
    done.append(f"torch {torch.__version__}")

print(", ".join(done))
