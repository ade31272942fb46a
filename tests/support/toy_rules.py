"""Toy tasks for the acceptance rules, and rules written in NumPy: a right one and wrong ones.

A toy model looks at the last token only: row t of ``target_logits`` scores the token after t, and
row t of ``draft_weights`` is what the drafter draws from after t. A *rule* maps
``(task, seed, trials)`` to the counts of all texts of ``task.length`` tokens. The wrong rules are
faults that engines have shipped; a test that cannot tell them from the right one is worthless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.sampling_oracle import filtered_probabilities


@dataclass(frozen=True)
class ToyTask:
    """Target, drafter, shape of the proposal and filters of one statistical test."""

    name: str
    target_logits: np.ndarray  # [V, V]
    draft_weights: np.ndarray  # [V, V]
    parents: tuple[int, ...]
    sampled: tuple[bool, ...]  # False: the drafter's likeliest token, deterministic
    length: int = 1
    filters: dict[str, Any] = field(default_factory=dict)

    def target(self) -> np.ndarray:
        """The filtered target distribution after each token, [V, V]."""
        return np.stack([filtered_probabilities(row, **self.filters) for row in self.target_logits])

    def text_probabilities(self) -> np.ndarray:
        """Probability of every text of ``length`` tokens after token 0, first token outermost."""
        target = self.target()
        texts = target[0]
        for _ in range(self.length - 1):
            last = np.tile(np.arange(len(target)), texts.size // len(target))
            texts = (texts[:, None] * target[last]).ravel()
        return texts


Rule = Callable[[ToyTask, int, int], np.ndarray]


class NumpyRule:
    """Sequential acceptance over siblings (arXiv 2211.17192, 2302.01318, 2305.09781), vectorised.

    Subclasses replace one step by a wrong one.
    """

    # Siblings are drawn without replacement, each from what the elder ones left.
    excludes_elder_siblings = True

    def __call__(self, task: ToyTask, seed: int, trials: int) -> np.ndarray:
        """Writes the texts by speculative rounds and counts them."""
        rng = np.random.default_rng(seed)
        target = task.target()
        vocab = len(target)
        text = np.full((trials, task.length), -1)
        written = np.zeros(trials, int)
        pending = np.zeros(trials, int)
        while np.any(written < task.length):
            active = np.flatnonzero(written < task.length)
            for emitted in self._play_round(task, target, pending[active], rng):
                live = (emitted >= 0) & (written[active] < task.length)
                rows = active[live]
                text[rows, written[rows]] = emitted[live]
                written[rows] += 1
                pending[rows] = emitted[live]
        outcome = text @ (vocab ** np.arange(task.length)[::-1])
        return np.bincount(outcome, minlength=vocab**task.length)

    def accept_probability(self, remaining: np.ndarray, draft: np.ndarray) -> np.ndarray:
        """Of the drafted token, given its probabilities. All [B]."""
        return np.minimum(1.0, remaining / draft)

    def leftover(self, remaining: np.ndarray, draft: np.ndarray) -> np.ndarray:
        """The distribution after a rejection. All [B, V]."""
        positive = np.maximum(remaining - draft, 0.0)
        total = positive.sum(axis=1, keepdims=True)
        # Equal up to rounding: such a rejection has no weight, and the target is as good.
        empty = total < 1e-12
        return np.where(empty, remaining, positive / np.where(empty, 1.0, total))

    def coins(self, rng: np.random.Generator, size: int, shared: np.ndarray) -> np.ndarray:
        """A coin per trial for the next sibling; ``shared`` was drawn for the whole node."""
        return rng.random(size)

    def tries(self, draft_prob: np.ndarray, duplicate: np.ndarray) -> np.ndarray:
        """Is the drafted token put to the test?

        Its draft probability, and whether an elder sibling is the same token. All [B].
        """
        return np.ones(len(draft_prob), bool)

    def _play_round(self, task, target, pending, rng):
        """Yields one array [B] of emitted tokens per place of the round, -1 for none."""
        tokens, drafts = propose(task, pending, rng, self.excludes_elder_siblings)
        size = len(pending)
        rows = np.arange(size)
        node = np.full(size, -1)
        remaining = target[pending]
        shared = rng.random(size)
        for i, parent in enumerate(task.parents):
            token, draft = tokens[i], drafts[i]
            elders = [tokens[j] for j in range(i) if task.parents[j] == parent]
            duplicate = np.any([token == elder for elder in elders], axis=0) & np.ones(size, bool)
            here = (node == parent) & self.tries(draft[rows, token], duplicate)
            chance = self.accept_probability(remaining[rows, token], draft[rows, token])
            accepted = here & (self.coins(rng, size, shared) < chance)
            rejected = here & ~accepted
            remaining = np.where(rejected[:, None], self.leftover(remaining, draft), remaining)
            remaining = np.where(accepted[:, None], target[token], remaining)
            shared = np.where(accepted, rng.random(size), shared)
            node = np.where(accepted, i, node)
            yield np.where(accepted, token, -1)
        yield draw(remaining, rng)


class SoftmaxOfResidual(NumpyRule):
    """Wrong: the residual goes through a softmax instead of being renormalised."""

    def leftover(self, remaining, draft):
        """See the class."""
        exponential = np.exp(np.maximum(remaining - draft, 0.0))
        return exponential / exponential.sum(axis=1, keepdims=True)


class RatioWithoutDraft(NumpyRule):
    """Wrong: a drafted token stands with the target's probability, whatever the draft's was."""

    def accept_probability(self, remaining, draft):
        """See the class."""
        return np.minimum(1.0, remaining)


class SharedCoin(NumpyRule):
    """Wrong: siblings are tried with one coin."""

    def coins(self, rng, size, shared):
        """See the class."""
        return shared


class ResidualNotUpdated(NumpyRule):
    """Wrong: later siblings, and the recovered token, meet the target as if none was rejected."""

    def leftover(self, remaining, draft):
        """See the class."""
        return remaining


class StopsOnTheDrawnToken(NumpyRule):
    """Wrong: a draft ends before a token because that one, once drawn, was unlikely."""

    def tries(self, draft_prob, duplicate):
        """See the class."""
        return draft_prob >= 0.2


class DuplicatesDropped(NumpyRule):
    """Wrong: siblings are drawn with replacement, and one that was drawn before is dropped."""

    excludes_elder_siblings = False

    def tries(self, draft_prob, duplicate):
        """See the class."""
        return ~duplicate


class WithReplacement(NumpyRule):
    """Right: siblings are drawn with replacement, and all are tried."""

    excludes_elder_siblings = False


def propose(
    task: ToyTask,
    pending: np.ndarray,
    rng: np.random.Generator,
    excludes_elder_siblings: bool,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Drafts a tree for each pending token: tokens m x [B] and draft distributions m x [B, V].

    Each distribution excludes the elder siblings' tokens, or not.
    """
    tokens: list[np.ndarray] = []
    drafts: list[np.ndarray] = []
    rows = np.arange(len(pending))
    for i, parent in enumerate(task.parents):
        weights = task.draft_weights[pending if parent < 0 else tokens[parent]].copy()
        for j in range(i):
            if excludes_elder_siblings and task.parents[j] == parent:
                weights[rows, tokens[j]] = 0.0
        if task.sampled[i]:
            draft = weights / weights.sum(axis=1, keepdims=True)
            tokens.append(draw(draft, rng))
        else:
            tokens.append(np.argmax(weights, axis=1))
            draft = np.eye(weights.shape[1])[tokens[-1]]
        drafts.append(draft)
    return tokens, drafts


def draw(distribution: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws a token from each row of ``distribution`` [B, V]."""
    running = np.cumsum(distribution, axis=1)
    threshold = rng.random(len(distribution)) * running[:, -1]
    return np.argmax(running > threshold[:, None], axis=1)
