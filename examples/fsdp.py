# SPDX-License-Identifier: Apache-2.0
"""fsdp.py - context parallelism with FSDP and tensor parallelism: each rank holds a part of the
parameters, of the batch or the heads, and of its sequence.

    torchrun --nproc-per-node 4 examples/fsdp.py [TOKENS [STEPS]] [--tensor]

Each pair of ranks shares one sequence. The other pair has another sequence, and fully_shard
distributes the parameters over all ranks; or, with --tensor, the other half of the heads and of the
MLP of the same sequence, and fully_shard distributes each half over its pair. Each loss is compared
with that of the plain model in one process. With GPUs it uses NCCL, else gloo on the CPU.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import attn.distributed as ad

HEADS, WIDTH, VOCABULARY, LAYERS, METHOD = 4, 128, 64, 2, "zigzag"


class Block(torch.nn.Module):
    """Its attention is PyTorch's function, which is unaware of ranks."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mlp = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(),
                                       torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        y = F.layer_norm(x, x.shape[-1:])
        q, k, v = (one(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                   for one in (self.q, self.k, self.v))  # of all heads, or of this rank's
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.mlp(F.layer_norm(x, x.shape[-1:]))


class Model(torch.nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.positions = torch.nn.Embedding(tokens, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, positions):
        return self.head(self.blocks(self.tokens(tokens) + self.positions(positions)))


def make(tokens, device):
    torch.manual_seed(0)
    return Model(tokens).to(device)


def loss_of(model, inputs, labels, positions):
    return F.cross_entropy(model(inputs, positions).flatten(0, 1), labels.flatten(),
                           reduction="sum")


def main():
    if "RANK" not in os.environ:
        sys.exit("start it with: torchrun --nproc-per-node 4 examples/fsdp.py")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    n = dist.get_world_size()
    share = 2 if n % 2 == 0 else 1  # ranks of a sequence
    tensor, numbers = "--tensor" in sys.argv, [int(x) for x in sys.argv[1:] if x != "--tensor"]
    sequences = 1 if tensor else n // share
    if tensor:  # the dimension of the heads must be the last one
        mesh = init_device_mesh(device, (share, n // share), mesh_dim_names=("sequence", "heads"))
    else:
        mesh = init_device_mesh(device, (n // share, share), mesh_dim_names=("batch", "sequence"))
    group = mesh["sequence"].get_group()
    tokens = numbers[0] if numbers else 512
    steps = numbers[1] if len(numbers) > 1 else 5

    # The same in one process: on every rank, with all of the batch.
    plain, model = make(tokens, device), make(tokens, device)
    shards = mesh["sequence"] if tensor else init_device_mesh(device, (n,))
    for block in model.blocks:
        if tensor:
            parallelize_module(block, mesh["heads"], {
                "q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(),
                "out": RowwiseParallel(), "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()})
        fully_shard(block, mesh=shards)
    fully_shard(model, mesh=shards)
    for module in (model, *model.blocks):
        module.set_gradient_divide_factor(1.0)  # the sum of the ranks' gradients, not their mean
        if hasattr(module, "set_force_sum_reduction_for_comms"):  # gloo has no other
            module.set_force_sum_reduction_for_comms(True)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (plain, model)]
    text = torch.randint(VOCABULARY, (sequences, 7), device=device)
    text = text.repeat(1, tokens // 7 + 2)[:, :tokens + 1]
    positions = torch.arange(tokens, device=device)

    own = text[0 if tensor else mesh["batch"].get_local_rank(), None]
    # All that has a row for each token is cut in one order.
    inputs, labels = (ad.shard(x, 1, group, METHOD) for x in (own[:, :-1], own[:, 1:]))
    rows = ad.shard(positions, 0, group, METHOD)
    for step in range(steps):
        expected = loss_of(plain, text[:, :-1], text[:, 1:], positions) / text[:, 1:].numel()
        with ad.context_parallel(group, METHOD):
            loss = loss_of(model, inputs, labels, rows) / text[:, 1:].numel()  # this rank's share
        for optimizer, one in zip(optimizers, (expected, loss)):
            optimizer.zero_grad()
            one.backward()
            optimizer.step()
        found = loss.detach().clone()
        dist.all_reduce(found, group=group if tensor else None)
        difference = abs(found.item() - expected.item())
        if dist.get_rank() == 0:
            print(f"step {step + 1}  loss {found.item():.6f}  in one process {expected.item():.6f}")
        assert difference < 1e-4, f"step {step + 1}: the losses differ by {difference}"
    if dist.get_rank() == 0:
        part = sum(p.to_local().numel() for p in model.parameters())
        print(f"sequences: {sequences} of {tokens} tokens, each on {share} ranks"
              f"{f' with 1 / {n // share} of the heads' if tensor else ''}; {part} of "
              f"{sum(p.numel() for p in plain.parameters())} parameters on this one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
