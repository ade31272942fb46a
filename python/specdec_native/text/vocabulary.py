"""The vocabulary of a GGUF file: its ``tokenizer.*`` metadata, checked.

A file is input from outside: every type, range and length is tested here, so that nothing after
this point has to.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from specdec_native.errors import GgufError, shortened
from specdec_native.text.pretokenizers import ALIASES, PRE_TOKENIZERS

__all__ = ["SPACE_PREFIX_KEY", "TokenType", "Vocabulary"]

_PREFIX = "tokenizer.ggml."
_KINDS = ("gpt2", "llama", "t5")
# Our own key, which other programs pass over: llama.cpp always acts as for "always".
SPACE_PREFIX_KEY = "specdec.tokenizer.space_prefix"
# Special ids where a file names none (llama.cpp's llama-vocab.cpp).
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
_NEXT = "Convert the model again with a current converter, or get the file from another place."


class TokenType(enum.IntEnum):
    """What a token is (``tokenizer.ggml.token_type``)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts that end a generation, as llama.cpp has them (llama-vocab.cpp, special_eog_ids). The first
# set cannot well be ordinary text, so such a token counts as a control token whatever type the
# converter gave it. The second set can be (`</s>` is HTML for struck-out text, and an ordinary or
# user-defined token in some vocabularies): it counts only where the file says "control".
# llama.cpp also stops on fill-in-the-middle separators; we do not: they end no turn.
_END_MARKERS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
    }
)
_END_MARKERS_IF_CONTROL = frozenset(
    {
        "</s>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001 (DeepSeek writes it with fullwidth bars)
        "[e~[",
    }
)
# Looks of tokens that mark turns, which some converters call user-defined.
_MARKER = re.compile(r"<\|.*\|>|<\uff5c.*\uff5c>|<start_of_turn>|\[/?INST\]", re.DOTALL)
# Where a vocabulary has all of a set, `<|end|>` closes a channel and not the turn.
_END_IS_NO_END = ({"<|return|>", "<|call|>"}, {"<|call|>", "<|flush|>"}, {"<|calls|>", "<|flush|>"})
# After these tokens Phi-3 keeps the blanks that follow.
_PHI3_KEEPS_BLANKS = frozenset({"<unk>", "<s>", "<|endoftext|>"})


