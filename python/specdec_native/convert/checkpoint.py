"""A checkpoint folder: ``config.json`` and safetensors files, of which single rows can be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from specdec_native.closing import Closing
from specdec_native.convert.config import ConfigView, Dim, read_json
from specdec_native.convert.fp8 import scaled_rows
from specdec_native.convert.safetensors_file import SafetensorsFile
from specdec_native.errors import ConvertError

__all__ = ["Checkpoint", "read_config"]

_PICKLES = ("*.pt", "*.pth", "*.bin")
_SCALES = "_scale_inv"  # behind the name of a weight of 8-bit floats
_INDEX = "model.safetensors.index.json"


class Checkpoint(Closing):
    """A folder with a configuration and tensors; nothing but names and shapes is kept in memory."""

    def __init__(
        self,
        folder: Path,
        config: ConfigView,
        files: Mapping[str, SafetensorsFile],
        stack: ExitStack,
    ) -> None:
        """See `open`. `files`: tensor name -> the open file that holds it."""
        self.folder = folder
        self.config = config
        self._files = files
        self._stack = stack

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Opens a folder; close it after use, or use it in a ``with`` statement.

        Raises:
            ConvertError: A file is damaged or missing, or there are no safetensors files.
            FileNotFoundError: There is no such folder.
            NotADirectoryError: It is a file.
        """
        config = read_config(folder)
        with ExitStack() as stack:
            files = _open_tensors(folder, stack)
            return cls(folder, config, files, stack.pop_all())

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()

    @property
    def paths(self) -> list[Path]:
        """The files that a conversion may read."""
        return [path for path in self.folder.iterdir() if path.suffix != ".gguf"]

    @property
    def names(self) -> list[str]:
        """All tensors, sorted."""
        return sorted(self._files)

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._files

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            raise ConvertError(
                f"{self.folder}: tensor {name!r} is missing; there are {', '.join(self.names[:8])}"
                f"{', ...' if len(self.names) > 8 else ''}"
            )
        return self._files[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost dimension first.

        Raises:
            ConvertError: There is no such tensor.
        """
        return self._file(name).tensors[name].shape

    def is_whole(self, name: str) -> bool:
        """Whether a tensor holds whole numbers."""
        return self._file(name).tensors[name].is_whole

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks a tensor's shape.

        Raises:
            ConvertError: There is no such tensor, or it has another shape.
        """
        found = self.shape(name)
        if found != shape:
            keys = ", ".join(str(getattr(one, "keys", one)) for one in shape)
            why = f", which is [{keys}] of config.json" if any(map(_is_named, shape)) else ""
            raise ConvertError(
                f"{self.folder}: tensor {name!r} has shape {list(found)}, expected "
                f"{[int(one) for one in shape]}{why}"
            )

    def values(self, name: str, first: int, count: int) -> NDArray[Any]:
        """Values [first, first + count) in the file's order: float32, or whole numbers.

        8-bit floats are multiplied by their scales; of those, whole rows must be asked.
        """
        read = self._file(name).read(name, first, count)
        scales = f"{name}{_SCALES}"
        if scales not in self._files:
            return read
        rows, columns = self.shape(name)
        block = self._scale_block()
        expected = tuple(-(-size // one) for size, one in zip((rows, columns), block, strict=True))
        found = self.tensor(scales)
        if found.size != 1 and found.shape != expected:
            raise ConvertError(
                f"{self.folder}: tensor {scales!r} has shape {list(found.shape)}, expected "
                f"{list(expected)}, a scale for each block of {list(block)}"
            )
        return scaled_rows(read.reshape(-1, columns), first // columns, found, block)

    def _scale_block(self) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        quantization = self.config.part("quantization_config")
        given = None if quantization is None else quantization.values.get("weight_block_size")
        if quantization is None or given is None:
            return 128, 128
        if not isinstance(given, list) or [type(one) for one in given] != [int, int]:
            raise quantization.wrong("weight_block_size", "two whole numbers, rows and columns")
        return max(1, given[0]), max(1, given[1])

    def tensor(self, name: str) -> NDArray[Any]:
        """A whole tensor: integers as they are, everything else as float32."""
        shape = self.shape(name)
        return self.values(name, 0, self._files[name].tensors[name].size).reshape(shape)


def _is_named(size: int) -> bool:
    return isinstance(size, Dim)


def read_config(folder: Path) -> ConfigView:
    """The configuration of a checkpoint.

    Raises:
        ConvertError: There is no ``config.json``, or it is damaged.
        FileNotFoundError: There is no such folder.
        NotADirectoryError: It is a file.
    """
    wanted = "a checkpoint's folder, with config.json, safetensors and tokenizer files"
    if not folder.exists():
        raise FileNotFoundError(
            f"there is no folder {folder}; give {wanted}. One from the Hugging Face hub comes with "
            "'hf download OWNER/REPO --local-dir FOLDER'"
        )
    if not folder.is_dir():
        more = "; to change the type of a GGUF file, use quantize" * (folder.suffix == ".gguf")
        raise NotADirectoryError(f"{folder} is a file; give {wanted}{more}")
    path = folder / "config.json"
    if not path.is_file():
        inside = sorted(str(one.parent) for one in folder.glob("snapshots/*/config.json"))
        names = sorted(one.name for one in folder.iterdir())[:5]
        found = f"there is {', '.join(names)}" if names else "this one is empty"
        hint = f"did you mean {inside[0]}?" if inside else found
        raise ConvertError(f"{path}: this file is missing; give {wanted} ({hint})")
    return ConfigView(path, read_json(path))


def _open_tensors(folder: Path, stack: ExitStack) -> dict[str, SafetensorsFile]:
    index = folder / _INDEX
    if index.is_file():
        return _open_indexed(folder, index, stack)
    paths = _unindexed(folder)
    files: dict[str, SafetensorsFile] = {}
    for path in paths:
        opened = stack.enter_context(SafetensorsFile(path))
        for name in opened.tensors:
            if name in files:
                raise ConvertError(f"{path}: tensor {name!r} is in two files of {folder}")
            files[name] = opened
    return files


def _unindexed(folder: Path) -> list[Path]:
    """The safetensors files of a folder without an index.

    Raises:
        ConvertError: There are none, or one of a numbered set is missing.
    """
    whole = folder / "model.safetensors"
    paths = [whole] if whole.is_file() else sorted(folder.glob("[!.]*.safetensors"))
    if not paths:
        pickles = [path.name for pattern in _PICKLES for path in sorted(folder.glob(pattern))]
        if pickles:
            raise ConvertError(
                f"{folder}: {pickles[0]} is a pickle, which runs code when it is read; save it as "
                "safetensors first: load it with torch.load(..., weights_only=True) and write it "
                "with safetensors.torch.save_file"
            )
        raise ConvertError(f"{folder}: there is no safetensors file in this folder")
    for path in paths:
        numbered = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.safetensors", path.name)
        for i in range(int(numbered[3]) if numbered else 0):
            name = f"{numbered[1]}-{i + 1:05d}-of-{numbered[3]}.safetensors"  # type: ignore[index]
            if not (folder / name).is_file():
                raise ConvertError(f"{folder}: {name} is missing, a part of {path.name}'s set")
    return paths


def _open_indexed(folder: Path, index: Path, stack: ExitStack) -> dict[str, SafetensorsFile]:
    """The files that an index names; it and they must agree."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(one, str) and Path(one).name == one for one in weight_map.values()
    ):
        raise ConvertError(f"{index}: key 'weight_map' is no object from tensors to file names")
    opened: dict[str, SafetensorsFile] = {}
    present = {one.name for one in folder.iterdir()}
    for name in sorted(set(weight_map.values())):
        path = folder / name
        if name not in present:
            first = min(tensor for tensor, file in weight_map.items() if file == name)
            raise ConvertError(
                f"{path}: this file is missing; {index.name} says that it holds {first!r}"
            )
        opened[name] = stack.enter_context(SafetensorsFile(path))
    for tensor, name in weight_map.items():
        if tensor not in opened[name].tensors:
            raise ConvertError(
                f"{folder / name}: tensor {tensor!r} is missing, which {index.name} says is there"
            )
    for name, file in opened.items():
        for tensor in file.tensors:
            if weight_map.get(tensor) != name:
                raise ConvertError(
                    f"{index}: key 'weight_map' has {weight_map.get(tensor)!r} for {tensor!r}, "
                    f"which is in {name}"
                )
    return {tensor: opened[name] for tensor, name in weight_map.items()}
