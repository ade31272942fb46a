"""Reading ``tokenizer.model``, a protobuf message of sentencepiece.

Only the fields that a tokenizer needs are read (sentencepiece_model.proto of google/sentencepiece);
a protobuf message is a sequence of (number << 3 | form, value), so no library is needed for that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specdec_native.convert.config import refuse_pointer
from specdec_native.errors import ConvertError

__all__ = ["Piece", "SentencePieceModel", "read_sentencepiece"]

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # forms of a value
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the model
_UNIGRAM, _BYTE_PAIRS = 1, 2  # values of the trainer's model_type


@dataclass(frozen=True)
class Piece:
    """One piece; its type has the numbers that GGUF uses too: 1 normal ... 6 byte."""

    text: str
    score: float = 0.0
    type: int = 1


@dataclass
class SentencePieceModel:
    """What a file holds.

    Attributes:
        pieces: By id.
        unigram: Whether text is cut by likelihood, and not by merging pairs.
        space_prefix: Whether a space is put before the text.
        squeezes_spaces: Whether runs of spaces become one.
        charsmap: The compiled table of the normaliser.
    """

    pieces: list[Piece] = field(default_factory=list)
    unigram: bool = True
    space_prefix: bool = True
    squeezes_spaces: bool = True
    charsmap: bytes = b""


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Reads a file.

    Raises:
        ConvertError: It is no model of sentencepiece, or of a kind that we do not know.
    """
    model = SentencePieceModel()
    data = path.read_bytes()
    refuse_pointer(path, data)
    try:
        for number, value in _fields(data):
            if number == _PIECES:
                model.pieces.append(_piece(_as_bytes(value)))
            elif number == _TRAINER:
                _read_trainer(path, _as_bytes(value), model)
            elif number == _NORMALIZER:
                _read_normalizer(_as_bytes(value), model)
    except ConvertError:
        raise
    except (IndexError, ValueError, struct.error):
        raise ConvertError(
            f"{path}: this is no SentencePiece model; give the folder a tokenizer.json"
        ) from None
    if not model.pieces:
        raise ConvertError(f"{path}: there are no pieces in this SentencePiece model")
    return model


def _piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, 1
    for number, value in _fields(data):
        if number == 1:
            text = _as_bytes(value).decode("utf-8", "surrogateescape")
        elif number == 2:
            score = _as_float(value)
        elif number == 3:
            kind = _as_int(value)
    if not 1 <= kind <= 6:
        raise ValueError(kind)
    return Piece(text, score, kind)


def _read_trainer(path: Path, data: bytes, model: SentencePieceModel) -> None:
    kind = _UNIGRAM
    for number, value in _fields(data):
        if number == 3:
            kind = _as_int(value)
    if kind not in (_UNIGRAM, _BYTE_PAIRS):
        raise ConvertError(
            f"{path}: key 'model_type' is {kind}; supported are 1 (unigram) and 2 (byte pairs)"
        )
    model.unigram = kind == _UNIGRAM


def _read_normalizer(data: bytes, model: SentencePieceModel) -> None:
    for number, value in _fields(data):
        if number == 2:
            model.charsmap = _as_bytes(value)
        elif number == 3:
            model.space_prefix = bool(_as_int(value))
        elif number == 4:
            model.squeezes_spaces = bool(_as_int(value))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message.

    Raises:
        IndexError: The message is cut short.
        ValueError: A form that there is not.
    """
    position, size = 0, len(data)
    while position < size:
        tag, position = _varint(data, position)
        form = tag & 7
        if form == _VARINT:
            number, position = _varint(data, position)
            yield tag >> 3, number
            continue
        if form == _BYTES:
            length, position = _varint(data, position)
        elif form in (_FOUR_BYTES, _EIGHT_BYTES):
            length = 4 if form == _FOUR_BYTES else 8
        else:
            raise ValueError(form)
        if length > size - position:
            raise IndexError(length)
        yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError(value)


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError(value)
    return value


def _as_int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError(value)
    return value


def _as_float(value: int | bytes) -> float:
    return float(struct.unpack("<f", _as_bytes(value))[0])
