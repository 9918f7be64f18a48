# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that checks CUDA kernels on the virtual GPU of attest, without a GPU.

A test gets the fixture `attest`:

    def test_sum(attest):
        out = np.zeros(4, np.float32)
        attest("sum.cu", grid=4, block=128, args=[x, out, np.int32(512)], expect={1: (sums, 1e-4)})

and a source carries its own tests, one in each line "// attest: OPTIONS of attest check":

    // attest: --entry sum --grid 4 --block 128 --arg buf:f32:512:rand --arg buf:f32:4:uninit

A finding of severity error or a missed expectation fails the test. With warnings="error" (in a
source: --warnings) a finding of severity warning does, too. Without nvcc the test is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import pytest

_LINE = re.compile(r"^\s*(?://|\*|/\*)\s*attest:\s+(.*?)\s*(?:\*/)?$")
_NO_NVCC = 3
_FAILED = 1
_TYPES = {"float32": "f32", "float16": "f16", "float64": "f64", "bfloat16": "bf16", "int8": "i8",
          "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
          "uint32": "u32", "uint64": "u64"}


def _program() -> str:
    """$ATTEST, the program of the wheel, or the one in $PATH."""
    own = Path(__file__).resolve().parent / "bin" / "attest"
    found = os.environ.get("ATTEST") or (str(own) if own.is_file() else shutil.which("attest"))
    if not found:
        pytest.fail("attest is not installed; $ATTEST may name the program", pytrace=False)
    return found


def _place(place: Mapping[str, Any]) -> str:
    column = f":{place['column']}" if place.get("column") else ""
    return f"{place['file']}:{place['line']}{column}"


def _sentence(finding: Mapping[str, Any]) -> str:
    place = finding.get("place")
    where = _place(place) if place else f"PTX:{finding['ptx_line']}"
    lines = [f"{where}: {finding['severity']}: {finding['kind']}: {finding['text']}"]
    lines += [f"    inlined at {_place(caller)}" for caller in finding["inlined_at"]]
    other = finding.get("other", {}).get("place")
    if other:
        lines.append(f"    other access at {_place(other)}")
    return "\n".join(lines)


def _run(words: Sequence[str], folder: Optional[Path], warnings: bool) -> Dict[str, Any]:
    """Runs `attest check`; fails or skips the test, or returns the report."""
    done = subprocess.run([_program(), "check", *words, "--json"], cwd=folder, text=True,
                          capture_output=True, check=False)
    if done.returncode == _NO_NVCC:
        pytest.skip(done.stderr.strip())
    if done.returncode not in (0, _FAILED):
        pytest.fail(done.stderr.strip() or f"attest check: exit code {done.returncode}",
                    pytrace=False)
    report = json.loads(done.stdout)
    bad = [f for f in report["report"]["findings"]
           if f["severity"] == "error" or (warnings and f["severity"] == "warning")]
    if done.returncode != 0 or bad:
        pytest.fail("\n".join([*map(_sentence, bad), done.stderr.strip()]).strip(), pytrace=False)
    return report


def _argument(value: Any, index: str, folder: Path) -> str:
    """A word of --arg: itself, an array of NumPy as a file, or a number of NumPy."""
    if isinstance(value, str):
        return value
    kind = _TYPES.get(str(getattr(value, "dtype", "")))
    if kind is None:
        raise TypeError(f"argument {index} is {value!r}, expected a word of --arg, or an array or "
                        "a number of NumPy")
    if not getattr(value, "shape", ()):
        return f"{kind}:{value}"
    path = folder / f"argument{index}.npy"
    _save(path, value)
    return f"buf:{kind}:{value.size}:@{path}"


def _save(path: Path, array: Any) -> None:
    import numpy
    if str(array.dtype) == "bfloat16":
        array = array.view(numpy.uint16)
    numpy.save(path, numpy.ascontiguousarray(array))


def _dims(value: Union[int, str, Iterable[int]]) -> str:
    return str(value) if isinstance(value, (int, str)) else ",".join(map(str, value))


class Attest:
    """Checks a kernel: see attn._pytest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = 0

    def __call__(self, source: Union[str, Path], *options: str,
                 grid: Union[int, str, Iterable[int]], block: Union[int, str, Iterable[int]],
                 args: Sequence[Any] = (), entry: Optional[str] = None,
                 expect: Optional[Mapping[int, Tuple[Any, float]]] = None,
                 order: str = "all", warnings: str = "ignore") -> Dict[str, Any]:
        """Fails the test on a finding; options are further ones of `attest check`."""
        self._calls += 1
        words: List[str] = [str(source), "--grid", _dims(grid), "--block", _dims(block), "--async",
                            order, *options]
        words += ["--entry", entry] if entry else []
        for i, value in enumerate(args):
            words += ["--arg", _argument(value, f"{self._calls}.{i}", self._folder)]
        for i, (array, tolerance) in (expect or {}).items():
            path = self._folder / f"expected{self._calls}.{i}.npy"
            _save(path, array)
            words += ["--expect", f"{i}:{path}:{tolerance}"]
        return _run(words, None, warnings == "error")


@pytest.fixture
def attest(tmp_path: Path) -> Attest:
    """Checks a kernel on the virtual GPU and fails the test on a finding."""
    return Attest(tmp_path)


class _Kernel(pytest.Item):
    words: List[str]
    line: int

    def runtest(self) -> None:
        words = [word for word in self.words if word != "--warnings"]
        _run([self.path.name, *words], self.path.parent, len(words) < len(self.words))

    def reportinfo(self) -> Tuple[Path, int, str]:
        return self.path, self.line, self.name


class _Source(pytest.File):
    def collect(self) -> Iterable[_Kernel]:
        for number, line in enumerate(self.path.read_text(errors="replace").splitlines()):
            match = _LINE.match(line)
            if match:
                kernel = _Kernel.from_parent(self, name=f"line {number + 1}")
                kernel.words, kernel.line = shlex.split(match[1]), number
                yield kernel


def pytest_collect_file(file_path: Path, parent: Any) -> Optional[_Source]:
    if file_path.suffix != ".cu" or "attest:" not in file_path.read_text(errors="replace"):
        return None
    return _Source.from_parent(parent, path=file_path)
