"""Which family a configuration belongs to, and what it says with that family's defaults."""

from __future__ import annotations

from specdec_native.convert.config import ConfigView
from specdec_native.convert.families import FAMILIES, Family
from specdec_native.errors import ConvertError

__all__ = ["find_family", "text_model"]

# `model_type` that goes with a class (configuration_*.py of huggingface/transformers).
_MODEL_TYPES: dict[str, tuple[str, ...]] = {
    "LlamaForCausalLM": ("llama",),
    "MistralForCausalLM": ("mistral",),
    "MixtralForCausalLM": ("mixtral",),
    "Qwen2ForCausalLM": ("qwen2",),
    "Qwen3ForCausalLM": ("qwen3",),
    "Qwen2MoeForCausalLM": ("qwen2_moe",),
    "Qwen3MoeForCausalLM": ("qwen3_moe",),
    "Gemma2ForCausalLM": ("gemma2",),
    "Gemma3ForCausalLM": ("gemma3_text", "gemma3"),
    "Gemma3ForConditionalGeneration": ("gemma3",),
    "Phi3ForCausalLM": ("phi3",),
    "Mistral3ForConditionalGeneration": ("mistral3",),
    "Ministral3ForCausalLM": ("ministral3",),
    "GraniteForCausalLM": ("granite",),
    "SmolLM3ForCausalLM": ("smollm3",),
    "Olmo2ForCausalLM": ("olmo2",),
    "Starcoder2ForCausalLM": ("starcoder2",),
    "GptOssForCausalLM": ("gpt_oss",),
}
# Classes for text and images: the `model_type` that `text_config` may have, the usual one first,
# and the class of such a text model whose defaults count, where it is another.
_TEXT_TYPES: dict[str, dict[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "", "gemma3": ""},
    "Mistral3ForConditionalGeneration": {"mistral": "", "ministral3": "Ministral3ForCausalLM"},
}


def find_family(config: ConfigView) -> tuple[str, Family]:
    """The family that a configuration belongs to, and the name it has there.

    Raises:
        ConvertError: It is none of those that can be converted, or `model_type` is of another, or
            a model for text and images has no `text_config`.
    """
    expected = (
        f"one of {', '.join(FAMILIES)} (or Medusa heads, known by 'medusa_num_heads', or EAGLE-3 "
        "heads, by 'draft_vocab_size'); others are not supported"
    )
    for name in config.items("architectures", expected):
        if isinstance(name, str) and name in FAMILIES:
            _check_type(config, name, _MODEL_TYPES[name])
            return name, FAMILIES[_text_class(config, name) or name]
    raise config.wrong("architectures", expected)


def _check_type(config: ConfigView, name: str, types: tuple[str, ...]) -> str:
    """The model type, the first of `types` where there is none."""
    found = config.text("model_type", types[0])
    if found not in types:
        raise ConvertError(
            f"{config.path}: key {config.name('model_type')!r} is {found!r}, but 'architectures' "
            f"names {name!r}, whose type is {' or '.join(map(repr, types))}; correct the one that "
            "is wrong"
        )
    return found


def _text_class(config: ConfigView, name: str) -> str:
    """Of a model for text and images: the class whose defaults the text model has, if another."""
    if name not in _TEXT_TYPES:
        return ""
    text = config.part("text_config")
    if text is None or not text.values:
        raise config.wrong(
            "text_config", f"an object with the text model's settings, as {name} has"
        )
    types = _TEXT_TYPES[name]
    text = ConfigView(config.path, text.values, "text_config")
    return types[_check_type(text, name, tuple(types))]


def text_model(config: ConfigView, family: Family) -> tuple[ConfigView, list[str]]:
    """The text model's configuration with the family's defaults, and notes on those it tells."""
    config = config.opened("text_config").with_defaults(family.defaults)
    notes = []
    for key, value in family.told.items():
        if key not in config.values:
            notes.append(
                f"{config.path}: key {config.name(key)!r} is missing; taken is {value:g}, as "
                "transformers does"
            )
    config = config.with_defaults(family.told)
    scaling = config.part("rope_scaling")
    if family.rope and "rope_parameters" not in config and not (scaling and scaling.values):
        given = ", ".join(f"{key!r}: {value}" for key, value in family.rope.items())
        notes.append(
            f"{config.path}: key {config.name('rope_parameters')!r} (or 'rope_scaling') is missing "
            f"or null; taken is {given}, as transformers does"
        )
        config = config.merged(ConfigView(config.path, {"rope_parameters": dict(family.rope)}))
    return config, notes
