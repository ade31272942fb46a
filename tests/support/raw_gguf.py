"""Builds GGUF files byte by byte, so that tests can write what no well-behaved writer would."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f",
    BOOL: "B", U64: "Q", I64: "q", F64: "d",
}  # fmt: skip


def string(text: bytes | str) -> bytes:
    """A length-prefixed string."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def scalar(vtype: int, value: object) -> bytes:
    """The payload of one value, without its type."""
    if vtype == STRING:
        return string(value)  # type: ignore[arg-type]
    return struct.pack("<" + _FORMATS[vtype], value)


def entry(key: bytes | str, vtype: int, value: object) -> bytes:
    """One metadata entry with a single value."""
    return string(key) + struct.pack("<I", vtype) + scalar(vtype, value)


def array(
    key: bytes | str, vtype: int, values: Sequence[object], count: int | None = None
) -> bytes:
    """One metadata entry with an array; `count` is what the file claims."""
    head = struct.pack("<IIQ", ARRAY, vtype, len(values) if count is None else count)
    return string(key) + head + b"".join(scalar(vtype, value) for value in values)


def tensor(
    name: bytes | str, dims: Sequence[int], type_number: int, offset: int, n_dims: int | None = None
) -> bytes:
    """One entry of the tensor directory; `dims` innermost first, as in the file."""
    head = struct.pack("<I", len(dims) if n_dims is None else n_dims)
    lengths = b"".join(struct.pack("<Q", length) for length in dims)
    return string(name) + head + lengths + struct.pack("<IQ", type_number, offset)


def gguf(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    kv_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; the counts are what the header claims."""
    head = struct.pack(
        "<4sIQQ",
        b"GGUF",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(entries) if kv_count is None else kv_count,
    )
    body = head + b"".join(entries) + b"".join(tensors)
    return body + bytes(-len(body) % alignment) + data


# One value of every type, and arrays.
TOY_ENTRIES = (
    entry("general.architecture", STRING, "llama"),
    entry("u8", U8, 200),
    entry("i8", I8, -100),
    entry("u16", U16, 60000),
    entry("i16", I16, -30000),
    entry("u32", U32, 4_000_000_000),
    entry("i32", I32, -2_000_000_000),
    entry("f32", F32, 0.5),
    entry("bool", BOOL, 1),
    entry("u64", U64, 2**64 - 1),
    entry("i64", I64, -(2**63)),
    entry("f64", F64, 0.1),
    array("ints", I16, [1, -2, 3]),
    array("flags", BOOL, [0, 1, 7]),
    array("tokens", STRING, ["a", b"\xff\xfe", "", "\u0120the"]),
    array("empty", U32, []),
)
