"""Random weight matrices of every tensor type, raw and as the values they stand for."""

from __future__ import annotations

import gguf
import numpy as np

# Type -> byte offsets of the half floats in a block; everything else in a block may be any byte.
HALF_OFFSETS: dict[str, tuple[int, ...]] = {
    "F32": (),
    "F16": (0,),
    "BF16": (),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "MXFP4": (),
    "IQ4_XS": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ1_S": (0,),
    "IQ1_M": (),  # a half too, but scattered over four words
}
DTYPES = list(HALF_OFFSETS)


def block_geometry(dtype: str) -> tuple[int, int]:
    """Returns (values per block, bytes per block)."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]


def random_blocks(dtype: str, blocks: int, seed: int) -> np.ndarray:
    """Returns raw blocks [blocks, block bytes] of random bytes."""
    _, size = block_geometry(dtype)
    return np.random.default_rng(seed).integers(0, 256, (blocks, size), dtype=np.uint8)


def set_halves(raw: np.ndarray, dtype: str, halves: np.ndarray) -> None:
    """Writes halves [blocks, number of half fields] into raw blocks [blocks, block bytes]."""
    for column, offset in enumerate(HALF_OFFSETS[dtype]):
        raw[:, offset : offset + 2] = halves[:, column : column + 1].copy().view(np.uint8)


def decode(dtype: str, raw: np.ndarray) -> np.ndarray:
    """Returns the float32 values of raw rows [N, row bytes], by the ``gguf`` package."""
    kind = gguf.GGMLQuantizationType[dtype]
    return np.asarray(gguf.quants.dequantize(raw.copy(), kind), np.float32)


def random_weight(dtype: str, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns raw rows [n, row bytes] with values of ordinary size, and the values [n, k]."""
    block, size = block_geometry(dtype)
    rng = np.random.default_rng(seed)
    if dtype in ("F32", "F16", "BF16"):
        values = rng.normal(0, 0.1, (n, k)).astype(np.float32)
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[dtype]).view(np.uint8)
        return raw, decode(dtype, raw).reshape(n, k)
    raw = random_blocks(dtype, n * k // block, seed)
    scales = rng.uniform(0.001, 0.02, (len(raw), 2)).astype(np.float16)
    set_halves(raw, dtype, scales.view(np.uint16))
    if dtype == "MXFP4":
        raw[:, 0] = rng.integers(116, 123, len(raw))  # powers of two from 2^-12 on
    if dtype == "IQ1_M":
        half = scales[:, 0].view(np.uint16)
        for i in range(4):  # the top nibble of each word
            raw[:, 49 + 2 * i] = (raw[:, 49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4
    raw = raw.reshape(n, k // block * size)
    return raw, decode(dtype, raw).reshape(n, k)
