"""Attention across chunks and spans of the cache: by bytes what its definition gives.

Chunks of 64 positions are merged within spans of 512, then the spans. How a backend shares the work
out depends on rows, threads and depth; the result must not.
"""

from __future__ import annotations

import numpy as np
import pytest

from reference.attention_numpy import attend_row
from specdec_native import _core
from support.backends import CUDA_DEVICE, make_backend

KINDS = ["F32", "F16", "Q8_0"]
TREE = [-1, 0, 0, 1, 2, 2, 5, -1, 6]
HEADS, KV_HEADS, DIM = 4, 2, 32
SCALE = 0.2
SINKS = np.array([0.5, -2.0, 3.0, 1.0], np.float32)
BACKENDS = ["cpu", *([CUDA_DEVICE] if CUDA_DEVICE else [])]


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def filled(backend, kind, capacity):
    cache = _core.testing.Cache(backend, kind, 1, KV_HEADS, DIM, capacity)
    shape = (1, KV_HEADS, capacity, DIM)
    cache.set(2 * floats(*shape, seed=1), floats(*shape, seed=2))
    return cache


def visible(base, parents, row):
    path = []
    while row >= 0:
        path.append(base + row)
        row = parents[row]
    return list(range(base)) + path[::-1]


def expected_row(cache, q, base, parents, row, window=0, sinks=None):
    """[H, D] of one row of q [M, H, D]."""
    rows = visible(base, parents, row)
    keys, values = (array[0][:, rows] for array in (cache.keys(), cache.values()))
    group = HEADS // KV_HEADS
    sink_of = [None] * HEADS if sinks is None else sinks
    return np.stack(
        [
            attend_row(q[row, h], keys[h // group], values[h // group], SCALE, window, sink_of[h])
            for h in range(HEADS)
        ]
    )


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [63, 64, 65, 255, 511, 512, 513, 1025, 1100])
def test_a_row_is_what_the_definition_gives(name, kind, depth):
    backend = make_backend(name)
    cache = filled(backend, kind, depth + 1)
    q = floats(1, HEADS, DIM, seed=depth)
    actual = backend.attention(cache, 0, q, depth, [-1], SCALE)
    assert actual[0].tobytes() == expected_row(cache, q, depth, [-1], 0).tobytes()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("base", [505, 1020])
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["plain", "sinks"])
@pytest.mark.parametrize("window", [0, 9, 70, 514, 700])
def test_rows_of_a_tree_are_what_the_definition_gives(name, base, sinks, window):
    """At the border of a span, with windows that begin inside one, or leave it out."""
    backend = make_backend(name)
    cache = filled(backend, "F16", base + len(TREE))
    q = floats(len(TREE), HEADS, DIM, seed=base)
    actual = backend.attention(cache, 0, q, base, TREE, SCALE, window, sinks)
    for row in (0, 4, 8):
        expected = expected_row(cache, q, base, TREE, row, window, sinks)
        assert actual[row].tobytes() == expected.tobytes(), row


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("window", [0, 300, 600])
@pytest.mark.parametrize("base", [440, 1010, 2990])
def test_a_row_does_not_depend_on_its_pass(name, threads, window, base):
    """Passes of 1, 3, 8 and 40 rows share their work out differently: by chunks, spans, rows."""
    if name != "cpu" and (threads > 1 or base > 2000):
        pytest.skip("threads are the host's, and the emulated device is slow")
    backend = make_backend(name, threads)
    cache = filled(backend, "F16", base + 40)
    q = floats(40, HEADS, DIM, seed=base)
    whole = backend.attention(cache, 0, q, base, np.arange(-1, 39), SCALE, window, SINKS)
    for rows in (1, 3, 8):
        first = 16  # so that passes begin at other places than the long one
        chain = np.arange(-1, rows - 1)
        part = backend.attention(
            cache, 0, q[first : first + rows], base + first, chain, SCALE, window, SINKS
        )
        assert part.tobytes() == whole[first : first + rows].tobytes(), rows
    expected = expected_row(cache, q, base, np.arange(-1, 39), 23, window, SINKS)
    assert whole[23].tobytes() == expected.tobytes()


def test_the_definition_tells_the_orders_of_merging_apart(monkeypatch):
    """Else the tests above would not see whether there are spans."""
    q, keys, values = floats(DIM, seed=1), floats(1100, DIM, seed=2), floats(1100, DIM, seed=3)
    with_spans = attend_row(q, keys, values, SCALE)
    monkeypatch.setattr("reference.attention_numpy.SPAN", 1)
    assert attend_row(q, keys, values, SCALE).tobytes() != with_spans.tobytes()
