"""Turns tokens into text while they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_native.text.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer"]


class IncrementalDetokenizer:
    """Gives out text as soon as its bytes are whole characters.

    The joined results of `push` and `flush` equal `Tokenizer.decode` of all the tokens: bytes that
    are not UTF-8 become U+FFFD just as there, and no space is added or lost between pieces.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, previous_token: int | None = None, control: bool = False
    ) -> None:
        """Starts a sequence.

        Args:
            tokenizer: Whose tokens these are.
            previous_token: The token before the first, for text that continues a prompt. The space
                that encoding puts before the first word of a text is then kept, since it is a real
                one; unless that token is a special one, after which encoding adds the space too.
            control: Whether control tokens appear as their text.
        """
        self._tokenizer = tokenizer
        self._control = control
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.starts_with_dummy_space(previous_token)

    def push(self, tokens: Iterable[int]) -> str:
        """Takes tokens in and returns the text that is now certain."""
        return self._decoder.decode(b"".join(map(self._bytes_of, tokens)))

    def flush(self) -> str:
        """Returns the rest at the end of the sequence: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)

    def _bytes_of(self, token: int) -> bytes:
        """The bytes of a token, less the dummy space if it is the first of the sequence."""
        data = self._tokenizer.token_bytes(token, control=self._control)
        if self._at_start and data:
            self._at_start = False
            if self._tokenizer.may_hold_dummy_space(token):
                data = data.removeprefix(b" ")
        return data
