# SPDX-License-Identifier: Apache-2.0
"""judged: stray write"""

from model_honest import ModelNew as Honest


class ModelNew(Honest):
    def forward(self, x):
        o = super().forward(x)
        return x.copy_(o)
