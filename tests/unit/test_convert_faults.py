"""Checkpoints that are incomplete or contradict themselves: errors that name file and key."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_native as sd
from oracle_checkpoint import read_oracle, write_checkpoint
from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.convert.model import plan_model
from support.checkpoints import (
    WEIGHTS,
    assert_same,
    checkpoint,
    convert,
    edit_tensors,
    metadata_of,
)


def pop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.pop(name)


def put(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: np.zeros(shape, np.float32)})


def whole_numbers(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: tensors[name].astype(np.int8)})


DAMAGE: list[tuple[str, dict[str, Any], Any, str]] = [
    ("llama", {"architectures": ["MambaForCausalLM"]}, None, r"'MambaForCausalLM'.*LlamaForCausal"),
    (
        "llama",
        {"architectures": "gone"},
        None,
        r"key 'architectures' is missing, expected one of Llama",
    ),
    ("llama", {"hidden_size": "gone"}, None, r"config.json: key 'hidden_size' is missing"),
    ("llama", {"vocab_size": 300}, None, r"'model.embed_tokens.weight' has shape \[288, 64\]"),
    ("llama", {"hidden_act": "relu"}, None, r"key 'hidden_act' is 'relu'; llama computes 'silu'"),
    ("llama", {"num_key_value_heads": 3}, None, r"\(4\) is no multiple of 'num_key_value_heads'"),
    ("llama", {"num_hidden_layers": 3}, None, r"'model.layers.2.input_layernorm.weight' is miss"),
    ("llama", {"num_hidden_layers": 1}, None, r"'model.layers.1.*' is not part of a llama model"),
    ("llama", {"head_dim": 32}, None, r"'model.layers.0.self_attn.q_proj.weight' has shape"),
    (
        "llama",
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        None,
        r"rope scaling 'dynamic'",
    ),
    ("llama", {"partial_rotary_factor": 0.5}, None, r"key 'partial_rotary_factor' is not 1, which"),
    ("llama", {"attention_bias": True}, None, r"'model.layers.0.self_attn.q_proj.bias' is missing"),
    ("llama", {"attention_bias": "yes"}, None, r"key 'attention_bias' is 'yes', expected true or"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, None, r"quant_method 'gptq'"),
    ("llama", {}, pop("model.norm.weight"), r"tensor 'model.norm.weight' is missing"),
    ("llama", {}, whole_numbers("model.norm.weight"), r"'model.norm.weight' holds whole numbers"),
    ("llama", {}, put("model.norm.weight", (63,)), r"'model.norm.weight' has shape \[63\]"),
    ("llama", {}, put("model.extra.weight", (2,)), r"'model.extra.weight' is not part of"),
    (
        *("llama", {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0.5, 2]}}),
        *(
            put("model.layers.0.mlp.up_proj.weight_scale_inv", (3, 2)),
            r"'weight_block_size' is \[0",
        ),
    ),
    (
        *("llama", {"quantization_config": {"quant_method": "fp8"}}),
        *(
            put("model.layers.0.mlp.up_proj.weight_scale_inv", (3, 2)),
            r"scale_inv' has shape \[3, 2",
        ),
    ),
    ("llama-bias", {"mlp_bias": False}, None, r"mlp.down_proj.bias' is not part of"),
    ("llama-yarn", {"rope_scaling": {"type": "yarn", "factor": 0}}, None, r"key 'factor' is 0"),
    *(
        ("llama-yarn", {"rope_scaling": {"type": "yarn", **more}}, None, message)
        for more, message in (
            ({}, r"key 'factor' is missing, expected a positive number"),
            ({"factor": "x"}, r"key 'factor' is 'x', expected a positive"),
            ({"factor": float("inf")}, r"key 'factor' is inf, expected"),
            ({"factor": 1e7}, r"key 'factor' is 10000000.0, expected a positive number up to"),
            ({"factor": 2.0, "beta_fast": 1e7}, r"'beta_fast' is .*, expected .* to 1e\+06"),
            ({"factor": 2.0, "attention_factor": 1e4}, r"'attention_factor' is .* to 1000"),
            ({"factor": 2.0, "mscale": 1e4, "mscale_all_dim": 1.0}, r"'mscale' is .* up to 100"),
            (
                {"factor": 2.0, "original_max_position_embeddings": 0},
                r"'original_max_position_embeddings' is 0, expected a whole number from 1 to",
            ),
            (
                {"factor": 2.0, "original_max_position_embeddings": 4096.5},
                r"'original_max_position_embeddings' is 4096.5, expected a whole",
            ),
        )
    ),
    ("llama-linear", {"rope_scaling": {"type": "linear"}}, None, r"key 'factor' is missing"),
    ("llama-linear", {"rope_scaling": {"type": 5}}, None, r"key 'type' is 5, expected a text"),
    (
        *("llama-llama3", {"rope_scaling": {"type": "llama3", "factor": 8.0}}),
        *(None, r"key 'low_freq_factor' is missing"),
    ),
    (
        "llama-llama3",
        {
            "rope_scaling": {
                **{"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0},
                **{"high_freq_factor": 4.0, "original_max_position_embeddings": 32},
            }
        },
        *(None, r"'high_freq_factor' is 4.0, expected more than 'low_freq_factor' \(4\)"),
    ),
    ("phi3", {"partial_rotary_factor": 0.01}, None, r"0 elements of 16 in a head rotate"),
    ("phi3", {"partial_rotary_factor": 1.5}, None, r"24 elements of 16 in a head rotate"),
    (
        "phi3-longrope",
        {"original_max_position_embeddings": 0},
        *(None, r"'original_max_position_embeddings' is 0, expected a whole number"),
    ),
    *(
        (family, {key: value}, None, rf"key '{key}' is .*, expected")
        for family in ("gemma2", "gemma3", "gpt-oss")
        for key, value in (
            ("sliding_window_pattern", 3),
            ("sliding_window_pattern", "x"),
            ("layer_types", "sliding_attention"),
            ("layer_types", ["full_attention"]),
            ("layer_types", [1, 2]),
            ("layer_types", {}),
            ("sliding_window", None),
        )
    ),
    ("qwen2", {"layer_types": "x"}, None, r"key 'layer_types' is 'x', expected a list"),
    ("gemma2", {"attn_logit_softcapping": 0}, None, r"softcapping' is 0, expected a positive num"),
    ("llama", {"num_key_value_heads": 0}, None, r"is 0, expected a whole number from 1 to"),
    ("llama", {"hidden_size": None}, None, r"key 'hidden_size' is null, expected a whole number"),
    *(  # what would not load
        (name, {key: value}, None, rf"key '{key}' is .*, expected a .*{most}")
        for name, key, value, most in (
            ("llama", "max_position_embeddings", 2**31 - 1, "from 1 to 16777216"),
            ("gemma2", "sliding_window", 2**24 + 1, "from 1 to 16777216"),
            ("llama", "rms_norm_eps", 1.5, "positive number up to 1"),
            ("starcoder2", "norm_epsilon", 7, "positive number up to 1"),
            ("llama", "rope_theta", 0.5, r"from 1 to 1e\+12"),
            ("gemma3", "rope_local_base_freq", 1e13, r"from 1 to 1e\+12"),
            ("gemma2", "final_logit_softcapping", 1e7, r"up to 1e\+06"),
            ("granite", "logits_scaling", 1e7, r"up to 1e\+06"),
        )
    ),
    ("llama", {"architectures": 5}, None, r"key 'architectures' is 5, expected a list"),
    ("llama", {"hidden_act": 5}, None, r"key 'hidden_act' is 5, expected a text"),
    ("qwen3moe", {"norm_topk_prob": False}, None, r"key 'norm_topk_prob' is False, but GGUF"),
    ("qwen3moe", {"mlp_only_layers": [0]}, None, r"'mlp_only_layers' ask for layers without"),
    ("qwen3moe", {"num_experts_per_tok": 9}, None, r"'num_experts_per_tok' is 9, but there are 6"),
    ("mixtral", {"num_local_experts": 5}, None, r"gate.weight' has shape \[4, 64\], expected \[5"),
    ("mixtral", {}, pop("model.layers.1.block_sparse_moe.experts.2.w3.weight"), r"2.w3.weight' is"),
    ("qwen2", {"use_sliding_window": True}, None, r"key 'use_sliding_window' is true"),
    (
        "gemma2",
        {"layer_types": ["full_attention"] * 2},
        None,
        r"key 'layer_types' is \['full_attention', 'full_attention'\], expected 2 layers",
    ),
    (
        "gemma3",
        {"sliding_window_pattern": 3},
        None,
        r"key 'sliding_window_pattern' is 3, expected 6",
    ),
    ("gemma3", {"use_bidirectional_attention": True}, None, r"is true: it generates no text"),
    (
        "smollm3",
        {"no_rope_layers": [1] * 4},
        None,
        r"key 'no_rope_layers' is \[1, 1, 1, 1\], expected 4",
    ),
    ("gpt-oss", {"swiglu_limit": 5.0}, None, r"key 'swiglu_limit' is 5.0, expected 7"),
    (
        "phi3-longrope",
        {"rope_scaling": {"type": "longrope"}},
        None,
        r"key 'long_factor' is missing, expected a list",
    ),
    ("phi3-longrope", {"hidden_size": 128}, None, r"key 'long_factor' has 8 numbers, but 16 pairs"),
]


@pytest.mark.parametrize(("name", "config", "tensors", "message"), DAMAGE)
def test_damaged_checkpoints_leave_no_file(
    tmp_path: Path, name: str, config: dict[str, Any], tensors: Any, message: str
) -> None:
    folder = checkpoint(tmp_path / "hf", name, **config)
    if tensors is not None:
        edit_tensors(folder, tensors)
    (tmp_path / "out").mkdir()
    with pytest.raises(sd.ConvertError, match=message):
        convert(folder, tmp_path / "out" / "m.gguf")
    assert list((tmp_path / "out").iterdir()) == []


def test_shapes_name_the_keys_that_they_come_from(tmp_path: Path) -> None:
    for name, config, message in (
        (
            "llama",
            {"vocab_size": 300},
            r"expected \[300, 64\], which is \[vocab_size, hidden_size\]",
        ),
        (
            *("llama", {"num_key_value_heads": 4}),
            r"which is \[num_key_value_heads \* hidden_size / num_attention_heads, hidden_size\]",
        ),
        (
            *("phi3", {"intermediate_size": 97}),
            r"\[194, 64\], which is \[2 \* intermediate_size, hidden_size\] of config.json",
        ),
    ):
        folder = checkpoint(tmp_path / name, name, **config)
        with pytest.raises(sd.ConvertError, match=message):
            convert(folder, tmp_path / "m.gguf")


def test_folders_that_are_none(tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*gone; .*hf download OWNER"):
        convert(tmp_path / "gone", out)
    (tmp_path / "x.gguf").write_bytes(b"x")
    with pytest.raises(NotADirectoryError, match=r"x.gguf is a file; .*use quantize"):
        convert(tmp_path / "x.gguf", out)
    folder = checkpoint(tmp_path / "hf" / "snapshots" / "0123")
    with pytest.raises(sd.ConvertError, match=r"hf.config.json: this file is missing.*snapshots"):
        convert(tmp_path / "hf", out)
    (folder / "config.json").rename(folder / "other.json")
    with pytest.raises(
        sd.ConvertError, match=r"config.json: this file is missing.*there is .*json"
    ):
        convert(folder, out)
    (tmp_path / "none").mkdir()
    with pytest.raises(sd.ConvertError, match=r"this file is missing.*this one is empty"):
        convert(tmp_path / "none", out)


def test_a_link_to_nothing(tmp_path: Path) -> None:
    """As a half-removed cache of the hub has them."""
    folder = checkpoint(tmp_path / "hf")
    (folder / WEIGHTS).unlink()
    (folder / "weights.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(
        sd.ConvertError, match=r"weights.safetensors: cannot be read \(No such file"
    ):
        convert(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer_config.json"])
def test_pointers_of_git_lfs(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "hf")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(sd.ConvertError, match=rf"{name}: is a Git LFS pointer.*git lfs pull"):
        convert(folder, tmp_path / "m.gguf")


def test_hidden_files_are_none_of_the_checkpoint(tmp_path: Path) -> None:
    """As macOS leaves them in archives."""
    folder = checkpoint(tmp_path / "hf")
    (folder / WEIGHTS).rename(folder / "weights.safetensors")
    (folder / "._weights.safetensors").write_bytes(b"x")
    convert(folder, tmp_path / "m.gguf")


def test_null_is_what_transformers_takes_it_for(tmp_path: Path) -> None:
    """As many key/value heads as heads; no soft cap; the ratio of two lengths."""
    folder = checkpoint(tmp_path / "gemma", "gemma2", attn_logit_softcapping=None)
    convert(folder, tmp_path / "m.gguf")
    found = metadata_of(tmp_path / "m.gguf")
    assert found["gemma2.attn_logit_softcapping"] == 1e6
    assert found["gemma2.final_logit_softcapping"] == 8.0
    yarn = {"type": "yarn", "factor": None, "original_max_position_embeddings": 32}
    folder = checkpoint(
        *(tmp_path / "yarn", "llama-yarn"), rope_scaling=yarn, max_position_embeddings=128
    )
    convert(folder, tmp_path / "m.gguf")
    assert metadata_of(tmp_path / "m.gguf")["llama.rope.scaling.factor"] == 4.0
    folder = checkpoint(tmp_path / "heads", "gemma3", num_key_value_heads=None)
    with pytest.raises(
        sd.ConvertError, match=r"k_proj.weight' has .*\[num_attention_heads \* head"
    ):
        convert(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["llama-yarn", "llama-llama3", "phi3-longrope"])
def test_a_missing_original_length_is_noted(tmp_path: Path, name: str) -> None:
    """Transformers takes the longest length; Phi-3's has a default of its own."""
    rope = dict(read_oracle(name).config["rope_scaling"])
    rope.pop("original_max_position_embeddings", None)
    config = {"rope_scaling": rope, "original_max_position_embeddings": "gone"}
    result = convert(checkpoint(tmp_path / "hf", name, **config), tmp_path / "m.gguf")
    found = metadata_of(tmp_path / "m.gguf")
    if name == "phi3-longrope":
        assert found["phi3.rope.scaling.original_context_length"] == 4096
        return
    (note,) = result.notes
    assert "config.json: key 'original_max_position_embeddings' is missing" in note
    if name == "llama-yarn":
        length = found["llama.context_length"]
        assert found["llama.rope.scaling.original_context_length"] == length


