"""A float64 forward pass of the `llama` architecture in NumPy: the tests' oracle.

Written from the published definitions and independent of the C++ code: it reads files with the
`gguf` package, dequantises everything, and computes one whole text at a time without a cache.
Slow on purpose (clear before fast): for tiny models, and for short texts of a small one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

Array = NDArray[np.float64]

_YARN_BETA_FAST, _YARN_BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary angles: pair i of a head turns by `frequency[i]` radians per position."""

    frequency: Array  # [rotated dimensions / 2]
    magnitude: float  # YaRN's attention factor; multiplies the rotated part of queries and keys


@dataclass(frozen=True)
class LlamaModel:
    """Weights and settings. H query heads, Hkv key/value heads, D head size, V vocabulary."""

    tensors: dict[str, Array]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: Rope


def _yarn_mscale(scale: float, multiplier: float) -> float:
    return 1.0 if scale <= 1.0 else 0.1 * multiplier * math.log(scale) + 1.0


def _yarn_keep(pairs: int, base: float, original_context: int, whole_pairs: bool = True) -> Array:
    """How much of each pair's own frequency YaRN keeps (arXiv 2309.00071); 0 is interpolation."""

    def pair_with_turns(turns: float) -> float:
        # The (fractional) pair that makes this many turns within the original context.
        return pairs * math.log(original_context / (turns * 2 * math.pi)) / math.log(base)

    first, last = pair_with_turns(_YARN_BETA_FAST), pair_with_turns(_YARN_BETA_SLOW)
    if whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(0.0, first), min(2.0 * pairs - 1, last)
    ramp = (np.arange(pairs) - low) / max(0.001, high - low)
    return 1.0 - np.clip(ramp, 0.0, 1.0)


