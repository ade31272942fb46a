"""Configurations that leave something out, or contradict themselves about what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import specdec_native as sd
from oracle_checkpoint import names_of, read_oracle
from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.convert.config import ConfigView
from specdec_native.convert.find_family import find_family
from specdec_native.convert.gguf_file import FilePlan
from specdec_native.convert.model import plan_model
from support.checkpoints import checkpoint


def planned(folder: Path) -> FilePlan:
    with Checkpoint.open(folder) as source:
        return plan_model(source, "f16")[1]


def text_config(name: str, **changes: Any) -> dict[str, Any]:
    """The text model's part of a golden configuration, changed; "gone" leaves a key out."""
    values = read_oracle(name).config["text_config"] | changes
    return {key: value for key, value in values.items() if value != "gone"}


NO_ROPE: tuple[dict[str, Any], ...] = (
    {"rope_scaling": "gone", "rope_parameters": "gone"},
    {"rope_scaling": None, "rope_parameters": None},
    {"rope_scaling": {}, "rope_parameters": "gone"},
)


@pytest.mark.parametrize("rope", NO_ROPE)
def test_gpt_oss_without_rope_settings_has_transformers_yarn(
    tmp_path: Path, rope: dict[str, Any]
) -> None:
    plan = planned(checkpoint(tmp_path, "gpt-oss", **rope, rope_theta="gone"))
    found = {key.removeprefix("gpt-oss.rope."): value for key, value in plan.metadata.items()}
    assert found["freq_base"] == 150000
    assert found["scaling.type"] == "yarn"
    assert found["scaling.factor"] == 32
    assert found["scaling.original_context_length"] == 4096
    assert (found["scaling.yarn_beta_fast"], found["scaling.yarn_beta_slow"]) == (32, 1)
    (note,) = [one for one in plan.notes if "rope_parameters" in one]
    assert "config.json: key 'rope_parameters' (or 'rope_scaling') is missing or null" in note
    assert "'factor': 32.0" in note


@pytest.mark.parametrize("rope", NO_ROPE)
def test_ministral3_without_rope_settings_has_transformers_yarn(
    tmp_path: Path, rope: dict[str, Any]
) -> None:
    plan = planned(checkpoint(tmp_path, "ministral3", **rope))
    found = {key.removeprefix("mistral3."): value for key, value in plan.metadata.items()}
    assert found["rope.freq_base"] == 1e6
    assert found["rope.scaling.type"] == "yarn"
    assert found["rope.scaling.factor"] == 16
    assert found["rope.scaling.original_context_length"] == 16384
    assert found["rope.scaling.yarn_log_multiplier"] == 1
    assert found["attention.temperature_scale"] == 0.1
    assert "attention.sliding_window" not in found
    assert any("'rope_parameters'" in one for one in plan.notes)


def test_settings_that_are_given_count(tmp_path: Path) -> None:
    """No default where the configuration says something, in the older layout too."""
    scaling = read_oracle("ministral3").config["rope_parameters"] | {"llama_4_scaling_beta": 0.2}
    plan = planned(checkpoint(tmp_path, "ministral3", rope_parameters="gone", rope_scaling=scaling))
    assert plan.metadata["mistral3.rope.scaling.factor"] == 8
    assert plan.metadata["mistral3.attention.temperature_scale"] == 0.2
    plain = {"rope_scaling": "gone", "rope_parameters": {"rope_theta": 5e4}}
    plan = planned(checkpoint(tmp_path, "gpt-oss", **plain))
    assert plan.metadata["gpt-oss.rope.freq_base"] == 5e4
    assert "gpt-oss.rope.scaling.type" not in plan.metadata
    assert not any("rope" in one for one in plan.notes)


@pytest.mark.parametrize(("given", "expected"), [("gone", 4096), (None, None), (7, 7)])
def test_mistral_window(tmp_path: Path, given: Any, expected: int | None) -> None:
    """Missing: transformers' 4096; null: none. Of text and image models too."""
    folder = checkpoint(tmp_path / "text", "mistral", sliding_window=given)
    images = checkpoint(
        tmp_path / "images", "mistral3", text_config=text_config("mistral3", sliding_window=given)
    )
    for one, key, named in (
        (folder, "llama", "sliding_window"),
        (images, "mistral3", "text_config.sliding_window"),
    ):
        plan = planned(one)
        assert plan.metadata.get(f"{key}.attention.sliding_window") == expected
        told = [note for note in plan.notes if f"key '{named}' is missing; taken is 4096" in note]
        assert len(told) == (given == "gone")


