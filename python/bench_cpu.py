# SPDX-License-Identifier: Apache-2.0
"""libattn beside PyTorch's CPU scaled_dot_product_attention, in one process.

    python3 python/bench_cpu.py [--lib build/libattn.so] [--threads N] [--seconds X] [--json FILE]

Same tensors, same number of threads, blocks of calls in the order A B B A, so that drift of the
machine hits both alike; p50 of each and their ratio. No number without a checked result: O of
sampled rows against the double-precision reference by the project's one rule, before and after the
timing. PyTorch is taken from this Python if it is there, else it is installed from PyPI into a
virtual environment (build/bench-venv).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "bench-venv"

# name, batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, causal
SHAPES = [
    ("B2 H8 S512 D64", 2, 8, 8, 512, 512, 64, False),
    ("B1 H16 S2048 D128 causal", 1, 16, 16, 2048, 2048, 128, True),
    ("B1 H32/8 S1024 D128 causal", 1, 32, 8, 1024, 1024, 128, True),
    ("B1 H8 S4096 D64", 1, 8, 8, 4096, 4096, 64, False),
    ("decode B4 H32/8 Sq1 Skv8192 D128", 4, 32, 8, 1, 8192, 128, False),
]
DTYPES = ["fp32", "fp16", "bf16"]
MEMORY_SHAPE = ("B1 H8 S16384 D128 causal", 1, 8, 8, 16384, 16384, 128, True)


def ensure_torch():
    """Runs this program again with a Python that has PyTorch, if this one has not."""
    try:
        import torch  # noqa: F401
        return
    except ImportError:
        pass
    python = VENV / "bin" / "python"
    if Path(sys.executable) == python:
        sys.exit("bench_cpu: PyTorch could not be imported from its own virtual environment")
    if not python.exists():
        print(f"installing PyTorch into {VENV} (once; some minutes)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    if subprocess.run([str(python), "-c", "import torch, numpy"], stderr=subprocess.DEVNULL).returncode:
        subprocess.run([str(python), "-m", "pip", "install", "-q", "torch", "numpy"], check=True)
    os.execv(str(python), [str(python), *sys.argv])


def make_case(torch, la, shape, dtype_name, seed):
    name, batch, heads_q, heads_kv, seq_q, seq_kv, dim, causal = shape
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype_name]
    torch.manual_seed(seed)
    q = torch.randn(batch, heads_q, seq_q, dim).to(dtype)
    k = torch.randn(batch, heads_kv, seq_kv, dim).to(dtype)
    v = torch.randn(batch, heads_kv, seq_kv, dim).to(dtype)
    o = torch.full_like(q, float("nan"))
    problem = la.init("attn_problem_init", libattn.Problem)
    problem.dtype = DTYPES.index(dtype_name)
    problem.batch, problem.heads_q, problem.heads_kv = batch, heads_q, heads_kv
    problem.seq_q, problem.seq_kv, problem.head_dim = seq_q, seq_kv, dim
    problem.causal = libattn.CAUSAL_TOP_LEFT if causal else libattn.CAUSAL_NONE
    tensors = la.init("attn_tensors_init", libattn.Tensors)
    tensors.q, tensors.k, tensors.v, tensors.o = (t.data_ptr() for t in (q, k, v, o))
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def peer():
        return sdpa(q, k, v, is_causal=causal, enable_gqa=heads_q != heads_kv)

    return problem, tensors, (q, k, v, o), peer


def aligned(torch):
    def allocate(size):
        memory = torch.empty(size + 64, dtype=torch.uint8)
        return memory, (memory.data_ptr() + 63) // 64 * 64
    return allocate


def check(la, problem, tensors, where):
    result = la.verify(problem, tensors, 48, seed=time.time_ns() & 0xFFFFFFFF)
    if not result.passed:
        sys.exit(f"bench_cpu: {where}: result is wrong: max error {result.max_error:g}, "
                 f"allowed {result.max_allowed:g}, NaN {result.nans}; no number is given")
    return result


def time_block(call, seconds, fewest):
    """Times of single calls; the pause lets the other side's spinning threads fall asleep."""
    time.sleep(0.02)
    call()
    samples = []
    end = time.perf_counter() + seconds
    while len(samples) < fewest or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def measure(torch, la, shape, dtype_name, seconds):
    problem, tensors, keep, peer = make_case(torch, la, shape, dtype_name, seed=1)
    plan = libattn.Plan(la, problem, aligned(torch))
    plan.forward(tensors)
    check(la, problem, tensors, f"{shape[0]} {dtype_name}")
    peer_result = peer().float()
    difference = (peer_result - keep[3].float()).abs().max().item()
    ours, theirs = [], []
    keep[3].fill_(float("nan"))  # what is checked after the timing must come from the timed calls
    for order in ("ab", "ba"):
        for side in order:
            if side == "a":
                ours += time_block(lambda: plan.forward(tensors), seconds / 4, 3)
            else:
                theirs += time_block(peer, seconds / 4, 2)
    result = check(la, problem, tensors, f"{shape[0]} {dtype_name}, after timing")
    flops = la.lib.attn_problem_flops(libattn.byref(problem))
    row = {
        "shape": shape[0], "dtype": dtype_name, "variant": plan.variant,
        "workspace_bytes": plan.size,
        "attn_ms": statistics.median(ours) * 1e3, "torch_ms": statistics.median(theirs) * 1e3,
        "attn_gflops": flops / statistics.median(ours) / 1e9,
        "ratio": statistics.median(theirs) / statistics.median(ours),
        "max_error": result.max_error, "max_allowed": result.max_allowed,
        "difference_from_torch": difference, "samples": [len(ours), len(theirs)],
    }
    plan.close()
    return row


