"""Tensors to be written, made of rows that are read from a checkpoint when their turn comes.

Every tensor is seen as rows, all dimensions but the last taken together. A plan says how some of
them come about; the writer asks for as many at a time as fit in a small part of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.errors import ConvertError

__all__ = [
    "Slab",
    "TensorPlan",
    "constant",
    "every_second",
    "interleaved_halves",
    "mxfp4",
    "shifted",
    "stacked",
    "stored",
    "transposed",
]

# rows(first, count) -> [count, columns]
Rows = Callable[[int, int], NDArray[Any]]


@dataclass(frozen=True)
class TensorPlan:
    """One tensor to be written.

    Attributes:
        name: Its name in the file.
        shape: Outermost dimension first.
        rows: Gives rows [first, first + count) as float32 [count, columns]; whole numbers for kind
            "whole"; the bytes of rows for kind "mxfp4".
        granule: `first` and `count` are multiples of this.
        kind: "float": stored in the type that was asked; "whole": as int64; "mxfp4": the rows are
            blocks already.
    """

    name: str
    shape: tuple[int, ...]
    rows: Rows
    granule: int = 1
    kind: str = "float"

    @property
    def columns(self) -> int:
        """Values of a row."""
        return self.shape[-1]

    @property
    def count(self) -> int:
        """Number of rows."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True)
class Slab:
    """Some rows of a stored tensor, seen as a matrix with `columns` columns."""

    name: str
    first: int
    count: int


def _reader(source: Checkpoint, name: str, columns: int) -> Rows:
    if source.is_whole(name):
        # Whole numbers are somebody's quantised form: without its scales they mean nothing.
        raise ConvertError(
            f"{source.folder}: tensor {name!r} holds whole numbers, not weights; convert the "
            "checkpoint that it was quantised from"
        )

    def rows(first: int, count: int) -> NDArray[Any]:
        return source.values(name, first * columns, count * columns).reshape(count, columns)

    return rows


def stored(source: Checkpoint, old: str, new: str, shape: tuple[int, ...]) -> TensorPlan:
    """A tensor as it is; its shape is checked, which may leave out dimensions of 1.

    Raises:
        ConvertError: There is no such tensor, or it has another shape.
    """
    source.expect(old, shape)
    return TensorPlan(new, shape, _reader(source, old, shape[-1]))


def shifted(plan: TensorPlan, by: float) -> TensorPlan:
    """A number added to every value."""
    return TensorPlan(
        plan.name,
        plan.shape,
        lambda first, count: plan.rows(first, count) + np.float32(by),
        plan.granule,
    )


def constant(name: str, values: NDArray[Any], *, whole: bool = False) -> TensorPlan:
    """A small tensor that is there already."""
    flat = values.reshape(-1, values.shape[-1])
    kind = "whole" if whole else "float"
    return TensorPlan(
        name, values.shape, lambda first, count: flat[first : first + count], kind=kind
    )


