"""Tokenizer files of checkpoints: the vocabulary in the GGUF file gives the ids of the files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer

import specdec_native as sd
from hf_from_gguf import metadata_of, write_hf_tokenizer
from oracle_tokenizers import BYTE_LEVEL, KINDS, write_tokenizer
from specdec_native.convert.config import ConfigView
from specdec_native.convert.sentencepiece_model import read_sentencepiece
from specdec_native.convert.tokenizer_files import plan_tokenizer, sampling_keys
from specdec_native.text import Tokenizer, Vocabulary

VOCAB = 288
NAMED = {"name": "default", "template": "A"}
TEXTS = [
    "",
    "3333+777",
    "I'll",
    "\n\n  x",
    "a\u2029b",
    "the then  there's\tHE'S 12345 6",
    "\u00fc\u00df \u4f60\u597d \U0001f680 cafe\u0301",
    "foo <|im_end|> bar</s>",
]


def plan(folder: Path, config: dict[str, Any] | None = None, vocab: int = VOCAB) -> dict[str, Any]:
    view = ConfigView(folder / "config.json", config or {})
    return plan_tokenizer(folder, view, vocab, "llama")[0]


def tokenizer_of(keys: dict[str, Any]) -> Tokenizer:
    return Tokenizer(Vocabulary.from_metadata(keys))


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_byte_level_ids_are_those_of_the_files(tmp_path: Path, kind: str) -> None:
    """R24: digits, contractions, line ends and separators."""
    write_tokenizer(tmp_path, kind, VOCAB)
    keys = plan(tmp_path)
    assert keys["tokenizer.ggml.model"] == "gpt2"
    assert keys["tokenizer.ggml.pre"] == kind
    assert len(keys["tokenizer.ggml.tokens"]) == VOCAB
    assert keys["tokenizer.ggml.tokens"][-1] == f"[PAD{VOCAB - 1}]"
    expected, found = HfTokenizer.from_file(str(tmp_path / "tokenizer.json")), tokenizer_of(keys)
    for text in TEXTS:
        assert found.encode(text, parse_special=True) == expected.encode(text).ids, text


def test_unknown_pre_tokenizers_are_refused(tmp_path: Path) -> None:
    """R24: a guess would cut text differently without a sign of it."""
    write_tokenizer(tmp_path, "qwen2", VOCAB)

    def change(values: dict[str, Any]) -> None:
        values["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}+"

    edit(tmp_path / "tokenizer.json", change)
    with pytest.raises(sd.ConvertError, match=r"tokenizer.json: key 'pre_tokenizer' is of no kind"):
        plan(tmp_path)


def test_a_pre_tokenizer_has_its_familys_name(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "smollm", VOCAB)
    view = ConfigView(tmp_path / "config.json", {})
    keys, _ = plan_tokenizer(tmp_path, view, VOCAB, "starcoder2")
    assert keys["tokenizer.ggml.pre"] == "starcoder"


def test_old_files_have_merges_as_strings(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "gpt-2", VOCAB)
    expected = plan(tmp_path)["tokenizer.ggml.merges"]
    assert len(expected) == VOCAB - 4 - 256 - 1

    def change(values: dict[str, Any]) -> None:
        values["model"]["merges"] = [" ".join(pair) for pair in values["model"]["merges"]]

    edit(tmp_path / "tokenizer.json", change)
    assert plan(tmp_path)["tokenizer.ggml.merges"] == expected


def test_sentencepiece_files(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "gemma-spm", VOCAB)
    keys = plan(tmp_path)
    vocabulary = Vocabulary.from_metadata(keys)
    assert (vocabulary.kind, vocabulary.add_bos, vocabulary.add_space_prefix) == (
        *("llama", True),
        False,
    )
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.unknown_id) == (2, 1, 3)
    names = [one.name for one in vocabulary.types]
    assert names[:7] == [*["CONTROL"] * 3, "UNKNOWN", "USER_DEFINED", "CONTROL", "BYTE"]
    assert names[-1] == "UNUSED"
    model = read_sentencepiece(tmp_path / "tokenizer.model")
    assert [piece.text for piece in model.pieces] == vocabulary.tokens[: len(model.pieces)]
    assert not model.unigram


def test_pieces_of_a_tokenizer_json(tmp_path: Path) -> None:
    """Where only the JSON form is there, scores are made of the merges' order."""
    write_tokenizer(tmp_path, "llama-spm", VOCAB)
    pieces = plan(tmp_path)
    expected = tokenizer_of(pieces)
    tokens, size = pieces["tokenizer.ggml.tokens"], VOCAB - 4
    ranked = sorted(
        (-score, left + " " + right)
        for text, score in zip(tokens[:size], pieces["tokenizer.ggml.scores"], strict=False)
        for left, right in ((text[:i], text[i:]) for i in range(1, len(text)))
        if not text.startswith("<") and {left, right} <= set(tokens)
    )
    (tmp_path / "tokenizer.model").unlink()
    special = [{"id": i, "content": tokens[i], "special": True} for i in range(3)]
    model = {
        "type": "BPE",
        "byte_fallback": True,
        "unk_token": "<unk>",
        "vocab": {text: i for i, text in enumerate(tokens[:size])},
        "merges": [merge for _, merge in ranked],
    }
    steps = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    values = {
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "model": model,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    keys = plan(tmp_path)
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.tokens"] == tokens
    assert keys["tokenizer.ggml.add_space_prefix"] is True
    found = tokenizer_of(keys)
    for text in TEXTS[:-1]:
        assert found.encode(text) == expected.encode(text), text
    assert "specdec.tokenizer.space_prefix" not in keys
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
    changed = {**values, "normalizer": None, "pre_tokenizer": metaspace}
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    assert Vocabulary.from_metadata(plan(tmp_path)).space_prefix == "first"


def test_unigram_models_are_of_another_kind(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "llama-unigram", VOCAB)
    keys = plan(tmp_path)
    assert keys["tokenizer.ggml.model"] == "t5"
    assert keys["tokenizer.ggml.remove_extra_whitespaces"] is False
    for name in ("tokenizer.model", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["\u2581a", -1.5]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    keys = plan(tmp_path)
    assert keys["tokenizer.ggml.model"] == "t5"
    assert keys["tokenizer.ggml.scores"][1] == -1.5
    assert keys["tokenizer.ggml.token_type"][0] == 2


def test_special_tokens_and_ends(tmp_path: Path) -> None:
    """R18, R29: every end of generation_config.json counts; ids must be in the vocabulary."""
    write_tokenizer(tmp_path, "llama-bpe", VOCAB)
    generation = tmp_path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [5, 282], "temperature": 0.6, "top_k": 40}))
    keys = plan(tmp_path, {"bos_token_id": 7})
    tokens = keys["tokenizer.ggml.tokens"]
    assert tokens[keys["tokenizer.ggml.bos_token_id"]] == "<|begin_of_text|>"
    assert tokens[keys["tokenizer.ggml.eos_token_id"]] == "<|end_of_text|>"
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert keys["tokenizer.ggml.add_eos_token"] is False
    assert {5, 282, keys["tokenizer.ggml.eos_token_id"]} <= tokenizer_of(keys).eog_ids
    assert sampling_keys(tmp_path) == {"general.sampling.temp": 0.6, "general.sampling.top_k": 40}
    generation.write_text(json.dumps({"do_sample": False, "temperature": 0.6}))
    assert sampling_keys(tmp_path) == {}
    for key, value in {"temperature": -1, "top_p": 7, "min_p": "hot"}.items():
        generation.write_text(json.dumps({key: value}))
        with pytest.raises(sd.Error, match=rf"generation_config.json: key '{key}' is {value!r}"):
            sampling_keys(tmp_path)
    generation.unlink()
    edit(tmp_path / "tokenizer_config.json", lambda values: values.update(bos_token=None))
    assert plan(tmp_path, {"bos_token_id": 7})["tokenizer.ggml.bos_token_id"] == 7
    edit(tmp_path / "tokenizer_config.json", lambda values: values.update(eos_token=5))
    with pytest.raises(sd.ConvertError, match=r"tokenizer_config.json: key 'eos_token' is 5, exp"):
        plan(tmp_path)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eos_token_id", VOCAB),
        ("eos_token_id", [5, VOCAB]),
        ("eos_token_id", -2),
        ("bos_token_id", VOCAB + 7),
    ],
)
def test_ids_that_a_run_uses_must_be_in_the_vocabulary(
    tmp_path: Path, named: bool, file: str, key: str, value: Any
) -> None:
    """R29: the ends and the beginning of a text, whether or not the tokenizer names its own."""
    write_tokenizer(tmp_path, "llama-bpe", VOCAB)
    if not named:
        edit(tmp_path / "tokenizer_config.json", lambda values: values.update({key[:-3]: None}))
    (tmp_path / file).write_text(json.dumps({key: value}))
    config = {key: value} if file == "config.json" else {}
    message = rf"{file}: key '{key}' is .*{VOCAB + 7 if key[0] == 'b' else ''}.*ids .* end at 287"
    with pytest.raises(sd.ConvertError, match=message):
        plan(tmp_path, config)
    none = {key: [-1] if key == "eos_token_id" else -1}  # "none" in some checkpoints
    (tmp_path / file).write_text(json.dumps(none))
    plan(tmp_path, none if file == "config.json" else {})


