"""What the transformers of each supported architecture consist of, for tiny models and references.

Written from the published descriptions of the models, independently of the C++ table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """Features of an architecture; the defaults are those of Llama."""

    interleaved_rope: bool = False  # pairs (2i, 2i + 1) turn together, else (i, i + D / 2)
    layer_norm: bool = False  # with mean and bias, instead of RMS
    pre_norms: bool = True
    post_norms: bool = False
    ffn_norm: str = "ffn_norm"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str = ""  # "head", "row"
    activation: str = "silu"  # "gelu", "clamped"
    gated: bool = True
    fused: bool = False  # attn_qkv; ffn_up holds the gate's rows, then its own
    experts: bool = False
    shared_expert: bool = False
    expert_bias: bool = False
    softmax_of_used: bool = True
    sinks: bool = False
    window_period: int = 0  # all layers but the last of each period have a window; 1: all have
    no_rope_step: int = 0  # every n-th layer has no positions
    scales_embedding: bool = False  # by the root of the width
    unscaled_local_rope: bool = False  # layers with a window rotate without context extension
    yarn_whole_pairs: bool = True
    # Keys that a tiny model of the family gets, without the prefix.
    metadata: Mapping[str, Any] = field(default_factory=dict)


# Windows and caps so small that short texts feel them.
FAMILIES: dict[str, Family] = {
    "llama": Family(interleaved_rope=True),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm="head"),
    "gemma2": Family(
        post_norms=True,
        activation="gelu",
        window_period=2,
        scales_embedding=True,
        metadata={
            "attention.sliding_window": 24,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": Family(
        post_norms=True,
        qk_norm="head",
        activation="gelu",
        window_period=6,
        scales_embedding=True,
        unscaled_local_rope=True,
        metadata={
            "attention.sliding_window": 20,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base": 1000000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "phi3": Family(fused=True, window_period=1, metadata={"attention.sliding_window": 70}),
    "mistral3": Family(
        interleaved_rope=True,
        metadata={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
    ),
    "granite": Family(
        interleaved_rope=True,
        metadata={
            "attention.scale": 0.2,
            "embedding_scale": 3.0,
            "residual_scale": 0.6,
            "logit_scale": 1.5,
        },
    ),
    "smollm3": Family(interleaved_rope=True, no_rope_step=4),
    "olmo2": Family(
        pre_norms=False,
        post_norms=True,
        qk_norm="row",
        window_period=4,
        unscaled_local_rope=True,
    ),
    "starcoder2": Family(
        layer_norm=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        activation="gelu",
        gated=False,
        window_period=1,
        metadata={"attention.sliding_window": 90},
    ),
    "qwen2moe": Family(qkv_bias=True, experts=True, shared_expert=True, softmax_of_used=False),
    "qwen3moe": Family(qk_norm="head", experts=True),
    "mixtral": Family(interleaved_rope=True, experts=True),
    "gpt-oss": Family(
        ffn_norm="post_attention_norm",
        qkv_bias=True,
        output_bias=True,
        activation="clamped",
        experts=True,
        expert_bias=True,
        sinks=True,
        window_period=2,
        yarn_whole_pairs=False,
        metadata={
            "attention.sliding_window": 16,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
}

# Tiny mixtures: experts, and how many of them a token goes to.
EXPERTS, EXPERTS_USED = 8, 2


def architecture_name(family: str) -> str:
    """Returns the `general.architecture` of a family: a mixture of Llamas is a `llama` file."""
    return "llama" if family == "mixtral" else family