def make_rope(
    metadata: dict[str, Any], dims: int, factors: Array | None, yarn_whole_pairs: bool = True
) -> Rope:
    """Builds the rotary table from `llama.*` keys.

    Args:
        metadata: The file's keys.
        dims: Rotated dimensions of a head.
        factors: `rope_freqs.weight`, divisors of the frequencies [dims / 2], or None.
        yarn_whole_pairs: Whether YaRN's ramp begins and ends at whole pairs.

    Returns:
        Frequencies and magnitude.
    """
    base = float(metadata.get("llama.rope.freq_base", 10000.0))
    extrapolated = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    if factors is not None:
        extrapolated = extrapolated / factors
    prefix = "llama.rope.scaling."
    # A file with a factor but no type scales linearly; so do old ones with `rope.scale_linear`.
    kind = metadata.get(prefix + "type", "linear")
    factor = float(metadata.get(prefix + "factor", metadata.get("llama.rope.scale_linear", 0.0)))
    if kind == "none" or factor == 0.0:
        factor = 1.0
    magnitude = float(metadata.get(prefix + "attn_factor", 1.0))
    if kind in ("none", "linear", "longrope"):
        return Rope(extrapolated / factor, magnitude)
    if kind != "yarn":
        raise ValueError(f"rope scaling {kind!r} is not part of this reference")
    context = metadata.get(prefix + "original_context_length", metadata["llama.context_length"])
    keep = _yarn_keep(dims // 2, base, int(context), yarn_whole_pairs)
    log_multiplier = float(metadata.get(prefix + "yarn_log_multiplier", 0.0))
    magnitude *= _yarn_mscale(factor, 1.0)
    if log_multiplier != 0.0:
        magnitude /= _yarn_mscale(factor, log_multiplier)
    return Rope(extrapolated / factor * (1.0 - keep) + extrapolated * keep, magnitude)


def load(path: Path | str) -> LlamaModel:
    """Reads a `llama` GGUF and dequantises all of it to float64."""
    reader = GGUFReader(path)
    metadata = {
        name: field.contents()
        for name, field in reader.fields.items()
        if name.startswith(("llama.", "general.architecture"))
    }
    if metadata["general.architecture"] != "llama":
        raise ValueError(f"{path}: not a llama model")
    tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    heads = int(metadata["llama.attention.head_count"])
    width = int(metadata["llama.embedding_length"])
    head_dim = int(metadata.get("llama.attention.key_length", width // heads))
    dims = int(metadata.get("llama.rope.dimension_count", head_dim))
    return LlamaModel(
        tensors=tensors,
        layers=int(metadata["llama.block_count"]),
        heads=heads,
        kv_heads=int(metadata.get("llama.attention.head_count_kv", heads)),
        head_dim=head_dim,
        eps=float(metadata["llama.attention.layer_norm_rms_epsilon"]),
        rope=make_rope(metadata, dims, tensors.get("rope_freqs.weight")),
    )


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Computes x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x: Array) -> Array:
    """Computes x * sigmoid(x)."""
    return x / (1.0 + np.exp(-x))


def rotate(x: Array, positions: NDArray[np.int64], rope: Rope) -> Array:
    """Rotates neighbouring pairs (2i, 2i+1) of each head of x [T, heads, D]."""
    pairs = len(rope.frequency)
    angle = positions[:, None, None] * rope.frequency
    cos, sin = np.cos(angle) * rope.magnitude, np.sin(angle) * rope.magnitude
    even, odd = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    result = x.copy()
    result[..., 0 : 2 * pairs : 2] = even * cos - odd * sin
    result[..., 1 : 2 * pairs : 2] = even * sin + odd * cos
    return result


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention with grouped queries.

    Args:
        q: Queries [T, H, D].
        k: Keys [T, Hkv, D]; query head h uses key head h // (H / Hkv).
        v: Values [T, Hkv, D].

    Returns:
        [T, H * D].
    """
    length, heads, head_dim = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("thd,shd->hts", q, k) / math.sqrt(head_dim)
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hts,shd->thd", weights, v).reshape(length, -1)


def _layer(model: LlamaModel, x: Array, layer: int) -> Array:
    def weight(name: str) -> Array:
        return model.tensors[f"blk.{layer}.{name}.weight"]

    length = len(x)
    positions = np.arange(length)
    h = rms_norm(x, weight("attn_norm"), model.eps)
    q = (h @ weight("attn_q").T).reshape(length, model.heads, model.head_dim)
    k = (h @ weight("attn_k").T).reshape(length, model.kv_heads, model.head_dim)
    v = (h @ weight("attn_v").T).reshape(length, model.kv_heads, model.head_dim)
    q, k = rotate(q, positions, model.rope), rotate(k, positions, model.rope)
    x = x + attention(q, k, v) @ weight("attn_output").T
    h = rms_norm(x, weight("ffn_norm"), model.eps)
    gated = silu(h @ weight("ffn_gate").T) * (h @ weight("ffn_up").T)
    return x + gated @ weight("ffn_down").T


def forward(model: LlamaModel, tokens: Sequence[int]) -> Array:
    """Computes the logits after each token of a text.

    Args:
        model: From `load`.
        tokens: T token ids.

    Returns:
        Logits [T, V], padding rows included.
    """
    embedding = model.tensors["token_embd.weight"]
    x = rms_norm(hidden_states(model, tokens)[-1], model.tensors["output_norm.weight"], model.eps)
    return x @ model.tensors.get("output.weight", embedding).T


def hidden_states(model: LlamaModel, tokens: Sequence[int]) -> list[Array]:
    """Computes the residual stream before each layer and after the last.

    Returns:
        L + 1 arrays [T, E]: what layer i reads, and last what the last layer leaves.
    """
    x = model.tensors["token_embd.weight"][np.asarray(tokens, dtype=np.int64)]
    states = [x]
    for layer in range(model.layers):
        x = _layer(model, x, layer)
        states.append(x)
    return states


def log_softmax(logits: Array) -> Array:
    """Log-probabilities over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def greedy(
    model: LlamaModel, prompt: Sequence[int], count: int, vocab: int | None = None
) -> list[int]:
    """Appends the likeliest token `count` times; ties go to the lowest id.

    Args:
        model: From `load`.
        prompt: At least one token.
        count: Tokens to generate.
        vocab: Only ids below this are taken (padding rows are no tokens); None: all.

    Returns:
        The generated ids.
    """
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(forward(model, tokens)[-1, :vocab])))
    return tokens[len(prompt) :]
