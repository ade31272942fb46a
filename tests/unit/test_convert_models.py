"""Whole checkpoints to GGUF files: names, types, layouts, faults. Logits: e2e/test_oracles.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file

import specdec_native as sd
from oracle_checkpoint import names_of, read_oracle, write_tensors
from oracle_tokenizers import write_tokenizer
from specdec_native import _core
from specdec_native.convert.fp8 import E4M3
from specdec_native.convert.size_label import size_label
from specdec_native.convert.tensors import TensorPlan
from support.checkpoints import (
    WEIGHTS,
    assert_same,
    checkpoint,
    convert,
    edit_tensors,
    metadata_of,
    tensors_of,
    types_of,
)


@pytest.mark.parametrize("name", names_of())
def test_names_are_those_of_the_gguf_package(tmp_path: Path, name: str) -> None:
    """Of all tensors of the text model that keep their shape; the package has its own table."""
    oracle = read_oracle(name)
    convert(checkpoint(tmp_path / "hf", name), tmp_path / "out.gguf", "f32")
    metadata = metadata_of(tmp_path / "out.gguf")
    architecture = metadata["general.architecture"]
    number = next(one for one, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    table = gguf.get_tensor_name_map(number, metadata[f"{architecture}.block_count"])
    written = types_of(tmp_path / "out.gguf").keys()
    for old in oracle.tensors:
        plain = old.removeprefix("language_model.")
        if "experts" in plain or not plain.startswith(("model.", "lm_head")):
            continue
        new = table.get_name(plain + (".weight" if "sinks" in plain else ""), (".weight", ".bias"))
        assert new in written or (new == "output.weight" and oracle.config["tie_word_embeddings"])
    assert metadata["tokenizer.ggml.tokens"][0]
    assert len(metadata["tokenizer.ggml.tokens"]) == metadata[f"{architecture}.vocab_size"]


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "qwen3moe"])
def test_the_size_label_is_that_of_the_gguf_package(tmp_path: Path, name: str) -> None:
    convert(checkpoint(tmp_path / "hf", name), tmp_path / "out.gguf", "f16")
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "llama")
    for tensor in GGUFReader(tmp_path / "out.gguf").tensors:
        shape = [int(one) for one in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4)
    expected = gguf.size_label(*writer.get_total_parameter_count())
    writer.close()
    assert metadata_of(tmp_path / "out.gguf")["general.size_label"] == expected


@pytest.mark.parametrize("number", [999, 1500, 99_999, 135_000_000, 1_234_567_890, 47 * 10**9])
def test_size_labels_of_large_models(number: int) -> None:
    plan = TensorPlan("x", (number,), lambda first, count: np.zeros(0))
    assert size_label([plan]) == gguf.size_label(number, number, 0, 0)


@pytest.mark.parametrize("dtype", ["bf16", "q8_0", "q4_0", "q4_k_m", "q2_k", "q6_k"])
def test_types_are_those_of_quantize(tmp_path: Path, dtype: str) -> None:
    """R49: rows of 64 or 96 values, which K blocks do not divide, fall back and are named."""
    folder = checkpoint(tmp_path / "hf")
    convert(folder, tmp_path / "f32.gguf", "f32")
    result = convert(folder, tmp_path / "out.gguf", dtype)
    sd.quantize(tmp_path / "f32.gguf", tmp_path / "other.gguf", dtype, progress=False)
    mine, theirs = (GGUFReader(tmp_path / one).tensors for one in ("out.gguf", "other.gguf"))
    assert [one.name for one in mine] == [one.name for one in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one.tensor_type == other.tensor_type, one.name
        assert np.array_equal(one.data, other.data), one.name
    types = types_of(tmp_path / "out.gguf")
    whole = {"q4_0": ["output.weight"]}.get(dtype, [])  # Q6_K in the recipe
    if dtype.endswith(("_k", "_k_m")):
        whole = [name for name, kind in types.items() if kind != "F32"]
    assert result.fallbacks == {name: types[name] for name in whole}
    file_types = [
        metadata_of(tmp_path / one)["general.file_type"] for one in ("out.gguf", "other.gguf")
    ]
    assert file_types[0] == file_types[1]


def test_bf16_is_copied_bit_by_bit(tmp_path: Path) -> None:
    """R49."""
    folder = checkpoint(tmp_path / "hf", "qwen2")
    odd = np.array([0x0001, 0x8080, 0x7F7F, 0xFF7F, 0x47C3], np.uint16).view(ml_dtypes.bfloat16)

    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"][0, :5] = odd

    edit_tensors(folder, change)
    convert(folder, tmp_path / "out.gguf", "bf16")
    (found,) = (
        t for t in GGUFReader(tmp_path / "out.gguf").tensors if t.name == "blk.0.ffn_up.weight"
    )
    expected = load_file(folder / WEIGHTS)["model.layers.0.mlp.up_proj.weight"]
    assert np.array_equal(found.data.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize(("dtype", "value"), [("f16", 1e5), ("q8_0", np.nan), ("bf16", np.inf)])
def test_values_that_a_type_cannot_hold(tmp_path: Path, dtype: str, value: float) -> None:
    """R49: no infinity is written, and nothing is left of the file."""
    folder = checkpoint(tmp_path / "hf", "qwen2")

    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value

    edit_tensors(folder, change)
    (tmp_path / "out").mkdir()
    with pytest.raises(sd.ConvertError, match=r"'blk.1.ffn_up.weight': value 5 of row 3 is"):
        convert(folder, tmp_path / "out" / "m.gguf", dtype)
    assert list((tmp_path / "out").iterdir()) == []


def test_mxfp4_experts_keep_their_blocks(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf", "gpt-oss")
    convert(folder, tmp_path / "f32.gguf", "f32")
    plain = tensors_of(tmp_path / "f32.gguf")
    for dtype, file_type in (("bf16", 38), ("q8_0", 7)):
        result = convert(folder, tmp_path / "out.gguf", dtype)
        assert result.fallbacks == {}
        assert metadata_of(tmp_path / "out.gguf")["general.file_type"] == file_type
        packed, types = tensors_of(tmp_path / "out.gguf"), types_of(tmp_path / "out.gguf")
        for part in ("gate", "up", "down"):
            name = f"blk.1.ffn_{part}_exps.weight"
            assert types[name] == "MXFP4"
            assert np.array_equal(packed[name], plain[name])
            assert types[f"blk.1.ffn_{part}_exps.bias"] == "F32"


def test_experts_in_other_layouts(tmp_path: Path) -> None:
    """Stacks of gate over up (Qwen); gate and up in turn, transposed (gpt-oss without MXFP4)."""
    folder = checkpoint(tmp_path / "qwen", "qwen3moe")
    convert(folder, tmp_path / "one.gguf", "f32")

    def fuse(tensors: dict[str, Any]) -> None:
        for layer in range(2):
            name = f"model.layers.{layer}.mlp.experts."
            parts: dict[str, list[Any]] = {"gate": [], "up": [], "down": []}
            for expert in range(6):
                for part, listed in parts.items():
                    listed.append(tensors.pop(f"{name}{expert}.{part}_proj.weight"))
            both = [np.concatenate(pair) for pair in zip(parts["gate"], parts["up"], strict=True)]
            tensors[f"{name}gate_up_proj"] = np.stack(both)
            tensors[f"{name}down_proj"] = np.stack(parts["down"])

    edit_tensors(folder, fuse)
    convert(folder, tmp_path / "two.gguf", "f32")
    assert_same(tmp_path / "one.gguf", tmp_path / "two.gguf")

    folder = checkpoint(tmp_path / "oss", "gpt-oss")
    convert(folder, tmp_path / "one.gguf", "f32")
    plain = tensors_of(tmp_path / "one.gguf")

    def unpack(tensors: dict[str, Any]) -> None:
        for layer in range(2):
            name = f"model.layers.{layer}.mlp.experts."
            for part in ("gate_up", "down"):
                del tensors[f"{name}{part}_proj_blocks"], tensors[f"{name}{part}_proj_scales"]
            gate, up, down = (
                plain[f"blk.{layer}.ffn_{part}_exps.weight"].swapaxes(1, 2)
                for part in ("gate", "up", "down")
            )
            both = np.stack([gate, up], axis=-1).reshape(*gate.shape[:2], -1)
            tensors[f"{name}gate_up_proj"] = both
            tensors[f"{name}down_proj"] = np.ascontiguousarray(down)

    edit_tensors(folder, unpack)
    convert(folder, tmp_path / "two.gguf", "f32")
    assert_same(tmp_path / "one.gguf", tmp_path / "two.gguf")


@pytest.mark.parametrize("block", [None, [32, 16]])
def test_weights_of_8_bit_floats(tmp_path: Path, block: list[int] | None) -> None:
    """Scaled as a whole or by blocks, of which the last ones of a matrix may be cut."""
    quantization = {"quant_method": "fp8", "weight_block_size": block}
    folder = checkpoint(tmp_path / "hf", "llama", quantization_config=quantization)
    expected = {}

    def pack(tensors: dict[str, Any]) -> None:
        rng = np.random.default_rng(3)
        for name in [one for one in tensors if "proj" in one]:
            weight = tensors[name].astype(ml_dtypes.float8_e4m3fn)
            shape = (
                (1,)
                if block is None
                else tuple(-(-n // b) for n, b in zip(weight.shape, block, strict=True))
            )
            scales = rng.uniform(0.5, 2.0, shape).astype(np.float32)
            wide = scales if block is None else np.kron(scales, np.ones(block, np.float32))
            expected[name] = weight.astype(np.float32) * (
                wide if block is None else wide[: weight.shape[0], : weight.shape[1]]
            )
            tensors[name] = weight
            tensors[f"{name}_scale_inv"] = scales
            tensors[name.replace("weight", "activation_scale")] = np.ones((), np.float32)

    edit_tensors(folder, pack)
    convert(folder, tmp_path / "out.gguf", "f32")
    found = tensors_of(tmp_path / "out.gguf")
    for part in ("down", "up", "gate"):
        old, new = f"model.layers.1.mlp.{part}_proj.weight", f"blk.1.ffn_{part}.weight"
        assert np.array_equal(found[new], expected[old])
    keys = expected["model.layers.0.self_attn.k_proj.weight"].reshape(2, 2, 8, 64)
    assert np.array_equal(found["blk.0.attn_k.weight"], keys.swapaxes(1, 2).reshape(32, 64))


def test_every_8_bit_float() -> None:
    expected = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(E4M3, expected, equal_nan=True)


def test_both_ways_of_naming_the_text_model(tmp_path: Path) -> None:
    """`language_model.model.` in published files, `model.language_model.` in newer ones."""
    folder = checkpoint(tmp_path / "hf", "mistral3")
    convert(folder, tmp_path / "one.gguf", "f32")

    def rename(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            new = name.replace("language_model.model.", "model.language_model.")
            new = new.replace("language_model.lm_head", "lm_head")
            new = f"model.{new}" if new.startswith(("vision", "multi")) else new
            tensors[new] = tensors.pop(name)

    edit_tensors(folder, rename)
    convert(folder, tmp_path / "two.gguf", "f32")
    assert_same(tmp_path / "one.gguf", tmp_path / "two.gguf")


def test_both_layouts_of_rope_settings(tmp_path: Path) -> None:
    """`rope_scaling` beside `rope_theta`, and `rope_parameters`, of one kind of layer or two."""
    old = checkpoint(tmp_path / "old", "gemma3")
    convert(old, tmp_path / "old.gguf", "f32")
    new = checkpoint(
        tmp_path / "new",
        "gemma3",
        rope_scaling="gone",
        rope_theta="gone",
        rope_local_base_freq="gone",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    convert(new, tmp_path / "new.gguf", "f32")
    expected, found = (
        {key: value for key, value in metadata_of(tmp_path / one).items() if "rope" in key}
        for one in ("old.gguf", "new.gguf")
    )
    assert expected == found
    assert found["gemma3.rope.freq_base"] == 1e6
    assert found["gemma3.rope.freq_base_swa"] == 1e4
    assert found["gemma3.rope.scaling.factor"] == 8.0


def test_yarn_magnitudes(tmp_path: Path) -> None:
    """What a loader multiplies with, 1 + 0.1 log(factor), times the attention factor."""
    natural = 1 + 0.1 * np.log(4.0)
    for given, expected in (
        ({}, None),
        ({"attention_factor": 1.0}, 1 / natural),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (1 + 0.2 * np.log(4.0)) / natural**2),
    ):
        yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, **given}
        folder = checkpoint(tmp_path / "hf", rope_scaling=yarn)
        convert(folder, tmp_path / "out.gguf", "f32")
        found = metadata_of(tmp_path / "out.gguf").get("llama.rope.scaling.attn_factor")
        assert found is None if expected is None else np.isclose(found, expected)


def test_tied_output(tmp_path: Path) -> None:
    """R30: a head that is said to be the embedding is left out; one that is missing is named."""
    folder = checkpoint(tmp_path / "hf", tie_word_embeddings=True)
    convert(folder, tmp_path / "out.gguf", "f32")
    assert "output.weight" not in types_of(tmp_path / "out.gguf")
    folder = checkpoint(tmp_path / "hf", tie_word_embeddings="gone")
    convert(folder, tmp_path / "out.gguf", "f32")
    assert "output.weight" in types_of(tmp_path / "out.gguf")
    edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    convert(folder, tmp_path / "out.gguf", "f32")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(sd.ConvertError, match=r"'lm_head.weight' is missing, and config.json"):
        convert(folder, tmp_path / "out.gguf", "f32")


SPLIT_KEYS = ("no", "count", "tensors.count")


def test_split_files(tmp_path: Path) -> None:
    """R32: the parts are numbered as llama.cpp's are, from 1 in names and from 0 in keys."""
    folder = checkpoint(tmp_path / "hf")
    convert(folder, tmp_path / "whole.gguf", "f32")
    result = convert(folder, tmp_path / "m.gguf", "f32", split_size="100K")
    count = len(result.files)
    assert count > 1
    assert [one.name for one in result.files] == [
        f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)
    ]
    assert result.path == result.files[0]
    assert max(one.stat().st_size for one in result.files) <= 100_000
    assert result.bytes == sum(one.stat().st_size for one in result.files)
    merged: dict[str, Any] = {}
    for i, path in enumerate(result.files):
        metadata = metadata_of(path)
        assert (metadata["split.no"], metadata["split.count"]) == (i, count)
        assert metadata["split.tensors.count"] == result.tensors
        kinds = [GGUFReader(path).fields[f"split.{key}"].types for key in SPLIT_KEYS]
        assert [one.name for (one,) in kinds] == ["UINT16", "UINT16", "INT32"]  # or it is refused
        assert ("general.architecture" in metadata) == (i == 0)
        merged |= tensors_of(path)
    whole = tensors_of(tmp_path / "whole.gguf")
    assert list(merged) == list(whole)
    assert all(np.array_equal(merged[name], values) for name, values in whole.items())
    opened = _core.GgufFile(result.files[1])  # any part opens the set
    assert [one.name for one in opened.tensors] == list(whole)
    assert np.array_equal(opened.dequantize("output.weight"), whole["output.weight"])
    assert convert(folder, tmp_path / "m.gguf", split_size="1G").files == (tmp_path / "m.gguf",)
    for size in ("", "0", "x", "-1", "1.5G"):
        with pytest.raises(ValueError, match="split size is"):
            convert(folder, tmp_path / "m.gguf", split_size=size)


