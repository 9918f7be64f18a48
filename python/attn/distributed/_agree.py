# SPDX-License-Identifier: Apache-2.0
"""What all ranks must know before they exchange tensors: each other's lengths, and that shapes,
dtypes and options are the same everywhere.

Invariant: an argument that is wrong or differs on one rank raises the same sentence on all ranks,
before anything else is sent.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from .._library import AttnError, InvalidArgument

BYTES = 2048  # of one rank's description


def size_and_rank(group: Optional[dist.ProcessGroup]) -> Tuple[int, int]:
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument("torch.distributed is not initialized, expected "
                              "torch.distributed.init_process_group() before")
    rank = dist.get_rank(group)
    if rank < 0:
        raise InvalidArgument("this process is not in the group, expected a group with it")
    return dist.get_world_size(group), rank


def _device(group: Optional[dist.ProcessGroup], x: Any) -> torch.device:
    """Of the descriptions: the CPU if the group has a backend for it, as a group made without a
    backend's name does. Else they are read back from the GPU, which waits for its stream."""
    if "cpu:" in str(dist.get_backend_config(group)):
        return torch.device("cpu")
    on_gpu = isinstance(x, torch.Tensor) and x.is_cuda
    return x.device if on_gpu else torch.device("cuda", torch.cuda.current_device())


def agree(group: Optional[dist.ProcessGroup], x: Any,
          describe: Callable[[], Tuple[Tuple[int, ...], Dict[str, Any]]]) -> List[Tuple[int, ...]]:
    """x: what the call is about, a tensor if it is right. describe: gives numbers that may differ
    among ranks, and what must not, by name; what it raises all ranks raise. Returns the numbers of
    each rank."""
    n, _ = size_and_rank(group)
    try:
        mine: Dict[str, Any] = dict(zip(("own", "same"), describe()))
    except Exception as error:  # whatever it is: the other ranks wait for this one
        said = str(error) if isinstance(error, AttnError) else f"{type(error).__name__}: {error}"
        mine = {"error": said.encode("ascii", "replace").decode()[:BYTES // 4]}
    text = bytearray(json.dumps(mine).encode().ljust(BYTES))
    sent = torch.frombuffer(text, dtype=torch.uint8).to(_device(group, x))
    received = [torch.empty_like(sent) for _ in range(n)]
    dist.all_gather(received, sent, group=group)
    all_ranks = [json.loads(bytes(x.tolist())) for x in torch.stack(received).cpu()]
    for rank, one in enumerate(all_ranks):
        if "error" in one:
            raise InvalidArgument(f"rank {rank}: {one['error']}")
    first = all_ranks[0]["same"]
    for rank, one in enumerate(all_ranks):
        for name in {**first, **one["same"]}:
            a, b = first.get(name), one["same"].get(name)
            if json.dumps(a) != json.dumps(b):  # NaN is NaN
                raise InvalidArgument(f"{name} is {a} on rank 0 and {b} on rank {rank}, expected "
                                      "the same on all ranks")
    return [tuple(one["own"]) for one in all_ranks]
