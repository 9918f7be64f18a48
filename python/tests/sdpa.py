# SPDX-License-Identifier: Apache-2.0
"""Inputs of attn.torch.sdpa, and its check beside PyTorch's function."""

import attn.torch
import torch

theirs = torch.nn.functional.scaled_dot_product_attention
CLOSE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def qkv(batch=(2,), heads_q=4, heads_kv=None, seq_q=13, seq_kv=21, dim=16, dim_v=None,
        dtype=torch.float32):
    heads_kv = heads_kv or heads_q
    return (torch.randn(*batch, heads_q, seq_q, dim).to(dtype),
            torch.randn(*batch, heads_kv, seq_kv, dim).to(dtype),
            torch.randn(*batch, heads_kv, seq_kv, dim_v or dim).to(dtype))


def check(q, k, v, *arguments, **named):
    found = attn.torch.sdpa(q, k, v, *arguments, **named)
    expected = theirs(q, k, v, *arguments, **named)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    close = CLOSE[q.dtype]
    torch.testing.assert_close(found, expected, rtol=close, atol=close)
    return found
