# SPDX-License-Identifier: Apache-2.0
"""Functions over PyTorch tensors for `--direction autograd`: their forward is right, and what autograd
makes of them is judged."""

import math

import torch


def attention(q, k, v, causal=False):
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    return torch.softmax(s, -1) @ v


class Own(torch.autograd.Function):
    """Attention whose backward is `gradients(q, k, v, d_o, causal)`."""

    @staticmethod
    def forward(context, q, k, v, causal, gradients):
        context.save_for_backward(q, k, v)
        context.causal, context.gradients = causal, gradients
        return attention(q, k, v, causal)

    @staticmethod
    def backward(context, d_o):
        return (*context.gradients(*context.saved_tensors, d_o, context.causal), None, None)


def by_autograd(q, k, v, d_o, causal):
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(attention(*leaves, causal), leaves, d_o)


# judged: right
def honest(q, k, v, causal=False):
    return attention(q, k, v, causal)


# judged: right
def honest_by_hand(q, k, v, causal=False):
    return Own.apply(q, k, v, causal, by_autograd)


# judged: wrong
def zeros(q, k, v, causal=False):
    return Own.apply(q, k, v, causal, lambda *x: map(torch.zeros_like, x[:3]))


# judged: wrong
def bf16_inside(q, k, v, causal=False):
    def gradients(q, k, v, d_o, causal):
        return (x.float() for x in by_autograd(q.bfloat16(), k.bfloat16(), v.bfloat16(), d_o.bfloat16(), causal))
    return Own.apply(q, k, v, causal, gradients)


seen = {}


# judged: wrong
def of_the_first_call(q, k, v, causal=False):
    def gradients(q, k, v, d_o, causal):
        if q.shape not in seen:
            seen[q.shape] = by_autograd(q, k, v, d_o, causal)
        return seen[q.shape]
    return Own.apply(q, k, v, causal, gradients)


# judged: wrong
def patched_autograd(q, k, v, causal=False):
    torch.autograd.grad = lambda o, leaves, d_o: [torch.zeros_like(x) for x in leaves]
    return attention(q, k, v, causal)


# judged: crash
def no_gradient_of_k(q, k, v, causal=False):
    return attention(q, k.detach(), v, causal)


# judged: foreign
def sdpa(q, k, v, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


# judged: foreign
def sdpa_in_backward(q, k, v, causal=False):
    def gradients(q, k, v, d_o, causal):
        lse = torch.zeros(q.shape[:3])
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_o, q, k, v, attention(q, k, v, causal), lse, 0.0, causal)
    return Own.apply(q, k, v, causal, gradients)
