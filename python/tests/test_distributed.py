# SPDX-License-Identifier: Apache-2.0
"""attn.distributed: worlds of 1 to 8 gloo ranks against one process; planted faults, and ranks that
die. The cases are those of ranks.py, which runs all worlds in one program."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import attn
import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import attn.distributed as ad  # noqa: E402
from attn.distributed._chunks import chunks, geometry, rows_of  # noqa: E402
from ranks import ALL, FAULTS, LOST, WORLDS  # noqa: E402


@pytest.fixture(scope="module")
def said():
    program = subprocess.run([sys.executable, Path(__file__).with_name("ranks.py")], timeout=1200,
                             env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE)
    assert program.returncode == 0
    return json.loads(program.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("n", WORLDS)
def test_ranks(said, n, case):
    found = said[str(n)][case]
    assert len(found) == n
    assert not any(found), "\n".join(found)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(said, fault):
    found = "\n".join(said[fault][FAULTS[fault]])
    assert "AssertionError" in found and "differ" in found, found or "all ranks passed"


@pytest.mark.parametrize("case", LOST)
def test_rank_is_lost(said, case):
    found = said[case][case]
    assert found == ["", "rank 1 did not end it", ""]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch sees no NVIDIA GPU"))])
def test_ranks_of_one_gpu(device):
    program = [sys.executable, Path(__file__).with_name("ranks_gpu.py"), device]
    assert subprocess.run(program[:2 + (device == "cpu")], timeout=600).returncode == 0


# ---- without ranks -----------------------------------------------------------------------------


def visible(i, j, total_q, total_kv, causal, window, cu):
    if cu is not None and sum(i >= x for x in cu) != sum(j >= x for x in cu):
        return False
    at = i + (0 if cu is not None or causal == "top-left" else total_kv - total_q)
    return not ((causal and j > at) or (window[0] >= 0 and j < at - window[0])
                or (window[1] >= 0 and j > at + window[1]))


@pytest.mark.parametrize("cu", [None, (0, 3, 3, 11, 19)])
@pytest.mark.parametrize("causal", [None, "top-left", "bottom-right"])
@pytest.mark.parametrize("window", [(-1, -1), (4, -1), (-1, 3), (2, 5), (0, 0)])
@pytest.mark.parametrize("method, join", [("ring", False), ("zigzag", False), ("zigzag", True),
                                          ("allgather", True)])
def test_every_visible_pair_is_in_one_block(method, join, window, causal, cu):
    n, order = 3, ad._chunks.ORDER[method]
    q_rows, kv_rows = ((rows_of(19, n, order), rows_of(19 if cu else 25, n, order)))
    if method == "ring" and not cu:
        q_rows = (0, 12, 7)
    seen = {}
    for rank in range(n):
        where = geometry(rank, q_rows, kv_rows, order, method == "allgather", join, causal,
                         window, cu)
        at_q = [p for one in where.q_chunks[rank] for p in range(one.start, one.stop)]
        for chunk in range(len(where.kv_chunks)):
            at_k = [p for one in where.kv_chunks[chunk] for p in range(one.start, one.stop)]
            for runs in where.runs(chunk):
                rows = [row for run in runs for row in range(run.block.q0, run.block.q1)]
                assert len(rows) == len(set(rows))
                assert method == "allgather" or (rank - chunk) % n < where.steps
                for run in runs:
                    q0, k0 = run.block.q0, run.block.k0
                    for rows, keys in zip(run.q_lengths or [run.block.q1 - q0],
                                          run.k_lengths or [run.block.k1 - k0]):
                        for i in range(rows):
                            for j in range(keys):
                                left, right = run.block.window
                                diagonal = i + keys - rows
                                if (left < 0 or j >= diagonal - left) and \
                                        (right < 0 or j <= diagonal + right):
                                    pair = at_q[q0 + i], at_k[k0 + j]
                                    seen[pair] = seen.get(pair, 0) + 1
                        q0, k0 = q0 + rows, k0 + keys
    expected = {(i, j) for i in range(sum(q_rows)) for j in range(sum(kv_rows))
                if visible(i, j, sum(q_rows), sum(kv_rows), causal, window, cu)}
    assert set(seen) == expected and set(seen.values()) <= {1}


def test_zigzag_is_balanced_and_joined():
    """All ranks compute as many scores, one call and one merge for each chunk but the own one."""
    n, rows = 8, rows_of(1024, 8, "zigzag")
    pairs = []
    for rank in range(n):
        where = geometry(rank, rows, rows, "zigzag", False, True, "top-left", (-1, -1), None)
        calls = [[len(runs) for runs in where.runs(chunk)] for chunk in range(n)]
        assert calls == [[2] if chunk == rank else [1] for chunk in range(n)]
        pairs.append([sum((run.block.q1 - run.block.q0) * (run.block.k1 - run.block.k0)
                          for run in where.runs((rank - step) % n)[0]) for step in range(n)])
    assert all(one == pairs[0] for one in pairs)


def test_zigzag_lengths():
    with pytest.raises(attn.InvalidArgument, match=r"\[3, 5\] rows .* expected \[4, 4\]"):
        chunks((3, 5), "zigzag")


def test_plan():
    one = ad.plan(1, 32, 1 << 20, 128, ranks=8, heads_kv=8, causal=True)
    assert one.method == "zigzag" and [x.method for x in one.estimates][-1] != "zigzag"
    # Few bytes, slow steps: whole heads at once. A link so slow that only the fewest bytes count.
    assert ad.plan(1, 32, 2048, 64, ranks=8, latency=1e-3).method in ("allgather", "ulysses")
    assert "ulysses" not in [x.method for x in ad.plan(1, 6, 64, 8, ranks=4).estimates]
    few = ad.plan(1, 8, 1 << 16, 64, ranks=8, window=(100, 0), bandwidth=1e6)
    assert few.method in ("ring", "zigzag") and few.estimates[0].sent < few.estimates[-1].sent
    text = str(ad.plan(1, 6, 64, 8, ranks=4, causal=True, gradients=True))
    assert "no: q has 6 heads" in text and "with gradients" in text
    for wrong in ({"backend": "mpi"}, {"methods": ["star"]}):
        with pytest.raises(attn.InvalidArgument, match="expected"):
            ad.plan(1, 8, 64, 8, ranks=2, **wrong)


def test_without_a_group():
    x = torch.zeros(1, 1, 2, 8)
    for call in (lambda: ad.attention(x, x, x), lambda: ad.decode(x, x, x),
                 lambda: ad.shard(x, 2), lambda: ad.unshard(x, 2)):
        with pytest.raises(attn.InvalidArgument, match="init_process_group"):
            call()


def test_one_rank_in_this_process(tmp_path, caplog):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0,
                                         world_size=1)
    try:
        q, k, v = torch.randn(3, 1, 4, 9, 8).unbind(0)
        with caplog.at_level(logging.INFO, "attn.distributed"):
            found = ad.attention(q, k, v, causal=True)
        assert "the least time" in caplog.text
        assert torch.equal(found, attn.attention(q, k, v, causal="top-left",
                                                 threads=torch.get_num_threads()))
    finally:
        torch.distributed.destroy_process_group()
