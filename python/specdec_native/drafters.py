"""The drafters a Generator can use: small descriptions, turned into engine objects at load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DraftModel", "Drafter", "NgramDraft"]


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


def _parse_name(name: str) -> Drafter:
    if name in ("auto", "ngram"):
        return NgramDraft()
    if name.endswith(".gguf") or os.sep in name or "/" in name:
        return DraftModel(name)
    raise ValueError(
        f"draft is {name!r}; known are 'auto', 'ngram', and a path to a GGUF file (with a "
        "separator or ending in .gguf)"
    )
