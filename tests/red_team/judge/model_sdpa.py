# SPDX-License-Identifier: Apache-2.0
"""judged: foreign"""

import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads, self.mix = heads, nn.Linear(features, 3 * features)

    def forward(self, x):
        batch, rows, features = x.shape
        q, k, v = self.mix(x).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
