# SPDX-License-Identifier: Apache-2.0
"""How the library is found, and its errors. (Its structs: tests/cli/test_peers.py, in every build.)"""

import os
import subprocess
import sys

import attn
import pytest
from attn import _library


def test_what_the_module_shows():
    """Before anything was used: attention is imported at its first use."""
    program = "import attn; assert {'attention', '__version__'} <= set(dir(attn)); " \
        "assert attn.__version__ == attn.version(); print(attn.attention.__name__)"
    assert subprocess.run([sys.executable, "-c", program], text=True, capture_output=True,
                          check=True).stdout == "attention\n"


def test_a_missing_library_is_named():
    run = subprocess.run([sys.executable, "-c", "import attn; attn.version()"], text=True,
                         capture_output=True, env={**os.environ, "ATTN_LIBRARY": "/no/such.so"})
    assert run.returncode == 1
    assert "ImportError: /no/such.so is no libattn" in run.stderr


@pytest.mark.parametrize("version, expected", [
    ("0.1.9", "is libattn 0.1.9, expected 0.2 or newer"),
    ("0.2.0", "is no libattn that can be loaded"), ("7.0.0", "is no libattn that can be loaded")])
def test_the_version_is_asked_first(tmp_path, version, expected):
    """Of a library that has nothing else: an old one may have the names, with other structs."""
    source, library = tmp_path / "fake.c", tmp_path / "libfake.so"
    source.write_text(f'const char *attn_version(void) {{ return "{version}"; }}')
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source],
                   check=True)
    run = subprocess.run([sys.executable, "-c", "import attn; attn.version()"], text=True,
                         capture_output=True, env={**os.environ, "ATTN_LIBRARY": str(library)})
    assert run.returncode == 1 and f"ImportError: {library} {expected}" in run.stderr


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


FORKED_WHILE_LOCKED = """
import os, signal, threading
import attn, numpy as np
from attn import _library, _plans
q = np.ones((1, 1, 4, 8), np.float32)
attn.attention(q, q, q)
lock = _plans.open_cache(-1, 0)._lock
held, done = threading.Event(), threading.Event()

def work():
    with _library._lock, _plans._lock, lock:
        held.set()
        done.wait()

thread = threading.Thread(target=work)
thread.start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(10)
    attn.clear_plans()
    assert lock.acquire() and (attn.attention(q, q, q, scale=0.5) == 1).all()
    os._exit(0)
status = os.waitpid(child, 0)[1]
assert _plans._lock.locked() and lock.locked()  # here it is still the thread's
done.set()
thread.join()
raise SystemExit(f"the child ended with {status}" if status else 0)
"""


def test_a_forked_child_finds_no_lock_held():
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED_WHILE_LOCKED], text=True,
                         capture_output=True)
    assert run.returncode == 0, run.stderr
