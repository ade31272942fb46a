"""The drafters a Generator can use: small descriptions, turned into engine objects at load."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from specdec_native.models import KNOWN_MODELS

__all__ = [
    "DraftModel",
    "Drafter",
    "EagleDraft",
    "LayerSkipDraft",
    "MedusaDraft",
    "NgramDraft",
    "SuffixDraft",
]

_MAX_DRAFT = 64  # kMaxDraft in csrc/spec/drafter.h


Tree = int | Sequence[Sequence[int]] | None
"""A tree of drafted tokens: at most so many children per node, or a path of ranks for each node."""


@dataclass(frozen=True)
class NgramDraft:
    """Lookup drafting: copies what followed an earlier occurrence of the last few tokens.

    Looks at the prompt and the output of the request only. Costs no model and next to no memory.

    Attributes:
        max_draft: Most tokens proposed in a round, 1 to 64.
        min_ngram: Shortest match that is used, in tokens.
        max_ngram: Longest match that is looked for.
        adaptive: Whether the controller decides how much of it is used, by what passes cost and
            how often it is right; else everything it proposes is verified.
    """

    max_draft: int = 8
    min_ngram: int = 2
    max_ngram: int = 4
    adaptive: bool = True

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is out of range; the message names it.
        """
        _check_whole("max_draft", self.max_draft, 1, _MAX_DRAFT)
        _check_whole("max_ngram", self.max_ngram, 1, 64)
        _check_whole("min_ngram", self.min_ngram, 1, self.max_ngram)


@dataclass(frozen=True)
class SuffixDraft:
    """Suffix drafting: what followed the longest suffix of the text that occurred before.

    An online suffix automaton over prompt and output finds the match in constant time per token;
    tokens are proposed as far as the counts make them likely (the score of SuffixDecoding, arXiv
    2411.04975), as a chain or a small tree. Costs no model.

    Attributes:
        max_draft: Most tokens proposed in a round, 1 to 64.
        min_match: Shortest match that is used, in tokens.
        max_match: Longest match that is told from a longer one, at most 256.
        branches: Most alternatives for a token, 1 to 3; 1 makes chains only.
        min_score: Least product of the frequencies of a proposed token and those before it. Low,
            since the controller cuts what does not pay; without it (``adaptive=False``) 0.1 is a
            better choice.
        adaptive: Whether the controller decides how much of it is used, by what passes cost and
            how often it is right; else everything it proposes is verified.
        corpus: A file of token texts that earlier requests left, searched too; made if it is not
            there. Each request adds its prompt and output when it ends, so keep it as private as
            these. None: nothing outlives a request.
    """

    max_draft: int = 24
    min_match: int = 1
    max_match: int = 32
    branches: int = 2
    min_score: float = 0.02
    adaptive: bool = True
    corpus: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is out of range; the message names it.
        """
        _check_whole("max_draft", self.max_draft, 1, _MAX_DRAFT)
        _check_whole("max_match", self.max_match, 1, 256)
        _check_whole("min_match", self.min_match, 1, self.max_match)
        _check_whole("branches", self.branches, 1, 3)
        if not 0.0 < self.min_score <= 1.0:
            raise ValueError(f"min_score is {self.min_score!r}; it must be above 0 and at most 1")


@dataclass(frozen=True)
class DraftModel:
    """Drafting with a smaller model (arXiv 2211.17192), as a rule of the same vocabulary.

    Attributes:
        path: The draft's GGUF file, or a name known to ``specdec pull``.
        max_draft: Most tokens proposed in a round, 1 to 64.
        n_ctx: Positions of its cache; None: the target's, at most what the draft was trained for.
            Where a text outgrows it, decoding goes on without the draft.
        tree: None: a chain, drawn with the request's sampling. A number: a tree of the likeliest
            tokens, at most so many children per node, grown where the draft is confident (arXiv
            2406.16858) up to `max_draft` nodes. Or a fixed tree, see `MedusaDraft`.
        draft_vocab: None: every token may be drafted. A number: so many tokens, those of the lowest
            ids, which the tokenizer merged first and which are the most frequent, and those that
            the text so far holds. Or the ids, for example the most frequent of a text of your own
            (FR-Spec, arXiv 2502.14856). The output head is a large part of a small model; a
            reduced one drafts faster, and the text stays the same.
        min_confidence: A chain ends before a token of which the draft is not sure: no token has so
            much probability, from 0 (off) to below 1. Decided before the token is drawn.
        allow_vocab_mismatch: Accept a draft with another tokenizer. It proposes only tokens whose
            strings both vocabularies have, and reads the text in tokens of its own.
        adaptive: Whether the controller decides how many tokens it drafts, if any; else always
            `max_draft`. Under ``acceptance="rejection"`` a seed repeats its text only without.
        device: Where it runs, as for `Generator`; None: where the target does, all of it.
    """

    path: str | os.PathLike[str]
    max_draft: int = 4
    n_ctx: int | None = None
    tree: Tree = None
    draft_vocab: int | Sequence[int] | None = None
    min_confidence: float = 0.0
    allow_vocab_mismatch: bool = False
    adaptive: bool = True
    device: str | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is out of range; the message names it.
        """
        _check_whole("max_draft", self.max_draft, 1, _MAX_DRAFT)
        if self.n_ctx is not None:
            _check_whole("n_ctx", self.n_ctx, 2, 2**24)
        object.__setattr__(self, "tree", _checked_tree(self.tree))
        sure = self.min_confidence
        if isinstance(sure, bool) or not isinstance(sure, (int, float)) or not 0 <= sure < 1:
            raise ValueError(f"min_confidence is {sure!r}; it must be a number from 0 to below 1")
        if isinstance(self.draft_vocab, Sequence) and not isinstance(self.draft_vocab, str):
            for token in self.draft_vocab:
                _check_whole("a token of draft_vocab", token, 0, 2**31 - 1)
            object.__setattr__(self, "draft_vocab", tuple(sorted(set(self.draft_vocab))))
        elif self.draft_vocab is not None:
            _check_whole("draft_vocab", self.draft_vocab, 1, 2**31 - 1)


