"""Writes tiny GGUF files of every architecture with seeded random weights, for tests.

The weights are scaled so that the model behaves like a language model in the ways that matter to
speculation: its logits have a healthy spread, greedy text does not collapse at once, and the first
layers nearly decide the next token, so that a layer-cut copy agrees with it often but not always.

    python tools/make_tiny_model.py tiny.gguf --layers 4 --dtype q4_0

With --preset it writes a model of random blocks that has the shape of a big one, for timing:

    python tools/make_tiny_model.py big.gguf --preset 1b --dtype q4_k --layers 4
"""

from __future__ import annotations

import argparse
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, quantize
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray

from gguf_edit import Metadata, Tensor, cut_layers, pad_layers, requantize, write_gguf
from model_families import EXPERTS, EXPERTS_USED, FAMILIES, architecture_name
from random_blocks import FLOAT_TYPES, random_rows
from shaped_model import PRESETS, write_shaped_model
from tiny_layers import add_layer

__all__ = [
    "TinyConfig",
    "byte_alphabet",
    "cut_layers",
    "make_shaped_model",
    "make_tiny_model",
    "pad_layers",
    "requantize",
    "toy_merges",
]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # token types of the GGUF format

CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# In rank order, separated by |. Each side is a byte or an earlier result; Ġ stands for a space.
_MERGES_TEXT = (
    "Ġ t|h e|i n|e r|Ġ a|Ġt he|r e|o n|Ġ s|a t|o u|Ġ w|n d|e s|i t|o r|in g|Ġ c|a n|e n|Ġ o|Ġ f|"
    "i s|e d|Ġ b|Ġ p|Ġa nd|a l|a r|Ġ m|Ġt o|Ġo f|Ġ in|l e|i c|Ġ d|Ġ h|o m|s t|r o|Ġ l|Ġ re|l l|"
    "Ġ n|Ġ is|v e|e l|u r|i on|Ġ g|Ġ e|o t|i l|a d|Ġ y|a s|Ġb e|u t|o w|c h|Ġy ou|Ġf or|Ġw it"
)

# Blocks that `gguf` can only decode are made of random bytes instead of being quantised.
_QUANTIZED_HERE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *FLOAT_TYPES)


@dataclass(frozen=True)
class TinyConfig:
    """What to write. Every field is also an option of the command line."""

    family: str = "llama"  # of model_families.FAMILIES
    layers: int = 4
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 128
    expert_ffn: int = 64  # of each expert of a mixture
    vocab: int = 300  # real tokens: 3 special, 256 bytes, the rest merges
    pad_rows: int = 0  # padding rows after them, with large weights: sampling one is a bug
    pad_tokens: bool = True  # whether the vocabulary lists them, as [PAD300] of type UNUSED
    context: int = 1024
    tied: bool = True
    dtype: str = "f32"  # of all matrices
    rope_base: float = 10000.0
    rope_scaling: str = "none"  # none, linear, yarn, llama3
    rope_factor: float = 4.0
    rope_original_context: int = 256
    long_rope: bool = False  # factors of long-rope, for rope.dimension_count of the metadata
    pre: str = "smollm"
    seed: int = 1
    logit_std: float = 3.2
    later_gain: float = 0.2  # contribution of layers after the first, against the first's 1
    # Exceptions to `dtype`: regular expression of the tensor name -> type; the last match counts.
    tensor_dtypes: Mapping[str, str] = field(default_factory=dict)
    # Metadata to add or replace (a plain value or a gguf GGUFValue), or to leave out (None).
    metadata: Mapping[str, Any] = field(default_factory=dict)
    omit_tensors: str = ""  # regular expression of tensor names to leave out


