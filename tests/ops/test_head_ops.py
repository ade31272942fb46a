"""The operations that drafting heads need, on both backends."""

from __future__ import annotations

import numpy as np
import pytest

from support.backends import BACKENDS, make_backend


@pytest.fixture(params=BACKENDS)
def backend(request):
    return make_backend(request.param)


@pytest.mark.parametrize("rows", [1, 5, 600])
def test_copy_rows_moves_columns_and_nothing_else(backend, rows):
    rng = np.random.default_rng(1)
    x, out = (rng.normal(size=(rows, cols)).astype(np.float32) for cols in (70, 90))
    expected = out.copy()
    expected[:, 21:81] = x[:, 7:67]
    assert np.array_equal(backend.copy_rows(x, 7, out, 21, 60), expected)
    assert np.array_equal(backend.copy_rows(x, 0, out, 0, 0), out)


def test_add_silu_agrees_with_the_reference_and_does_not_depend_on_the_rows():
    rng = np.random.default_rng(2)
    x, y = (rng.normal(0, 3, (700, 96)).astype(np.float32) for _ in range(2))
    bias = rng.normal(size=96).astype(np.float32)
    ref, cpu = (make_backend(name) for name in ("ref", "cpu"))
    whole = cpu.add_silu(x, y, bias)
    np.testing.assert_allclose(whole, ref.add_silu(x, y, bias), rtol=1e-6, atol=1e-6)
    assert np.array_equal(cpu.add_silu(x[13:14], y[13:14], bias), whole[13:14])
    assert np.array_equal(make_backend("cpu", 1).add_silu(x, y, bias), whole)


def test_top_tokens_ranks_by_weight_then_id(backend):
    rng = np.random.default_rng(3)
    for count in (1, 2, 7, 40):
        weights = (rng.integers(0, 9, size=200) / 8).astype(np.float32)  # many ties, some removed
        order = [i for i in np.argsort(-weights, kind="stable") if weights[i] > 0][:count]
        found = backend.top_tokens(weights, count)
        assert [token for token, _ in found] == order
        wide = weights.astype(np.float64)
        assert [prob for _, prob in found] == pytest.approx(wide[order] / wide.sum())


def test_top_tokens_of_few(backend):
    assert backend.top_tokens(np.array([0, 1, 0], np.float32), 5) == [(1, 1.0)]
    assert backend.top_tokens(np.array([0.5, 1, 1e-20], np.float32), 5) == [
        (1, pytest.approx(2 / 3)),
        (0, pytest.approx(1 / 3)),
    ]
    assert backend.top_tokens(np.ones(3, np.float32), 0) == []


def test_rank_tokens(backend):
    rng = np.random.default_rng(5)
    logits = (rng.integers(0, 9, size=200) / 2).astype(np.float32)
    order = np.argsort(-logits, kind="stable").tolist()
    for count in (1, 7, 40):
        found, total = backend.rank_tokens(logits, count)
        assert found == order[:count]
        assert total == pytest.approx(2.0**44 * np.exp(logits.astype(float) - 4.0).sum())
    # What the filters remove is no token.
    assert backend.rank_tokens(logits, 5, top_k=3)[0] == [*order[:3], -1, -1]
    few = np.array([0.0, 3.0, -np.inf], np.float32)
    assert backend.rank_tokens(few, 5)[0] == [1, 0, -1, -1, -1]


def test_scatter_logits(backend):
    logits = np.array([1.5, -2.0, 0.25], np.float32)
    out = backend.scatter_logits(logits, [4, 0, 2], 6)
    assert out.tolist() == [-2.0, -np.inf, 0.25, -np.inf, 1.5, -np.inf]