@pytest.mark.parametrize("value", ["x", 1.5, [2], True, {}])
def test_ids_are_numbers(tmp_path: Path, value: Any) -> None:
    write_tokenizer(tmp_path, "llama-bpe", VOCAB)
    for key in ("bos_token_id", "pad_token_id"):
        with pytest.raises(sd.ConvertError, match=rf"config.json: key '{key}' is .*expected a tok"):
            plan(tmp_path, {key: value})


def test_tokens_that_no_run_uses_are_noted(tmp_path: Path) -> None:
    """Published checkpoints name padding beyond their embedding; it is left out, and said."""
    write_tokenizer(tmp_path, "llama-bpe", VOCAB)
    edit(tmp_path / "tokenizer_config.json", lambda values: values.update(pad_token="<pad>"))
    edit(
        tmp_path / "tokenizer.json",
        lambda values: values["added_tokens"].append(
            {"id": VOCAB, "content": "<pad>", "special": True}
        ),
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"pad_token_id": VOCAB}))
    view = ConfigView(tmp_path / "config.json", {"sep_token_id": VOCAB + 1, "mask_token_id": -1})
    keys, notes = plan_tokenizer(tmp_path, view, VOCAB, "llama")
    assert not any("padding" in key or "seperator" in key for key in keys)
    assert len(notes) == 4
    assert notes[0].endswith(
        f"config.json: key 'sep_token_id' is {VOCAB + 1}, but ids of the "
        f"vocabulary end at {VOCAB - 1} ('vocab_size' in config.json); left out"
    )
    assert "key 'pad_token' is '<pad>', which the vocabulary does not have" in notes[1]
    assert f"generation_config.json: key 'pad_token_id' is {VOCAB}, but" in notes[2]
    assert notes[3].startswith(f"{tmp_path / 'tokenizer.json'}: 1 added tokens have ids from 288")
    edit(tmp_path / "tokenizer_config.json", lambda values: values.update(eos_token="<end>"))
    with pytest.raises(sd.ConvertError, match=r"'eos_token' is '<end>', which the vocabulary does"):
        plan(tmp_path)


