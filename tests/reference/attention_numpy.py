"""Attention as csrc/backend/README.md defines it, operation for operation in float32.

Written from that page, not from a backend: what it gives is what `cpu` and `cuda` must give, to the
bit. exp is the engine's own (`_core.testing.exp_f32`), which has tests of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_native import _core

Floats = NDArray[np.float32]

CHUNK = 64  # positions
SPAN = 8  # chunks
LANES = 16


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """Returns a * b + c rounded once: the product is exact in double, the sum nearly always."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def exp(x: Floats) -> Floats:
    return _core.testing.exp_f32(np.ascontiguousarray(x, np.float32))


def add_lanes(lanes: Floats) -> Floats:
    """[..., 16] -> [...]: lanes 8 apart, then 4, 2, 1."""
    for apart in (8, 4, 2, 1):
        lanes = lanes[..., :apart] + lanes[..., apart : 2 * apart]
    return lanes[..., 0]


def steps_of_lanes(x: Floats) -> Floats:
    """[..., n] -> [ceil(n / 16), ..., 16], filled up with zeros."""
    fill = -x.shape[-1] % LANES
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, fill)])
    return np.moveaxis(x.reshape(*x.shape[:-1], -1, LANES), -2, 0)


def dots(q: Floats, keys: Floats) -> Floats:
    """Products of q [D] with keys [T, D]: [T]."""
    sums = np.zeros((len(keys), LANES), np.float32)
    for x, key in zip(steps_of_lanes(q), steps_of_lanes(keys), strict=True):
        sums = fma(np.broadcast_to(x, key.shape), key, sums)
    return add_lanes(sums)


Result = tuple[np.float32, np.float32, Floats]  # max, sum, acc [D]


def chunk_result(q: Floats, keys: Floats, values: Floats, scale: float) -> Result:
    """One query over what it sees of a chunk: keys and values [T, D]."""
    scores = np.float32(scale) * dots(q, keys)
    most = scores.max()
    weights = exp(scores - most)
    lanes = np.zeros(LANES, np.float32)
    for step in steps_of_lanes(weights):
        lanes = lanes + step
    acc = np.zeros(values.shape[1], np.float32)
    for weight, value in zip(weights, values, strict=True):
        acc = fma(np.broadcast_to(weight, value.shape), value, acc)
    return most, add_lanes(lanes), acc


def merge(a: Result, b: Result) -> Result:
    most = max(a[0], b[0])
    old, new = exp(np.array([a[0] - most, b[0] - most], np.float32))
    total = fma(b[1], new, np.float32(a[1] * old))
    return most, total, fma(b[2], np.broadcast_to(new, b[2].shape), a[2] * old)


def merge_all(results: Sequence[Result]) -> Result:
    whole = results[0]
    for result in results[1:]:
        whole = merge(whole, result)
    return whole


def attend_row(
    q: Floats,
    keys: Floats,
    values: Floats,
    scale: float,
    window: int = 0,
    sink: float | None = None,
) -> Floats:
    """The result [D] of a row's query [D] over its logical positions: keys and values [T, D]."""
    length = len(keys)
    first = max(0, length - window) if window else 0
    spans = []
    for span in range(first // (CHUNK * SPAN), -(-length // (CHUNK * SPAN))):
        chunks = []
        for chunk in range(span * SPAN, (span + 1) * SPAN):
            seen = slice(max(chunk * CHUNK, first), min((chunk + 1) * CHUNK, length))
            if seen.start < seen.stop:
                chunks.append(chunk_result(q, keys[seen], values[seen], scale))
        spans.append(merge_all(chunks))
    whole = merge_all(spans)
    if sink is not None:
        one = np.float32(1)
        whole = merge(whole, (np.float32(sink), one, np.zeros_like(whole[2])))
    return whole[2] / whole[1]
