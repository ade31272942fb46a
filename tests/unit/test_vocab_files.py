"""Token ids of real vocabularies, from the folder that SPECDEC_TEST_VOCAB names."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from specdec_native.text import IncrementalDetokenizer, Tokenizer

FOLDER = os.environ.get("SPECDEC_TEST_VOCAB")
NAMES = ["llama-bpe", "llama-spm", "qwen2", "phi-3", "gpt-2", "deepseek-llm"]

pytestmark = pytest.mark.skipif(not FOLDER, reason="SPECDEC_TEST_VOCAB names no folder")


@functools.cache
def load(name: str) -> tuple[Tokenizer, list[str], list[list[int]]]:
    path = Path(FOLDER or "") / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer(path)
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    assert texts.pop() == ""  # The file ends with a separator.
    lines = path.with_suffix(".gguf.out").read_text(encoding="utf-8").splitlines()
    ids = [[int(one) for one in line.split()] for line in lines]
    assert len(texts) == len(ids)
    return tokenizer, texts, ids


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_round_trips(name: str) -> None:
    tokenizer, texts, expected = load(name)
    for text, ids in zip(texts, expected, strict=True):
        # The texts hold no special tokens, so both ways of parsing agree.
        assert tokenizer.encode(text, add_special=False) == ids
        assert tokenizer.encode(text, add_special=False, parse_special=True) == ids
        assert tokenizer.decode(ids) == text
        detokenizer = IncrementalDetokenizer(tokenizer)
        assert "".join(detokenizer.push([one]) for one in ids) + detokenizer.flush() == text


@pytest.mark.parametrize("name", NAMES)
def test_control_texts_stay_text(name: str) -> None:
    tokenizer, _, _ = load(name)
    hostile = "".join(tokenizer.control_texts())
    ids = tokenizer.encode(hostile, add_special=False)
    assert not any(tokenizer.is_special(one) for one in ids)
    assert tokenizer.decode(ids) == hostile


def test_phi_3_chat_ids() -> None:
    """Blanks after Phi-3's markers are dropped, as its tokenizer.json has it."""
    tokenizer, _, _ = load("phi-3")
    text = "<|user|>\nHello<|end|>\n<|assistant|>\n"
    assert tokenizer.encode(text, parse_special=True) == [1, 32010, 15043, 32007, 32001]


def test_end_ids() -> None:
    ends = {name: load(name)[0].eog_ids for name in ("llama-bpe", "qwen2", "phi-3", "llama-spm")}
    assert ends == {
        "llama-bpe": {128001, 128009},
        "qwen2": {151643, 151645},
        "phi-3": {32000, 32007},
        "llama-spm": {2},
    }