@pytest.mark.parametrize(
    "value", [5, True, {"a": "b"}, ["x"], [{"name": "default"}], [[]], [NAMED, NAMED]]
)
@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
def test_chat_templates_of_another_kind(tmp_path: Path, file: str, value: Any) -> None:
    write_tokenizer(tmp_path, "qwen2", VOCAB)
    edit(tmp_path / "tokenizer_config.json", lambda values: values.pop("chat_template", None))
    path = tmp_path / file
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**values, "chat_template": value}))
    with pytest.raises(sd.ConvertError, match=rf"{file}: key 'chat_template' is .*, expected a"):
        plan(tmp_path)


def test_a_chat_template_is_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "qwen2", VOCAB)
    (tmp_path / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(sd.ConvertError, match=r"chat_template.jinja: no text in UTF-8 .* at 2"):
        plan(tmp_path)


def test_chat_templates(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "qwen2", VOCAB)
    config = tmp_path / "tokenizer_config.json"
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    edit(config, lambda values: values.update(chat_template=named))
    keys = plan(tmp_path)
    assert keys["tokenizer.chat_template"] == "A"
    assert keys["tokenizer.chat_template.tool_use"] == "B"
    assert keys["tokenizer.chat_templates"] == ["tool_use"]
    edit(config, lambda values: values.pop("chat_template"))
    assert "tokenizer.chat_template" not in plan(tmp_path)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "C"}))
    assert plan(tmp_path)["tokenizer.chat_template"] == "C"
    (tmp_path / "chat_template.jinja").write_text("D")
    assert plan(tmp_path)["tokenizer.chat_template"] == "D"
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("E")
    (more / "rag.jinja").write_text("F")
    keys = plan(tmp_path)
    assert keys["tokenizer.chat_template"] == "D"
    assert keys["tokenizer.chat_template.tool_use"] == "E"
    assert keys["tokenizer.chat_templates"] == ["rag", "tool_use"]


