"""The byte-level alphabet: each byte as a visible character, as GPT-2 has it."""

from __future__ import annotations

__all__ = ["BYTE_TO_CHAR", "CHAR_TO_BYTES"]


def _byte_to_char() -> dict[int, str]:
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in visible}
    hidden = [byte for byte in range(256) if byte not in table]
    table.update({byte: chr(0x100 + index) for index, byte in enumerate(hidden)})
    return table


BYTE_TO_CHAR = _byte_to_char()
CHAR_TO_BYTES = {character: bytes([byte]) for byte, character in BYTE_TO_CHAR.items()}
