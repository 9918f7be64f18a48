# SPDX-License-Identifier: Apache-2.0
"""The plugin of pytest: a kernel with a race fails its test, a right one passes, in tests of Python
and in lines of sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attn import _pytest

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "check"

PYTHON = '''
import numpy as np
X = np.arange(64, dtype=np.float32)

def test_right(attest):
    report = attest("kernels.ptx", entry="axpy", grid=2, block=(32,), args=[X, X, np.float32(2)],
                    expect={1: (3 * X, 0)})
    assert report["check"]["passed"] and report["check"]["launches"] == 4

def test_wrong_number(attest):
    attest("kernels.ptx", entry="axpy", grid=2, block=32, args=[X, X, np.float32(2)],
           expect={1: (X, 0.5)})

def test_race(attest):
    attest("race.ptx", grid=4, block=128, args=["buf:f32:512:rand", "buf:f32:4:uninit"])

def test_no_such_kernel(attest):
    attest("race.ptx", entry="absent", grid=4, block=128)

def test_no_such_type(attest):
    attest("race.ptx", grid=4, block=128, args=[1.5])
'''

SOURCE = '''
// attest: --grid 1 --block 64 --arg buf:i32:64:uninit
/* attest: --grid 2 --block 64 --arg buf:i32:64:uninit */
__global__ void iota(int *out) { out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; }
'''


@pytest.fixture
def outcome(tmp_path):
    """Runs pytest in a folder of its own; returns "name: outcome" and all that it printed."""
    if not DATA.is_dir():
        pytest.skip("not in a tree with tests/data/check")
    if subprocess.run([_pytest._program(), "check", str(DATA / "race.ptx"), "--list"],
                      capture_output=True, check=False).returncode != 0:
        pytest.skip("this attest has no virtual GPU")

    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def run(**files):
        for name in ("kernels.ptx", "race.ptx"):
            shutil.copy(DATA / name, tmp_path)
        for name, text in files.items():
            (tmp_path / name.replace("_dot_", ".")).write_text(text)
        done = subprocess.run([sys.executable, "-m", "pytest", "-p", "attn._pytest", "-rA",
                               "-p", "no:cacheprovider", "-o", "addopts=", "."],
                              cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
        return done.stdout

    return run


def test_fixture(outcome):
    text = outcome(test_kernels_dot_py=PYTHON)
    assert "PASSED test_kernels.py::test_right" in text, text
    assert "FAILED test_kernels.py::test_wrong_number" in text
    assert "an expectation was missed" in text
    assert "FAILED test_kernels.py::test_race - " in text
    assert "race.cu:8:" in text and ": error: race: " in text
    assert "no kernel begins with 'absent'" in text
    assert "expected a word of --arg" in text
    assert "4 failed, 1 passed" in text


def test_lines_of_sources(outcome):
    text = outcome(kernels_dot_cu=SOURCE, other_dot_cu="__global__ void k() {}\n")
    if "SKIPPED" in text:
        pytest.skip("no nvcc")
    assert "PASSED kernels.cu::line 2" in text, text
    assert "FAILED kernels.cu::line 3" in text
    assert "kernels.cu:4:" in text and "out-of-bounds" in text
    assert "other.cu" not in text


def test_words_of_arguments(tmp_path):
    assert _pytest._argument("i32:7", "0", tmp_path) == "i32:7"
    assert _pytest._argument(np.float32(0.5), "0", tmp_path) == "f32:0.5"
    assert _pytest._argument(np.int64(-3), "0", tmp_path) == "i64:-3"
    word = _pytest._argument(np.ones((2, 3), np.float16), "1.4", tmp_path)
    assert word == f"buf:f16:6:@{tmp_path}/argument1.4.npy"
    assert np.load(tmp_path / "argument1.4.npy").shape == (2, 3)
    assert _pytest._dims((1, 2)) == "1,2" and _pytest._dims(7) == "7"
