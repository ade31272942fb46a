"""Random valid blocks of any tensor type, without quantising anything.

The bytes of a block are random except for its scales, which are set so that the values are centred
on zero and have a wanted standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

__all__ = ["BLOCK_TYPES", "FLOAT_TYPES", "random_rows"]

FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class _Scales:
    """Where the scales of a block lie.

    Attributes:
        d: Byte offset of the scale, a half.
        minimum: Byte offset of the second half that shifts the values, or None.
        shift: That half as a multiple of d, so that the values centre on zero.
        exponent: Byte offset of a power of two that is the scale instead of d, or None.
        spread: The half lies in the high nibbles of the last four 16-bit words instead.
    """

    d: int = 0
    minimum: int | None = None
    shift: float = 0.0
    exponent: int | None = None
    spread: bool = False


_SCALES: dict[str, _Scales] = {
    "Q4_0": _Scales(),
    "Q4_1": _Scales(0, 2, -7.5),
    "Q5_0": _Scales(),
    "Q5_1": _Scales(0, 2, -15.5),
    "Q8_0": _Scales(),
    "Q2_K": _Scales(80, 82, 1.5),  # the minimum is subtracted
    "Q3_K": _Scales(108),
    "Q4_K": _Scales(0, 2, 7.5),
    "Q5_K": _Scales(0, 2, 15.5),
    "Q6_K": _Scales(208),
    "IQ4_NL": _Scales(),
    "IQ4_XS": _Scales(),
    "IQ2_XXS": _Scales(),
    "IQ2_XS": _Scales(),
    "IQ2_S": _Scales(),
    "IQ3_XXS": _Scales(),
    "IQ3_S": _Scales(),
    "IQ1_S": _Scales(),
    "IQ1_M": _Scales(spread=True),
    "MXFP4": _Scales(exponent=0),
}
BLOCK_TYPES = tuple(_SCALES)


def _put_half(blocks: NDArray[np.uint8], at: int, value: NDArray[np.float32]) -> None:
    blocks[:, at : at + 2] = value.astype("<f2").view(np.uint8).reshape(-1, 2)


def _put_scales(blocks: NDArray[np.uint8], scales: _Scales, d: NDArray[np.float32]) -> None:
    if scales.exponent is not None:
        power = np.clip(np.round(np.log2(d)) + 127, 1, 254)
        blocks[:, scales.exponent] = power.astype(np.uint8)
        return
    if scales.spread:
        bits = d.astype("<f2").view(np.uint16)
        for i in range(4):
            word = blocks[:, 2 * i - 7]
            word[:] = (word & 15) | ((bits >> (4 * i)) & 15) << 4
        return
    _put_half(blocks, scales.d, d)
    if scales.minimum is not None:
        _put_half(blocks, scales.minimum, d * np.float32(scales.shift))


def _unit_std(rng: np.random.Generator, qtype: GGMLQuantizationType) -> float:
    """The standard deviation of random blocks whose scale is 1."""
    sample = rng.integers(0, 256, (512, GGML_QUANT_SIZES[qtype][1]), np.uint8)
    _put_scales(sample, _SCALES[qtype.name], np.ones(len(sample), np.float32))
    return float(dequantize(sample, qtype).std())


def random_rows(
    rng: np.random.Generator,
    rows: int,
    cols: int,
    std: float | NDArray[np.float32],
    qtype: GGMLQuantizationType,
) -> NDArray[np.uint8]:
    """Returns random rows as stored, uint8 [rows, row bytes], of standard deviation `std`.

    Args:
        rng: Where the bytes come from.
        rows: Number of rows.
        cols: Values of a row, a multiple of the type's block size.
        std: Standard deviation of the values (for a power-of-two scale: about), of all rows or of
            each.
        qtype: Any type in the table above, or a float type.
    """
    block, block_bytes = GGML_QUANT_SIZES[qtype]
    if cols % block:
        raise ValueError(f"rows of {cols} are no multiple of {block}, as {qtype.name} needs")
    if qtype.name in FLOAT_TYPES:
        values = rng.standard_normal((rows, cols), np.float32)
        values *= np.broadcast_to(np.float32(std), rows)[:, None]
        return _store_floats(values, qtype.name)
    if qtype.name not in _SCALES:
        known = ", ".join([*FLOAT_TYPES, *_SCALES])
        raise ValueError(f"cannot make random {qtype.name} blocks; known are {known}")
    per_row = cols // block
    count = rows * per_row
    raw = np.frombuffer(bytearray(rng.bytes(count * block_bytes)), np.uint8)
    blocks = raw.reshape(count, block_bytes)
    spread = rng.uniform(0.7, 1.3, count).astype(np.float32)
    row_std = np.broadcast_to(np.float32(std), rows) / np.float32(_unit_std(rng, qtype))
    _put_scales(blocks, _SCALES[qtype.name], np.repeat(row_std, per_row) * spread)
    return blocks.reshape(rows, per_row * block_bytes)


def _store_floats(values: NDArray[np.float32], name: str) -> NDArray[np.uint8]:
    if name == "F16":
        return values.astype("<f2").view(np.uint8)
    if name == "BF16":
        # Cut off, not rounded: these values are random anyway.
        return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return values.view(np.uint8)
