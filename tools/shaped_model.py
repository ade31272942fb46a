"""Writes models with the shape of known ones and random weights, to be timed, not to be read.

The file is written tensor by tensor in pieces, so that an 8B model needs no more memory than a
small one.

    python tools/make_tiny_model.py big.gguf --preset 1b --dtype q4_k --layers 4
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from gguf_edit import Metadata
from random_blocks import random_rows

__all__ = ["PRESETS", "Preset", "q4_k_m", "write_shaped_model"]

_PIECE_BYTES = 32 << 20  # of a tensor in memory at once
_PATTERN_BYTES = 1 << 20  # of one that repeats itself


@dataclass(frozen=True)
class Preset:
    """The shape of a known model: a Llama, or with experts a Qwen3Moe."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    tied: bool
    rope_factor: float
    vocab: int = 128256
    context: int = 131072
    rope_base: float = 500000.0
    rope_original_context: int = 8192
    experts: int = 0  # each of `ffn` features
    experts_used: int = 0


_OLMOE = Preset(16, 2048, 16, 16, 128, 1024, tied=False, rope_factor=1.0, vocab=50304)
PRESETS = {
    "tiny": Preset(2, 256, 4, 2, 64, 512, tied=False, rope_factor=8.0, vocab=512),  # for dry runs
    "tiny-moe": Preset(
        2, 256, 4, 2, 64, 256, tied=False, rope_factor=8.0, vocab=512, experts=6, experts_used=2
    ),
    "1b": Preset(16, 2048, 32, 8, 64, 8192, tied=True, rope_factor=32.0),  # as Llama 3.2 1B
    "8b": Preset(32, 4096, 32, 8, 128, 14336, tied=False, rope_factor=8.0),  # as Llama 3.1 8B
    "moe": replace(_OLMOE, experts=64, experts_used=8),  # as OLMoE 1B-7B
    "moe-token": replace(_OLMOE, ffn=8 * 1024),  # dense, with what a token of "moe" reads
}


@dataclass(frozen=True)
class _Tensor:
    """One tensor to write: random if `std` is given, else `values`."""

    name: str
    rows: int  # of all matrices of a stack
    cols: int
    qtype: GGMLQuantizationType
    std: float = 0.0
    values: NDArray[np.float32] | None = None
    stack: int = 0  # matrices, if it is a stack

    @property
    def stored_shape(self) -> list[int]:
        """Stored bytes as the shape, as the writer wants it for blocks of another type."""
        if self.values is not None:
            return [self.cols]
        if self.stack:
            return [self.stack, self.rows // self.stack, self.row_bytes]
        return [self.rows, self.row_bytes]

    @property
    def row_bytes(self) -> int:
        block, block_bytes = GGML_QUANT_SIZES[self.qtype]
        if self.cols % block:
            raise ValueError(
                f"{self.name} has rows of {self.cols}, no multiple of {block} as "
                f"{self.qtype.name} needs"
            )
        return self.cols // block * block_bytes

    def pieces(self, seed: int, repeating: bool) -> Iterator[NDArray[np.uint8]]:
        """The bytes, in order; they depend only on the seed and the name."""
        if self.values is not None:
            yield self.values.view(np.uint8)
            return
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        step = max(1, (_PATTERN_BYTES if repeating else _PIECE_BYTES) // self.row_bytes)
        pattern = random_rows(rng, min(step, self.rows), self.cols, self.std, self.qtype)
        for first in range(0, self.rows, step):
            count = min(step, self.rows - first)
            if first > 0 and not repeating:
                pattern = random_rows(rng, count, self.cols, self.std, self.qtype)
            yield pattern[:count]


def _vector(name: str, values: NDArray[np.float32]) -> _Tensor:
    return _Tensor(name, 1, len(values), GGMLQuantizationType.F32, values=values)


def _llama3_factors(preset: Preset) -> NDArray[np.float32]:
    """Divisors of the rotary frequencies as Llama 3.1 defines them (low 1, high 4)."""
    pairs = preset.head_dim // 2
    turns = preset.rope_base ** (-np.arange(pairs) / pairs)
    turns *= preset.rope_original_context / (2 * math.pi)
    smooth = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / preset.rope_factor + smooth)).astype(np.float32)


