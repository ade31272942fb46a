"""The drafters a Generator can use: small descriptions, turned into engine objects at load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from specdec_native.models import KNOWN_MODELS

__all__ = ["DraftModel", "Drafter", "NgramDraft"]

_MAX_DRAFT = 64  # kMaxDraft in csrc/spec/drafter.h


@dataclass(frozen=True)
class NgramDraft:
    """Lookup drafting: copies what followed an earlier occurrence of the last few tokens.

    Looks at the prompt and the output of the request only. Costs no model and next to no memory.

    Attributes:
        max_draft: Most tokens proposed in a round, 1 to 64.
        min_ngram: Shortest match that is used, in tokens.
        max_ngram: Longest match that is looked for.
    """

    max_draft: int = 8
    min_ngram: int = 2
    max_ngram: int = 4

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is out of range; the message names it.
        """
        _check_whole("max_draft", self.max_draft, 1, _MAX_DRAFT)
        _check_whole("max_ngram", self.max_ngram, 1, 64)
        _check_whole("min_ngram", self.min_ngram, 1, self.max_ngram)


@dataclass(frozen=True)
class DraftModel:
    """Drafting with a smaller model of the same vocabulary (arXiv 2211.17192).

    Attributes:
        path: The draft's GGUF file, or a name known to ``specdec pull``.
        max_draft: Most tokens proposed in a round, 1 to 64.
        n_ctx: Positions of its cache; None: the target's, at most what the draft was trained for.
            Where a text outgrows it, decoding goes on without the draft.
    """

    path: str | os.PathLike[str]
    max_draft: int = 4
    n_ctx: int | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is out of range; the message names it.
        """
        _check_whole("max_draft", self.max_draft, 1, _MAX_DRAFT)
        if self.n_ctx is not None:
            _check_whole("n_ctx", self.n_ctx, 2, 2**24)


Drafter = NgramDraft | DraftModel


def parse_draft(
    draft: str | os.PathLike[str] | Drafter | Sequence[str | Drafter] | None,
) -> list[Drafter]:
    """The drafters that the `draft` argument of a Generator names.

    Raises:
        ValueError: An unknown name; the message lists the valid ones.
        TypeError: Something that is no drafter.
    """
    if draft is None:
        return []
    if isinstance(draft, (NgramDraft, DraftModel)):
        return [draft]
    if isinstance(draft, (str, os.PathLike)):
        return [_parse_name(os.fspath(draft))]
    if isinstance(draft, Sequence):
        return [one for item in draft for one in parse_draft(item)]
    raise TypeError(f"draft is {draft!r}; give None, a name, a path, a drafter or a list of these")


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def _parse_name(name: str) -> Drafter:
    if name in ("auto", "ngram"):
        return NgramDraft()
    if name.endswith(".gguf") or os.sep in name or "/" in name or name in KNOWN_MODELS:
        return DraftModel(name)
    raise ValueError(
        f"draft is {name!r}; known are 'auto', 'ngram', and a path to a GGUF file (with a "
        "separator or ending in .gguf)"
    )