def interleaved_halves(plan: TensorPlan, heads: int) -> TensorPlan:
    """Rows of each head reordered: pairs (i, i + D/2) that rotate together become neighbours.

    A vector counts as a matrix of one column.
    """
    size = plan.shape[0] // heads

    def rows(first: int, count: int) -> NDArray[Any]:
        read = plan.rows(first, count)
        halves = read.reshape(-1, 2, size // 2, *read.shape[1:])
        return halves.swapaxes(1, 2).reshape(read.shape)

    if len(plan.shape) > 1:
        return TensorPlan(plan.name, plan.shape, rows, granule=size)

    def vector(first: int, count: int) -> NDArray[Any]:
        read = plan.rows(first, count)
        return read.reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(read.shape)

    return TensorPlan(plan.name, plan.shape, vector)


def stacked(
    source: Checkpoint, slabs: Sequence[Slab], new: str, shape: tuple[int, int, int]
) -> TensorPlan:
    """Equal matrices behind each other, such as those of experts."""
    height, columns = shape[1], shape[2]
    readers = [_reader(source, slab.name, columns) for slab in slabs]

    def rows(first: int, count: int) -> NDArray[Any]:
        parts = []
        while count:
            slab, at = divmod(first, height)
            some = min(count, height - at)
            parts.append(readers[slab](slabs[slab].first + at, some))
            first, count = first + some, count - some
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return TensorPlan(new, shape, rows)


def every_second(
    source: Checkpoint, old: str, new: str, shape: tuple[int, int], phase: int
) -> TensorPlan:
    """Every second value of rows that hold two vectors in turn."""
    read = _reader(source, old, 2 * shape[-1])
    return TensorPlan(new, shape, lambda first, count: read(first, count)[:, phase::2])


def transposed(
    source: Checkpoint, old: str, new: str, shape: tuple[int, int, int], phase: int | None
) -> TensorPlan:
    """Matrices that are stored as [in, out].

    Args:
        source: The checkpoint.
        old: The stored tensor, [X, in, out] or, with two matrices in turn, [X, in, 2 out].
        new: Name in the file.
        shape: [X, out, in].
        phase: Which of the two; None: there is one.
    """
    outputs, inputs = shape[1], shape[2]
    stored_outputs = outputs if phase is None else 2 * outputs
    read = _reader(source, old, stored_outputs)
    step = 1 if phase is None else 2

    def rows(first: int, count: int) -> NDArray[Any]:
        matrices = count // outputs
        block = read(first // outputs * inputs, matrices * inputs)
        picked = block.reshape(matrices, inputs, stored_outputs)[:, :, (phase or 0) :: step]
        return picked.swapaxes(1, 2).reshape(count, inputs)

    return TensorPlan(new, shape, rows, granule=outputs)


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # the eight magnitudes of four bits
_MXFP4_BLOCK, _MXFP4_BYTES = 32, 17  # values of a block, and its bytes in a GGUF file
_LARGEST_EXPONENT = 252  # 6 * 2^(253 - 127) is beyond float32; 255 stands for a NaN


def mxfp4(
    source: Checkpoint,
    names: tuple[str, str],
    new: str,
    shape: tuple[int, int, int],
    phase: int | None,
    *,
    unpack: bool,
) -> TensorPlan:
    """MXFP4 matrices of a checkpoint (Open Compute Project, Microscaling Formats 1.0).

    Both store 32 values as one exponent and 16 bytes. In the checkpoint byte k holds values 2 k and
    2 k + 1, in GGUF values k and k + 16 (ggml-common.h of ggml-org/llama.cpp).

    Args:
        source: The checkpoint.
        names: The blocks [X, rows, columns / 32, 16] and the exponents [X, rows, columns / 32].
        new: Name in the file.
        shape: [X, rows, columns] of the result.
        phase: Where two matrices' rows come in turn, which one; None: there is one.
        unpack: Give the values that the blocks stand for, exactly, and not the blocks.
    """
    step = 1 if phase is None else 2
    blocks = shape[2] // _MXFP4_BLOCK

    def rows(first: int, count: int) -> NDArray[Any]:
        start, size = first * step + (phase or 0), (count - 1) * step + 1
        packed = source.values(names[0], start * blocks * 16, size * blocks * 16)
        scales = source.values(names[1], start * blocks, size * blocks)
        if scales.max(initial=0) > _LARGEST_EXPONENT:
            raise ConvertError(
                f"tensor {names[1]!r} holds {scales.max()}, a NaN or no finite scale"
            )
        packed = packed.reshape(size, blocks, 16)[::step]
        scales = scales.reshape(size, blocks)[::step]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(count, blocks, _MXFP4_BLOCK)
        if unpack:
            signs = np.where(codes & 8, np.float32(-1), np.float32(1))
            values = _E2M1[codes & 7] * signs
            exponents = scales[..., None].astype(np.int32) - 127
            unpacked: NDArray[np.float32] = np.ldexp(values, exponents)
            return unpacked.reshape(count, -1)
        halves = codes[..., :16] | codes[..., 16:] << 4
        return np.concatenate([scales[..., None], halves], axis=-1).reshape(count, -1)

    return TensorPlan(new, shape, rows, kind="float" if unpack else "mxfp4")


def mxfp4_row_bytes(columns: int) -> int:
    """Bytes of a row in a GGUF file."""
    return columns // _MXFP4_BLOCK * _MXFP4_BYTES
