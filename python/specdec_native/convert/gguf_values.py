"""Values of a GGUF file's metadata as bytes (docs/gguf.md of ggml-org/ggml)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

__all__ = ["GgufI32", "GgufU16", "encode_pair", "encode_text"]

_U8, _U16, _U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64 = 0, 2, 4, 5, 6, 7, 8, 9, 10, 11


class GgufU16(int):
    """A number that is to be written with 16 bits."""


class GgufI32(int):
    """A number that is to be written with a sign, though it has none."""


def encode_text(text: str) -> bytes:
    """A string; tokens need not be UTF-8, other bytes came as surrogates."""
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def encode_pair(key: str, value: Any) -> bytes:
    """A key and its value.

    Args:
        key: Its name.
        value: A str, bool, int (u32, or wider where it must be), float (f32), NumPy array (f32,
            i32, or bool), or a list of one of str, bool, int and float.
    """
    return encode_text(key) + _typed(value)


def _typed(value: Any) -> bytes:
    if isinstance(value, (list, tuple)):
        return struct.pack("<I", _ARRAY) + _list(value)
    if isinstance(value, np.ndarray):
        return struct.pack("<I", _ARRAY) + _array(value)
    kind = _kind(value)
    return struct.pack("<I", kind) + _plain(kind, value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, GgufU16):
        return _U16
    if isinstance(value, GgufI32):
        return _I32
    if isinstance(value, int):
        if 0 <= value < 2**32:
            return _U32
        return _I32 if -(2**31) <= value < 0 else _U64 if value > 0 else _I64
    if isinstance(value, float):
        return _F32
    if isinstance(value, str):
        return _STRING
    raise TypeError(f"no GGUF value: {value!r}")


def _plain(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return encode_text(value)
    formats = {_U16: "<H", _U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?", _U64: "<Q", _I64: "<q"}
    return struct.pack(formats[kind], value)


def _list(values: list[Any] | tuple[Any, ...]) -> bytes:
    if values and isinstance(values[0], str):
        return struct.pack("<IQ", _STRING, len(values)) + b"".join(map(encode_text, values))
    if values and isinstance(values[0], bool):
        return _array(np.array(values, np.bool_))
    return _array(np.array(values, np.float32 if isinstance(values[0], float) else np.int32))


def _array(values: np.ndarray[Any, Any]) -> bytes:
    if values.dtype == np.uint8:
        kind, data = _U8, values
    elif values.dtype == np.bool_:
        kind, data = _BOOL, values.astype(np.uint8)
    elif values.dtype.kind == "f":
        kind, data = _F32, values.astype("<f4")
    else:
        kind, data = _I32, values.astype("<i4")
    return struct.pack("<IQ", kind, values.size) + data.tobytes()
