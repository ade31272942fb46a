"""Weights stored as 8-bit floats (E4M3) with scales, as Qwen, DeepSeek and Mistral publish them.

A weight [N, K] of this type has beside it ``NAME_scale_inv``: one number for all, or one for each
block of rows and columns (``weight_block_size`` in the configuration), by which the values are
multiplied (finegrained_fp8.py of huggingface/transformers). The eight bits are a sign, four of
exponent (bias 7) and three of mantissa; there are no infinities (arXiv 2209.05433).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["E4M3", "scaled_rows"]


def _table() -> NDArray[np.float32]:
    """The value of each of the 256 bytes."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1.0 + mantissa / 8.0, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6), normal)
    values[codes & 127 == 127] = np.nan
    return np.asarray(np.where(codes & 128, -values, values), np.float32)


E4M3 = _table()
"""Value of each byte."""


def scaled_rows(
    rows: NDArray[np.float32], first: int, scales: NDArray[np.float32], block: tuple[int, int]
) -> NDArray[np.float32]:
    """Rows of a weight, multiplied by their scales.

    Args:
        rows: [count, K], the rows from `first` on.
        first: The first row's number.
        scales: One number, or one for each block: [N / block[0], K / block[1]], rounded up.
        block: Rows and columns of a block.
    """
    if scales.size == 1:
        return rows * scales.reshape(())
    of_rows = scales[np.arange(first, first + len(rows)) // block[0]]
    return rows * np.repeat(of_rows, block[1], axis=1)[:, : rows.shape[1]]