@dataclass(frozen=True)
class LayerSkipDraft:
    """Drafting with some of the target's own layers (arXiv 2309.08168), on the target's own cache.

    Costs no memory. The rows that a draft writes to the cache are provisional: the pass that
    verifies it overwrites them in every layer.

    Attributes:
        layers: How many of the target's layers run: the first, the last, and between them at
            equal distances. Or the indices of those that run, ascending from 0.
        max_draft: Most tokens proposed in a round, 1 to 64.
        adaptive: Whether the controller decides how many tokens it drafts, if any; else always
            `max_draft`.
    """

    layers: int | Sequence[int]
    max_draft: int = 4
    adaptive: bool = True

    def __post_init__(self) -> None:
        """Checks the numbers; whether the target has such layers is checked at load.

        Raises:
            ValueError: One is out of range; the message names it.
        """
        _check_whole("max_draft", self.max_draft, 1, _MAX_DRAFT)
        if not isinstance(self.layers, Sequence):
            _check_whole("layers", self.layers, 1, 2**16)
            return
        if isinstance(self.layers, str) or not self.layers:
            raise ValueError(f"layers is {self.layers!r}; give a number, or a list of layers")
        for layer in self.layers:
            _check_whole("a layer", layer, 0, 2**16)
        object.__setattr__(self, "layers", tuple(self.layers))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the fields as JSON, for ``load`` and for ``layerskip:FILE.json``."""
        Path(os.fspath(path)).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LayerSkipDraft:
        """Reads what ``save`` wrote.

        Raises:
            ValueError: The file is no such JSON; the message names it.
            FileNotFoundError: There is none.
            OSError: It cannot be read.
        """
        try:
            text = Path(os.fspath(path)).read_text(encoding="utf-8")
        except OSError as error:
            raise type(error)(
                f"{os.fspath(path)}: no saved layers can be read there "
                f"({error.strerror or error}); make the file with specdec layers, or name the "
                "layers themselves, as in layerskip:0,1,5"
            ) from None
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: no saved LayerSkipDraft ({error})") from None
        try:
            values = json.loads(text)
            if not isinstance(values, dict) or not {"layers"} <= set(values) <= _LAYER_SKIP_FIELDS:
                raise ValueError("it holds other fields than one")
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{os.fspath(path)}: no saved LayerSkipDraft ({error})") from None


@dataclass(frozen=True)
class MedusaDraft:
    """Drafting with Medusa heads (arXiv 2401.10774), as a static tree.

    Attributes:
        path: A GGUF file made by ``specdec convert``.
        max_draft: Most tokens proposed in a round, 1 to 64: the nodes of the tree.
        tree: None: the heaviest paths of ranks, where each step down halves the weight and the
            token of rank r weighs 1 / (r + 1). A number: the same with at most so many children
            per node; 1 is a chain. Or the paths themselves: ``[[0], [1], [0, 0]]`` is the likeliest
            token, the second likeliest, and the likeliest after the first.
        adaptive: Whether the controller decides if it drafts; else always.
        device: None, or the device of the target's output head: the heads run nowhere else.
    """

    path: str | os.PathLike[str]
    max_draft: int = 16
    tree: Tree = None
    adaptive: bool = True
    device: str | None = None

    def __post_init__(self) -> None:
        """Checks the numbers; whether there are as many heads is checked at load.

        Raises:
            ValueError: One is out of range; the message names it.
        """
        _check_whole("max_draft", self.max_draft, 1, _MAX_DRAFT)
        object.__setattr__(self, "tree", _checked_tree(self.tree))


@dataclass(frozen=True)
class EagleDraft:
    """Drafting with an EAGLE-3 head (arXiv 2503.01840): one layer, fed with the target's states.

    Attributes:
        path: A GGUF file made by ``specdec convert``, or by llama.cpp's converter.
        max_draft: Most tokens proposed in a round, 1 to 64.
        tree: None: a chain, drawn with the request's sampling. A number: a tree of the likeliest
            tokens, at most so many children per node, grown where the head is confident (arXiv
            2406.16858) up to `max_draft` nodes. Or a fixed tree, see `MedusaDraft`.
        adaptive: Whether the controller decides how many tokens it drafts, if any; else always
            `max_draft`.
        device: None, or the device of the target's output head: the head runs nowhere else.
    """

    path: str | os.PathLike[str]
    max_draft: int = 4
    tree: Tree = None
    adaptive: bool = True
    device: str | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is out of range; the message names it.
        """
        _check_whole("max_draft", self.max_draft, 1, _MAX_DRAFT)
        object.__setattr__(self, "tree", _checked_tree(self.tree))


