"""From the descriptions in `drafters` to the engine's objects."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.drafters import (
    Drafter,
    DraftModel,
    EagleDraft,
    LayerSkipDraft,
    MedusaDraft,
    NgramDraft,
    SuffixDraft,
    Tree,
)
from specdec_native.errors import IncompatibleModelsError, naming_file
from specdec_native.models import resolve_model
from specdec_native.placement import same_device
from specdec_native.text import Tokenizer
from specdec_native.text.translation import TokenTranslator

__all__ = ["build_drafter"]


def build_drafter(
    drafter: Drafter,
    target: _core.Model,
    *,
    n_ctx: int,
    kv_type: str,
    load: Callable[[DraftModel], _core.Model],
) -> _core.Drafter:
    """Loads what a drafter needs and checks that it fits the target.

    Args:
        drafter: What to build.
        target: The model it drafts for.
        n_ctx: Positions of the target's context.
        kv_type: Type of the caches.
        load: Loads a draft model where its description says.

    Returns:
        The engine's drafter.

    Raises:
        GgufError: A file is damaged or not supported.
        IncompatibleModelsError: It does not fit the target.
        ValueError: The target has no such layers.
    """
    built = _build(drafter, target, n_ctx, kv_type, load)
    built.adaptive = drafter.adaptive
    return built


def _build(
    drafter: Drafter,
    target: _core.Model,
    n_ctx: int,
    kv_type: str,
    load: Callable[[DraftModel], _core.Model],
) -> _core.Drafter:
    if isinstance(drafter, SuffixDraft):
        return _build_suffix(drafter, target)
    if isinstance(drafter, NgramDraft):
        return _core.NgramDrafter(drafter.max_draft, drafter.min_ngram, drafter.max_ngram)
    if isinstance(drafter, LayerSkipDraft):
        return _core.LayerSkipDrafter(target, _layers(drafter, target), drafter.max_draft)
    if isinstance(drafter, MedusaDraft):
        _check_device(drafter, target)
        return _build_medusa(drafter, target)
    if isinstance(drafter, EagleDraft):
        _check_device(drafter, target)
        head = _core.EagleHead.load(str(_checked_heads(drafter.path, target)), target)
        shape = _growing(drafter.tree)
        return _core.EagleDrafter(head, n_ctx, kv_type, drafter.max_draft, **shape)
    return _build_draft_model(drafter, target, n_ctx, kv_type, load)


def _build_suffix(drafter: SuffixDraft, target: _core.Model) -> _core.Drafter:
    return _core.SuffixDrafter(
        drafter.max_draft,
        drafter.min_match,
        drafter.max_match,
        drafter.branches,
        drafter.min_score,
        None if drafter.corpus is None else os.fspath(drafter.corpus),
        target,
    )


def _layers(drafter: LayerSkipDraft, target: _core.Model) -> list[int]:
    if isinstance(drafter.layers, int):
        return _core.spread_layers(drafter.layers, target.layers)
    return list(drafter.layers)


def _build_medusa(drafter: MedusaDraft, target: _core.Model) -> _core.Drafter:
    heads = _core.MedusaHeads.load(str(_checked_heads(drafter.path, target)), target)
    return _core.MedusaDrafter(heads, _paths(drafter.tree, drafter.max_draft, heads.heads))


def _check_device(drafter: MedusaDraft | EagleDraft, target: _core.Model) -> None:
    home = target.spans[-1][0]
    if drafter.device is None or same_device(drafter.device, home):
        return
    raise ValueError(
        f"drafting heads were asked to run on {drafter.device!r}, but they read hidden states of "
        f"the target and run where its output head is, on {home!r}; leave out device, or move the "
        "target"
    )


def _checked_heads(path: str | os.PathLike[str], target: _core.Model) -> Path:
    """The file, its vocabulary compared with the target's where it says which it was made for."""
    found = resolve_model(path)
    file = _core.GgufFile(found)
    if "tokenizer.ggml.tokens" in file.metadata:
        _core.check_same_vocabulary(target.file, file)
    return found


def _paths(tree: Tree, nodes: int, depth: int) -> list[list[int]]:
    """The paths of ranks of a static tree."""
    if tree is None or isinstance(tree, int):
        return _core.heaviest_ranks(nodes, depth, nodes if tree is None else tree)
    return [list(path) for path in tree][:nodes]


def _build_draft_model(
    drafter: DraftModel,
    target: _core.Model,
    n_ctx: int,
    kv_type: str,
    load: Callable[[DraftModel], _core.Model],
) -> _core.Drafter:
    model = load(drafter)
    translator = _translator(drafter, target, model)
    positions = min(drafter.n_ctx or n_ctx, n_ctx, model.trained_context)
    if positions < n_ctx:
        warnings.warn(
            f"the draft's context of {positions} positions is shorter than the target's of "
            f"{n_ctx}; where a text outgrows it, decoding goes on without the draft",
            stacklevel=2,
        )
    made = _core.DraftModelDrafter(
        model, positions, kv_type, drafter.max_draft, **_growing(drafter.tree)
    )
    made.set_min_confidence(drafter.min_confidence)
    target_of = _ids_in_range(translator, target, model) if translator else []
    if translator or drafter.draft_vocab is not None:
        made.reduce_vocabulary(_scored(drafter, model, target_of), target_of)
    if translator:
        made.translate_text(translator)
    return made


def _translator(
    drafter: DraftModel, target: _core.Model, draft: _core.Model
) -> TokenTranslator | None:
    """What turns the target's tokens into the draft's; None if they are the same."""
    try:
        _core.check_same_vocabulary(target.file, draft.file)
    except IncompatibleModelsError as error:
        if not drafter.allow_vocab_mismatch:
            raise
        tokenizers = []
        for one in (target, draft):
            with naming_file(one.file.path):
                tokenizers.append(Tokenizer.from_metadata(one.file.metadata))
        translator = TokenTranslator(*tokenizers)
        shared = sum(token >= 0 for token in translator.target_of)
        if not shared:
            raise IncompatibleModelsError(
                f"{error} With allow_vocab_mismatch the tokens of equal strings would be used, but "
                "there are none: choose another draft."
            ) from None
        warnings.warn(
            f"the draft has another vocabulary: it proposes the {shared:,} of its "
            f"{len(translator.target_of):,} tokens that the target has as well",
            stacklevel=2,
        )
        return translator
    return None


def _ids_in_range(
    translator: TokenTranslator, target: _core.Model, draft: _core.Model
) -> list[int]:
    """The target's ids of the draft's real tokens; padding of either has none."""
    return [one if one < target.vocab else -1 for one in translator.target_of[: draft.vocab]]


def _scored(drafter: DraftModel, draft: _core.Model, target_of: list[int]) -> list[int]:
    """The draft's tokens that its head computes."""
    wanted = drafter.draft_vocab
    size = draft.vocab
    usable = [token for token in range(size) if not target_of or target_of[token] >= 0]
    if wanted is None:
        return usable
    if isinstance(wanted, int):
        return usable[:wanted]
    beyond = [token for token in wanted if token >= size]
    if beyond:
        raise ValueError(
            f"draft_vocab holds the token {beyond[0]}; the draft has the ids 0 to {size - 1}"
        )
    chosen = sorted(set(wanted).intersection(usable))
    if not chosen:
        raise ValueError("draft_vocab holds no token that the target has as well")
    return chosen


def _growing(tree: Tree) -> dict[str, Any]:
    """Arguments for a drafter that scores node by node: a chain, a growing or a fixed tree."""
    if tree is None or isinstance(tree, int):
        return {"branches": tree or 0}
    return {"paths": [list(path) for path in tree]}
