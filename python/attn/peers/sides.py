# SPDX-License-Identifier: Apache-2.0
"""What machine.py and backward.py build cases from."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Callable, ContextManager, List, Optional, Sequence, Tuple, Union

Inputs = Tuple[Any, Any, Any]  # q, k, v


class Side:
    """An implementation: computes attention of input set i. role: ours, variant, peer or host (only
    the host time is measured); kernel: the name (ours) or the pattern (peers) that the
    profiler must show, `launches` times in a call of ours; of several plans their names; outputs:
    what every call writes to, if it is always the same."""

    def __init__(self, name: str, role: str, kernel: Union[None, str, List[str]],
                 call: Callable[[int, ctypes.c_void_p], Any],
                 context: Callable[[], ContextManager[Any]] = contextlib.nullcontext,
                 outputs: Sequence[Any] = (), launches: int = 1) -> None:
        self.name, self.role, self.kernel = name, role, kernel
        self.call, self.context, self.outputs = call, context, outputs
        self.launches, self.kept = launches, ()  # kept: tensors that calls read
