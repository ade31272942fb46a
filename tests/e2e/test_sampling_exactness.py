"""P4: the whole sampling chain and the log-probabilities, with drafting as without.

A drafter that proposes a given text (`ScriptedDrafter`) stands in for the worst drafts; a NumPy
oracle says what each position of a finished text should have been, given the text before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make_tiny_model import cut_layers
from specdec_native import _core
from support.chi_square import fit_p_value
from support.engine import GREEDY, Run, finish, load, request, run
from support.sampling_oracle import adjusted_logits, filtered_probabilities, log_softmax

VOCAB = 300
PROMPT = [40, 41, 42, 43, 44, 40, 41, 42]
SAMPLED: dict[str, Any] = {"temperature": 0.9}
CHAINS: dict[str, dict[str, Any]] = {
    "typical": {"typical_p": 0.6},
    "repetition": {"repetition_penalty": 1.3},
    "presence, frequency": {"presence_penalty": 0.8, "frequency_penalty": 0.3},
    "bias": {"logit_bias": [(i, -100.0 if i % 2 else 1.5) for i in range(0, 60)]},
    "filters": {"top_k": 60, "top_p": 0.95, "min_p": 0.1},
    "all": {
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "logit_bias": [(41, 1.0), (77, -100.0)],
        "top_k": 80,
        "typical_p": 0.95,
        "top_p": 0.95,
        "min_p": 0.02,
    },
}


@pytest.fixture(scope="module")
def paths(make_model: Callable[..., Path], tmp_path_factory: Any) -> tuple[Path, Path]:
    """A tiny target and its layer-cut copy."""
    target = make_model(dtype="q4_0", seed=3)
    return target, cut_layers(target, tmp_path_factory.mktemp("cut") / "cut.gguf", 2)


@pytest.fixture(scope="module")
def target(paths: tuple[Path, Path]) -> _core.Model:
    return load(paths[0])


@pytest.fixture(scope="module")
def draft(paths: tuple[Path, Path]) -> _core.Model:
    return load(paths[1])


def half_wrong(text: Sequence[int]) -> list[int]:
    """The text with every third token replaced."""
    return [token if i % 3 != 2 else (token + 1) % VOCAB for i, token in enumerate(text)]


def drafter_sets(
    target: _core.Model, draft: _core.Model, plain: Run, prompt: Sequence[int]
) -> dict[str, Callable[[], list[_core.Drafter]]]:
    script = half_wrong(plain.tokens)
    return {
        "ngram": lambda: [_core.NgramDrafter(6, 1, 4)],
        "suffix": lambda: [_core.SuffixDrafter(12, 1, 8, 3, 0.01)],
        "draft": lambda: [_core.DraftModelDrafter(draft, 512, "f16", 4)],
        "both": lambda: [
            _core.NgramDrafter(8, 2, 4),
            _core.DraftModelDrafter(draft, 512, "f16", 3),
        ],
        "draft, tree": lambda: [_core.DraftModelDrafter(draft, 512, "f16", 8, 2)],
        "layer skip": lambda: [_core.LayerSkipDrafter(target, [0, 1], 4)],
        "script": lambda: [_core.testing.ScriptedDrafter(script, len(prompt), 8)],
        "script, tree": lambda: [_core.testing.ScriptedDrafter(script, len(prompt), 12, True)],
    }


def raw_logits(target: _core.Model, text: Sequence[int], first: int) -> np.ndarray:
    """The target's logits after each token from index `first` on, float64 [n, vocab]."""
    rows = _core.Generator(target, 512, "f16").logits(list(text), first)[:, :VOCAB]
    return rows.astype(np.float64)


def prefixes(result: Run, prompt: Sequence[int]) -> list[dict[str, Sequence[int]]]:
    """The text before each token of a result, as the oracle wants it."""
    return [{"prompt": prompt, "output": result.tokens[:i]} for i in range(len(result.tokens))]


def scoring_rows(target: _core.Model, result: Run, prompt: Sequence[int]) -> np.ndarray:
    """Row i scores token i of the result."""
    return raw_logits(target, [*prompt, *result.tokens[:-1]], len(prompt) - 1)