_LAYER_SKIP_FIELDS = {one.name for one in fields(LayerSkipDraft)}

Drafter = NgramDraft | SuffixDraft | DraftModel | LayerSkipDraft | MedusaDraft | EagleDraft


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
    if isinstance(draft, Drafter):
        return [draft]
    if isinstance(draft, (str, os.PathLike)):
        return [_parse_name(os.fspath(draft))]
    if isinstance(draft, Sequence) and not isinstance(draft, (bytes, bytearray)):
        return [one for item in draft for one in parse_draft(item)]
    raise TypeError(f"draft is {draft!r}; give None, a name, a path, a drafter or a list of these")


def drafter_label(drafter: Drafter) -> str:
    """What a drafter is called in a table: a model's file, or the kind."""
    if isinstance(drafter, DraftModel):
        return Path(drafter.path).name
    if isinstance(drafter, LayerSkipDraft):
        return "layerskip"
    if isinstance(drafter, EagleDraft):
        return "eagle"
    if isinstance(drafter, SuffixDraft):
        return "suffix"
    return "medusa" if isinstance(drafter, MedusaDraft) else "ngram"


def _checked_tree(tree: Tree) -> Tree:
    if tree is None:
        return None
    if not isinstance(tree, Sequence) or isinstance(tree, str):
        _check_whole("tree", tree, 1, _MAX_DRAFT)
        return tree
    if not 1 <= len(tree) <= _MAX_DRAFT:
        raise ValueError(f"tree has {len(tree)} nodes; it must have 1 to {_MAX_DRAFT}")
    for path in tree:
        if not isinstance(path, Sequence) or isinstance(path, str):
            raise ValueError(f"tree holds {path!r}; each node is a path of ranks, such as [0, 1]")
        for rank in path:
            _check_whole("a rank of tree", rank, 0, 1023)
    return tuple(tuple(path) for path in tree)


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def _parse_name(name: str) -> Drafter:
    if name in ("auto", "suffix"):
        return SuffixDraft()
    if name == "ngram":
        return NgramDraft()
    kind, _, rest = name.partition(":")
    if kind == "medusa" and rest:
        return MedusaDraft(rest)
    if kind == "eagle" and rest:
        return EagleDraft(rest)
    if kind == "layerskip":
        return _parse_layer_skip(rest)
    if name.endswith(".gguf") or os.sep in name or "/" in name or name in KNOWN_MODELS:
        return DraftModel(name)
    raise ValueError(
        f"draft is {name!r}; known are 'auto', 'suffix', 'ngram', 'layerskip:N', "
        "'medusa:PATH', 'eagle:PATH', and a path to a GGUF file (with a separator or ending in "
        ".gguf)"
    )


def _parse_layer_skip(text: str) -> LayerSkipDraft:
    """``N`` layers, a list with a comma: ``0,1,5`` or ``3,``, or a saved ``FILE.json``."""
    if text.endswith(".json"):
        return LayerSkipDraft.load(text)
    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(
            f"draft is 'layerskip:{text}'; give how many of the target's layers run, as in "
            "layerskip:10, which, as in layerskip:0,1,2,5, or a file of specdec layers (.json)"
        )
    numbers = [int(part) for part in parts]
    return LayerSkipDraft(numbers if "," in text else numbers[0])
