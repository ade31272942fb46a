"""The incremental detokeniser: R19 (characters split over tokens) and R21 (spaces)."""

from __future__ import annotations

import random

import pytest

from specdec_native.text import IncrementalDetokenizer, Tokenizer
from support.toy_vocabulary import gpt2_metadata, llama_metadata


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.from_metadata(gpt2_metadata())


@pytest.fixture(scope="module")
def llama() -> Tokenizer:
    return Tokenizer.from_metadata(llama_metadata())


def one_by_one(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.push([token]) for token in tokens), detokenizer.flush()]


def test_incomplete_characters_are_held(gpt2: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(gpt2)
    assert detokenizer.push([0xF0, 0x9F]) == ""
    assert detokenizer.push([0x98, 0xB8]) == "😸"
    assert detokenizer.flush() == ""


def test_a_cut_character_is_flushed_once(gpt2: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(gpt2)
    assert detokenizer.push([0x61, 0xF0, 0x9F]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_invalid_bytes_appear_as_soon_as_they_are_certain(gpt2: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(gpt2)
    assert detokenizer.push([0xE2, 0x28]) == "\ufffd("
    assert detokenizer.push([0xFF]) == "\ufffd"


def test_random_bytes_join_to_the_whole(gpt2: Tokenizer, llama: Tokenizer) -> None:
    draw = random.Random(2)
    lead = [0x20, 0x61, 0x80, 0xBF, 0xC3, 0xE2, 0xED, 0xA0, 0xF0, 0x9F, 0x98, 0xF4, 0x90, 0xFF]
    for _ in range(2000):
        tokens = draw.choices(lead, k=draw.randrange(9))
        raw = bytes(tokens)
        assert "".join(one_by_one(gpt2, tokens)) == raw.decode("utf-8", "replace")
        assert gpt2.decode(tokens) == raw.decode("utf-8", "replace")
        shifted = [3 + byte for byte in tokens]
        assert "".join(one_by_one(llama, shifted)) == llama.decode(shifted)


@pytest.mark.parametrize("text", [" x", "x != y", "': 'search", "  two", "🙂 é", "", " "])
def test_pieces_join_to_the_text(text: str, gpt2: Tokenizer, llama: Tokenizer) -> None:
    for tokenizer in (gpt2, llama):
        assert "".join(one_by_one(tokenizer, tokenizer.encode(text))) == text


def test_random_tokens_join_to_the_decode(gpt2: Tokenizer, llama: Tokenizer) -> None:
    draw = random.Random(3)
    for tokenizer in (gpt2, llama):
        for _ in range(300):
            tokens = [draw.randrange(tokenizer.vocab_size) for _ in range(draw.randrange(20))]
            detokenizer = IncrementalDetokenizer(tokenizer)
            text = ""
            rest = tokens
            while rest:
                count = draw.randrange(1, 4)
                text += detokenizer.push(rest[:count])
                rest = rest[count:]
            assert text + detokenizer.flush() == tokenizer.decode(tokens)


def test_the_dummy_space_is_stripped_once_and_after_control_tokens(llama: Tokenizer) -> None:
    word = llama.vocabulary.tokens.index("▁hello")
    assert one_by_one(llama, [1, word, word]) == ["", "hello", " hello", ""]


def test_text_that_continues_a_prompt_keeps_its_space(llama: Tokenizer) -> None:
    word = llama.vocabulary.tokens.index("▁hello")
    assert IncrementalDetokenizer(llama, previous_token=word).push([word]) == " hello"
    assert IncrementalDetokenizer(llama, previous_token=1).push([word]) == "hello"


def test_control_tokens_show_only_when_asked(gpt2: Tokenizer) -> None:
    tokens = gpt2.encode("a<|im_end|>", parse_special=True)
    assert "".join(one_by_one(gpt2, tokens)) == "a"
    shown = IncrementalDetokenizer(gpt2, control=True)
    assert shown.push(tokens) == "<|begin|>a<|im_end|>"
