"""A checkpoint's tokenizer files as ``tokenizer.*`` keys of a GGUF file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specdec_native.convert.config import ConfigView, read_json, read_text, shortened
from specdec_native.convert.sentencepiece_model import (
    Piece,
    SentencePieceModel,
    read_sentencepiece,
)
from specdec_native.convert.special_tokens import (
    AddedToken,
    TokenizerConfig,
    adds_tokens,
    special_keys,
    steps_of,
)
from specdec_native.errors import ConvertError
from specdec_native.sampling import SamplingParams
from specdec_native.text.pretokenizers import recognized_names
from specdec_native.text.vocabulary import SPACE_PREFIX_KEY, TokenType

__all__ = ["plan_tokenizer", "sampling_keys"]

_SPACE = "\u2581"  # stands for a space in SentencePiece vocabularies
# Scores of tokens that are no pieces, as llama.cpp's converter gives them.
_UNUSED_SCORE, _ADDED_SCORE = -10000.0, -1000.0
# Of names that mean the same words, the one that a family's own files have.
_PREFERRED_PRE = {"starcoder2": "starcoder"}

_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


@dataclass
class _Table:
    """Tokens by id, filled up with unused ones to the size of the embedding."""

    tokens: list[str]
    types: list[int]
    scores: list[float]

    @classmethod
    def of_size(cls, size: int) -> _Table:
        return cls(
            [f"[PAD{i}]" for i in range(size)],
            [int(TokenType.UNUSED)] * size,
            [_UNUSED_SCORE] * size,
        )

    def put(self, index: int, text: str, kind: int, score: float) -> None:
        self.tokens[index], self.types[index], self.scores[index] = text, kind, score

    def add(self, token: AddedToken) -> None:
        """An added token over what is there."""
        if token.is_control:
            unknown = self.types[token.id] == TokenType.UNKNOWN and (
                self.tokens[token.id] == token.text
            )
            kind = TokenType.UNKNOWN if unknown else TokenType.CONTROL
            self.put(token.id, token.text, int(kind), _ADDED_SCORE)
        else:
            text = token.text.replace(_SPACE, " ")
            self.put(token.id, text, int(TokenType.USER_DEFINED), _ADDED_SCORE)


@dataclass
class _Vocabulary:
    """One kind of tokenizer: its table, and the keys that are its own."""

    kind: str
    table: _Table
    keys: dict[str, Any] = field(default_factory=dict)


def plan_tokenizer(
    folder: Path, config: ConfigView, vocab: int, architecture: str
) -> tuple[dict[str, Any], list[str]]:
    """The ``tokenizer.*`` keys for a checkpoint.

    Args:
        folder: The checkpoint's folder.
        config: Its ``config.json``.
        vocab: Rows of the embedding.
        architecture: The model's name in GGUF.

    Returns:
        The keys, and what was left out.

    Raises:
        ConvertError: A file is missing or damaged, or its pre-tokeniser is not known.
    """
    files = TokenizerConfig.read(folder, config)
    model = folder / "tokenizer.model"
    if files.tokenizer is not None and _is_byte_level(files.tokenizer.values):
        found = _byte_level(files.tokenizer, vocab, architecture)
    elif model.is_file():
        found = _sentencepiece(model, read_sentencepiece(model), vocab, files)
    elif files.tokenizer is not None:
        found = _from_json(files.tokenizer, vocab, files)
    else:
        raise ConvertError(
            f"{folder}: there is no tokenizer.json and no tokenizer.model. Save the tokenizer with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(folder), or get these files"
        )
    table = found.table
    for token in files.added:
        if token.id < vocab:
            table.add(token)
    ids = {text: index for index, text in reversed(list(enumerate(table.tokens)))}
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": found.kind,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": table.tokens,
    }
    if found.kind != "gpt2":
        keys["tokenizer.ggml.scores"] = np.array(table.scores, np.float32)
    keys["tokenizer.ggml.token_type"] = np.array(table.types, np.int32)
    keys |= found.keys
    special, notes = special_keys(files, ids, vocab)
    keys |= special | adds_tokens(files, special, found.kind != "gpt2")
    return keys | _chat_templates(folder, files), notes + _beyond(files.added, vocab)


def _beyond(added: Sequence[AddedToken], vocab: int) -> list[str]:
    """A note for each file that adds tokens without a row in the embedding."""
    left: dict[Path, list[AddedToken]] = {}
    for token in added:
        if token.id >= vocab:
            left.setdefault(token.path, []).append(token)
    return [
        f"{path}: {len(tokens)} added tokens have ids from {tokens[0].id} ({tokens[0].text!r}) on, "
        f"but 'vocab_size' in config.json is {vocab}; left out"
        for path, tokens in left.items()
    ]


def _fill(table: _Table, path: Path, vocab: Mapping[str, Any]) -> None:
    """Puts the tokens of a ``tokenizer.json`` into their places."""
    size = len(table.tokens)
    taken: dict[int, str] = {}
    for text, index in vocab.items():
        if type(index) is not int or not 0 <= index < size:
            raise ConvertError(
                f"{path}: token {text!r} has id {shortened(index)}, but 'vocab_size' in "
                f"config.json is {size}"
            )
        if index in taken:
            raise ConvertError(f"{path}: tokens {taken[index]!r} and {text!r} both have id {index}")
        taken[index] = text
        table.put(index, text, int(TokenType.NORMAL), 0.0)


def _is_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    """Whether byte pairs are merged after bytes became visible characters."""
    model = tokenizer.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    return kind == "BPE" and "'ByteLevel'" in repr(tokenizer.get("pre_tokenizer"))


def _byte_level(tokenizer: ConfigView, vocab: int, architecture: str) -> _Vocabulary:
    names = recognized_names(tokenizer.values)
    if not names:
        raise ConvertError(
            f"{tokenizer.path}: key 'pre_tokenizer' is of no kind that is known, and a wrong one "
            f"would cut text differently: {shortened(tokenizer.values.get('pre_tokenizer'))}"
        )
    preferred = _PREFERRED_PRE.get(architecture)
    model = _model(tokenizer)
    table = _Table.of_size(vocab)
    _fill(table, tokenizer.path, _dictionary(model, "vocab"))
    return _Vocabulary(
        "gpt2",
        table,
        {
            "tokenizer.ggml.pre": preferred if preferred in names else names[0],
            "tokenizer.ggml.merges": [" ".join(pair) for pair in _merges(model)],
        },
    )


def _model(tokenizer: ConfigView) -> ConfigView:
    model = tokenizer.part("model")
    if model is None:
        raise tokenizer.wrong("model", "an object")
    return model


def _dictionary(view: ConfigView, key: str) -> Mapping[str, Any]:
    part = view.part(key)
    if part is None or not part.values:
        raise view.wrong(key, "an object with at least one token")
    return part.values


def _merges(model: ConfigView) -> list[tuple[str, str]]:
    """The pairs, best first; older files have them in one string."""
    merges = model.items("merges", "a list of pairs")
    if not merges:
        raise model.wrong("merges", "a list of pairs")
    pairs: list[tuple[str, str]] = []
    for index, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(parts, list) and len(parts) == 2
        if not is_pair or not all(isinstance(one, str) and one for one in parts):
            raise ConvertError(
                f"{model.path}: key 'merges' has {shortened(merge)} at {index}, no pair of texts"
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def _sentencepiece(
    path: Path, model: SentencePieceModel, vocab: int, files: TokenizerConfig
) -> _Vocabulary:
    if len(model.pieces) > vocab:
        raise ConvertError(
            f"{path}: there are {len(model.pieces)} pieces, but 'vocab_size' in config.json is "
            f"{vocab}"
        )
    table = _Table.of_size(vocab)
    for index, piece in enumerate(model.pieces):
        table.put(index, piece.text, piece.type, piece.score)
    prefix = files.config.flag("add_prefix_space", model.space_prefix)
    keys: dict[str, Any] = {"tokenizer.ggml.add_space_prefix": prefix}
    steps = {} if files.tokenizer is None else files.tokenizer.values
    if "'prepend_scheme': 'first'" in repr(steps.get("pre_tokenizer")):
        # llama.cpp, which passes over this key, puts a space after special tokens too.
        keys[SPACE_PREFIX_KEY] = "first"
    if not model.unigram:
        return _Vocabulary("llama", table, keys)
    keys["tokenizer.ggml.remove_extra_whitespaces"] = model.squeezes_spaces
    if model.charsmap:
        keys["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(model.charsmap, np.uint8)
    return _Vocabulary("t5", table, keys)


def _from_json(tokenizer: ConfigView, vocab: int, files: TokenizerConfig) -> _Vocabulary:
    """A SentencePiece vocabulary out of the ``tokenizer.json`` that was made of it."""
    model = _model(tokenizer)
    kind = model.text("type", "BPE")
    if kind == "Unigram":
        pieces = _unigram_pieces(model)
    elif kind == "BPE" and model.flag("byte_fallback", False):
        pieces = _merged_pieces(model, vocab)
    else:
        raise ConvertError(
            f"{tokenizer.path}: key 'model' is of type {kind!r} without bytes, which is not "
            "supported; supported are byte-level BPE, BPE with byte fallback and Unigram"
        )
    normalizer = repr(tokenizer.values.get("normalizer"))
    dummy = repr(tokenizer.values.get("pre_tokenizer"))
    prefix = "'Prepend'" in normalizer or "'always'" in dummy or "'first'" in dummy
    read = SentencePieceModel(
        pieces,
        unigram=kind == "Unigram",
        space_prefix=prefix or ("'Metaspace'" in dummy and "prepend_scheme" not in dummy),
        squeezes_spaces=" {2,}" in normalizer,
        charsmap=_charsmap(tokenizer),
    )
    return _sentencepiece(tokenizer.path, read, vocab, files)


def _unigram_pieces(model: ConfigView) -> list[Piece]:
    expected = "a list of at least one piece, each with its score"
    listed = model.items("vocab", expected)
    unknown = model.values.get("unk_id")
    try:
        pieces = [
            Piece(str(text), float(score), _piece_type(str(text), index == unknown))
            for index, (text, score) in enumerate(listed)
        ]
    except (TypeError, ValueError):
        pieces = []
    if not pieces:
        raise model.wrong("vocab", expected)
    return pieces


def _merged_pieces(model: ConfigView, size: int) -> list[Piece]:
    """Pieces with scores that give the merges' order: the best pair makes the best piece."""
    table = _Table.of_size(size)
    vocab = _dictionary(model, "vocab")
    _fill(table, model.path, vocab)
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(_merges(model)):
        scores.setdefault(left + right, -float(rank))
    last, unknown = -float(len(scores)), model.text("unk_token", "")
    return [
        Piece(
            text,
            scores.get(text, last),
            kind if kind == TokenType.UNUSED else _piece_type(text, text == unknown),
        )
        for text, kind in zip(table.tokens, table.types, strict=True)
    ]


