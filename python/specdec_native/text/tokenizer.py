"""Text to token ids and back, from the vocabulary in a GGUF file."""

from __future__ import annotations

import importlib
import operator
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specdec_native.errors import TokenizerError, naming_file
from specdec_native.text.byte_alphabet import CHAR_TO_BYTES
from specdec_native.text.engines import SPACE_MARK, build_engine, byte_value, space_runs
from specdec_native.text.special_split import SpecialSplitter
from specdec_native.text.vocabulary import TokenType, Vocabulary

__all__ = ["Tokenizer"]


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
            path = os.fspath(source)
            with naming_file(path):
                self._build(Vocabulary.from_metadata(core.GgufFile(path).metadata))
        else:
            self._build(source)

    def _build(self, source: Vocabulary) -> None:
        self.vocabulary = source
        self._has_bytes = source.kind == "gpt2"  # in place of characters
        self._bytes: list[bytes | None] = [None] * len(source.tokens)  # filled when asked for
        self._splitter = _splitter(source)
        self._special = frozenset(source.ids_of(*_SPECIAL_TYPES))
        self._engine = build_engine(source)

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
        return self.vocabulary.chat_templates.get("default")

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
            # So do the tokenizer.json files of these models.
            position, dummy_space = end, self.vocabulary.space_prefix == "always"
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
        found = self._bytes[index]
        if found is None:
            found = self._bytes[index] = self._contribution(index)
        return found

    def _contribution(self, index: int) -> bytes:
        """What a token that is not special adds to the text."""
        text, kind = self.vocabulary.tokens[index], self.vocabulary.types[index]
        if kind is TokenType.BYTE:
            return byte_value(text)
        if not self._has_bytes:
            return text.replace(SPACE_MARK, " ").encode()
        if kind is not TokenType.NORMAL:
            return text.encode()
        # A character outside the byte alphabet stands for itself.
        return b"".join(CHAR_TO_BYTES.get(one) or one.encode() for one in text)

    def is_special(self, token: int) -> bool:
        """Whether a token stands for something other than text (control, unknown, unused)."""
        return self._checked(token) in self._special

    def control_texts(self) -> list[str]:
        """The texts that become control tokens where that is allowed."""
        return list(_control_texts(self.vocabulary))

    def starts_with_dummy_space(self, previous_token: int | None) -> bool:
        """Whether text after `previous_token` (None: at the start) begins with an added space."""
        scheme = self.vocabulary.space_prefix
        if previous_token is None:
            return scheme != "never"
        return scheme == "always" and not self.may_hold_dummy_space(previous_token)

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
        lost = self._engine.lost_bytes.intersection(data) if self._engine.lost_bytes else None
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
        ids.extend(self._engine.encode(text, dummy_space))

    def _with_specials(self, ids: list[int]) -> list[int]:
        vocabulary = self.vocabulary
        if vocabulary.add_bos and vocabulary.bos_id is not None and ids[:1] != [vocabulary.bos_id]:
            ids.insert(0, vocabulary.bos_id)
        if vocabulary.add_eos and vocabulary.eos_id is not None and ids[-1:] != [vocabulary.eos_id]:
            ids.append(vocabulary.eos_id)
        return ids


_CONTROL_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN)
_SPECIAL_TYPES = (*_CONTROL_TYPES, TokenType.UNUSED)


def _control_texts(vocabulary: Vocabulary) -> dict[str, int]:
    """Text -> id of the tokens that are found only where control tokens may be."""
    ids = {*vocabulary.ids_of(*_CONTROL_TYPES), *vocabulary.marker_ids}
    return _texts_of(vocabulary, ids)


def _texts_of(vocabulary: Vocabulary, ids: Iterable[int]) -> dict[str, int]:
    """Text -> id; of equal texts the lowest id."""
    return {vocabulary.tokens[index]: index for index in sorted(ids, reverse=True)}


def _splitter(vocabulary: Vocabulary) -> SpecialSplitter:
    ids = {*vocabulary.ids_of(TokenType.USER_DEFINED)} - vocabulary.marker_ids
    # Runs of spaces are the engine's business; here they are found where a text writes the mark
    # itself, as Hugging Face's tokenizers have it.
    runs = space_runs(vocabulary) if vocabulary.kind == "llama" else {}
    always = _texts_of(vocabulary, ids - runs.keys())
    always |= {marks: index for index, marks in runs.items()}
    return SpecialSplitter(always=always, control=_control_texts(vocabulary))


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
