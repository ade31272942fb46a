"""What a converter of drafting heads needs to know of their target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specdec_native import _core
from specdec_native.convert.checkpoint import read_config
from specdec_native.convert.find_family import find_family, text_model
from specdec_native.convert.tokenizer_files import plan_tokenizer
from specdec_native.errors import ConvertError

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """The target that heads belong to.

    Attributes:
        path: Its file, or its checkpoint's folder.
        layers: Its number of layers.
        width: Its width.
        vocab: Rows of its embedding.
        tokenizer: Its ``tokenizer.*`` keys, with their values.
        notes: What of its tokenizer was left out.
    """

    path: Path
    layers: int
    width: int
    vocab: int
    tokenizer: dict[str, Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: Path) -> Target:
        """Reads a GGUF file's metadata, or a checkpoint's configuration and tokenizer.

        Raises:
            ConvertError: It is no model.
            GgufError: The file is damaged.
        """
        return cls._of_checkpoint(path) if path.is_dir() else cls._of_file(path)

    @classmethod
    def _of_checkpoint(cls, folder: Path) -> Target:
        config = read_config(folder)
        _, family = find_family(config)
        text, _ = text_model(config, family)
        vocab = text.whole("vocab_size")
        tokenizer, notes = plan_tokenizer(folder, config, vocab, family.architecture)
        layers, width = text.whole("num_hidden_layers"), text.whole("hidden_size")
        return cls(folder, layers, width, vocab, _plain(tokenizer), tuple(notes))

    @classmethod
    def _of_file(cls, path: Path) -> Target:
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
