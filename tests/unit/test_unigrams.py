"""Unigram vocabularies (kind `t5`): ids as SentencePiece's (tools/make_unigram_golden.py)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_native.errors import GgufError
from specdec_native.text import Tokenizer

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "unigrams.json").read_text(encoding="utf-8")
)
NAMES = ["squeezed", "bytes"]


def metadata(name: str, **changes: Any) -> dict[str, Any]:
    """The vocabulary as a converter writes it; `changes` replaces keys, None removes one."""
    golden = GOLDEN[name]
    keys = {
        "model": "t5",
        "tokens": golden["pieces"],
        "scores": golden["scores"],
        "token_type": golden["types"],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_space_prefix": True,
        "remove_extra_whitespaces": golden["squeezes_spaces"],
    }
    if golden["charsmap"]:
        keys["precompiled_charsmap"] = np.frombuffer(base64.b64decode(golden["charsmap"]), np.int8)
    keys |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


@pytest.mark.parametrize("name", NAMES)
def test_ids(name: str) -> None:
    golden = GOLDEN[name]
    tokenizer = Tokenizer.from_metadata(metadata(name))
    assert any(len(ids) > 10 for ids in golden["ids"])
    for text, ids in zip(golden["texts"], golden["ids"], strict=True):
        assert tokenizer.encode(text, add_special=False) == ids, text


def test_decoding_gives_the_text_back() -> None:
    tokenizer = Tokenizer.from_metadata(metadata("bytes"))
    for text in GOLDEN["bytes"]["texts"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_eos_is_added_and_bos_is_not() -> None:
    tokenizer = Tokenizer.from_metadata(metadata("bytes"))
    ids = tokenizer.encode("the")
    assert ids[-1] == 2
    assert 1 not in ids


def test_ids_where_the_file_names_none() -> None:
    """T5's own: padding 0, end 1, unknown 2."""
    types = list(GOLDEN["bytes"]["types"])
    types[:3] = [3, 3, 2]
    changes = dict.fromkeys(("unknown_token_id", "bos_token_id", "eos_token_id"))
    vocabulary = Tokenizer.from_metadata(metadata("bytes", token_type=types, **changes)).vocabulary
    assert (vocabulary.padding_id, vocabulary.eos_id, vocabulary.unknown_id) == (0, 1, 2)
    assert vocabulary.bos_id is None
    assert vocabulary.add_eos


def test_control_texts_stay_text() -> None:
    tokenizer = Tokenizer.from_metadata(metadata("bytes"))
    ids = tokenizer.encode("</s>", add_special=False)
    assert 2 not in ids
    assert 2 in tokenizer.encode("</s>", add_special=False, parse_special=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores is missing, which kind 't5' needs"),
        ({"precompiled_charsmap": np.array([200, 0, 0, 0, 1], np.uint8)}, "no table of characters"),
        ({"precompiled_charsmap": np.zeros(3, np.uint8)}, "no table of characters"),
        ({"precompiled_charsmap": np.zeros(3, np.int32)}, "must be an array of bytes"),
        ({"precompiled_charsmap": "abc"}, "must be an array of bytes"),
        ({"remove_extra_whitespaces": 1}, "remove_extra_whitespaces must be a boolean"),
    ],
)
def test_damaged_metadata(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GgufError, match=message):
        Tokenizer.from_metadata(metadata("bytes", **changes))


def test_no_unknown_token_is_an_error() -> None:
    types = [1 if kind == 2 else kind for kind in GOLDEN["bytes"]["types"]]
    types[2] = 1
    with pytest.raises(GgufError, match="unknown_token_id is missing"):
        Tokenizer.from_metadata(metadata("bytes", token_type=types, unknown_token_id=None))