def test_a_failure_leaves_no_part_of_a_split_model(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf")
    (tmp_path / "out").mkdir()

    def stop(fraction: float, _: str) -> None:
        if fraction > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sd.convert(folder, tmp_path / "out" / "m.gguf", "f32", split_size=80_000, progress=stop)
    assert list((tmp_path / "out").iterdir()) == []


MEMORY_PROBE = """
import resource, sys
import specdec_native as sd
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sd.convert(sys.argv[1], sys.argv[2], "bf16", progress=False)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in Linux's unit")
def test_memory_does_not_grow_with_a_tensor(tmp_path: Path) -> None:
    """Two tensors of 128 MiB, and less than that in memory besides what the package takes."""
    rows, width = 65536, 1024
    oracle = read_oracle("llama")
    folder = tmp_path / "hf"
    folder.mkdir()
    layer = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = {**oracle.config, **layer, "vocab_size": rows, "hidden_size": width, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, "llama-spm", 288)
    shapes = {
        name: tuple({288: rows, 64: width, 96: 64}.get(one, one) for one in shape)
        for name, shape in oracle.tensors.items()
        if ".1." not in name
    }
    for name in shapes:
        if "q_proj" in name or "k_proj" in name or "v_proj" in name:
            shapes[name] = (64 if "q_proj" in name else 32, width)
        elif "o_proj" in name:
            shapes[name] = (width, 64)
    write_tensors(
        folder, {name: np.ones(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()}
    )
    command = (sys.executable, "-c", MEMORY_PROBE, str(folder), str(tmp_path / "out.gguf"))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (tmp_path / "out.gguf").stat().st_size > 256 << 20
    assert int(done.stdout) < 120