class _Metadata:
    """Typed access to the metadata, with errors that name the key and the value."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def string(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise GgufError(f"{name} must be a string, but is {_shown(value)}. {_NEXT}")
        return value

    def flag(self, name: str) -> bool | None:
        value = self._scalar(name)
        if value is not None and not isinstance(value, bool):
            raise GgufError(f"{_PREFIX}{name} must be a boolean, but is {_shown(value)}. {_NEXT}")
        return value

    def _scalar(self, name: str) -> Any:
        """The value under a key; a NumPy scalar as the Python value it holds."""
        value = self.values.get(_PREFIX + name)
        is_scalar = getattr(value, "ndim", None) == 0
        return value.item() if value is not None and is_scalar else value

    def array(self, name: str, kind: type, kind_name: str) -> list[Any] | None:
        """The array under a key, each item of exactly the Python type `kind`."""
        value = self.values.get(_PREFIX + name)
        if value is None:
            return None
        items = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(items, (list, tuple)):
            raise GgufError(
                f"{_PREFIX}{name} must be an array of {kind_name}, but is {_shown(value)}. {_NEXT}"
            )
        if any(found is not kind for found in set(map(type, items))):
            index = next(i for i, item in enumerate(items) if type(item) is not kind)
            raise GgufError(
                f"{_PREFIX}{name}[{index}] must be of type {kind_name}, but is "
                f"{_shown(items[index])}. {_NEXT}"
            )
        return list(items)

    def integer(self, name: str) -> int | None:
        value = self._scalar(name)
        return None if value is None else _checked_integer(_PREFIX + name, value)

    def token_id(self, name: str, size: int) -> int | None:
        """A token id, checked against the size of the vocabulary."""
        value = self._scalar(name)
        return None if value is None else _checked_id(_PREFIX + name, value, size)

    def token_ids(self, name: str, size: int) -> list[int]:
        """A list of token ids; one plain id is taken as a list of one."""
        value = self.values.get(_PREFIX + name)
        if value is None or isinstance(self._scalar(name), int):
            single = self.token_id(name, size)
            return [] if single is None else [single]
        items = self.array(name, int, "integer") or []
        return [_checked_id(f"{_PREFIX}{name}[{i}]", v, size) for i, v in enumerate(items)]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and special ids of one model.

    Attributes:
        kind: ``"gpt2"`` (byte-level byte pairs), ``"llama"`` (SentencePiece's byte pairs) or
            ``"t5"`` (SentencePiece's unigrams).
        pre: Name of the pre-tokeniser; None if the file names none.
        tokens: Text of each token as the file has it.
        scores: Score of each token; empty for ``gpt2``.
        types: Type of each token.
        merges: Pairs to merge, ``"left right"``, best first; empty for ``llama``.
        bos_id: Begin-of-sequence id, or None.
        eos_id: End-of-sequence id, or None.
        unknown_id: Id for what the vocabulary cannot express, or None.
        padding_id: Padding id, or None.
        eog_ids: Every id that ends a generation.
        add_bos: Whether a sequence starts with BOS.
        add_eos: Whether a sequence ends with EOS.
        space_prefix: Where a space is put before a word: ``"never"``, ``"always"`` (at the start of
            a text and after special tokens), or ``"first"`` (at the start, unless there is one).
        squeezes_spaces: Whether spaces at the ends are dropped and runs of them count as one.
        charsmap: SentencePiece's compiled table of replaced characters; empty for none.
        strip_after: Tokens after which blanks in the text are dropped.
        chat_templates: Name -> source of the chat templates; the one without a name of its own is
            ``"default"``.
    """

    kind: str
    pre: str | None
    tokens: list[str]
    scores: list[float]
    types: list[TokenType]
    merges: list[str]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    space_prefix: str
    squeezes_spaces: bool
    charsmap: bytes
    strip_after: frozenset[int]
    chat_templates: Mapping[str, str]

    @property
    def add_space_prefix(self) -> bool:
        """Whether a space is put before the first word."""
        return self.space_prefix != "never"

    def ids_of(self, *kinds: TokenType) -> list[int]:
        """The ids of the tokens of some types, ascending."""
        return np.flatnonzero(np.isin(self._type_array, kinds)).tolist()

    @cached_property
    def marker_ids(self) -> frozenset[int]:
        """User-defined tokens that mark turns by their look: no text from outside may give them."""
        return frozenset(
            index
            for index in self.ids_of(TokenType.USER_DEFINED)
            if _MARKER.fullmatch(self.tokens[index])
        )

    @cached_property
    def _type_array(self) -> np.ndarray[Any, np.dtype[np.int8]]:
        return np.fromiter(self.types, np.int8, len(self.types))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Reads the vocabulary out of a GGUF file's metadata.

        Args:
            metadata: Key -> string, integer, float, boolean, or a list or NumPy array of these.

        Raises:
            GgufError: A key is missing, or its value has the wrong type or is out of range.
        """
        meta = _Metadata(metadata)
        kind = _read_kind(meta)
        tokens = _read_tokens(meta)
        size = len(tokens)
        types = _read_types(meta, tokens)
        pre = meta.string(_PREFIX + "pre")
        defaults = _DEFAULT_IDS.get(kind, {})

        def special(name: str) -> int | None:
            found = meta.token_id(f"{name}_token_id", size)
            if found is not None or name not in defaults:
                return found
            # The format's default holds only where it exists and is no ordinary token.
            default = defaults[name]
            if default < size and types[default] in (TokenType.CONTROL, TokenType.UNKNOWN):
                return default
            return None

        _refuse_separator(meta)
        bos_id, eos_id = special("bos"), special("eos")
        ends = [eos_id, special("eot"), special("eom")]
        for name in ("eos_token_ids", "eot_token_ids", "eog_token_ids"):
            ends.extend(meta.token_ids(name, size))
        explicit = {one for one in ends if one is not None}
        return cls(
            kind=kind,
            pre=pre,
            tokens=tokens,
            scores=_read_scores(meta, kind, size) if kind != "gpt2" else [],
            types=types,
            merges=_read_merges(meta) if kind == "gpt2" else [],
            bos_id=bos_id,
            eos_id=eos_id,
            unknown_id=special("unknown"),
            padding_id=special("padding") if _has_sound_padding(meta, size) else None,
            eog_ids=frozenset(explicit | _ends_by_text(tokens, types)),
            add_bos=_read_add(meta, "bos", bos_id, _adds_bos_by_default(kind, pre)),
            add_eos=_read_add(meta, "eos", eos_id, kind == "t5"),
            space_prefix=_read_space_prefix(meta, kind),
            squeezes_spaces=kind == "t5" and meta.flag("remove_extra_whitespaces") is not False,
            charsmap=_read_charsmap(meta) if kind == "t5" else b"",
            strip_after=_strip_after(meta, kind, tokens, types),
            chat_templates=_read_templates(meta),
        )


def _read_kind(meta: _Metadata) -> str:
    kind = meta.string(_PREFIX + "model")
    if kind is None:
        raise GgufError(f"{_PREFIX}model is missing: the file holds no tokenizer. {_NEXT}")
    if kind not in _KINDS:
        raise GgufError(
            f"{_PREFIX}model is {shortened(repr(kind))}, which is not supported; supported are "
            f"{', '.join(_KINDS)}. Use a model with one of these."
        )
    return kind


def _read_tokens(meta: _Metadata) -> list[str]:
    tokens = meta.array("tokens", str, "string")
    if not tokens:
        state = "missing" if tokens is None else "empty"
        raise GgufError(f"{_PREFIX}tokens is {state}: there is no vocabulary. {_NEXT}")
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        index = next(i for i, token in enumerate(tokens) if _has_surrogate(token))
        raise GgufError(
            f"{_PREFIX}tokens[{index}] is not valid Unicode: {shortened(repr(tokens[index]))}. "
            f"{_NEXT}"
        ) from None
    return tokens


def _read_types(meta: _Metadata, tokens: list[str]) -> list[TokenType]:
    """The token types, with known end markers made control tokens."""
    raw = meta.array("token_type", int, "integer")
    if raw is None:
        types = [TokenType.NORMAL] * len(tokens)
    else:
        _check_length("token_type", len(raw), len(tokens))
        known = {int(one): one for one in TokenType}
        try:
            types = list(map(known.__getitem__, raw))
        except KeyError as error:
            index = raw.index(error.args[0])
            raise GgufError(
                f"{_PREFIX}token_type[{index}] is {raw[index]}, which is no token type (1 to 6). "
                f"{_NEXT}"
            ) from None
    if not _END_MARKERS.isdisjoint(tokens):
        for index, token in enumerate(tokens):
            if token in _END_MARKERS:
                types[index] = TokenType.CONTROL
    return types


def _read_scores(meta: _Metadata, kind: str, size: int) -> list[float]:
    scores = meta.array("scores", float, "float")
    if scores is None:
        raise GgufError(f"{_PREFIX}scores is missing, which kind {kind!r} needs. {_NEXT}")
    _check_length("scores", len(scores), size)
    if any(map(math.isnan, scores)):
        index = next(i for i, score in enumerate(scores) if math.isnan(score))
        raise GgufError(f"{_PREFIX}scores[{index}] is not a number. {_NEXT}")
    return scores


def _read_merges(meta: _Metadata) -> list[str]:
    """The merges as the file has them; what they name is checked where they are put to use."""
    merges = meta.array("merges", str, "string")
    if merges is None:
        raise GgufError(f"{_PREFIX}merges is missing, which kind 'gpt2' needs. {_NEXT}")
    return merges


def _read_add(meta: _Metadata, which: str, token_id: int | None, default: bool) -> bool:
    """Whether to add BOS or EOS, which needs there to be one."""
    wanted = meta.flag(f"add_{which}_token")
    if wanted and token_id is None:
        raise GgufError(
            f"{_PREFIX}add_{which}_token is true, but {_PREFIX}{which}_token_id is missing. {_NEXT}"
        )
    return default and token_id is not None if wanted is None else wanted


def _refuse_separator(meta: _Metadata) -> None:
    """Only vocabularies of encoders such as BERT's put a separator after a text."""
    if meta.flag("add_sep_token"):
        raise GgufError(
            f"{_PREFIX}add_sep_token is true, but texts with a separator after them are not "
            "supported: this is the vocabulary of an encoder, or the key is wrong. Use a model "
            "that generates text, or set the key to false."
        )


