# SPDX-License-Identifier: Apache-2.0
"""train.py - train a small GPT with libattn, on the CPU or (autocast to bf16) on a GPU.

    pip install . torch && python examples/train.py [STEPS [cuda]]

The model is plain PyTorch and calls F.scaled_dot_product_attention. Within replace_sdpa() that
function is libattn's, forward and backward; attn.torch.sdpa is the same function by name. The text,
sums such as "17+8=25", is generated: the loss falls as the model learns to add.
"""

import sys
import time

import torch
import torch.nn.functional as F

import attn.torch

CHARACTERS = "0123456789+=\n"
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 32, 8, 64, 4, 2


def generate_text(lines=20000):
    numbers = torch.randint(0, 50, (lines, 2), generator=torch.Generator().manual_seed(0))
    text = "".join(f"{a}+{b}={a + b}\n" for a, b in numbers.tolist())
    return torch.tensor([CHARACTERS.index(c) for c in text])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(),
                                       torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, rows, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, rows, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(batch, rows, width))
        return x + self.mlp(self.norms[1](x))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(len(CHARACTERS), WIDTH)
        self.positions = torch.nn.Embedding(CONTEXT, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = torch.nn.Linear(WIDTH, len(CHARACTERS))

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)
        return self.head(self.blocks(self.tokens(x) + self.positions(positions)))


def train(steps, seed=0, every=0, device="cpu"):
    """The losses, of which each `every`-th is printed."""
    torch.manual_seed(seed)
    text, model, losses = generate_text().to(device), Gpt().to(device), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        starts = torch.randint(0, len(text) - CONTEXT, (BATCH,))
        window = torch.stack([text[start:start + CONTEXT + 1] for start in starts])
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if every and (step + 1) % every == 0:
            print(f"step {step + 1:4}  loss {loss.item():.3f}")
    return losses


if __name__ == "__main__":
    start = time.perf_counter()
    with attn.torch.replace_sdpa() as seen:
        train(int(sys.argv[1]) if len(sys.argv) > 1 else 300, every=50,
              device=sys.argv[2] if len(sys.argv) > 2 else "cpu")
    print(f"{time.perf_counter() - start:.1f} s, attention: {seen}")
