"""How a model's keys are checked at load: what changes the computation is honoured or refused.

Defaults that real files rely on are held to by comparing logits with a file that says it outright.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValue, GGUFValueType

import specdec_native as sd
from model_families import architecture_name
from specdec_native import _core
from support.engine import load

ModelFactory = Callable[..., Path]
TOKENS = [int(t) for t in np.random.default_rng(5).integers(3, 300, size=60)]


def check(path: Path) -> None:
    _core.check_model(_core.GgufFile(path))


def small(make_model: ModelFactory, family: str, keys: Mapping[str, Any], **fields: Any) -> Path:
    """A model with keys of its architecture; their names come without the prefix."""
    name = architecture_name(family)
    full = {f"{name}.{key}": value for key, value in keys.items()}
    return make_model(family=family, layers=fields.pop("layers", 4), metadata=full, **fields)


def logits(path: Path, n_ctx: int = 128) -> np.ndarray:
    return np.asarray(_core.Generator(load(path), n_ctx, "f32").logits(TOKENS, 0))


def same(one: Path, other: Path) -> bool:
    return bool(np.array_equal(logits(one), logits(other)))


def array_of(vtype: GGUFValueType, values: list[Any]) -> GGUFValue:
    return GGUFValue(values, GGUFValueType.ARRAY, vtype)


# --- Rope ----------------------------------------------------------------------------------------

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
LONG: dict[str, Any] = {"long_rope": True}


@pytest.mark.parametrize(
    ("keys", "fields", "message"),
    [
        ({"rope.scaling.type": "yarn"}, {}, r"scaling\.factor is missing, but .*type is 'yarn'"),
        ({**YARN, "rope.scaling.factor": 0.0}, {}, r"scaling\.factor is 0, but .*'yarn'"),
        ({**YARN, "rope.scaling.factor": -2.0}, {}, r"scaling\.factor is -2, outside"),
        ({"rope.scaling.type": "linear"}, {}, r"scaling\.factor is missing, but .*'linear'"),
        ({**YARN, "rope.freq_base": 1.0}, {}, r"rope\.freq_base is 1, with which there is no YaRN"),
        ({**YARN, "rope.scaling.yarn_ext_factor": 0.5}, {}, r"yarn_ext_factor is 0\.5"),
        ({"rope.scaling.type": "longrope"}, {}, r"'rope_factors_long\.weight' is missing"),
        ({}, LONG, r"original_context_length is missing, but the file has the factors"),
        ({"rope.scaling.original_context_length": 0}, LONG, r"original_context_length is 0, but"),
        ({}, {**LONG, "omit_tensors": "factors_short"}, r"'rope_factors_short\.weight' is missing"),
        ({}, {**LONG, "omit_tensors": "factors_long"}, r"'rope_factors_long\.weight' is missing"),
    ],
)
def test_rope_that_is_not_said_is_refused(
    make_model: ModelFactory, keys: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    path = small(make_model, "llama", keys, **fields)
    with pytest.raises(sd.GgufError, match=message):
        check(path)


@pytest.mark.parametrize("left_out", [{}, {"rope.scaling.original_context_length": 0}])
def test_yarn_extends_the_trained_context_by_default(
    make_model: ModelFactory, left_out: dict[str, Any]
) -> None:
    """Ollama's converter writes type and factor only; llama.cpp and transformers agree on this."""
    said = small(
        make_model, "qwen2", {**YARN, "rope.scaling.original_context_length": 256}, context=256
    )
    other = small(
        make_model, "qwen2", {**YARN, "rope.scaling.original_context_length": 64}, context=256
    )
    left = small(make_model, "qwen2", {**YARN, **left_out}, context=256)
    assert same(left, said)
    assert not same(left, other)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0},  # llama.cpp's saver
        {"rope.scaling.type": "none", "rope.scaling.yarn_ext_factor": 0.0},
        {"rope.scaling.type": "none", "rope.scaling.factor": 8.0},
    ],
)
def test_rope_without_scaling(make_model: ModelFactory, keys: dict[str, Any]) -> None:
    assert same(small(make_model, "llama", keys), small(make_model, "llama", {}))


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        ("rope.freq_base", "rope.global.freq_base"),
        ("rope.freq_base_swa", "rope.local.freq_base"),
    ],
)
def test_ollamas_names_of_the_bases(make_model: ModelFactory, usual: str, other: str) -> None:
    plain = {"rope.freq_base": None, "rope.freq_base_swa": None}
    named = small(make_model, "gemma3", {**plain, usual: 40000.0})
    assert same(small(make_model, "gemma3", {**plain, other: 40000.0}), named)
    assert not same(small(make_model, "gemma3", plain), named)


