# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: attention over a sequence that is spread over the ranks of torch.distributed
(NCCL on GPUs, gloo on CPUs).

    torch.distributed.init_process_group()
    q, k, v = (attn.distributed.shard(x, 2, method="zigzag") for x in (q, k, v))
    o = attn.distributed.attention(q, k, v, method="zigzag", causal=True)

Each rank has a chunk of the rows of q, k and v and computes that of the result, with gradients.
docs/scale.md has the methods; examples/long_context.py is a program.
"""

from ._context import context_parallel
from ._decode import decode
from ._parallel import attention, shard, unshard
from ._plan import Estimate, Plan, plan

for _each in (Estimate, Plan, attention, context_parallel, decode, plan, shard, unshard):
    _each.__module__ = "attn.distributed"
del _each

__all__ = ["Estimate", "Plan", "attention", "context_parallel", "decode", "plan", "shard",
           "unshard"]
