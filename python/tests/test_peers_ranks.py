# SPDX-License-Identifier: Apache-2.0
"""python -m attn.peers --ranks with a short sequence on the CPU: every row, and planted faults."""

import json

import pytest

torch = pytest.importorskip("torch", minversion="2.5")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import attn  # noqa: E402
from attn.distributed import _parts  # noqa: E402
from attn.peers import program, ranks  # noqa: E402

pytestmark = pytest.mark.usefixtures("undisturbed")


def run(tmp_path, *arguments):
    path = tmp_path / "run.json"
    code = program.main(["--ranks", *arguments, "--device", "cpu", "--json", str(path), "--lib",
                         str(attn.library_path())])
    return code, json.loads(path.read_text())


def test_every_row(tmp_path, capsys):
    code, report = run(tmp_path, "2", "4", "--check")
    assert code == 0 and report["complete"] and report["schema"] == ranks.SCHEMA
    assert [(row["direction"], row["method"], row["ranks"]) for row in report["rows"]] == [
        (direction, method, n) for direction in ("forward", "backward")
        for method in ranks.METHODS for n in (2, 4)]
    for row in report["rows"]:
        assert row["ratio"] > 0 and len(row["each_s"][0]) == row["ranks"]
        assert row["checks"]["from_one_call"] < 1e-4
    assert all(move["rate"] > 0 for move in report["moves"])
    assert "accumulate, 64 rows" in capsys.readouterr().out


def plant_lost_chunk(monkeypatch):
    original = ranks.Still._order
    monkeypatch.setattr(ranks.Still, "_order", lambda self: original(self)[:-1])


def plant_shifted_gradients(monkeypatch):
    original = _parts.KeyGradients.add_to
    monkeypatch.setattr(_parts.KeyGradients, "add_to",
                        lambda self, dk, dv: original(self, dk.roll(1, 2), dv))


def plant_wrong_merge(monkeypatch):
    monkeypatch.setattr(ranks, "merge", lambda o, lse, out, **_: (out.copy_(o[0]), None))


@pytest.mark.parametrize("plant, words", [
    (plant_lost_chunk, "zigzag, 2 ranks"), (plant_shifted_gradients, "gradients, zigzag, 2 ranks"),
    (plant_wrong_merge, "merge of 2 parts")])
def test_planted_fault_is_found(tmp_path, monkeypatch, capsys, plant, words):
    plant(monkeypatch)
    code, report = run(tmp_path, "2")
    assert code == 1 and not report["complete"]
    assert words in report["wrong"] and words in capsys.readouterr().err


@pytest.mark.parametrize("wrong, words", [("9", "between 1 and 8"), ("3", "expected divisors")])
def test_refusals(wrong, words, capsys):
    arguments = ["--ranks", wrong, "--device", "cpu", "--lib", str(attn.library_path())]
    try:
        assert program.main(arguments) == 2
    except SystemExit as error:
        assert error.code == 2
    assert words in capsys.readouterr().err