# --- Windows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left_out", [{"attention.sliding_window": None}, {"attention.sliding_window": 0}]
)
def test_gemma3_and_olmo2_without_a_window_have_none(
    make_model: ModelFactory, left_out: dict[str, Any]
) -> None:
    """As in llama.cpp: OLMo 2 and some Gemma 3 models are trained without."""
    for family in ("gemma3", "olmo2"):
        none = {"attention.sliding_window": 16, "attention.sliding_window_pattern": [False] * 4}
        found = small(make_model, family, {**left_out, "attention.sliding_window_pattern": None})
        assert same(found, small(make_model, family, none))
        some = small(make_model, family, {"attention.sliding_window": 16})
        assert not same(found, some)


@pytest.mark.parametrize("family", ["gemma2", "gpt-oss"])
def test_a_window_of_zero_is_refused_where_layers_have_one(
    make_model: ModelFactory, family: str
) -> None:
    path = small(make_model, family, {"attention.sliding_window": 0})
    with pytest.raises(sd.GgufError, match=r"sliding_window is missing or 0"):
        check(path)


def test_gemma2_has_a_default_window(make_model: ModelFactory) -> None:
    """4096, as in llama.cpp."""
    keys: dict[str, Any] = {"attention.sliding_window": None}
    assert same(
        small(make_model, "gemma2", keys),
        small(make_model, "gemma2", {"attention.sliding_window": 4096}),
    )


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss", "qwen2", "starcoder2"])
def test_patterns_of_windows(make_model: ModelFactory, family: str) -> None:
    """A list of the layers, or a period: 0 is all of them, 1 is none (llama.cpp)."""

    def with_pattern(pattern: Any) -> Path:
        keys = {"attention.sliding_window": 12, "attention.sliding_window_pattern": pattern}
        return small(make_model, family, keys)

    assert same(with_pattern(2), with_pattern([True, False] * 2))
    assert same(with_pattern(3), with_pattern([1, 1, 0, 1]))
    assert same(with_pattern(0), with_pattern([True] * 4))
    assert same(with_pattern(1), with_pattern([False] * 4))
    assert not same(with_pattern(0), with_pattern(1))
    assert not same(with_pattern(2), with_pattern(3))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ([True, False], "2 elements for 4 layers"),
        ([True] * 5, "5 elements for 4 layers"),
        ([0, 1, 2, 0], r"at index 2 \(found 2\)"),
        ("all", "string 'all'"),
        (array_of(GGUFValueType.STRING, ["a"] * 4), "array of 4 string"),
        (array_of(GGUFValueType.FLOAT32, [1.0] * 4), "array of 4 f32"),
        (GGUFValue(-1, GGUFValueType.INT32), "i32 -1"),
    ],
)
@pytest.mark.parametrize("family", ["gemma2", "gpt-oss", "gemma3", "llama"])
def test_odd_patterns_of_windows_are_refused(
    make_model: ModelFactory, family: str, pattern: Any, message: str
) -> None:
    keys = {"attention.sliding_window": 12, "attention.sliding_window_pattern": pattern}
    path = small(make_model, family, keys)
    with pytest.raises(sd.GgufError, match=message):
        check(path)


@pytest.mark.parametrize("family", ["gemma2", "gpt-oss", "gemma3", "olmo2", "llama"])
def test_local_layers_may_have_a_base_of_their_own(make_model: ModelFactory, family: str) -> None:
    """With all layers local, another base for them is the same as another base."""
    window = {
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": [True] * 4,
        "rope.scaling.type": None,
        "rope.scaling.factor": None,
    }
    own = small(
        make_model, family, {**window, "rope.freq_base": 10000.0, "rope.freq_base_swa": 500.0}
    )
    both = small(
        make_model, family, {**window, "rope.freq_base": 500.0, "rope.freq_base_swa": 500.0}
    )
    usual = small(make_model, family, {**window, "rope.freq_base": 10000.0})
    assert same(own, both)
    assert not same(own, usual)
    other = small(make_model, family, {**window, "rope.dimension_count_swa": 8})
    with pytest.raises(
        sd.GgufError, match=r"dimension_count_swa is 8, but .*dimension_count is 16"
    ):
        check(other)


