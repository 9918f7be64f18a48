# SPDX-License-Identifier: Apache-2.0
"""batch_invariant=True: a row has the same bits by prefill, in chunks, by decode and in a batch."""

import attn
import numpy as np
import pytest

LENGTH = 333


def inputs(seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, heads, LENGTH, 64), np.float32) for heads in (4, 2, 2)]


def rows(q, k, v, first, last, **options):
    """Rows [first, last) against the keys before `last`."""
    return attn.attention(q[:, :, first:last], k[:, :, :last], v[:, :, :last],
                          causal="bottom-right", **options)


def differences(**options):
    q, k, v = inputs(1)
    whole = rows(q, k, v, 0, LENGTH, **options)
    found = 0
    for first, last in ((0, 100), (100, 101), (200, 333), (332, 333)):
        piece = rows(q, k, v, first, last, **options)
        found += not np.array_equal(piece, whole[:, :, first:last])
    others = [np.concatenate(pair) for pair in zip(inputs(2), (q, k, v))]
    found += not np.array_equal(rows(*others, 0, LENGTH, **options)[1:], whole)
    return found


def test_pieces_have_the_bits_of_the_whole():
    assert differences(batch_invariant=True) == 0
    assert differences() > 0


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).to(torch.bfloat16) for x in inputs(3))
    whole = rows(q, k, v, 0, LENGTH, batch_invariant=True)
    assert torch.equal(rows(q, k, v, 300, 301, batch_invariant=True), whole[:, :, 300:301])


def test_row_kernels_are_refused():
    q, k, v = inputs(4)
    with pytest.raises(attn.Unsupported, match="batch_invariant is not among its options"):
        rows(q, k, v, 9, 10, variant="cpu_row_c", batch_invariant=True)


def test_plans_are_not_taken_for_others():
    q = k = v = np.zeros((1, 2, 20, 64), np.float32)
    attn.attention(q, k, v, variant="cpu_tile_c", batch_invariant=True)
    for name in ("cpu_tile_cinvariant", "cpu_tile_c\1", "cpu_tile_c\0\1"):
        with pytest.raises(attn.AttnError, match="variant"):
            attn.attention(q, k, v, variant=name)
    with pytest.raises(attn.InvalidArgument, match="batch_invariant = 'no', expected True or False"):
        attn.attention(q, k, v, batch_invariant="no")