def test_missing_and_damaged_tokenizer_files(tmp_path: Path) -> None:
    with pytest.raises(sd.ConvertError, match=r"no tokenizer.json and no tokenizer.model"):
        plan(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"SGVsbG8= 0\nd29ybGQ= 1\n")  # tiktoken's form
    with pytest.raises(sd.ConvertError, match=r"tokenizer.model: this is no SentencePiece model"):
        plan(tmp_path)
    write_tokenizer(tmp_path, "llama-spm", VOCAB)
    model = (tmp_path / "tokenizer.model").read_bytes()
    for cut in range(1, len(model), 97):
        (tmp_path / "tokenizer.model").write_bytes(model[:cut])
        with contextlib.suppress(sd.ConvertError):  # and nothing else
            plan(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(model)
    with pytest.raises(sd.ConvertError, match=r"284 pieces, but 'vocab_size' in config.json is 99"):
        plan(tmp_path, vocab=99)
    write_tokenizer(tmp_path, "gpt-2", VOCAB)
    with pytest.raises(sd.ConvertError, match=r"has id 99, but 'vocab_size' in config.json is 99"):
        plan(tmp_path, vocab=99)
    twice = {"one": 7, "two": 7}
    edit(tmp_path / "tokenizer.json", lambda values: values["model"].update(vocab=twice))
    with pytest.raises(sd.ConvertError, match=r"json: tokens 'one' and 'two' both have id 7"):
        plan(tmp_path)
    write_tokenizer(tmp_path, "gpt-2", VOCAB)
    edit(tmp_path / "tokenizer.json", lambda values: values["model"].pop("merges"))
    with pytest.raises(sd.ConvertError, match=r"tokenizer.json: key 'merges' is missing"):
        plan(tmp_path)


def test_sentencepiece_models_of_another_type(tmp_path: Path) -> None:
    """Words (3) and characters (4) are cut by rules of their own."""
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x03\x0a\x01a\x12\x02\x18\x03")
    with pytest.raises(sd.ConvertError, match=r"tokenizer.model: key 'model_type' is 3; supp"):
        plan(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(sd.ConvertError, match=r"tokenizer.model: is a Git LFS pointer"):
        plan(tmp_path)


def test_all_kinds_are_tested() -> None:
    assert set(KINDS) >= {*BYTE_LEVEL, "llama-spm", "llama-unigram", "gemma-spm", "phi3-spm"}


FOLDER = os.environ.get("SPECDEC_TEST_VOCAB")


@pytest.mark.skipif(not FOLDER, reason="SPECDEC_TEST_VOCAB names no folder")
@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm", "qwen2", "phi-3", "gpt-2"])
def test_real_vocabularies_there_and_back(tmp_path: Path, name: str) -> None:
    path = Path(FOLDER or "") / f"ggml-vocab-{name}.gguf"
    metadata = metadata_of(path)
    write_hf_tokenizer(metadata, tmp_path)
    keys = plan(tmp_path, vocab=len(metadata["tokenizer.ggml.tokens"]))
    assert keys["tokenizer.ggml.tokens"] == metadata["tokenizer.ggml.tokens"]
    found = tokenizer_of({**keys, "general.architecture": metadata["general.architecture"]})
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = path.with_suffix(".gguf.out").read_text(encoding="utf-8").splitlines()
    for text, line in zip(texts, lines, strict=False):
        assert found.encode(text, add_special=False) == [int(one) for one in line.split()]
