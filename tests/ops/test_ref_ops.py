"""The ref backend against float64 NumPy formulas: it is the oracle, so it must be right itself."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_native import _core
from support.backends import make_backend
from support.weights import DTYPES, random_weight

# Results are doubles rounded to float once (or twice, through a cache or a hidden layer).
TOLERANCE = {"rtol": 3e-6, "atol": 3e-6}


@pytest.fixture
def ref():
    return make_backend("ref")


def random_floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3])
def test_matmul(ref, dtype, rows):
    raw, weight = random_weight(dtype, 7, 512, seed=1)
    x = random_floats(rows, 512)
    expected = x.astype(np.float64) @ weight.astype(np.float64).T
    assert ref.matmul(dtype, raw, 512, x) == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_rows(ref, dtype):
    raw, weight = random_weight(dtype, 5, 256, seed=2)
    tokens = [4, 0, 4, 2]
    assert np.array_equal(ref.embed_rows(dtype, raw, 256, tokens), weight[tokens])


def test_rms_norm(ref):
    x, gain = random_floats(3, 37), random_floats(37, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + 1e-5) * gain
    np.testing.assert_allclose(ref.rms_norm(x, gain, 1e-5), expected, **TOLERANCE)


def test_rms_norm_of_zeros_is_zero(ref):
    assert np.all(ref.rms_norm(np.zeros((1, 8)), np.ones(8), 1e-6) == 0)


def test_add(ref):
    x, y = random_floats(100), random_floats(100, seed=1)
    assert np.array_equal(ref.add(x, y), x + y)


def test_add_silu(ref):
    x, y, bias = random_floats(3, 20), random_floats(3, 20, seed=1) * 4, random_floats(20, seed=2)
    wide = y.astype(np.float64) + bias
    expected = x + wide / (1 + np.exp(-wide))
    np.testing.assert_allclose(ref.add_silu(x, y, bias), expected, **TOLERANCE)


def test_gated_mlp(ref):
    gate, up, down = ("F32", "Q8_0", "F16")
    raw_gate, w_gate = random_weight(gate, 96, 64, seed=3)
    raw_up, w_up = random_weight(up, 96, 64, seed=4)
    raw_down, w_down = random_weight(down, 64, 96, seed=5)
    x = random_floats(3, 64) * 3
    wide = x.astype(np.float64)
    hidden = wide @ w_gate.T.astype(np.float64)
    hidden = hidden / (1 + np.exp(-hidden)) * (wide @ w_up.T.astype(np.float64))
    expected = hidden @ w_down.T.astype(np.float64)
    actual = ref.gated_mlp(x, (gate, raw_gate), (up, raw_up), (down, raw_down))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def rotate(heads, cos_sin, layout):
    """Rotates heads [M, H, D] by cos_sin [M, R/2, 2] in float64."""
    heads = heads.astype(np.float64)
    pairs = cos_sin.shape[1]
    first = slice(0, 2 * pairs, 2) if layout == "interleaved" else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if layout == "interleaved" else slice(pairs, 2 * pairs)
    cos, sin = cos_sin[:, None, :, 0], cos_sin[:, None, :, 1]
    out = heads.copy()
    out[..., first] = heads[..., first] * cos - heads[..., second] * sin
    out[..., second] = heads[..., first] * sin + heads[..., second] * cos
    return out


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("dtype", ["F32", "F16"])
@pytest.mark.parametrize("rotated", [8, 6])
def test_qkv_rope_store(ref, layout, dtype, rotated):
    rows, heads, kv_heads, dim, base, layer = 3, 4, 2, 8, 5, 1
    raws, weights = zip(
        *(random_weight("Q8_0", n * dim, 32, seed=n) for n in (heads, kv_heads, kv_heads)),
        strict=True,
    )
    x = random_floats(rows, 32)
    angle = np.random.default_rng(1).uniform(0, 6, (rows, rotated // 2))
    cos_sin = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
    cache = _core.testing.Cache(ref, dtype, 2, kv_heads, dim, 10)
    q = ref.qkv_rope_store(
        cache, layer, x, *(("Q8_0", raw) for raw in raws), base, [-1, 0, 0], cos_sin, layout
    )
    flat = [x.astype(np.float64) @ w.T.astype(np.float64) for w in weights]
    expected_q = rotate(flat[0].reshape(rows, heads, dim), cos_sin, layout)
    np.testing.assert_allclose(q, expected_q, **TOLERANCE)

    cached = slice(base, base + rows)
    expected_k = rotate(flat[1].reshape(rows, kv_heads, dim), cos_sin, layout).swapaxes(0, 1)
    expected_v = flat[2].reshape(rows, kv_heads, dim).swapaxes(0, 1)
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == "F16" else TOLERANCE
    keys, values = cache.keys(), cache.values()
    np.testing.assert_allclose(keys[layer, :, cached], expected_k, **tolerance)
    np.testing.assert_allclose(values[layer, :, cached], expected_v, **tolerance)
    for array in (keys, values):  # nothing else was touched
        assert np.all(array[0] == 0)
        assert np.all(np.delete(array[layer], np.arange(base, base + rows), axis=1) == 0)


def filled_cache(ref, dtype, layers, kv_heads, dim, capacity, seed=0):
    cache = _core.testing.Cache(ref, dtype, layers, kv_heads, dim, capacity)
    shape = (layers, kv_heads, capacity, dim)
    cache.set(random_floats(*shape, seed=seed), random_floats(*shape, seed=seed + 1))
    return cache


def visible_rows(base, parents, row):
    chain = []
    while row >= 0:
        chain.append(base + row)
        row = parents[row]
    return list(range(base)) + chain[::-1]


def numpy_attention(cache, layer, q, base, parents, scale):
    keys, values = (a[layer].astype(np.float64) for a in (cache.keys(), cache.values()))
    group = q.shape[1] // len(keys)
    out = np.zeros(q.shape)
    for i in range(len(q)):
        rows = visible_rows(base, parents, i)
        for h in range(q.shape[1]):
            scores = keys[h // group][rows] @ q[i, h].astype(np.float64) * scale
            weights = np.exp(scores - scores.max())
            out[i, h] = weights @ values[h // group][rows] / weights.sum()
    return out


TREES = {
    "one": [-1],
    "chain": [-1, 0, 1, 2],
    "siblings": [-1, -1, -1],
    "tree": [-1, 0, 0, 1, 2, 2, 0, -1],
}


@pytest.mark.parametrize("dtype", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("base", [0, 1, 63, 64, 65])
@pytest.mark.parametrize("tree", TREES)
def test_attention(ref, dtype, base, tree):
    parents = TREES[tree]
    cache = filled_cache(ref, dtype, layers=2, kv_heads=2, dim=32, capacity=80)
    q = random_floats(len(parents), 6, 32, seed=9)
    actual = ref.attention(cache, 1, q, base, parents, scale=0.25)
    expected = numpy_attention(cache, 1, q, base, parents, scale=0.25)
    np.testing.assert_allclose(actual, expected, **TOLERANCE)


def test_attention_of_several_segments_equals_each_alone(ref):
    caches = [filled_cache(ref, "F16", 1, 1, 8, 20, seed=s) for s in (0, 10)]
    parents = [[-1, 0, 1], [-1, -1]]
    q = random_floats(5, 2, 8, seed=9)
    together = ref.attention_segments(
        [(caches[0], 4, parents[0]), (caches[1], 9, parents[1])], 0, q, 0.3
    )
    alone = [
        ref.attention(caches[0], 0, q[:3], 4, parents[0], 0.3),
        ref.attention(caches[1], 0, q[3:], 9, parents[1], 0.3),
    ]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("dtype", ["F16", "Q8_0"])
def test_tree_row_equals_the_row_of_serial_decoding(ref, dtype):
    """Bit for bit: gather a path of the tree, then attend as a chain."""
    parents, path, base = [-1, 0, 0, 1, 2, 2], [0, 2, 5], 7
    cache = filled_cache(ref, dtype, 2, 2, 32, 20)
    q = random_floats(6, 4, 32, seed=5)
    in_tree = ref.attention(cache, 1, q, base, parents, 0.3)[path]
    ref.keep_rows(cache, base, path)
    serial = [
        ref.attention(cache, 1, q[row : row + 1], base + depth, [-1], 0.3)[0]
        for depth, row in enumerate(path)
    ]
    assert np.array_equal(in_tree, np.stack(serial))


@pytest.mark.parametrize("dtype", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("rows", [[], [0], [0, 1, 2], [1], [0, 2, 5], [3, 4, 5]])
def test_keep_rows(ref, dtype, rows):
    base = 4
    cache = filled_cache(ref, dtype, 2, 3, 32, 12)
    before = cache.keys(), cache.values()
    ref.keep_rows(cache, base, np.array(rows, np.int32))
    for old, new in zip(before, (cache.keys(), cache.values()), strict=True):
        assert np.array_equal(new[:, :, :base], old[:, :, :base])
        kept = [base + row for row in rows]
        assert np.array_equal(new[:, :, base : base + len(rows)], old[:, :, kept])


def test_wrong_shapes_are_refused(ref):
    raw, _ = random_weight("Q8_0", 4, 64, seed=0)
    cache = filled_cache(ref, "F32", 1, 2, 8, 6)
    q = random_floats(2, 2, 8)
    with pytest.raises(ValueError, match=r"x has shape \[1, 32\], expected \[any, 64\]"):
        ref.matmul("Q8_0", raw, 64, np.zeros((1, 32)))
    with pytest.raises(ValueError, match="raw has shape"):
        ref.matmul("Q4_0", raw, 64, np.zeros((1, 64)))
    with pytest.raises(ValueError, match="not whole blocks"):
        ref.matmul("Q8_0", raw, 40, np.zeros((1, 40)))
    with pytest.raises(ValueError, match="token 4 of a table of 4 rows"):
        ref.embed_rows("Q8_0", raw, 64, [4])
    with pytest.raises(ValueError, match="2 rows from 5 in a cache of 6"):
        ref.attention(cache, 0, q, 5, [-1, 0], 1.0)
    with pytest.raises(ValueError, match=r"parents\[1\] is 1"):
        ref.attention(cache, 0, q, 0, [-1, 1], 1.0)
    with pytest.raises(ValueError, match="3 query heads for 2"):
        ref.attention(cache, 0, random_floats(1, 3, 8), 0, [-1], 1.0)
    with pytest.raises(ValueError, match=r"rows\[1\] is 1"):
        ref.keep_rows(cache, 0, [2, 1])
    with pytest.raises(ValueError, match="not Q4_0"):
        _core.testing.Cache(ref, "Q4_0", 1, 1, 32, 4)
