# SPDX-License-Identifier: Apache-2.0
"""Fused attention: O = softmax(scale * Q K^T + bias, masked) V, by libattn.

attention() takes arrays of NumPy on the CPU, and on the GPU whatever speaks DLPack; so do append(),
which writes into a KV cache, merge(), which merges partial results, and accumulate(), which merges
one into a running sum. attn.torch has PyTorch's scaled_dot_product_attention. Errors are exceptions that say what was expected:

>>> import numpy as np, attn
>>> q = np.zeros((1, 2, 5, 64), np.float32)
>>> attn.attention(q, q, q, causal="left")
Traceback (most recent call last):
    ...
attn.InvalidArgument: causal is 'left', expected None, 'top-left' or 'bottom-right'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from ._library import (AttnError, DeviceError, InvalidArgument, OutOfMemory, Unsupported,
                       library_path, load)
from ._plans import clear_plans

if TYPE_CHECKING:
    from ._attention import attention
    from ._serving import accumulate, append, merge

for _error in (AttnError, DeviceError, InvalidArgument, OutOfMemory, Unsupported):
    _error.__module__ = "attn"
del _error

__all__ = ["accumulate", "append", "attention", "clear_plans", "library_path", "merge", "version",
           "AttnError", "DeviceError", "InvalidArgument", "OutOfMemory", "Unsupported"]


def version() -> str:
    """The version of the library that was loaded.

    >>> import attn
    >>> attn.version().count(".")
    2
    """
    return load().attn_version().decode()


def __getattr__(name: str) -> Any:
    # At its first use, so that programs of the package that need no NumPy run without it.
    if name == "attention":
        from ._attention import attention
        globals()["attention"] = attention
        return attention
    if name in ("accumulate", "append", "merge"):
        from . import _serving
        globals()[name] = getattr(_serving, name)
        return globals()[name]
    if name == "__version__":
        return version()
    raise AttributeError(f"module 'attn' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__, "__version__"})
