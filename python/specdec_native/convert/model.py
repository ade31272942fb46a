"""Whole models: which tensors and keys a checkpoint's GGUF file gets.

Names and keys are those of llama.cpp's converter (conversion/base.py and its families' files in
ggml-org/llama.cpp), so that the file loads there too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from specdec_native import _core
from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.convert.config import ConfigView
from specdec_native.convert.experts import plan_experts
from specdec_native.convert.families import ALWAYS, Family
from specdec_native.convert.find_family import find_family, text_model
from specdec_native.convert.gguf_file import FilePlan
from specdec_native.convert.rope import Rope, read_rope
from specdec_native.convert.size_label import size_label
from specdec_native.convert.tensors import (
    TensorPlan,
    constant,
    interleaved_halves,
    shifted,
    stored,
)
from specdec_native.convert.tokenizer_files import plan_tokenizer, sampling_keys
from specdec_native.errors import ConvertError

__all__ = ["plan_model"]

_QUANTIZATION_VERSION = 2  # of the block types (ggml.h)
_MXFP4_FILE_TYPE = 38  # general.file_type where experts are MXFP4 (llama.h)
# Where the text model's tensors may lie in a checkpoint: before "layers.0" and before "lm_head".
_PREFIXES = (("language_model.model.", "language_model."), ("model.language_model.", ""))
# Tensors of other parts, and buffers that can be computed.
_NOT_OURS = re.compile(
    r"(model\.)?(vision_tower|vision_model|multi_modal_projector|visual)\."
    r"|.*\.(rotary_emb\.inv_freq|attention\.masked_bias)$"
    r"|.*\.(weight_scale_inv|activation_scale|input_scale)$"  # of 8-bit floats
)


@dataclass(frozen=True)
class Sizes:
    """Dimensions of a model."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def read(cls, config: ConfigView) -> Sizes:
        """Reads and checks them."""
        width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
        kv_heads = config.whole("num_key_value_heads", heads)
        config.require_multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
        if "head_dim" not in config:
            config.require_multiple("hidden_size", width, "num_attention_heads", heads)
        return cls(
            layers=config.whole("num_hidden_layers"),
            width=width,
            ffn=config.whole("intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=config.whole("head_dim", max(1, width // heads)),
            vocab=config.whole("vocab_size"),
        )


def plan_model(source: Checkpoint, type_name: str) -> tuple[str, FilePlan]:
    """The file for a whole model.

    Args:
        source: The checkpoint.
        type_name: The type that is asked: in "f32" MXFP4 experts are unpacked.

    Returns:
        The architecture's name in GGUF, and the file.

    Raises:
        ConvertError: A key, tensor or file is missing, unknown, or contradicts another.
    """
    _, family = find_family(source.config)
    config, defaults = text_model(source.config, family)
    _refuse_quantized(config)
    _check_activation(config, family)
    sizes = Sizes.read(config)
    rope = read_rope(
        config, sizes.head_dim, yarn_log=family.yarn_log, truncates=family.yarn_truncates
    )
    if not family.partial_rope and rope.keys["rope.dimension_count"] != sizes.head_dim:
        raise ConvertError(
            f"{config.path}: key 'partial_rotary_factor' is not 1, which GGUF files of "
            f"{family.architecture} mean"
        )
    plan = FilePlan(family.architecture)
    # Before the tensors: what is missing is named by its key, not by a shape.
    keys = _keys(config, family, sizes, rope)
    plan.tensors = _Tensors(source, config, family, sizes, type_name).plan(rope)
    names = {one.name for one in plan.tensors}
    plan.facts = {
        "layers": sizes.layers,
        "experts": _expert_count(config, family),
        "heads_per_kv": sizes.heads // sizes.kv_heads,
        "tied_output": "output.weight" not in names,
    }
    plan.metadata = _general(source, plan, type_name)
    plan.metadata |= {f"{family.architecture}.{key}": value for key, value in keys.items()}
    tokenizer, notes = plan_tokenizer(
        source.folder, source.config, sizes.vocab, family.architecture
    )
    plan.notes = defaults + rope.notes + notes
    plan.metadata |= tokenizer
    return family.architecture, plan


def _refuse_quantized(config: ConfigView) -> None:
    quantization = config.part("quantization_config")
    if quantization is None:
        return
    key, expected = "modules_to_not_convert", "a list of names"
    if not all(isinstance(one, str) for one in quantization.items(key, expected)):
        raise quantization.wrong(key, expected)
    if quantization.text("quant_method", "") in ("mxfp4", "fp8"):
        return
    raise ConvertError(
        f"{config.path}: key 'quantization_config' names quant_method "
        f"{quantization.text('quant_method', '')!r}; only mxfp4 (gpt-oss) and fp8 can be read. "
        "Convert the original checkpoint, of which this one was made"
    )


def _check_activation(config: ConfigView, family: Family) -> None:
    key = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    found = config.text(key, family.activations[0])
    if found not in family.activations:
        raise ConvertError(
            f"{config.path}: key {key!r} is {found!r}; {family.architecture} computes "
            f"{family.activations[0]!r}"
        )


def _expert_count(config: ConfigView, family: Family) -> int:
    if family.experts is None:
        return 0
    found = [key for key in family.experts.count if key in config]
    return config.whole((found or family.experts.count)[0])


def _general(source: Checkpoint, plan: FilePlan, type_name: str) -> dict[str, Any]:
    packed = any(one.kind == "mxfp4" for one in plan.tensors)
    plain = type_name in ("f16", "bf16")
    return {
        "general.type": "model",
        **sampling_keys(source.folder),
        "general.name": source.folder.resolve().name,
        "general.size_label": size_label(plan.tensors),
        "general.quantization_version": _QUANTIZATION_VERSION,
        "general.file_type": _MXFP4_FILE_TYPE
        if packed and plain
        else _core.recipe_file_type(type_name),
    }


def _keys(config: ConfigView, family: Family, sizes: Sizes, rope: Rope) -> dict[str, Any]:
    """The keys below the architecture's name."""
    values: dict[str, Any] = {
        "block_count": sizes.layers,
        "context_length": config.whole("max_position_embeddings"),
        "embedding_length": sizes.width,
        "feed_forward_length": sizes.ffn,
        "vocab_size": sizes.vocab,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        **rope.keys,
    }
    if family.layer_norm:
        values["attention.layer_norm_epsilon"] = config.number("norm_epsilon", most=1.0)
    else:
        values["attention.layer_norm_rms_epsilon"] = config.number("rms_norm_eps", most=1.0)
    if family.experts is not None:
        count, used = _expert_count(config, family), config.whole("num_experts_per_tok")
        if used > count:
            raise ConvertError(
                f"{config.path}: key 'num_experts_per_tok' is {used}, but there are {count} experts"
            )
        values |= {"expert_count": count, "expert_used_count": used}
        if family.experts.router_flag is not None:
            key, wanted = family.experts.router_flag
            if config.flag(key, False) != wanted:
                raise ConvertError(
                    f"{config.path}: key {key!r} is {config.flag(key, False)}, but GGUF files of "
                    f"{family.architecture} mean {wanted}"
                )
    return values | family.extra(config)


class _Tensors:
    """Makes plans of a checkpoint's tensors; each must be used, or known not to be."""

    def __init__(
        self, source: Checkpoint, config: ConfigView, family: Family, sizes: Sizes, type_name: str
    ) -> None:
        self._source = source
        self._config = config
        self._family = family
        self._sizes = sizes
        self._unpack = type_name == "f32"
        self._used: set[str] = set()
        self._body, self._head = next(
            (pair for pair in _PREFIXES if f"{pair[0]}embed_tokens.weight" in source),
            ("model.", ""),
        )

    def plan(self, rope: Rope) -> list[TensorPlan]:
        """All tensors of the file, in order."""
        width, vocab = self._sizes.width, self._sizes.vocab
        plans = [constant(name, values) for name, values in rope.factors.items()]
        plans.append(
            self._stored(f"{self._body}embed_tokens.weight", "token_embd.weight", (vocab, width))
        )
        for layer in range(self._sizes.layers):
            plans += self._layer(layer)
        plans += self._norm(f"{self._body}norm", "output_norm")
        plans += self._output()
        self._refuse_unused()
        return plans

    def _stored(self, old: str, new: str, shape: tuple[int, ...]) -> TensorPlan:
        self._used.add(old)
        return stored(self._source, old, new, shape)

    def _norm(self, old: str, new: str, size: int | None = None) -> list[TensorPlan]:
        """A norm's weight, and its bias if norms have one."""
        shape = (size or self._sizes.width,)
        weight = self._stored(f"{old}.weight", f"{new}.weight", shape)
        if self._family.norm_shift:
            weight = shifted(weight, self._family.norm_shift)
        if not self._family.layer_norm:
            return [weight]
        return [weight, self._stored(f"{old}.bias", f"{new}.bias", shape)]

    def _layer(self, layer: int) -> list[TensorPlan]:
        prefix = f"{self._body}layers.{layer}."
        plans: list[TensorPlan] = []
        for old, part in self._family.layer.items():
            new = f"blk.{layer}.{part}"
            if part.endswith("norm"):
                plans += self._norm(prefix + old, new, self._norm_size(part))
                continue
            plans.append(self._matrix(prefix + old, new, part, "weight"))
            flag = self._family.biases.get(old)
            if flag == ALWAYS or (flag is not None and self._config.flag(flag, False)):
                plans.append(self._matrix(prefix + old, new, part, "bias"))
        if self._family.architecture == "gpt-oss":
            sinks = f"{prefix}self_attn.sinks"
            plans.append(
                self._stored(sinks, f"blk.{layer}.attn_sinks.weight", (self._sizes.heads,))
            )
        if self._family.experts is not None:
            count = _expert_count(self._config, self._family)
            ffn = self._config.whole("moe_intermediate_size", self._sizes.ffn)
            made, used = plan_experts(
                self._source,
                self._family.experts,
                prefix,
                f"blk.{layer}.",
                (count, ffn, self._sizes.width),
                unpack=self._unpack,
            )
            plans += made
            self._used |= used
        return plans

    def _norm_size(self, part: str) -> int | None:
        sizes = self._sizes
        heads = {"attn_q_norm": sizes.heads, "attn_k_norm": sizes.kv_heads}.get(part)
        if heads is None:
            return None
        return heads * sizes.head_dim if self._family.full_qk_norm else sizes.head_dim

    def _matrix(self, old: str, new: str, part: str, kind: str) -> TensorPlan:
        """A matrix or its bias; queries' and keys' rows are reordered where the family needs it."""
        shape = self._matrix_shape(part)
        plan = self._stored(
            f"{old}.{kind}", f"{new}.{kind}", shape if kind == "weight" else shape[:1]
        )
        heads = {"attn_q": self._sizes.heads, "attn_k": self._sizes.kv_heads}.get(part)
        if heads is None or not self._family.rotates_pairs:
            return plan
        return interleaved_halves(plan, heads)

    def _matrix_shape(self, part: str) -> tuple[int, int]:
        sizes = self._sizes
        width, ffn = sizes.width, sizes.ffn
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        shapes = {
            "attn_q": (queries, width),
            "attn_k": (keys, width),
            "attn_v": (keys, width),
            "attn_qkv": (queries + 2 * keys, width),
            "attn_output": (width, queries),
            "ffn_gate": (ffn, width),
            "ffn_up": (ffn, width),
            "ffn_down": (width, ffn),
            "ffn_gate_inp_shexp": (1, width),
        }
        if part.endswith("_shexp") and part not in shapes:
            shared = self._config.whole("shared_expert_intermediate_size")
            return (width, shared) if part == "ffn_down_shexp" else (shared, width)
        if part == "ffn_up" and "mlp.gate_up_proj" in self._family.layer:
            return (2 * ffn, width)
        return shapes[part]

    def _output(self) -> list[TensorPlan]:
        """The output matrix, unless it is the embedding."""
        name = f"{self._head}lm_head.weight"
        there = name in self._source
        tied = self._config.flag("tie_word_embeddings", self._family.tied and not there)
        if tied:
            self._used.add(name)
            return []
        shape = (self._sizes.vocab, self._sizes.width)
        if not there and "tie_word_embeddings" in self._config:
            raise ConvertError(
                f"{self._source.folder}: tensor {name!r} is missing, and {self._config.path.name} "
                "says that 'tie_word_embeddings' is false"
            )
        return [self._stored(name, "output.weight", shape)] if there else []

    def _refuse_unused(self) -> None:
        """A tensor that is left out would change the model unnoticed."""
        for name in self._source.names:
            if name not in self._used and not _NOT_OURS.match(name):
                raise ConvertError(
                    f"{self._source.folder}: tensor {name!r} is not part of a "
                    f"{self._family.architecture} model as {self._config.path.name} describes it"
                )