# --- Tokens and log-probabilities are those of plain decoding ------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_chain_gives_the_plain_tokens_and_logprobs(
    target: _core.Model, draft: _core.Model, chain: str, mode: dict[str, Any], masked: bool
) -> None:
    """Bit for bit: n-gram, suffix, model and layer-skip drafts, half-wrong ones, and trees."""
    accepted: dict[str, int] = {}
    rejected: dict[str, int] = {}
    for seed, prompt in enumerate((PROMPT, [200, 7, 7, 9, 7, 7])):
        fields = {**mode, **CHAINS[chain], "seed": seed, "max_tokens": 40, "logprobs": 3}
        if masked:
            fields["mask"] = _core.testing.StepMask(40)
        plain = run(target, prompt, **fields)
        assert len(plain.logprobs) == len(plain.tokens) == 40
        for name, make in drafter_sets(target, draft, plain, prompt).items():
            result = run(target, prompt, make(), **fields)
            assert result.tokens == plain.tokens, name
            assert result.logprobs == plain.logprobs, name
            assert result.finish_reason == plain.finish_reason == "length"
            stats = result.stats
            accepted[name] = accepted.get(name, 0) + stats["accepted"]
            rejected[name] = rejected.get(name, 0) + stats["drafted"] - stats["accepted"]
    assert min(accepted["script"], accepted["script, tree"], rejected["script"]) > 20
    assert sum(accepted.values()) > 100


@pytest.mark.parametrize("chain", CHAINS)
def test_threads_and_levels_of_drafting_change_no_logprob(
    paths: tuple[Path, Path], target: _core.Model, chain: str
) -> None:
    fields = {**SAMPLED, **CHAINS[chain], "max_tokens": 24, "logprobs": 5}
    plain = run(load(paths[0], threads=1), PROMPT, prefill_chunk=3, **fields)
    for length in (1, 2, 5, 13):
        script = _core.testing.ScriptedDrafter(plain.tokens, len(PROMPT), length)
        result = run(target, PROMPT, [script], **fields)
        assert (result.tokens, result.logprobs) == (plain.tokens, plain.logprobs)
        assert result.stats["accepted"] >= 24 * length // (length + 1) - 1


@pytest.mark.parametrize("chain", CHAINS)
def test_a_model_drafting_for_itself_is_always_accepted(target: _core.Model, chain: str) -> None:
    """The drafter applies the chain to its own draws, with the prefix that they would have."""
    for mode in (GREEDY, SAMPLED, {**SAMPLED, "acceptance": "rejection"}):
        drafter = _core.DraftModelDrafter(target, 512, "f16", 5)
        result = run(target, PROMPT, [drafter], **mode, **CHAINS[chain])
        assert result.stats["accepted"] == result.stats["drafted"] > 40


# --- What the chain should do at every verified position -----------------------------------------


def test_a_banned_greedy_token_never_comes_while_the_draft_proposes_it(
    target: _core.Model,
) -> None:
    """A bias of -100 on the token that greedy decoding likes best acts at every position."""
    free = run(target, PROMPT, max_tokens=60, **GREEDY)
    favourite = max(set(free.tokens), key=free.tokens.count)
    fields = {**GREEDY, "max_tokens": 60, "logit_bias": [(favourite, -100.0)]}
    plain = run(target, PROMPT, **fields)
    # The draft is right but for the banned token, which it proposes at every second place.
    script = [favourite if i % 2 else token for i, token in enumerate(plain.tokens)]
    always = [favourite] * 60
    for text in (script, always, free.tokens):
        drafter = _core.testing.ScriptedDrafter(text, len(PROMPT), 8)
        result = run(target, PROMPT, [drafter], **fields)
        assert favourite not in result.tokens
        assert result.tokens == plain.tokens
    assert favourite in free.tokens[:8]
    for rule in ("coupled", "rejection"):
        for seed in range(5):
            drafter = _core.testing.ScriptedDrafter(always, len(PROMPT), 8)
            sampled = {**fields, "temperature": 1.0, "seed": seed, "acceptance": rule}
            assert favourite not in run(target, PROMPT, [drafter], **sampled).tokens


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_min_p_acts_at_every_verified_position(
    target: _core.Model, draft: _core.Model, rule: str
) -> None:
    """With min-p 0.3 every token is at least 0.3 times as likely as the likeliest there."""
    fields = {"temperature": 1.5, "min_p": 0.3, "max_tokens": 60, "acceptance": rule}
    drafted = without = 0
    for seed in range(4):
        # What is drafted was drawn without min-p: much of it must not stand.
        loose = run(target, PROMPT, temperature=1.5, seed=seed, max_tokens=60)
        for drafter in (
            _core.testing.ScriptedDrafter(loose.tokens, len(PROMPT), 8),
            _core.DraftModelDrafter(draft, 512, "f16", 4),
        ):
            result = run(target, PROMPT, [drafter], seed=seed, **fields)
            rows = scoring_rows(target, result, PROMPT) / 1.5
            chosen = rows[np.arange(60), result.tokens]
            assert (chosen - rows.max(axis=1) >= np.log(0.3) - 1e-5).all()
            drafted += result.stats["drafted"]
        rows = scoring_rows(target, loose, PROMPT) / 1.5
        without += int((rows[np.arange(60), loose.tokens] - rows.max(axis=1) < np.log(0.3)).sum())
    assert drafted > 200
    assert without > 20


