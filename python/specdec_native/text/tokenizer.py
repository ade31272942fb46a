"""Text to token ids and back, from the vocabulary in a GGUF file."""

from __future__ import annotations

import importlib
import operator
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import models

from specdec_native.errors import GgufError, TokenizerError
from specdec_native.text.pretokenizers import PreTokenizer, find_pre_tokenizer
from specdec_native.text.special_split import SpecialSplitter
from specdec_native.text.spm_merges import derive_merges
from specdec_native.text.vocabulary import TokenType, Vocabulary

__all__ = ["Tokenizer"]

_SPACE_MARK = "\u2581"  # SentencePiece writes a space so.


class Tokenizer:
    """The tokeniser of one model."""

    def __init__(self, source: str | os.PathLike[str] | Vocabulary) -> None:
        """Builds the tokeniser.

        Args:
            source: Path of a GGUF file (vocabulary-only files will do), or a checked vocabulary.

        Raises:
            GgufError: The vocabulary is damaged or of a kind that is not supported.
        """
        if not isinstance(source, Vocabulary):
            core = importlib.import_module("specdec_native._core")
            source = Vocabulary.from_metadata(core.GgufFile(os.fspath(source)).metadata)
        self.vocabulary = source
        self._is_llama = source.kind == "llama"
        self._bytes = _token_bytes_table(source)
        self._splitter = _splitter(source)
        self._special = frozenset(
            index for index, kind in enumerate(source.types) if kind not in _TEXT_TYPES
        )
        self._lossy_bytes: frozenset[int] = frozenset()
        if self._is_llama:
            self._engine = _build_llama(source)
        else:
            self._engine = _build_gpt2(source)
            known = {source.tokens[i] for i, kind in enumerate(source.types) if kind in _PLAIN}
            self._lossy_bytes = frozenset(
                byte for byte, character in _BYTE_TO_CHAR.items() if character not in known
            )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Builds the tokeniser from a GGUF file's metadata (key -> Python value).

        Raises:
            GgufError: The vocabulary is damaged or of a kind that is not supported.
        """
        return cls(Vocabulary.from_metadata(metadata))

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """Begin-of-sequence id, or None if the model has none."""
        return self.vocabulary.bos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every id that ends a generation."""
        return self.vocabulary.eog_ids

    @property
    def chat_template(self) -> str | None:
        """Source of the model's chat template, or None if it has none."""
        return self.vocabulary.chat_template

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Turns text into token ids.

        Args:
            text: The text.
            add_special: Add BOS and EOS where the model wants them. A BOS that the text itself
                brings (with `parse_special`) is not added again.
            parse_special: The texts of control tokens become those tokens. Leave it off for text
                from outside.

        Raises:
            TokenizerError: The text is not valid Unicode.
        """
        return self.encode_segments([(text, parse_special)], add_special)

    def encode_segments(
        self, segments: Sequence[tuple[str, bool]], add_special: bool = True
    ) -> list[int]:
        """Turns the joined text of several segments into token ids.

        The text is tokenised as one, so that words may reach over a boundary; but a control token
        is recognised only where it lies wholly in segments that allow it.

        Args:
            segments: Text, and whether control tokens may be recognised in it.
            add_special: As for `encode`.

        Raises:
            TokenizerError: The text is not valid Unicode.
        """
        text = "".join(piece for piece, _ in segments)
        self._check_text(text)
        ids = self._encode_text(text, _barred_ranges(segments), dummy_space=True)
        return self._with_specials(ids) if add_special else ids

    def encode_inside(self, text: str, *, starts_stretch: bool) -> list[int]:
        """Turns a part of a longer text into token ids, without special tokens.

        Args:
            text: The part.
            starts_stretch: Whether it comes at the start of the text or right after a special
                token, where some models put a space.
        """
        return self._encode_text(text, [(0, len(text))], dummy_space=starts_stretch)

    def _encode_text(
        self, text: str, barred: list[tuple[int, int]], *, dummy_space: bool
    ) -> list[int]:
        """Ids of a text; control tokens are not recognised in the `barred` ranges."""
        ids: list[int] = []
        position = 0
        for start, end, token in self._splitter.find(text, barred):
            self._encode_plain(text[position:start], ids, dummy_space)
            ids.append(token)
            position, dummy_space = end, True
            if token in self.vocabulary.strip_after:
                while position < len(text) and text[position].isspace():
                    position += 1
        self._encode_plain(text[position:], ids, dummy_space)
        return ids

    def decode(self, tokens: Iterable[int], *, control: bool = False) -> str:
        """Turns token ids into text; bytes that are not UTF-8 become U+FFFD.

        Args:
            tokens: The token ids, as one sequence from its start.
            control: Whether control tokens appear as their text.

        Raises:
            TokenizerError: An id is not in the vocabulary.
        """
        ids = list(tokens)
        pieces = [self.token_bytes(token, control=control) for token in ids]
        if self.starts_with_dummy_space(None):
            first = next((index for index, piece in enumerate(pieces) if piece), None)
            if first is not None and self.may_hold_dummy_space(ids[first]):
                pieces[first] = pieces[first].removeprefix(b" ")
        return b"".join(pieces).decode("utf-8", "replace")

    def token_bytes(self, token: int, *, control: bool = False) -> bytes:
        """The raw bytes that a token contributes to the text.

        Args:
            token: The token id.
            control: Whether a control token gives its text; it gives nothing otherwise.

        Raises:
            TokenizerError: The id is not in the vocabulary.
        """
        index = self._checked(token)
        if index in self._special:
            return self.vocabulary.tokens[index].encode() if control else b""
        return self._bytes[index]

    def is_special(self, token: int) -> bool:
        """Whether a token stands for something other than text (control, unknown, unused)."""
        return self._checked(token) in self._special

    def control_texts(self) -> list[str]:
        """The texts that become control tokens where that is allowed."""
        return list(_texts_of(self.vocabulary, _CONTROL_TYPES))

    def starts_with_dummy_space(self, previous_token: int | None) -> bool:
        """Whether text after `previous_token` (None: at the start) begins with an added space."""
        if not self.vocabulary.add_space_prefix:
            return False
        return previous_token is None or not self.may_hold_dummy_space(previous_token)

    def may_hold_dummy_space(self, token: int) -> bool:
        """Whether a token comes from text between special tokens, where the space is added."""
        return self.vocabulary.types[self._checked(token)] in (TokenType.NORMAL, TokenType.BYTE)

    def _checked(self, token: int) -> int:
        index = operator.index(token)
        if not 0 <= index < len(self._bytes):
            raise TokenizerError(
                f"token id {index} is outside the vocabulary of {len(self._bytes)} tokens; use ids "
                f"from 0 to {len(self._bytes) - 1}"
            )
        return index

    def _check_text(self, text: str) -> None:
        """Refuses what is not Unicode, and warns of bytes the vocabulary lacks."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the text holds a lone surrogate, {text[error.start]!r} at index {error.start}, "
                "which is not valid Unicode; remove it, or read the text with errors='replace'"
            ) from None
        lost = self._lossy_bytes.intersection(data) if self._lossy_bytes else None
        if lost:
            shown = ", ".join(f"0x{byte:02x}" for byte in sorted(lost))
            warnings.warn(
                f"the vocabulary has no token for the bytes {shown}, which are left out of the "
                "encoded text",
                stacklevel=4,
            )

    def _encode_plain(self, text: str, ids: list[int], dummy_space: bool) -> None:
        """Appends the ids of text without special tokens."""
        if not text:
            return
        if self._is_llama:
            # Each stretch of text gets the space, also after a special token: so do the
            # tokenizer.json files of these models, and llama.cpp.
            prefix = " " if dummy_space and self.vocabulary.add_space_prefix else ""
            text = (prefix + text).replace(" ", _SPACE_MARK)
        ids.extend(self._engine.encode(text, add_special_tokens=False).ids)

    def _with_specials(self, ids: list[int]) -> list[int]:
        vocabulary = self.vocabulary
        if vocabulary.add_bos and vocabulary.bos_id is not None and ids[:1] != [vocabulary.bos_id]:
            ids.insert(0, vocabulary.bos_id)
        if vocabulary.add_eos and vocabulary.eos_id is not None and ids[-1:] != [vocabulary.eos_id]:
            ids.append(vocabulary.eos_id)
        return ids


