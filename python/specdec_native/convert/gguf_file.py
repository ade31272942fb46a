"""Writing a GGUF file tensor by tensor, under a temporary name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_native.convert.checkpoint import needed_module
from specdec_native.errors import ConvertError, OutputError

__all__ = ["CONVERT_TYPES", "FilePlan", "TensorPlan", "write_file"]

CONVERT_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""The types that `convert` writes."""

_BLOCK = 32  # values of a block of the quantised ones


@dataclass(frozen=True)
class TensorPlan:
    """One tensor to be written.

    Attributes:
        name: Its name in the file.
        shape: Outermost dimension first.
        read: Makes its values, float32 or int64, when its turn comes.
        whole: Whether it is written as int64.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]
    whole: bool = False


@dataclass
class FilePlan:
    """A file to be written: metadata in order, then tensors in order.

    A value may be a str, bool, int (written as u32), float (f32), list of str or int (i32), or a
    NumPy array.
    """

    architecture: str
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[TensorPlan] = field(default_factory=list)


def write_file(path: Path, plan: FilePlan, type_name: str, report: Callable[[float], None]) -> int:
    """Writes a file; it appears when it is complete.

    Args:
        path: The file; an older one is replaced.
        plan: What to write.
        type_name: Type of the matrices, one of `CONVERT_TYPES`.
        report: Called with the fraction of the tensors that is written.

    Returns:
        The file's size in bytes.

    Raises:
        ConvertError: A tensor holds a NaN or an infinity.
        OutputError: The file cannot be written; nothing is left of it.
    """
    gguf = needed_module("gguf")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        writer = gguf.GGUFWriter(part, plan.architecture)
        try:
            _write(gguf, writer, plan, type_name, report)
        finally:
            writer.close()
        part.replace(path)
        return path.stat().st_size
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error})") from error
    finally:
        part.unlink(missing_ok=True)


def _write(
    gguf: Any, writer: Any, plan: FilePlan, type_name: str, report: Callable[[float], None]
) -> None:
    for key, value in plan.metadata.items():
        _add_value(gguf, writer, key, value)
    types = [_stored_type(gguf, one, type_name) for one in plan.tensors]
    for one, qtype in zip(plan.tensors, types, strict=True):
        block, size = gguf.GGML_QUANT_SIZES[qtype]
        count = int(np.prod(one.shape, dtype=np.int64))
        writer.add_tensor_info(
            one.name, one.shape, np.dtype(np.float32), count // block * size, raw_dtype=qtype
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for done, (one, qtype) in enumerate(zip(plan.tensors, types, strict=True)):
        report(done / len(plan.tensors))
        writer.write_tensor_data(_stored(gguf, one, qtype))
    report(1.0)


def _stored_type(gguf: Any, tensor: TensorPlan, type_name: str) -> Any:
    types = gguf.GGMLQuantizationType
    if tensor.whole:
        return types.I64
    if len(tensor.shape) < 2:
        return types.F32
    wanted = types[type_name.upper()]
    in_blocks = gguf.GGML_QUANT_SIZES[wanted][0] > 1
    return types.F16 if in_blocks and tensor.shape[-1] % _BLOCK else wanted


def _stored(gguf: Any, tensor: TensorPlan, qtype: Any) -> NDArray[Any]:
    values = tensor.read()
    if values.shape != tensor.shape:
        raise ConvertError(f"tensor {tensor.name!r} has shape {values.shape}, not {tensor.shape}")
    if tensor.whole:
        return np.ascontiguousarray(values, np.int64)
    if not np.isfinite(values).all():
        raise ConvertError(f"tensor {tensor.name!r} holds a NaN or an infinity: it is damaged")
    stored: NDArray[Any] = gguf.quantize(np.ascontiguousarray(values, np.float32), qtype)
    return stored


def _add_value(gguf: Any, writer: Any, key: str, value: Any) -> None:
    types = gguf.GGUFValueType
    if isinstance(value, bool):
        writer.add_key_value(key, value, types.BOOL)
    elif isinstance(value, int):
        writer.add_key_value(key, value, types.UINT32 if value >= 0 else types.INT32)
    elif isinstance(value, float):
        writer.add_key_value(key, value, types.FLOAT32)
    elif isinstance(value, str):
        writer.add_key_value(key, _bytes(value), types.STRING)
    elif isinstance(value, np.ndarray):
        kind = types.FLOAT32 if value.dtype.kind == "f" else types.INT32
        writer.add_key_value(key, value.tolist(), types.ARRAY, kind)
    elif isinstance(value[0], str):
        writer.add_key_value(key, [_bytes(one) for one in value], types.ARRAY, types.STRING)
    else:
        writer.add_key_value(key, list(value), types.ARRAY, types.INT32)


def _bytes(text: str) -> bytes:
    """Tokens need not be UTF-8: other bytes came as surrogates."""
    return text.encode("utf-8", "surrogateescape")
