# SPDX-License-Identifier: Apache-2.0
"""The peers runner with a real library and a real PyTorch, on the CPU, for moments."""

import json

import pytest

torch = pytest.importorskip("torch", minversion="2.5")

import attn  # noqa: E402
from attn import _plans  # noqa: E402
from attn.peers import backward, cpu, grids, host, program, serving  # noqa: E402

FAST = ["--device", "cpu", "--quick", "--seconds", "0.05", "--grid", "small", "--only", "H12 S128",
        "--dtype"]

pytestmark = pytest.mark.usefixtures("undisturbed")


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


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gradients(dtype, tmp_path, capsys, monkeypatch):
    """GQA, causal or not: verified, beside PyTorch's, and a wrong one of PyTorch's is not timed."""
    shapes = [grids.square(1, 4, 2, 96, 32, causal, "backward") for causal in (False, True)]
    monkeypatch.setitem(grids.GRIDS, "bwd", lambda: shapes)
    arguments = ["--device", "cpu", "--quick", "--seconds", "0.05", "--grid", "bwd", "--dtype", dtype]
    code, report = run(arguments, tmp_path)
    assert code == 0 and report["complete"] and len(report["rows"]) == 2
    for row in report["rows"]:
        assert row["verified"]["after"]["gradients"] == ["dq", "dk", "dv"]
        assert row["verified"]["before"]["passed"] and row["verified"]["after"]["passed"]
        assert row["variant"].startswith("cpu_backward") and row["sides"]["sdpa"]["proven"]
        assert row["summary"]["modes"]["eager"]["best"] == "sdpa"
        assert row["flops"] == 2.5 * 4 * 4 * 96 * 32 * (96 if "causal" not in row["name"] else 48.5)
    right = backward.summed
    monkeypatch.setattr(backward, "summed", lambda *arguments: tuple(
        1.1 * x for x in right(*arguments)))
    code, report = run(arguments, tmp_path)
    assert "off by 0.1" in report["rows"][0]["sides"]["sdpa"]["error"]
    assert "backward" in capsys.readouterr().out


def test_caches_of_servers(tmp_path, capsys, monkeypatch):
    """Pages, fp8, and a step, beside the plain call or a call for each group; a table that is wrong
    for the plain call is found."""
    shapes = [grids.Shape(3, 4, 2, 1, 50, 32, False, "paged16"),
              grids.Shape(2, 4, 2, 20, 70, 32, True, "paged16 fp8"),
              grids.Shape(2, 4, 2, 1, 70, 32, False, "fp8"),
              serving.step_shape("3x1@5-60+2x8@40", 4, 2, 32)]
    monkeypatch.setitem(grids.GRIDS, "paged", lambda: shapes)
    arguments = ["--device", "cpu", "--quick", "--seconds", "0.05", "--grid", "paged", "--dtype", "bf16"]
    code, report = run(arguments, tmp_path)
    assert code == 0 and report["complete"]
    for row, beside in zip(report["rows"], ("plain", "plain", "plain", "separate")):
        assert row["verified"]["before"]["passed"] and row["verified"]["after"]["passed"]
        assert row["sides"][beside]["proven"] and not row["sides"][beside]["error"]
        assert beside in row["summary"]["modes"]["eager"]["us"]
        assert ("sdpa" in row["sides"]) == (beside == "plain")
    assert "plain" in capsys.readouterr().out
    right = serving.store_pages
    monkeypatch.setattr(serving, "store_pages", lambda torch, shape, size, table: right(
        torch, shape, size, table.flip(0)))
    code, report = run([*arguments, "--only", "paged16$"], tmp_path)
    assert code == 1 and "our result before the timing" not in str(report["rows"][0]["invalid"])


def test_grids_of_servers():
    for name in ("paged", "fp8", "mixed"):
        for shape in grids.GRIDS[name]():
            assert name[:5] in shape.option or "step" in shape.option
    with pytest.raises(ValueError, match="expected 60x1"):
        serving.groups_of("60x1")


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


@pytest.fixture
def short(monkeypatch):
    for name, value in (("SAMPLES", 2), ("CALLS", 2), ("LENGTHS", 60)):
        monkeypatch.setattr(host, name, value)
    attn.clear_plans()


HOST = ["--device", "cpu", "--host", "--dtype", "fp32"]


def test_host(tmp_path, short, capsys):
    """Every cell of the table has its samples, or the reason why not; a CPU has no targets."""
    code, report = run(HOST, tmp_path)
    shown = capsys.readouterr().out
    assert code == 0 and report["schema"] == "attn-host/2"
    cells = {(cell["row"], cell["caller"]): cell for cell in report["cells"]}
    assert len(cells) == len(report["cells"]) == 4 + 4 + 11
    for (row, caller), cell in cells.items():
        assert row in shown and caller in shown and cell["target_us"] is None
        if cell["reason"] is None:
            assert len(cell["samples_us"]) == 2 and cell["least_us"] > 0 and cell["met"]
        else:  # a library without kernels for masks
            assert row == "mask" and not cell["samples_us"] and not cell["met"]
    assert report["held_mb"] < host.HELD_MB


def test_a_new_length_has_no_plan(tmp_path, short, monkeypatch):
    """But all other calls have one from the sample that warms up."""
    made, seen = [], []
    new_plan = _plans.Cache.new_plan
    monkeypatch.setattr(_plans.Cache, "new_plan",
                        lambda self, *rest: made.append(1) or new_plan(self, *rest))
    sample_us = host.sample_us

    def counted(machine, calls):
        before = len(made)
        us = sample_us(machine, calls)
        seen.append(len(made) - before)
        return us

    monkeypatch.setattr(host, "sample_us", counted)
    monkeypatch.setattr(host, "held_mb", lambda *_: 0.0)
    _, report = run(HOST, tmp_path)
    cells = [cell for cell in report["cells"] if cell["reason"] is None]
    for cell, plans in zip(cells * 2, seen[-2 * len(cells):]):
        new = cell["row"] == "new length" and cell["caller"] in host.OURS
        assert plans == (host.CALLS if new else 0), cell


@pytest.mark.parametrize("fault, text", [
    ("known", "attn.attention, known: "), ("option", "attn.torch.sdpa, bias: "),
    ("new", "attn.torch.sdpa, new length: "), ("held", "60 lengths hold 9 MB, expected less than")])
def test_host_targets(tmp_path, short, monkeypatch, capsys, fault, text):
    """As on a GPU, but for the speed: exactly what is planted is missed, with --check alone."""
    limits = {"KNOWN_US": 1e9, "NEW_US": 1e9, "OPTION_US": 1e9}
    planted = {"known": ("KNOWN_US", 1e-3), "option": ("OPTION_US", -1e6), "new": ("NEW_US", 1e-3)}
    for name, value in {**limits, **dict([planted[fault]] if fault in planted else [])}.items():
        monkeypatch.setattr(host, name, value)
    used = iter([(0.0, 5.0), (0.0, 5.0), (0.0, 5.0 + 9 * (fault == "held"))])
    monkeypatch.setattr(cpu.CpuMachine, "gpu", "NVIDIA H200")
    monkeypatch.setattr(cpu.CpuMachine, "used_mb", lambda self: next(used))
    code, report = run([*HOST, "--check"], tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if ", mask: " not in line]
    assert code == 1 and text in lines[0] + lines[-1], lines
    assert len(lines) == {"known": 2, "new": 2, "held": 1, "option": 9}[fault]
