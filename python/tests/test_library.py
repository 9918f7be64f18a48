# SPDX-License-Identifier: Apache-2.0
"""How the library is found, and its errors. (Its structs: tests/test_peers.py, in every build.)"""

import os
import subprocess
import sys

import attn
import pytest
from attn import _library


def test_a_missing_library_is_named():
    run = subprocess.run([sys.executable, "-c", "import attn; attn.version()"], text=True,
                         capture_output=True, env={**os.environ, "ATTN_LIBRARY": "/no/such.so"})
    assert run.returncode == 1
    assert "ImportError: /no/such.so is no libattn" in run.stderr


@pytest.mark.parametrize("status, kind", [
    (1, ValueError), (2, NotImplementedError), (3, MemoryError), (4, attn.DeviceError),
    (9, attn.AttnError)])
def test_errors(status, kind):
    with pytest.raises(kind, match="^a sentence$") as caught:
        _library.fail(status, _library.Error(b"a sentence"))
    assert isinstance(caught.value, attn.AttnError)


def test_an_absent_gpu_is_unsupported():
    from attn import _plans
    with pytest.raises(attn.AttnError, match="cuda"):
        _plans.Context("cuda:99")
