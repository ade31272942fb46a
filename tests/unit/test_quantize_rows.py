"""Quantising rows: accuracy against reference figures, exact values, extreme values."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from specdec_native import _core
from support.quantize import golden_errors, golden_tensors, mean_squared_error, round_trip
from support.weights import block_geometry, random_weight

testing = _core.testing

# The types whose numbers are evenly spaced; those of a table are tested apart.
DTYPES = [
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
]
BLOCK_TYPES = [name for name in DTYPES if name not in ("F32", "F16", "BF16")]
# Largest and smallest integer of each type's numbers, as the format defines them.
SIMPLE_RANGES = {"Q4_0": (-8, 7), "Q5_0": (-16, 15), "Q8_0": (-127, 127)}
AFFINE_LEVELS = {"Q4_1": 15, "Q5_1": 31}


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return golden_tensors()


# --- The types whose numbers are places in a table ---

TABLE_TYPES = ("IQ4_NL", "IQ4_XS", "MXFP4")


def table_round_trip(dtype: str, values: np.ndarray) -> np.ndarray:
    raw = testing.quantize(dtype, values.reshape(-1))
    kind = gguf.GGMLQuantizationType[dtype]
    return gguf.quants.dequantize(raw, kind).reshape(values.shape)


@pytest.mark.parametrize("dtype", TABLE_TYPES)
def test_table_types_keep_zeros_and_stay_finite(dtype):
    assert not table_round_trip(dtype, np.zeros(512, np.float32)).any()
    values = np.random.default_rng(9).normal(0, 1, 512).astype(np.float32)
    for scale in (1e-44, 1e-7, 1.0, 1e30):
        decoded = table_round_trip(dtype, (values * np.float32(scale)).astype(np.float32))
        assert np.isfinite(decoded).all()
        # Half of a subnormal half float's step, times the largest entry, is 4e-6.
        assert np.abs(decoded).max() <= max(2 * scale * np.abs(values).max(), 8e-6)


def test_mxfp4_is_exact_on_its_own_values_and_no_worse_than_the_plain_rule(tensors):
    exact = np.tile(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32) / 8, 4)
    exact[16:] *= -1
    assert np.array_equal(table_round_trip("MXFP4", exact), exact)
    values = tensors["blk.0.attn_q.weight"]
    kind = gguf.GGMLQuantizationType.MXFP4
    plain = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    ours = mean_squared_error(table_round_trip("MXFP4", values), values)
    assert ours < 0.96 * mean_squared_error(plain, values)


# --- All types ---


@pytest.mark.parametrize(("dtype", "name"), golden_errors())
def test_error_is_at_most_that_of_the_reference(dtype, name, tensors):
    decoded = (table_round_trip if dtype in TABLE_TYPES else round_trip)(dtype, tensors[name])
    error = mean_squared_error(decoded, tensors[name])
    assert error <= golden_errors()[dtype, name]


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_decoders_agree_on_what_was_written(dtype):
    values = np.random.default_rng(1).normal(0, 0.1, 4096).astype(np.float32)
    raw = testing.quantize(dtype, values)
    ours = testing.dequantize(dtype, raw, values.size)
    assert np.array_equal(ours, round_trip(dtype, values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_input_same_bytes(dtype):
    values = np.random.default_rng(2).normal(0, 0.1, 2048).astype(np.float32)
    assert np.array_equal(testing.quantize(dtype, values), testing.quantize(dtype, values))
    whole = testing.quantize(dtype, values)
    parts = [testing.quantize(dtype, part) for part in values.reshape(8, 256)]
    assert np.array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_zeros_stay_zeros(dtype):
    assert not round_trip(dtype, np.zeros(512, np.float32)).any()


@pytest.mark.parametrize("dtype", SIMPLE_RANGES)
@pytest.mark.parametrize("sign", [1, -1])
def test_values_on_a_symmetric_grid_are_exact(dtype, sign):
    low, high = SIMPLE_RANGES[dtype]
    numbers = np.arange(32) % (high - low + 1) + low
    numbers[0], numbers[1] = low, high
    values = (sign * 0.25 * numbers).astype(np.float32)
    assert np.array_equal(round_trip(dtype, values), values)


@pytest.mark.parametrize("dtype", AFFINE_LEVELS)
def test_values_on_an_affine_grid_are_exact(dtype):
    values = (0.5 * (np.arange(32) % (AFFINE_LEVELS[dtype] + 1)) - 3).astype(np.float32)
    assert np.array_equal(round_trip(dtype, values), values)


def test_q8_0_has_the_bytes_of_the_reference(tensors):
    """Files of this type can be compared by their checksums."""
    values = tensors["blk.0.attn_q.weight"].copy()
    values[0, :32] = np.arange(32) * 4 - 63.5  # ties
    values[1] = 0
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(testing.quantize("Q8_0", values.reshape(-1)), expected.reshape(-1))


@pytest.mark.parametrize(("dtype", "limit"), [
    ("Q4_0", 1e-3), ("Q5_0", 5e-4), ("Q3_K", 4e-3), ("IQ4_NL", 1e-3), ("Q2_K", 0.02),
])  # fmt: skip
def test_blocks_keep_their_length(dtype, limit, tensors):
    """Plain least squares would lose the share of the error: 1.1 %, 0.3 %, 3 %, 0.7 %, 8 %."""
    values = tensors["blk.0.attn_q.weight"].astype(np.float64)
    decoded = (table_round_trip if dtype in TABLE_TYPES else round_trip)(dtype, values)
    kept = (values * decoded).sum() / (values**2).sum()
    assert abs(kept - 1) < limit


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_requantising_loses_next_to_nothing(dtype):
    """Values of a type are found again, up to a fraction of its own error."""
    values = golden_tensors()["blk.0.attn_q.weight"][:64]
    once = round_trip(dtype, values)
    first = mean_squared_error(once, values)
    assert mean_squared_error(round_trip(dtype, once), once) < 0.35 * first


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_constant_rows(dtype):
    for value in (1.0, -1.0, 3e-5, -2000.0):
        values = np.full(256, value, np.float32)
        # Where the scale is a subnormal half, steps are coarse.
        tolerance = 0.01 if abs(value) > 0.1 else 0.06
        assert np.allclose(round_trip(dtype, values), values, rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
@pytest.mark.parametrize("shift", [5.0, -5.0])
def test_rows_far_from_zero(dtype, shift):
    """All of one sign, where the minimum of a K type cannot help, or must."""
    values = (np.random.default_rng(3).normal(0, 1, 1024) + shift).astype(np.float32)
    error = np.sqrt(mean_squared_error(round_trip(dtype, values), values))
    bits = int(dtype[1])
    assert error < 10 / 2**bits


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_error_of_each_value_is_bounded(dtype):
    """No value is off by more than a third of the block's range, nor by a step in 8 bits."""
    values = np.random.default_rng(4).normal(0, 1, (64, 256)).astype(np.float32)
    worst = np.abs(round_trip(dtype, values) - values).max()
    bound = {"2": 1.6, "3": 1.4, "4": 0.9, "5": 0.45, "6": 0.25, "8": 0.03}[dtype[1]]
    assert worst < bound


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "F32"])
def test_huge_values_become_large_ones_never_infinite(dtype):
    values = np.random.default_rng(5).normal(0, 1, 512).astype(np.float32)
    values[::7] = np.finfo(np.float32).max
    values[3::7] = np.finfo(np.float32).min
    decoded = round_trip(dtype, values)
    assert np.isfinite(decoded).all()
    assert (np.sign(decoded[::7]) == 1).all()
    assert (decoded[3::7] <= decoded[::7].min()).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-7, 1e-12, 1e-38, 1e-44])
