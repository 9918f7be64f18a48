# SPDX-License-Identifier: Apache-2.0
"""An array that tests hand over by DLPack alone."""

import numpy as np


def newest():
    """Whether this NumPy knows the capsules of DLPack 1."""
    return int(np.__version__.split(".")[0]) >= 2


class Foreign:
    """An array that is known by DLPack alone."""

    def __init__(self, array, legacy=False):
        self.array, self.legacy, self.streams = array, legacy or not newest(), []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments):
        self.streams.append(arguments.get("stream"))
        if self.legacy:
            if "max_version" in arguments:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self.array.__dlpack__()
        return self.array.__dlpack__(max_version=(1, 0))
