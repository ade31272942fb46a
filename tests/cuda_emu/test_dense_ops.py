"""Products, norms and blocks on the emulated device: by bytes what the cpu backend gives.

So the widths agree with each other as well, and the error bounds of the cpu backend hold.
"""

from __future__ import annotations

import numpy as np
import pytest

from specdec_native import _core
from support.backends import CUDA_DEVICE, make_backend
from support.weights import DTYPES, block_geometry, random_weight

WIDTHS = [*range(1, 18), 32, 33, 64, 65]
# (N, K): N no multiple of 32, nor of the 128 rows of a wide tile; K one block, an odd number of
# blocks, no multiple of the 8 that a stage of a narrow product holds.
SHAPES = [(37, 256), (130, 32), (50, 96), (5, 896), (34, 768), (20, 40)]
CASES = [(t, n, k) for t in DTYPES for n, k in SHAPES if k % block_geometry(t)[0] == 0]


@pytest.fixture(scope="module")
def emu():
    return make_backend(CUDA_DEVICE)


@pytest.fixture(scope="module")
def cpu():
    return make_backend("cpu")


@pytest.fixture(scope="module")
def ref():
    return make_backend("ref")


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


@pytest.mark.parametrize(("dtype", "n", "k"), CASES)
def test_products_at_every_width(emu, cpu, dtype, n, k):
    raw, _ = random_weight(dtype, n, k, seed=2)
    x = floats(max(WIDTHS), k)
    expected = cpu.matmul(dtype, raw, k, x)
    widths = WIDTHS if (n, k) == SHAPES[0] else [1, 2, 3, 9, 17, 65]
    for width in widths:
        actual = emu.matmul(dtype, raw, k, x[:width])
        assert actual.tobytes() == expected[:width].tobytes(), f"width {width}"


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "Q4_1", "Q6_K"])
def test_products_of_long_prefill_chunks(emu, cpu, dtype):
    raw, _ = random_weight(dtype, 50, 512, seed=2)
    x = floats(133, 512)
    assert emu.matmul(dtype, raw, 512, x).tobytes() == cpu.matmul(dtype, raw, 512, x).tobytes()


