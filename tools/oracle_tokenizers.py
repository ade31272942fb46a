"""Tokenizer files for tiny checkpoints, in the forms that public checkpoints have.

Byte-level vocabularies come as `tokenizer.json`, SentencePiece ones as `tokenizer.model` (a
protobuf of sentencepiece's `sentencepiece_model.proto`), both with `tokenizer_config.json`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from make_tiny_model import CHAT_TEMPLATE, byte_alphabet, toy_merges

__all__ = ["BYTE_LEVEL", "GPT2", "KINDS", "sentencepiece_model", "write_tokenizer"]

# Of the tokenizer.json files of meta-llama/Meta-Llama-3-8B and Qwen/Qwen2-7B, which differ in how
# many digits make a word; and of openai/gpt-oss-20b and mistralai/Mistral-Nemo-Base-2407.
_CASELESS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(pattern: str) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(False)]}


@dataclass(frozen=True)
class ByteLevelKind:
    """What distinguishes one byte-level tokenizer.json from another."""

    pre_tokenizer: dict[str, Any]
    bos: str | None
    eos: str
    others: tuple[str, ...] = ()
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


_DIGITS = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
}
GPT2 = _byte_level(True)

BYTE_LEVEL: dict[str, ByteLevelKind] = {
    "gpt-2": ByteLevelKind(GPT2, None, "<|endoftext|>"),
    "llama-bpe": ByteLevelKind(
        _split(_CASELESS % "{1,3}"),
        "<|begin_of_text|>",
        "<|end_of_text|>",
        ("<|eot_id|>",),
        ignore_merges=True,
        adds_bos=True,
    ),
    "qwen2": ByteLevelKind(
        _split(_CASELESS % ""), None, "<|im_end|>", ("<|endoftext|>", "<|im_start|>"), nfc=True
    ),
    "smollm": ByteLevelKind(_DIGITS, "<|im_start|>", "<|im_end|>", ("<|endoftext|>",)),
    "gpt-4o": ByteLevelKind(
        _split(_GPT4O), "<|startoftext|>", "<|return|>", ("<|endoftext|>", "<|call|>", "<|end|>")
    ),
    "tekken": ByteLevelKind(
        _split(_TEKKEN), "<s>", "</s>", ("<unk>", "[INST]"), ignore_merges=True, adds_bos=True
    ),
}


@dataclass(frozen=True)
class SentencePieceKind:
    """What distinguishes one tokenizer.model from another."""

    specials: tuple[tuple[str, int], ...]  # leading pieces and their types
    added: tuple[str, ...] = ()  # control tokens behind the pieces
    unigram: bool = False
    dummy_prefix: bool = True
    add_bos: bool = True


_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE, _NORMAL = 2, 3, 4, 6, 1  # types of a piece

_LLAMA_SPECIALS = (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL))

_SENTENCEPIECE: dict[str, SentencePieceKind] = {
    "llama-spm": SentencePieceKind(_LLAMA_SPECIALS),
    "llama-unigram": SentencePieceKind(_LLAMA_SPECIALS, unigram=True),
    "phi3-spm": SentencePieceKind(
        _LLAMA_SPECIALS, ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
    ),
    "gemma-spm": SentencePieceKind(
        (
            ("<pad>", _CONTROL),
            ("<eos>", _CONTROL),
            ("<bos>", _CONTROL),
            ("<unk>", _UNKNOWN),
            ("<start_of_turn>", _USER_DEFINED),
            ("<end_of_turn>", _USER_DEFINED),
        ),
        dummy_prefix=False,
    ),
}

KINDS = (*BYTE_LEVEL, *_SENTENCEPIECE)


def write_tokenizer(folder: Path, kind: str, vocab: int) -> None:
    """Writes the tokenizer files of a checkpoint.

    Args:
        folder: The checkpoint's folder.
        kind: One of `KINDS`.
        vocab: Rows of the embedding; a few of the last get no token.
    """
    if kind in BYTE_LEVEL:
        _write_byte_level(folder, BYTE_LEVEL[kind], vocab - 4)
    else:
        _write_sentencepiece(folder, _SENTENCEPIECE[kind], vocab - 4)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False), encoding="utf-8")


def _write_byte_level(folder: Path, kind: ByteLevelKind, vocab: int) -> None:
    specials = [one for one in (kind.bos, kind.eos, *kind.others) if one is not None]
    merges = toy_merges(vocab - len(specials) - 256)
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    first = len(tokens)
    added = [_added(first + i, text) for i, text in enumerate(specials)]
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": kind.bos, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {kind.bos: {"id": kind.bos, "ids": [first], "tokens": [kind.bos]}},
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "ignore_merges": kind.ignore_merges,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [merge.split(" ") for merge in merges],
    }
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "NFC"} if kind.nfc else None,
            "pre_tokenizer": kind.pre_tokenizer,
            "post_processor": template if kind.adds_bos else _byte_level(False),
            "decoder": _byte_level(True),
            "model": model,
        },
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": kind.bos,
            "eos_token": kind.eos,
            "chat_template": CHAT_TEMPLATE,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )


def _added(index: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, **flags, "special": True}


def _write_sentencepiece(folder: Path, kind: SentencePieceKind, vocab: int) -> None:
    pieces = [(text, 0.0, form) for text, form in kind.specials]
    pieces += [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    # Pieces that others merge to first, then single characters, as training gives them.
    words = ["\u2581t", "he", "in", "er", "\u2581a", "\u2581the", "re", "on", "an", "\u2581\u2581"]
    words += list("\u2581ehtinraos") + [chr(ord("A") + i) for i in range(26)]
    for i, word in enumerate(words[: vocab - len(pieces)]):
        pieces.append((word, -float(i), _NORMAL))
    (folder / "tokenizer.model").write_bytes(
        sentencepiece_model(pieces, unigram=kind.unigram, dummy_prefix=kind.dummy_prefix)
    )
    names = [text for text, _ in kind.specials]
    bos, eos = ("<bos>", "<eos>") if "<bos>" in names else ("<s>", "</s>")
    values = {"add_bos_token": kind.add_bos, "add_eos_token": False}
    decoder = {
        str(i): {**_added(i, text), "special": form != _USER_DEFINED}
        for i, (text, form) in enumerate(kind.specials)
    }
    decoder |= {
        str(len(pieces) + i): _added(len(pieces) + i, text) for i, text in enumerate(kind.added)
    }
    for one in decoder.values():
        del one["id"]
    _write_json(
        folder / "tokenizer_config.json",
        {
            **values,
            "added_tokens_decoder": decoder,
            "bos_token": bos,
            "eos_token": eos,
            "unk_token": "<unk>",
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: int | float | bytes) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(int(value))


def sentencepiece_model(
    pieces: Sequence[tuple[str, float, int]], *, unigram: bool = False, dummy_prefix: bool = True
) -> bytes:
    """A `ModelProto` of sentencepiece.

    Args:
        pieces: Text, score and type of each.
        unigram: Whether the model is a unigram one and not byte pairs.
        dummy_prefix: Whether a space is put before the text.
    """
    out = b""
    for text, score, form in pieces:
        piece = _field(1, text.encode()) + _field(2, score)
        out += _field(1, piece if form == _NORMAL else piece + _field(3, form))
    out += _field(2, _field(3, 1 if unigram else 2) + _field(35, 1))
    normalizer = _field(1, b"identity") + _field(3, int(dummy_prefix)) + _field(4, 0)
    return out + _field(3, normalizer)
