"""A float64 forward pass of every supported architecture in NumPy, one whole text at a time.

Written from the published definitions; `llama_numpy` is the same for `llama` alone, in fewer words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from model_families import FAMILIES, Family
from reference.llama_numpy import Array, Rope, make_rope, rms_norm, silu


@dataclass(frozen=True)
class Transformer:
    """Weights and settings of a model."""

    family: Family
    keys: dict[str, Any]  # without the architecture's prefix
    tensors: dict[str, Array]
    rope: Rope
    local_rope: Rope

    def number(self, key: str, default: float = 0.0) -> float:
        """Returns a key's value."""
        return float(self.keys.get(key, default))

    @property
    def heads(self) -> tuple[int, int, int]:
        """H, Hkv, D."""
        count = int(self.number("attention.head_count"))
        width = int(self.number("embedding_length"))
        return (
            count,
            int(self.number("attention.head_count_kv", count)),
            int(self.number("attention.key_length", width // count)),
        )

    def window(self, layer: int) -> int:
        """Positions that a layer's rows see; 0: all."""
        size = int(self.number("attention.sliding_window"))
        period = self.family.window_period
        if size == 0 or period == 0:
            return 0
        if period == 1:
            return size
        period = int(self.number("attention.sliding_window_pattern", period))
        return size if layer % period < period - 1 else 0


def load(path: Path | str, family: str = "", n_ctx: int = 0) -> Transformer:
    """Reads a GGUF and dequantises all of it.

    Args:
        path: The file.
        family: Of `model_families.FAMILIES`; by default the file's architecture.
        n_ctx: Context length it is run with: long-rope's factors depend on it.

    Returns:
        The model.
    """
    reader = GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    name = metadata["general.architecture"]
    keys = {k.removeprefix(name + "."): v for k, v in metadata.items() if k.startswith(name + ".")}
    tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    traits = FAMILIES[family or name]
    head_dim = keys.get(
        "attention.key_length", keys["embedding_length"] // keys["attention.head_count"]
    )
    dims = int(keys.get("rope.dimension_count", head_dim))
    factors = tensors.get("rope_freqs.weight")
    if "rope_factors_long.weight" in tensors:
        long = n_ctx > keys["rope.scaling.original_context_length"]
        factors = tensors[f"rope_factors_{'long' if long else 'short'}.weight"]
    rope_keys = {"llama." + k: v for k, v in keys.items()}
    rope = make_rope(rope_keys, dims, factors, traits.yarn_whole_pairs)
    local = rope
    if traits.unscaled_local_rope:
        base = keys.get(
            "rope.freq_base_swa", 10000.0 if name == "gemma3" else keys["rope.freq_base"]
        )
        local = make_rope({"llama.rope.freq_base": base}, dims, None)
    return Transformer(traits, keys, tensors, rope, local)


def gelu(x: Array) -> Array:
    """The tanh form of GELU."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def activate(kind: str, gate: Array, up: Array) -> Array:
    """activation(gate) * up, as the family has it."""
    if kind == "clamped":
        gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
        return gate / (1.0 + np.exp(-1.702 * gate)) * (up + 1.0)
    return (gelu(gate) if kind == "gelu" else silu(gate)) * up


def rotate(x: Array, rope: Rope, interleaved: bool) -> Array:
    """Rotates the heads of x [T, heads, D], row t at position t."""
    pairs = len(rope.frequency)
    angle = np.arange(len(x))[:, None, None] * rope.frequency
    cos, sin = np.cos(angle) * rope.magnitude, np.sin(angle) * rope.magnitude
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    result = x.copy()
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., first] * sin + x[..., second] * cos
    return result


class _Layer:
    """One layer of a model."""

    def __init__(self, model: Transformer, index: int) -> None:
        self.model, self.index, self.family = model, index, model.family

    def tensor(self, name: str) -> Array | None:
        return self.model.tensors.get(f"blk.{self.index}.{name}")

    def project(self, x: Array, name: str) -> Array:
        weight, bias = self.tensor(name + ".weight"), self.tensor(name + ".bias")
        assert weight is not None, name
        return x @ weight.T + (0.0 if bias is None else bias)

    def norm(self, x: Array, name: str) -> Array:
        return norm(self.model, x, f"blk.{self.index}.{name}")

    def queries_keys_values(self, x: Array) -> tuple[Array, Array, Array]:
        heads, kv_heads, dim = self.model.heads
        if self.family.fused:
            parts = np.split(
                self.project(x, "attn_qkv"), [heads * dim, (heads + kv_heads) * dim], axis=1
            )
        else:
            parts = [self.project(x, f"attn_{part}") for part in "qkv"]
        shaped = [p.reshape(len(x), -1, dim) for p in parts]
        for i, name in enumerate(("attn_q_norm", "attn_k_norm")):
            gain = self.tensor(name + ".weight")
            if gain is None:
                continue
            eps = self.model.number("attention.layer_norm_rms_epsilon")
            flat = parts[i] if self.family.qk_norm == "row" else shaped[i]
            shaped[i] = rms_norm(flat, gain, eps).reshape(len(x), -1, dim)
        step = self.family.no_rope_step
        if step == 0 or (self.index + 1) % step != 0:
            local = self.model.window(self.index) > 0
            rope = self.model.local_rope if local else self.model.rope
            for i in range(2):
                shaped[i] = rotate(shaped[i], rope, self.family.interleaved_rope)
        growth = self.model.number("attention.temperature_scale")
        if growth:
            length = self.model.number("rope.scaling.original_context_length")
            scale = 1.0 + growth * np.log1p(np.floor(np.arange(len(x)) / length))
            shaped[0] = shaped[0] * scale[:, None, None]
        return shaped[0], shaped[1], shaped[2]

    def attention(self, x: Array) -> Array:
        model = self.model
        heads, kv_heads, dim = model.heads
        q, k, v = self.queries_keys_values(x)
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        scale = model.number("attention.scale") or 1.0 / math.sqrt(dim)
        scores = np.einsum("thd,shd->hts", q, k) * scale
        cap = model.number("attn_logit_softcapping")
        if cap:
            scores = cap * np.tanh(scores / cap)
        t, s = np.arange(len(x))[:, None], np.arange(len(x))[None]
        window = model.window(self.index)
        seen = (s <= t) & ((s > t - window) if window else True)
        scores = np.where(seen, scores, -np.inf)
        sinks = self.tensor("attn_sinks.weight")
        if sinks is not None:
            column = np.broadcast_to(sinks[:, None, None], (heads, len(x), 1))
            scores = np.concatenate([scores, column], axis=2)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", weights[..., : len(x)], v)
        return self.project(mixed.reshape(len(x), -1), "attn_output")

    def mlp(self, x: Array, kind: str = "") -> Array:
        up = self.project(x, "ffn_up" + kind)
        if self.family.fused:
            gate, up = np.split(up, 2, axis=1)
        elif not self.family.gated:
            return self.project(gelu(up), "ffn_down" + kind)
        else:
            gate = self.project(x, "ffn_gate" + kind)
        return self.project(activate(self.family.activation, gate, up), "ffn_down" + kind)

    def expert(self, x: Array, index: int) -> Array:
        def project(value: Array, name: str) -> Array:
            weight, bias = (
                self.tensor(f"ffn_{name}_exps.weight"),
                self.tensor(f"ffn_{name}_exps.bias"),
            )
            assert weight is not None, name
            return weight[index] @ value + (0.0 if bias is None else bias[index])

        hidden = activate(self.family.activation, project(x, "gate"), project(x, "up"))
        return project(hidden, "down")

    def mixture(self, x: Array) -> Array:
        used = int(self.model.number("expert_used_count"))
        logits = self.project(x, "ffn_gate_inp")
        out = np.zeros_like(x)
        for i, row in enumerate(logits):
            chosen = np.sort(np.argsort(-row, kind="stable")[:used])
            share = np.exp(row - row.max())
            share /= share[chosen].sum() if self.family.softmax_of_used else share.sum()
            for index in chosen:
                out[i] += share[index] * self.expert(x[i], int(index))
        gate = self.tensor("ffn_gate_inp_shexp.weight")
        if gate is not None:
            out += self.mlp(x, "_shexp") / (1.0 + np.exp(-(x @ gate)))[:, None]
        return out

    def run(self, x: Array) -> Array:
        family = self.family
        residual = self.model.number("residual_scale", 1.0)
        branch = self.attention(self.norm(x, "attn_norm") if family.pre_norms else x)
        if family.post_norms:
            branch = self.norm(branch, "post_attention_norm")
        x = x + residual * branch
        h = self.norm(x, family.ffn_norm) if family.pre_norms else x
        branch = self.mixture(h) if family.experts else self.mlp(h)
        if family.post_norms:
            branch = self.norm(branch, "post_ffw_norm")
        return x + residual * branch


def norm(model: Transformer, x: Array, name: str) -> Array:
    """The norm `name` over the last axis."""
    gain = model.tensors[name + ".weight"]
    if not model.family.layer_norm:
        return rms_norm(x, gain, model.number("attention.layer_norm_rms_epsilon"))
    centred = x - x.mean(axis=-1, keepdims=True)
    eps = model.number("attention.layer_norm_epsilon")
    unit = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps)
    return unit * gain + model.tensors[name + ".bias"]


def forward(model: Transformer, tokens: Sequence[int]) -> Array:
    """Computes the logits [T, V] after each of T tokens, padding rows included."""
    embedding = model.tensors["token_embd.weight"]
    x = embedding[np.asarray(tokens, dtype=np.int64)] * model.number("embedding_scale", 1.0)
    if model.family.scales_embedding:
        x = x * math.sqrt(x.shape[1])
    for layer in range(int(model.number("block_count"))):
        x = _Layer(model, layer).run(x)
    logits = norm(model, x, "output_norm") @ model.tensors.get("output.weight", embedding).T
    logits = logits / model.number("logit_scale", 1.0)
    cap = model.number("final_logit_softcapping")
    return cap * np.tanh(logits / cap) if cap else logits
