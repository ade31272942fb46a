"""Writing GGUF files tensor by tensor, a few rows at a time, under temporary names.

Format: docs/gguf.md of ggml-org/ggml; parts of a split model as llama.cpp's gguf-split has them.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from specdec_native import _core
from specdec_native.convert.gguf_values import GgufI32, GgufU16, encode_pair, encode_text
from specdec_native.convert.tensors import TensorPlan, mxfp4_row_bytes
from specdec_native.errors import ConvertError, GgufError, OutputError

__all__ = ["CONVERT_TYPES", "FilePlan", "Written", "write_files"]

CONVERT_TYPES: tuple[str, ...] = tuple(_core.recipe_names())
"""The types that `convert` writes, best first: those of `quantize`."""

_ALIGNMENT = 32
_MOST_PARTS = 65535  # split.count is a 16-bit number
_OTHER_HEAD = 256  # a little more than the keys of the parts behind the first need
_CHUNK_VALUES = 1 << 22  # 16 MiB as float32
# ggml_type: name -> number, values of a block, its bytes.
_STORAGE = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "IQ4_XS": (23, 256, 136),
    "I64": (27, 1, 8),
    "BF16": (30, 1, 2),
    "MXFP4": (39, 32, 17),
}


@dataclass
class FilePlan:
    """A file to be written: metadata in order, then tensors in order.

    Attributes:
        architecture: Value of ``general.architecture``.
        metadata: The other keys; values as `gguf_values.encode_pair` takes them.
        tensors: What to write.
        facts: What the choice of types asks about the model (keywords of ``_core.recipe_type``);
            None: every matrix gets the type that the recipe starts from.
        notes: What of the checkpoint is left out, in words.
    """

    architecture: str
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[TensorPlan] = field(default_factory=list)
    facts: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Written:
    """What `write_files` did.

    Attributes:
        paths: The files.
        bytes: Their size.
        fallbacks: Name of tensor -> the simpler type that it has.
    """

    paths: tuple[Path, ...]
    bytes: int
    fallbacks: dict[str, str]


@dataclass(frozen=True)
class _Stored:
    """A tensor with the type that it gets."""

    plan: TensorPlan
    dtype: str

    @property
    def bytes(self) -> int:
        _, block, size = _STORAGE[self.dtype]
        return math.prod(self.plan.shape) // block * size


def write_files(
    path: Path,
    plan: FilePlan,
    recipe: str,
    report: Callable[[float], None],
    *,
    split_bytes: int = 0,
    threads: int = 0,
) -> Written:
    """Writes a model; its files appear when all of them are complete.

    Args:
        path: The file; an older one is replaced. A split model's files have numbers in their names.
        plan: What to write.
        recipe: Type of the matrices, one of `CONVERT_TYPES`.
        report: Called with the fraction of the values that is written.
        split_bytes: Begin another file where one would be larger than this; 0: one file.
        threads: 0: one per physical core.

    Returns:
        The files, and what could not have the type asked for.

    Raises:
        ConvertError: A tensor holds a NaN, an infinity or what its type cannot hold.
        OutputError: A file cannot be written; nothing is left of any.
    """
    stored, fallbacks = _with_types(plan, recipe)
    parts = _parts(stored, split_bytes, _head_bytes(_metadata(plan, 0, 2, len(stored))))
    if len(parts) == 1:
        paths = [path]
    else:
        stem = path.name.removesuffix(".gguf")
        names = [f"{stem}-{i + 1:05d}-of-{len(parts):05d}.gguf" for i in range(len(parts))]
        paths = [path.with_name(name) for name in names]
    heads = [_metadata(plan, i, len(parts), len(stored)) for i in range(len(parts))]
    progress = _Progress(sum(math.prod(one.plan.shape) for one in stored), report)
    try:
        sizes = _write_all(paths, heads, parts, progress, threads)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error})") from error
    return Written(tuple(paths), sum(sizes), fallbacks)


def _with_types(plan: FilePlan, recipe: str) -> tuple[list[_Stored], dict[str, str]]:
    """The tensors with their types, and those that fell back to a simpler one."""
    stored: list[_Stored] = []
    fallbacks: dict[str, str] = {}
    facts: dict[str, Any] = {"layers": 1, "pure": True} if plan.facts is None else plan.facts
    for one in plan.tensors:
        if one.kind != "float":
            stored.append(_Stored(one, {"whole": "I64", "mxfp4": "MXFP4"}[one.kind]))
            continue
        dtype, fallback = _core.recipe_type(
            recipe, one.name, list(one.shape), architecture=plan.architecture, **facts
        )
        stored.append(_Stored(one, dtype))
        if fallback:
            fallbacks[one.name] = dtype
    return stored, fallbacks


def _head_bytes(metadata: dict[str, Any]) -> int:
    """What stands before the directory of tensors."""
    return 24 + sum(len(encode_pair(key, value)) for key, value in metadata.items())


def _parts(stored: Sequence[_Stored], most: int, first_head: int) -> list[list[_Stored]]:
    """Tensors by file, in order.

    Raises:
        ValueError: There would be more files than the format can count.
    """
    parts: list[list[_Stored]] = [[]]
    size = first_head
    for one in stored:
        room = one.bytes + len(_entry(one, 0)) + 2 * _ALIGNMENT
        if most and parts[-1] and size + room > most:
            parts.append([])
            size = _OTHER_HEAD
        parts[-1].append(one)
        size += room
    if len(parts) > _MOST_PARTS:
        raise ValueError(f"files of {most} bytes would make {len(parts)}, above {_MOST_PARTS}")
    return parts


def _metadata(plan: FilePlan, part: int, parts: int, tensors: int) -> dict[str, Any]:
    """The keys of one file: all in the first, in the others only which they are."""
    values = {"general.architecture": plan.architecture, **plan.metadata} if part == 0 else {}
    if parts == 1:
        return values
    return values | {
        "split.no": GgufU16(part),
        "split.count": GgufU16(parts),
        "split.tensors.count": GgufI32(tensors),
    }


class _Progress:
    """Counts values for the caller's bar."""

    def __init__(self, total: int, report: Callable[[float], None]) -> None:
        self._total = max(1, total)
        self._done = 0
        self._report = report
        report(0.0)

    def add(self, count: int) -> None:
        self._done += count
        self._report(min(1.0, self._done / self._total))


