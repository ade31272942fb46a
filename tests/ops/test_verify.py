"""The verify walk on hand-made proposals: greedy, coupled, rejection, and inputs at the edge."""

from __future__ import annotations

import numpy as np
import pytest

import specdec_native as sd
from specdec_native import _core
from support.backends import BACKENDS, make_backend

testing = _core.testing
SEEDS = range(200)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return make_backend(request.param)


def peaked(*tokens, vocab=6):
    """Logits rows whose argmax are ``tokens``."""
    logits = np.zeros((len(tokens), vocab), np.float32)
    logits[np.arange(len(tokens)), tokens] = 5.0
    return logits


def greedy(backend, logits, tokens, parents, **options):
    rows = [-1] * len(tokens)
    return backend.verify(logits, tokens, parents, rows, temperature=0.0, **options)


def deterministic(backend, logits, tokens, parents, **options):
    rows = [-1] * len(tokens)
    return backend.verify(logits, tokens, parents, rows, rule="rejection", **options)


@pytest.mark.parametrize(
    ("tokens", "parents", "expected"),
    [
        ([], [], ([], 1)),
        ([1, 2, 3], [-1, 0, 1], ([0, 1, 2], 4)),  # all accepted, bonus
        ([1, 5, 3], [-1, 0, 1], ([0], 2)),  # rejected in the middle; node 2 is not reached
        ([5, 2, 3], [-1, 0, 1], ([], 1)),  # rejected at once
        ([5, 1, 3], [-1, -1, 1], ([1, 2], 4)),  # the second sibling stands
        ([1, 1, 2], [-1, -1, 1], ([0], 2)),  # duplicate: the first, which is a leaf
    ],
)
def test_greedy_walk(backend, tokens, parents, expected):
    logits = peaked(1, 2, 3, 4)[: len(tokens) + 1]
    assert greedy(backend, logits, tokens, parents) == expected


def test_greedy_ties_go_to_the_lowest_id(backend):
    logits = np.zeros((2, 6), np.float32)
    logits[:, [2, 4]] = 1.0
    assert greedy(backend, logits, [2], [-1]) == ([0], 2)
    assert greedy(backend, logits, [4], [-1]) == ([], 2)


def test_greedy_is_the_same_under_both_rules(backend):
    logits = peaked(1, 2)
    for rule in ("coupled", "rejection"):
        assert backend.verify(logits, [1], [-1], [-1], temperature=0.0, rule=rule) == ([0], 2)


