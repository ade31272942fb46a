"""Attention and kept rows on the emulated device: by bytes what the cpu backend gives."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_native import _core
from support.backends import CUDA_DEVICE, make_backend
from support.weights import random_weight

KINDS = ["F32", "F16", "Q8_0"]
TREES = {
    "one": [-1],
    "chain": list(range(-1, 8)),
    "siblings": [-1, -1, -1],
    "tree": [-1, 0, 0, 1, 2, 2, 5, -1, 6],
}


@pytest.fixture(scope="module")
def both():
    return make_backend(CUDA_DEVICE), make_backend("cpu")


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def filled(backend, kind, kv_heads, dim, capacity):
    cache = _core.testing.Cache(backend, kind, 2, kv_heads, dim, capacity)
    shape = (2, kv_heads, capacity, dim)
    cache.set(floats(*shape, seed=1), floats(*shape, seed=2))
    return cache


def attend(backend, kind, q, base, parents, kv_heads=2):
    cache = filled(backend, kind, kv_heads, q.shape[2], base + len(parents))
    return backend.attention(cache, 1, q, base, parents, 0.2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", [0, 1, 61, 63, 64, 65, 190])
@pytest.mark.parametrize("tree", TREES)
def test_attention(both, kind, base, tree):
    q = floats(len(TREES[tree]), 6, 32, seed=3)
    actual, expected = (attend(b, kind, q, base, TREES[tree]) for b in both)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["Q4_0", "F16"])
@pytest.mark.parametrize("base", [3, 61, 100])  # one chunk, then more: those are merged
@pytest.mark.parametrize("tree", ["one", "tree"])
@pytest.mark.parametrize("dim", [32, 40, 96])
def test_attention_leaves_the_input_of_a_product(both, dtype, base, tree, dim):
    q = floats(len(TREES[tree]), 4, dim, seed=3)
    raw, _ = random_weight(dtype, 37, 4 * dim, seed=4)
    found = []
    for backend in both:
        cache = filled(backend, "F16", 2, dim, base + len(TREES[tree]))
        found.append(
            backend.attention_then_matmul(cache, q, base, TREES[tree], (dtype, raw)).tobytes()
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(2, 2, 64), (9, 3, 96), (8, 1, 256)])
def test_shapes_of_heads(both, kind, heads, kv_heads, dim):
    q = floats(9, heads, dim, seed=4)
    actual, expected = (attend(b, kind, q, 70, TREES["tree"], kv_heads) for b in both)
    assert actual.tobytes() == expected.tobytes()


def test_heads_that_are_no_multiple_of_the_lanes(both):
    q = floats(3, 4, 24, seed=5)
    actual, expected = (attend(b, "F16", q, 66, [-1, 0, 1]) for b in both)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("window", [0, 130, 516])
@pytest.mark.parametrize(
    ("kind", "rows", "base", "heads"),
    [
        ("F16", 1, 700, (4, 2, 32)),  # one tile of queries: a block sees a chunk
        ("F16", 9, 150, (4, 2, 32)),  # several tiles: a span, here all that there is
        ("F32", 9, 507, (8, 1, 64)),  # the tree grows over the border of a span
        ("Q8_0", 9, 1030, (6, 2, 160)),
        ("F16", 33, 500, (3, 3, 40)),  # a block sees all spans
    ],
)
def test_spans(both, kind, rows, base, heads, window):
    n_heads, kv_heads, dim = heads
    q = floats(rows, n_heads, dim, seed=base)
    parents = TREES["tree"] if rows == 9 else list(range(-1, rows - 1))
    sinks = floats(n_heads, seed=9)
    found = []
    for backend in both:
        cache = filled(backend, kind, kv_heads, dim, base + rows)
        found.append(backend.attention(cache, 1, q, base, parents, 0.2, window, sinks).tobytes())
    assert found[0] == found[1]


def test_spans_leave_the_input_of_a_product(both):
    q = floats(5, 4, 32, seed=3)
    raw, _ = random_weight("Q4_0", 37, 128, seed=4)
    parents = list(range(-1, 4))
    found = []
    for backend in both:
        cache = filled(backend, "F16", 2, 32, 1105)
        out = backend.attention_then_matmul(cache, q, 1100, parents, ("Q4_0", raw))
        found.append(out.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("rows", [32, 33, 70])
def test_many_rows_take_another_path_to_the_same_result(both, rows):
    """Beyond 32 rows no partial results are kept."""
    q = floats(rows, 4, 32, seed=6)
    actual, expected = (attend(b, "F16", q, 40, list(range(-1, rows - 1))) for b in both)
    assert actual.tobytes() == expected.tobytes()


def test_what_lies_behind_a_row_is_never_read(both):
    """The cache holds NaN from the pass's second row on; the first must not notice."""
    backend = both[0]
    q = floats(3, 4, 32, seed=7)
    cache = filled(backend, "F16", 2, 32, 13)
    clean = backend.attention(cache, 1, q[:1], 10, [-1], 0.2)
    keys, values = cache.keys(), cache.values()
    keys[:, :, 11:], values[:, :, 11:] = np.nan, np.nan
    cache.set(keys, values)
    assert backend.attention(cache, 1, q, 10, [-1, 0, -1], 0.2)[0].tobytes() == clean[0].tobytes()


def test_segments(both):
    results = []
    q = floats(12, 4, 32, seed=8)
    for backend in both:
        first, second = (filled(backend, "Q8_0", 2, 32, 80) for _ in range(2))
        results.append(
            backend.attention_segments(
                [(first, 4, [-1, 0, 0]), (second, 65, TREES["tree"])], 0, q, 0.3
            ).tobytes()
        )
    assert results[0] == results[1]


def test_a_changed_tree_of_the_same_size(both):
    """The device keeps the last tree's paths: another tree must replace them."""
    q = floats(3, 4, 32, seed=9)
    for parents in ([-1, 0, 0], [-1, -1, 1], [-1, 0, 0]):
        actual, expected = (attend(b, "F32", q, 5, parents) for b in both)
        assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [[], [0], [0, 1, 2], [1], [0, 2, 5], [3, 4, 5]])
def test_keep_rows(both, kind, rows):
    caches = [filled(backend, kind, 3, 32, 12) for backend in both]
    for backend, cache in zip(both, caches, strict=True):
        backend.keep_rows(cache, 4, np.array(rows, np.int32))
    assert caches[0].keys().tobytes() == caches[1].keys().tobytes()
    assert caches[0].values().tobytes() == caches[1].values().tobytes()
