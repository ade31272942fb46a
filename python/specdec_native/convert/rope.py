"""Rotary embeddings of a configuration as GGUF keys and tensors.

What the settings mean: modeling_rope_utils.py of huggingface/transformers; the keys: gguf-py of
ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_native.convert.config import ConfigView
from specdec_native.errors import ConvertError

__all__ = ["Rope", "llama3_factors", "read_rope", "rope_settings", "rope_type"]

_LONG = ("longrope", "su")


@dataclass
class Rope:
    """What a configuration says.

    Attributes:
        keys: Without the architecture's prefix: "rope.freq_base" and so on.
        factors: Name of tensor -> divisors of the rotary frequencies.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    factors: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def rope_settings(config: ConfigView) -> ConfigView:
    """The settings of the full-attention layers' rotation, base included, old layout or new.

    Old: ``rope_theta`` beside a ``rope_scaling`` that may be null; new: all in ``rope_parameters``,
    which may hold one object per kind of layer.
    """
    found = config.part("rope_parameters") or config.part("rope_scaling")
    found = found or ConfigView(config.path, {})
    inner = found.part("full_attention")
    found = found if inner is None else inner
    outer = {
        key: config.values[key]
        for key in ("rope_theta", "original_max_position_embeddings", "partial_rotary_factor")
        if key in config
    }
    return found.with_defaults(outer)


def rope_type(rope: ConfigView) -> str:
    """Which kind of scaling; "default" if none."""
    return rope.text("rope_type", rope.text("type", "default"))


def read_rope(config: ConfigView, head_dim: int, *, yarn_log: bool, truncates: bool) -> Rope:
    """The keys and tensors of a model's rotary embedding.

    Args:
        config: The text model's.
        head_dim: Elements of a head.
        yarn_log: Whether the family's loader knows ``rope.scaling.yarn_log_multiplier``.
        truncates: Whether the family rounds the bounds of YaRN's ramp to whole dimensions.

    Raises:
        ConvertError: A kind of scaling that is not known, or a setting that cannot be expressed.
    """
    rope = rope_settings(config)
    share = rope.number("partial_rotary_factor", 1.0)
    dims = int(head_dim * share)
    result = Rope({"rope.dimension_count": dims, "rope.freq_base": _base(config, rope)})
    local = _local_base(config)
    if local is not None:
        result.keys["rope.freq_base_swa"] = local
    kind = rope_type(rope)
    if kind == "linear":
        result.keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope.number("factor")}
    elif kind == "yarn":
        result.keys |= _yarn(config, rope, yarn_log, truncates)
    elif kind in _LONG:
        _add_long(config, rope, dims, result)
    elif kind == "llama3":
        result.factors["rope_freqs.weight"] = llama3_factors(rope, dims, _base(config, rope))
    elif kind != "default":
        raise ConvertError(
            f"{config.path}: rope scaling {kind!r} is not supported; supported are default, "
            "linear, yarn, longrope and llama3"
        )
    return result


def _base(config: ConfigView, rope: ConfigView) -> float:
    if "rope_theta" not in rope:
        raise ConvertError(f"{config.path}: key 'rope_theta' is missing")
    return rope.number("rope_theta")


def _local_base(config: ConfigView) -> float | None:
    """The base of sliding-window layers, where it is another."""
    parameters = config.part("rope_parameters")
    inner = None if parameters is None else parameters.part("sliding_attention")
    if inner is not None:
        if rope_type(inner) != "default":
            raise ConvertError(
                f"{config.path}: rope scaling {rope_type(inner)!r} of sliding-window layers is not "
                "supported"
            )
        return inner.number("rope_theta")
    return config.number("rope_local_base_freq") if "rope_local_base_freq" in config else None


def _magnitude(factor: float, scale: float = 1.0) -> float:
    """What YaRN multiplies queries and keys with."""
    return 1.0 if factor <= 1.0 else 1.0 + 0.1 * scale * math.log(factor)


def _yarn(config: ConfigView, rope: ConfigView, yarn_log: bool, truncates: bool) -> dict[str, Any]:
    factor = rope.number("factor")
    if rope.flag("truncate", True) != truncates:
        raise ConvertError(
            f"{config.path}: key 'truncate' is {rope.flag('truncate', True)}, which a GGUF file of "
            "this architecture cannot express"
        )
    original = rope.whole(
        "original_max_position_embeddings", config.whole("max_position_embeddings")
    )
    keys: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    for key in ("beta_fast", "beta_slow"):
        if key in rope:
            keys[f"rope.scaling.yarn_{key}"] = rope.number(key)
    # A loader multiplies with its own magnitude, divided by that of the log multiplier; the
    # attention factor is what is left to get what the checkpoint asks for.
    loaders, wanted = _magnitude(factor), _magnitude(factor)
    if "mscale" in rope and "mscale_all_dim" in rope:
        all_dim = rope.number("mscale_all_dim")
        wanted = _magnitude(factor, rope.number("mscale")) / _magnitude(factor, all_dim)
        if yarn_log:
            keys["rope.scaling.yarn_log_multiplier"] = all_dim
            loaders /= _magnitude(factor, all_dim)
    wanted = rope.number("attention_factor", wanted)
    if not math.isclose(wanted, loaders, rel_tol=1e-7):
        keys["rope.scaling.attn_factor"] = wanted / loaders
    return keys


def _add_long(config: ConfigView, rope: ConfigView, dims: int, result: Rope) -> None:
    """LongRoPE (arXiv 2402.13753): two sets of factors, by the length of the context."""
    longest = config.whole("max_position_embeddings")
    original = rope.whole("original_max_position_embeddings")
    factor = rope.number("factor", longest / original)
    natural = 1.0
    if factor > 1.0:
        natural = math.sqrt(1.0 + math.log(factor) / math.log(original))
    result.keys |= {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": rope.number("attention_factor", natural),
    }
    for key in ("short_mscale", "long_mscale"):
        if key in rope:
            raise ConvertError(f"{config.path}: key {key!r} of rope scaling is not supported")
    for which in ("long", "short"):
        factors = rope.numbers(f"{which}_factor")
        if len(factors) != dims // 2:
            raise ConvertError(
                f"{config.path}: key '{which}_factor' has {len(factors)} numbers, but {dims // 2} "
                "pairs of elements rotate"
            )
        result.factors[f"rope_factors_{which}.weight"] = np.array(factors, np.float32)


def llama3_factors(rope: ConfigView, dims: int, base: float) -> NDArray[np.float32]:
    """Divisors of the rotary frequencies as Llama 3.1 defines them."""
    low, high = rope.number("low_freq_factor", 1.0), rope.number("high_freq_factor", 4.0)
    original = rope.number("original_max_position_embeddings", 8192.0)
    pairs = dims // 2
    frequency = base ** (-np.arange(pairs) / pairs)
    turns = original * frequency / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors = 1.0 / ((1.0 - smooth) / rope.number("factor", 8.0) + smooth)
    return np.asarray(factors, np.float32)
