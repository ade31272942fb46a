"""The real model against reference figures (tests/golden/smollm2_135m_q4_1.json).

The figures are of transformers in float32 on the dequantised weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_native as sd
from make_tiny_model import cut_layers
from specdec_native import _core
from support.engine import load
from support.golden import CASES, assert_follows, log_probability_differences


@pytest.fixture(scope="module")
def gen(real_model: Path) -> Iterator[sd.Generator]:
    with sd.Generator(real_model, draft=None, n_ctx=1024, progress=False) as generator:
        yield generator


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_token_ids(gen: sd.Generator, case: dict[str, Any]) -> None:
    assert gen.tokenize(case["text"], parse_special=True) == case["ids"]


def test_log_probabilities_of_the_ten_likeliest(gen: sd.Generator) -> None:
    differences = log_probability_differences(gen, CASES)
    assert max(differences) < 0.6
    assert np.mean(differences) < 0.11


def test_mean_negative_log_likelihood(gen: sd.Generator) -> None:
    weights = [len(case["ids"]) - 1 for case in CASES]
    expected = np.average([case["mean_nll"] for case in CASES], weights=weights)
    found = np.average([gen.score(case["ids"]) for case in CASES], weights=weights)
    assert found == pytest.approx(expected, rel=0.01)


def test_greedy_text_follows_the_reference_while_the_choice_is_clear(gen: sd.Generator) -> None:
    for case in CASES:
        tokens = gen.generate(case["ids"], max_tokens=len(case["greedy"]), temperature=0).tokens
        assert_follows(tokens, case)


def test_logits_of_any_width_equal_serial_decoding_by_bytes(real_model: Path) -> None:
    model = load(real_model)
    tokens = CASES[5]["ids"][:48]
    serial = _core.Generator(model, 64, "f16")
    expected = [serial.logits(tokens[: i + 1], i) for i in range(len(tokens))]
    for width in (2, 5, 8, 9, 16):
        wide = _core.Generator(model, 64, "f16")
        for first in range(0, len(tokens), width):
            rows = wide.logits(tokens[: first + width], first)
            for i, row in enumerate(rows):
                assert row.tobytes() == expected[first + i].tobytes(), (width, first + i)


def test_exactness_on_the_real_model(gen: sd.Generator, real_model: Path, tmp_path: Path) -> None:
    cut = cut_layers(real_model, tmp_path / "cut.gguf", 20)
    text = "Fix the spelling: 'The quick brwon fox jumps over the lazy dog.' Corrected: 'The quick"
    requests: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 11},
    ]
    expected = [gen.generate(text, max_tokens=64, **fields).tokens for fields in requests]
    # Not adaptive: whether this draft pays is not the question here.
    for draft in (
        sd.NgramDraft(8, 1, 4, adaptive=False),
        sd.DraftModel(cut, max_draft=3, adaptive=False),
    ):
        for threads in (1, 2):
            with sd.Generator(
                real_model, draft=draft, n_ctx=1024, threads=threads, progress=False
            ) as speculative:
                for fields, tokens in zip(requests, expected, strict=True):
                    result = speculative.generate(text, max_tokens=64, **fields)
                    assert result.tokens == tokens
                    assert result.stats.drafted > 0


EDIT = """Rewrite the following text exactly, but replace the name "Alice" with "Maria":

Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing
to do. Once or twice she had peeped into the book her sister was reading, but it had no pictures or
conversations in it, and where is the use of a book, thought Alice, without pictures?"""


def test_the_main_job_saves_passes_on_a_text_editing_prompt(
    gen: sd.Generator, real_model: Path
) -> None:
    """Lookup drafting: the same text in far fewer passes (the time is the benchmark's affair)."""
    messages = [{"role": "user", "content": EDIT}]
    plain = gen.chat(messages, max_tokens=80, temperature=0)
    draft = sd.NgramDraft(adaptive=False)
    with sd.Generator(real_model, draft=draft, n_ctx=1024, progress=False) as speculative:
        edited = speculative.chat(messages, max_tokens=80, temperature=0)
    assert edited.tokens == plain.tokens
    assert edited.stats.accepted > 20
    assert edited.stats.rounds < 0.7 * plain.stats.rounds
