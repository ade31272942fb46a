"""JSON files of a checkpoint, with values that are checked as they are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec_native.errors import ConvertError

__all__ = ["ConfigView", "Dim", "read_json", "read_text", "refuse_pointer", "shortened"]

# What a file may hold to be loaded (csrc/model): whole numbers are dimensions and lengths.
_LARGEST_WHOLE = 1 << 24
_LARGEST = 3.4e38  # of a float32, as which numbers are written


def read_text(path: Path) -> str:
    """Reads a text file.

    Raises:
        ConvertError: It is not there, cannot be read, or is no UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConvertError(f"{path}: this file is missing") from None
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConvertError(f"{path}: no text in UTF-8 ({error.reason} at {error.start})") from None
    refuse_pointer(path, text.encode("utf-8", "surrogatepass"))
    return text


def refuse_pointer(path: Path, start: bytes) -> None:
    """Raises ConvertError where a file, or its first bytes, are what Git LFS puts in its place."""
    if start[:8] == b"version ":
        raise ConvertError(
            f"{path}: is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file that holds a JSON object.

    Raises:
        ConvertError: It is not there, cannot be read, or holds no such object.
    """
    text = read_text(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path}: no valid JSON ({error}); is the download complete?") from None
    if not isinstance(values, dict):
        raise ConvertError(f"{path}: holds {shortened(values)}, expected a JSON object")
    return values


def shortened(value: object) -> str:
    """A value for a message."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


class Dim(int):
    """A dimension that remembers which keys of the configuration it was computed from."""

    keys: str

    def __new__(cls, value: int, keys: str) -> Dim:
        """`keys`: as in "num_attention_heads * head_dim"."""
        self = super().__new__(cls, value)
        self.keys = keys
        return self

    def _joined(self, sign: str, other: int, value: int, *, swapped: bool = False) -> Dim:
        parts = [self.keys, other.keys if isinstance(other, Dim) else str(other)]
        return Dim(value, f" {sign} ".join(reversed(parts) if swapped else parts))

    def __mul__(self, other: int) -> Dim:
        """The product."""
        if not isinstance(other, int):
            return NotImplemented
        return self._joined("*", other, int(self) * int(other))

    def __rmul__(self, other: int) -> Dim:
        """The product; of a list, its repetition, as for any number."""
        if not isinstance(other, int):
            return NotImplemented
        return self._joined("*", other, int(other) * int(self), swapped=True)

    def __add__(self, other: int) -> Dim:
        """The sum."""
        if not isinstance(other, int):
            return NotImplemented
        return self._joined("+", other, int(self) + int(other))

    def __floordiv__(self, other: int) -> Dim:
        """The quotient, rounded down."""
        if not isinstance(other, int):
            return NotImplemented
        return self._joined("/", other, int(self) // int(other))


class ConfigView:
    """A JSON object whose values are checked as they are read.

    Every reader raises ConvertError, with file, key and value, where a value is of another kind.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, Any],
        inside: str = "",
        beside: frozenset[str] = frozenset(),
    ) -> None:
        """Wraps the values of a file that messages name.

        Args:
            path: The file.
            values: What it says.
            inside: The object within the file that the keys are of, except those of `beside`.
            beside: Keys of the file itself.
        """
        self.path = path
        self.values = values
        self._inside = inside
        self._beside = beside

    def __contains__(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def name(self, key: str) -> str:
        """The key as messages name it: "text_config.hidden_size"."""
        return f"{self._inside}.{key}" if self._inside and key not in self._beside else key

    def wrong(self, key: str, expected: str) -> ConvertError:
        """The error for a key whose value is not what it should be."""
        found = f"is {shortened(self.values[key])}" if key in self.values else "is missing"
        return ConvertError(f"{self.path}: key {self.name(key)!r} {found}, expected {expected}")

    def _read(self, key: str, expected: str, fits: Callable[[Any], bool], required: bool) -> Any:
        """A value of the expected kind; None where there is none."""
        value = self.values.get(key)
        if (required or value is not None) and not fits(value):
            raise self.wrong(key, expected)
        return value

    def whole(self, key: str, default: int | None = None, least: int = 1) -> Dim:
        """A whole number of at least `least`; of more digits than any dimension it is refused."""
        expected = f"a whole number from {least} to {_LARGEST_WHOLE}"
        value = self._read(
            key,
            expected,
            lambda one: type(one) is int and least <= one <= _LARGEST_WHOLE,
            required=default is None,
        )
        if value is not None or default is None:
            return Dim(value, self.name(key))
        return default if isinstance(default, Dim) else Dim(default, self.name(key))

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        least: float = 0.0,
        most: float = _LARGEST,
    ) -> float:
        """A positive number from `least` to `most`."""
        expected = f"a number from {least:g} to {most:g}" if least else "a positive number"
        if most < _LARGEST and not least:
            expected += f" up to {most:g}"
        value = self._read(
            key,
            expected,
            lambda one: _is_positive(one) and least <= one <= most,
            required=default is None,
        )
        return float(default if value is None else value)  # type: ignore[arg-type]

    def numbers(self, key: str) -> list[float]:
        """A list of positive numbers."""
        value = self._read(
            key,
            "a list of positive numbers",
            lambda given: isinstance(given, list) and all(map(_is_positive, given)),
            required=True,
        )
        return [float(one) for one in value]

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null counts as absent."""
        value = self._read(
            key, "true or false", lambda given: isinstance(given, bool), required=False
        )
        return default if value is None else bool(value)

    def text(self, key: str, default: str) -> str:
        """A string; null counts as absent."""
        value = self._read(key, "a text", lambda given: isinstance(given, str), required=False)
        return default if value is None else str(value)

    def items(self, key: str, expected: str = "a list") -> list[Any]:
        """A list; empty where there is none."""
        value = self._read(key, expected, lambda given: isinstance(given, list), required=False)
        return [] if value is None else list(value)

    def part(self, key: str) -> ConfigView | None:
        """An object below this one; None if there is none."""
        value = self._read(key, "an object", lambda given: isinstance(given, dict), required=False)
        return None if value is None else ConfigView(self.path, value)

    def parts(self, key: str) -> list[ConfigView]:
        """A list of objects below this one; empty where there is none."""
        found = self.items(key, "a list of objects")
        if not all(isinstance(one, dict) for one in found):
            raise self.wrong(key, "a list of objects")
        return [ConfigView(self.path, one) for one in found]

    def require_multiple(self, key: str, value: int, other_key: str, other: int) -> None:
        """Checks that the value of one key is a multiple of another's."""
        if value % other:
            raise ConvertError(
                f"{self.path}: key {self.name(key)!r} ({value}) is no multiple of "
                f"{self.name(other_key)!r} ({other})"
            )

    def merged(self, other: ConfigView | None) -> ConfigView:
        """These values, and those of `other` over them."""
        return self if other is None else self._with({**self.values, **other.values})

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigView:
        """These values, and `defaults` where a key is missing; null is a value, as there."""
        return self._with({**defaults, **self.values})

    def opened(self, key: str) -> ConfigView:
        """These values, and those of the object below `key` over them, which messages name so."""
        inner = self.part(key)
        if inner is None:
            return self
        beside = frozenset(self.values) - frozenset(inner.values)
        return ConfigView(self.path, {**self.values, **inner.values}, key, beside)

    def _with(self, values: Mapping[str, Any]) -> ConfigView:
        """Other values, named alike."""
        return ConfigView(self.path, values, self._inside, self._beside)


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= _LARGEST