def _piece_type(text: str, unknown: bool) -> int:
    if unknown:
        return int(TokenType.UNKNOWN)
    is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
    return int(TokenType.BYTE if is_byte else TokenType.NORMAL)


def _charsmap(tokenizer: ConfigView) -> bytes:
    """The compiled table of a normaliser, if there is one."""
    for one in steps_of(tokenizer.part("normalizer"), "normalizers"):
        if one.text("type", "") == "Precompiled":
            try:
                return base64.b64decode(one.text("precompiled_charsmap", ""), validate=True)
            except ValueError:
                raise one.wrong("precompiled_charsmap", "base64") from None
    return b""


def _chat_templates(folder: Path, files: TokenizerConfig) -> dict[str, Any]:
    """The chat template, and others by name."""
    templates = _templates(folder, files)
    names = [name for name in templates if name != "default"]
    keys: dict[str, Any] = {
        "tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}": one
        for name, one in templates.items()
    }
    return keys | ({"tokenizer.chat_templates": names} if names else {})


def _templates(folder: Path, files: TokenizerConfig) -> dict[str, str]:
    """Name -> template: of files of their own, else of ``tokenizer_config.json``."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        others = sorted((folder / "additional_chat_templates").glob("[!.]*.jinja"))
        return {"default": read_text(own), **{one.stem: read_text(one) for one in others}}
    old = folder / "chat_template.json"
    view, key = files.config, "chat_template"
    if key not in view and old.is_file():
        view = ConfigView(old, read_json(old))
    found = view.values.get(key)
    if isinstance(found, str):
        return {"default": found}
    expected = "a template, or a list of objects with 'name' and 'template'"
    if not isinstance(found, (list, type(None))):
        raise view.wrong(key, expected)
    templates: dict[str, str] = {}
    for one in found or ():
        values = one if isinstance(one, dict) else {}
        name, template = values.get("name"), values.get("template")
        if not isinstance(name, str) or not isinstance(template, str) or name in templates:
            raise view.wrong(key, expected)
        templates[name] = template
    return templates


def sampling_keys(folder: Path) -> dict[str, Any]:
    """What ``generation_config.json`` recommends for sampling.

    Raises:
        ConvertError: A value that no request could have; the result would not load.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    config = ConfigView(path, read_json(path))
    if not config.flag("do_sample", True):
        return {}
    keys: dict[str, Any] = {}
    for old, new in _SAMPLING.items():
        value = config.values.get(old)
        if value is None:
            continue
        try:
            SamplingParams(**{old: value})
        except (TypeError, ValueError) as error:
            raise ConvertError(f"{path}: key {old!r} is {shortened(value)}: {error}") from None
        keys[f"general.sampling.{new}"] = np.int32(value) if old == "top_k" else float(value)
    return keys
