"""Writing a converted model tensor by tensor, a few rows at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_native import _core
from specdec_native.convert.tensors import TensorPlan, mxfp4_row_bytes
from specdec_native.errors import ConvertError, GgufError

__all__ = ["CONVERT_TYPES", "FilePlan", "Written", "write_files"]

CONVERT_TYPES: tuple[str, ...] = tuple(_core.recipe_names())
"""The types that `convert` writes, best first: those of `quantize`."""

_CHUNK_VALUES = 1 << 22  # 16 MiB as float32


@dataclass
class FilePlan:
    """A file to be written: metadata in order, then tensors in order.

    Attributes:
        architecture: Value of ``general.architecture``.
        metadata: The other keys; values as ``_core.GgufWriter`` takes them.
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


def write_files(
    path: Path,
    plan: FilePlan,
    recipe: str,
    report: Callable[[float], None],
    *,
    inputs: Collection[Path] = (),
    split_bytes: int = 0,
    threads: int = 0,
) -> Written:
    """Writes a model; its files appear when all of them are complete.

    Args:
        path: The file; an older one is replaced. A split model's files have numbers in their names.
        plan: What to write.
        recipe: Type of the matrices, one of `CONVERT_TYPES`.
        report: Called with the fraction of the values that is written.
        inputs: Files that must not be replaced.
        split_bytes: Begin another file where one would be larger than this; 0: one file.
        threads: 0: one per physical core.

    Returns:
        The files, and what could not have the type asked for.

    Raises:
        ConvertError: A tensor holds a NaN, an infinity or what its type cannot hold.
        OutputError: A file cannot be written; nothing is left of any.
        ValueError: The output is an input.
    """
    types, fallbacks = _types(plan, recipe)
    directory = [(one.name, types[one.name], list(one.shape)) for one in plan.tensors]
    metadata = {"general.architecture": plan.architecture, **plan.metadata}
    total = max(1, sum(math.prod(one.shape) for one in plan.tensors))
    done = 0
    with _core.GgufWriter(path, metadata, directory, max_bytes=split_bytes) as writer:
        paths = tuple(map(Path, writer.paths))
        _require_others(paths, inputs)
        report(0.0)
        for one in plan.tensors:
            for count, rows in _row_bytes(one, types[one.name], threads):
                writer.write(rows)
                done += count * one.columns
                report(done / total)
        return Written(paths, writer.finish(), fallbacks)


def _require_others(paths: Collection[Path], inputs: Collection[Path]) -> None:
    for path in paths:
        for one in inputs:
            if path.exists() and one.exists() and path.samefile(one):
                raise ValueError(f"output {os.fspath(path)!r} is an input file")


def _types(plan: FilePlan, recipe: str) -> tuple[dict[str, str], dict[str, str]]:
    """The type of each tensor, and of those that fell back to a simpler one."""
    types: dict[str, str] = {}
    fallbacks: dict[str, str] = {}
    facts: dict[str, Any] = {"layers": 1, "pure": True} if plan.facts is None else plan.facts
    for one in plan.tensors:
        if one.kind != "float":
            types[one.name] = {"whole": "I64", "mxfp4": "MXFP4"}[one.kind]
            continue
        types[one.name], fallback = _core.recipe_type(
            recipe, one.name, list(one.shape), architecture=plan.architecture, **facts
        )
        if fallback:
            fallbacks[one.name] = types[one.name]
    return types, fallbacks


def _row_bytes(
    plan: TensorPlan, dtype: str, threads: int
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """The tensor's data, some rows at a time: their number and their bytes."""
    step = max(1, _CHUNK_VALUES // plan.columns // plan.granule) * plan.granule
    for first in range(0, plan.count, step):
        count = min(step, plan.count - first)
        rows = plan.rows(first, count)
        width = mxfp4_row_bytes(plan.columns) if plan.kind == "mxfp4" else plan.columns
        if rows.size != count * width:
            raise ConvertError(f"tensor {plan.name!r} has {rows.shape} for {count} x {width}")
        yield count, _encoded(plan, dtype, rows.reshape(count, width), threads)


def _encoded(plan: TensorPlan, dtype: str, rows: NDArray[Any], threads: int) -> NDArray[np.uint8]:
    if plan.kind == "mxfp4":
        return np.ascontiguousarray(rows, np.uint8)
    if plan.kind == "whole":
        return np.ascontiguousarray(rows, "<i8").view(np.uint8)
    try:
        values = np.ascontiguousarray(rows, np.float32)
        return _core.quantize_rows(dtype, values, name=plan.name, threads=threads)
    except GgufError as error:
        raise ConvertError(str(error)) from None
