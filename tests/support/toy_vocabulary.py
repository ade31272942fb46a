"""Small vocabularies, as GGUF metadata, for tests of the text layer."""

from __future__ import annotations

from typing import Any

from specdec_native.text.byte_alphabet import BYTE_TO_CHAR

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def gpt2_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary of some 280 tokens; `changes` replaces keys, None removes one."""
    tokens = [BYTE_TO_CHAR[byte] for byte in range(256)]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "r l", "rl d", "Ġwo rld", "3 3"]
    tokens += [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens)
    special = {
        "<|begin|>": CONTROL,
        "<|endoftext|>": CONTROL,
        "<|im_start|>": CONTROL,
        "<|im_end|>": CONTROL,
        "<tool>": USER,
        "[PAD]": UNUSED,
    }
    ids = {name: len(tokens) + index for index, name in enumerate(special)}
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens + list(special),
        "tokenizer.ggml.token_type": types + list(special.values()),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": ids["<|begin|>"],
        "tokenizer.ggml.eos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": CHATML,
    }
    return changed(metadata, changes)


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary with byte tokens; `changes` as for `gpt2_metadata`."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    pieces = ["he", "ll", "hell", "hello", "▁hello", "▁w", "or", "▁wor", "ld", "▁world"]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz<>/|!"]
    scores = [0.0] * len(tokens) + [-float(index) for index in range(len(pieces))]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types + [NORMAL] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return changed(metadata, changes)


def changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The metadata with keys (without their prefix) replaced, or removed where None."""
    for name, value in changes.items():
        prefix = "tokenizer." if name == "chat_template" else "tokenizer.ggml."
        if value is None:
            metadata.pop(prefix + name, None)
        else:
            metadata[prefix + name] = value
    return metadata