def _write_all(
    paths: Sequence[Path],
    heads: Sequence[dict[str, Any]],
    parts: Sequence[Sequence[_Stored]],
    progress: _Progress,
    threads: int,
) -> list[int]:
    """Writes all files under temporary names and then names them; on an error none is left."""
    temporary = [path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths]
    with ExitStack() as stack:
        for one in temporary:
            stack.callback(one.unlink, missing_ok=True)
        for one, head, part in zip(temporary, heads, parts, strict=True):
            with one.open("wb") as file:
                _write_one(file, head, part, progress, threads)
        sizes = [one.stat().st_size for one in temporary]
        for one, path in zip(temporary, paths, strict=True):
            one.replace(path)
    return sizes


def _write_one(
    file: BinaryIO,
    metadata: dict[str, Any],
    tensors: Sequence[_Stored],
    progress: _Progress,
    threads: int,
) -> None:
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(encode_pair(key, value))
    offset = 0
    for one in tensors:
        file.write(_entry(one, offset))
        offset += one.bytes + -one.bytes % _ALIGNMENT
    file.write(bytes(-file.tell() % _ALIGNMENT))
    for one in tensors:
        for rows in _row_bytes(one, threads):
            file.write(rows.data)
            progress.add(rows.size * one.plan.columns // _bytes_of_row(one))
        file.write(bytes(-one.bytes % _ALIGNMENT))


def _entry(tensor: _Stored, offset: int) -> bytes:
    """A tensor's entry in the directory."""
    shape = tensor.plan.shape
    return (
        encode_text(tensor.plan.name)
        + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        + struct.pack("<IQ", _STORAGE[tensor.dtype][0], offset)
    )


def _bytes_of_row(tensor: _Stored) -> int:
    _, block, size = _STORAGE[tensor.dtype]
    return tensor.plan.columns // block * size


def _row_bytes(tensor: _Stored, threads: int) -> Iterator[NDArray[np.uint8]]:
    """The tensor's data, some rows at a time."""
    plan = tensor.plan
    step = max(1, _CHUNK_VALUES // plan.columns // plan.granule) * plan.granule
    for first in range(0, plan.count, step):
        count = min(step, plan.count - first)
        rows = plan.rows(first, count)
        if plan.kind == "mxfp4":
            wanted: tuple[int, ...] = (count, mxfp4_row_bytes(plan.columns))
        else:
            wanted = (count, plan.columns)
        if rows.size != math.prod(wanted):
            raise ConvertError(f"tensor {plan.name!r} has {rows.shape} for rows of {wanted}")
        yield _encoded(tensor, rows.reshape(wanted), threads)


def _encoded(tensor: _Stored, rows: NDArray[Any], threads: int) -> NDArray[np.uint8]:
    kind = tensor.plan.kind
    if kind == "mxfp4":
        return np.ascontiguousarray(rows, np.uint8).reshape(-1)
    if kind == "whole":
        return np.ascontiguousarray(rows, "<i8").view(np.uint8).reshape(-1)
    try:
        values = np.ascontiguousarray(rows, np.float32)
        encoded: NDArray[np.uint8] = _core.quantize_rows(
            tensor.dtype, values, name=tensor.plan.name, threads=threads
        )
    except GgufError as error:
        raise ConvertError(str(error)) from None
    return encoded.reshape(-1)
