"""From a vocabulary to what turns plain text into ids, one engine per kind of vocabulary.

Control tokens are left out of the engines' tables, so that no text can turn into one.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from specdec_native.errors import GgufError, TokenizerError, shortened
from specdec_native.text.byte_alphabet import BYTE_TO_CHAR
from specdec_native.text.pretokenizers import PreTokenizer, find_pre_tokenizer
from specdec_native.text.vocabulary import TokenType, Vocabulary

__all__ = ["SPACE_MARK", "Engine", "build_engine", "byte_value", "space_runs"]

SPACE_MARK = "\u2581"  # SentencePiece writes a space so.


class Engine(Protocol):
    """Turns text without special tokens into ids."""

    @property
    def lost_bytes(self) -> frozenset[int]:
        """Bytes that the vocabulary has no token for."""

    def encode(self, text: str, dummy_space: bool) -> list[int]:
        """The ids of a text.

        Args:
            text: Valid Unicode.
            dummy_space: Whether it comes where some vocabularies put a space.
        """


def build_engine(vocabulary: Vocabulary) -> Engine:
    """The engine of a vocabulary.

    Raises:
        GgufError: The vocabulary is damaged.
    """
    engines: dict[str, Callable[[Vocabulary], Engine]] = {
        "gpt2": _ByteLevelPairs,
        "llama": _SentencePieces,
        "t5": _Unigrams,
    }
    return engines[vocabulary.kind](vocabulary)


class _ByteLevelPairs:
    """Byte pairs over bytes, in the words of a pre-tokeniser."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pre = _pre_tokenizer(vocabulary)
        self._normalizer = pre.normalizer()
        self._words = pre.build()
        self._pairs = _core().BytePairs.from_merges(
            vocabulary.tokens,
            _array(
                [
                    index
                    for index in vocabulary.ids_of(TokenType.NORMAL, TokenType.USER_DEFINED)
                    if index not in vocabulary.marker_ids
                ]
            ),
            vocabulary.merges,
            pre.ignore_merges,
        )
        self.lost_bytes = frozenset(
            byte for byte, character in BYTE_TO_CHAR.items() if self._pairs.find(character) < 0
        )

    def encode(self, text: str, dummy_space: bool) -> list[int]:
        with _no_panics():
            if self._normalizer is not None:
                text = self._normalizer.normalize_str(text)
            words = self._words.pre_tokenize_str(text)
        ids: list[int] = self._pairs.encode_words(words)
        return ids


class _SentencePieces:
    """SentencePiece byte pairs, with bytes for unknown characters."""

    lost_bytes: frozenset[int] = frozenset()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._scheme = vocabulary.space_prefix
        tokens = list(vocabulary.tokens)
        runs = space_runs(vocabulary)
        for index, marks in runs.items():
            tokens[index] = marks
        self._pairs = _core().BytePairs.from_scores(
            tokens,
            _array(vocabulary.ids_of(TokenType.NORMAL)),
            np.asarray(vocabulary.scores, np.float32),
            runs=_array(list(runs)),
            byte_ids=_array(_byte_ids(vocabulary)),
            unknown=-1 if vocabulary.unknown_id is None else vocabulary.unknown_id,
        )

    def encode(self, text: str, dummy_space: bool) -> list[int]:
        ids: list[int] = self._pairs.encode_text(_marked(text, dummy_space, self._scheme))
        return ids


