"""The key/value cache of the cpu backend in each of its types: storing, attending, gathering."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_native import _core
from support.backends import make_backend
from support.weights import random_weight

TYPES = ["F32", "F16", "Q8_0"]
TREE = [-1, 0, 0, 1, 2, 2, 5, -1, 6]
PATH = [0, 2, 5, 6, 8]


@pytest.fixture(scope="module")
def cpu():
    return make_backend("cpu")


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def filled(cpu, kind, dim, capacity, kv_heads=2):
    cache = _core.testing.Cache(cpu, kind, 1, kv_heads, dim, capacity)
    shape = (1, kv_heads, capacity, dim)
    cache.set(floats(*shape, seed=1), floats(*shape, seed=2))
    return cache


def visible(base, parents, row):
    chain = []
    while row >= 0:
        chain.append(base + row)
        row = parents[row]
    return list(range(base)) + chain[::-1]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("dim", [32, 64, 96])
@pytest.mark.parametrize("base", [0, 63, 130])
def test_attention_over_what_is_stored(cpu, kind, dim, base):
    cache = filled(cpu, kind, dim, 160)
    q = floats(len(TREE), 4, dim, seed=3)
    actual = cpu.attention(cache, 0, q, base, TREE, 0.2)
    keys, values = (array[0].astype(np.float64) for array in (cache.keys(), cache.values()))
    for i in range(len(TREE)):
        rows = visible(base, TREE, i)
        for h in range(4):
            scores = keys[h // 2][rows] @ q[i, h].astype(np.float64) * 0.2
            weights = np.exp(scores - scores.max())
            expected = weights @ values[h // 2][rows] / weights.sum()
            np.testing.assert_allclose(actual[i, h], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("base", [0, 61, 190])
def test_tree_rows_equal_serial_rows_by_bytes(cpu, kind, base):
    cache = filled(cpu, kind, 64, 256)
    q = floats(len(TREE), 6, 64, seed=4)
    in_tree = cpu.attention(cache, 0, q, base, TREE, 0.125)[PATH]
    cpu.keep_rows(cache, base, np.array(PATH, np.int32))
    for depth, row in enumerate(PATH):
        serial = cpu.attention(cache, 0, q[row : row + 1], base + depth, [-1], 0.125)
        assert serial[0].tobytes() == in_tree[depth].tobytes(), depth


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("dim", [32, 160])
def test_what_a_pass_stores_is_the_rounded_row(cpu, kind, dim):
    """The same bytes as the definition in cache_row.cpp, for odd values too."""
    x = floats(12, 64, seed=5)
    x[1] = 0
    x[2] *= np.float32(1e-30)
    x[3] *= np.float32(1e-42)
    x[4] *= np.float32(1e30)
    x[5] = np.nan
    x[6] *= np.float32(3e-7)
    weights = [("F32", random_weight("F32", rows, 64, seed=6)[0]) for rows in (dim, dim, dim)]
    args = (0, x, *weights, 3, np.arange(-1, 11, dtype=np.int32), floats(12, 8, 2, seed=7))
    plain = _core.testing.Cache(cpu, "F32", 1, 1, dim, 20)
    stored = _core.testing.Cache(cpu, kind, 1, 1, dim, 20)
    expected = _core.testing.Cache(cpu, kind, 1, 1, dim, 20)
    cpu.qkv_rope_store(plain, *args)
    cpu.qkv_rope_store(stored, *args)
    expected.set(plain.keys(), plain.values())
    np.testing.assert_array_equal(stored.keys(), expected.keys())
    np.testing.assert_array_equal(stored.values(), expected.values())


def test_q8_0_is_within_half_a_step(cpu):
    cache = filled(cpu, "Q8_0", 64, 50)
    exact = floats(1, 2, 50, 64, seed=1)
    steps = np.abs(exact).reshape(1, 2, 50, 2, 32).max(axis=-1) / 127
    error = np.abs(cache.keys() - exact).reshape(1, 2, 50, 2, 32).max(axis=-1)
    assert np.all(error <= steps * (0.5 + 127 / 2048))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("rows", [[], [0, 1], [1], [0, 2, 5], [3, 4, 5]])
def test_keep_rows_moves_whole_rows(cpu, kind, rows):
    cache = filled(cpu, kind, 64, 12)
    before = cache.keys(), cache.values()
    cpu.keep_rows(cache, 4, np.array(rows, np.int32))
    for old, new in zip(before, (cache.keys(), cache.values()), strict=True):
        assert np.array_equal(new[:, :, :4], old[:, :, :4])
        assert np.array_equal(new[:, :, 4 : 4 + len(rows)], old[:, :, [4 + r for r in rows]])


def test_heads_that_are_not_whole_blocks_are_refused(cpu):
    with pytest.raises(ValueError, match="heads of 48 in a cache of Q8_0"):
        _core.testing.Cache(cpu, "Q8_0", 1, 1, 48, 4)