def byte_alphabet() -> list[str]:
    """Returns the character that stands for each byte in a byte-level (GPT-2) vocabulary."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in visible}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(visible))
    return [table[byte] for byte in range(256)]


def toy_merges(count: int) -> list[str]:
    """Returns that many merges in rank order; each gives a token of its own."""
    merges = _MERGES_TEXT.split("|")[:count]
    known = {*byte_alphabet(), *(m.replace(" ", "") for m in merges)}
    letters = "etaoinshrdlcumwfgypbvkjxqz"
    for pair in (f"{a} {b}" for a in letters for b in letters.upper() + letters):
        if len(merges) == count:
            break
        if pair.replace(" ", "") not in known:
            merges.append(pair)
    if len(merges) < count:
        raise ValueError(f"{count} merges are too many: at most {len(merges)} are possible")
    return merges


def _vocabulary(config: TinyConfig) -> tuple[list[str], list[int], list[str]]:
    """Returns token strings, token types and merges."""
    count = config.vocab - len(SPECIAL_TOKENS) - 256
    if count < 0:
        raise ValueError(f"vocab={config.vocab} is too small: at least 259 are needed")
    merges = toy_merges(count)
    tokens = [*SPECIAL_TOKENS, *byte_alphabet(), *(m.replace(" ", "") for m in merges)]
    types = [_CONTROL] * len(SPECIAL_TOKENS) + [_NORMAL] * (config.vocab - len(SPECIAL_TOKENS))
    if config.pad_tokens:
        tokens += [f"[PAD{config.vocab + i}]" for i in range(config.pad_rows)]
        types += [_UNUSED] * config.pad_rows
    return tokens, types, merges


def _row_scale(config: TinyConfig, tokens: list[str]) -> NDArray[np.float32]:
    """Scales the embedding rows: text mostly ASCII, control tokens rare, padding tempting."""
    scale = np.ones(config.vocab + config.pad_rows, np.float32)
    for i, token in enumerate(tokens[: config.vocab]):
        printable = all(c == "Ġ" or c == "Ċ" or "!" <= c <= "~" for c in token)
        scale[i] = 1.0 if printable else 0.5
    scale[: len(SPECIAL_TOKENS)] = 0.25
    scale[config.vocab :] = 2.0
    return scale


class _Weights:
    """Collects the tensors; each depends only on the seed and its own name."""

    def __init__(self, config: TinyConfig) -> None:
        self.config = config
        self.tensors: list[Tensor] = []

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, zlib.crc32(name.encode())])

    def vector(self, name: str, values: NDArray[Any]) -> None:
        self._add(Tensor(name, values.astype(np.float32), GGMLQuantizationType.F32))

    def norm(self, name: str, gain: float = 1.0, size: int = 0) -> None:
        noise = self._rng(name).standard_normal(size or self.config.width)
        self.vector(name, gain * (1.0 + 0.1 * noise))

    def bias(self, name: str, shape: tuple[int, ...], std: float = 0.1) -> None:
        self.vector(name, std * self._rng(name).standard_normal(shape))

    def matrix(
        self,
        name: str,
        rows: int,
        cols: int,
        std: float,
        row_scale: NDArray[Any] | None = None,
        stack: int = 0,
    ) -> None:
        """Adds [rows, cols], or a stack [stack, rows, cols]."""
        config = self.config
        dtype = config.dtype
        for pattern, exception in config.tensor_dtypes.items():
            if re.search(pattern, name):
                dtype = exception
        qtype = GGMLQuantizationType[dtype.upper()]
        block = GGML_QUANT_SIZES[qtype][0]
        if cols % block:
            raise ValueError(f"{name} has rows of {cols}, no multiple of {block} as {dtype} needs")
        rows *= max(1, stack)
        row_std = np.full(rows, std, np.float32)
        if row_scale is not None:
            row_std *= row_scale
        if qtype.name not in _QUANTIZED_HERE:
            data: NDArray[Any] = random_rows(self._rng(name), rows, cols, row_std, qtype)
        else:
            values = self._rng(name).standard_normal((rows, cols)) * row_std[:, None]
            data = quantize(values.astype(np.float32), qtype)
        if stack:
            data = data.reshape(stack, rows // stack, -1)
        self._add(Tensor(name, data, qtype))

    def _add(self, tensor: Tensor) -> None:
        omit = self.config.omit_tensors
        if not (omit and re.search(omit, tensor.name)):
            self.tensors.append(tensor)


def _llama3_factors(config: TinyConfig) -> NDArray[np.float64]:
    """Divisors of the rotary frequencies as Llama 3.1 defines them (low 1, high 4)."""
    pairs = config.head_dim // 2
    frequency = config.rope_base ** (-np.arange(pairs) / pairs)
    turns = config.rope_original_context * frequency / (2 * math.pi)
    smooth = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / config.rope_factor + smooth)


def _add_weights(weights: _Weights, tokens: list[str]) -> None:
    config = weights.config
    family, width = FAMILIES[config.family], config.width
    # Small embeddings: the token itself must fade behind the first layer's output, or a tied head
    # would repeat the last token for ever. The output norm restores the spread of the logits.
    embedding_std = 0.04
    stored_std = embedding_std / (math.sqrt(width) if family.scales_embedding else 1.0)
    rows = config.vocab + config.pad_rows
    row_scale = _row_scale(config, tokens)
    weights.matrix("token_embd.weight", rows, width, stored_std, row_scale)
    for layer in range(config.layers):
        add_layer(weights, config, family, layer)
    head_std = stored_std if config.tied else embedding_std
    weights.norm("output_norm.weight", config.logit_std / (head_std * math.sqrt(width)))
    if family.layer_norm:
        weights.bias("output_norm.bias", (width,))
    if not config.tied:
        weights.matrix("output.weight", rows, width, embedding_std, row_scale)
    if config.rope_scaling == "llama3":
        weights.vector("rope_freqs.weight", _llama3_factors(config))
    if config.long_rope:
        name = f"{architecture_name(config.family)}.rope.dimension_count"
        steps = np.linspace(0.0, 1.0, int(config.metadata.get(name, config.head_dim)) // 2)
        weights.vector("rope_factors_short.weight", 1.0 + 0.3 * steps)
        weights.vector("rope_factors_long.weight", 1.0 + 6.0 * steps)


def _to_value(value: Any) -> GGUFValue:
    """Gives a plain Python value the type that converters usually write."""
    if isinstance(value, GGUFValue):
        return value
    if isinstance(value, list):
        element = _to_value(value[0]).type
        integer = element == GGUFValueType.UINT32
        return GGUFValue(value, GGUFValueType.ARRAY, GGUFValueType.INT32 if integer else element)
    for kind, vtype in (
        (bool, GGUFValueType.BOOL),
        (int, GGUFValueType.UINT32),
        (float, GGUFValueType.FLOAT32),
        (str, GGUFValueType.STRING),
        (bytes, GGUFValueType.STRING),
    ):
        if isinstance(value, kind):
            return GGUFValue(value, vtype)
    raise TypeError(f"no metadata type for {value!r}")


def _metadata(config: TinyConfig, vocabulary: tuple[list[str], list[int], list[str]]) -> Metadata:
    tokens, types, merges = vocabulary
    family = FAMILIES[config.family]
    epsilon = "layer_norm_epsilon" if family.layer_norm else "layer_norm_rms_epsilon"
    keys: dict[str, Any] = {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.width,
        "feed_forward_length": config.ffn,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        f"attention.{epsilon}": 1e-5,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_base,
        "vocab_size": config.vocab + config.pad_rows,
    }
    if config.rope_scaling in ("linear", "yarn"):
        keys["rope.scaling.type"] = config.rope_scaling
        keys["rope.scaling.factor"] = config.rope_factor
        keys["rope.scaling.original_context_length"] = config.rope_original_context
    elif config.rope_scaling not in ("none", "llama3"):
        raise ValueError(f"unknown rope_scaling {config.rope_scaling!r}")
    if family.experts:
        keys["expert_count"] = EXPERTS
        keys["expert_used_count"] = EXPERTS_USED
        keys["expert_feed_forward_length"] = config.expert_ffn
        if family.shared_expert:
            keys["expert_shared_feed_forward_length"] = config.expert_ffn
    keys |= family.metadata
    name = architecture_name(config.family)
    plain: dict[str, Any] = {"general.architecture": name, "general.name": "tiny"}
    plain |= {f"{name}.{key}": value for key, value in keys.items()}
    plain |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": config.pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    if not merges:
        del plain["tokenizer.ggml.merges"]
    plain |= config.metadata
    return {key: _to_value(value) for key, value in plain.items() if value is not None}


def make_tiny_model(path: Path | str, config: TinyConfig | None = None, **overrides: Any) -> Path:
    """Writes a model; the same configuration always gives the same bytes.

    Args:
        path: The file to write.
        config: What to write; TinyConfig() by default.
        **overrides: Fields of the configuration to change.

    Returns:
        `path` as a Path.

    Example:
        >>> make_tiny_model("/tmp/tiny.gguf", layers=2, dtype="q8_0")
    """
    config = replace(config or TinyConfig(), **overrides)
    vocabulary = _vocabulary(config)
    weights = _Weights(config)
    _add_weights(weights, vocabulary[0])
    return write_gguf(path, _metadata(config, vocabulary), weights.tensors)


def make_shaped_model(
    path: Path | str,
    preset: str,
    *,
    dtype: str = "q4_k",
    layers: int | None = None,
    tensor_dtypes: Mapping[str, str] | None = None,
    seed: int = 1,
    repeating: bool = False,
) -> Path:
    """Writes a model with the shape of a big one and random weights; its text is nonsense.

    Args:
        path: The file to write.
        preset: A name in `PRESETS`.
        dtype: Type of all matrices; any that `random_blocks` knows.
        layers: Fewer or more layers; None: as many as the big model has.
        tensor_dtypes: Exceptions, as in `TinyConfig`.
        seed: The same arguments give the same bytes.
        repeating: One random piece again and again in each matrix, which is quicker to make.

    Returns:
        `path` as a Path.
    """
    shape = PRESETS[preset]
    count = layers or shape.layers
    same = ("width", "heads", "kv_heads", "head_dim", "ffn", "context", "tied", "rope_base")
    family = "qwen3moe" if shape.experts else "llama"
    keys = {"vocab_size": shape.vocab}
    if shape.experts:
        keys["expert_count"] = shape.experts
        keys["expert_used_count"] = shape.experts_used
    config = TinyConfig(
        **{name: getattr(shape, name) for name in same},
        family=family,
        expert_ffn=shape.ffn,
        layers=count,
        rope_scaling="none" if shape.experts else "llama3",
        pre="llama-bpe",
        metadata={
            "general.name": f"random weights, shape of {preset}, {count} layers",
            **{f"{family}.{key}": value for key, value in keys.items()},
        },
    )
    tokens, types, merges = _vocabulary(config)
    made_up = shape.vocab - len(tokens)
    tokens += [f"token{len(tokens) + i}" for i in range(made_up)]
    types += [_NORMAL] * made_up
    metadata = _metadata(config, (tokens, types, merges))
    return write_shaped_model(
        path,
        shape,
        metadata,
        dtype=dtype,
        layers=count,
        exceptions=tensor_dtypes,
        seed=seed,
        repeating=repeating,
    )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--preset",
        choices=sorted(PRESETS),
        help="the shape of a big model; of the other options only --layers, --dtype, "
        "--tensor-dtype and --seed go with it",
    )
    simple = [f for f in fields(TinyConfig) if f.type in ("int", "float", "str", "bool")]
    for option in simple:
        name = "--" + option.name.replace("_", "-")
        if option.type == "bool":
            action = argparse.BooleanOptionalAction
            parser.add_argument(name, action=action, default=argparse.SUPPRESS)
        else:
            kind = {"int": int, "float": float, "str": str}[str(option.type)]
            text = f"default: {option.default}"
            parser.add_argument(name, type=kind, default=argparse.SUPPRESS, help=text)
    parser.add_argument(
        "--tensor-dtype",
        action="append",
        default=[],
        metavar="REGEX=TYPE",
        help="type of the matrices whose name matches, such as 'ffn_down=q8_0'; repeatable",
    )
    args = parser.parse_args()
    exceptions = dict(text.rsplit("=", 1) for text in args.tensor_dtype)
    values = {one.name: getattr(args, one.name) for one in simple if hasattr(args, one.name)}
    if args.preset is None:
        make_tiny_model(args.path, TinyConfig(**values, tensor_dtypes=exceptions))
        return
    foreign = set(values) - {"layers", "dtype", "seed"}
    if foreign:
        parser.error(f"these do not go with --preset: {', '.join(sorted(foreign))}")
    make_shaped_model(args.path, args.preset, **values, tensor_dtypes=exceptions)


if __name__ == "__main__":
    main()