def _has_sound_padding(meta: _Metadata, size: int) -> bool:
    """Whether the padding id, which only chat templates can see, is in the vocabulary if given.

    Fine-tuned models name ids there that their vocabulary lost or never had; llama.cpp passes over
    them, too.
    """
    found = meta.integer("padding_token_id")
    return found is None or 0 <= found < size


def _adds_bos_by_default(kind: str, pre: str | None) -> bool:
    if kind == "llama":
        return True
    found = PRE_TOKENIZERS.get(ALIASES.get(pre or "", pre or ""))
    return found is not None and found.add_bos


def _read_space_prefix(meta: _Metadata, kind: str) -> str:
    if kind == "gpt2" or meta.flag("add_space_prefix") is False:
        return "never"
    scheme = meta.string(SPACE_PREFIX_KEY)
    if scheme not in (None, "always", "first"):
        raise GgufError(
            f"{SPACE_PREFIX_KEY} is {shortened(repr(scheme))}; it must be 'always' or 'first'. "
            f"{_NEXT}"
        )
    return scheme or "always"


def _read_charsmap(meta: _Metadata) -> bytes:
    name = "precompiled_charsmap"
    value = meta.values.get(_PREFIX + name)
    if value is None:
        return b""
    if not (isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.itemsize == 1):
        raise GgufError(
            f"{_PREFIX}{name} must be an array of bytes, but is {_shown(value)}. {_NEXT}"
        )
    return value.tobytes()


