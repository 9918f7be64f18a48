# SPDX-License-Identifier: Apache-2.0
"""python -m attn.peers --judge: tests the peers and libattn with the cases of `attest judge`,
forward and backward.

Each peer is a function below, which the judge calls in a separate process. Its backward is that of
torch.autograd. If there is an NVIDIA GPU, it computes there, on tensors that are copied to the GPU
and back.

All rows go through the same sequence of cases, each as far as it takes for N cases that the peer
does not refuse. A row is divided into parts, which run concurrently.

Invariant: all figures come from the judge, and a row says how many cases it ran.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

OPTIONS = "causal,gqa,cross,scale,mask,nan"
DTYPES = "fp32,fp16,bf16"
PEERS = ("math", "flash", "efficient", "cudnn", "flex")
OURS = ("C", "libattn")
COMPILED = "flex_compiled"  # on a GPU; compiles a kernel for most cases, so it gets spare time only
ROWS = (*OURS, *PEERS, COMPILED)
COLUMNS = ("right", "wrong", "imprecise", "NaN leaks", "not repeatable", "stray write", "late",
           "crash", "refused")
ROOT = Path(__file__).resolve().parents[3]  # of the sources; commands that repeat a case run there
SCHEMA = "attn-judged/1"
SECONDS = 60  # of a call: the first compiles
MEMORY = 1 << 16  # MiB that a peer may allocate: CUDA reserves more than it uses
PART = {"forward": 1000, "backward": 400}  # cases of a part, unless the peer refuses many of them
MOST = 8  # times N cases, however many are refused


def on_device(*tensors: Any) -> Any:
    import torch
    return (x.cuda() if x is not None and torch.cuda.is_available() else x for x in tensors)


@contextlib.contextmanager
def lost_with_its_device() -> Iterator[None]:
    """After an error of a kernel every later call would fail. The judge starts a new process."""
    try:
        yield
    except RuntimeError as error:
        if "CUDA error" not in str(error):
            raise
        print(str(error).splitlines()[0], file=sys.stderr, flush=True)
        os._exit(1)


def through_sdpa(backend: str, q: Any, k: Any, v: Any, causal: bool = False,
                 scale: Optional[float] = None, mask: Any = None) -> Any:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    if mask is not None and causal:  # scaled_dot_product_attention takes one of the two
        mask, causal = mask & torch.ones(mask.shape[-2:], dtype=torch.bool).tril(), False
    q, k, v, mask = on_device(q, k, v, mask)
    try:
        with lost_with_its_device(), sdpa_kernel(getattr(SDPBackend, backend)):
            o = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale,
                                               enable_gqa=q.shape[1] != k.shape[1]).cpu()
    except RuntimeError as error:
        if "No available kernel" in str(error) or "No viable backend" in str(error):
            raise NotImplementedError(str(error)) from None
        raise
    return o


def libattn(q: Any, k: Any, v: Any, causal: bool = False, scale: Optional[float] = None,
            mask: Any = None) -> Any:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import attn
    q, k, v, mask = on_device(q, k, v, mask)
    return attn.attention(q, k, v, causal="top-left" if causal else None, scale=scale,
                          mask=mask).cpu()


def math(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return through_sdpa("MATH", q, k, v, **options)


def flash(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return through_sdpa("FLASH_ATTENTION", q, k, v, **options)


def efficient(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return through_sdpa("EFFICIENT_ATTENTION", q, k, v, **options)


def cudnn(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return through_sdpa("CUDNN_ATTENTION", q, k, v, **options)


def through_flex(call: Any, q: Any, k: Any, v: Any, causal: bool, scale: Optional[float],
                 mask: Any) -> Any:
    import torch
    q, k, v, seen = on_device(q, k, v, mask)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if causal:
            s = torch.where(j <= i, s, -float("inf"))
        if seen is not None:
            s = torch.where(seen[b, h, i, j], s, -float("inf"))
        return s

    with lost_with_its_device():
        return call(q, k, v, score_mod=score, scale=scale,
                    enable_gqa=q.shape[1] != k.shape[1]).cpu()


def flex(q: Any, k: Any, v: Any, causal: bool = False, scale: Optional[float] = None,
         mask: Any = None) -> Any:
    """Not compiled: the function as PyTorch defines it."""
    from torch.nn.attention import flex_attention
    flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # 2.9 and later: no tracing
    return through_flex(flex_attention.flex_attention, q, k, v, causal, scale, mask)


def flex_compiled(q: Any, k: Any, v: Any, causal: bool = False, scale: Optional[float] = None,
                  mask: Any = None) -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    # With a limit the function would silently not be compiled after a few shapes.
    torch._dynamo.config.recompile_limit = 1 << 20
    torch._dynamo.config.accumulated_recompile_limit = 1 << 20
    call = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    return through_flex(call, q, k, v, causal, scale, mask)


# ---- a row ---------------------------------------------------------------------------------------


def find_attest(library: Path) -> Optional[str]:
    """$ATTEST, the package's own, the one beside the library, or one in $PATH."""
    for path in (os.environ.get("ATTEST"), Path(__file__).parents[1] / "bin" / "attest",
                 library.parent / "attest"):
        if path and Path(path).is_file():
            return str(path)
    return shutil.which("attest")


