"""Drafting heads for a tiny target, their output matrices fitted so that some guesses are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize, quantize
from safetensors.numpy import load_file, save_file

from gguf_edit import read_metadata, read_tensors, write_gguf
from make_tiny_heads import make_eagle3, make_medusa
from reference import heads_numpy
from reference.llama_numpy import LlamaModel, hidden_states, rms_norm, silu
from reference.llama_numpy import load as load_target
from specdec_native import _core, convert
from support.engine import run

_SHARPNESS = 30.0


def few_token_target(source: Path, out: Path, count: int = 12) -> Path:
    """A copy of an untied tiny model that writes `count` tokens only: guesses are often right."""
    reader = GGUFReader(source)
    tensors = read_tensors(reader)
    (output,) = (one for one in tensors if one.name == "output.weight")
    kind = output.qtype
    values = dequantize(output.data, kind).copy()
    likely = np.random.default_rng(5).choice(np.arange(60, 250), count, replace=False)
    values[np.setdiff1d(np.arange(len(values)), likely)] *= 0.05
    output.data = quantize(values, kind)
    return write_gguf(out, read_metadata(reader), tensors)


def texts_of(model: _core.Model, count: int = 8, length: int = 90) -> list[list[int]]:
    """Texts that the target writes, half of them greedily."""
    texts = []
    for seed in range(count):
        prompt = [int(t) for t in np.random.default_rng(seed).integers(3, model.vocab, size=4)]
        temperature = 0.0 if seed % 2 == 0 else 0.7
        tokens = run(model, prompt, seed=seed, temperature=temperature, max_tokens=length).tokens
        texts.append([*prompt, *tokens])
    return texts


def _fit(rows: list[np.ndarray], wanted: list[int], columns: int) -> np.ndarray:
    """Least squares from features [N, E] to one-hot rows, as an output matrix [columns, E]."""
    x = np.stack(rows)
    y = np.zeros((len(wanted), columns))
    y[np.arange(len(wanted)), wanted] = 1.0
    gram = x.T @ x + 1e-3 * len(x) * np.eye(x.shape[1])
    # Contiguous: safetensors writes the memory as it lies.
    return np.ascontiguousarray(_SHARPNESS * np.linalg.solve(gram, x.T @ y).T, np.float32)


def _save(folder: Path, file: str, changes: dict[str, np.ndarray]) -> None:
    save_file(load_file(folder / file) | changes, folder / file)


def fitted_medusa(folder: Path, target_path: Path, model: _core.Model, heads: int = 3) -> Path:
    """A checkpoint of Medusa heads with matrices of their own."""
    target = load_target(target_path)
    width = len(target.tensors["output_norm.weight"])
    make_medusa(folder, heads=heads, width=width, vocab=model.vocab)
    checkpoint = heads_numpy.load(folder)
    rows: list[list[np.ndarray]] = [[] for _ in range(heads)]
    wanted: list[list[int]] = [[] for _ in range(heads)]
    for text in texts_of(model):
        last = hidden_states(target, text)[-1]
        last = rms_norm(last, target.tensors["output_norm.weight"], target.eps)
        for i in range(heads):
            weight, bias = (checkpoint.tensors[f"{i}.0.linear.{p}"] for p in ("weight", "bias"))
            features = last + silu(last @ weight.T + bias)
            rows[i] += list(features[: -i - 2])
            wanted[i] += text[i + 2 :]
    matrices = {f"{i}.1.weight": _fit(rows[i], wanted[i], model.vocab) for i in range(heads)}
    _save(folder, "medusa_lm_head.safetensors", matrices)
    return folder


def eagle3_features(
    checkpoint: heads_numpy.Checkpoint,
    target: LlamaModel,
    states: Sequence[int],
    text: Sequence[int],
) -> np.ndarray:
    """What the head makes of the target's states of a text, before its output norm [T - 1, E]."""
    own = checkpoint.tensors.get("embed_tokens.weight")
    embedding = target.tensors["token_embd.weight"] if own is None else own
    all_states = hidden_states(target, text[:-1])
    fused = np.concatenate([all_states[i] for i in states], axis=-1)
    fused = fused @ checkpoint.tensors["fc.weight"].T
    return heads_numpy.eagle3_pass(checkpoint, embedding, text[1:], fused)[1]


def fitted_eagle3(
    folder: Path, target_path: Path, model: _core.Model, states: Sequence[int]
) -> Path:
    """A checkpoint of an EAGLE-3 head whose draft vocabulary is what the target likes to write."""
    target = load_target(target_path)
    width = len(target.tensors["output_norm.weight"])
    texts = texts_of(model)
    seen, counts = np.unique(np.concatenate([text[4:] for text in texts]), return_counts=True)
    ids = np.sort(seen[np.argsort(-counts, kind="stable")[:100]])
    make_eagle3(folder, width=width, vocab=model.vocab, draft_vocab=len(ids), states=list(states))
    place = {int(token): i for i, token in enumerate(ids)}
    _save(folder, "model.safetensors", {"d2t": ids - np.arange(len(ids))})
    checkpoint = heads_numpy.load(folder)
    norm, eps = checkpoint.tensors["norm.weight"], checkpoint.config["rms_norm_eps"]
    rows: list[np.ndarray] = []
    wanted: list[int] = []
    for text in texts:
        features = rms_norm(eagle3_features(checkpoint, target, states, text), norm, eps)
        for row, token in zip(features, text[2:], strict=False):
            if token in place:
                rows.append(row)
                wanted.append(place[token])
    _save(folder, "model.safetensors", {"lm_head.weight": _fit(rows, wanted, len(ids))})
    return folder


def converted(folder: Path, target_path: Path, type_name: str = "f32") -> Path:
    """The GGUF file of a checkpoint, beside it."""
    out = folder.with_suffix(f".{type_name}.gguf")
    convert(folder, out, type_name, target=target_path, progress=False)
    return out