def test_coupled_follows_the_targets_own_draws(backend):
    """The walk accepts exactly what drawing without a proposal gives, position by position."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 1, (3, 6)).astype(np.float32)
    for seed in SEEDS:
        drawn = [
            backend.draw(backend.distribution(row, top_k=4)[0], seed, 10 + depth)
            for depth, row in enumerate(logits)
        ]
        options = {"rule": "coupled", "seed": seed, "position": 10, "top_k": 4}
        path, following = backend.verify(logits, drawn[:2], [-1, 0], [-1, -1], **options)
        assert (path, following) == ([0, 1], drawn[2])
        wrong = [(drawn[0] + 1) % 6, drawn[1]]
        path, following = backend.verify(logits, wrong, [-1, 0], [-1, -1], **options)
        assert (path, following) == ([], drawn[0])


def test_each_row_has_its_own_mask(backend):
    """Row 0 masks the token after the pending one, row i + 1 the token after node i."""
    logits = peaked(1, 2, 3)
    mask = np.ones((3, 6), bool)
    mask[1, 2] = False  # after node 0
    mask[1, 3:] = False
    assert greedy(backend, logits, [1, 2], [-1, 0], mask=mask) == ([0], 0)
    for seed in SEEDS:
        path, following = deterministic(backend, logits, [1, 2], [-1, 0], mask=mask, seed=seed)
        assert path != [0, 1]
        assert path == [] or following in (0, 1)


def test_mask_words_beyond_the_first(backend):
    logits = np.zeros((2, 70), np.float32)
    logits[:, 69] = 1.0
    mask = np.ones((2, 70), bool)
    mask[1] = False
    mask[1, 40] = True
    assert greedy(backend, logits, [69], [-1], mask=mask) == ([0], 40)


def test_penalties_count_the_ancestors_of_each_row(backend):
    """With a frequency penalty of 2 each row wants what its own path has made it want."""
    logits = np.tile(np.array([0.0, 5.0, 4.0, 3.0, 2.5, 0.0], np.float32), (6, 1))
    penalty = {"frequency_penalty": 2.0, "prompt": [1, 1], "output": []}
    chain = [-1, 0, 1, 2, 3]
    assert greedy(backend, logits, [1, 2, 1, 3, 4], chain, **penalty) == ([0, 1, 2, 3, 4], 2)
    assert greedy(backend, logits, [1, 1, 2, 3, 4], chain, **penalty) == ([0], 2)
    # The output before the proposal counts from the first row on.
    said = {**penalty, "output": [1]}
    assert greedy(backend, logits, [2, 1, 3, 4, 1], chain, **said) == ([0, 1, 2, 3], 2)
    # A rejected elder sibling leaves no trace, nor does the walk before.
    tree = [-1, -1, 0, 1, 3]
    for _ in range(2):
        verdict = greedy(backend, logits, [2, 1, 1, 2, 1], tree, **penalty)
        assert verdict == ([1, 3, 4], 3)


def test_repetition_penalty_and_bias_act_on_every_row(backend):
    logits = peaked(1, 1, 1)
    tokens, chain = [1, 1], [-1, 0]
    assert greedy(backend, logits, tokens, chain) == ([0, 1], 1)
    for row in range(3):
        # A bias of 5.5 on token 2 wins over the peak, which the draft proposes.
        biased = logits.copy()
        biased[row, 2] = 0.5
        verdict = greedy(backend, biased, tokens, chain, logit_bias={2: 5.0})
        assert verdict == (list(range(row)), 2)
    # Token 1 is new to the text for the first row only.
    logits[:, 2] = 4.0
    assert greedy(backend, logits, tokens, chain, repetition_penalty=1.3) == ([0], 2)
    assert greedy(backend, logits, tokens, chain, repetition_penalty=1.3, prompt=[1]) == ([], 2)


@pytest.mark.parametrize("chain", [{"typical_p": 0.3}, {"presence_penalty": 1.5}, {"min_p": 0.3}])
def test_coupled_walks_of_the_whole_chain_follow_serial_draws(backend, chain):
    """The path is what drawing token by token gives, each with the text before it."""
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 2, (5, 40)).astype(np.float32)
    accepted = 0
    for seed in range(100):
        drawn = []
        for depth, row in enumerate(logits):
            weights, _ = backend.distribution(row, prompt=[1, 2], output=[3, *drawn], **chain)
            drawn.append(backend.draw(weights, seed, 10 + depth))
        wrong_at = int(rng.integers(5))
        tokens = [t if i != wrong_at else (t + 1) % 40 for i, t in enumerate(drawn[:4])]
        text = {"prompt": [1, 2], "output": [3], "seed": seed, "position": 10}
        path, following = backend.verify(
            logits, tokens, [-1, 0, 1, 2], [-1] * 4, rule="coupled", **text, **chain
        )
        assert path == list(range(min(wrong_at, 4)))
        assert following == drawn[len(path)]
        accepted += len(path)
    assert accepted > 100


@pytest.mark.parametrize(
    "removal",
    [{"typical_p": 0.1}, {"logit_bias": {3: -np.inf}}, {"min_p": 0.3}, {"logit_bias": {3: -100.0}}],
)
def test_what_the_chain_removes_is_never_accepted(backend, removal):
    """R3: whatever the coin, and also where nothing else is left."""
    logits = np.tile(np.array([3.0, 3.0, 3.0, -1.0], np.float32), (2, 1))
    for seed in SEEDS:
        for rows, draft in ([[-1], None], [[0], np.eye(4, dtype=np.float32)[[3]]]):
            path, following = backend.verify(
                logits, [3], [-1], rows, draft, rule="rejection", seed=seed, **removal
            )
            assert path == []
            assert 0 <= following < 3


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_that_removes_everything_gives_a_token(backend, rule, temperature):
    """R3: the id is inside the vocabulary."""
    for seed in range(20):
        path, following = backend.verify(
            np.zeros((2, 4)),
            [3],
            [-1],
            [-1],
            rule=rule,
            temperature=temperature,
            seed=seed,
            logit_bias=dict.fromkeys(range(4), -np.inf),
        )
        assert (path, following) == ([], 0)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_ids_never_come_out(backend, rule, temperature):
    logits = np.zeros((2, 8), np.float32)
    logits[:, 5:] = 50.0
    for seed in SEEDS:
        path, following = backend.verify(
            logits, [7], [-1], [-1], rule=rule, temperature=temperature, seed=seed, vocab=5
        )
        assert path == []
        assert 0 <= following < 5


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampled", [False, True])
def test_tokens_outside_the_vocabulary_never_stand(backend, rule, temperature, sampled):
    strange = [-1, 6, 2**31 - 1, -(2**31), -7]
    count = len(strange)
    logits = np.zeros((count + 1, 6), np.float32)
    draft = np.ones((1, 6), np.float32)
    for seed in range(20):
        path, following = backend.verify(
            logits,
            strange,
            [-1] * count,
            [0 if sampled else -1] * count,
            draft,
            rule=rule,
            temperature=temperature,
            seed=seed,
        )
        assert path == []
        assert 0 <= following < 6


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_rows_of_nan_or_infinity_give_a_token(backend, rule, temperature, value):
    """R3: and its id is inside the vocabulary."""
    logits = np.full((3, 6), value, np.float32)
    draft = np.ones((2, 6), np.float32)
    for seed in range(20):
        path, following = backend.verify(
            logits, [0, 3], [-1, 0], [0, 1], draft, rule=rule, temperature=temperature, seed=seed
        )
        assert len(path) <= 2
        assert 0 <= following < 6


def test_removed_tokens_are_never_accepted(backend):
    """R3."""
    logits = peaked(1, 1)
    for seed in SEEDS:
        for rows, draft in ([[-1], None], [[0], np.eye(6, dtype=np.float32)[[3]]]):
            path, following = backend.verify(
                logits, [3], [-1], rows, draft, rule="rejection", top_k=1, seed=seed
            )
            assert (path, following) == ([], 1)


def test_zero_coin_does_not_accept_the_impossible():
    """R3."""
    assert not testing.accepts(coin=0.0, target=0, target_left=100, draft_prob=0.5)
    assert not testing.accepts(coin=0.0, target=0, target_left=0, draft_prob=0.5)
    assert not testing.accepts(coin=0.0, target=0, target_left=100, draft_prob=0.0)
    assert testing.accepts(coin=0.0, target=1, target_left=2**62, draft_prob=1.0)


def test_accepts_is_the_ratio():
    for coin, stands in [(0.0, True), (0.49, True), (0.5, False), (0.99, False)]:
        assert testing.accepts(coin, target=25, target_left=100, draft_prob=0.5) == stands
    assert testing.accepts(1.0 - 2.0**-53, target=50, target_left=100, draft_prob=0.5)


def test_equal_draft_stands_whatever_the_coin():
    """No rounding may reject a draft that equals the target: the coin is below 1."""
    rng = np.random.default_rng(0)
    for mass in rng.integers(1, 2**44, 2000):
        total = int(mass) + int(rng.integers(0, 2**50))
        assert testing.accepts(1.0 - 2.0**-53, int(mass), total, int(mass) / total)


def test_zero_residual_falls_back_to_the_target(backend):
    """R3: a dishonest draft leaves nothing; tokens without probability still never come out."""
    target = np.array([0.5, 0.3, 0.2, 0.0, 0.0, 0.0])
    with np.errstate(divide="ignore"):
        logits = np.log(np.stack([target, target]))
    draft = backend.distribution(logits[0])[0][None]
    seen = set()
    for seed in SEEDS:
        path, following = backend.verify(logits, [4], [-1], [0], draft, rule="rejection", seed=seed)
        assert path == []
        seen.add(following)
    assert seen == {0, 1, 2}


def test_certain_token_rejected_by_none(backend):
    """A deterministic token that is all of the target stands; its duplicate leaves nothing odd."""
    logits = peaked(2, 3, 3) * 100
    for seed in range(50):
        assert deterministic(backend, logits, [2, 2], [-1, -1], seed=seed) == ([0], 3)


def test_duplicate_siblings_are_safe(backend):
    logits = np.zeros((5, 4), np.float32)
    draft = np.ones((1, 4), np.float32)
    for rows in ([-1] * 4, [0] * 4):
        outcomes = set()
        for seed in SEEDS:
            path, following = backend.verify(
                logits, [1] * 4, [-1] * 4, rows, draft, rule="rejection", seed=seed
            )
            outcomes.add((tuple(path), following))
            assert path in ([], [0])  # once rejected, the token has no share left
            assert path or following != 1
        assert len(outcomes) > 3


def test_draft_rows_without_mass_count_as_deterministic(backend):
    logits = peaked(2, 3)
    for seed in SEEDS:
        sampled = backend.verify(
            logits, [2], [-1], [0], np.zeros((1, 6), np.float32), rule="rejection", seed=seed
        )
        assert sampled == deterministic(backend, logits, [2], [-1], seed=seed)


def test_rejection_repeats_with_its_seed_and_position(backend):
    logits = np.zeros((3, 50), np.float32)
    results = [
        deterministic(backend, logits, [4, 5], [-1, 0], seed=seed, position=position)
        for seed in (1, 1, 2)
        for position in (0, 1)
    ]
    assert results[0] == results[2]
    assert results[1] == results[3]
    assert len({following for _, following in results}) > 2


def test_every_backend_gives_the_same_verdicts():
    ref, cpu = make_backend("ref"), make_backend("cpu")
    rng = np.random.default_rng(4)
    parents = [-1, -1, 0, 0, 1, 2, 5]
    for seed in range(100):
        vocab = int(rng.integers(2, 300))
        logits = rng.normal(0, 2, (8, vocab + 3)).astype(np.float32)
        draft = rng.random((3, vocab)).astype(np.float32)
        tokens = rng.integers(0, min(vocab, 8), 7)
        chain = {} if seed % 2 else {"typical_p": 0.9, "frequency_penalty": 0.3, "output": [0, 1]}
        for rule in ("coupled", "rejection"):
            verdicts = [
                backend.verify(
                    logits,
                    tokens,
                    parents,
                    [0, 1, -1, 2, 0, -1, 1],
                    draft,
                    rule=rule,
                    seed=seed,
                    vocab=vocab,
                    top_p=0.95,
                    **chain,
                )
                for backend in (ref, cpu)
            ]
            assert verdicts[0] == verdicts[1]


def test_wrong_inputs_are_refused(backend):
    logits = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match=r"logits has shape \[2, 4\], expected \[3, any\]"):
        backend.verify(logits, [1, 1], [-1, 0], [-1, -1])
    with pytest.raises(ValueError, match=r"parents\[0\] is 0"):
        backend.verify(logits, [1], [0], [-1])
    for row, drafts, count in ((0, None, 0), (1, np.ones((1, 4)), 1), (-2, np.ones((1, 4)), 1)):
        with pytest.raises(
            sd.InternalError, match=f"node 0 has draft distribution {row} of {count}"
        ):
            backend.verify(logits, [1], [-1], [row], drafts)
    with pytest.raises(ValueError, match="vocab is 5"):
        backend.verify(logits, [1], [-1], [-1], vocab=5)
    with pytest.raises(ValueError, match="acceptance is 'fast'"):
        backend.verify(logits, [1], [-1], [-1], rule="fast")
    with pytest.raises(ValueError, match="temperature -1"):
        backend.verify(logits, [1], [-1], [-1], temperature=-1.0)


def test_a_tiny_residual_is_drawn_from_its_only_token(backend):
    """Of the residual 2^-40 is left, all of token 4, which is drawn whatever the coin."""
    logits = np.full((2, 6), -np.inf, np.float32)
    logits[:, 2], logits[:, 4] = 0.0, -40 * np.log(2.0)
    draft = np.zeros((1, 6), np.float32)
    draft[0, 2] = 1.0
    for seed in SEEDS:
        found = backend.verify(logits, [5], [-1], [0], draft, rule="rejection", seed=seed)
        assert found == ([], 4)
