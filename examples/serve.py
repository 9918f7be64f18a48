# SPDX-License-Identifier: Apache-2.0
"""serve.py - continuous batching over a paged KV cache with PyTorch: serve.c in Python.

    python serve.py [cpu | cuda] [requests]

A step has at most ROWS rows: one for each sequence that decodes, chunks of prompts for the others.
Its lengths, page table and tokens are in tensors that never move, so on a GPU one CUDA graph,
captured once, serves every step. With batch_invariant the bits of a row do not depend on the other
rows: at the end the first requests are computed again, alone, and must give the same tokens.
"""
import dataclasses
import random
import sys
import time
from typing import List, Optional

import torch

import attn

LAYERS, HEADS, HEADS_KV, DIM, WORDS = 4, 8, 2, 64, 1000
SLOTS, ROWS, CHUNK, PAGE, PAGES, LONGEST = 16, 128, 64, 16, 128, 512
HIDDEN = HEADS * DIM


class Model(torch.nn.Module):
    """A decoder with random weights; its KV cache is a pool of pages for each layer."""

    def __init__(self, device: str, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(0)
        def make(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device=device, dtype=dtype) * shape[-2] ** -0.5
        self.embedding = make(WORDS, HIDDEN) * WORDS ** 0.5
        self.qkv = [make(HIDDEN, (HEADS + 2 * HEADS_KV) * DIM) for _ in range(LAYERS)]
        self.out = [make(HIDDEN, HIDDEN) for _ in range(LAYERS)]
        self.pools = [torch.zeros(2, PAGES, PAGE, HEADS_KV, DIM, device=device, dtype=dtype)
                      for _ in range(LAYERS)]
        angle = torch.arange(LONGEST)[:, None] * 10000.0 ** -(torch.arange(DIM // 2) * 2 / DIM)
        self.rope = (angle.cos().to(device), angle.sin().to(device))

    def forward(self, tokens, starts, used, table):
        x = self.embedding[tokens]
        for qkv, out, (k_pool, v_pool) in zip(self.qkv, self.out, self.pools):
            q, k, v = torch.nn.functional.rms_norm(x, (HIDDEN,)).matmul(qkv).split(
                [HEADS * DIM, HEADS_KV * DIM, HEADS_KV * DIM], -1)
            q, k, v = (t.unflatten(-1, (-1, DIM)) for t in (q, k, v))
            step = {"used_kv": used, "block_table": table, "cu_seqlens_q": starts, "layout": "bshd"}
            q = attn.append(k, v, k_pool, v_pool, q=q, rope=self.rope, **step)
            o = attn.attention(q, k_pool, v_pool, causal="bottom-right", max_seqlen_q=CHUNK,
                               max_seqlen_kv=LONGEST, batch_invariant=True, **step)
            x = x + o.flatten(-2) @ out
        return torch.nn.functional.rms_norm(x, (HIDDEN,)).matmul(self.embedding.T).argmax(-1)


@dataclasses.dataclass
class Request:
    tokens: List[int]  # the prompt, then what was generated
    target: int


@dataclasses.dataclass
class Slot:
    request: Request
    age: int
    cached: int = 0  # tokens whose keys and values are in the cache
    rows: int = 0    # of this step
    pages: List[int] = dataclasses.field(default_factory=list)


class Server:
    def __init__(self, device: str):
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.model = Model(device, dtype)
        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)
        self.inputs = (ints(ROWS), ints(SLOTS + 1), ints(SLOTS), ints(SLOTS, LONGEST // PAGE))
        self.host = [torch.zeros_like(x, device="cpu") for x in self.inputs]
        self.slots: List[Optional[Slot]] = [None] * SLOTS
        self.free = list(range(PAGES))
        self.waiting: List[Request] = []
        self.admitted = self.evictions = self.steps = 0
        self.graph = None
        if device == "cuda":
            self.model(*self.inputs)  # plans and workspaces are made before the capture
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.words = self.model(*self.inputs)

    def running(self) -> List[Slot]:
        return sorted((s for s in self.slots if s), key=lambda s: s.age)

    def admit(self) -> None:
        for i, slot in enumerate(self.slots):
            if slot is None and self.waiting and \
                    len(self.waiting[0].tokens) < len(self.free) * PAGE:
                self.slots[i] = Slot(self.waiting.pop(0), self.admitted)
                self.admitted += 1

    def give_back(self, slot: Slot) -> None:
        self.free += slot.pages
        self.slots[self.slots.index(slot)] = None

    def give_pages(self, slot: Slot) -> bool:
        """Pages for the rows of this step. False: none is left, and this sequence was evicted."""
        while len(slot.pages) * PAGE < slot.cached + slot.rows:
            if self.free:
                slot.pages.append(self.free.pop())
                continue
            youngest = self.running()[-1]
            self.waiting.insert(0, youngest.request)
            self.give_back(youngest)
            self.evictions += 1
            if youngest is slot:
                return False
        return True

    def plan(self) -> None:
        """Rows of each sequence in this step, oldest first: at least one."""
        rows, running = 0, self.running()
        for n, slot in enumerate(running):
            if slot in self.slots:
                room = ROWS - rows - (len(running) - n - 1)
                slot.rows = min(len(slot.request.tokens) - slot.cached, CHUNK, room)
                rows += slot.rows if self.give_pages(slot) else 0

    def compute(self) -> List[int]:
        tokens, starts, used, table = self.host
        for i, slot in enumerate(self.slots):
            rows = slot.rows if slot else 0
            starts[i + 1] = starts[i] + rows
            used[i] = slot.cached + rows if slot else 0
            if slot:
                new = slot.request.tokens[slot.cached:slot.cached + rows]
                tokens[starts[i]:starts[i + 1]] = torch.tensor(new, dtype=torch.int32)
                table[i, :len(slot.pages)] = torch.tensor(slot.pages, dtype=torch.int32)
        for to, source in zip(self.inputs, self.host):
            to.copy_(source)
        if self.graph is None:
            return self.model(*self.inputs).tolist()
        self.graph.replay()
        return self.words.tolist()

    def step(self) -> int:
        """Returns how many tokens were generated."""
        self.admit()
        self.plan()
        words, generated = self.compute(), 0
        self.steps += 1
        for i, slot in enumerate(self.slots):
            if slot is None:
                continue
            slot.cached, slot.rows = slot.cached + slot.rows, 0
            if slot.cached == len(slot.request.tokens):  # the prompt is complete
                slot.request.tokens.append(words[int(self.host[1][i + 1]) - 1])
                generated += 1
                if len(slot.request.tokens) == slot.request.target:
                    self.give_back(slot)
        return generated

    def serve(self, requests: List[Request]) -> int:
        self.waiting += requests
        generated = 0
        while self.waiting or any(self.slots):
            generated += self.step()
        return generated


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    draw = random.Random(1)
    prompts = [[draw.randrange(WORDS) for _ in range(draw.randint(5, 300))] for _ in range(count)]
    requests = [Request(list(p), len(p) + draw.randint(5, 60)) for p in prompts]
    server = Server(device)
    start = time.perf_counter()
    with torch.no_grad():
        generated = server.serve(requests)
        seconds = time.perf_counter() - start
        print(f"{count} requests, {server.steps} steps, {server.evictions} evictions, "
              f"{generated} tokens, {generated / seconds:.0f} tokens/s")
        for prompt, request in list(zip(prompts, requests))[:3]:
            alone = Request(list(prompt), request.target)
            server.serve([alone])
            if alone.tokens != request.tokens:
                sys.exit("a request alone gives other tokens")
    print("the first ones alone give the same tokens")


if __name__ == "__main__":
    main()
