# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch with a forward-mode gradient, which a call of the library would lose.

Invariant: PyTorch is not imported here: who asks has a tensor of it.
"""

from __future__ import annotations

import sys
from typing import Any

from ._library import Unsupported


def refuse_tangents(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if tensor is not None:
            refuse_tangent(name, tensor)


def refuse_tangent(name: str, tensor: Any) -> None:
    # Outside of torch.autograd.forward_ad.dual_level() and torch.func.jvp this is all; where the
    # level has another name some day, unpack_dual looks for itself.
    forward_ad = sys.modules["torch.autograd.forward_ad"]
    if getattr(forward_ad, "_current_level", 0) < 0:
        return
    try:
        tangent = forward_ad.unpack_dual(tensor).tangent
    except RuntimeError:  # within torch.vmap: such a tensor is refused for its memory
        return
    if tangent is not None:
        raise Unsupported(f"{name} has a forward-mode gradient, and there is none of attention "
                          "yet: call it on the primal of torch.autograd.forward_ad.unpack_dual()")
