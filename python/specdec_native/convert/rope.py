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

__all__ = ["Rope", "llama3_factors", "read_rope", "rope_settings", "rope_type", "unsupported"]

_LONG = ("longrope", "su")
_KINDS = "default, linear, yarn, longrope, llama3"
# What loads (csrc/model/config.cpp).
_BASE = {"least": 1.0, "most": 1e12}
_MAGNITUDE = {"least": 0.01, "most": 1e3}
_MOST_MSCALE = 100.0
_MOST_FACTOR = 1e6
_ORIGINAL = "original_max_position_embeddings"
# Keys that say nothing without a kind of scaling.
_OF_SCALING = (
    *("factor", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
    *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    *("short_mscale", "long_mscale"),
)


@dataclass
class Rope:
    """What a configuration says.

    Attributes:
        keys: Without the architecture's prefix: "rope.freq_base" and so on.
        factors: Name of tensor -> divisors of the rotary frequencies.
        notes: What was taken for granted, in words.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    factors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def rope_settings(config: ConfigView) -> ConfigView:
    """The settings of the full-attention layers' rotation, base included, old layout or new.

    Old: ``rope_theta`` beside a ``rope_scaling`` that may be null; new: all in ``rope_parameters``,
    which may hold one object per kind of layer. An original length beside them counts before one
    within.
    """
    given = [config.part(key) for key in ("rope_parameters", "rope_scaling")]
    found = next((one for one in given if one and one.values), ConfigView(config.path, {}))
    inner = found.part("full_attention")
    found = found if inner is None else inner
    outer = {
        key: config.values[key] for key in ("rope_theta", "partial_rotary_factor") if key in config
    }
    return found.with_defaults(outer).merged(
        ConfigView(config.path, {_ORIGINAL: config.values[_ORIGINAL]})
        if _ORIGINAL in config
        else None
    )


def rope_type(rope: ConfigView) -> str:
    """Which kind of scaling; "default" if none.

    Raises:
        ConvertError: There are settings of a scaling, but nothing says which it is.
    """
    kind = rope.text("rope_type", rope.text("type", ""))
    given = [key for key in _OF_SCALING if key in rope]
    if not _kind_key(rope) and given:
        raise ConvertError(
            f"{rope.path}: key 'rope_type' is missing, but {given[0]!r} is given; add the kind of "
            f"scaling, one of {_KINDS}"
        )
    return kind if _kind_key(rope) else "default"


def unsupported(rope: ConfigView, supported: str = _KINDS) -> ConvertError:
    """The error for a kind of scaling that cannot be written."""
    return ConvertError(
        f"{rope.path}: key {_kind_key(rope)!r}: rope scaling {rope_type(rope)!r} is not supported, "
        f"expected one of {supported}"
    )


def _kind_key(rope: ConfigView) -> str:
    """The key that names the kind of scaling; empty if there is none."""
    return next((key for key in ("rope_type", "type") if key in rope), "")


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
    if dims % 2 or not 0 < dims <= head_dim:
        raise ConvertError(
            f"{config.path}: {dims} elements of {head_dim} in a head rotate ('head_dim', "
            f"'partial_rotary_factor' {share:g}), expected an even number of them"
        )
    result = Rope({"rope.dimension_count": dims, "rope.freq_base": _base(rope)})
    local = _local_base(config)
    if local is not None:
        result.keys["rope.freq_base_swa"] = local
    kind = rope_type(rope)
    if kind == "linear":
        result.keys |= {
            "rope.scaling.type": "linear",
            "rope.scaling.factor": rope.number("factor", most=_MOST_FACTOR),
        }
    elif kind == "yarn":
        original = _original_length(config, rope, result)
        result.keys |= _yarn(config, rope, original, yarn_log, truncates)
    elif kind in _LONG:
        _add_long(config, rope, (head_dim, dims), result)
    elif kind == "llama3":
        original = _original_length(config, rope, result)
        result.factors["rope_freqs.weight"] = llama3_factors(rope, dims, _base(rope), original)
    elif kind != "default":
        raise unsupported(rope)
    return result


def _base(rope: ConfigView) -> float:
    return rope.number("rope_theta", **_BASE)


def _original_length(config: ConfigView, rope: ConfigView, result: Rope) -> int:
    """The context length before it was extended; where none is given, transformers' rule."""
    if _ORIGINAL in rope:
        return rope.whole(_ORIGINAL)
    longest = config.whole("max_position_embeddings")
    result.notes.append(
        f"{config.path}: key {_ORIGINAL!r} is missing for rope scaling {rope_type(rope)!r}; taken "
        f"is 'max_position_embeddings' ({longest}), as transformers does"
    )
    return longest


def _local_base(config: ConfigView) -> float | None:
    """The base of sliding-window layers, where it is another."""
    parameters = config.part("rope_parameters")
    inner = None if parameters is None else parameters.part("sliding_attention")
    if inner is not None:
        if rope_type(inner) != "default":
            raise ConvertError(
                f"{config.path}: key {_kind_key(inner)!r}: rope scaling {rope_type(inner)!r} of "
                "sliding-window layers is not supported"
            )
        return inner.number("rope_theta", **_BASE)
    return (
        config.number("rope_local_base_freq", **_BASE) if "rope_local_base_freq" in config else None
    )


def _magnitude(factor: float, scale: float = 1.0) -> float:
    """What YaRN multiplies queries and keys with."""
    return 1.0 if factor <= 1.0 else 1.0 + 0.1 * scale * math.log(factor)


def _is_used(rope: ConfigView, key: str) -> bool:
    """Whether a setting of YaRN is given; 0 means the default, as null does."""
    value = rope.values.get(key)
    if value is None or (type(value) in (int, float) and value == 0):
        return False
    rope.number(key)  # another kind is an error, used or not
    return True


def _yarn(
    config: ConfigView, rope: ConfigView, original: int, yarn_log: bool, truncates: bool
) -> dict[str, Any]:
    # A factor that is there and null, as in some files, means the ratio of the two lengths.
    derived = "factor" in rope.values and "factor" not in rope
    ratio = config.whole("max_position_embeddings") / original if derived else None
    factor = rope.number("factor", ratio, most=_MOST_FACTOR)
    if rope.flag("truncate", True) != truncates:
        raise ConvertError(
            f"{config.path}: key 'truncate' is {rope.flag('truncate', True)}, which a GGUF file of "
            "this architecture cannot express"
        )
    keys: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    for key in ("beta_fast", "beta_slow"):
        if _is_used(rope, key):
            keys[f"rope.scaling.yarn_{key}"] = rope.number(key, least=1e-3, most=1e6)
    # A loader multiplies with its own magnitude, divided by that of the log multiplier; the
    # attention factor is what is left to get what the checkpoint asks for.
    loaders, wanted = _magnitude(factor), _magnitude(factor)
    scaled, by_dims = _is_used(rope, "mscale"), _is_used(rope, "mscale_all_dim")
    if scaled and by_dims:
        all_dim = rope.number("mscale_all_dim", most=_MOST_MSCALE)
        wanted = _magnitude(factor, rope.number("mscale", most=_MOST_MSCALE)) / _magnitude(
            factor, all_dim
        )
        if yarn_log:
            keys["rope.scaling.yarn_log_multiplier"] = all_dim
            loaders /= _magnitude(factor, all_dim)
    wanted = rope.number("attention_factor", wanted, **_MAGNITUDE)
    if not math.isclose(wanted, loaders, rel_tol=1e-7):
        keys["rope.scaling.attn_factor"] = wanted / loaders
    return keys


def _add_long(config: ConfigView, rope: ConfigView, sizes: tuple[int, int], result: Rope) -> None:
    """LongRoPE (arXiv 2402.13753): two sets of factors, by the length of the context.

    sizes: elements of a head, and how many of them rotate.
    """
    head_dim, dims = sizes
    longest = config.whole("max_position_embeddings")
    original = _original_length(config, rope, result)
    factor = rope.number("factor", longest / original)
    natural = 1.0
    if factor > 1.0:
        if original == 1:
            raise rope.wrong(_ORIGINAL, "more than 1")
        natural = math.sqrt(1.0 + math.log(factor) / math.log(original))
    result.keys |= {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": rope.number("attention_factor", natural, **_MAGNITUDE),
    }
    for key in ("short_mscale", "long_mscale"):
        if key in rope:
            raise ConvertError(f"{config.path}: key {key!r} of rope scaling is not supported")
    for which in ("long", "short"):
        factors = rope.numbers(f"{which}_factor")
        if len(factors) != dims // 2:
            raise ConvertError(
                f"{config.path}: key '{which}_factor' has {len(factors)} numbers, but {dims // 2} "
                f"pairs of elements rotate ('head_dim' {head_dim})"
            )
        result.factors[f"rope_factors_{which}.weight"] = np.array(factors, np.float32)


def llama3_factors(rope: ConfigView, dims: int, base: float, original: int) -> NDArray[np.float32]:
    """Divisors of the rotary frequencies as Llama 3.1 defines them."""
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", f"more than 'low_freq_factor' ({low:g})")
    pairs = dims // 2
    frequency = base ** (-np.arange(pairs) / pairs)
    turns = original * frequency / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors = 1.0 / ((1.0 - smooth) / rope.number("factor") + smooth)
    return np.asarray(factors, np.float32)
