"""What a converter needs to know of the target's GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdec_native import _core
from specdec_native.errors import ConvertError

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """The target that heads belong to.

    Attributes:
        path: Its file.
        layers: Its number of layers.
        width: Its width.
        vocab: Rows of its embedding.
        tokenizer: Its ``tokenizer.*`` keys, with their values.
    """

    path: Path
    layers: int
    width: int
    vocab: int
    tokenizer: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> Target:
        """Reads the metadata.

        Raises:
            ConvertError: The file is no model.
            GgufError: It is damaged.
        """
        file = _core.GgufFile(path)
        metadata = file.metadata
        architecture = metadata.get("general.architecture")
        numbers = [
            metadata.get(f"{architecture}.{key}") for key in ("block_count", "embedding_length")
        ]
        embedding = [one.shape[0] for one in file.tensors if one.name == "token_embd.weight"]
        if not all(type(one) is int for one in numbers) or not embedding:
            raise ConvertError(f"{path}: this is no model; give the target's GGUF file")
        tokenizer = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
        return cls(path, numbers[0], numbers[1], embedding[0], _plain(tokenizer))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Without empty arrays, which carry nothing and which GGUF writers refuse."""
    return {
        key: value
        for key, value in values.items()
        if not (isinstance(value, (list, np.ndarray)) and len(value) == 0)
    }