def test_qwens_window_is_ignored_unless_layers_are_listed(make_model: ModelFactory) -> None:
    """Its files may carry a size that the model does not use; llama.cpp passes over it, too."""
    for family in ("qwen2", "qwen3", "qwen2moe", "qwen3moe"):
        size: dict[str, Any] = {"attention.sliding_window": 8}
        assert same(small(make_model, family, size), small(make_model, family, {}))


def test_layers_without_positions_may_be_listed(make_model: ModelFactory) -> None:
    smollm3 = small(make_model, "smollm3", {})
    listed = small(make_model, "smollm3", {"attention.rope_pattern": [True, True, True, False]})
    assert same(listed, smollm3)
    none = small(make_model, "granite", {"attention.rope_pattern": 0})
    assert same(none, small(make_model, "granite", {"rope.scaling.finetuned": False}))
    assert not same(none, small(make_model, "granite", {}))


# --- Keys of other families ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "key", "value", "shown"),
    [
        ("llama", "final_logit_softcapping", 30.0, "30"),
        ("llama", "attn_logit_softcapping", 50.0, "50"),
        ("qwen3moe", "router_logit_softcapping", 30.0, "30"),
        ("mixtral", "expert_group_count", 4, "4"),
        ("qwen3moe", "experts_per_group", 2, "2"),
        ("qwen2", "logit_scale", 0.5, r"0\.5"),
        ("gemma3", "residual_scale", 0.22, r"0\.22"),
        ("phi3", "embedding_scale", 12.0, "12"),
        ("llama", "attention.temperature_scale", 0.1, r"0\.1"),
        ("olmo2", "attention.clamp_kqv", 8.0, "8"),
        ("llama", "attention.max_alibi_bias", 8.0, "8"),
        ("llama", "attention.value_scale", 2.0, "2"),
        ("granite", "attention.output_scale", 0.5, r"0\.5"),
        ("granite", "attention.sliding_window", 4096, "4096"),
        ("gemma3", "attention.shared_kv_layers", 2, "2"),
        ("llama", "use_parallel_residual", True, "1"),
        ("llama", "swin_norm", True, "1"),
        ("llama", "rescale_every_n_layers", 6, "6"),
        ("qwen3moe", "leading_dense_block_count", 1, "1"),
        ("qwen3", "nextn_predict_layers", 1, "1"),
        ("mixtral", "interleave_moe_layer_step", 2, "2"),
        ("mixtral", "moe_every_n_layers", 2, "2"),
        ("llama", "num_loops", 2, "2"),
        ("qwen3moe", "hash_layer_count", 3, "3"),
        ("qwen3moe", "swiglu_clamp_exp", [0.0, 7.0, 0.0, 0.0], "7 at index 1"),
        ("llama", "rope.scaling.alpha", 1000.0, "1000"),
        ("mistral3", "rope.scaling_beta", 0.1, r"0\.1"),
        ("llama", "tensor_data_layout", "jploski", "'jploski'"),
        ("llama", "hidden_activation", "gelu", "'gelu'"),
        ("gemma2", "hidden_activation", "silu", "'silu'"),
        ("llama", "final_logit_softcapping", "thirty", "string 'thirty'"),
        ("llama", "logit_scale", array_of(GGUFValueType.STRING, ["a"]), "array of 1 string"),
    ],
)
def test_what_a_family_does_not_compute_is_refused(
    make_model: ModelFactory, family: str, key: str, value: Any, shown: str
) -> None:
    path = small(make_model, family, {key: value})
    name = architecture_name(family)
    with pytest.raises(sd.GgufError) as caught:
        check(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: key {name}.{key} is ")
    with pytest.raises(
        sd.GgufError, match=rf"{key} is {shown}, which this library does not compute for '{name}'"
    ):
        load(path)


# What llama.cpp's program for fine-tuning writes into a file of any family
# (src/llama-model-saver.cpp), with the values of one that does without.
SAVED = {
    "leading_dense_block_count": 0,
    "expert_latent_length": 0,
    "swiglu_clamp_exp": [0.0] * 4,
    "swiglu_clamp_shexp": [0.0] * 4,
    "use_parallel_residual": False,
    "expert_shared_count": 0,
    "expert_group_count": 0,
    "expert_group_used_count": 0,
    "expert_weights_norm": False,
    "expert_weights_scale": 0.0,
    "expert_gating_func": 0,
    "expert_group_scale": 0.05,
    "experts_per_group": 0,
    "moe_every_n_layers": 0,
    "nextn_predict_layers": 0,
    "n_deepstack_layers": 0,
    "deepstack_mapping": [-1] * 4,
    "pooling_type": 0,
    "logit_scale": 0.0,
    "router_logit_softcapping": 0.0,
    "swin_norm": False,
    "rescale_every_n_layers": 0,
    "residual_scale": 0.0,
    "embedding_scale": 0.0,
    "interleave_moe_layer_step": 0,
    "attention.max_alibi_bias": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.causal": True,
    "attention.rope_pattern": 1,
    "attention.scale": 0.0,
    "attention.output_scale": 0.0,
    "attention.value_scale": 0.0,
    "attention.temperature_length": 0,
    "attention.key_length_mla": 0,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "hyper_connection.count": 0,
    "hash_layer_count": 0,
    "rope.dimension_count_swa": 16,
    "rope.dimension_sections": [0] * 4,
    "rope.scaling.finetuned": False,
    "rope.scaling.yarn_ext_factor": -1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "activation.situ_beta": 1.0,
}
SAVED_PLAIN = {
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "attention.sliding_window": 0,
    "attention.temperature_scale": 0.0,
    "rope.freq_base_swa": 10000.0,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 0.0,
    "rope.scaling.original_context_length": 1024,
}


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("llama", {**SAVED, **SAVED_PLAIN, "expert_count": 0, "expert_used_count": 0}),
        ("qwen2", {**SAVED, **SAVED_PLAIN, "expert_count": 0, "expert_used_count": 0}),
        ("smollm3", {**SAVED, **SAVED_PLAIN}),
        ("mixtral", {**SAVED, **SAVED_PLAIN}),
        ("qwen3moe", {**SAVED, **SAVED_PLAIN}),
        ("gemma2", SAVED),
        ("gemma3", SAVED),
        ("mistral3", SAVED),
        ("llama", {"tensor_data_layout": "Meta AI original pth"}),  # old converters
        ("llama", {"hidden_activation": "silu", "num_loops": 1, "logit_scale": 1.0}),
        ("gemma2", {"hidden_activation": "gelu_pytorch_tanh"}),
        ("llama", {"never.heard.of": 7.0, "rope.mrope_section": [16, 24, 24]}),
    ],
)
def test_neutral_and_unknown_keys_change_nothing(
    make_model: ModelFactory, family: str, keys: dict[str, Any]
) -> None:
    assert same(small(make_model, family, keys), small(make_model, family, {}))


