"""Products of the cpu backend: against the dequantised weights, and bit for bit across widths."""

from __future__ import annotations

import numpy as np
import pytest

from support.backends import make_backend
from support.weights import DTYPES, block_geometry, random_weight

FLOAT_DTYPES = ["F32", "F16", "BF16"]
# (N, K): N no multiple of the 32 rows of a group, K no multiple of 64.
SHAPES = [(37, 256), (16, 32), (33, 64), (50, 96), (5, 896), (20, 40), (48, 512)]
CASES = [(t, n, k) for t in DTYPES for n, k in SHAPES if k % block_geometry(t)[0] == 0]


@pytest.fixture(scope="module")
def cpu():
    return make_backend("cpu")


def random_floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def error_bound(dtype: str, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What rounding activations to int8 in blocks of 32 can change, [M, N]; a little for floats."""
    magnitude = np.abs(weight.astype(np.float64))
    noise = np.abs(x.astype(np.float64)) @ magnitude.T * 1e-5 + 1e-30
    if dtype in FLOAT_DTYPES:
        return noise
    blocks = np.abs(x).reshape(len(x), -1, 32).max(axis=2).astype(np.float64) / 254
    return noise + blocks @ magnitude.reshape(len(weight), -1, 32).sum(axis=2).T


@pytest.mark.parametrize(("dtype", "n", "k"), CASES)
def test_error_is_what_int8_activations_imply(cpu, dtype, n, k):
    raw, weight = random_weight(dtype, n, k, seed=1)
    x = random_floats(9, k)
    error = np.abs(cpu.matmul(dtype, raw, k, x) - x.astype(np.float64) @ weight.T)
    assert np.all(error <= error_bound(dtype, weight, x))


@pytest.mark.parametrize(("dtype", "n", "k"), CASES)
def test_a_row_does_not_depend_on_the_width(cpu, dtype, n, k):
    raw, _ = random_weight(dtype, n, k, seed=2)
    x = random_floats(40, k)
    single = np.concatenate([cpu.matmul(dtype, raw, k, x[i : i + 1]) for i in range(17)])
    for width in [*range(2, 18), 40]:
        wide = cpu.matmul(dtype, raw, k, x[:width])
        assert wide[:17].tobytes() == single[:width].tobytes(), f"width {width}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_integer_dots_are_exact(cpu, dtype):
    """Activations that int8 holds exactly leave only the float rounding of the scales."""
    raw, weight = random_weight(dtype, 33, 512, seed=3)
    x = np.random.default_rng(3).integers(-127, 128, (3, 512)).astype(np.float32)
    x[:, ::32] = 127  # every block's scale is 1
    expected = x.astype(np.float64) @ weight.astype(np.float64).T
    scale = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T
    assert np.all(np.abs(cpu.matmul(dtype, raw, 512, x) - expected) <= 4e-6 * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e5, 1e-20, 1e-38, 1e-44, 0.0])
def test_extreme_activations_stay_finite(cpu, dtype, size):
    raw, weight = random_weight(dtype, 20, 256, seed=4)
    x = random_floats(2, 256) * np.float32(size)
    result = cpu.matmul(dtype, raw, 256, x)
    assert np.all(np.isfinite(result))
    error = np.abs(result - x.astype(np.float64) @ weight.astype(np.float64).T)
    assert np.all(error <= error_bound(dtype, weight, x) + 1e-34)


@pytest.mark.parametrize("dtype", ["Q4_0", "Q6_K", "Q4_1"])
def test_a_nan_spoils_only_its_own_row(cpu, dtype):
    raw, _ = random_weight(dtype, 32, 256, seed=5)
    x = random_floats(3, 256)
    clean = cpu.matmul(dtype, raw, 256, x)
    x[1, 100] = np.nan
    spoiled = cpu.matmul(dtype, raw, 256, x)
    assert np.all(np.isnan(spoiled[1]))
    assert spoiled[[0, 2]].tobytes() == clean[[0, 2]].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_rows_gives_the_values_of_the_file(cpu, dtype):
    raw, weight = random_weight(dtype, 40, 256, seed=6)
    tokens = [39, 0, 17, 17]
    assert np.array_equal(cpu.embed_rows(dtype, raw, 256, tokens), weight[tokens])
