# SPDX-License-Identifier: Apache-2.0
"""libattn beside PyTorch's attention on one machine, in one process.

On an NVIDIA GPU the peers are PyTorch's kernels, and FlashAttention-3 as a recorded figure, scaled
by cuDNN now and then; without one it is PyTorch's CPU attention. Which kernels ran comes from the
profiler after all timing, so that it disturbs none.

Exit code: 0 done, 1 a check failed, 2 bad usage, 3 not run (no PyTorch, no such device, nothing
measured).

Invariant: each requested shape has a row in the report, even if it failed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

from .. import _library
from . import grids, judged
from .grids import Shape
from .machine import DTYPES, DeviceLost, Machine, NotRun, first_line
from .measure import Settings, measure, new_row, prove, sets_for
from .progress import Progress, clock
from .report import CPU_PEERS, GPU_PEERS, PEERS, SCHEMA, summarise
from .tables import print_report, row_line, show

BESIDE_SOURCES = Path(__file__).resolve().parents[3] / "build" / "libattn.so"


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"peers: {message}", file=sys.stderr)
        raise SystemExit(2)


def parse(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m attn.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "cpu"],
                        help="auto: an NVIDIA GPU where PyTorch sees one, else the CPU")
    parser.add_argument("--grid", nargs="+", choices=list(grids.GRIDS),
                        help="of shapes [canonical; on a CPU cpu]")
    parser.add_argument("--only", metavar="REGEX", help="shapes whose name has it")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES),
                        help="[fp16; on a CPU all three]")
    parser.add_argument("--variant", metavar="NAME|all[/REGEX]", help="instead of the plan's "
                        "choice; all: every other one that applies beside it, or those whose name "
                        "has REGEX")
    parser.add_argument("--peers", metavar="LIST", help=f"with commas, of {','.join(GPU_PEERS)}; "
                        f"on a CPU {','.join(CPU_PEERS)} [all; flex on canonical, options and masks]")
    parser.add_argument("--fa3", metavar="LIB", help="a build of FlashAttention-3 "
                        "(torch.ops.flash_attn_3), a live peer then; else as recorded, scaled")
    parser.add_argument("--seconds", type=float, help="of timing per shape [4; --quick 1]")
    parser.add_argument("--quick", action="store_true", help="9 rounds instead of 12, 1 second")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of the whole run: what "
                        "does not fit in is not measured, and the run still comes to its end")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of the CPU [all that this process may use]")
    parser.add_argument("--seed", type=int, help="of the inputs [from the clock]")
    parser.add_argument("--lib", metavar="FILE", help="libattn.so [$ATTN_LIBRARY, the package's "
                        "own, or build/libattn.so beside the sources]")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE",
                        help="the report with all samples; without FILE instead of the tables")
    parser.add_argument("--show", metavar="FILE", help="print a written file and end")
    parser.add_argument("--picture", metavar="SVG", help="of the ratios of what was measured or is "
                        "shown")
    parser.add_argument("--host", action="store_true", help="what one call costs the caller, and "
                        "nothing else")
    parser.add_argument("--ranks", nargs="*", type=int, metavar="N", help="context parallelism of N "
                        "[2 4 8] ranks on one device beside one call, and nothing else")
    parser.add_argument("--check", action="store_true", help="of --host, --models and --ranks: exit "
                        "code 1 if a target is missed")
    parser.add_argument("--models", action="store_true", help="whole models with random weights, "
                        "and nothing else")
    parser.add_argument("--tiny", action="store_true", help="of --models and --ranks: small sizes, "
                        "as on a CPU")
    parser.add_argument("--compile", action="store_true", help="of --models: works under "
                        "torch.compile instead")
    parser.add_argument("--judge", nargs="?", const=200, type=int, metavar="N", help="the peers and "
                        "libattn under N [200] cases of attest judge, forward and backward, "
                        "and nothing else; --limit stops it; --peers: some of " +
                        ",".join(judged.ROWS))
    options = parser.parse_args(arguments)
    if options.judge is not None and not 0 < options.judge <= 10 ** 6:
        parser.error(f"--judge: {options.judge} is not between 1 and 1000000")
    if any(not 0 < n <= 8 for n in options.ranks or []):
        parser.error(f"--ranks: {options.ranks} are not between 1 and 8")
    if options.peers is not None:
        options.peers = [name for name in options.peers.split(",") if name]
        known = PEERS if options.judge is None else judged.ROWS
        for name in options.peers:
            if name not in known:
                parser.error(f"--peers: {name!r} is none of {', '.join(known)}")
    for name, most in (("seconds", 600), ("limit", 1e6), ("threads", 4096)):
        value = getattr(options, name)
        if value is not None and not 0 < value <= most:
            parser.error(f"--{name}: {value} is not between 0 and {most:g}")
    if "fa3" in (options.peers or []) and not options.fa3:
        parser.error("--peers: fa3 needs --fa3 LIB")
    try:
        re.compile(options.only or "")
    except re.error as error:
        parser.error(f"--only: {options.only!r} is no regular expression: {error}")
    if options.seed is None:
        options.seed = time.time_ns() & 0x7FFFFFFF
    return options


def choose_library(given: Optional[str]) -> Path:
    """The file that attn loads from now on."""
    if given:
        os.environ["ATTN_LIBRARY"] = given
    elif not _library.library_path().is_file() and BESIDE_SOURCES.is_file():
        os.environ["ATTN_LIBRARY"] = str(BESIDE_SOURCES)
    return _library.library_path()


def open_machine(options: argparse.Namespace) -> Machine:
    """The Machine for parsed options; NotRun if there is none here."""
    try:
        import torch
    except ImportError as error:
        raise NotRun(f"PyTorch is not there ({error})") from None
    torch.set_grad_enabled(False)
    has_gpu = options.device != "cpu" and torch.cuda.is_available()
    if options.device == "cuda" and not has_gpu:
        raise NotRun("PyTorch sees no CUDA device")
    if has_gpu:
        from .gpu import open_gpu
        return open_gpu(torch, options.variant, options.seed, options.fa3)
    from .cpu import open_cpu
    return open_cpu(torch, options.variant, options.seed, options.threads)


def complete(options: argparse.Namespace, machine: Any) -> None:
    """What was not said, by the machine."""
    on_gpu = machine.gpu is not None
    options.grid = options.grid or ["canonical" if on_gpu else "cpu"]
    options.dtype = options.dtype or (["fp16"] if on_gpu else list(DTYPES))
    usual = GPU_PEERS if on_gpu else CPU_PEERS
    for name in options.peers or []:
        if name not in usual:
            raise _library.InvalidArgument(f"--peers: {name!r} is not on this device, expected "
                                           f"some of {', '.join(usual)}")


def peers_of(options: argparse.Namespace, machine: Any, grid: str) -> List[str]:
    if options.peers is not None:
        return options.peers
    usual = GPU_PEERS if machine.gpu is not None else CPU_PEERS
    left_out = {"flex"} if grid not in ("canonical", "options", "masks") else set()
    return [name for name in usual if name not in left_out and (name != "fa3" or options.fa3)]


def new_report(machine: Any, options: argparse.Namespace) -> Dict[str, Any]:
    complete(options, machine)
    return {"schema": SCHEMA, "complete": False,
            "environment": {**machine.environment(), "seed": options.seed,
                            "before": machine.state()},
            "arguments": {key: value for key, value in vars(options).items()
                          if key not in ("lib", "fa3", "json", "show", "picture", "host", "check",
                                         "models", "tiny", "compile", "judge", "ranks")},
            "rows": []}


def add_row(machine: Any, options: argparse.Namespace, settings: Settings,
            what: Tuple[str, Shape, str], rows: List[Dict[str, Any]]) -> None:
    """One more row, whatever happens."""
    grid, shape, dtype = what
    row, case, started = new_row(shape, grid, dtype), None, time.perf_counter()
    try:
        case = machine.case(shape, dtype, peers_of(options, machine, grid),
                            sets_for(shape, machine.most_sets))
        measure(machine, case, row, settings)
    except DeviceLost as error:
        row["invalid"].append(str(error))
        raise
    except Exception as error:  # a refusal of libattn, memory, a failed launch: the row says it
        if case is None:
            row["reason"] = first_line(error)
        else:
            row["invalid"].append(first_line(error))
        machine.recover(error)
    finally:
        if case is not None:
            case.close()
        gc.collect()
        row["seconds"] = round(time.perf_counter() - started, 2)
        row["summary"] = summarise(row, machine.recorded, machine.gpu)
        rows.append(row)


def save(report: Dict[str, Any], path: Optional[str]) -> None:
    if path and path != "-":
        partial = Path(path + ".partial")
        partial.write_text(json.dumps(report) + "\n")
        partial.replace(path)


def measure_all(machine: Any, options: argparse.Namespace, report: Dict[str, Any]) -> None:
    settings, rows = Settings(options.seconds, options.quick), report["rows"]
    wanted = [(grid, shape, dtype) for dtype in options.dtype
              for grid, shape in grids.shapes_of(options.grid)
              if re.search(options.only or "", str(shape))]
    progress, proof_seconds = Progress(len(wanted)), 0.0
    try:
        for grid, shape, dtype in wanted:
            words = f"{shape} {dtype}"
            progress.begin(words)
            longest = max([row["seconds"] for row in rows] or [0.0])
            # A proof builds the case again; some seconds are for the profiler's start.
            if options.limit and \
                    progress.elapsed() + longest + proof_seconds + 10 > options.limit:
                rows.append({**new_row(shape, grid, dtype), "summary": None, "seconds": 0.0,
                             "reason": f"the limit of {clock(options.limit)} was reached"})
            else:
                add_row(machine, options, settings, (grid, shape, dtype), rows)
                proof_seconds += 0.5 + 0.2 * max(0.0, rows[-1]["seconds"] - settings.seconds)
            progress.step(words, f"{row_line(rows[-1])}, {rows[-1]['seconds']:.1f} s")
            save(report, options.json)
    finally:
        progress.close()


def prove_all(machine: Any, options: argparse.Namespace, rows: List[Dict[str, Any]]) -> None:
    for row in rows:
        if row["summary"]:
            prove(machine, row, peers_of(options, machine, row["grid"]))
            row["summary"] = summarise(row, machine.recorded, machine.gpu)


def run(machine: Any, options: argparse.Namespace, report: Dict[str, Any]) -> int:
    """Fills the report; the exit code."""
    rows = report["rows"]
    machine.recorded = grids.load_recorded()
    try:
        measure_all(machine, options, report)
        prove_all(machine, options, rows)
        if machine.gpu is None and "cpu" in options.grid and not options.only:
            report["memory"] = machine.extra_memory()
        report["complete"] = True
    except DeviceLost as error:
        print(f"peers: {error}; the rest is not measured", file=sys.stderr)
        for row in rows:
            if row["summary"] and not row["sides"]["ours"]["proven"]:
                row["invalid"].append("the GPU was lost before its kernels were named")
                row["summary"] = None
    report["environment"]["after"] = machine.state()
    save(report, options.json)
    if options.json == "-":
        print(json.dumps(report))
    else:
        print_report(report)
    if not report["complete"] or any(row["invalid"] or wrong_variants(row) for row in rows):
        return 1
    return 0 if any(row["summary"] for row in rows) else 3


def wrong_variants(row: Dict[str, Any]) -> List[str]:
    return [name for name, side in row["sides"].items()
            if side["role"] == "variant" and side["error"]]


@contextlib.contextmanager
def collector_off() -> Any:
    """GC pauses would end up in samples; each case ends with a collection."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def paint(report: Dict[str, Any], path: str) -> None:
    from .picture import picture
    Path(path).write_text(picture(report))


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = parse(arguments)
    if options.show:
        code = show(options.show)
        if options.picture and code != 2:
            paint(json.loads(Path(options.show).read_text()), options.picture)
        return code
    library = choose_library(options.lib)
    if not library.is_file():
        print(f"peers: --lib: there is no file {library}", file=sys.stderr)
        return 2
    if options.judge:
        return judged.run_judge(library, options.judge, options.seed, options.peers, options.limit,
                                options.json)
    try:
        machine = open_machine(options)
        with collector_off():
            if options.host:
                from .host import run_host
                return run_host(machine, options)
            if options.models:
                from .models import run_models
                return run_models(machine, options)
            if options.ranks is not None:
                from .ranks import run_ranks
                return run_ranks(machine, options)
            report = new_report(machine, options)
            code = run(machine, options, report)
    except NotRun as error:
        print(f"peers: NOT RUN: {error}", file=sys.stderr)
        return 3
    except (_library.InvalidArgument, ImportError, OSError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    except _library.AttnError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    if options.picture:
        paint(report, options.picture)
    return code
