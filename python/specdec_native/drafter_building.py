"""From the descriptions in `drafters` to the engine's objects."""

from __future__ import annotations

import os
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
    Tree,
)
from specdec_native.models import resolve_model

__all__ = ["build_drafter"]


def build_drafter(
    drafter: Drafter,
    target: _core.Model,
    *,
    n_ctx: int,
    kv_type: str,
    load: Callable[[str | os.PathLike[str]], _core.Model],
) -> _core.Drafter:
    """Loads what a drafter needs and checks that it fits the target.

    Args:
        drafter: What to build.
        target: The model it drafts for.
        n_ctx: Positions of the target's context.
        kv_type: Type of the caches.
        load: Loads a draft model from a path or a known name.

    Returns:
        The engine's drafter.

    Raises:
        GgufError: A file is damaged or not supported.
        IncompatibleModelsError: It does not fit the target.
        ValueError: The target has no such layers.
    """
    if isinstance(drafter, NgramDraft):
        return _core.NgramDrafter(drafter.max_draft, drafter.min_ngram, drafter.max_ngram)
    if isinstance(drafter, LayerSkipDraft):
        return _core.LayerSkipDrafter(target, _layers(drafter, target), drafter.max_draft)
    if isinstance(drafter, MedusaDraft):
        return _build_medusa(drafter, target)
    if isinstance(drafter, EagleDraft):
        head = _core.EagleHead.load(str(_checked_heads(drafter.path, target)), target)
        shape = _growing(drafter.tree)
        return _core.EagleDrafter(head, n_ctx, kv_type, drafter.max_draft, **shape)
    return _build_draft_model(drafter, target, n_ctx, kv_type, load)


def _layers(drafter: LayerSkipDraft, target: _core.Model) -> list[int]:
    if isinstance(drafter.layers, int):
        return _core.spread_layers(drafter.layers, target.layers)
    return list(drafter.layers)


def _build_medusa(drafter: MedusaDraft, target: _core.Model) -> _core.Drafter:
    heads = _core.MedusaHeads.load(str(_checked_heads(drafter.path, target)), target)
    return _core.MedusaDrafter(heads, _paths(drafter.tree, drafter.max_draft, heads.heads))


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
    load: Callable[[str | os.PathLike[str]], _core.Model],
) -> _core.Drafter:
    model = load(drafter.path)
    _core.check_same_vocabulary(target.file, model.file)
    positions = min(drafter.n_ctx or n_ctx, n_ctx, model.trained_context)
    return _core.DraftModelDrafter(
        model, positions, kv_type, drafter.max_draft, **_growing(drafter.tree)
    )


def _growing(tree: Tree) -> dict[str, Any]:
    """Arguments for a drafter that scores node by node: a chain, a growing or a fixed tree."""
    if tree is None or isinstance(tree, int):
        return {"branches": tree or 0}
    return {"paths": [list(path) for path in tree]}