@pytest.mark.parametrize("family", ["llama", "starcoder2"])
def test_the_norms_epsilon_must_be_there(make_model: ModelFactory, family: str) -> None:
    """llama.cpp has no default for it either."""
    name = "layer_norm_epsilon" if family == "starcoder2" else "layer_norm_rms_epsilon"
    path = small(make_model, family, {f"attention.{name}": None})
    with pytest.raises(sd.GgufError, match=rf"attention\.{name} is missing"):
        check(path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("adapter", "a LoRA adapter"),
        ("mmproj", "images or sound"),
        ("imatrix", "holds no model"),
    ],
)
def test_files_that_hold_no_model_say_what_they_are(
    make_model: ModelFactory, kind: str, message: str
) -> None:
    path = make_model(layers=1, metadata={"general.type": kind})
    with pytest.raises(sd.GgufError, match=rf"general\.type is '{kind}'.*{message}"):
        check(path)
    check(make_model(layers=1, metadata={"general.type": "model"}))


@pytest.mark.parametrize(
    ("keys", "tensors"), [({"llama.block_count": None}, ""), ({}, "attn_norm"), ({}, "token_embd")]
)
def test_errors_name_the_file_once(
    make_model: ModelFactory, keys: dict[str, Any], tensors: str
) -> None:
    """A user may have given two: a target and its draft."""
    path = make_model(layers=1, metadata=keys, omit_tensors=tensors)
    for open_model in (check, load):
        with pytest.raises(sd.GgufError) as caught:
            open_model(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert str(caught.value).count(str(path)) == 1