_PLAIN = (TokenType.NORMAL, TokenType.USER_DEFINED)
_TEXT_TYPES = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE)
_CONTROL_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN)


def _byte_to_char() -> dict[int, str]:
    """GPT-2's table: each byte as a visible character (the byte-level alphabet)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in visible}
    hidden = [byte for byte in range(256) if byte not in table]
    table.update({byte: chr(0x100 + index) for index, byte in enumerate(hidden)})
    return table


_BYTE_TO_CHAR = _byte_to_char()
_CHAR_TO_BYTES = {character: bytes([byte]) for byte, character in _BYTE_TO_CHAR.items()}


def _byte_value(text: str) -> bytes | None:
    """The byte that a text such as ``<0x0A>`` names."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes.fromhex(text[3:5])
        except ValueError:
            return None
    return None


def _token_bytes_table(vocabulary: Vocabulary) -> list[bytes]:
    """What each token contributes to the text, control tokens left aside."""
    table: list[bytes] = []
    for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind is TokenType.BYTE:
            byte = _byte_value(text)
            if byte is None:
                raise GgufError(
                    f"tokenizer.ggml.tokens[{index}] is {text!r}, but its type says it is a byte, "
                    "which is written <0x00> to <0xFF>. Convert the model again."
                )
            table.append(byte)
        elif kind is not TokenType.NORMAL:
            table.append(text.encode())
        elif vocabulary.kind == "llama":
            table.append(text.replace(_SPACE_MARK, " ").encode())
        else:
            # A character outside the byte alphabet stands for itself.
            table.append(b"".join(_CHAR_TO_BYTES.get(one) or one.encode() for one in text))
    return table