def test_newer_text_models_of_mistral3_have_their_own_defaults(tmp_path: Path) -> None:
    text = text_config("mistral3", model_type="ministral3", sliding_window="gone")
    plan = planned(checkpoint(tmp_path, "mistral3", text_config=text))
    assert plan.metadata["mistral3.rope.scaling.factor"] == 16
    assert "mistral3.attention.sliding_window" not in plan.metadata
    assert any("'text_config.rope_parameters'" in note for note in plan.notes)


def test_other_defaults_of_transformers(tmp_path: Path) -> None:
    """Granite's scores are multiplied with 1, not 1 / sqrt(D); OLMo 2's base is 10,000."""
    plan = planned(checkpoint(tmp_path / "granite", "granite", attention_multiplier="gone"))
    assert plan.metadata["granite.attention.scale"] == 1
    assert any("'attention_multiplier' is missing; taken is 1," in note for note in plan.notes)
    plan = planned(checkpoint(tmp_path / "olmo2", "olmo2", rope_theta="gone"))
    assert plan.metadata["olmo2.rope.freq_base"] == 1e4


@pytest.mark.parametrize("name", names_of())
def test_golden_configurations_contradict_nothing(tmp_path: Path, name: str) -> None:
    config = read_oracle(name).config
    assert find_family(ConfigView(tmp_path, config))[0] == config["architectures"][0]
    del config["model_type"]
    find_family(ConfigView(tmp_path, config))


YARN = {"factor": 4.0, "type": "yarn", "original_max_position_embeddings": 16}
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("llama", {key: {"rope_theta": 1e4, kind: None, **given}}, message)
        for key in ("rope_scaling", "rope_parameters")
        for kind in ("type", "rope_type")
        for given, message in (
            ({"factor": 8.0}, r"json: key 'rope_type' is missing, but 'factor' is given; add"),
            ({"short_factor": [1.0]}, r"key 'rope_type' is missing, but 'short_factor' is given"),
            ({"low_freq_factor": 1}, r"'rope_type' is missing, but 'low_freq_factor' is given"),
        )
    ),
    *(
        (name, {"num_local_experts": "gone"}, r"key 'num_local_experts' is missing, expected a who")
        for name in ("mixtral", "gpt-oss")
    ),
    ("qwen3moe", {"num_experts": "gone"}, r"key 'num_experts' is missing, expected a whole"),
    ("qwen3moe", {"moe_intermediate_size": "gone"}, r"key 'moe_intermediate_size' is missing"),
    *(
        (name, {"text_config": value}, r"config.json: key 'text_config' is .*, expected an object")
        for name in ("gemma3-multimodal", "mistral3")
        for value in ("gone", None, {}, 7)
    ),
    *(
        (name, {"text_config": text_config(name, **{key: value})}, message)
        for name in ("gemma3-multimodal", "mistral3")
        for key, value, message in (
            ("hidden_size", "gone", r"key 'text_config.hidden_size' is missing, expected"),
            ("num_hidden_layers", 0, r"key 'text_config.num_hidden_layers' is 0, expected"),
            ("num_key_value_heads", 3, r"\(4\) is no multiple of 'text_config.num_key_value_heads"),
            ("vocab_size", 300, r"is \[text_config.vocab_size, text_config.hidden_size\]"),
            ("model_type", "gpt2", r"key 'text_config.model_type' is 'gpt2', but 'architectures'"),
        )
    ),
    *(
        ("llama-yarn", {"rope_scaling": {**YARN, key: value}}, rf"key '{key}' is .*, expected a")
        for key in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        for value in ("", [], {}, False, "x")
    ),
    *(
        ("gpt-oss", {"quantization_config": {"quant_method": "mxfp4", key: value}}, message)
        for key, message in (("modules_to_not_convert", r"to_not_convert' is .*, expected a list"),)
        for value in ("x", 7, {}, [7], [None])
    ),
    *(
        ("llama", {"model_type": other}, rf"key 'model_type' is '{other}', .*'LlamaForCausalLM'")
        for other in ("qwen2", "gpt2", "mistral")
    ),
    ("mixtral", {"model_type": "mistral"}, r"'mistral', .* 'MixtralForCausalLM', .*'mixtral'"),
    ("llama", {"rope_scaling": {"type": "ntk", "factor": 2}}, r"key 'type': rope scaling 'ntk' is"),
]


@pytest.mark.parametrize(("name", "config", "message"), FAULTS)
def test_errors_name_the_key(
    tmp_path: Path, name: str, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(sd.ConvertError, match=message):
        planned(checkpoint(tmp_path, name, **config))


def test_zero_and_null_mean_the_default_of_yarn(tmp_path: Path) -> None:
    for value in (0, 0.0, None):
        yarn = {**YARN, "beta_fast": value, "beta_slow": value, "mscale": value}
        plan = planned(checkpoint(tmp_path, "llama-yarn", rope_scaling=yarn))
        assert "llama.rope.scaling.yarn_beta_fast" not in plan.metadata
