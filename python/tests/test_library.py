# SPDX-License-Identifier: Apache-2.0
"""The structs of attn._library against include/attn.h, as a C compiler has them; the errors."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import attn
import pytest
from attn import _library

ROOT = Path(__file__).resolve().parents[2]
STRUCTS = {"attn_error": _library.Error, "attn_options": _library.Options,
           "attn_strides": _library.Strides, "attn_bias_strides": _library.BiasStrides,
           "attn_problem": _library.Problem, "attn_tensors": _library.Tensors,
           "attn_variant": _library.Variant}


def test_structs(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    header = ROOT / "include" / "attn.h"
    if compiler is None or not header.exists():
        pytest.skip("needs a C compiler and include/attn.h")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));'
                  for field, _ in struct._fields_]
    source = tmp_path / "layout.c"
    source.write_text(f'#include "{header}"\n#include <stdio.h>\nint main(void) {{\n'
                      + "\n".join(lines) + "\nreturn 0;\n}\n")
    subprocess.run([compiler, "-o", tmp_path / "layout", source], check=True)
    said = dict(line.split() for line in subprocess.run(
        [tmp_path / "layout"], check=True, capture_output=True, text=True).stdout.splitlines())
    here = {}
    for name, struct in STRUCTS.items():
        here[name] = str(ctypes.sizeof(struct))
        here.update({f"{name}.{field}": str(getattr(struct, field).offset)
                     for field, _ in struct._fields_})
    assert here == said


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
