# SPDX-License-Identifier: Apache-2.0
"""A small Llama with random weights: RMS norms, rotary positions, grouped heads, a gated MLP and a
cache of keys, in plain PyTorch, for machines without Hugging Face's.

Invariant: nothing of attn is imported; attention is torch.nn.functional's function, looked up at
each call, as models do it.
"""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, LAYERS, HEADS, HEADS_KV, INNER = 512, 256, 3, 4, 2, 384
SPREAD = 0.1  # of weights: scores of some size, so that attention decides something


def rotated(x, first):
    """x (batch, heads, rows, dim) turned by its positions, which begin at `first`."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(first, first + x.shape[2], device=x.device)[:, None] * speeds
    cos, sin = angles.cos(), angles.sin()
    one, two = x[..., :half].float(), x[..., half:].float()
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        dim = WIDTH // HEADS
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, HEADS_KV * dim, bias=False)
        self.v = nn.Linear(WIDTH, HEADS_KV * dim, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, cache, mask):
        batch, rows, _ = x.shape
        y = self.before(x)
        q, k, v = (part(y).view(batch, rows, heads, -1).transpose(1, 2) for part, heads in
                   ((self.q, HEADS), (self.k, HEADS_KV), (self.v, HEADS_KV)))
        first = cache[0].shape[2] if cache else 0
        q, k = rotated(q, first), rotated(k, first)
        if cache:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask,
                                           is_causal=mask is None and rows > 1, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, rows, WIDTH))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), (k, v)


class Llama(nn.Module):
    layers = LAYERS

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for part in self.modules():
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=SPREAD)

    def forward(self, tokens, cache=None, visible=None):
        """(logits, cache) of more tokens; visible: (batch, all keys so far), False hides a key."""
        x, kept, mask = self.embed(tokens), [], None
        if visible is not None:
            rows, keys = tokens.shape[1], visible.shape[1]
            past = torch.ones(rows, keys, dtype=torch.bool, device=x.device).tril(keys - rows)
            mask = past & visible[:, None, None, :].bool()
        for index, block in enumerate(self.blocks):
            x, one = block(x, cache and cache[index], mask)
            kept.append(one)
        return self.head(self.norm(x)), kept
