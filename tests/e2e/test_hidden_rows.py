"""Hidden states of the target, as they reach a drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reference.llama_numpy import hidden_states
from reference.llama_numpy import load as load_reference
from specdec_native import _core
from support.engine import GREEDY, finish, load, request, run

LAYERS = [0, 2, 4]
PROMPT = [int(t) for t in np.random.default_rng(3).integers(3, 300, size=37)]


@pytest.fixture(scope="module")
def path(make_model: Callable[..., Path]) -> Path:
    return make_model(dtype="f32", seed=4)


def recorded(recorder: _core.Drafter) -> np.ndarray:
    return recorder.values().reshape(len(recorder.positions), len(LAYERS), -1)


def test_every_row_arrives_once_with_the_states_of_plain_decoding(path: Path) -> None:
    """Prefill chunks and rounds that keep tree paths; rejected rows never arrive."""
    target = load(path)
    plain = run(target, PROMPT, max_tokens=30, **GREEDY)
    text = [*PROMPT, *plain.tokens]
    recorder = _core.testing.HiddenRecorder(LAYERS, text)
    fields = {"kv_type": "f32", "max_tokens": 30, "prefill_chunk": 10, **GREEDY}
    result = run(target, PROMPT, [recorder], **fields)
    assert result.tokens == plain.tokens
    assert result.stats["accepted"] > 10
    assert result.stats["drafted"] == 2 * result.stats["accepted"]
    assert recorder.positions == list(range(len(text) - 1))
    states = hidden_states(load_reference(path), text[:-1])
    for i, layer in enumerate(LAYERS):
        np.testing.assert_allclose(recorded(recorder)[:, i], states[layer], rtol=1e-4, atol=1e-4)


def test_states_do_not_depend_on_how_they_were_computed(path: Path) -> None:
    target = load(path)
    text = [*PROMPT, *run(target, PROMPT, max_tokens=20, **GREEDY).tokens]
    rows = []
    for script, chunk in ((text, 7), ([], 512), (text, 512)):
        recorder = _core.testing.HiddenRecorder(LAYERS, script)
        run(target, PROMPT, [recorder], max_tokens=20, prefill_chunk=chunk, **GREEDY)
        rows.append(recorder.values())
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_drafters_with_different_needs_each_get_theirs(path: Path) -> None:
    target = load(path)
    one, other = (_core.testing.HiddenRecorder(layers, []) for layers in ([4, 0], [2]))
    run(target, PROMPT, [one, other, _core.NgramDrafter(2, 1, 2)], max_tokens=9, **GREEDY)
    both = _core.testing.HiddenRecorder([0, 2, 4], [])
    run(target, PROMPT, [both], max_tokens=9, **GREEDY)
    first, middle, last = np.split(both.values(), 3, axis=1)
    assert np.array_equal(other.values(), middle)
    assert np.array_equal(one.values(), np.concatenate([last, first], axis=1))


def test_a_reused_prefix_is_computed_again_where_its_rows_are_missing(path: Path) -> None:
    target = load(path)
    generator = _core.Generator(target, 256, "f16")
    generator.begin([], PROMPT, request(max_tokens=5, **GREEDY))
    finish(generator)
    for held in (0, 11, 36):
        recorder = _core.testing.HiddenRecorder(LAYERS, [])
        recorder.set_held(held)
        generator.begin([recorder], PROMPT, request(max_tokens=5, **GREEDY))
        result = finish(generator)
        assert result.tokens == run(target, PROMPT, max_tokens=5, **GREEDY).tokens
        assert result.stats["reused_tokens"] == held
        assert recorder.positions == list(range(held, len(PROMPT) + 4))


def test_a_stop_inside_an_accepted_run_cuts_the_rows_too(path: Path) -> None:
    target = load(path)
    text = [*PROMPT, *run(target, PROMPT, max_tokens=20, **GREEDY).tokens]
    recorder = _core.testing.HiddenRecorder(LAYERS, text)
    stop = text[len(PROMPT) + 3]
    result = run(target, PROMPT, [recorder], max_tokens=20, stop_tokens=[stop], **GREEDY)
    assert result.finish_reason == "stop"
    assert recorder.positions == list(range(len(PROMPT) + len(result.tokens) - 1))
