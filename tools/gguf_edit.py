"""Rewrites GGUF files: fewer layers, more layers, another element type.

Used to make draft models and test files from any `llama` GGUF. Everything goes through the `gguf`
package, so that a mistake in this library's own reader cannot hide in the files it is tested with.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    dequantize,
    quantize,
)
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray

Metadata = dict[str, GGUFValue]

_LAYER_NAME = re.compile(r"^blk\.(\d+)\.(.*)$")

# `general.file_type` is what other tools show as the file's type.
_FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "BF16": LlamaFileType.MOSTLY_BF16,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": LlamaFileType.MOSTLY_Q4_1,
    "Q5_0": LlamaFileType.MOSTLY_Q5_0,
    "Q5_1": LlamaFileType.MOSTLY_Q5_1,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
}


@dataclass
class Tensor:
    """One tensor as stored: `data` is uint8 [..., row bytes], or float32/float16 [...]."""

    name: str
    data: NDArray[Any]
    qtype: GGMLQuantizationType


def read_metadata(reader: GGUFReader) -> Metadata:
    """Returns all keys with their types; strings as bytes, since they need not be UTF-8."""
    result: Metadata = {}
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        vtype = field.types[0]
        if vtype != GGUFValueType.ARRAY:
            raw = field.parts[field.data[0]]
            value = raw.tobytes() if vtype == GGUFValueType.STRING else raw.tolist()[0]
            result[name] = GGUFValue(value, vtype)
        elif len(field.data) > 0:  # GGUFWriter refuses empty arrays
            sub_type = field.types[-1]
            parts = [field.parts[i] for i in field.data]
            if sub_type == GGUFValueType.STRING:
                values: list[Any] = [part.tobytes() for part in parts]
            else:
                values = [part.tolist()[0] for part in parts]
            result[name] = GGUFValue(values, vtype, sub_type)
    return result


def read_tensors(reader: GGUFReader) -> list[Tensor]:
    """Returns the tensors in file order; their data stays in the mapped file."""
    return [Tensor(t.name, t.data, t.tensor_type) for t in reader.tensors]


def write_gguf(path: Path | str, metadata: Metadata, tensors: Iterable[Tensor]) -> Path:
    """Writes a version 3 file; the same arguments give the same bytes."""
    architecture = metadata["general.architecture"].value
    if isinstance(architecture, bytes):
        architecture = architecture.decode()
    writer = GGUFWriter(path, architecture)
    writer.kv_data[0].clear()  # the architecture again, in its place in `metadata`
    for key, value in metadata.items():
        writer.add_key_value(key, value.value, value.type, value.sub_type)
        if key == "general.alignment":
            writer.data_alignment = int(value.value)
    for tensor in tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(tensor.data), raw_dtype=tensor.qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _layer_count(metadata: Metadata) -> tuple[str, int]:
    architecture = metadata["general.architecture"].value.decode()
    key = f"{architecture}.block_count"
    return key, int(metadata[key].value)


def _select_layers(
    src: Path | str,
    dst: Path | str,
    choose: Callable[[int], Sequence[int]],
    change: Callable[[Tensor, int], Tensor] | None = None,
) -> Path:
    """Writes a copy whose layer i is layer choose(old count)[i] of the source."""
    reader = GGUFReader(src)
    metadata = read_metadata(reader)
    count_key, count = _layer_count(metadata)
    chosen = choose(count)
    metadata[count_key].value = len(chosen)
    prefix = count_key.split(".")[0] + "."
    for key, value in metadata.items():
        per_layer = value.type == GGUFValueType.ARRAY and key.startswith(prefix)
        if per_layer and len(value.value) == count:
            value.value = [value.value[i] for i in chosen]
    tensors: list[Tensor] = []
    layers: dict[int, list[tuple[str, Tensor]]] = {}
    for tensor in read_tensors(reader):
        match = _LAYER_NAME.match(tensor.name)
        if match:
            layers.setdefault(int(match[1]), []).append((match[2], tensor))
        else:
            tensors.append(tensor)
    for new, old in enumerate(chosen):
        for suffix, tensor in layers[old]:
            copy = Tensor(f"blk.{new}.{suffix}", tensor.data, tensor.qtype)
            tensors.append(change(copy, new) if change else copy)
    return write_gguf(dst, metadata, tensors)


def cut_layers(src: Path | str, dst: Path | str, keep: int | Sequence[int]) -> Path:
    """Writes a copy of a model with fewer layers, a cheap draft model for it.

    Args:
        src: Any GGUF whose layers are named `blk.N.*`.
        dst: The file to write.
        keep: How many leading layers to keep, or the layers to keep in order.

    Returns:
        `dst` as a Path.
    """

    def choose(count: int) -> Sequence[int]:
        chosen = range(keep) if isinstance(keep, int) else keep
        if not chosen or min(chosen) < 0 or max(chosen) >= count:
            raise ValueError(f"cannot keep layers {keep} of {count}: name 1 to {count} of them")
        return chosen

    return _select_layers(src, dst, choose)


def pad_layers(src: Path | str, dst: Path | str, total: int) -> Path:
    """Writes a copy with more layers that computes the same text at a higher cost.

    The added layers are copies of the last one whose `attn_output` and `ffn_down` are zero, so they
    add nothing to the residual stream.

    Args:
        src: A `llama` GGUF.
        dst: The file to write.
        total: Number of layers of the copy.

    Returns:
        `dst` as a Path.
    """
    old_count = 0

    def choose(count: int) -> Sequence[int]:
        nonlocal old_count
        old_count = count
        if total < count:
            raise ValueError(f"total={total} is less than the model's {count} layers")
        return [*range(count), *[count - 1] * (total - count)]

    def change(tensor: Tensor, layer: int) -> Tensor:
        silent = tensor.name.endswith(("attn_output.weight", "ffn_down.weight"))
        if layer >= old_count and silent:
            # All-zero bytes are zeros in every type: the scale of each block is 0.
            return Tensor(tensor.name, np.zeros_like(tensor.data), tensor.qtype)
        return tensor

    return _select_layers(src, dst, choose, change)


def requantize(src: Path | str, dst: Path | str, qtype: str, pattern: str = r".*\.weight$") -> Path:
    """Writes a copy whose matrices have another element type.

    Args:
        src: Any GGUF with types that the `gguf` package can dequantise.
        dst: The file to write.
        qtype: "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1" or "q8_0".
        pattern: Only tensors whose name matches this regular expression are converted. Vectors,
            and rows that are no multiple of the block size, stay as they are.

    Returns:
        `dst` as a Path.
    """
    name = qtype.upper()
    if name not in _FILE_TYPES:
        raise ValueError(f"cannot quantise to {qtype!r}: use one of {', '.join(_FILE_TYPES)}")
    target = GGMLQuantizationType[name]
    block = GGML_QUANT_SIZES[target][0]
    reader = GGUFReader(src)
    metadata = read_metadata(reader)
    metadata["general.file_type"] = GGUFValue(int(_FILE_TYPES[name]), GGUFValueType.UINT32)
    tensors = []
    for tensor in read_tensors(reader):
        if tensor.data.ndim >= 2 and re.search(pattern, tensor.name):
            values = dequantize(tensor.data, tensor.qtype).astype(np.float32, copy=False)
            if values.shape[-1] % block == 0:
                tensor = Tensor(tensor.name, quantize(values, target), target)
        tensors.append(tensor)
    return write_gguf(dst, metadata, tensors)


def set_tensor_type(path: Path | str, name: str, type_number: int) -> None:
    """Overwrites the type number of one tensor in place, to make invalid files for tests."""
    path = Path(path)
    data = bytearray(path.read_bytes())
    encoded = name.encode()
    at = data.index(struct.pack("<Q", len(encoded)) + encoded) + 8 + len(encoded)
    (dims,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at + 4 + 8 * dims, type_number)
    path.write_bytes(data)
