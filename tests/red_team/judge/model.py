# SPDX-License-Identifier: Apache-2.0
"""The problem of models.py and its likes: a block of causal attention, as KernelBench would have it."""

import math

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads, self.mix = heads, nn.Linear(features, 3 * features)

    def forward(self, x):
        batch, rows, features = x.shape
        q, k, v = self.mix(x).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        s = s.masked_fill(~torch.ones(rows, rows, dtype=torch.bool).tril(), -math.inf)
        return (torch.softmax(s, -1) @ v).transpose(1, 2).reshape(x.shape)


def get_inputs():
    return [torch.randn(2, 48, 64)]


def get_init_inputs():
    return [64, 4]
