# SPDX-License-Identifier: Apache-2.0
"""MLA: a v that is a view of k has the bits of its copy, and the plan knows that it is one."""

import attn
import numpy as np
import pytest

from attn import _attention

torch = pytest.importorskip("torch")
FRAMEWORKS = [np.asarray, torch.from_numpy]  # the general and the fast path


@pytest.fixture
def said(monkeypatch):
    """v_in_k of the problems that were made."""
    seen, made = [], _attention.problem

    def problem(**fields):
        seen.append(fields["v_in_k"])
        return made(**fields)
    monkeypatch.setattr(_attention, "problem", problem)
    return seen


@pytest.mark.parametrize("made", FRAMEWORKS)
@pytest.mark.parametrize("queries", [1, 2, 8])
def test_pages(made, queries, said):
    rng = np.random.default_rng(queries)
    k_pages = rng.standard_normal((7, 64, 1, 576)).astype(np.float32)
    q = rng.standard_normal((2, queries, 16, 576)).astype(np.float32)
    table, used = np.array([[3, 0, 6], [1, 5, -1]], np.int32), np.array([150, 128], np.int32)
    k_pages[6, 150 - 128:] = np.nan
    k, q, table, used = map(made, (k_pages, q, table, used))
    options = {"block_table": table, "used_kv": used, "causal": "bottom-right",
               "return_lse": True, "layout": "bshd"}
    view = k[..., :512]
    o, lse = attn.attention(q, k, view, **options)
    assert said == [True]
    copied = view.clone() if made is torch.from_numpy else view.copy()
    o_apart, lse_apart = attn.attention(q, k, copied, **options)
    assert True not in said[1:]
    assert o.shape == (2, queries, 16, 512)
    assert np.array_equal(o, o_apart) and np.array_equal(lse, lse_apart)
    assert not np.isnan(np.asarray(o)).any()


@pytest.mark.parametrize("made", FRAMEWORKS)
def test_a_view_of_other_columns_is_none(made, said):
    k = made(np.random.default_rng(0).standard_normal((1, 1, 40, 576)).astype(np.float32))
    attn.attention(k, k, k[..., 64:])
    assert True not in said


def test_gradients_of_a_view():
    """They go the usual way."""
    k = torch.randn(1, 1, 30, 48, dtype=torch.float64).float().requires_grad_()
    q = torch.randn(1, 4, 5, 48)
    attn.attention(q, k, k[..., :32]).square().sum().backward()
    found, k.grad = k.grad, None
    p = torch.softmax(q @ k.transpose(-1, -2) / 48 ** 0.5, -1)
    (p @ k[..., :32]).square().sum().backward()
    assert torch.allclose(found, k.grad, atol=1e-4)
