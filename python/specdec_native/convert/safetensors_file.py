"""Reading safetensors files by ranges, so that no more of a tensor is in memory than is worked on.

The format (README of huggingface/safetensors): eight bytes with the length of the header, the
header, a JSON object from tensor name to type, shape and range of bytes, then the data. Mapping the
file would do too, but mapped pages count as memory of the process until the system takes them back.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_native.closing import Closing
from specdec_native.convert.config import refuse_pointer
from specdec_native.convert.fp8 import E4M3
from specdec_native.errors import ConvertError

__all__ = ["SafetensorsFile", "StoredTensor"]

_MOST_HEADER_BYTES = 100_000_000  # as the format's own library allows
_SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1}
# In NumPy, or the whole number of the same size where NumPy has no such type.
_FLOATS = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "F8_E4M3": np.uint8,
}
_INTEGERS = {
    **{"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "BOOL": np.uint8},
    **{"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64},
}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a file.

    Attributes:
        dtype: Its type, as the format writes it: "BF16".
        shape: Outermost dimension first.
        start: Of its data, from the start of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether it holds whole numbers."""
        return self.dtype in _INTEGERS


class SafetensorsFile(Closing):
    """An open file; the tensors' names, types and shapes are known and their extents checked."""

    def __init__(self, path: Path) -> None:
        """Opens a file.

        Raises:
            ConvertError: It is damaged.
        """
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ConvertError(f"{path}: cannot be read ({error.strerror})") from None
        try:
            self.tensors = _read_header(path, self._file, path.stat().st_size)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def read(self, name: str, first: int, count: int) -> NDArray[Any]:
        """Values [first, first + count) of a tensor, counted as they lie in the file.

        Returns:
            Whole numbers as they are, everything else as float32.
        """
        tensor = self.tensors[name]
        kind: Any = _INTEGERS.get(tensor.dtype)
        if kind is None:
            kind = _FLOATS[tensor.dtype]
        raw = np.empty(count, np.dtype(kind).newbyteorder("<"))
        try:
            self._file.seek(tensor.start + first * raw.itemsize)
            done = self._file.readinto(raw.view(np.uint8).data)
        except OSError as error:
            raise ConvertError(f"{self.path}: cannot be read ({error})") from error
        if done != raw.nbytes:
            raise ConvertError(f"{self.path}: tensor {name!r} is cut short")
        if tensor.dtype == "F8_E4M3":
            return E4M3[raw]
        if tensor.dtype == "BF16":
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return raw if tensor.is_whole else raw.astype(np.float32, copy=False)


def _read_header(path: Path, file: Any, size: int) -> dict[str, StoredTensor]:
    start = file.read(8)
    refuse_pointer(path, start)
    length = int.from_bytes(start, "little")
    if size < 8 or length > min(size - 8, _MOST_HEADER_BYTES):
        raise ConvertError(
            f"{path}: damaged (a header of {length} bytes in a file of {size}); is the download "
            "complete?"
        )
    try:
        header = json.loads(file.read(length), object_pairs_hook=_once)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except KeyError as error:
        raise ConvertError(f"{path}: damaged ({error.args[0]!r} is twice in the header)") from None
    except (ValueError, AttributeError, RecursionError):
        raise ConvertError(f"{path}: damaged (the header is no JSON object)") from None
    data = 8 + length
    return {name: _entry(path, name, entry, data, size - data) for name, entry in entries.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of a JSON object; raises KeyError for a key that comes twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(key)
        found[key] = value
    return found


def _entry(path: Path, name: str, entry: Any, data: int, room: int) -> StoredTensor:
    """One tensor of the header, its extent checked."""

    def damaged(why: str) -> ConvertError:
        return ConvertError(f"{path}: damaged (tensor {name!r} {why})")

    if not isinstance(entry, dict):
        raise damaged("has no description")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    width = _SIZES.get(str(dtype)) or np.dtype(_INTEGERS.get(str(dtype), np.void)).itemsize
    if not width:
        raise ConvertError(
            f"{path}: tensor {name!r} is of type {dtype!r}, which cannot be read; readable are "
            f"{', '.join([*_SIZES, *_INTEGERS])}"
        )
    if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in shape):
        raise damaged(f"has shape {shape!r}")
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(one) is int for one in offsets)
    ):
        raise damaged(f"lies at {offsets!r}")
    first, last = offsets
    if not 0 <= first <= last <= room or last - first != math.prod(shape) * width:
        raise damaged(f"of shape {shape} lies at {offsets}, in {room} bytes of data")
    return StoredTensor(str(dtype), tuple(shape), data + first)
