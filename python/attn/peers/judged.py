# SPDX-License-Identifier: Apache-2.0
"""python -m attn.peers --judge: tests the peers and libattn with the cases of `attest judge`.

Each peer is a function below, which the judge calls in a process of its own. On a machine with an
NVIDIA GPU they compute there, on tensors that are copied to it and back.

Invariant: every row has the same cases, and all its figures come from the judge.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

OPTIONS = "causal,gqa,cross,scale,mask,nan"
DTYPES = "fp32,fp16,bf16"
PEERS = ("math", "flash", "efficient", "cudnn", "flex")
COLUMNS = ("right", "wrong", "NaN leaks", "not repeatable", "stray write", "crash", "refused")
SECONDS = 120  # of a call: the first compiles


def through_sdpa(backend: str, q: Any, k: Any, v: Any, causal: bool = False,
                 scale: Optional[float] = None, mask: Any = None) -> Any:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = (x.to(device) for x in (q, k, v))
    if mask is not None:
        if causal:  # it takes one of the two
            mask = mask & torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
        mask, causal = mask.to(device), False
    try:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            o = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale,
                                               enable_gqa=q.shape[1] != k.shape[1])
    except RuntimeError as error:
        if "No available kernel" in str(error) or "No viable backend" in str(error):
            raise NotImplementedError(str(error)) from None
        raise
    return o.cpu()


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
    """Compiled on a GPU, as it is meant to be used; on a CPU as it is."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    gpu = torch.cuda.is_available()
    q, k, v = (x.to("cuda") if gpu else x for x in (q, k, v))
    seen = mask.to(q.device) if mask is not None else None

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if causal:
            s = torch.where(j <= i, s, -float("inf"))
        if seen is not None:
            s = torch.where(seen[b, h, i, j], s, -float("inf"))
        return s

    call = torch.compile(flex_attention, dynamic=True) if gpu else flex_attention
    return call(q, k, v, score_mod=score, scale=scale, enable_gqa=q.shape[1] != k.shape[1]).cpu()


# ---- the table -----------------------------------------------------------------------------------


def find_attest(library: Path) -> Optional[str]:
    """$ATTEST, the package's own, the one beside the library, or one in $PATH."""
    for path in (os.environ.get("ATTEST"), Path(__file__).parents[1] / "bin" / "attest",
                 library.parent / "attest"):
        if path and Path(path).is_file():
            return str(path)
    return shutil.which("attest")


def judge(attest: str, candidate: str, cases: int, seed: int) -> Dict[str, Any]:
    words = [attest, "judge", candidate, "--any-library", "--options", OPTIONS, "--dtype", DTYPES,
             "--python", sys.executable, "--limit", str(SECONDS), "--cases", str(cases),
             "--seed", str(seed), "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not done.stdout:
        return {"reason": done.stderr.strip(), "counts": {}, "cases": 0, "failures": []}
    report: Dict[str, Any] = json.loads(done.stdout)
    return report


def print_table(rows: Dict[str, Dict[str, Any]], seed: int) -> None:
    print(f"options {OPTIONS}; {DTYPES}; seed {seed}\n")
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
    attest = find_attest(library)
    if attest is None:
        print("peers: NOT RUN: no program attest: expected $ATTEST or one in $PATH",
              file=sys.stderr)
        return 3
    rows = {"libattn": judge(attest, str(library), cases, seed)}
    for name in peers or PEERS:
        rows[name] = judge(attest, f"{Path(__file__).resolve()}:{name}", cases, seed)
    if as_json:
        print(json.dumps({"seed": seed, "options": OPTIONS, "dtypes": DTYPES, "rows": rows}))
    else:
        print_table(rows, seed)
    return 0 if all(row["cases"] for row in rows.values()) else 3