class Row:
    """The cases of a candidate in one direction, and what became of those that were run."""

    def __init__(self, table: str, name: str, candidate: str, cases: int) -> None:
        self.table, self.name, self.candidate, self.wanted = table, name, candidate, cases
        self.direction = "autograd" if table == "backward" and name != "C" else table
        self.first = 0  # of the next part
        self.pending = self.running = 0  # cases and number of the parts that are running
        self.report: Dict[str, Any] = {"cases": 0, "counts": dict.fromkeys(COLUMNS, 0),
                                       "worst_ratio": 0.0, "failures": [], "reason": "",
                                       "seconds": 0.0}

    def answered(self) -> int:
        count: int = self.report["cases"] - self.report["counts"]["refused"]
        return count

    def expected(self) -> float:
        """Answers, with those of the running parts if the share of refusals stays as it is."""
        share = (self.answered() + 1) / (self.report["cases"] + 1)
        return self.answered() + self.pending * share

    def next_part(self) -> int:
        """Cases of the next part; 0: no part is needed, the last one had no case, or everything is
        refused."""
        left = MOST * self.wanted - self.first
        missing = self.wanted - self.expected()
        if self.report["reason"] or left <= 0 or missing < 1:
            return 0
        if self.answered() == 0 and self.report["cases"] >= min(self.wanted, PART[self.table]):
            return 0
        if self.running and self.name == COMPILED:
            return 0
        share = (self.answered() + 1) / (self.report["cases"] + 1)
        return max(1, min(left, int(min(missing, PART[self.table]) / max(share, 1 / MOST))))

    def add(self, part: Dict[str, Any], begun: int, seconds: float) -> None:
        report = self.report
        self.pending -= begun
        self.running -= 1
        report["seconds"] += seconds
        report["cases"] += part["cases"]
        report["worst_ratio"] = max(report["worst_ratio"], part.get("worst_ratio") or 0.0)
        for column, count in part["counts"].items():
            report["counts"][column] = report["counts"].get(column, 0) + count
        kinds = [failure["judged"] for failure in report["failures"]]
        for failure in part["failures"]:
            if failure["judged"] not in kinds:
                kinds.append(failure["judged"])
                repeat = failure["repeat"].replace(f"{ROOT}/", "")
                repeat = repeat.replace(sys.executable, "python3")
                report["failures"].append({**failure, "repeat": repeat})
        if not part["cases"]:
            report["reason"] = part["reason"] or "no case was run"


def judge(attest: str, row: Row, first: int, cases: int, seed: int,
          seconds: Optional[float]) -> Dict[str, Any]:
    words = [attest, "judge", row.candidate, "--direction", row.direction, "--any-library",
             "--options", OPTIONS, "--dtype", DTYPES, "--python", sys.executable, "--limit",
             str(SECONDS), "--memory", str(MEMORY), "--first", str(first), "--cases", str(cases),
             "--seed", str(seed), "--json"]
    if seconds is not None:
        words += ["--seconds", str(max(1, int(seconds)))]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not done.stdout:
        return {"reason": done.stderr.strip(), "counts": {}, "cases": 0, "failures": []}
    try:
        report: Dict[str, Any] = json.loads(done.stdout)
    except ValueError:  # it was killed while it wrote
        return {"reason": f"attest judge ended with {done.returncode}", "counts": {}, "cases": 0,
                "failures": []}
    return report


