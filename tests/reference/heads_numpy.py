"""Float64 forward passes of drafting heads in NumPy, straight from their public checkpoints.

Written from the papers and the published modules, independent of the C++ code and of the converter:
it reads safetensors, not GGUF. Slow on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  makes bfloat16 known to NumPy
import numpy as np
from safetensors import safe_open

from reference.llama_numpy import Array, LlamaModel, attention, hidden_states, rms_norm, silu


@dataclass(frozen=True)
class Checkpoint:
    """Configuration and tensors of a folder."""

    config: dict[str, Any]
    tensors: dict[str, Array]


def load(folder: Path) -> Checkpoint:
    """Reads a folder whole."""
    config = json.loads((folder / "config.json").read_text())
    (path,) = folder.glob("*.safetensors")
    with safe_open(str(path), framework="np") as file:
        tensors = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}  # noqa: SIM118
    return Checkpoint(config, tensors)


def medusa_logits(heads: Checkpoint, target: LlamaModel, tokens: Sequence[int]) -> list[Array]:
    """Computes what each Medusa head makes of the last position of a text.

    Args:
        heads: From `load`.
        target: The model they belong to.
        tokens: A text; head i guesses the token i + 2 places after its last one.

    Returns:
        Logits [V] for each head.
    """
    hidden = hidden_states(target, tokens)[-1][-1]
    hidden = rms_norm(hidden, target.tensors["output_norm.weight"], target.eps)
    layers = heads.config["medusa_num_layers"]
    shared = target.tensors.get("output.weight", target.tensors["token_embd.weight"])
    logits = []
    for i in range(heads.config["medusa_num_heads"]):
        x = hidden
        for j in range(layers):
            weight, bias = (heads.tensors[f"{i}.{j}.linear.{part}"] for part in ("weight", "bias"))
            x = x + silu(weight @ x + bias)
        logits.append(heads.tensors.get(f"{i}.{layers}.weight", shared) @ x)
    return logits


def _layer(heads: Checkpoint) -> dict[str, Array]:
    """The head's layer, by the names that both layouts share."""
    return {
        name.removeprefix("midlayer.").removeprefix("layers.0."): value
        for name, value in heads.tensors.items()
    }


def _rotate_halves(x: Array, positions: Array, base: float, divisors: Array) -> Array:
    """Rotates pairs (i, i + D/2) of each head of x [T, heads, D], as the checkpoints order them."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * (base ** (-np.arange(half) / half) / divisors)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def eagle3_pass(
    heads: Checkpoint,
    embedding: Array,
    tokens: Sequence[int],
    fused: Array,
    rope_divisors: Array | float = 1.0,
) -> tuple[Array, Array]:
    """Runs the one layer of an EAGLE-3 head over a whole text without a cache.

    Args:
        heads: From `load`.
        embedding: Token embeddings [V, E].
        tokens: Row j's token, the one after position j, [T].
        fused: Row j's hidden state, [T, E]: the fused states of the target at position j, or what
            this pass left for the row before.
        rope_divisors: Of the rotary frequencies [D / 2].

    Returns:
        Logits over the draft vocabulary [T, Vd], and the hidden states before the norm [T, E].
    """
    config = {**heads.config, **heads.config.get("transformer_layer_config", {})}
    layer, eps = _layer(heads), config["rms_norm_eps"]
    count, dim = len(tokens), config["head_dim"]
    positions = np.arange(count, dtype=np.float64)
    embedded = rms_norm(embedding[np.asarray(tokens)], layer["input_layernorm.weight"], eps)
    normed = rms_norm(fused, layer["hidden_norm.weight"], eps)
    x = np.concatenate([embedded, normed], axis=-1)
    residual = normed if config.get("norm_before_residual") else fused
    q, k, v = (
        (x @ layer[f"self_attn.{name}_proj.weight"].T).reshape(count, -1, dim) for name in "qkv"
    )
    divisors = np.broadcast_to(np.asarray(rope_divisors, np.float64), (dim // 2,))
    q, k = (_rotate_halves(one, positions, config["rope_theta"], divisors) for one in (q, k))
    x = residual + attention(q, k, v) @ layer["self_attn.o_proj.weight"].T
    h = rms_norm(x, layer["post_attention_layernorm.weight"], eps)
    gated = silu(h @ layer["mlp.gate_proj.weight"].T) * (h @ layer["mlp.up_proj.weight"].T)
    x = x + gated @ layer["mlp.down_proj.weight"].T
    logits = rms_norm(x, layer["norm.weight"], eps) @ layer["lm_head.weight"].T
    return logits, x


def eagle3_chain(
    heads: Checkpoint,
    target: LlamaModel,
    states: Sequence[int],
    tokens: Sequence[int],
    count: int,
    rope_divisors: Array | float = 1.0,
) -> tuple[list[int], list[Array]]:
    """Drafts greedily behind a text.

    Args:
        heads: From `load`.
        target: The model the head belongs to.
        states: Which hidden states are fused, as `hidden_states` counts them.
        tokens: The text; its last token is not in the target's cache yet.
        count: Tokens to draft.
        rope_divisors: See `eagle3_pass`.

    Returns:
        The drafted ids of the target, and the logits [Vd] each was picked from.
    """
    own = heads.tensors.get("embed_tokens.weight")
    embedding = target.tensors["token_embd.weight"] if own is None else own
    all_states = hidden_states(target, tokens[:-1])
    fused = np.concatenate([all_states[i] for i in states], axis=-1) @ heads.tensors["fc.weight"].T
    shift = heads.tensors.get("d2t")
    row_tokens = list(tokens[1:])
    drafted: list[int] = []
    scores: list[Array] = []
    for _ in range(count):
        logits, hidden = eagle3_pass(heads, embedding, row_tokens, fused, rope_divisors)
        best = int(np.argmax(logits[-1]))
        drafted.append(best if shift is None else best + int(shift[best]))
        scores.append(logits[-1])
        row_tokens.append(drafted[-1])
        fused = np.concatenate([fused, hidden[-1:]])
    return drafted, scores
