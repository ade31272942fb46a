"""From the tokens of one vocabulary to those of another: for drafts with their own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.vocabulary import TokenType

__all__ = ["TokenTranslator", "shared_tokens"]


def shared_tokens(draft: Tokenizer, target: Tokenizer) -> list[int]:
    """The target's id for each of the draft's, -1 where the target has no such string.

    Tokens are the same if they add the same bytes to a text, or if both are control tokens of one
    spelling. No target id appears twice.

    Args:
        draft: Whose ids index the result, [draft vocabulary].
        target: Whose ids it holds.
    """
    wanted = dict(reversed(_strings(target)))  # of equal strings the first
    found = [-1] * draft.vocab_size
    for string, index in _strings(draft):
        found[index] = wanted.pop(string, -1)
    return found


def _strings(tokenizer: Tokenizer) -> list[tuple[tuple[str, bytes], int]]:
    """What each token stands for, and its id; bytes tokens, which repeat others, come last."""
    types, tokens = tokenizer.vocabulary.types, tokenizer.vocabulary.tokens
    entries = []
    for index, kind in enumerate(types):
        if tokenizer.is_special(index):
            if kind is TokenType.CONTROL:
                entries.append((("control", tokens[index].encode()), index))
        elif tokenizer.token_bytes(index):
            entries.append((("text", tokenizer.token_bytes(index)), index))
    return sorted(entries, key=lambda entry: types[entry[1]] is TokenType.BYTE)


class TokenTranslator:
    """Turns pieces of a text in the target's tokens into the draft's tokens."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        """Compares the vocabularies.

        Args:
            target: Whose tokens come in.
            draft: Whose tokens go out.
        """
        self._target, self._draft = target, draft
        self.target_of = shared_tokens(draft, target)
        self._special = {
            there: here
            for here, there in enumerate(self.target_of)
            if there >= 0 and draft.is_special(here)
        }
        for name in ("bos_id", "eos_id"):
            ours, theirs = getattr(target.vocabulary, name), getattr(draft.vocabulary, name)
            if ours is not None and theirs is not None:
                self._special.setdefault(ours, theirs)

    def __call__(self, tokens: Sequence[int], at_start: bool) -> list[int]:
        """The draft's tokens of a piece.

        A character whose bytes a cut between pieces tears apart is left out: drafts may be poorer
        for it, never wrong.

        Args:
            tokens: Ids of the target.
            at_start: Whether the text begins here.
        """
        ids: list[int] = []
        vocabulary = self._draft.vocabulary
        bos = vocabulary.bos_id if at_start and vocabulary.add_bos else None
        if bos is not None and not (tokens and self._special.get(tokens[0]) == bos):
            ids.append(bos)
        stretch: list[int] = []
        starts = at_start
        for token in tokens:
            if not self._target.is_special(token):
                stretch.append(token)
                continue
            ids += self._encoded(stretch, starts)
            stretch, starts = [], True
            if token in self._special:
                ids.append(self._special[token])
        return ids + self._encoded(stretch, starts)

    def _encoded(self, tokens: Sequence[int], starts: bool) -> list[int]:
        """Ids of a stretch without special tokens."""
        data = b"".join(self._target.token_bytes(token) for token in tokens)
        if starts and self._target.starts_with_dummy_space(None):
            data = data.removeprefix(b" ")
        text = data.decode("utf-8", "ignore")
        return self._draft.encode_inside(text, starts_stretch=starts) if text else []
