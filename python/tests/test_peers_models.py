# SPDX-License-Identifier: Apache-2.0
"""python -m attn.peers --models with small sizes on the CPU: every row, and planted faults."""

import json

import pytest

torch = pytest.importorskip("torch", minversion="2.5")
pytest.importorskip("transformers.masking_utils")

import attn  # noqa: E402
from attn.peers import model_rows, models, program  # noqa: E402

FAST = ["--models", "--tiny", "--device", "cpu", "--seconds", "0.01"]

pytestmark = pytest.mark.usefixtures("undisturbed")


def run(arguments, tmp_path):
    path = tmp_path / "run.json"
    code = program.main([*FAST, *arguments, "--json", str(path), "--lib",
                         str(attn.library_path())])
    return code, json.loads(path.read_text())


def test_every_row(tmp_path, capsys):
    code, report = run([], tmp_path)
    assert code == 0 and report["complete"] and report["schema"] == "attn-models/1"
    assert len(report["rows"]) == sum(len(works) for _, works in models.MODELS.values())
    for row in report["rows"]:
        sides = {side["name"]: side for side in row["sides"]}
        ours = sides["replace_sdpa" if row["model"] == "DiT" else "attn"]
        if "does not take" in (ours["reason"] or ""):  # in 4.x, BERT and T5
            continue
        assert row["reason"] is None and ours["reason"] is None and ours["median_ms"] > 0, row
        assert ours["calls"] > 0 and ours["by_pytorch"] == 0
        assert ours["same_tokens"] == 1.0 if ours["difference"] is None else True
        assert all(side["reason"] or side["samples_ms"] for side in row["sides"])
    assert all(report["summary"]["geometric_mean"].values()) and not report["summary"]["not_ours"]
    said = capsys.readouterr().out
    assert "Gemma 2 9B, prefill" in said and "geometric mean: replace_sdpa" in said


def test_compiled_works_are_one_graph(tmp_path):
    """fullgraph, and no graph of its own for each of the samples."""
    code, report = run(["--compile", "--seconds", "1"], tmp_path)
    assert code == 0 and [row["work"] for row in report["rows"]] == list(models.COMPILED)
    for row in report["rows"]:
        for side in row["sides"]:
            assert side["reason"] is None and side["samples_ms"], row
            assert bool(side["kernels"]) == (side["name"] in model_rows.OURS)


def new_row(sizes, **sides):
    row = {**models.new_row("M", "generate"), "sizes": sizes}
    row["sides"] = [{**models.new_side(name.rstrip("_")), **made} for name, made in sides.items()]
    model_rows.put_ratios(row)
    return row


def test_the_summary_says_what_is_below():
    sdpa = {"median_ms": 1.0}
    rows = [new_row("B8 S9", eager=sdpa, sdpa=sdpa, replace_sdpa={"median_ms": 0.5},
                    attn={"median_ms": 0.99}),
            new_row("B1 S9", sdpa=sdpa, replace_sdpa={"median_ms": 0.98}, attn={"median_ms": 0.5}),
            new_row("B8 S9", sdpa=sdpa, attn={"median_ms": 0.1, "calls": 9, "by_pytorch": 3,
                                              "reasons": {"no kernel": 3}}),
            new_row("B8 S9", sdpa=sdpa, attn={"median_ms": 2.0})]
    found = model_rows.summary(rows)
    assert found["geometric_mean"]["replace_sdpa"] == pytest.approx((2 / 0.98) ** 0.5, abs=1e-3)
    assert found["geometric_mean"]["attn"] == pytest.approx((2 * 0.5 / 0.99) ** (1 / 3), abs=1e-3)
    one, two = found["below"]
    assert "B1 S9: replace_sdpa 1.02x, expected at least 1.05" in one and "attn 0.50x" in two
    assert len(found["not_ours"]) == 1 and "3 of 9 calls by PyTorch: no kernel" in \
        found["not_ours"][0]
    assert "not ours: 3 of 9" in model_rows.row_text(rows[2])
    assert "(0.50x, below)" in model_rows.row_text(rows[3])


def test_check_fails_below_the_bar(tmp_path, monkeypatch):
    monkeypatch.setattr(model_rows, "AT_LEAST", 1e9)
    assert run(["--only", "SigLIP"], tmp_path)[0] == 0
    assert run(["--only", "SigLIP", "--check"], tmp_path)[0] == 1


def test_a_wrong_result_fails(tmp_path, monkeypatch, capsys):
    import attn.transformers
    right = attn.transformers.forward

    def wrong(*arguments):
        out = right(*arguments)
        return None if out is None else 1.1 * out

    monkeypatch.setattr(attn.transformers, "forward", wrong)
    code, report = run(["--only", "SigLIP"], tmp_path)
    assert code == 1 and len(report["rows"]) == 1
    said = capsys.readouterr().err
    assert "attn differs by" in said and "worst call by itself: call" in said


def test_a_wrong_call_is_found(tmp_path, monkeypatch, capsys):
    import attn.torch
    right = attn.torch.sdpa
    monkeypatch.setattr(attn.torch, "sdpa", lambda q, *rest: right(q, *rest) * (
        2.0 if q.shape[2] == 12 else 1.0))
    code, report = run(["--only", "Whisper large, forward"], tmp_path)
    side = next(side for side in report["rows"][0]["sides"] if side["name"] == "replace_sdpa")
    assert code == 1 and "by 1, of the sizes [(2, 4, 12, 16)" in side["worst_call"]


def test_a_model_that_cannot_be_built_says_why(tmp_path, monkeypatch):
    def missing(sizes):
        raise AttributeError("module transformers has no attribute LlamaConfig")
    monkeypatch.setitem(models.MODELS, "Llama 8B", (missing, ("prefill",)))
    code, report = run(["--only", "Llama"], tmp_path)
    assert code == 3 and "LlamaConfig" in report["rows"][0]["reason"]


def test_real_sizes_need_a_gpu(capsys):
    assert program.main(["--models", "--device", "cpu", "--lib", str(attn.library_path())]) == 3
    assert "--tiny" in capsys.readouterr().err
