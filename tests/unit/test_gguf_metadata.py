"""Typed access to GGUF metadata, as the model code reads it: any integer width, no surprises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_native import _core
from specdec_native.errors import GgufError
from support.raw_gguf import BOOL, F32, F64, I64, TOY_ENTRIES, U8, U64, array, entry, gguf

testing = _core.testing


@pytest.fixture
def typed(tmp_path: Path) -> Any:
    path = tmp_path / "file.gguf"
    path.write_bytes(
        gguf(
            [
                *TOY_ENTRIES,
                array("scores", U8, [0, 1, 255]),
                array("types", I64, [1, 3, -1]),
                array("big", U64, [2**63]),
                array("halves", F64, [0.5, 1.5]),
                entry("nan", F32, float("nan")),
                entry("one", U64, 1),
                entry("two", BOOL, 2),
            ]
        )
    )
    return _core.GgufFile(path)


def test_any_integer_width_is_an_integer(typed: Any) -> None:
    for key, value in [("u8", 200), ("u16", 60000), ("u32", 4_000_000_000), ("u64", 2**64 - 1)]:
        assert testing.metadata_uint(typed, key, 2**64 - 1) == value
    for key, value in [("i8", -100), ("i16", -30000), ("i32", -2_000_000_000), ("i64", -(2**63))]:
        assert testing.metadata_int(typed, key, -(2**63), 2**63 - 1) == value
    assert testing.metadata_int(typed, "missing", 0, 1) is None


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda t, f: t.metadata_uint(f, "u8", 199), "'u8' is u8 200, .* from 0 to 199"),
        (lambda t, f: t.metadata_uint(f, "i8", 2**63), "'i8' is i8 -100"),
        (lambda t, f: t.metadata_uint(f, "f32", 5), "'f32' is f32 0.5"),
        (lambda t, f: t.metadata_uint(f, "ints", 5), "'ints' is array of 3 i16.*single value"),
        (lambda t, f: t.metadata_uint(f, "none", 5), "'none' is missing"),
        (lambda t, f: t.metadata_int(f, "u64", 0, 2**63 - 1), "'u64' is u64 18446744073709551615"),
        (lambda t, f: t.metadata_int(f, "i8", -99, 0), "'i8' is i8 -100, .* from -99 to 0"),
        (lambda t, f: t.metadata_float(f, "nan"), "'nan' is f32 nan.*finite"),
        (lambda t, f: t.metadata_float(f, "bool"), "'bool' is bool 1, but a number"),
        (lambda t, f: t.metadata_bool(f, "two"), "'two' is bool 2"),
        (lambda t, f: t.metadata_bool(f, "u8"), "'u8' is u8 200, but a bool"),
        (lambda t, f: t.metadata_string(f, "u8"), "'u8' is u8 200, but a string"),
        (lambda t, f: t.metadata_uints(f, "ints", 2, 9), "array of 3 i16.*array of 2"),
        (lambda t, f: t.metadata_uints(f, "ints", 3, 9), r"'ints'.*at index 1 \(found -2\)"),
        (lambda t, f: t.metadata_uints(f, "u8", 3, 9), "'u8' is u8 200"),
        (lambda t, f: t.metadata_ints(f, "types", 0, 9), r"'types'.*at index 2 \(found -1\)"),
        (lambda t, f: t.metadata_ints(f, "big", 0, 2**63 - 1), r"found 9223372036854775808\)"),
        (lambda t, f: t.metadata_ints(f, "halves", 0, 9), "'halves' is array of 2 f64"),
        (lambda t, f: t.metadata_ints(f, "u8", 0, 9), "'u8' is u8 200, but an array"),
        (lambda t, f: t.metadata_floats(f, "tokens"), "array of 4 string, but a number"),
        (lambda t, f: t.metadata_strings(f, "ints"), "array of 3 i16, but an array of strings"),
    ],
)
def test_value_that_does_not_fit(typed: Any, read: Callable[..., Any], message: str) -> None:
    with pytest.raises(GgufError, match=message) as caught:
        read(testing, typed)
    assert "missing" in message or "byte " in str(caught.value)


def test_values_that_fit(typed: Any) -> None:
    assert testing.metadata_float(typed, "f32") == 0.5
    assert testing.metadata_float(typed, "f64") == 0.1
    assert testing.metadata_float(typed, "i8") == -100.0
    assert testing.metadata_float(typed, "u64") == 2.0**64
    assert testing.metadata_bool(typed, "bool") is True
    assert testing.metadata_bool(typed, "one") is True
    assert testing.metadata_string(typed, "general.architecture") == "llama"
    assert testing.metadata_uints(typed, "one", 3, 9) == [1, 1, 1]
    assert testing.metadata_uints(typed, "scores", 3, 255) == [0, 1, 255]
    assert testing.metadata_ints(typed, "types", -1, 9) == [1, 3, -1]
    assert testing.metadata_ints(typed, "missing", 0, 1) is None
    assert testing.metadata_floats(typed, "scores") == [0.0, 1.0, 255.0]
    assert testing.metadata_floats(typed, "halves") == [0.5, 1.5]
    assert testing.metadata_strings(typed, "tokens")[3] == "\u0120the"
