"""Special tokens of a checkpoint: which they are, and whether they are put around a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_native.convert.config import ConfigView, read_json
from specdec_native.errors import ConvertError

__all__ = ["AddedToken", "TokenizerConfig", "adds_tokens", "special_keys"]

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
# Control tokens that some tokenizers forget to call special.
_CONTROL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_CONTROL_BRACKETS = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))


@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary proper."""

    id: int
    text: str
    special: bool

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

        config = view("tokenizer_config.json").with_defaults(view("special_tokens_map.json").values)
        path = folder / "tokenizer.json"
        tokenizer = view("tokenizer.json") if path.is_file() else None
        added = _added_tokens(view("added_tokens.json"), config, tokenizer)
        return cls(config, tokenizer, model, view("generation_config.json"), added)


def _added_tokens(
    plain: ConfigView, config: ConfigView, tokenizer: ConfigView | None
) -> list[AddedToken]:
    """The tokens of all three files that may name them; the last one counts."""
    found: dict[int, AddedToken] = {}

    def put(path: Path, index: Any, text: Any, special: Any) -> None:
        number = int(index) if isinstance(index, str) and index.isdecimal() else index
        if type(number) is not int or number < 0 or not isinstance(text, str):
            raise ConvertError(f"{path}: added token {text!r} has id {index!r}")
        found[number] = AddedToken(number, text, special is True)

    for text, index in plain.values.items():
        put(plain.path, index, text, False)
    decoder = config.part("added_tokens_decoder")
    for index, one in () if decoder is None else decoder.values.items():
        values = one if isinstance(one, dict) else {}
        put(config.path, index, values.get("content"), values.get("special"))
    listed = None if tokenizer is None else tokenizer.values.get("added_tokens")
    for one in listed or ():
        values = one if isinstance(one, dict) else {}
        put(
            tokenizer.path if tokenizer is not None else config.path,
            values.get("id"),
            values.get("content"),
            values.get("special"),
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
        The keys, and what was left out since the vocabulary has no such id.

    Raises:
        ConvertError: An id is no number, or the only end of a generation is no id.
    """
    keys: dict[str, Any] = {}
    notes: list[str] = []
    for name, key in _SPECIAL.items():
        text = _text(files.config.values.get(f"{name}_token"))
        found = [ids[text]] if text is not None and text in ids else []
        for view in (files.model, files.generation):
            if not found:
                found = _known(view, f"{name}_token_id", vocab, notes)
        if found:
            keys[f"tokenizer.ggml.{key}"] = found[0]
    ends = _known(files.generation, "eos_token_id", vocab, notes)
    ends = ends or _known(files.model, "eos_token_id", vocab, notes)
    eos = keys.get("tokenizer.ggml.eos_token_id")
    if eos is None and any("'eos_token_id'" in note for note in notes):
        raise ConvertError(next(note for note in notes if "'eos_token_id'" in note))
    others = [one for one in ends if one != eos]
    if others:
        keys["tokenizer.ggml.eot_token_id"] = others[0]
        keys["tokenizer.ggml.eog_token_ids"] = [eos, *others]
    return keys, list(dict.fromkeys(notes))


def _text(token: Any) -> str | None:
    """The text of a special token, which is given plainly or with its properties."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _known(view: ConfigView, key: str, vocab: int, notes: list[str]) -> list[int]:
    """The ids under a key that the vocabulary has: one, several, or none.

    Negative ones mean "none"; those beyond the vocabulary are noted.
    """
    value = view.values.get(key)
    if value is None:
        inner = view.values.get("text_config")
        value = inner.get(key) if isinstance(inner, dict) else None
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for one in listed:
        if type(one) is not int:
            raise ConvertError(f"{view.path}: key {key!r} is {value!r}, no token id")
        if one >= vocab:
            notes.append(
                f"{view.path}: key {key!r} is {value!r}, but the vocabulary ends at {vocab - 1}"
            )
    return [one for one in listed if 0 <= one < vocab]


def adds_tokens(
    files: TokenizerConfig, special: Mapping[str, Any], sentencepiece: bool
) -> dict[str, bool]:
    """Whether a text gets BOS before and EOS behind it."""
    first, last = _template_ends(files.tokenizer)
    keys = {}
    for name, by_template in (("bos", first), ("eos", last)):
        token = _text(files.config.values.get(f"{name}_token"))
        adds = by_template is not None and by_template == token
        if sentencepiece and files.tokenizer is None:
            adds = name == "bos"
        flag = files.config.values.get(f"add_{name}_token")
        adds = flag if isinstance(flag, bool) else adds
        keys[f"tokenizer.ggml.add_{name}_token"] = (
            adds and f"tokenizer.ggml.{name}_token_id" in special
        )
    return keys


def _template_ends(tokenizer: ConfigView | None) -> tuple[str | None, str | None]:
    """The special tokens that the post-processor puts before and behind a text."""
    part = None if tokenizer is None else tokenizer.part("post_processor")
    listed = [] if part is None else part.values.get("processors", [part.values])
    for one in listed if isinstance(listed, list) else ():
        if not isinstance(one, dict) or one.get("type") != "TemplateProcessing":
            continue
        single = one.get("single")
        ends = [
            entry.get("SpecialToken", {}).get("id") if isinstance(entry, dict) else None
            for entry in single or ()
        ]
        if len(ends) > 1:
            return ends[0], ends[-1]
    return None, None