def _read_templates(meta: _Metadata) -> dict[str, str]:
    """The chat templates by name; an empty one counts as none."""
    default = "tokenizer.chat_template"
    names = [
        key.removeprefix(default + ".") for key in meta.values if key.startswith(default + ".")
    ]
    found = {name: meta.string(f"{default}.{name}") for name in names}
    found["default"] = meta.string(default) or found.get("default")
    return {name: source for name, source in found.items() if source}


def _ends_by_text(tokens: list[str], types: list[TokenType]) -> set[int]:
    """Ids of the control tokens that are known to end a generation."""
    markers = _END_MARKERS | _END_MARKERS_IF_CONTROL
    found = {
        token: index
        for index, token in enumerate(tokens)
        if token in markers and types[index] is TokenType.CONTROL
    }
    if any(found.keys() >= others for others in _END_IS_NO_END):
        found.pop("<|end|>", None)
    if "<|tool_response>" in found:
        found.pop("</s>", None)
    return set(found.values())


def _strip_after(
    meta: _Metadata, kind: str, tokens: list[str], types: list[TokenType]
) -> frozenset[int]:
    """Tokens that swallow the blanks after them.

    Only Phi-3's SentencePiece vocabulary has any (``rstrip`` in its tokenizer.json). GGUF does not
    carry that attribute, so the architecture tells, much as in llama.cpp.
    """
    if kind != "llama" or meta.string("general.architecture") != "phi3":
        return frozenset()
    special = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    return frozenset(
        index
        for index, token in enumerate(tokens)
        if types[index] in special and token not in _PHI3_KEEPS_BLANKS
    )


def _check_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise GgufError(
            f"{_PREFIX}{name} has {length} entries, but {_PREFIX}tokens has {expected}. {_NEXT}"
        )


def _checked_integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise GgufError(f"{name} must be an integer, but is {_shown(value)}. {_NEXT}")
    return value


def _checked_id(name: str, value: object, size: int) -> int:
    value = _checked_integer(name, value)
    if not 0 <= value < size:
        raise GgufError(
            f"{name} is {value}, outside the vocabulary of {size} tokens (0 to {size - 1}). {_NEXT}"
        )
    return value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _shown(value: object) -> str:
    """A value for a message: its type, and the value if that is short."""
    return f"{type(value).__name__} {shortened(repr(value))}"
