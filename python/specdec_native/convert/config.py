"""JSON files of a checkpoint, with values that are checked as they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_native.errors import ConvertError

__all__ = ["ConfigView", "read_json"]


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file that holds a JSON object.

    Raises:
        ConvertError: It holds none.
        FileNotFoundError: There is no such file.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConvertError(f"{path}: no valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConvertError(f"{path}: holds no JSON object")
    return values


class ConfigView:
    """A JSON object whose values are checked as they are read."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        """Wraps the values of a file that messages name."""
        self.path = path
        self.values = values

    def __contains__(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ConvertError(f"{self.path}: key {key!r} is missing")
            return default
        if type(value) is not int or not least <= value < 2**31:
            raise ConvertError(f"{self.path}: key {key!r} is {value!r}, no whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ConvertError(f"{self.path}: key {key!r} is {value!r}, no positive number")
        return float(value)

    def numbers(self, key: str) -> list[float]:
        """A list of positive numbers."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(
            isinstance(one, (int, float)) and not isinstance(one, bool) and one > 0 for one in value
        ):
            raise ConvertError(f"{self.path}: key {key!r} is no list of positive numbers")
        return [float(one) for one in value]

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null counts as absent."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConvertError(f"{self.path}: key {key!r} is {value!r}, neither true nor false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.values.get(key)
        return value if isinstance(value, str) else default

    def part(self, key: str) -> ConfigView | None:
        """An object below this one; None if there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConvertError(f"{self.path}: key {key!r} is {value!r}, no object")
        return ConfigView(self.path, value)

    def merged(self, other: ConfigView | None) -> ConfigView:
        """These values, and those of `other` over them."""
        return self if other is None else ConfigView(self.path, {**self.values, **other.values})

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigView:
        """These values, and `defaults` where a key is missing or null."""
        given = {key: value for key, value in self.values.items() if value is not None}
        return ConfigView(self.path, {**defaults, **given})
