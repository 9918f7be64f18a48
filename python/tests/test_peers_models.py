# SPDX-License-Identifier: Apache-2.0
"""python -m attn.peers --models with small sizes on the CPU: every row, and planted faults."""

import json

import pytest

torch = pytest.importorskip("torch", minversion="2.5")
pytest.importorskip("transformers.masking_utils")

import attn  # noqa: E402
from attn.peers import models, program  # noqa: E402

FAST = ["--models", "--tiny", "--device", "cpu", "--seconds", "0.01"]


@pytest.fixture(autouse=True)
def undisturbed():
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    yield
    torch.set_num_threads(threads)
    torch.set_grad_enabled(grad)


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
    assert "Gemma 2 9B, prefill" in capsys.readouterr().out


def test_a_wrong_result_fails(tmp_path, monkeypatch, capsys):
    import attn.transformers
    right = attn.transformers._compute
    monkeypatch.setattr(attn.transformers, "_compute",
                        lambda *arguments: 1.1 * right(*arguments))
    code, report = run(["--only", "SigLIP"], tmp_path)
    assert code == 1 and len(report["rows"]) == 1
    assert "attn differs by" in capsys.readouterr().err


def test_a_model_that_cannot_be_built_says_why(tmp_path, monkeypatch):
    def missing(sizes):
        raise AttributeError("module transformers has no attribute LlamaConfig")
    monkeypatch.setitem(models.MODELS, "Llama 8B", (missing, ("prefill",)))
    code, report = run(["--only", "Llama"], tmp_path)
    assert code == 3 and "LlamaConfig" in report["rows"][0]["reason"]


def test_real_sizes_need_a_gpu(capsys):
    assert program.main(["--models", "--device", "cpu", "--lib", str(attn.library_path())]) == 3
    assert "--tiny" in capsys.readouterr().err
