# SPDX-License-Identifier: Apache-2.0
"""judged: foreign"""

import model
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.inner = model.Model(*sizes)

    def forward(self, x):
        return self.inner(x)
