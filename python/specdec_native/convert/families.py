"""The model families that can be converted: a row each, and their true oddities.

Sources: the model classes of huggingface/transformers for what a configuration means, and
conversion/*.py and gguf-py of ggml-org/llama.cpp for names of tensors and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from specdec_native.convert.config import ConfigView
from specdec_native.convert.rope import rope_settings
from specdec_native.errors import ConvertError

__all__ = ["ALWAYS", "FAMILIES", "Experts", "Family"]

# Name within a layer of the checkpoint -> name within a block of the GGUF file.
_ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
_MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_PLAIN = {**_NORMS, **_ATTENTION, **_MLP}
_GEMMA = {
    **_NORMS,
    **_POST_NORMS,
    "pre_feedforward_layernorm": "ffn_norm",
    **_ATTENTION,
    **_MLP,
}

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
# Which matrices have a bias: always, or where the configuration has a flag.
_LLAMA_BIASES: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(_ATTENTION, "attention_bias"), **dict.fromkeys(_MLP, "mlp_bias")}
)
_ATTENTION_BIASES: Mapping[str, str] = MappingProxyType(dict.fromkeys(_ATTENTION, "attention_bias"))
_NO_CAP = 1e6
_SILU, _GELU = ("silu", "swish"), ("gelu_pytorch_tanh", "gelu_new")

ALWAYS = ""
"""As the flag of a bias: it is always there."""


@dataclass(frozen=True)
class Experts:
    """A layer's mixture of experts.

    Attributes:
        router: The router's name within a layer.
        each: Name pattern of one expert's matrices ("{e}" is its number, "{part}" one of `parts`).
        parts: Name of the gate, up and down matrix.
        fused: Name of the whole stack in checkpoints that hold it so: "gate_up_proj" and
            "down_proj" come after it.
        count: Keys of the configuration that may say how many there are, the usual one first.
        router_flag: A flag of the configuration that the family's arithmetic fixes, and its value.
    """

    router: str
    each: str
    parts: tuple[str, str, str]
    fused: str = ""
    count: tuple[str, ...] = ("num_local_experts", "num_experts")
    router_flag: tuple[str, bool] | None = None


@dataclass(frozen=True)
class Family:
    """What distinguishes one architecture from another.

    Attributes:
        architecture: Its name in GGUF files.
        layer: Tensors of a layer, "weight" and "bias" left out.
        biases: Which of them have a bias: name -> a flag of the configuration, or `ALWAYS`.
        activations: Values of ``hidden_act`` that mean what the family computes.
        rotates_pairs: Whether pairs that rotate together are to be neighbours, not half a head
            apart.
        norm_shift: What norm weights lack in the checkpoint.
        layer_norm: Whether norms subtract the mean and have a bias.
        full_qk_norm: Whether the norm of queries and keys runs over all heads together.
        tied: Whether the output matrix is the embedding when the configuration does not say.
        experts: The mixture of experts, if there is one.
        partial_rope: Whether a part of a head may rotate.
        yarn_log, yarn_truncates: See `read_rope`.
        defaults: Values of keys that configurations leave out, as transformers has them.
        told: More of them, where files always have the key: taking them is told in a note.
        rope: ``rope_parameters`` where neither they nor ``rope_scaling`` are given; told, too.
        extra: Further metadata; it also refuses what cannot be expressed.
    """

    architecture: str
    layer: Mapping[str, str] = field(default_factory=lambda: _PLAIN)
    biases: Mapping[str, str] = field(default_factory=dict)
    activations: tuple[str, ...] = _SILU
    rotates_pairs: bool = False
    norm_shift: float = 0.0
    layer_norm: bool = False
    full_qk_norm: bool = False
    tied: bool = False
    experts: Experts | None = None
    partial_rope: bool = False
    yarn_log: bool = False
    yarn_truncates: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)
    extra: Callable[[ConfigView], dict[str, Any]] = lambda config: {}


def _window(config: ConfigView) -> dict[str, Any]:
    """A window over all layers."""
    if "sliding_window" not in config:
        return {}
    return {"attention.sliding_window": config.whole("sliding_window")}


def _no_window(config: ConfigView) -> dict[str, Any]:
    """Families whose files cannot express a window; their configurations turn it off."""
    kinds = config.items("layer_types")
    some = any(one != "full_attention" for one in kinds)
    if config.flag("use_sliding_window", False) and (some or not kinds):
        raise ConvertError(f"{config.path}: key 'use_sliding_window' is true, which is unsupported")
    return {}


def _layer_kinds(config: ConfigView, period: int) -> None:
    """Checks that all layers but each `period`-th have a window, as loaders take for granted.

    Raises:
        ConvertError: ``layer_types`` or ``sliding_window_pattern`` say otherwise.
    """
    expected = [
        "full_attention" if (i + 1) % period == 0 else "sliding_attention"
        for i in range(config.whole("num_hidden_layers"))
    ]
    if "layer_types" in config and config.items("layer_types") != expected:
        raise config.wrong(
            "layer_types",
            f"{len(expected)} layers, of which only one in {period} is of 'full_attention' (the "
            f"{period}. and so on), which GGUF files of this architecture mean",
        )
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        _fixed(config, key, period)


def _fixed(config: ConfigView, key: str, value: float) -> None:
    """Refuses another value of a key than the one that files of the architecture stand for."""
    if config.number(key, value) != value:
        raise config.wrong(key, f"{value:g}, which GGUF files of this architecture mean")


def _attention_scale(config: ConfigView) -> dict[str, Any]:
    """Written where it is not the usual 1 / sqrt(D)."""
    scalar = config.number("query_pre_attn_scalar", float(config.whole("head_dim")))
    return {} if scalar == config.whole("head_dim") else {"attention.scale": scalar**-0.5}


def _gemma2(config: ConfigView) -> dict[str, Any]:
    _layer_kinds(config, 2)
    return {
        "attn_logit_softcapping": _cap(config, "attn_logit_softcapping"),
        "final_logit_softcapping": _cap(config, "final_logit_softcapping"),
        "attention.sliding_window": config.whole("sliding_window"),
        **_attention_scale(config),
    }


def _cap(config: ConfigView, key: str) -> float:
    """A soft cap; null stands for none.

    Loaders take 50 or 30 where the key is missing, and llama.cpp divides by it: no cap is one so
    high that it changes a value below 1,000 by less than a float32 can tell.
    """
    return config.number(key, most=_NO_CAP) if key in config else _NO_CAP


def _gemma3(config: ConfigView) -> dict[str, Any]:
    _layer_kinds(config, 6)
    if "attn_logit_softcapping" in config:
        raise config.wrong("attn_logit_softcapping", "none in this family")
    if config.flag("use_bidirectional_attention", False):
        raise ConvertError(
            f"{config.path}: key 'use_bidirectional_attention' is true: it generates no text"
        )
    values = {
        "attention.sliding_window": config.whole("sliding_window"),
        **_attention_scale(config),
    }
    if "final_logit_softcapping" in config:
        values["final_logit_softcapping"] = _cap(config, "final_logit_softcapping")
    return values


def _phi3(config: ConfigView) -> dict[str, Any]:
    # llama.cpp's converter writes 0 for "none": so it tells Phi-4 from its forerunners.
    values = {"attention.sliding_window": config.whole("sliding_window", 0)}
    if "original_max_position_embeddings" in config:
        original = config.whole("original_max_position_embeddings")
        values["rope.scaling.original_context_length"] = original
    return values


def _ministral(config: ConfigView) -> dict[str, Any]:
    values = _window(config)
    parameters = rope_settings(config)
    if "llama_4_scaling_beta" in parameters:
        values["attention.temperature_scale"] = parameters.number("llama_4_scaling_beta", most=1e3)
    return values


def _granite(config: ConfigView) -> dict[str, Any]:
    names = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return {new: config.number(old, most=1e6) for old, new in names.items() if old in config.values}


def _smollm3(config: ConfigView) -> dict[str, Any]:
    expected = [int((i + 1) % 4 != 0) for i in range(config.whole("num_hidden_layers"))]
    if "no_rope_layers" in config and config.items("no_rope_layers") != expected:
        raise config.wrong(
            "no_rope_layers",
            f"{len(expected)} layers, of which one in 4 does not rotate (0; the 4. and so on), "
            "which GGUF files of this architecture mean",
        )
    _fixed(config, "no_rope_layer_interval", 4)
    return _no_window(config)


def _qwen_moe(config: ConfigView) -> dict[str, Any]:
    if config.whole("decoder_sparse_step", 1) != 1 or config.items("mlp_only_layers"):
        raise ConvertError(
            f"{config.path}: keys 'decoder_sparse_step' and 'mlp_only_layers' ask for layers "
            "without experts, which GGUF files of this architecture cannot express"
        )
    values = {**_no_window(config)}
    values["expert_feed_forward_length"] = config.whole("moe_intermediate_size")
    if "shared_expert_intermediate_size" in config:
        values["expert_shared_feed_forward_length"] = config.whole(
            "shared_expert_intermediate_size"
        )
    return values


def _gpt_oss(config: ConfigView) -> dict[str, Any]:
    _layer_kinds(config, 2)
    _fixed(config, "swiglu_limit", 7)
    _fixed(config, "swiglu_alpha", 1.702)
    return {
        "attention.sliding_window": config.whole("sliding_window"),
        "expert_feed_forward_length": config.whole("intermediate_size"),
    }


_QWEN_EXPERTS = {
    "router": "mlp.gate",
    "each": "mlp.experts.{e}.{part}",
    "parts": ("gate_proj", "up_proj", "down_proj"),
    "fused": "mlp.experts",
    "count": ("num_experts", "num_local_experts"),
}
_LLAMA = Family(
    "llama", biases=_LLAMA_BIASES, rotates_pairs=True, extra=_window, defaults={"rope_theta": 1e4}
)
_GEMMA3 = Family(
    "gemma3",
    layer={**_GEMMA, **_QK_NORMS},
    biases=_ATTENTION_BIASES,
    activations=_GELU,
    norm_shift=1.0,
    tied=True,
    defaults={
        "hidden_act": "gelu_pytorch_tanh",
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 4096,
        "vocab_size": 262208,
    },
    extra=_gemma3,
)
# YaRN as transformers has it where a configuration says nothing of the rotation.
_MINISTRAL_ROPE = {
    **{"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0},
    **{"original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}
_GPT_OSS_ROPE = {
    **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
}
_MISTRAL_WINDOW = {"sliding_window": 4096}
_MINISTRAL3 = Family(
    "mistral3",
    biases=_LLAMA_BIASES,
    rotates_pairs=True,
    yarn_log=True,
    extra=_ministral,
    defaults={"head_dim": 128, "rope_theta": 1e4},
    rope=_MINISTRAL_ROPE,
)
# Text models of Mistral3 that are of the older kind.
_MISTRAL3 = replace(_MINISTRAL3, defaults={"rope_theta": 1e4}, told=_MISTRAL_WINDOW, rope={})

# By the name of the class that `architectures` in config.json gives.
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": replace(_LLAMA, told=_MISTRAL_WINDOW),
    "MixtralForCausalLM": Family(
        "llama",
        layer={**_NORMS, **_ATTENTION},
        rotates_pairs=True,
        extra=_window,
        defaults={"rope_theta": 1e6},
        experts=Experts(
            "block_sparse_moe.gate", "block_sparse_moe.experts.{e}.{part}", ("w1", "w3", "w2")
        ),
    ),
    "Qwen2ForCausalLM": Family(
        "qwen2",
        biases=dict.fromkeys(_QKV, ALWAYS),
        extra=_no_window,
        defaults={"rope_theta": 1e4},
    ),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        layer={**_PLAIN, **_QK_NORMS},
        biases=_ATTENTION_BIASES,
        extra=_no_window,
        defaults={"head_dim": 128, "rope_theta": 1e4},
    ),
    "Qwen2MoeForCausalLM": Family(
        "qwen2moe",
        layer={
            **_NORMS,
            **_ATTENTION,
            "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
            "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
            "mlp.shared_expert.up_proj": "ffn_up_shexp",
            "mlp.shared_expert.down_proj": "ffn_down_shexp",
        },
        biases=dict.fromkeys(_QKV, ALWAYS),
        extra=_qwen_moe,
        defaults={"rope_theta": 1e4},
        experts=Experts(**_QWEN_EXPERTS, router_flag=("norm_topk_prob", False)),  # type: ignore[arg-type]
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3moe",
        layer={**_NORMS, **_ATTENTION, **_QK_NORMS},
        biases=_ATTENTION_BIASES,
        extra=_qwen_moe,
        defaults={"rope_theta": 1e4, "norm_topk_prob": False},
        experts=Experts(**_QWEN_EXPERTS, router_flag=("norm_topk_prob", True)),  # type: ignore[arg-type]
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2",
        layer=_GEMMA,
        biases=_ATTENTION_BIASES,
        activations=_GELU,
        norm_shift=1.0,
        tied=True,
        defaults={
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "rope_theta": 1e4,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        extra=_gemma2,
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Phi3ForCausalLM": Family(
        "phi3",
        layer={
            **_NORMS,
            "self_attn.qkv_proj": "attn_qkv",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        },
        partial_rope=True,
        defaults={"rope_theta": 1e4, "original_max_position_embeddings": 4096},
        extra=_phi3,
    ),
    "Mistral3ForConditionalGeneration": _MISTRAL3,
    "Ministral3ForCausalLM": _MINISTRAL3,
    "GraniteForCausalLM": Family(
        "granite",
        biases=_LLAMA_BIASES,
        rotates_pairs=True,
        defaults={"rope_theta": 1e4},
        told={"attention_multiplier": 1.0},
        extra=_granite,
    ),
    "SmolLM3ForCausalLM": Family(
        "smollm3",
        biases=_LLAMA_BIASES,
        rotates_pairs=True,
        tied=True,
        defaults={"rope_theta": 2e6},
        extra=_smollm3,
    ),
    "Olmo2ForCausalLM": Family(
        "olmo2",
        layer={**_POST_NORMS, **_ATTENTION, **_QK_NORMS, **_MLP},
        biases=_ATTENTION_BIASES,
        full_qk_norm=True,
        defaults={"rope_theta": 1e4},
    ),
    "Starcoder2ForCausalLM": Family(
        "starcoder2",
        layer={**_NORMS, **_ATTENTION, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        biases={
            **dict.fromkeys(_ATTENTION, "use_bias"),
            "mlp.c_fc": "use_bias",
            "mlp.c_proj": "use_bias",
        },
        activations=_GELU,
        layer_norm=True,
        tied=True,
        defaults={"use_bias": True, "rope_theta": 1e4, "norm_epsilon": 1e-5},
        extra=_window,
    ),
    "GptOssForCausalLM": Family(
        "gpt-oss",
        layer={
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "post_attention_norm",
            **_ATTENTION,
        },
        biases=_ATTENTION_BIASES,
        yarn_truncates=False,
        defaults={
            "head_dim": 64,
            "attention_bias": True,
            "rope_theta": 1.5e5,
            "sliding_window": 128,
        },
        rope=_GPT_OSS_ROPE,
        extra=_gpt_oss,
        experts=Experts("mlp.router", "", ("gate_proj", "up_proj", "down_proj"), "mlp.experts"),
    ),
}
