# SPDX-License-Identifier: Apache-2.0
"""python -m attn.peers --judge: tests the peers and libattn with the cases of `attest judge`,
forward and backward.

Each peer is a function below, which the judge calls in a separate process. Its backward is that of
torch.autograd. If there is an NVIDIA GPU, it computes there, on tensors that are copied to the GPU
and back.

Invariant: every row of a table has the same cases, and all its figures come from the judge.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional

OPTIONS = "causal,gqa,cross,scale,mask,nan"
DTYPES = "fp32,fp16,bf16"
PEERS = ("math", "flash", "efficient", "cudnn", "flex")
COLUMNS = ("right", "wrong", "imprecise", "NaN leaks", "not repeatable", "stray write", "late",
           "crash", "refused")
SECONDS = 120  # of a call: the first compiles


def on_device(*tensors: Any) -> Any:
    import torch
    return (x.cuda() if x is not None and torch.cuda.is_available() else x for x in tensors)


def through_sdpa(backend: str, q: Any, k: Any, v: Any, causal: bool = False,
                 scale: Optional[float] = None, mask: Any = None) -> Any:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    if mask is not None and causal:  # scaled_dot_product_attention takes one of the two
        mask, causal = mask & torch.ones(mask.shape[-2:], dtype=torch.bool).tril(), False
    q, k, v, mask = on_device(q, k, v, mask)
    try:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            o = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale,
                                               enable_gqa=q.shape[1] != k.shape[1])
    except RuntimeError as error:
        if "No available kernel" in str(error) or "No viable backend" in str(error):
            raise NotImplementedError(str(error)) from None
        raise
    return o.cpu()


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


def flex(q: Any, k: Any, v: Any, causal: bool = False, scale: Optional[float] = None,
         mask: Any = None) -> Any:
    """Compiled on a GPU, as it is meant to be used; on a CPU not compiled."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    q, k, v, seen = on_device(q, k, v, mask)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if causal:
            s = torch.where(j <= i, s, -float("inf"))
        if seen is not None:
            s = torch.where(seen[b, h, i, j], s, -float("inf"))
        return s

    call = torch.compile(flex_attention, dynamic=True) if q.is_cuda else flex_attention
    return call(q, k, v, score_mod=score, scale=scale, enable_gqa=q.shape[1] != k.shape[1]).cpu()


# ---- the table -----------------------------------------------------------------------------------


def find_attest(library: Path) -> Optional[str]:
    """$ATTEST, the package's own, the one beside the library, or one in $PATH."""
    for path in (os.environ.get("ATTEST"), Path(__file__).parents[1] / "bin" / "attest",
                 library.parent / "attest"):
        if path and Path(path).is_file():
            return str(path)
    return shutil.which("attest")


def judge(attest: str, candidate: str, direction: str, cases: int, seed: int) -> Dict[str, Any]:
    words = [attest, "judge", candidate, "--direction", direction, "--any-library", "--options",
             OPTIONS, "--dtype", DTYPES, "--python", sys.executable, "--limit", str(SECONDS),
             "--cases", str(cases), "--seed", str(seed), "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not done.stdout:
        return {"reason": done.stderr.strip(), "counts": {}, "cases": 0, "failures": []}
    report: Dict[str, Any] = json.loads(done.stdout)
    return report


def print_table(rows: Dict[str, Dict[str, Any]]) -> None:
    print("| | cases | " + " | ".join(COLUMNS) + " | worst error / allowed |")
    print("|---" * (len(COLUMNS) + 3) + "|")
    for name, report in rows.items():
        counts = [str(report["counts"].get(column, "")) for column in COLUMNS]
        print(f"| {name} | {report['cases']} | " + " | ".join(counts) +
              f" | {report.get('worst_ratio') or 0:.2f} |")
    for name, report in rows.items():
        shown: List[str] = []
        if not report["cases"]:
            print(f"\n{name}: {report['reason']}")
        for failure in report["failures"]:
            if failure["judged"] not in shown:
                shown.append(failure["judged"])
                print(f"\n{name}, {failure['judged']}: {failure['reason']}\n"
                      f"    {failure['problem']}\n    {failure['repeat']}")


def run_judge(library: Path, cases: int, seed: int, peers: Optional[List[str]],
              as_json: bool) -> int:
    """The exit code. 1: libattn is not right in every case. 3: a row has no cases."""
    attest = find_attest(library)
    if attest is None:
        print("peers: NOT RUN: no program attest: expected $ATTEST or one in $PATH",
              file=sys.stderr)
        return 3
    here = Path(__file__).resolve()
    os.environ["ATTN_LIBRARY"] = str(library)
    jobs = {("forward", "C"): (str(library), "forward"),
            ("backward", "C"): (str(library), "backward")}
    for name in ["libattn", *(peers or PEERS)]:
        jobs["forward", name] = (f"{here}:{name}", "forward")
        jobs["backward", name] = (f"{here}:{name}", "autograd")
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        running = {key: pool.submit(judge, attest, *job, cases, seed) for key, job in jobs.items()}
        tables: Dict[str, Dict[str, Dict[str, Any]]] = {"forward": {}, "backward": {}}
        for (direction, name), row in running.items():
            tables[direction][name] = row.result()
    if as_json:
        print(json.dumps({"seed": seed, "options": OPTIONS, "dtypes": DTYPES, **tables}))
    else:
        print(f"options {OPTIONS}; {DTYPES}; seed {seed}; ATTN_LIBRARY={library}; C: libattn's C "
              "interface, on the CPU")
        for direction, rows in tables.items():
            print(f"\n{direction}\n")
            print_table(rows)
    if not all(row["cases"] for rows in tables.values() for row in rows.values()):
        return 3
    ours = (rows[name] for rows in tables.values() for name in ("C", "libattn"))
    return 0 if all(row["counts"]["right"] == row["cases"] for row in ours) else 1
