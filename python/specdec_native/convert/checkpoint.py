"""Reading a checkpoint folder: ``config.json`` and safetensors files, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_native.errors import ConvertError

__all__ = ["Checkpoint", "ConfigView", "needed_module"]

_PICKLES = ("*.pt", "*.pth", "*.bin")


def needed_module(name: str) -> Any:
    """Imports a module of the extra ``convert``.

    Raises:
        ImportError: It is missing; the message says what to install.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"converting needs the package {name}: pip install 'specdec_native[convert]'"
        ) from error


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

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
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


class Checkpoint:
    """A folder with a configuration and tensors; nothing but names and shapes is kept in memory."""

    def __init__(self, folder: Path, config: ConfigView, files: Mapping[str, Any]) -> None:
        """See `open`. `files`: tensor name -> the open safetensors file that holds it."""
        self.folder = folder
        self.config = config
        self._files = files

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Opens a folder.

        Raises:
            ConvertError: A file is damaged, or there are no safetensors files.
            FileNotFoundError: No such folder, or no ``config.json`` in it.
        """
        config_path = folder / "config.json"
        try:
            config = json.loads(config_path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConvertError(f"{config_path}: no valid JSON ({error})") from None
        if not isinstance(config, dict):
            raise ConvertError(f"{config_path}: holds no JSON object")
        return cls(folder, ConfigView(config_path, config), _open_tensors(folder))

    @property
    def names(self) -> list[str]:
        """All tensors, sorted."""
        return sorted(self._files)

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost dimension first.

        Raises:
            ConvertError: There is no such tensor.
        """
        if name not in self._files:
            raise ConvertError(
                f"{self.folder}: tensor {name!r} is missing; there are {', '.join(self.names[:8])}"
                f"{', ...' if len(self.names) > 8 else ''}"
            )
        return tuple(self._files[name].get_slice(name).get_shape())

    def tensor(self, name: str) -> NDArray[Any]:
        """Reads one tensor: integers as they are, everything else as float32."""
        self.shape(name)
        values: NDArray[Any] = self._files[name].get_tensor(name)
        return values if values.dtype.kind in "iu" else values.astype(np.float32)


def _open_tensors(folder: Path) -> dict[str, Any]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        pickles = [path.name for pattern in _PICKLES for path in sorted(folder.glob(pattern))]
        if pickles:
            raise ConvertError(
                f"{folder}: {pickles[0]} is a pickle, which runs code when it is read; save it as "
                "safetensors first: load it with torch.load(..., weights_only=True) and write it "
                "with safetensors.torch.save_file"
            )
        raise ConvertError(f"{folder}: there is no safetensors file in this folder")
    needed_module("ml_dtypes")  # makes bfloat16 known to NumPy
    safetensors = needed_module("safetensors")
    files: dict[str, Any] = {}
    for path in paths:
        try:
            opened = safetensors.safe_open(str(path), framework="np")
            names = list(opened.keys())
        except safetensors.SafetensorError as error:
            raise ConvertError(f"{path}: damaged ({error})") from None
        for name in names:
            if name in files:
                raise ConvertError(f"{path}: tensor {name!r} is in two files of {folder}")
            files[name] = opened
    return files