def test_repetition_penalty_acts_at_every_verified_position(
    target: _core.Model, draft: _core.Model
) -> None:
    """Every greedy token is the argmax of the logits penalised by 1.3 for the text before it."""
    fields = {**GREEDY, "repetition_penalty": 1.3, "max_tokens": 60}
    plain = run(target, PROMPT, **fields)
    assert plain.tokens != run(target, PROMPT, max_tokens=60, **GREEDY).tokens
    for drafter in (
        _core.testing.ScriptedDrafter(half_wrong(plain.tokens), len(PROMPT), 8),
        _core.testing.ScriptedDrafter(plain.tokens, len(PROMPT), 8),
        _core.DraftModelDrafter(draft, 512, "f16", 4),
        _core.NgramDrafter(6, 1, 3),
    ):
        result = run(target, PROMPT, [drafter], **fields)
        rows = scoring_rows(target, result, PROMPT)
        for row, text, token in zip(rows, prefixes(result, PROMPT), result.tokens, strict=True):
            penalised = adjusted_logits(row, repetition_penalty=1.3, **text)
            assert penalised[token] >= penalised.max() - 1e-5


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("chain", CHAINS)
def test_no_position_has_a_token_that_its_chain_removes(
    target: _core.Model, draft: _core.Model, chain: str, rule: str
) -> None:
    """Each token has a probability under the oracle's chain, given the text really before it."""
    options = {**CHAINS[chain]}
    if "logit_bias" in options:
        options["logit_bias"] = dict(options["logit_bias"])
    loose = run(target, PROMPT, temperature=0.9, max_tokens=40, seed=3)
    for drafter in (
        _core.testing.ScriptedDrafter(loose.tokens, len(PROMPT), 8, True),
        _core.DraftModelDrafter(draft, 512, "f16", 4),
    ):
        fields = {**SAMPLED, **CHAINS[chain], "max_tokens": 40, "acceptance": rule, "seed": 3}
        result = run(target, PROMPT, [drafter], **fields)
        rows = scoring_rows(target, result, PROMPT)
        for row, text, token in zip(rows, prefixes(result, PROMPT), result.tokens, strict=True):
            assert filtered_probabilities(row, **SAMPLED, **options, **text)[token] > 0


def test_penalty_state_commits_accepted_tokens_once(target: _core.Model) -> None:
    """R6: presence and frequency 1.0, a half-wrong draft of 8, temperature 0."""
    fields = {**GREEDY, "presence_penalty": 1.0, "frequency_penalty": 1.0, "max_tokens": 60}
    plain = run(target, PROMPT, **fields)
    free = run(target, PROMPT, max_tokens=60, **GREEDY)
    assert plain.tokens != free.tokens
    for text in (half_wrong(plain.tokens), plain.tokens, free.tokens):
        for tree in (False, True):
            drafter = _core.testing.ScriptedDrafter(text, len(PROMPT), 8, tree)
            result = run(target, PROMPT, [drafter], **fields)
            assert result.tokens == plain.tokens
            assert result.stats["drafted"] > 20
    rows = scoring_rows(target, plain, PROMPT)
    for row, text, token in zip(rows, prefixes(plain, PROMPT), plain.tokens, strict=True):
        penalised = adjusted_logits(row, presence_penalty=1.0, frequency_penalty=1.0, **text)
        assert penalised[token] >= penalised.max() - 1e-5


def test_a_request_starts_with_counts_of_its_own(target: _core.Model) -> None:
    """The second request on a session, its prompt being cached, is that of a fresh one."""
    fields = {**GREEDY, "frequency_penalty": 1.0, "repetition_penalty": 1.2, "max_tokens": 30}
    first = run(target, PROMPT, **fields)
    shared = _core.Generator(target, 512, "f16")
    for _ in range(2):
        shared.begin([], PROMPT, request(**fields))
        assert finish(shared).tokens == first.tokens