def test_tiny_values(dtype, scale):
    values = (np.random.default_rng(6).normal(0, 1, 512) * scale).astype(np.float32)
    decoded = round_trip(dtype, values)
    assert np.isfinite(decoded).all()
    assert np.abs(decoded).max() <= max(2 * np.abs(values).max(), 0)


def test_f16_rounds_like_numpy_and_stays_finite():
    values = np.random.default_rng(7).normal(0, 10, 4096).astype(np.float32)
    assert np.array_equal(round_trip("F16", values), values.astype(np.float16).astype(np.float32))
    extreme = np.array([65504, 65519, 65520, 1e30, -1e30], np.float32)
    assert round_trip("F16", extreme).tolist() == [65504, 65504, 65504, 65504, -65504]


def test_bf16_rounds_to_nearest_even_and_stays_finite():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF7FFFFF, 0x80000001])
    raw = testing.quantize("BF16", bits.astype(np.uint32).view(np.float32)).view(np.uint16)
    assert [hex(one) for one in raw] == ["0x3f80", "0x3f82", "0x3f81", "0x7f7f", "0xff7f", "0x8000"]


def test_f32_is_copied():
    values = np.array([1.5, -0.0, 1e-45, 3e38], np.float32)
    assert testing.quantize("F32", values).tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_weights_of_another_type(dtype):
    """The values of any type are fit input."""
    for source in DTYPES:
        _, values = random_weight(source, 2, 256, seed=8)
        error = mean_squared_error(round_trip(dtype, values), values)
        assert error <= 0.3 * float(np.mean(values.astype(np.float64) ** 2))


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="33 values are not whole blocks of Q4_0"):
        testing.quantize("Q4_0", np.zeros(33, np.float32))
    for dtype in DTYPES:
        assert testing.quantize(dtype, np.zeros(0, np.float32)).size == 0
        block, size = block_geometry(dtype)
        assert testing.quantize(dtype, np.zeros(block, np.float32)).size == size