def run_rows(rows: List[Row], attest: str, seed: int, limit: Optional[float]) -> None:
    """Runs parts of rows until each has its cases, or the time is over.

    Each worker and what it starts may use two CPUs, since judge and candidate work by turns."""
    lock = threading.Lock()
    end = time.monotonic() + limit if limit else None
    cpus = sorted(os.sched_getaffinity(0))

    def choose() -> Optional[Row]:
        """The row that has the least of its cases; a compiled one only where it is not running."""
        open_rows = [row for row in rows if row.next_part()]
        return min(open_rows, key=lambda row: row.expected() / row.wanted, default=None)

    def work(number: int) -> None:
        os.sched_setaffinity(0, {cpus[number], cpus[(number + 1) % len(cpus)]})
        while end is None or time.monotonic() < end:
            with lock:
                row = choose()
                if row is not None:
                    first, cases = row.first, row.next_part()
                    row.first += cases
                    row.pending += cases
                    row.running += 1
                busy = any(other.running for other in rows)
            if row is None:
                if not busy:
                    return
                time.sleep(0.1)  # a running part may end with fewer cases
                continue
            begin = time.monotonic()
            part = judge(attest, row, first, cases, seed, end - begin if end else None)
            with lock:
                row.add(part, cases, time.monotonic() - begin)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(cpus))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


# ---- the table -----------------------------------------------------------------------------------


def print_table(rows: Dict[str, Dict[str, Any]]) -> None:
    print("| | cases | " + " | ".join(COLUMNS) + " | worst error / allowed |")
    print("|---" * (len(COLUMNS) + 3) + "|")
    for name, report in rows.items():
        counts = [str(report["counts"].get(column, "")) for column in COLUMNS]
        print(f"| {name} | {report['cases']} | " + " | ".join(counts) +
              f" | {report['worst_ratio']:.2f} |")
    for name, report in rows.items():
        if report["reason"]:
            print(f"\n{name}: {report['reason']}")
        for failure in report["failures"]:
            print(f"\n{name}, {failure['judged']}: {failure['reason']}\n"
                  f"    {failure['problem']}\n    {failure['repeat']}")


def describe() -> Dict[str, str]:
    import torch
    gpu = torch.cuda.is_available()
    return {"device": torch.cuda.get_device_name() if gpu else "CPU",
            "torch": torch.__version__}


def run_judge(library: Path, cases: int, seed: int, names: Optional[List[str]],
              limit: Optional[float], file: Optional[str]) -> int:
    """The exit code. 1: libattn is not right in every case. 3: a row has too few cases."""
    attest = find_attest(library)
    if attest is None:
        print("peers: NOT RUN: no program attest: expected $ATTEST or one in $PATH",
              file=sys.stderr)
        return 3
    here = Path(__file__).resolve()
    os.environ["ATTN_LIBRARY"] = str(library)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    about = describe()
    names = names or [name for name in ROWS if name != COMPILED or about["device"] != "CPU"]
    rows = [Row(table, name, str(library) if name == "C" else f"{here}:{name}", cases)
            for table in ("forward", "backward") for name in names]
    begin = time.monotonic()
    run_rows(rows, attest, seed, limit)
    tables: Dict[str, Dict[str, Any]] = {"forward": {}, "backward": {}}
    for row in rows:
        tables[row.table][row.name] = row.report
    report = {"schema": SCHEMA, "seed": seed, "wanted": cases, "options": OPTIONS,
              "dtypes": DTYPES, "seconds": round(time.monotonic() - begin, 1), **about, **tables}
    if file:
        text = json.dumps(report, indent=1)
        if file == "-":
            print(text)
        else:
            Path(file).write_text(text + "\n")
    if file != "-":
        print(f"{about['device']}, PyTorch {about['torch']}; options {OPTIONS}; {DTYPES}; seed "
              f"{seed}; {report['seconds']:.0f} s; C: libattn's C interface, on the CPU")
        for table, reports in tables.items():
            print(f"\n{table}\n")
            print_table(reports)
    ours = [row for row in rows if row.name in OURS]
    if any(row.report["counts"]["right"] != row.report["cases"] for row in ours):
        return 1
    few = [row for row in rows if row.name != COMPILED and row.next_part()]
    return 3 if few or not all(row.report["cases"] for row in rows) else 0
