"""Tiny random checkpoints in the Hugging Face layout, made again from what a golden file says.

A golden file (`tests/golden/oracles/NAME.json` and `.npz`, written by `make_oracle_checkpoints.py`)
holds a configuration, the names and shapes of the tensors, prompts, and the logits that
`transformers` computes. The weights are not stored: every tensor is made of the raw words of a
Philox generator whose key is the seed and the tensor's name. NumPy promises that those words never
change, so this needs no torch, and gives the same bytes everywhere.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from oracle_tokenizers import write_tokenizer

__all__ = ["ORACLES", "Oracle", "checkpoint_tensors", "names_of", "read_oracle", "write_checkpoint"]

ORACLES = Path(__file__).resolve().parent.parent / "tests" / "golden" / "oracles"

_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
_BYTES = ("_blocks", "_scales")  # MXFP4 as it lies in a checkpoint: uint8


@dataclass(frozen=True)
class Oracle:
    """One golden file.

    Attributes:
        name: Its file name without the ending.
        config: The checkpoint's `config.json`.
        tokenizer: What kind of tokenizer files it gets, a name of `oracle_tokenizers`.
        seed: Of the weights.
        dtype: In which the checkpoint stores them.
        tensors: Name -> shape.
        checksum: CRC-32 of all weights, in the order of the names.
        prompts: Token ids.
        rows: For each prompt the positions whose logits are kept.
        logits: For each prompt float32 [rows, vocabulary].
        n_ctx: For each prompt the context length that a model is to be loaded with.
        made_with: Versions of the packages that computed the logits.
    """

    name: str
    config: dict[str, Any]
    tokenizer: str
    seed: int
    dtype: str
    tensors: dict[str, tuple[int, ...]]
    checksum: int
    prompts: list[list[int]]
    rows: list[list[int]]
    logits: list[NDArray[np.float32]]
    n_ctx: list[int]
    made_with: dict[str, str]


def names_of() -> list[str]:
    """The golden files there are."""
    return sorted(path.stem for path in ORACLES.glob("*.json"))


def read_oracle(name: str) -> Oracle:
    """Reads a golden file."""
    values = json.loads((ORACLES / f"{name}.json").read_text(encoding="utf-8"))
    with np.load(ORACLES / f"{name}.npz") as arrays:
        logits = [arrays[f"logits{i}"] for i in range(len(values["prompts"]))]
    tensors = {key: tuple(shape) for key, shape in values.pop("tensors").items()}
    return Oracle(name=name, tensors=tensors, logits=logits, **values)


def _normal(seed: int, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """Nearly normal values of variance 1: each is the sum of the four quarters of a raw word."""
    count = int(np.prod(shape, dtype=np.int64))
    words = np.random.Philox(key=[seed, zlib.crc32(name.encode())]).random_raw(count)
    quarters = words.view(np.uint16).reshape(count, 4).astype(np.float64)
    values = (quarters.sum(axis=1) / 65536.0 - 2.0) * np.sqrt(3.0)
    return np.asarray(values.reshape(shape), np.float32)


def _bytes(seed: int, name: str, shape: Sequence[int]) -> NDArray[np.uint8]:
    """MXFP4 of a checkpoint: any nibbles; exponents (of 2, bias 127) near 1/16."""
    count = int(np.prod(shape, dtype=np.int64))
    words = np.random.Philox(key=[seed, zlib.crc32(name.encode())]).random_raw((count + 7) // 8)
    values = words.view(np.uint8)[:count].reshape(shape)
    return values if name.endswith("_blocks") else (122 + values % 3).astype(np.uint8)


def _is_norm(name: str) -> bool:
    return name.endswith((".weight", ".bias")) and "norm" in name.rsplit(".", 2)[-2]


def tensor_values(
    name: str, shape: Sequence[int], seed: int, dtype: str, norm_mean: float = 1.0
) -> NDArray[Any]:
    """The values of one tensor, in the dtype of the checkpoint.

    Args:
        name: Its name; norms, biases, sinks and matrices get values of suitable size.
        shape: Outermost dimension first.
        seed: The checkpoint's.
        dtype: The checkpoint's.
        norm_mean: What norm weights vary around: Gemma stores them less 1.
    """
    if name.endswith(_BYTES):
        return _bytes(seed, name, shape)
    values = _normal(seed, name, shape)
    if name.endswith("bias"):
        values = values * np.float32(0.2)
    elif name.endswith("sinks"):
        pass
    elif _is_norm(name) or len(shape) < 2:
        values = np.float32(norm_mean) + values * np.float32(0.2)
    elif "embed_tokens" in name or "lm_head" in name:
        values = values * np.float32(0.3)
    else:
        gain = 1.5 if "q_proj" in name or "k_proj" in name or "qkv_proj" in name else 1.0
        values = values * np.float32(gain / np.sqrt(shape[-1]))
    return np.asarray(values, _DTYPES[dtype])


def checkpoint_tensors(
    tensors: Mapping[str, Sequence[int]], seed: int, dtype: str, norm_mean: float
) -> tuple[dict[str, NDArray[Any]], int]:
    """All tensors, and the checksum over them."""
    made = {
        name: tensor_values(name, shape, seed, dtype, norm_mean) for name, shape in tensors.items()
    }
    checksum = 0
    for name in sorted(made):
        checksum = zlib.crc32(np.ascontiguousarray(made[name]).view(np.uint8), checksum)
    return made, checksum


def norm_mean(config: Mapping[str, Any]) -> float:
    """Around what the stored norm weights of this configuration vary."""
    return 0.0 if str(config["model_type"]).startswith("gemma") else 1.0


def write_checkpoint(oracle: Oracle, folder: Path, shards: int = 1) -> Path:
    """Writes the checkpoint of a golden file: configuration, tokenizer and safetensors files.

    Args:
        oracle: What to write.
        folder: Where to; it is made.
        shards: In how many files the tensors lie; with more than one there is an index.

    Returns:
        The folder.

    Raises:
        ValueError: The weights are not those that the logits were computed with.
    """
    tensors, checksum = checkpoint_tensors(
        oracle.tensors, oracle.seed, oracle.dtype, norm_mean(oracle.config)
    )
    if checksum != oracle.checksum:
        raise ValueError(f"{oracle.name}: the weights have checksum {checksum}, not the golden one")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(oracle.config, indent=2), encoding="utf-8")
    text = oracle.config.get("text_config", oracle.config)
    write_tokenizer(folder, oracle.tokenizer, text["vocab_size"])
    write_tensors(folder, tensors, shards)
    return folder


def write_tensors(folder: Path, tensors: Mapping[str, NDArray[Any]], shards: int = 1) -> None:
    """Writes safetensors files as `save_pretrained` names them."""
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
