# SPDX-License-Identifier: Apache-2.0
"""libattn beside PyTorch's attention on one machine: python -m attn.peers --help.

Invariant: nothing here is imported by the rest of the package, and of PyTorch and NumPy nothing is
loaded before something is measured.
"""