def _tensors(
    preset: Preset, layers: int, dtype: str, exceptions: Mapping[str, str]
) -> Iterator[_Tensor]:
    def matrix(name: str, rows: int, cols: int, std: float, stack: int = 0) -> _Tensor:
        chosen = dtype
        for pattern, exception in exceptions.items():
            if re.search(pattern, name):
                chosen = exception
        qtype = GGMLQuantizationType[chosen.upper()]
        return _Tensor(name, max(1, stack) * rows, cols, qtype, std, stack=stack)

    width, ones = preset.width, np.ones(preset.width, np.float32)
    attention, kv_width = preset.heads * preset.head_dim, preset.kv_heads * preset.head_dim
    unit = 1.0 / math.sqrt(width)
    yield matrix("token_embd.weight", preset.vocab, width, 0.04)
    if not preset.experts:
        yield _vector("rope_freqs.weight", _llama3_factors(preset))
    for layer in range(layers):
        prefix = f"blk.{layer}."
        yield _vector(prefix + "attn_norm.weight", ones)
        yield matrix(prefix + "attn_q.weight", attention, width, unit)
        yield matrix(prefix + "attn_k.weight", kv_width, width, unit)
        yield matrix(prefix + "attn_v.weight", kv_width, width, unit)
        yield matrix(prefix + "attn_output.weight", width, attention, attention**-0.5)
        yield _vector(prefix + "ffn_norm.weight", ones)
        suffix = ".weight"
        if preset.experts:
            head_ones = np.ones(preset.head_dim, np.float32)
            yield _vector(prefix + "attn_q_norm.weight", head_ones)
            yield _vector(prefix + "attn_k_norm.weight", head_ones)
            router, kind = prefix + "ffn_gate_inp.weight", GGMLQuantizationType.F32
            yield _Tensor(router, preset.experts, width, kind, 2.0 * unit)
            suffix = "_exps.weight"
        for name in ("ffn_gate", "ffn_up"):
            yield matrix(prefix + name + suffix, preset.ffn, width, unit, preset.experts)
        down_std = preset.ffn**-0.5
        yield matrix(prefix + "ffn_down" + suffix, width, preset.ffn, down_std, preset.experts)
    yield _vector("output_norm.weight", ones)
    if not preset.tied:
        yield matrix("output.weight", preset.vocab, width, 0.04)


def q4_k_m(layers: int, tied: bool) -> dict[str, str]:
    """The exceptions from Q4_K that make Q4_K_M of a model.

    Half of the layers have their value and down matrices in Q6_K, and so is the output matrix.
    """
    edge = layers // 8
    better = [
        layer
        for layer in range(layers)
        if layer < edge or layer >= 7 * layers // 8 or (layer - edge) % 3 == 2
    ]
    return {
        rf"^blk\.({'|'.join(map(str, better))})\.(attn_v|ffn_down)\.": "q6_k",
        "^token_embd" if tied else "^output": "q6_k",
    }


def write_shaped_model(
    path: Path | str,
    preset: Preset,
    metadata: Metadata,
    *,
    dtype: str,
    layers: int | None = None,
    exceptions: Mapping[str, str] | None = None,
    seed: int = 1,
    repeating: bool = False,
) -> Path:
    """Writes a model of random weights in pieces.

    Args:
        path: The file to write.
        preset: Its shape.
        metadata: Everything but the tensors.
        dtype: Type of all matrices.
        layers: Number of layers; None: the preset's.
        exceptions: Regular expression of a tensor name -> another type; the last match counts.
        seed: The same arguments give the same bytes.
        repeating: One random piece again and again in each matrix, which is quicker to make.

    Returns:
        `path` as a Path.
    """
    tensors = list(_tensors(preset, layers or preset.layers, dtype, exceptions or {}))
    writer = GGUFWriter(path, "llama")
    writer.kv_data[0].clear()  # the architecture again, in its place in `metadata`
    for key, value in metadata.items():
        writer.add_key_value(key, value.value, value.type, value.sub_type)
    for one in tensors:
        size = one.rows * one.row_bytes
        kind = np.dtype(np.float32 if one.values is not None else np.uint8)
        raw = None if one.values is not None else one.qtype
        writer.add_tensor_info(one.name, one.stored_shape, kind, size, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    out = writer.fout[0]
    for one in tensors:
        writer.write_padding(out, out.tell())
        for piece in one.pieces(seed, repeating):
            out.write(piece.data)
        writer.write_padding(out, one.rows * one.row_bytes)
    writer.close()
    return Path(path)