ODD: tuple[Any, ...] = (None, 7, -1, 0, 1.5, True, "x", "", [], [7], {}, {"x": 7}, 1e300)


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to the values of a JSON object, the first two of each list."""
    pairs = list(values.items()) if isinstance(values, dict) else []
    pairs = list(enumerate(values))[:2] if isinstance(values, list) else pairs[:40]
    return [one for key, value in pairs for one in ((*path, key), *places(value, (*path, key)))]


@pytest.mark.parametrize(
    "name", ["llama-yarn", "gemma3-multimodal", "gpt-oss", "qwen2moe", "phi4-mini"]
)
def test_values_of_another_kind_give_errors_of_the_library(tmp_path: Path, name: str) -> None:
    """R29: whatever a file holds, nothing but a ConvertError comes out."""
    folder = checkpoint(tmp_path / "hf", name)
    rng = np.random.default_rng(len(name))
    for path in sorted(folder.glob("*.json")):
        text = path.read_text()
        for place in places(json.loads(text)):
            values = json.loads(text)
            at = values
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = ODD[rng.integers(len(ODD))]
            path.write_text(json.dumps(values))
            with contextlib.suppress(sd.ConvertError), Checkpoint.open(folder) as source:
                plan_model(source, "f16")
        path.write_text(text)


@pytest.mark.filterwarnings("ignore:n_ctx is")
@pytest.mark.parametrize("name", ["llama-yarn", "gemma2", "granite"])
def test_what_is_converted_loads(tmp_path: Path, name: str) -> None:
    """Whatever numbers a configuration holds: they are refused, or the file can be used."""
    folder = checkpoint(tmp_path / "hf", name)
    path = folder / "config.json"
    text = path.read_text()
    rng = np.random.default_rng(len(name))
    numbers = (1, 2, 7, 0.001, 1.5, 1e9, 3e38, 2**31 - 1)
    used = 0
    for place in places(json.loads(text)):
        for i in rng.permutation(len(numbers))[:4]:
            values = json.loads(text)
            at = values
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = numbers[i]
            path.write_text(json.dumps(values))
            with contextlib.suppress(sd.ConvertError):
                convert(folder, tmp_path / "m.gguf", "f32")
                sd.Generator(tmp_path / "m.gguf", n_ctx=32, threads=1, draft=None).close()
                used += 1
    assert used >= 10


def test_a_scale_of_mxfp4_that_is_no_number(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf", "gpt-oss")

    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.experts.down_proj_scales"][1, 2, 0] = 255

    edit_tensors(folder, change)
    for dtype in ("f32", "bf16"):
        with pytest.raises(sd.ConvertError, match=r"down_proj_scales' holds 255"):
            convert(folder, tmp_path / "out.gguf", dtype)


def test_shards_and_their_index(tmp_path: Path) -> None:
    oracle = read_oracle("llama")
    whole = write_checkpoint(oracle, tmp_path / "whole")
    convert(whole, tmp_path / "whole.gguf", "f32")
    folder = write_checkpoint(oracle, tmp_path / "hf", shards=3)
    convert(folder, tmp_path / "out.gguf", "f32")
    assert_same(tmp_path / "whole.gguf", tmp_path / "out.gguf")
    second = folder / "model-00002-of-00003.safetensors"
    index = folder / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    index.unlink()
    convert(folder, tmp_path / "out.gguf", "f32")
    data = second.read_bytes()
    second.unlink()
    with pytest.raises(sd.ConvertError, match=r"model-00002-of-00003.safetensors is missing"):
        convert(folder, tmp_path / "out.gguf")
    index.write_text(json.dumps(values))
    with pytest.raises(sd.ConvertError, match=r"00002-of-00003.safetensors: this file is missing"):
        convert(folder, tmp_path / "out.gguf")
    second.write_bytes(data[: len(data) // 2])
    with pytest.raises(sd.ConvertError, match=r"00002-of-00003.safetensors: damaged"):
        convert(folder, tmp_path / "out.gguf")
    second.write_bytes(data)
    moved = {**values["weight_map"], "model.norm.weight": second.name}
    if values["weight_map"]["model.norm.weight"] == second.name:
        moved["model.norm.weight"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(sd.ConvertError, match=r"tensor 'model.norm.weight' is missing, which"):
        convert(folder, tmp_path / "out.gguf")
    del moved["model.norm.weight"]
    index.write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(sd.ConvertError, match=r"'weight_map' has None for 'model.norm.weight'"):
        convert(folder, tmp_path / "out.gguf")
    index.write_text(json.dumps({"weight_map": {"a": "x" * 300}}))
    with pytest.raises(
        sd.ConvertError, match=r"x: this file is missing; .* says that it holds 'a'"
    ):
        convert(folder, tmp_path / "out.gguf")
    index.write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    with pytest.raises(sd.ConvertError, match=r"key 'weight_map' is no object"):
        convert(folder, tmp_path / "out.gguf")


def test_damaged_safetensors(tmp_path: Path) -> None:
    """Every cut, and headers that lie, give an error that names the file."""
    folder = checkpoint(tmp_path / "hf")
    path = folder / WEIGHTS
    data = path.read_bytes()
    for cut in (0, 7, 8, 100, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(sd.ConvertError, match=r"model.safetensors: damaged"):
            convert(folder, tmp_path / "out.gguf")
    for entry in (
        {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]},
        {"dtype": "F8_E5M2", "shape": [8], "data_offsets": [0, 8]},
        7,
    ):
        header = json.dumps({"x": entry}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(sd.ConvertError, match=r"model.safetensors: (damaged|tensor 'x')"):
            convert(folder, tmp_path / "out.gguf")
