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


def _device(group: Optional[dist.ProcessGroup], device: torch.device) -> torch.device:
    """Of the descriptions: the CPU if the group has a backend for it, as a group made without a
    backend's name does. Else they are read back from the GPU, which waits for its stream."""
    return torch.device("cpu") if "cpu:" in str(dist.get_backend_config(group)) else device


def agree(group: Optional[dist.ProcessGroup], device: torch.device,
          describe: Callable[[], Tuple[Tuple[int, ...], Dict[str, Any]]]) -> List[Tuple[int, ...]]:
    """describe: gives numbers that may differ among ranks, and what must not, by name; what it
    raises all ranks raise. Returns the numbers of each rank."""
    n, _ = size_and_rank(group)
    try:
        mine: Dict[str, Any] = dict(zip(("own", "same"), describe()))
    except (AttnError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        mine = {"error": str(error)[:BYTES // 4]}
    text = json.dumps(mine).encode()
    if len(text) > BYTES:
        raise InvalidArgument(f"the description of the arguments has {len(text)} bytes, expected "
                              f"at most {BYTES}")
    where = _device(group, device)
    sent = torch.frombuffer(bytearray(text.ljust(BYTES)), dtype=torch.uint8).to(where)
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
            if a != b:
                raise InvalidArgument(f"{name} is {a} on rank 0 and {b} on rank {rank}, expected "
                                      "the same on all ranks")
    return [tuple(one["own"]) for one in all_ranks]