def extra_memory(torch, la):
    """Peak growth of the process during one forward call, workspace included, in MB."""
    problem, tensors, keep, _ = make_case(torch, la, MEMORY_SHAPE, "fp32", seed=2)
    keep[3].fill_(0.0)  # the tensors' pages exist
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    plan = libattn.Plan(la, problem, aligned(torch))
    plan.forward(tensors)
    grown = resident_mb("VmHWM") - before
    check(la, problem, tensors, MEMORY_SHAPE[0])
    size = plan.size
    plan.close()
    return {"shape": MEMORY_SHAPE[0], "workspace_mb": size / 1e6, "grown_mb": grown}


def resident_mb(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"no {field} in /proc/self/status")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", default=str(ROOT / "build" / "libattn.so"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing per shape and dtype")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    ensure_torch()
    import torch
    global libattn
    sys.path.insert(0, str(ROOT / "python"))
    import libattn

    torch.set_num_threads(arguments.threads)
    la = libattn.Library(arguments.lib, arguments.threads)
    device = la.device()
    print(f"{device.name.decode()} ({device.arch.decode()}), {arguments.threads} threads, "
          f"libattn {la.lib.attn_version().decode()}, PyTorch {torch.__version__}, "
          f"{time.strftime('%Y-%m-%d')}")
    print(f"{'shape':34} {'dtype':5} {'variant':20} {'libattn':>10} {'PyTorch':>10} "
          f"{'GFLOP/s':>8} {'ratio':>7}")
    rows = []
    for dtype_name in DTYPES:
        for shape in SHAPES:
            row = measure(torch, la, shape, dtype_name, arguments.seconds)
            rows.append(row)
            print(f"{row['shape']:34} {dtype_name:5} {row['variant']:20} {row['attn_ms']:7.2f} ms "
                  f"{row['torch_ms']:7.2f} ms {row['attn_gflops']:8.1f} {row['ratio']:6.2f}x",
                  flush=True)
    memory = extra_memory(torch, la)
    print(f"extra memory at {memory['shape']}: workspace {memory['workspace_mb']:.1f} MB, "
          f"process grew by {memory['grown_mb']:.1f} MB")
    worst = min(rows, key=lambda row: row["ratio"])
    print(f"lowest ratio {worst['ratio']:.2f}x ({worst['shape']} {worst['dtype']})")
    if arguments.json:
        report = {"device": device.name.decode(), "arch": device.arch.decode(),
                  "threads": arguments.threads, "torch": torch.__version__,
                  "date": time.strftime("%Y-%m-%d"), "rows": rows, "memory": memory}
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
