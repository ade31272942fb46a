"""Writes tiny drafting heads with seeded random weights, in the public layouts, for tests.

    python tools/make_tiny_heads.py medusa HEADS_DIR --width 64 --vocab 300
    python tools/make_tiny_heads.py eagle3 HEADS_DIR --width 64 --vocab 300
    specdec convert HEADS_DIR heads.gguf --target tiny.gguf

Their guesses are those of chance, with peaks: what they are worth is not what they are for.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

__all__ = ["make_eagle3", "make_medusa"]

_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class _Random:
    """Tensors by name; each depends only on the seed and its own name."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.seed = seed
        self.dtype = _DTYPES[dtype]
        self.tensors: dict[str, NDArray[Any]] = {}

    def _values(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        return rng.standard_normal(shape)

    def matrix(self, name: str, rows: int, cols: int, gain: float = 1.0) -> None:
        values = self._values(name, (rows, cols)) * gain / np.sqrt(cols)
        self.tensors[name] = values.astype(self.dtype)

    def vector(self, name: str, size: int, mean: float = 1.0) -> None:
        self.tensors[name] = (mean + 0.1 * self._values(name, (size,))).astype(self.dtype)


def _write(folder: Path | str, config: dict[str, Any], tensors: dict[str, Any], file: str) -> Path:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(tensors, folder / file)
    return folder


def make_medusa(
    folder: Path | str,
    *,
    width: int = 64,
    vocab: int = 300,
    heads: int = 3,
    layers: int = 1,
    shared: bool = False,
    dtype: str = "float32",
    seed: int = 1,
) -> Path:
    """Writes Medusa heads in the layout of FasterDecoding/Medusa.

    Args:
        folder: Where `config.json` and the tensors go.
        width: The target's width.
        vocab: Rows of an output matrix.
        heads: How many heads.
        layers: Residual blocks of a head.
        shared: Whether the heads have no output matrix of their own.
        dtype: "float32", "float16" or "bfloat16".
        seed: The same arguments give the same bytes.

    Returns:
        `folder` as a Path.
    """
    random = _Random(seed, dtype)
    for i in range(heads):
        for j in range(layers):
            random.matrix(f"{i}.{j}.linear.weight", width, width)
            random.vector(f"{i}.{j}.linear.bias", width, mean=0.0)
        if not shared:
            # The tiny models' last norm makes states of size 10.
            random.matrix(f"{i}.{layers}.weight", vocab, width, gain=0.2)
    config = {
        "medusa_num_heads": heads,
        "medusa_num_layers": layers,
        "base_model_name_or_path": "tiny",
    }
    return _write(folder, config, random.tensors, "medusa_lm_head.safetensors")


def make_eagle3(
    folder: Path | str,
    *,
    width: int = 64,
    target_width: int | None = None,
    vocab: int = 300,
    draft_vocab: int = 120,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 128,
    states: list[int] | None = None,
    own_embedding: bool = False,
    norm_before_residual: bool = False,
    layout: str = "midlayer",
    rope: dict[str, Any] | None = None,
    dtype: str = "float32",
    seed: int = 1,
) -> Path:
    """Writes an EAGLE-3 head in the layout of SafeAILab/EAGLE or of speculators.

    Args:
        folder: Where `config.json` and the tensors go.
        width: Of the head.
        target_width: None: the head's.
        vocab: The target's.
        draft_vocab: Tokens that the head can propose, picked at random; `vocab`: all, no map.
        heads: Query heads.
        kv_heads: Key/value heads.
        head_dim: Size of a head.
        ffn: Feed-forward width.
        states: `eagle_aux_hidden_state_layer_ids`; None: not said.
        own_embedding: Whether the head has an embedding of its own.
        norm_before_residual: As in the configuration.
        layout: "midlayer" (SafeAILab/EAGLE) or "speculators".
        rope: `rope_scaling` of the configuration.
        dtype: "float32", "float16" or "bfloat16".
        seed: The same arguments give the same bytes.

    Returns:
        `folder` as a Path.
    """
    random = _Random(seed, dtype)
    fused = (target_width or width) * (3 if states is None else len(states))
    layer = "midlayer." if layout == "midlayer" else "layers.0."
    random.matrix("fc.weight", width, fused)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        random.vector(f"{layer}{name}.weight", width)
    random.matrix(f"{layer}self_attn.q_proj.weight", heads * head_dim, 2 * width)
    random.matrix(f"{layer}self_attn.k_proj.weight", kv_heads * head_dim, 2 * width)
    random.matrix(f"{layer}self_attn.v_proj.weight", kv_heads * head_dim, 2 * width)
    random.matrix(f"{layer}self_attn.o_proj.weight", width, heads * head_dim)
    random.matrix(f"{layer}mlp.gate_proj.weight", ffn, width)
    random.matrix(f"{layer}mlp.up_proj.weight", ffn, width)
    random.matrix(f"{layer}mlp.down_proj.weight", width, ffn)
    random.vector("norm.weight", width)
    random.matrix("lm_head.weight", draft_vocab, width, gain=4.0)
    if own_embedding:
        random.matrix("embed_tokens.weight", vocab, width)
    if draft_vocab < vocab:
        rng = np.random.default_rng([seed, 7])
        ids = np.sort(rng.choice(vocab, draft_vocab, replace=False))
        random.tensors["d2t"] = (ids - np.arange(draft_vocab)).astype(np.int64)
        random.tensors["t2d"] = np.isin(np.arange(vocab), ids)
    inner: dict[str, Any] = {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ffn,
        "num_hidden_layers": 1,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": vocab,
    }
    if rope is not None:
        inner["rope_scaling"] = rope
    config: dict[str, Any] = {"draft_vocab_size": draft_vocab}
    if norm_before_residual:
        config["norm_before_residual"] = True
    if target_width is not None:
        config["target_hidden_size"] = target_width
    if states is not None:
        config["eagle_aux_hidden_state_layer_ids"] = states
    if layout == "midlayer":
        config |= {"architectures": ["LlamaForCausalLMEagle3"], **inner}
    else:
        config |= {"architectures": ["Eagle3Speculator"], "transformer_layer_config": inner}
    return _write(folder, config, random.tensors, "model.safetensors")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("kind", choices=["medusa", "eagle3"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=64, help="the target's; default: 64")
    parser.add_argument("--vocab", type=int, default=300, help="the target's; default: 300")
    parser.add_argument("--dtype", choices=list(_DTYPES), default="float32")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    make = make_medusa if args.kind == "medusa" else make_eagle3
    make(args.folder, width=args.width, vocab=args.vocab, dtype=args.dtype, seed=args.seed)


if __name__ == "__main__":
    main()