def _texts_of(vocabulary: Vocabulary, kinds: Sequence[TokenType]) -> dict[str, int]:
    """Text -> id of the tokens of some types; of equal texts the lowest id."""
    found: dict[str, int] = {}
    for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind in kinds:
            found.setdefault(text, index)
    return found


def _splitter(vocabulary: Vocabulary) -> SpecialSplitter:
    return SpecialSplitter(
        always=_texts_of(vocabulary, (TokenType.USER_DEFINED,)),
        control=_texts_of(vocabulary, _CONTROL_TYPES),
    )


def _barred_ranges(segments: Sequence[tuple[str, bool]]) -> list[tuple[int, int]]:
    """The ranges of the joined text in which no control token may be recognised."""
    ranges: list[tuple[int, int]] = []
    position = 0
    for text, parse_special in segments:
        end = position + len(text)
        if not parse_special and text:
            if ranges and ranges[-1][1] == position:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((position, end))
        position = end
    return ranges


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    if vocabulary.pre is None:
        warnings.warn(
            "the file has no tokenizer.ggml.pre, so the pre-tokenizer 'default' is used; if the "
            "model was made with another one its text will be poor. Convert the model again with "
            "a current converter.",
            stacklevel=5,
        )
    return find_pre_tokenizer(vocabulary.pre or "default")


def _build_gpt2(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The engine for byte-level byte pairs.

    Control tokens are left out of its table, so that no text can turn into one.
    """
    pre = _pre_tokenizer(vocabulary)
    pieces = _texts_of(vocabulary, _PLAIN)
    merges = [
        pair
        for pair in vocabulary.merges
        if pair[0] in pieces and pair[1] in pieces and pair[0] + pair[1] in pieces
    ]
    engine = tokenizers.Tokenizer(
        models.BPE(vocab=pieces, merges=merges, ignore_merges=pre.ignore_merges)
    )
    normalizer = pre.normalizer()
    if normalizer is not None:
        engine.normalizer = normalizer
    engine.pre_tokenizer = pre.build()
    return engine


def _build_llama(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The engine for SentencePiece byte pairs, with bytes for unknown characters."""
    merges = derive_merges(_texts_of(vocabulary, (TokenType.NORMAL,)), vocabulary.scores)
    # Text reaches the byte tokens and the unknown token only by fallback: no merge makes them.
    pieces = _texts_of(vocabulary, (TokenType.NORMAL, TokenType.BYTE))
    unknown = None
    if vocabulary.unknown_id is not None:
        unknown = vocabulary.tokens[vocabulary.unknown_id]
        pieces.setdefault(unknown, vocabulary.unknown_id)
    return tokenizers.Tokenizer(
        models.BPE(
            vocab=pieces, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
