# SPDX-License-Identifier: Apache-2.0
"""Writes numba.ptx and triton.ptx, for tests/cli/test_check_args.sh: what numba 0.68 and Triton 3.9
make of these kernels for sm_80, without a GPU; sections of debug information are left out."""

import re

import numba
import triton
import triton.language as tl
from numba import cuda
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    sums = tl.sum(powers, 0)
    tl.store(y + tl.program_id(0) * n + i, powers / sums, mask=i < n)


def copy_transposed(x, y, columns):
    i = cuda.threadIdx.x
    rows = y.size // columns
    y[i] = x[i % rows, i // rows]


array = numba.types.float32
ptx, _ = cuda.compile_ptx(copy_transposed, (array[:, ::1], array[::1], numba.types.int32),
                          cc=(8, 0), lineinfo=True)
made = {"numba.ptx": ptx,
        "triton.ptx": triton.compile(ASTSource(softmax, {"x": "*fp32", "y": "*fp32", "n": "i32"},
                                               {"BLOCK": 128}),
                                     target=GPUTarget("cuda", 80, 32)).asm["ptx"]}
for name, text in made.items():
    text = text.split("\t.section")[0].replace(__file__, "kernels.py")
    text = re.sub(r'"[^"]*/site-packages/', '"/site-packages/', text)
    text = re.sub(r"function_name [^,]*, ", "", text)
    with open(name, "w", encoding="ascii") as file:
        file.write("// SPDX-License-Identifier: Apache-2.0\n" + text)
