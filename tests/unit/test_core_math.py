"""Randomness, elementary functions and 16-bit floats of ``core/``: known answers and accuracy."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_native import _core

testing = _core.testing


# From kat_vectors of the Random123 distribution, philox4x32 with 10 rounds: counter, key, result.
PHILOX_KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PHILOX_KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, expected):
    assert testing.philox4x32_10(counter=counter, key=key) == expected


def test_random_u64_uses_every_part_of_its_key():
    base = {"seed": 1 << 40 | 7, "position": 1 << 33 | 5, "purpose": 1, "lane": 3}
    changed = [
        base,
        base | {"seed": 7},
        base | {"seed": 1 << 40},
        base | {"position": 5},
        base | {"position": 1 << 33},
        base | {"purpose": 2},
        base | {"lane": 4},
    ]
    assert len({testing.random_u64(**key) for key in changed}) == len(changed)
    assert testing.random_u64(**base) == testing.random_u64(**base)


def test_random_u64_known_layout():
    """Low word first; position in counter words 0 and 1, then purpose and lane."""
    words = testing.philox4x32_10(counter=(5, 2, 1, 9), key=(7, 3))
    value = testing.random_u64(seed=3 << 32 | 7, position=2 << 32 | 5, purpose=1, lane=9)
    assert value == words[1] << 32 | words[0]


def test_unit_interval_ends():
    assert testing.u64_to_unit(0) == 0.0
    assert testing.u64_to_unit(2**64 - 1) == 1.0 - 2.0**-53


def ulp_error(actual, exact, dtype):
    """Difference in units of the last place of ``exact`` in ``dtype``."""
    spacing = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
    return np.max(np.abs(actual.astype(np.float64) - exact.astype(np.float64)) / spacing)


def test_exp_f32_accuracy():
    x = np.linspace(-87.0, 88.0, 400_001, dtype=np.float32)
    assert ulp_error(testing.exp_f32(x), np.exp(x.astype(np.float64)), np.float32) < 2.0


def test_exp_f32_special_values():
    x = np.array([0.0, -0.0, -87.5, -np.inf, np.nan, 88.0, 89.0, np.inf], dtype=np.float32)
    y = testing.exp_f32(x)
    assert y[:5].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert y[5] == y[6] == y[7]  # clamped, finite
    assert np.isfinite(y[7])


def test_exp_f32_never_rises_above_one_for_a_weight():
    x = -np.geomspace(1e-30, 87.0, 100_000).astype(np.float32)
    y = testing.exp_f32(x)
    assert np.all(y <= 1.0)
    assert np.all(y > 0.0)


def test_exp_f64_accuracy():
    x = np.linspace(-700.0, 700.0, 200_001)
    assert ulp_error(testing.exp_f64(x), np.exp(x), np.float64) < 4.0
    assert testing.exp_f64(np.array([-np.inf, -701.0, 0.0])).tolist() == [0.0, 0.0, 1.0]


def test_log_f64_accuracy():
    x = np.concatenate([np.geomspace(1e-300, 1e300, 200_001), np.linspace(0.5, 2.0, 100_001)])
    exact = np.log(x)
    error = np.abs(testing.log_f64(x) - exact)
    assert np.all(error <= 2e-15 * np.maximum(np.abs(exact), 0.1))
    assert testing.log_f64(np.array([1.0]))[0] == 0.0
    assert testing.log_f64(np.array([0.0]))[0] == -np.inf


def test_neg_log1m_accuracy_also_for_tiny_arguments():
    v = np.concatenate([np.geomspace(1e-20, 0.999, 200_001), np.linspace(0.2, 0.3, 1001)])
    exact = -np.log1p(-v)
    assert np.all(np.abs(testing.neg_log1m_f64(v) - exact) <= 2e-15 * exact)
    assert testing.neg_log1m_f64(np.array([0.0, 1.0])).tolist() == [0.0, np.inf]


def test_sin_cos_accuracy():
    rng = np.random.default_rng(1)
    x = np.concatenate([np.arange(0, 100_000.0), rng.uniform(-1e6, 1e6, 100_000)])
    sin, cos = testing.sin_cos_f64(x)
    assert np.max(np.abs(sin - np.sin(x))) < 1e-15
    assert np.max(np.abs(cos - np.cos(x))) < 1e-15


def is_nan_half(half):
    return (half & 0x7FFF) > 0x7C00


def test_half_to_float_of_all_values():
    half = np.arange(65536, dtype=np.uint16)
    actual = testing.half_to_float_bits(half).view(np.float32)
    expected = half.view(np.float16).astype(np.float32)
    nan = is_nan_half(half)
    assert np.array_equal(actual[~nan].view(np.uint32), expected[~nan].view(np.uint32))
    assert np.all(np.isnan(actual[nan]))


def test_float_to_half_returns_every_half():
    half = np.arange(65536, dtype=np.uint16)
    back = testing.float_bits_to_half(testing.half_to_float_bits(half))
    nan = is_nan_half(half)
    assert np.array_equal(back[~nan], half[~nan])
    assert np.all(is_nan_half(back[nan]))


def test_float_to_half_rounds_like_numpy():
    """Every midpoint between neighbours and the floats next to it, both signs, plus random bits."""
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = ((half[:-1] + half[1:]) / 2).astype(np.float32)
    edges = np.array([65504, 65519.99, 65520, 65536, 1e38, np.inf, 1e-45, 2.0**-25], np.float32)
    around = np.concatenate(
        [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9)), edges]
    )
    rng = np.random.default_rng(2)
    random_bits = rng.integers(0, 2**32, 500_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([around, -around, random_bits[~np.isnan(random_bits)]])
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
    assert np.array_equal(testing.float_bits_to_half(values.view(np.uint32)), expected)


def test_float_to_half_keeps_nan():
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], dtype=np.uint32)
    assert np.all(is_nan_half(testing.float_bits_to_half(nans)))


def test_bf16_is_the_high_half_of_a_float():
    bits = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(testing.bf16_to_float_bits(bits), bits.astype(np.uint32) << 16)