def test_engine_runs_of_rejection_fit_the_whole_chain(
    target: _core.Model, draft: _core.Model
) -> None:
    """R2: draft and target go through the chain alike, and the text is the target's.

    The joint distribution of two consecutive tokens, whose second depends on the first by the
    penalties too, over whole engine runs with two drafted tokens.
    """
    prompt = [12, 200, 77]
    raw = raw_logits(target, prompt, len(prompt) - 1)[0]
    likely = np.argsort(-raw)[:2]
    options: dict[str, Any] = {
        "temperature": 1.3,
        "top_k": 5,
        "typical_p": 0.9,
        "repetition_penalty": 1.2,
        "presence_penalty": 1.5,
        "logit_bias": {int(likely[0]): -1.0, int(likely[1]): 0.5},
    }
    exact: dict[tuple[int, int], float] = {}
    first = filtered_probabilities(raw, prompt=prompt, **options)
    for a in np.flatnonzero(first):
        row = raw_logits(target, [*prompt, int(a)], len(prompt))[0]
        second = filtered_probabilities(row, prompt=prompt, output=[int(a)], **options)
        for b in np.flatnonzero(second):
            exact[(int(a), int(b))] = first[a] * second[b]
    fields = {**options, "logit_bias": list(options["logit_bias"].items())}
    generator = _core.Generator(target, 64, "f16")
    drafter = _core.DraftModelDrafter(draft, 64, "f16", 2)
    counts = dict.fromkeys(exact, 0)
    outcomes = set()
    for seed in range(20_000):
        generator.begin(
            [drafter],
            prompt,
            request(seed=seed, max_tokens=2, acceptance="rejection", **fields),
        )
        result = finish(generator)
        counts[(result.tokens[0], result.tokens[1])] += 1
        outcomes.add(tuple(result.sources))
    assert len(outcomes) >= 3  # accepted, rejected at once, rejected later
    observed, expected = (np.array([d[pair] for pair in exact]) for d in (counts, exact))
    assert fit_p_value(observed, expected) > 1e-3
    without = {k: v for k, v in options.items() if k != "presence_penalty"}
    assert not np.allclose(
        first, filtered_probabilities(raw, prompt=prompt, **{**without, "typical_p": 1.0})
    )


# --- Log-probabilities ---------------------------------------------------------------------------


def test_logprobs_are_the_targets_own(target: _core.Model, draft: _core.Model) -> None:
    """R7: logprobs=3, ten tokens, four drafted: log-softmax of the raw logits, never 0.0."""
    chain = {**SAMPLED, **CHAINS["all"], "temperature": 0.3}
    for drafters in ([], [_core.DraftModelDrafter(draft, 512, "f16", 4)]):
        result = run(target, PROMPT, drafters, max_tokens=10, logprobs=3, **chain)
        assert len(result.logprobs) == 10
        rows = scoring_rows(target, result, PROMPT)
        for row, token, (logprob, top) in zip(rows, result.tokens, result.logprobs, strict=True):
            expected = log_softmax(row)
            order = np.lexsort((np.arange(VOCAB), -row))[:3]
            assert logprob == pytest.approx(expected[token], abs=1e-5)
            assert logprob < -1e-3
            assert [one for one, _ in top] == order.tolist()
            np.testing.assert_allclose([value for _, value in top], expected[order], atol=1e-5)


def test_logprobs_are_for_emitted_tokens_only(target: _core.Model) -> None:
    """Also where a stop token or the limit cuts an accepted run; more than there are: all."""
    plain = run(target, PROMPT, max_tokens=30, logprobs=0, **GREEDY)
    assert all(top == [] for _, top in plain.logprobs)
    script = _core.testing.ScriptedDrafter(plain.tokens, len(PROMPT), 8)
    stop = plain.tokens[4]
    cut = plain.tokens.index(stop) + 1
    for fields, count in (({"stop_tokens": [stop]}, cut), ({"max_tokens": 6}, 6)):
        result = run(target, PROMPT, [script], logprobs=0, **{**GREEDY, **fields})
        assert len(result.tokens) == len(result.logprobs) == count
        assert result.logprobs == plain.logprobs[:count]
    everything = run(target, PROMPT, max_tokens=1, logprobs=10_000, **GREEDY)
    assert len(everything.logprobs[0][1]) == VOCAB
    assert run(target, PROMPT, max_tokens=3, **GREEDY).logprobs == []


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1])
def test_a_bias_outside_the_vocabulary_is_refused(target: _core.Model, token: int) -> None:
    with pytest.raises(ValueError, match=rf"logit_bias is given for token {token}; .* 0 to 299"):
        run(target, PROMPT, logit_bias=[(token, 1.0)])
