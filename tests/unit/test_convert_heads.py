"""From public checkpoints of drafting heads to GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValue, GGUFValueType, dequantize
from safetensors.numpy import load_file, save_file

import specdec_native as sd
from gguf_edit import read_metadata, read_tensors, write_gguf
from hf_from_gguf import write_hf_checkpoint
from make_tiny_heads import make_eagle3, make_medusa
from specdec_native import _core
from support.engine import load

MEDUSA_FILE, EAGLE_FILE = "medusa_lm_head.safetensors", "model.safetensors"


def convert(*args: Any, **fields: Any) -> sd.ConvertResult:
    return sd.convert(*args, progress=False, **fields)


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    reader = GGUFReader(path)
    return {
        t.name: t.data if t.tensor_type.name == "I64" else dequantize(t.data, t.tensor_type)
        for t in reader.tensors
    }


def metadata_of(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in GGUFReader(path).fields.items()}


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def edit_tensors(folder: Path, file: str, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shared", [False, True])
def test_medusa_heads(tmp_path: Path, dtype: str, shared: bool) -> None:
    folder = make_medusa(tmp_path / "heads", layers=2, heads=2, dtype=dtype, shared=shared)
    result = convert(folder, tmp_path / "out.gguf", "f32")
    assert (result.kind, result.type) == ("medusa", "f32")
    assert result.bytes == (tmp_path / "out.gguf").stat().st_size
    source = load_file(folder / MEDUSA_FILE)
    expected = {}
    for i in range(2):
        for j in range(2):
            for part in ("weight", "bias"):
                expected[f"head.{i}.blk.{j}.{part}"] = source[f"{i}.{j}.linear.{part}"]
        if not shared:
            expected[f"head.{i}.output.weight"] = source[f"{i}.2.weight"]
    found = tensors_of(tmp_path / "out.gguf")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(found[name], values.astype(np.float32)), name
    metadata = metadata_of(tmp_path / "out.gguf")
    assert metadata["general.architecture"] == "medusa"
    assert metadata["medusa.head_count"] == metadata["medusa.block_count"] == 2
    assert metadata["medusa.embedding_length"] == 64
    assert metadata["medusa.base_model"] == "tiny"


@pytest.mark.parametrize("layout", ["midlayer", "speculators"])
def test_eagle3_head(tmp_path: Path, tiny_model: Path, layout: str) -> None:
    folder = make_eagle3(tmp_path / "heads", layout=layout, dtype="bfloat16", own_embedding=True)
    convert(folder, tmp_path / "out.gguf", "f32", target=tiny_model)
    source = {
        name.removeprefix("midlayer.").removeprefix("layers.0."): values
        for name, values in load_file(folder / EAGLE_FILE).items()
    }
    found = tensors_of(tmp_path / "out.gguf")
    assert found["fc.weight"].shape == (64, 192)
    for new, old in (
        ("blk.0.attn_norm.weight", "input_layernorm.weight"),
        ("blk.0.attn_norm_2.weight", "hidden_norm.weight"),
        ("blk.0.attn_v.weight", "self_attn.v_proj.weight"),
        ("blk.0.ffn_norm.weight", "post_attention_layernorm.weight"),
        ("blk.0.ffn_down.weight", "mlp.down_proj.weight"),
        ("output_norm.weight", "norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("token_embd.weight", "embed_tokens.weight"),
    ):
        assert np.array_equal(found[new], source[old].astype(np.float32)), new
    # Element i of a head's first half becomes element 2 i.
    query, rows = source["self_attn.q_proj.weight"].astype(np.float32), found["blk.0.attn_q.weight"]
    assert np.array_equal(rows[16 + 6], query[16 + 3])
    assert np.array_equal(rows[16 + 7], query[16 + 11])
    assert np.array_equal(found["d2t"], source["d2t"] + np.arange(120))
    assert "t2d" not in found
    metadata = metadata_of(tmp_path / "out.gguf")
    assert metadata["general.architecture"] == "eagle3"
    assert metadata["eagle3.extract_layers"] == metadata["eagle3.target_layers"] == [2, 2, 1]
    assert metadata["eagle3.block_count"] == 1
    assert metadata["eagle3.target_hidden_size"] == 64
    assert metadata["eagle3.norm_before_residual"] is False
    assert metadata["tokenizer.ggml.tokens"] == metadata_of(tiny_model)["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [([1, 2, 3], [2, 3, 4]), ([2, 3, 4], [2, 3, 4]), ([0, 4], [0, 4]), (None, [2, 2, 1])],
)
def test_both_ways_of_naming_layers(
    tmp_path: Path, tiny_model: Path, given: list[int] | None, expected: list[int]
) -> None:
    folder = make_eagle3(tmp_path / "heads", states=given)
    convert(folder, tmp_path / "out.gguf", target=tiny_model)
    assert metadata_of(tmp_path / "out.gguf")["eagle3.extract_layers"] == expected


def test_the_target_may_be_a_checkpoint(tmp_path: Path, tiny_model: Path) -> None:
    target = write_hf_checkpoint(tiny_model, tmp_path / "target")
    folder = make_eagle3(tmp_path / "heads")
    convert(folder, tmp_path / "one.gguf", target=tiny_model)
    convert(folder, tmp_path / "two.gguf", target=target)
    one, two = (metadata_of(tmp_path / name) for name in ("one.gguf", "two.gguf"))
    for key in ("eagle3.extract_layers", "eagle3.vocab_size", "tokenizer.ggml.tokens"):
        assert one[key] == two[key]


def test_types(tmp_path: Path, tiny_model: Path) -> None:
    folder = make_medusa(tmp_path / "heads", width=80)  # no multiple of 32
    for name in ("f16", "bf16", "q8_0", "q4_0"):
        convert(folder, tmp_path / "out.gguf", name)
        stored = {t.name: t.tensor_type.name for t in GGUFReader(tmp_path / "out.gguf").tensors}
        assert stored["head.0.blk.0.bias"] == "F32"
        assert stored["head.0.output.weight"] == ("F16" if name[0] == "q" else name.upper())
    convert(make_eagle3(tmp_path / "eagle"), tmp_path / "out.gguf", "q4_0", target=tiny_model)
    stored = {t.name: t.tensor_type.name for t in GGUFReader(tmp_path / "out.gguf").tensors}
    assert (stored["fc.weight"], stored["d2t"], stored["output_norm.weight"]) == (
        *("Q4_0", "I64"),
        "F32",
    )
    with pytest.raises(ValueError, match="type is 'q9'"):
        convert(folder, tmp_path / "out.gguf", "q9")


def rename(old: str, new: str | None) -> Callable[[dict[str, np.ndarray]], None]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        value = tensors.pop(old)
        if new is not None:
            tensors[new] = value

    return change


def replace(name: str, values: np.ndarray) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.__setitem__(name, values)


F32 = np.float32
MEDUSA_DAMAGE: list[tuple[dict[str, Any], Any, str]] = [
    ({"medusa_num_heads": "three"}, None, r"config.json: key 'medusa_num_heads' is 'three'"),
    ({"medusa_num_heads": 4}, None, r"tensor '3.1.weight' is missing"),
    ({"medusa_num_heads": 2}, None, r"'2.0.linear.bias' belongs to no head"),
    ({"medusa_num_layers": 2}, None, r"tensor '0.1.linear.weight' is missing"),
    ({}, rename("1.0.linear.bias", None), r"tensor '1.0.linear.bias' is missing"),
    ({}, rename("2.1.weight", None), r"tensor '2.1.weight' is missing"),
    ({}, replace("1.1.weight", np.zeros((9, 64), F32)), r"'1.1.weight' has shape \[9, 64\]"),
    ({}, replace("0.0.linear.bias", np.full(64, np.nan, F32)), r"bias': value 0 of row 0 is nan"),
]


@pytest.mark.parametrize(("config", "tensors", "message"), MEDUSA_DAMAGE)
def test_damaged_medusa_checkpoints_leave_no_file(
    tmp_path: Path, config: dict[str, Any], tensors: Any, message: str
) -> None:
    folder = make_medusa(tmp_path / "heads")
    edit_config(folder, **config)
    if tensors is not None:
        edit_tensors(folder, MEDUSA_FILE, tensors)
    out = tmp_path / "out" / "heads.gguf"
    out.parent.mkdir()
    out.write_text("old")
    with pytest.raises(sd.ConvertError, match=message) as caught:
        convert(folder, out)
    assert isinstance(caught.value, ValueError)
    assert [(one.name, one.read_text()) for one in out.parent.iterdir()] == [("heads.gguf", "old")]


EAGLE_DAMAGE: list[tuple[dict[str, Any], Any, str]] = [
    ({"hidden_size": None}, None, r"config.json: key 'hidden_size' is missing"),
    ({"num_hidden_layers": 2}, None, r"'num_hidden_layers' is 2, expected 1"),
    ({"num_key_value_heads": 3}, None, r"'num_attention_heads' \(4\) is no multiple"),
    ({"target_hidden_size": 32}, None, r"target of width 32, but .* has 64"),
    ({"eagle_aux_hidden_state_layer_ids": [2, 9]}, None, r"\[2, 9\], but .* has 4 layers"),
    ({"rope_scaling": {"rope_type": "yarn"}}, None, r"rope scaling 'yarn' is not supported"),
    ({"rms_norm_eps": "x"}, None, r"key 'rms_norm_eps' is 'x'"),
    ({}, rename("midlayer.hidden_norm.weight", None), r"'midlayer.hidden_norm.weight' is missing"),
    ({}, rename("fc.weight", None), r"'fc.weight' is missing"),
    ({}, rename("norm.weight", "final.weight"), r"'final.weight' is not part of an EAGLE-3 head"),
    ({}, replace("fc.weight", np.zeros((64, 64), F32)), r"'fc.weight' has shape \[64, 64\]"),
    ({}, replace("d2t", np.full(120, 299)), r"'d2t' names tokens outside of the 300"),
    ({}, replace("d2t", -np.arange(120)), r"'d2t' names a token twice"),
]


@pytest.mark.parametrize(("config", "tensors", "message"), EAGLE_DAMAGE)
def test_damaged_eagle3_checkpoints(
    tmp_path: Path, tiny_model: Path, config: dict[str, Any], tensors: Any, message: str
) -> None:
    folder = make_eagle3(tmp_path / "heads")
    edit_config(folder, **config)
    if tensors is not None:
        edit_tensors(folder, EAGLE_FILE, tensors)
    with pytest.raises(sd.ConvertError, match=message):
        convert(folder, tmp_path / "out.gguf", target=tiny_model)
    assert not (tmp_path / "out.gguf").exists()


def test_folders_that_are_no_checkpoints_of_heads(tmp_path: Path, tiny_model: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "nowhere", out)
    folder = make_medusa(tmp_path / "heads")
    (folder / MEDUSA_FILE).rename(folder / "medusa_lm_head.pt")
    with pytest.raises(sd.ConvertError, match=r"medusa_lm_head.pt is a pickle.*save_file"):
        convert(folder, out)
    (folder / "medusa_lm_head.pt").unlink()
    with pytest.raises(sd.ConvertError, match="no safetensors file"):
        convert(folder, out)
    (folder / MEDUSA_FILE).write_bytes(b"12345678" * 9)
    with pytest.raises(sd.ConvertError, match=r"medusa_lm_head.safetensors: damaged"):
        convert(folder, out)
    (folder / "config.json").write_text("{")
    with pytest.raises(sd.ConvertError, match=r"config.json: no valid JSON"):
        convert(folder, out)
    with pytest.raises(sd.ConvertError, match=r"give the target's GGUF file \(--target\)"):
        convert(make_eagle3(tmp_path / "eagle"), out)
    other = make_medusa(tmp_path / "other", width=32)
    with pytest.raises(sd.ConvertError, match=r"target of width 32, but .* has 64"):
        convert(other, out, target=tiny_model)
    edit_config(other, medusa_num_heads=None)
    with pytest.raises(sd.ConvertError, match=r"'architectures' is missing.*Medusa heads"):
        convert(other, out)
    with pytest.raises(sd.OutputError, match="there is no folder"):
        convert(make_medusa(tmp_path / "fine"), tmp_path / "no" / "folder.gguf")


def test_heads_are_no_model(tmp_path: Path, tiny_model: Path) -> None:
    convert(make_eagle3(tmp_path / "eagle"), tmp_path / "eagle.gguf", target=tiny_model)
    with pytest.raises(sd.GgufError, match=r"drafting heads .*eagle:PATH"):
        sd.Generator(tmp_path / "eagle.gguf", progress=False)
    convert(make_medusa(tmp_path / "medusa"), tmp_path / "medusa.gguf")
    with pytest.raises(sd.GgufError, match=r"drafting heads .*medusa:PATH"):
        sd.Generator(tiny_model, draft=tmp_path / "medusa.gguf", progress=False)


def edited_gguf(
    source: Path, out: Path, metadata: dict[str, Any], tensors: Callable[[list[Any]], None]
) -> Path:
    reader = GGUFReader(source)
    values = read_metadata(reader)
    for key, value in metadata.items():
        if value is None:
            del values[key]
        elif isinstance(value, GGUFValue):
            values[key] = value
        else:
            values[key].value = value
    listed = read_tensors(reader)
    tensors(listed)
    return write_gguf(out, values, listed)


def with_ids(ids: np.ndarray) -> Callable[[list[Any]], None]:
    def change(tensors: list[Any]) -> None:
        (d2t,) = (one for one in tensors if one.name == "d2t")
        d2t.data = ids

    return change


def without(name: str) -> Callable[[list[Any]], None]:
    return lambda tensors: tensors.remove(next(one for one in tensors if one.name == name))


def unchanged(tensors: list[Any]) -> None:
    """Leaves them."""


IDS = np.arange(120, dtype=np.int64)
EAGLE_FILES: list[tuple[dict[str, Any], Any, str]] = [
    ({}, with_ids(IDS + 200), "names token 300, which is not one of the target's 300; "),
    ({}, with_ids(IDS - 1), "names token -1"),
    ({}, with_ids(IDS // 2), "names token 0, which is there already"),
    ({}, with_ids(IDS[:50]), "names 50 tokens, but the head scores 120"),
    ({}, with_ids(IDS.reshape(2, 60)), "I64 and 2 dimensions"),
    ({}, without("d2t"), "scores 120 tokens without saying which"),
    ({}, without("fc.weight"), "'fc.weight' is missing"),
    ({}, without("blk.0.attn_norm_2.weight"), "'blk.0.attn_norm_2.weight' is missing"),
    (
        {"eagle3.extract_layers": None, "eagle3.target_layers": None},
        unchanged,
        "key eagle3.extract_layers is missing",
    ),
    ({"eagle3.extract_layers": [2, 3]}, unchanged, "'fc.weight' has shape"),
    ({"eagle3.extract_layers": [2, 3, 5]}, unchanged, "before layer 5, but the target has 4"),
    # Current converters of llama.cpp have another name for it.
    (
        {
            "eagle3.extract_layers": None,
            "eagle3.target_layers": GGUFValue([2, 3, 5], GGUFValueType.ARRAY, GGUFValueType.INT32),
        },
        unchanged,
        "before layer 5, but the target has 4",
    ),
    (
        {"eagle3.norm_before_fc": GGUFValue(True, GGUFValueType.BOOL)},
        unchanged,
        "norm_before_fc is 1, which this library does",
    ),
    ({"eagle3.block_count": 2}, unchanged, "an EAGLE-3 head has one layer"),
    ({"eagle3.target_hidden_size": 32}, unchanged, "target of width 32, but this one has 64"),
]


@pytest.mark.parametrize(("metadata", "tensors", "message"), EAGLE_FILES)
def test_damaged_eagle3_files_are_refused(
    tmp_path: Path, tiny_model: Path, metadata: dict[str, Any], tensors: Any, message: str
) -> None:
    convert(make_eagle3(tmp_path / "heads"), tmp_path / "good.gguf", target=tiny_model)
    target = load(tiny_model)
    assert _core.EagleHead.load(str(tmp_path / "good.gguf"), target).states == [2, 2, 1]
    bad = edited_gguf(tmp_path / "good.gguf", tmp_path / "bad.gguf", metadata, tensors)
    with pytest.raises((sd.GgufError, sd.IncompatibleModelsError), match=message):
        _core.EagleHead.load(str(bad), target)


def test_damaged_medusa_files_are_refused(tmp_path: Path, tiny_model: Path) -> None:
    convert(make_medusa(tmp_path / "heads"), tmp_path / "good.gguf")
    target = load(tiny_model)
    cases: list[tuple[dict[str, Any], Any, str]] = [
        ({"medusa.head_count": 0}, unchanged, "head_count is 0"),
        ({"medusa.head_count": 4}, unchanged, "'head.3.blk.0.weight' is missing"),
        ({"medusa.head_count": 2}, unchanged, "'head.2.blk.0.weight' is not part of"),
        ({"medusa.block_count": 10**6}, unchanged, "medusa.block_count"),
        ({}, without("head.1.output.weight"), "'head.1.output.weight' is missing"),
        ({}, without("head.1.blk.0.bias"), "'head.1.blk.0.bias' is missing"),
    ]
    for metadata, tensors, message in cases:
        bad = edited_gguf(tmp_path / "good.gguf", tmp_path / "bad.gguf", metadata, tensors)
        with pytest.raises(sd.GgufError, match=message):
            _core.MedusaHeads.load(str(bad), target)


def test_memory_of_heads_is_estimated(tmp_path: Path, tiny_model: Path) -> None:
    convert(make_medusa(tmp_path / "a"), tmp_path / "medusa.gguf")
    convert(make_eagle3(tmp_path / "b"), tmp_path / "eagle.gguf", target=tiny_model)
    for draft in (
        sd.MedusaDraft(tmp_path / "medusa.gguf"),
        sd.EagleDraft(tmp_path / "eagle.gguf"),
    ):
        estimate = sd.estimate_memory(tiny_model, draft, 256)
        with sd.Generator(tiny_model, draft=draft, n_ctx=256, progress=False) as gen:
            actual = gen.memory()
        # Small tensors are padded; F16 weights stay in the mapped file.
        assert estimate["draft_weights"] > 0
        assert estimate["draft_cache"] == actual["draft_cache"]
