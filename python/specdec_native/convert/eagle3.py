"""EAGLE-3 heads (arXiv 2503.01840) into the GGUF form that llama.cpp's converter writes.

Two public layouts: that of SafeAILab/EAGLE (``midlayer.*``) and that of ``speculators``
(``layers.0.*``, with the layer's settings under ``transformer_layer_config``). Sources: cnets.py of
SafeAILab/EAGLE; conversion/llama.py and src/models/eagle3.cpp of ggml-org/llama.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.convert.config import ConfigView
from specdec_native.convert.gguf_file import FilePlan
from specdec_native.convert.rope import Rope, read_rope, rope_settings, rope_type, unsupported
from specdec_native.convert.target import Target
from specdec_native.convert.tensors import TensorPlan, constant, interleaved_halves, stored
from specdec_native.errors import ConvertError

__all__ = ["is_eagle3", "plan_eagle3"]

_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",  # of the token's embedding
    "hidden_norm.weight": "attn_norm_2.weight",  # of the fused hidden states
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_TOP = {
    "fc.weight": "fc.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
}
_OPTIONAL = ("output.weight", "token_embd.weight")  # absent: the target's are used


def is_eagle3(source: Checkpoint) -> bool:
    """Whether the configuration is one of an EAGLE-3 head."""
    named = any("eagle3" in str(one).lower() for one in source.config.items("architectures"))
    return named or "draft_vocab_size" in source.config


def plan_eagle3(source: Checkpoint, target: Target | None) -> FilePlan:
    """The file for this head.

    Raises:
        ConvertError: A key or tensor is missing, has a wrong shape or is unknown, or the head does
            not fit the target.
    """
    if target is None:
        raise ConvertError(
            f"{source.folder}: an EAGLE-3 head is converted together with its target, whose "
            "vocabulary and layers it names; give the target's GGUF file (--target)"
        )
    config = source.config.merged(source.config.part("transformer_layer_config"))
    if config.whole("num_hidden_layers", 1) != 1:
        raise config.wrong("num_hidden_layers", "1, as an EAGLE-3 head has")
    shape = _Shape(config, target)
    extract = _extract_layers(source.config, target)
    names = _renamed(source)
    rope = _rope(config, shape)
    plan = FilePlan("eagle3", _metadata(source, config, shape, extract, target, rope))
    for new, expected in _expected(shape, len(extract), source, names).items():
        plan.tensors.append(_tensor(source, names[new], new, expected, shape))
    if "d2t" in names:
        ids = _target_ids(source, names["d2t"], target)
        plan.tensors.append(constant("d2t", ids, whole=True))
    plan.tensors += [constant(name, factors) for name, factors in rope.factors.items()]
    return plan


class _Shape:
    """Dimensions of the head's layer."""

    def __init__(self, config: ConfigView, target: Target) -> None:
        self.width = config.whole("hidden_size")
        self.heads = config.whole("num_attention_heads")
        self.kv_heads = config.whole("num_key_value_heads", self.heads)
        self.head_dim = config.whole("head_dim", max(1, self.width // self.heads))
        self.ffn = config.whole("intermediate_size")
        self.target_width = config.whole("target_hidden_size", target.width)
        config.require_multiple(
            "num_attention_heads", self.heads, "num_key_value_heads", self.kv_heads
        )
        if self.target_width != target.width:
            raise ConvertError(
                f"{config.path}: the head is made for a target of width {self.target_width}, but "
                f"{target.path} has {target.width}"
            )


def _extract_layers(config: ConfigView, target: Target) -> list[int]:
    """The layers whose inputs are fused; the number of layers stands for the last one's output.

    Checkpoints count in two ways (sgl-project/sglang pull request 25454): where the first id is 1,
    they name layers whose outputs are taken, else layers whose inputs are.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    inner = config.part("eagle_config")
    view = inner if inner is not None and key in inner.values else config
    if key not in view:
        return [min(2, target.layers), target.layers // 2, max(0, target.layers - 3)]
    given = view.items(key, "a list of layers")
    if not given or not all(type(one) is int for one in given):
        raise view.wrong(key, "a list of layers")
    layers = [one + 1 for one in given] if given[0] == 1 else given
    if not all(0 <= one <= target.layers for one in layers):
        raise ConvertError(
            f"{config.path}: key {key!r} is {given}, but {target.path} has {target.layers} layers"
        )
    return layers


def _renamed(source: Checkpoint) -> dict[str, str]:
    """Name in the file -> name in the checkpoint."""
    names: dict[str, str] = {}
    for name in source.names:
        short = name.removeprefix("model.")
        if short == "t2d":
            continue  # the inverse of d2t: for training
        layer = short.removeprefix("midlayer.").removeprefix("layers.0.")
        new = "d2t" if short == "d2t" else _TOP.get(short)
        if new is None and layer != short and layer in _LAYER:
            new = f"blk.0.{_LAYER[layer]}"
        if new is None:
            raise ConvertError(f"{source.folder}: tensor {name!r} is not part of an EAGLE-3 head")
        names[new] = name
    return names


def _expected(
    shape: _Shape, states: int, source: Checkpoint, names: dict[str, str]
) -> dict[str, tuple[int, ...]]:
    width, queries = shape.width, shape.heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    expected: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, states * shape.target_width),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_norm_2.weight": (width,),
        "blk.0.attn_q.weight": (queries, 2 * width),
        "blk.0.attn_k.weight": (keys, 2 * width),
        "blk.0.attn_v.weight": (keys, 2 * width),
        "blk.0.attn_output.weight": (width, queries),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (shape.ffn, width),
        "blk.0.ffn_up.weight": (shape.ffn, width),
        "blk.0.ffn_down.weight": (width, shape.ffn),
        "output_norm.weight": (width,),
    }
    for name in expected:
        if name not in names:
            old = {f"blk.0.{new}": f"midlayer.{old}" for old, new in _LAYER.items()}
            old |= {new: old_name for old_name, new in _TOP.items()}
            raise ConvertError(f"{source.folder}: tensor {old[name]!r} is missing")
    for name in _OPTIONAL:
        if name in names:
            rows = source.shape(names[name])
            expected[name] = (rows[0] if rows else 0, width)
    return expected


def _tensor(
    source: Checkpoint, old: str, new: str, expected: tuple[int, ...], shape: _Shape
) -> TensorPlan:
    plan = stored(source, old, new, expected)
    heads = {"blk.0.attn_q.weight": shape.heads, "blk.0.attn_k.weight": shape.kv_heads}.get(new)
    return plan if heads is None else interleaved_halves(plan, heads)


def _target_ids(source: Checkpoint, name: str, target: Target) -> NDArray[np.int64]:
    """The target's id of each draft id; checkpoints hold the difference of the two."""
    offsets = source.tensor(name)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise ConvertError(f"{source.folder}: tensor {name!r} is no list of whole numbers")
    ids = offsets.astype(np.int64) + np.arange(len(offsets))
    if ids.size == 0 or ids.min() < 0 or ids.max() >= target.vocab:
        raise ConvertError(
            f"{source.folder}: tensor {name!r} names tokens outside of the {target.vocab} of "
            f"{target.path}"
        )
    if len(np.unique(ids)) != len(ids):
        raise ConvertError(f"{source.folder}: tensor {name!r} names a token twice")
    return ids


def _metadata(
    source: Checkpoint,
    config: ConfigView,
    shape: _Shape,
    extract: list[int],
    target: Target,
    rope: Rope,
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "general.name": source.folder.resolve().name,
        "eagle3.block_count": 1,
        "eagle3.context_length": config.whole("max_position_embeddings", 2048),
        "eagle3.embedding_length": shape.width,
        "eagle3.feed_forward_length": shape.ffn,
        "eagle3.attention.head_count": shape.heads,
        "eagle3.attention.head_count_kv": shape.kv_heads,
        "eagle3.attention.key_length": shape.head_dim,
        "eagle3.attention.value_length": shape.head_dim,
        "eagle3.attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6, most=1.0),
        "eagle3.vocab_size": target.vocab,
        # The name that llama.cpp's converter gave it first, and the one of today.
        "eagle3.extract_layers": extract,
        "eagle3.target_layers": extract,
        "eagle3.target_hidden_size": shape.target_width,
        "eagle3.norm_before_residual": source.config.flag("norm_before_residual", False),
    }
    values |= {f"eagle3.{key}": value for key, value in rope.keys.items()}
    return {**values, **target.tokenizer}


def _rope(config: ConfigView, shape: _Shape) -> Rope:
    """The rotation of the head's layer."""
    rope = rope_settings(config)
    if rope_type(rope) not in ("default", "linear", "llama3"):
        raise unsupported(rope, "default, linear, llama3")
    with_base = config.with_defaults({"rope_theta": 10000.0})
    return read_rope(with_base, shape.head_dim, yarn_log=False, truncates=True)