@pytest.mark.parametrize("dtype", ["Q4_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize(("n", "k", "width"), [(5000, 96, 200), (16400, 32, 3), (16400, 32, 12)])
def test_products_with_many_thread_blocks(emu, cpu, dtype, n, k, width):
    # So many that a thread block takes several groups of 32 rows, of which the last has too few.
    raw, _ = random_weight(dtype, n, k, seed=2)
    x = floats(width, k)
    assert emu.matmul(dtype, raw, k, x).tobytes() == cpu.matmul(dtype, raw, k, x).tobytes()


@pytest.mark.parametrize("rows", [3, 20])
def test_two_weights_in_one_launch_with_many_thread_blocks(emu, cpu, rows):
    # 257 groups each: the thread blocks of gate do not fill up with rows of up.
    shapes = [(8224, 32), (8224, 32), (32, 8224)]
    weights = [("Q5_0", random_weight("Q5_0", n, k, seed=n)[0]) for n, k in shapes]
    x = floats(rows, 32, seed=11)
    assert emu.gated_mlp(x, *weights).tobytes() == cpu.gated_mlp(x, *weights).tobytes()


@pytest.mark.parametrize("width", [3, 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_near_the_reference(emu, ref, dtype, width):
    raw, weight = random_weight(dtype, 40, 512, seed=3)
    x = floats(width, 512)
    # Rounding activations to int8 moves a value by amax / 254 at most.
    bound = np.abs(x).max() / 254 * np.abs(weight).sum(axis=1) + 1e-3
    difference = np.abs(emu.matmul(dtype, raw, 512, x) - ref.matmul(dtype, raw, 512, x))
    assert np.all(difference <= bound)


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_K", "Q6_K", "F16"])
@pytest.mark.parametrize("size", [1e5, 1e-20, 1e-38, 1e-44, 0.0])
def test_extreme_activations(emu, cpu, dtype, size):
    raw, _ = random_weight(dtype, 20, 256, seed=4)
    x = floats(33, 256) * np.float32(size)
    expected = cpu.matmul(dtype, raw, 256, x)
    for width in [*range(1, 18), 33]:
        actual = emu.matmul(dtype, raw, 256, x[:width])
        assert np.all(np.isfinite(actual))
        assert actual.tobytes() == expected[:width].tobytes(), f"width {width}"


@pytest.mark.parametrize("dtype", ["Q4_0", "Q6_K", "Q4_1", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("width", [2, 3, 20])
def test_a_nan_spoils_only_its_own_row(emu, dtype, value, width):
    raw, _ = random_weight(dtype, 32, 256, seed=5)
    x = floats(width, 256)
    clean = emu.matmul(dtype, raw, 256, x)
    x[1, 7] = value
    spoilt = emu.matmul(dtype, raw, 256, x)
    assert np.all(~np.isfinite(spoilt[1]))
    others = [i for i in range(width) if i != 1]
    assert spoilt[others].tobytes() == clean[others].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_rows(emu, cpu, dtype):
    raw, _ = random_weight(dtype, 10, 256, seed=6)
    tokens = [3, 0, 9, 3]
    expected = cpu.embed_rows(dtype, raw, 256, tokens)
    assert emu.embed_rows(dtype, raw, 256, tokens).tobytes() == expected.tobytes()


@pytest.mark.parametrize("cols", [1, 15, 64, 100, 4096, 5000])
def test_rms_norm(emu, cpu, ref, cols):
    x, gain = floats(3, cols, seed=7), floats(cols, seed=8)
    actual = emu.rms_norm(x, gain, 1e-5)
    assert actual.tobytes() == cpu.rms_norm(x, gain, 1e-5).tobytes()
    np.testing.assert_allclose(actual, ref.rms_norm(x, gain, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", ["nothing", "add", "upload"])
@pytest.mark.parametrize("dtype", ["Q4_0", "Q6_K", "F16"])
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_a_product_takes_its_input_as_it_is(emu, cpu, change, dtype, rows):
    # The norm leaves its output as int8 for the product, which must not use it for other values.
    raw, _ = random_weight(dtype, 37, 256, seed=5)
    x, gain = floats(rows, 256, seed=6), floats(256, seed=7)
    actual = emu.norm_then_matmul(x, gain, dtype, raw, change)
    assert actual.tobytes() == cpu.norm_then_matmul(x, gain, dtype, raw, change).tobytes()


def test_add(emu):
    x, y = floats(1000, seed=9), floats(1000, seed=10)
    assert np.array_equal(emu.add(x, y), x + y)


@pytest.mark.parametrize("rows", [1, 7])
def test_add_silu(emu, cpu, rows):
    x, y, bias = floats(rows, 96, seed=1) * 3, floats(rows, 96, seed=2) * 3, floats(96, seed=3)
    assert emu.add_silu(x, y, bias).tobytes() == cpu.add_silu(x, y, bias).tobytes()


@pytest.mark.parametrize("types", [("Q4_0", "Q4_0", "Q8_0"), ("F16", "F32", "Q4_1"), ("Q6_K",) * 3])
@pytest.mark.parametrize("rows", [1, 5])
def test_gated_mlp(emu, cpu, types, rows):
    weights = [(t, random_weight(t, 256, 256, seed=i)[0]) for i, t in enumerate(types)]
    x = floats(rows, 256, seed=11) * 2
    assert emu.gated_mlp(x, *weights).tobytes() == cpu.gated_mlp(x, *weights).tobytes()


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize(("dim", "rotated"), [(32, 32), (64, 40), (128, 128)])
def test_qkv_rope_store(emu, cpu, layout, kind, dim, rotated):
    rows, heads, kv_heads, base = 3, 4, 2, 5
    raws = [
        (t, random_weight(t, n * dim, 64, seed=n)[0])
        for t, n in (("Q8_0", heads), ("Q4_0", kv_heads), ("F16", kv_heads))
    ]
    angle = np.random.default_rng(1).uniform(0, 6, (rows, rotated // 2))
    cos_sin = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
    x = floats(rows, 64, seed=12)
    shape = (2, kv_heads, 10, dim)
    found = []
    for backend in (emu, cpu):
        cache = _core.testing.Cache(backend, kind, 2, kv_heads, dim, 10)
        cache.set(floats(*shape, seed=1), floats(*shape, seed=2))  # what must not be touched
        q = backend.qkv_rope_store(cache, 1, x, *raws, base, [-1, 0, 0], cos_sin, layout)
        found.append((q.tobytes(), cache.keys().tobytes(), cache.values().tobytes()))
    assert found[0] == found[1]