class _Unigrams:
    """SentencePiece unigrams: the cut of least cost, by the `tokenizers` library."""

    lost_bytes: frozenset[int] = frozenset()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._scheme = vocabulary.space_prefix
        self._ids = vocabulary.ids_of(TokenType.NORMAL)
        unknown = vocabulary.unknown_id
        if unknown is None:
            raise GgufError(
                "tokenizer.ggml.unknown_token_id is missing, which kind 't5' needs. Convert the "
                "model again."
            )
        self._ids.append(unknown)
        pieces = [(vocabulary.tokens[index], vocabulary.scores[index]) for index in self._ids]
        self._byte_ids = _byte_ids(vocabulary)
        self._engine = tokenizers.Tokenizer(models.Unigram(pieces, len(pieces) - 1))
        self._engine.pre_tokenizer = pre_tokenizers.Split(SPACE_MARK, "merged_with_next")
        self._normalizer = _charsmap(vocabulary)
        self._squeezes = vocabulary.squeezes_spaces

    def encode(self, text: str, dummy_space: bool) -> list[int]:
        with _no_panics():
            if self._normalizer is not None:
                text = self._normalizer.normalize_str(text)
        if self._squeezes:
            text = re.sub(" {2,}", " ", text.strip(" "))
        if not text:
            return []
        text = _marked(text, dummy_space, self._scheme)
        found = self._engine.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for index, piece in zip(found.ids, found.tokens, strict=True):
            if index < len(self._ids) - 1 or -1 in self._byte_ids:
                ids.append(self._ids[index])
            else:
                # Bytes for characters without a piece. The library would do that too, but would
                # find the bytes' names in texts as well.
                ids.extend(self._byte_ids[byte] for byte in piece.encode())
        return ids


def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    """The token of each byte; -1 where there is none."""
    ids = [-1] * 256
    for index in reversed(vocabulary.ids_of(TokenType.BYTE)):
        ids[_byte_of(vocabulary.tokens, index)] = index
    return ids


def _charsmap(vocabulary: Vocabulary) -> normalizers.Normalizer | None:
    """The replaced characters of a vocabulary, tried once: the table comes from a stranger."""
    if not vocabulary.charsmap:
        return None
    try:
        with _no_panics():
            normalizer = normalizers.Precompiled(vocabulary.charsmap)
            normalizer.normalize_str("a\u0301 \ufb01 \U0001f642")
    except Exception as error:
        raise GgufError(
            f"tokenizer.ggml.precompiled_charsmap is no table of characters: {error}. Convert the "
            "model again with a current converter, or get the file from another place."
        ) from None
    return normalizer


@contextmanager
def _no_panics() -> Iterator[None]:
    """Makes a `TokenizerError` of a panic of the library, which is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(
            f"the text cannot be cut into words ({error}); it may hold millions of characters "
            "without a break, so pass it in parts"
        ) from None


def _marked(text: str, dummy_space: bool, scheme: str) -> str:
    """The text with marks for spaces, and one in front where the vocabulary wants it."""
    text = text.replace(" ", SPACE_MARK)
    if not dummy_space or scheme == "never":
        return text
    # At the start of a text a space that is there will do; the other scheme always adds one.
    return text if scheme == "first" and text.startswith(SPACE_MARK) else SPACE_MARK + text


def space_runs(vocabulary: Vocabulary) -> dict[int, str]:
    """User-defined tokens of a ``llama`` vocabulary that are nothing but spaces.

    Their texts are given with space marks; converters write them so or with plain spaces.
    """
    found = {}
    for index in vocabulary.ids_of(TokenType.USER_DEFINED):
        marked = vocabulary.tokens[index].replace(" ", SPACE_MARK)
        if marked and not marked.strip(SPACE_MARK):
            found[index] = marked
    return found


def byte_value(text: str) -> bytes:
    """The byte that a text such as ``<0x0A>`` names.

    Raises:
        ValueError: It names none.
    """
    if len(text) != 6 or not text.startswith("<0x") or not text.endswith(">"):
        raise ValueError(f"{text!r} is no byte")
    return bytes.fromhex(text[3:5])


def _byte_of(tokens: list[str], index: int) -> int:
    try:
        return byte_value(tokens[index])[0]
    except (ValueError, IndexError):
        raise GgufError(
            f"tokenizer.ggml.tokens[{index}] is {shortened(repr(tokens[index]))}, but its type "
            "says it is a byte, which is written <0x00> to <0xFF>. Convert the model again."
        ) from None


def _array(ids: list[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.asarray(ids, np.int32)


def _core() -> Any:
    return importlib.import_module("specdec_native._core")


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    if vocabulary.pre is None:
        warnings.warn(
            "the file has no tokenizer.ggml.pre, so the pre-tokenizer 'default' is used; if the "
            "model was made with another one its text will be poor. Convert the model again with "
            "a current converter.",
            stacklevel=6,
        )
    return find_pre_tokenizer(vocabulary.pre or "default")
