# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples for scaled_dot_product_attention (torch.testing) through attn.torch.sdpa.

Invariant: every sample is computed or refused for a reason that is listed here, and counted.
"""

import collections

import pytest

torch = pytest.importorskip("torch", minversion="2.5")
pytest.importorskip("expecttest", reason="torch.testing's samples need the package expecttest")

import attn  # noqa: E402
import attn.torch  # noqa: E402

REASONS = ["there is no dropout", "query has dtype torch.float64"]
ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module")
def operator():
    from torch.testing._internal.common_methods_invocations import op_db
    return next(op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")


def double(value):
    return value.double() if torch.is_tensor(value) and value.is_floating_point() else value


@pytest.mark.parametrize("dtype", [*ROUNDING, torch.float64], ids=str)
def test_samples(operator, dtype):
    torch.manual_seed(0)
    counts = collections.Counter()
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=False):
        try:
            found = attn.torch.sdpa(sample.input, *sample.args, **sample.kwargs)
        except attn.Unsupported as error:
            counts[[reason for reason in REASONS if reason in str(error)][0]] += 1
            continue
        # As exact as PyTorch's own, by the result in double precision; its inputs reach 9.
        theirs = operator.op(sample.input, *sample.args, **sample.kwargs)
        exact = operator.op(double(sample.input), *map(double, sample.args),
                            **{name: double(value) for name, value in sample.kwargs.items()})
        assert found.shape == theirs.shape and found.dtype == theirs.dtype
        allowed = 2 * (theirs.double() - exact).abs().max() + ROUNDING[dtype] * exact.abs().max()
        assert (found.double() - exact).abs().max() <= allowed
        counts["computed"] += 1
    assert counts["there is no dropout"] > 0
    assert (counts["computed"] > 0) == (dtype in ROUNDING)


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_gradients(operator, dtype):
    torch.manual_seed(0)
    count = 0
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=True):
        if sample.kwargs.get("dropout_p"):
            continue
        inputs = [sample.input, *sample.args]
        named, mask = sample.kwargs, sample.kwargs.get("attn_mask")
        leaves = [x for x in (*inputs, mask) if torch.is_tensor(x) and x.requires_grad]
        out = attn.torch.sdpa(*inputs, **named)
        d_out = torch.randn_like(out)
        found = torch.autograd.grad(out, leaves, d_out)
        theirs = torch.autograd.grad(operator.op(*inputs, **named), leaves, d_out)
        exact = torch.autograd.grad(operator.op(*map(double, inputs), **{
            name: double(value) for name, value in named.items()}), leaves, d_out.double())
        # dP - rowsum(dO * O) cancels out where one key has all the weight, but for O's rounding.
        rounding = 4 * ROUNDING[dtype] * max(x.abs().max() for x in exact)
        for ours, other, right in zip(found, theirs, exact):
            assert ours.shape == right.shape and ours.dtype == dtype
            error, allowed = ((x.double() - right).abs().max() for x in (ours, other))
            assert error <= 2 * allowed + rounding
        count += 1
    assert count > 0
