"""Which models fit together, and which files load at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

import specdec_native as sd
from gguf_edit import read_metadata, read_tensors, write_gguf
from specdec_native import _core
from support.engine import load, run


def with_tokens(source: Path, target: Path, change: Callable[[list[str]], None]) -> Path:
    """A copy of a model with another token list."""
    reader = GGUFReader(source)
    metadata = read_metadata(reader)
    tokens = list(metadata["tokenizer.ggml.tokens"].value)
    change(tokens)
    metadata["tokenizer.ggml.tokens"].value = tokens
    return write_gguf(target, metadata, read_tensors(reader))


def swap(a: int, b: int) -> Callable[[list[str]], None]:
    def change(tokens: list[str]) -> None:
        tokens[a], tokens[b] = tokens[b], tokens[a]

    return change


def rename(index: int, text: str) -> Callable[[list[str]], None]:
    def change(tokens: list[str]) -> None:
        tokens[index] = text

    return change


def test_a_draft_with_swapped_tokens_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """R14: the message names the first id that differs and both strings."""
    draft = with_tokens(tiny_model, tmp_path / "swapped.gguf", swap(100, 101))
    tokens = sd.Tokenizer(tiny_model).vocabulary.tokens
    with pytest.raises(sd.IncompatibleModelsError) as caught:
        sd.Generator(tiny_model, draft=draft, progress=False)
    message = str(caught.value)
    assert "token id 100" in message
    assert message.index(repr(tokens[100])) < message.index(repr(tokens[101]))
    assert isinstance(caught.value, ValueError)


def test_a_differing_special_token_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """R14."""
    draft = with_tokens(tiny_model, tmp_path / "special.gguf", rename(2, "<|other|>"))
    with pytest.raises(sd.IncompatibleModelsError, match=r"token id 2 .*<\|other\|>"):
        sd.Generator(tiny_model, draft=draft, progress=False)


@pytest.mark.parametrize("index", [0, 150, 299])
def test_any_differing_token_is_refused(tiny_model: Path, tmp_path: Path, index: int) -> None:
    """R14: the first and the last id count as well."""
    draft = with_tokens(tiny_model, tmp_path / "one.gguf", rename(index, "<|other|>"))
    with pytest.raises(sd.IncompatibleModelsError, match=rf"token id {index} .*<\|other\|>"):
        _core.check_same_vocabulary(_core.GgufFile(str(tiny_model)), _core.GgufFile(str(draft)))


def test_a_shorter_vocabulary_is_refused(make_model: Callable[..., Path]) -> None:
    with pytest.raises(sd.IncompatibleModelsError, match=r"token id 29\d .*no such token"):
        sd.Generator(make_model(), draft=make_model(vocab=290), progress=False)


@pytest.mark.parametrize("listed", [True, False])
def test_padding_rows_are_no_difference_and_never_sampled(
    make_model: Callable[..., Path], listed: bool
) -> None:
    """R15: 300 tokens, rows padded to 304 and 320."""
    target = make_model(pad_rows=4, pad_tokens=listed)
    draft = make_model(pad_rows=20, pad_tokens=not listed)
    model, small = load(target), load(draft)
    assert (model.vocab, model.vocab_rows, small.vocab_rows) == (300, 304, 320)
    _core.check_same_vocabulary(model.file, small.file)
    for seed in range(5):
        drafter = _core.DraftModelDrafter(small, 512, "f16", 4)
        result = run(model, [5, 6, 7], [drafter], temperature=5.0, seed=seed, max_tokens=100)
        plain = run(model, [5, 6, 7], temperature=5.0, seed=seed, max_tokens=100)
        assert result.tokens == plain.tokens
        assert max(result.tokens) < 300


@pytest.mark.parametrize("dtype", ["f16", "q4_0", "q6_K"])
def test_tied_and_untied_heads(make_model: Callable[..., Path], dtype: str) -> None:
    """R30: without output.weight the embedding serves; with both, output.weight."""
    width = {"width": 256, "heads": 4, "head_dim": 64, "layers": 1}
    tied = load(make_model(tied=True, tensor_dtypes={"token_embd": dtype}, **width))
    untied = load(make_model(tied=False, tensor_dtypes={"token_embd": dtype}, **width))
    tokens = [7, 8, 9]
    logits = [_core.Generator(m, 64, "f32").logits(tokens, 0) for m in (tied, untied)]
    assert np.isfinite(logits[0]).all()
    assert not np.array_equal(logits[0], logits[1])


def test_unsupported_files_say_so(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """R29: errors name the key or the tensor."""
    cases: list[tuple[dict[str, object], str]] = [
        ({"general.architecture": "mamba"}, r"general\.architecture.*mamba.*llama"),
        ({"llama.rope.scaling.type": "dynamic"}, r"rope\.scaling\.type.*dynamic.*yarn"),
        ({"llama.attention.head_count": 0}, "head_count"),
        ({"llama.attention.head_count_kv": 3}, "head_count_kv"),
        ({"llama.expert_count": 8}, "expert_used_count.*missing"),
        ({"llama.block_count": 5}, r"blk\.4\..*missing"),
        ({"llama.block_count": 500}, r"block_count is 500"),
        ({"llama.block_count": 3}, r"blk\.3\..*not part"),
        ({"llama.feed_forward_length": 64}, r"ffn_gate.*shape"),
        ({"tokenizer.ggml.eos_token_id": 300}, r"eos_token_id.*300"),
    ]
    for metadata, message in cases:
        with pytest.raises(sd.GgufError, match=message):
            sd.Generator(make_model(metadata=metadata), progress=False)


def test_per_layer_arrays_are_taken_where_all_layers_agree(
    make_model: Callable[..., Path],
) -> None:
    """R29: head_count_kv as an array."""
    plain = make_model()
    array = make_model(metadata={"llama.attention.head_count_kv": [2, 2, 2, 2]})
    expected = run(load(plain), [5, 6], temperature=0.0).tokens
    assert run(load(array), [5, 6], temperature=0.0).tokens == expected
    with pytest.raises(sd.GgufError, match="differs between layers"):
        load(make_model(metadata={"llama.attention.head_count_kv": [2, 2, 1, 2]}))


def test_a_damaged_file_is_an_error_at_load(tiny_model: Path, tmp_path: Path) -> None:
    """R28: cut anywhere, the file is refused before anything is computed."""
    data = tiny_model.read_bytes()
    for size in (0, 3, 100, len(data) // 2, len(data) - 1):
        cut = tmp_path / f"cut{size}.gguf"
        cut.write_bytes(data[:size])
        with pytest.raises(sd.GgufError):
            sd.Generator(cut, progress=False)
