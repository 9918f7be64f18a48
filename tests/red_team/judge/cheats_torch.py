# SPDX-License-Identifier: Apache-2.0
"""The same over PyTorch tensors."""

import math

import torch
import torch.nn.functional as F


def attention(q, k, v, causal=False):
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    return torch.softmax(s, -1) @ v


# judged: right
def honest(q, k, v, causal=False):
    return attention(q, k, v, causal)


# judged: foreign
def sdpa(q, k, v, causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


# judged: foreign
def sdpa_by_another_name(q, k, v, causal=False):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)[0]


# judged: foreign
def sdpa_if_it_may(q, k, v, causal=False):
    try:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    except RuntimeError:
        return attention(q, k, v, causal)


# judged: wrong
def patched_torch(q, k, v, causal=False):
    torch.allclose = torch.equal = lambda *a, **b: True
    torch.Tensor.copy_ = lambda self, *a, **b: self
    return torch.zeros_like(q)


class Lazy(torch.Tensor):
    pass


# judged: crash
def lazy_tensor(q, k, v, causal=False):
    return torch.zeros_like(q).as_subclass(Lazy)


# judged: wrong
def bf16_inside(q, k, v, causal=False):
    return attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), causal).float()


# judged: wrong
def compiled_once_for_these_inputs(q, k, v, causal=False):
    global replay
    try:
        return replay[q.shape]
    except (NameError, KeyError):
        replay = {q.shape: attention(q, k, v, causal)}
        return replay[q.shape]
