"""Special tokens of a checkpoint: which they are, and whether they are put around a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_native.convert.config import ConfigView, read_json, shortened
from specdec_native.errors import ConvertError

__all__ = ["AddedToken", "TokenizerConfig", "adds_tokens", "special_keys", "steps_of"]

# Name in a checkpoint -> key below "tokenizer.ggml." (gguf-py of ggml-org/llama.cpp; one of them
# is misspelt there).
_SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}
# Those that a run uses: what cannot be them is an error, for the others a note.
_USED = ("bos", "eos")
# Control tokens that some tokenizers forget to call special.
_CONTROL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_CONTROL_BRACKETS = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))


@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary proper."""

    id: int
    text: str
    special: bool
    path: Path  # of the file that names it

    @property
    def is_control(self) -> bool:
        """Whether it is a control token, by its mark or by its look."""
        return (
            self.special
            or self.text in _CONTROL_TEXTS
            or any(
                self.text.startswith(start) and self.text.endswith(end)
                for start, end in _CONTROL_BRACKETS
            )
        )


@dataclass(frozen=True)
class TokenizerConfig:
    """The small files of a tokenizer.

    Attributes:
        config: ``tokenizer_config.json`` over ``special_tokens_map.json``.
        tokenizer: ``tokenizer.json``, or None.
        model: ``config.json``.
        generation: ``generation_config.json``.
        added: The added tokens, in order of their ids.
    """

    config: ConfigView
    tokenizer: ConfigView | None
    model: ConfigView
    generation: ConfigView
    added: list[AddedToken]

    @classmethod
    def read(cls, folder: Path, model: ConfigView) -> TokenizerConfig:
        """Reads what there is.

        Raises:
            ConvertError: A file is damaged.
        """

        def view(name: str) -> ConfigView:
            path = folder / name
            return ConfigView(path, read_json(path) if path.is_file() else {})

        named = view("tokenizer_config.json")
        given = {key: value for key, value in named.values.items() if value is not None}
        config = ConfigView(named.path, {**view("special_tokens_map.json").values, **given})
        path = folder / "tokenizer.json"
        tokenizer = view("tokenizer.json") if path.is_file() else None
        added = _added_tokens(view("added_tokens.json"), config, tokenizer)
        return cls(config, tokenizer, model, view("generation_config.json"), added)


def _added_tokens(
    plain: ConfigView, config: ConfigView, tokenizer: ConfigView | None
) -> list[AddedToken]:
    """The tokens of all three files that may name them; the last one counts."""
    found: dict[int, AddedToken] = {}

    def put(path: Path, index: Any, text: Any, special: bool) -> None:
        number = int(index) if isinstance(index, str) and index.isdecimal() else index
        if type(number) is not int or number < 0 or not isinstance(text, str):
            raise ConvertError(
                f"{path}: added token {shortened(text)} has id {shortened(index)}, expected a text "
                "and a whole number"
            )
        found[number] = AddedToken(number, text, special, path)

    for text, index in plain.values.items():
        put(plain.path, index, text, False)
    decoder = config.part("added_tokens_decoder")
    for index in () if decoder is None else decoder.values:
        token = decoder.part(index) if decoder is not None else None
        if token is not None:
            put(config.path, index, token.values.get("content"), token.flag("special", False))
    for token in () if tokenizer is None else tokenizer.parts("added_tokens"):
        put(
            token.path,
            token.values.get("id"),
            token.values.get("content"),
            token.flag("special", False),
        )
    return [found[index] for index in sorted(found)]


