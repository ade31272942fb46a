"""Whole engine runs of `rejection`, for lookup and for drafters that use the target itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specdec_native import _core
from support.chi_square import fit_p_value
from support.engine import finish, load, request, sized
from support.heads import converted, few_token_target, fitted_eagle3, fitted_medusa, texts_of
from support.joint_distribution import joint_probabilities, next_token_probabilities

RUNS = sized(20_000, 40)
PROMPT_SIZE = 9
TEMPERATURE = 2.0
FILTERS = {"temperature": TEMPERATURE, "top_k": 4}
KINDS = ("layerskip", "medusa", "eagle chain", "eagle tree", "ngram", "suffix")

Maker = Callable[[], _core.Drafter]


@pytest.fixture(scope="module")
def target_path(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = make_model(dtype="f32", seed=4, tied=False)
    return few_token_target(source, tmp_path_factory.mktemp("target") / "few.gguf")


@pytest.fixture(scope="module")
def target(target_path: Path) -> _core.Model:
    return load(target_path, threads=1)


@pytest.fixture(scope="module")
def host(target_path: Path) -> _core.Model:
    """The target where passes are quick: what is expected comes from it."""
    return load(target_path, "cpu", threads=1)


@pytest.fixture(scope="module")
def makers(
    target_path: Path,
    target: _core.Model,
    host: _core.Model,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Maker]:
    folder = tmp_path_factory.mktemp("heads")
    medusa = converted(fitted_medusa(folder / "medusa", target_path, host), target_path)
    heads = _core.MedusaHeads.load(str(medusa), target)
    eagle = converted(fitted_eagle3(folder / "eagle", target_path, host, [2, 3, 4]), target_path)
    head = _core.EagleHead.load(str(eagle), target)
    return {
        "layerskip": lambda: _core.LayerSkipDrafter(target, [0, 2], 2),
        "medusa": lambda: _core.MedusaDrafter(heads, [[0], [1], [0, 0], [0, 1]]),
        "eagle chain": lambda: _core.EagleDrafter(head, 64, "f16", 2),
        "eagle tree": lambda: _core.EagleDrafter(head, 64, "f16", 6, branches=3),
        "ngram": lambda: _core.NgramDrafter(2, 1, 3),
        "suffix": lambda: _core.SuffixDrafter(4, 1, 32, 2, 0.02),
    }


def repeated(target: _core.Model, text: list[int]) -> list[int]:
    """A text that ends as it began, so that lookup proposes two likely tokens."""
    first = max(
        next_token_probabilities(target, [*text, 12, 13, *text], TEMPERATURE).items(),
        key=lambda one: one[1],
    )[0]
    second = max(
        next_token_probabilities(target, [*text, first], TEMPERATURE).items(),
        key=lambda one: one[1],
    )[0]
    return [*text, first, second, *text]


@pytest.mark.parametrize("kind", KINDS)
def test_two_tokens_have_the_targets_joint_distribution(
    target: _core.Model, host: _core.Model, makers: dict[str, Maker], kind: str
) -> None:
    prompt = texts_of(host, 2)[1][:PROMPT_SIZE]  # text of its own, so that the heads know it
    if kind in ("ngram", "suffix"):
        prompt = repeated(host, prompt)
    exact = joint_probabilities(host, prompt, TEMPERATURE)
    generator = _core.Generator(target, 64, "f16")
    drafter = makers[kind]()
    counts, outcomes = dict.fromkeys(exact, 0), set()
    for seed in range(RUNS):
        fields = {"seed": seed, "max_tokens": 3, "acceptance": "rejection", **FILTERS}
        # The last prompt token differs in the cache: the heads get a hidden row each time.
        generator.begin([drafter], prompt[:-1], request(max_tokens=0))
        generator.begin([drafter], prompt, request(**fields))
        result = finish(generator)
        counts[(result.tokens[0], result.tokens[1])] += 1
        outcomes.add(tuple(source != "target" for source in result.sources[:2]))
    assert {flag for outcome in outcomes for flag in outcome} == {True, False}  # accepted, or not
    observed = np.array([counts[pair] for pair in exact])
    expected = np.array([exact[pair] for pair in exact])
    assert fit_p_value(observed, expected) > 1e-3
