# SPDX-License-Identifier: Apache-2.0
"""The peers runner with a real library and a real PyTorch, on the CPU, for moments."""

import json

import pytest

torch = pytest.importorskip("torch", minversion="2.5")

import attn  # noqa: E402
from attn.peers import cpu, host, program  # noqa: E402

FAST = ["--device", "cpu", "--quick", "--seconds", "0.05", "--grid", "small", "--only", "H12 S128",
        "--dtype"]


@pytest.fixture(autouse=True)
def undisturbed():
    """What the runner sets for its process is given back."""
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    yield
    torch.set_num_threads(threads)
    torch.set_grad_enabled(grad)


def run(arguments, tmp_path):
    path = tmp_path / "run.json"
    code = program.main([*arguments, "--json", str(path), "--lib", str(attn.library_path())])
    return code, json.loads(path.read_text())


def test_a_run(tmp_path, capsys):
    code, report = run([*FAST, "bf16", "--variant", "all"], tmp_path)
    assert code == 0 and report["complete"]
    (row,) = report["rows"]
    assert row["verified"]["before"]["passed"] and row["verified"]["after"]["passed"]
    assert row["sides"]["sdpa"]["proven"] and row["sides"]["ours"]["kernels"] == []
    assert row["summary"]["modes"]["eager"]["best"] == "sdpa"
    assert any(side["role"] == "variant" for side in row["sides"].values())
    assert "control, ours beside ours" in capsys.readouterr().out


def test_variants_beside_it_by_a_pattern(tmp_path, capsys):
    code, report = run([*FAST, "fp32", "--variant", "all/^cpu_tile_c$"], tmp_path)
    (row,) = report["rows"]
    others = [name for name, side in row["sides"].items() if side["role"] == "variant"]
    assert code == 0 and others == ["cpu_tile_c"]
    assert program.main([*FAST, "fp32", "--variant", "all/["]) == 2
    assert "no regular expression" in capsys.readouterr().err


def test_a_wrong_peer_is_not_timed(tmp_path, monkeypatch):
    right = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention",
                        lambda *arguments, **named: 1.1 * right(*arguments, **named))
    code, report = run([*FAST, "fp32"], tmp_path)
    (row,) = report["rows"]
    assert "off by 0.1 of a row" in row["sides"]["sdpa"]["error"]
    assert "sdpa" not in row["summary"]["modes"]["eager"]["us"]


def test_a_result_that_is_wrong_after_the_timing(tmp_path, monkeypatch):
    timed = cpu.CpuMachine.eager_us

    def spoils(self, side, *arguments):
        found = timed(self, side, *arguments)
        for output in side.outputs:
            output[..., 0] = 7.0
        return found
    monkeypatch.setattr(cpu.CpuMachine, "eager_us", spoils)
    code, report = run([*FAST, "fp32"], tmp_path)
    assert code == 1
    assert "our result after the timing is wrong" in report["rows"][0]["invalid"][0]


def test_a_variant_that_does_not_exist(tmp_path, capsys):
    assert program.main([*FAST, "fp32", "--variant", "no_such",
                         "--lib", str(attn.library_path())]) == 2
    assert "no_such" in capsys.readouterr().err


@pytest.mark.parametrize("gpu", [None, "NVIDIA H200"], ids=["cpu", "gpu"])
def test_host(tmp_path, monkeypatch, capsys, gpu):
    """As on a GPU too, but for the speed: there 12 us are promised, and a CPU takes longer."""
    monkeypatch.setattr(host, "SAMPLES", 2)
    monkeypatch.setattr(host, "CALLS", 2)
    monkeypatch.setattr(cpu.CpuMachine, "gpu", gpu)
    code, report = run(["--device", "cpu", "--host", "--dtype", "fp32"], tmp_path)
    shown = capsys.readouterr()
    assert code == (0 if gpu is None else 1)
    assert ("expected at most 12 us" in shown.err) == (gpu is not None)
    for row in report["rows"]:
        assert ("its Python" in row["median_us"]) == (gpu is not None)
        assert len(row["samples_us"]["replace_sdpa"]) == 2
        assert row["least_us"]["PyTorch SDPA"] > 0
    assert "attn.torch.sdpa" in shown.out
    assert all(known.plan.call is known.plan.context.forward
               for known in attn.torch._known.values())
