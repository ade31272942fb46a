"""Decoding of every weight type equals the ``gguf`` package's NumPy code bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_native import _core
from support.weights import HALF_OFFSETS, block_geometry, decode, random_blocks, set_halves

testing = _core.testing

# Only the half floats of a block can make a value subnormal, infinite or NaN.
SPECIAL_HALVES = np.array(
    [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01],
    dtype=np.uint16,
)


def assert_same_values(raw: np.ndarray, dtype: str) -> None:
    with np.errstate(all="ignore"):
        expected = decode(dtype, raw).reshape(-1)
    actual = testing.dequantize(dtype, raw.reshape(-1), expected.size)
    nan = np.isnan(expected)
    # The payload of a NaN depends on the machine; that it is one does not.
    assert np.array_equal(np.isnan(actual), nan)
    assert np.array_equal(actual[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def test_all_types_are_covered():
    names = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
    names |= {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"}
    names |= {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}
    assert set(HALF_OFFSETS) == names


@pytest.mark.parametrize("dtype", HALF_OFFSETS)
def test_ordinary_scales(dtype):
    raw = random_blocks(dtype, 512, seed=1)
    scales = np.random.default_rng(2).normal(0, 0.1, (512, 2)).astype(np.float16)
    set_halves(raw, dtype, scales.view(np.uint16))
    assert_same_values(raw, dtype)


@pytest.mark.parametrize("dtype", HALF_OFFSETS)
def test_any_bytes(dtype):
    assert_same_values(random_blocks(dtype, 4096, seed=3), dtype)


@pytest.mark.parametrize("dtype", [name for name in HALF_OFFSETS if HALF_OFFSETS[name]])
def test_special_scales(dtype):
    """Every pair of zero, subnormal, largest, infinite and NaN halves."""
    first, second = np.meshgrid(SPECIAL_HALVES, SPECIAL_HALVES)
    halves = np.stack([first.ravel(), second.ravel()], axis=1)
    raw = random_blocks(dtype, len(halves), seed=4)
    set_halves(raw, dtype, halves)
    assert_same_values(raw, dtype)


@pytest.mark.parametrize("dtype", HALF_OFFSETS)
def test_unaligned_source(dtype):
    raw = random_blocks(dtype, 3, seed=5).reshape(-1)
    shifted = np.zeros(raw.size + 1, np.uint8)
    shifted[1:] = raw
    block_size, block_bytes = block_geometry(dtype)
    n = raw.size // block_bytes * block_size
    aligned = testing.dequantize(dtype, raw, n)
    assert np.array_equal(
        testing.dequantize(dtype, shifted[1:], n).view(np.uint32), aligned.view(np.uint32)
    )


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="17 bytes are not 32 values of Q4_0"):
        testing.dequantize("Q4_0", np.zeros(17, np.uint8), 32)
    with pytest.raises(ValueError, match="not 31 values"):
        testing.dequantize("Q4_0", np.zeros(18, np.uint8), 31)
    with pytest.raises(ValueError, match="unknown tensor type 'Q9_9'"):
        testing.dequantize("Q9_9", np.zeros(18, np.uint8), 32)
    assert testing.dequantize("q4_0", np.zeros(0, np.uint8), 0).size == 0
