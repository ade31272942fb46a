"""Checkpoints that are incomplete or contradict themselves: errors that name file and key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_native as sd
from oracle_checkpoint import read_oracle, write_checkpoint
from support.checkpoints import WEIGHTS, assert_same, checkpoint, convert, edit_tensors


def pop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.pop(name)


def put(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: np.zeros(shape, np.float32)})


def whole_numbers(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: tensors[name].astype(np.int8)})


DAMAGE: list[tuple[str, dict[str, Any], Any, str]] = [
    ("llama", {"architectures": ["MambaForCausalLM"]}, None, r"'MambaForCausalLM'.*LlamaForCausal"),
    ("llama", {"architectures": "gone"}, None, r"key 'architectures' is None"),
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
    ("llama", {"partial_rotary_factor": 0.5}, None, r"key 'partial_rotary_factor' is not of this"),
    ("llama", {"attention_bias": True}, None, r"'model.layers.0.self_attn.q_proj.bias' is missing"),
    ("llama", {"attention_bias": "yes"}, None, r"key 'attention_bias' is 'yes', neither true"),
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
        r"key 'layer_types' is not that each",
    ),
    ("gemma3", {"sliding_window_pattern": 3}, None, r"key 'sliding_window_pattern' is not 6"),
    ("gemma3", {"use_bidirectional_attention": True}, None, r"is true: it generates no text"),
    ("smollm3", {"no_rope_layers": [1] * 4}, None, r"key 'no_rope_layers' is not that each fourth"),
    ("gpt-oss", {"swiglu_limit": 5.0}, None, r"key 'swiglu_limit' is not 7"),
    (
        "phi3-longrope",
        {"rope_scaling": {"type": "longrope"}},
        None,
        r"key 'long_factor' is no list",
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
