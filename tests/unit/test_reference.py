"""The NumPy reference, checked against figures made with another implementation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from tokenizers.models import BPE

from gguf_edit import cut_layers, pad_layers, requantize
from make_tiny_model import make_tiny_model
from reference.llama_numpy import forward, greedy, load, log_softmax, make_rope, rotate

GOLDEN = Path(__file__).parent.parent / "golden" / "smollm2_135m_q4_1.json"


def test_matches_transformers_on_the_real_model(real_model: Path) -> None:
    cases = json.loads(GOLDEN.read_text())["cases"][:3]
    model = load(real_model)
    for case in cases:
        log_probs = log_softmax(forward(model, case["ids"]))
        for token, expected in case["top10"]:
            assert abs(log_probs[-1, token] - expected) < 1e-3
        following = [log_probs[i, token] for i, token in enumerate(case["ids"][1:])]
        assert -np.mean(following) == pytest.approx(case["mean_nll"], abs=1e-3)


def test_a_longer_text_does_not_change_earlier_rows(tiny_model: Path) -> None:
    model = load(tiny_model)
    tokens = [5, 40, 77, 3, 120, 299]
    whole = forward(model, tokens)
    for length in range(1, len(tokens)):
        assert np.allclose(forward(model, tokens[:length]), whole[:length], rtol=0, atol=1e-12)


def test_scores_depend_only_on_distances() -> None:
    rope = make_rope({"llama.context_length": 64}, 16, None)
    query, key = np.random.default_rng(0).standard_normal((2, 1, 1, 16))

    def score(at_query: int, at_key: int) -> float:
        turned = [rotate(x, np.array([at]), rope) for x, at in ((query, at_query), (key, at_key))]
        return float((turned[0] * turned[1]).sum())

    assert score(12, 5) == pytest.approx(score(7, 0), abs=1e-12)
    assert score(12, 5) != pytest.approx(score(12, 6), abs=1e-3)


def test_rope_scaling_kinds() -> None:
    base = {"llama.context_length": 64, "llama.rope.freq_base": 10000.0}
    plain = make_rope(base, 16, None)
    assert plain.frequency[0] == 1.0
    assert plain.frequency[-1] == pytest.approx(10000.0 ** (-14 / 16))
    prefix = "llama.rope.scaling."
    linear = make_rope(base | {prefix + "type": "linear", prefix + "factor": 4.0}, 16, None)
    assert np.allclose(linear.frequency, plain.frequency / 4)
    off = make_rope(base | {prefix + "type": "none", prefix + "factor": 4.0}, 16, None)
    assert np.array_equal(off.frequency, plain.frequency)
    yarn_keys = {
        prefix + "type": "yarn",
        prefix + "factor": 4.0,
        prefix + "original_context_length": 4096,
    }
    yarn = make_rope(base | yarn_keys, 128, None)
    fine = make_rope(base, 128, None)
    # Fast pairs keep their frequency, slow ones are interpolated, none leaves that range.
    assert yarn.frequency[0] == fine.frequency[0]
    assert yarn.frequency[-1] == pytest.approx(fine.frequency[-1] / 4)
    assert np.all(yarn.frequency <= fine.frequency)
    assert np.all(yarn.frequency >= fine.frequency / 4 * (1 - 1e-12))
    assert yarn.magnitude == pytest.approx(0.1 * math.log(4.0) + 1.0)
    flat = make_rope(base | yarn_keys | {prefix + "yarn_log_multiplier": 1.0}, 128, None)
    assert flat.magnitude == 1.0
    factors = np.linspace(1.0, 8.0, 8)
    assert np.allclose(make_rope(base, 16, factors).frequency, plain.frequency / factors)


def test_llama3_factors_of_the_tiny_model(make_model: Callable[..., Path]) -> None:
    path = make_model(layers=1, head_dim=32, heads=2, rope_scaling="llama3", rope_base=500000.0)
    factors = load(path).tensors["rope_freqs.weight"]
    assert factors[0] == 1.0
    assert factors[-1] == pytest.approx(4.0)
    assert np.all(np.diff(factors) >= 0)


# ---- the tiny model, which most other tests rest on


def test_tiny_model_is_deterministic(
    make_model: Callable[..., Path], tmp_path: Path, tiny_model: Path
) -> None:
    again = make_tiny_model(tmp_path / "again.gguf")
    assert again.read_bytes() == tiny_model.read_bytes()
    other = make_tiny_model(tmp_path / "other.gguf", seed=2)
    assert other.read_bytes() != tiny_model.read_bytes()


def test_tiny_model_behaves_like_a_language_model(tiny_model: Path, tmp_path: Path) -> None:
    model = load(tiny_model)
    draft = load(cut_layers(tiny_model, tmp_path / "cut.gguf", 2))
    agreed, entropies = [], []
    for prompt in ([40, 41, 42, 43], [100, 9, 77, 250, 31], [259, 260, 261, 262, 263]):
        text = greedy(model, prompt, 32, vocab=300)
        assert len(set(text)) >= 8
        assert 2 not in text  # the end-of-text token is unlikely
        logits = forward(model, prompt + text)
        log_probs = log_softmax(logits)
        entropies.append(-(np.exp(log_probs) * log_probs).sum(axis=-1).mean())
        agreed.append(np.mean(logits.argmax(1) == forward(draft, prompt + text).argmax(1)))
        assert 1.5 < logits.std(axis=1).mean() < 3.5
    assert 1.0 < np.mean(entropies) < 4.5
    assert 0.4 < np.mean(agreed) < 0.9


@pytest.mark.parametrize("vocab", [259, 260, 300, 330, 700])
def test_tiny_vocabulary_is_a_valid_byte_level_one(
    make_model: Callable[..., Path], vocab: int
) -> None:
    fields = GGUFReader(make_model(layers=1, vocab=vocab, pad_rows=3)).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents() if vocab > 259 else []
    assert len(set(tokens)) == len(tokens) == vocab + 3
    pairs = [tuple(merge.split(" ")) for merge in merges]
    BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs)  # raises for bad merges


def test_padding_rows_are_tempting(make_model: Callable[..., Path]) -> None:
    model = load(make_model(pad_rows=20))
    logits = forward(model, list(range(3, 63)))
    assert logits.shape == (60, 320)
    assert (logits.argmax(axis=1) >= 300).any()


def test_padded_layers_change_nothing(tiny_model: Path, tmp_path: Path) -> None:
    padded = load(pad_layers(tiny_model, tmp_path / "padded.gguf", 7))
    assert padded.layers == 7
    tokens = [5, 40, 77, 3, 120]
    assert np.array_equal(forward(padded, tokens), forward(load(tiny_model), tokens))


def test_requantised_copies(
    tiny_model: Path, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    tokens = [5, 40, 77, 3, 120]
    exact = forward(load(tiny_model), tokens)
    errors = []
    for qtype in ("f32", "f16", "q8_0", "q4_0"):
        copy = requantize(tiny_model, tmp_path / f"{qtype}.gguf", qtype)
        errors.append(float(np.abs(forward(load(copy), tokens) - exact).mean()))
    assert errors[0] == 0.0
    assert errors == sorted(errors)
    assert errors[-1] < 1.0
    with pytest.raises(ValueError, match="q4_k"):
        requantize(tiny_model, tmp_path / "no.gguf", "q4_k")


def test_layer_cut_copies_per_layer_arrays(make_model: Callable[..., Path], tmp_path: Path) -> None:
    path = make_model(metadata={"llama.attention.head_count_kv": [2, 2, 2, 2]})
    cut = GGUFReader(cut_layers(path, tmp_path / "cut.gguf", [0, 3]))
    assert cut.fields["llama.attention.head_count_kv"].contents() == [2, 2]
    names = {t.name for t in cut.tensors}
    assert "blk.1.attn_q.weight" in names
    assert "blk.2.attn_q.weight" not in names
    with pytest.raises(ValueError, match="cannot keep"):
        cut_layers(path, tmp_path / "bad.gguf", 5)
