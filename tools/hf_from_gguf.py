"""Writes a `llama` GGUF file back as a Hugging Face checkpoint, to test conversion both ways.

python tools/hf_from_gguf.py MODEL.gguf HF_DIR
specdec convert HF_DIR again.gguf --type f32
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, models, processors
from tokenizers import Tokenizer as HfTokenizer

from oracle_tokenizers import sentencepiece_model
from specdec_native import _core
from specdec_native.text.pretokenizers import find_pre_tokenizer

__all__ = ["metadata_of", "write_hf_checkpoint", "write_hf_tokenizer"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def metadata_of(path: Path) -> dict[str, Any]:
    """A file's metadata as plain values; the `gguf` package needs half a minute for a large one."""
    values = _core.GgufFile(path).metadata
    return {
        key: value.tolist() if hasattr(value, "tolist") else value for key, value in values.items()
    }


def _halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of each head in the order of checkpoints: rotated pairs half a head apart."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def write_hf_checkpoint(path: Path, folder: Path) -> Path:
    """Writes configuration, float32 tensors and tokenizer files.

    Args:
        path: A GGUF file of a dense `llama` model.
        folder: Where to; it is made.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metadata = metadata_of(path)

    def key(name: str, default: Any = None) -> Any:
        return metadata.get(f"llama.{name}", default)

    heads, kv_heads = key("attention.head_count"), key("attention.head_count_kv")
    tensors = {}
    for tensor in GGUFReader(path).tensors:
        part, _, kind = tensor.name.rpartition(".")
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if part.startswith("blk."):
            _, layer, part = part.split(".")
            if part in ("attn_q", "attn_k"):
                values = _halves(values, heads if part == "attn_q" else kv_heads)
            name = f"model.layers.{layer}.{_LAYER[part]}.{kind}"
        else:
            name = f"{_TOP[part]}.{kind}"
        tensors[name] = np.ascontiguousarray(values)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": key("embedding_length"),
        "intermediate_size": key("feed_forward_length"),
        "num_hidden_layers": key("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": key("context_length"),
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
        "rope_theta": key("rope.freq_base", 10000.0),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
    }
    _write_json(folder / "config.json", config)
    write_hf_tokenizer(metadata, folder)
    return folder


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False), encoding="utf-8")


def write_hf_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    """Writes the tokenizer of a GGUF file in the form in which checkpoints have it."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    values: dict[str, Any] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            values[f"{name}_token"] = tokens[index]
    for name in ("bos", "eos"):
        flag = metadata.get(f"tokenizer.ggml.add_{name}_token")
        if flag is not None:
            values[f"add_{name}_token"] = flag
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        values["chat_template"] = template
    if metadata["tokenizer.ggml.model"] == "gpt2":
        _write_byte_level(metadata, tokens, types, values.get("bos_token"), folder)
    else:
        values["added_tokens_decoder"] = _write_pieces(metadata, tokens, types, folder)
    _write_json(folder / "tokenizer_config.json", values)


def _write_byte_level(
    metadata: dict[str, Any], tokens: list[str], types: list[int], bos: str | None, folder: Path
) -> None:
    pre = find_pre_tokenizer(metadata.get("tokenizer.ggml.pre", "default"))
    vocab = {text: i for i, text in enumerate(tokens) if types[i] != _UNUSED}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = HfTokenizer(models.BPE(vocab, merges, ignore_merges=pre.ignore_merges))
    normalizer = pre.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.build()
    special = [i for i, kind in enumerate(types) if kind == _CONTROL]
    tokenizer.add_special_tokens([_added(tokens[i]) for i in special])
    tokenizer.add_tokens(
        [_added(tokens[i]) for i, kind in enumerate(types) if kind == _USER_DEFINED]
    )
    if metadata.get("tokenizer.ggml.add_bos_token", pre.add_bos) and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocab[bos])]
        )
    tokenizer.save(str(folder / "tokenizer.json"))


def _added(text: str) -> AddedToken:
    return AddedToken(text, normalized=False)


def _write_pieces(
    metadata: dict[str, Any], tokens: list[str], types: list[int], folder: Path
) -> dict[str, Any]:
    """Writes `tokenizer.model`; tokens of the end that are no pieces are returned as added ones."""
    scores = metadata["tokenizer.ggml.scores"]
    count = len(tokens)
    while types[count - 1] in (_CONTROL, _USER_DEFINED, _UNUSED):
        count -= 1
    pieces = list(zip(tokens[:count], map(float, scores[:count]), types[:count], strict=True))
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    model = sentencepiece_model(pieces, dummy_prefix=prefix)
    (folder / "tokenizer.model").write_bytes(model)
    return {
        str(i): {"content": tokens[i], "special": types[i] == _CONTROL}
        for i in range(count, len(tokens))
        if types[i] != _UNUSED
    }


def main() -> None:
    """Writes one checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    print(write_hf_checkpoint(arguments.model, arguments.folder))


if __name__ == "__main__":
    main()
