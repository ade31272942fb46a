"""Byte pair encoding: the ids are those of Hugging Face's `tokenizers`."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from specdec_native import _core
from specdec_native.errors import Error

MARK = "▁"
ALPHABET = ["a", "b", "c", "é", "東", "🙂", MARK]


def grown(draw: random.Random, size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """A vocabulary in which each token but the first is made of two others, and how."""
    tokens = list(ALPHABET)
    merges = []
    while len(tokens) < size:
        left, right = draw.choices(tokens, k=2)
        if left + right not in tokens and len(left + right) < 12:
            tokens.append(left + right)
            merges.append((left, right))
    draw.shuffle(merges)
    return tokens, merges


def texts(draw: random.Random, alphabet: list[str]) -> list[str]:
    """Short words, long ones, and a very long one."""
    lengths = [draw.randrange(40) for _ in range(150)] + [200] * 5 + [4000]
    return ["".join(draw.choices(alphabet, k=length)) for length in lengths]


def words_of(text: str) -> list[tuple[str, tuple[int, int]]]:
    return [(text, (0, len(text)))]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ignore_merges", [False, True])
def test_merges(seed: int, ignore_merges: bool) -> None:
    draw = random.Random(seed)
    tokens, merges = grown(draw, 150)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    theirs = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges)
    )
    ours = _core.BytePairs.from_merges(
        tokens,
        np.arange(len(tokens)),
        [f"{left} {right}" for left, right in merges],
        ignore_merges,
    )
    for text in [*texts(draw, [*ALPHABET, "?"]), *tokens]:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode_words(words_of(text)) == ids
        assert ignore_merges or ours.encode_text(text) == ids


def derived(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """The merges that scores imply: best piece first, of equals the first, longest left part."""
    known = set(tokens)
    ranked = sorted(range(len(tokens)), key=lambda index: (-scores[index], index))
    return [
        (tokens[index][:cut], tokens[index][cut:])
        for index in ranked
        for cut in range(len(tokens[index]) - 1, 0, -1)
        if tokens[index][:cut] in known and tokens[index][cut:] in known
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("levels", [4, 1000])
@pytest.mark.parametrize("with_bytes", [True, False])
def test_scores(seed: int, levels: int, with_bytes: bool) -> None:
    """Scores with ties or without; characters without a piece are bytes, or unknown."""
    draw = random.Random(seed)
    tokens, _ = grown(draw, 150)
    # As in real vocabularies, marks stand only at the start of a piece in half of the cases.
    if seed % 2:
        tokens = [token for token in tokens if MARK not in token.lstrip(MARK)]
    scores = [-float(draw.randrange(levels)) for _ in tokens]
    pieces = len(tokens)
    tokens += ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    theirs = tokenizers.Tokenizer(
        models.BPE(
            vocab={
                token: index
                for index, token in enumerate(tokens)
                if with_bytes or not token.startswith("<0x")
            },
            merges=derived(tokens[:pieces], scores),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    ours = _core.BytePairs.from_scores(
        tokens,
        np.arange(pieces),
        np.array(scores + [0.0] * 257, np.float32),
        runs=np.array([], np.int32),
        byte_ids=np.arange(256) + pieces + 1 if with_bytes else np.full(256, -1),
        unknown=pieces,
    )
    for text in [*texts(draw, [*ALPHABET, "?", "ё", MARK]), *tokens[:pieces]]:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode_text(text) == ids, text
        assert ours.encode_words(words_of(text)) == ids


def test_runs_win_over_all_pieces() -> None:
    """Runs of marks are merged first, the longest left part first, as in Gemma's tokenizer.json."""
    tokens = [MARK, "a", MARK + "a", *(MARK * count for count in range(2, 6))]
    runs = list(range(3, len(tokens)))
    merges = [
        (MARK * left, MARK * right)
        for left in range(4, 0, -1)
        for right in range(4, 0, -1)
        if left + right <= 5
    ]
    theirs = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[*merges, (MARK, "a")],
        )
    )
    ours = _core.BytePairs.from_scores(
        tokens,
        np.arange(3),
        np.array([-1.0, -2.0, 0.0] + [-1000.0] * 4, np.float32),
        runs=np.array(runs),
        byte_ids=np.full(256, -1),
        unknown=-1,
    )
    for text in texts(random.Random(1), ["a", MARK, MARK, MARK]):
        assert ours.encode_text(text) == theirs.encode(text, add_special_tokens=False).ids


def test_equal_texts_and_repeated_merges() -> None:
    """Of equal tokens the first counts, of equal merges the last."""
    tokens = ["a", "b", "c", "ab", "bc", "ab"]
    pairs = _core.BytePairs.from_merges(tokens, np.arange(6), ["a b", "b c", "a b"], False)
    assert pairs.encode_text("abc") == [0, 4]
    assert pairs.find("ab") == 3
    assert pairs.find("") == pairs.find("abc") == -1
    assert pairs.encode_text("") == pairs.encode_words([]) == []


def test_merges_of_tokens_that_are_no_pieces_are_left_out() -> None:
    pairs = _core.BytePairs.from_merges(["a", "b", "ab"], np.array([0, 1]), ["a b"], False)
    assert pairs.encode_text("ab") == [0, 1]


@pytest.mark.parametrize("line", ["a", "a x", "x a", "a b c", "ab", "", " ", "a ", "\udc80 a"])
def test_merges_of_no_tokens_are_an_error(line: str) -> None:
    with pytest.raises(Error, match=r"merges\[1\] is .* not all in tokenizer\.ggml\.tokens"):
        _core.BytePairs.from_merges(["a", "b", "ab"], np.arange(3), ["a b", line], False)


@pytest.mark.parametrize("ids", [[3], [-1]])
def test_ids_outside_are_an_error(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary of 3"):
        _core.BytePairs.from_merges(["a", "b", "ab"], np.array(ids), [], False)


def test_a_megabyte_of_one_character() -> None:
    """As one word: its merges are found in a heap, not by looking through all pairs each time."""
    tokens = ["a" * 2**power for power in range(5)]
    pairs = _core.BytePairs.from_merges(
        tokens, np.arange(5), [f"{one} {one}" for one in tokens[:-1]], False
    )
    assert pairs.encode_words(words_of("a" * 2**20)) == [4] * 2**16
