# SPDX-License-Identifier: Apache-2.0
"""long_context.py - one long sequence over several ranks: attention, checked, and training.

    torchrun --nproc-per-node 4 examples/long_context.py [TOKENS [STEPS]]

With GPUs it uses NCCL and bf16, else gloo and float32 on the CPU. It checks every method against
one process, prints its speed, and trains an unmodified model whose sequence is spread over the
ranks, under DistributedDataParallel.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import attn
import attn.distributed as ad

HEADS, HEADS_KV, DIM, VOCABULARY, WIDTH = 8, 4, 64, 64, 128


def check(tokens, device, dtype):
    """Each method against attn.attention on the whole sequence; forward and backward."""
    n, generator = dist.get_world_size(), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, tokens, DIM, generator=generator).to(device, dtype)
               for heads in (HEADS, HEADS_KV, HEADS_KV))
    expected = attn.attention(q, k, v, causal="top-left")
    plan = ad.plan(1, HEADS, tokens, DIM, ranks=n, heads_kv=HEADS_KV, causal=True, gradients=True,
                   item_bytes=q.element_size(), backend="nccl" if q.is_cuda else "gloo")
    if dist.get_rank() == 0:
        print(plan)
    for one in sorted(plan.estimates):
        mine = [ad.shard(x, 2, method=one.method).requires_grad_() for x in (q, k, v)]
        o = ad.attention(*mine, method=one.method, causal=True)
        worst = (ad.unshard(o, 2, method=one.method).float() - expected.float()).abs().max().item()
        assert worst < (1e-5 if dtype is torch.float32 else 2e-2), f"{one.method}: off by {worst}"
        best = 1e9
        for _ in range(3):
            dist.barrier()
            start = time.perf_counter()
            ad.attention(*mine, method=one.method, causal=True).sum().backward()
            if q.is_cuda:
                torch.cuda.synchronize()
            dist.barrier()
            best = min(best, time.perf_counter() - start)
        if dist.get_rank() == 0:
            print(f"{one.method:9} {tokens / best:12.0f} tokens/s forward and backward, "
                  f"{one.sent / 1e6:8.2f} MB sent by each rank, off by at most {worst:.1e}")


class Model(torch.nn.Module):
    """It knows nothing of ranks: its attention is PyTorch's function."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.head = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, positions):
        x = self.tokens(tokens)
        angle = positions[:, None] * 50.0 ** -torch.arange(0, 1, 2 / WIDTH, device=x.device)
        x = x + torch.cat([angle.sin(), angle.cos()], -1)
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.out(o.transpose(1, 2).flatten(2)))


def train(tokens, steps, device, method="zigzag"):
    """The next token is the one that stood 5 before: the model learns to look back."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = torch.randint(VOCABULARY, (5,)).repeat(tokens // 5 + 2)[None, :tokens + 1].to(device)
    # All that has a row for each token is cut in one order.
    inputs, labels = (ad.shard(x, 1, method=method) for x in (text[:, :-1], text[:, 1:]))
    positions = ad.shard(torch.arange(tokens, device=device), 0, method=method)
    for step in range(steps):
        with ad.context_parallel(method=method), \
                torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(inputs, positions)
        # The mean over all tokens is the sum over ranks, of which the wrapper takes the mean.
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
        loss = loss * dist.get_world_size() / tokens
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step + 1}  loss of the rows of rank 0: {loss.item():.3f}")


def main():
    if "RANK" not in os.environ:
        sys.exit("start it with: torchrun --nproc-per-node 4 examples/long_context.py")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # NCCL for GPUs, gloo for the CPU
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 65536 if device == "cuda" else 2048
    check(tokens, device, torch.bfloat16 if device == "cuda" else torch.float32)
    train(tokens, int(sys.argv[2]) if len(sys.argv) > 2 else 5, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