def special_keys(
    files: TokenizerConfig, ids: Mapping[str, int], vocab: int
) -> tuple[dict[str, Any], list[str]]:
    """Ids of the special tokens, and all that end a generation.

    Args:
        files: Where they are named: by text in the tokenizer's files, by id in the model's.
        ids: Text -> id.
        vocab: Number of ids.

    Returns:
        The keys, and what was left out since the vocabulary has no such token.

    Raises:
        ConvertError: A name or id is of another kind; or it is one of the beginning or an end of a
            text, and the vocabulary does not have it.
    """
    keys: dict[str, Any] = {}
    notes: list[str] = []
    for name, key in _SPECIAL.items():
        missing = _Missing(vocab, None if name in _USED else notes)
        found = _by_text(files.config, f"{name}_token", ids, missing)
        for view in (files.model, files.generation):
            found += _by_id(view, f"{name}_token_id", missing)
        if found:
            keys[f"tokenizer.ggml.{key}"] = found[0]
    missing = _Missing(vocab, None)
    ends = _by_id(files.generation, "eos_token_id", missing)
    ends = ends or _by_id(files.model, "eos_token_id", missing)
    eos = keys.get("tokenizer.ggml.eos_token_id")
    others = [one for one in ends if one != eos]
    if others:
        keys["tokenizer.ggml.eot_token_id"] = others[0]
        keys["tokenizer.ggml.eog_token_ids"] = [eos, *others]
    return keys, list(dict.fromkeys(notes))


class _Missing:
    """What to do about special tokens that the vocabulary does not have."""

    def __init__(self, vocab: int, notes: list[str] | None) -> None:
        """`notes`: where to write it down; None: it is an error."""
        self.vocab = vocab
        self._notes = notes

    def report(self, path: Path, what: str) -> None:
        if self._notes is None:
            raise ConvertError(f"{path}: {what}; correct it, or take it out")
        self._notes.append(f"{path}: {what}; left out")


def _text(config: ConfigView, key: str) -> str | None:
    """The text of a special token, which is given plainly or with its properties."""
    token = config.values.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    if token is not None and not isinstance(text, str):
        raise config.wrong(key, "a text, or an object with 'content'")
    return text


def _by_text(config: ConfigView, key: str, ids: Mapping[str, int], missing: _Missing) -> list[int]:
    """The id of a token that a file names, if it names one."""
    text = _text(config, key)
    if text is None:
        return []
    if text in ids:
        return [ids[text]]
    missing.report(config.path, f"key {key!r} is {text!r}, which the vocabulary does not have")
    return []


def _by_id(view: ConfigView, key: str, missing: _Missing) -> list[int]:
    """The ids under a key: one, several for the ends of a generation, or none; -1 means none."""
    inner = view.part("text_config")
    view = inner if inner is not None and key not in view else view
    value = view.values.get(key)
    listed = [] if value is None else [value]
    if isinstance(value, list) and key == "eos_token_id":
        listed = value
    if not all(type(one) is int for one in listed):
        raise view.wrong(key, "a token id")
    for one in listed:
        if one != -1 and not 0 <= one < missing.vocab:
            missing.report(
                view.path,
                f"key {key!r} is {value}, but ids of the vocabulary end at {missing.vocab - 1} "
                "('vocab_size' in config.json)",
            )
    return [one for one in listed if 0 <= one < missing.vocab]


def adds_tokens(
    files: TokenizerConfig, special: Mapping[str, Any], sentencepiece: bool
) -> dict[str, bool]:
    """Whether a text gets BOS before and EOS behind it."""
    first, last = _template_ends(files.tokenizer)
    keys = {}
    for name, by_template in (("bos", first), ("eos", last)):
        token = _text(files.config, f"{name}_token")
        adds = by_template is not None and by_template == token
        if sentencepiece and files.tokenizer is None:
            adds = name == "bos"
        adds = files.config.flag(f"add_{name}_token", adds)
        keys[f"tokenizer.ggml.add_{name}_token"] = (
            adds and f"tokenizer.ggml.{name}_token_id" in special
        )
    return keys


def _template_ends(tokenizer: ConfigView | None) -> tuple[str | None, str | None]:
    """The special tokens that the post-processor puts before and behind a text."""
    part = None if tokenizer is None else tokenizer.part("post_processor")
    for one in steps_of(part, "processors"):
        if one.text("type", "") != "TemplateProcessing":
            continue
        ends = [entry.part("SpecialToken") for entry in one.parts("single")]
        if len(ends) > 1:
            first, last = (
                None if end is None else end.text("id", "") for end in (ends[0], ends[-1])
            )
            return first, last
    return None, None


def steps_of(part: ConfigView | None, key: str) -> list[ConfigView]:
    """The steps of a sequence, or the one that stands alone."""
    if part is None:
        return []
    return part.parts(key) if key in part else [part]
