"""Looking into model files without loading them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec_native import _core
from specdec_native.defaults import MAX_DEFAULT_CONTEXT, PREFILL_CHUNK
from specdec_native.device_arguments import checked_gpu_layers
from specdec_native.drafters import (
    Drafter,
    DraftModel,
    EagleDraft,
    MedusaDraft,
    parse_draft,
)
from specdec_native.errors import Error, naming_file
from specdec_native.models import resolve_model
from specdec_native.sampling import recommended_in
from specdec_native.text import Tokenizer

__all__ = ["estimate_memory", "inspect", "vocabularies_fit"]

_VERIFY_ROWS = 9  # the pending token and the drafted ones
_CACHE_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}  # per element

# Bits per weight of the types that take noticeably more in memory than in the file: their codes are
# unpacked to 3 or 4 bits.
_PACKED_BITS = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"), 3.3125),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S", "IQ4_XS"), 4.3125),
    "MXFP4": 4.5,
}


def inspect(path: str | os.PathLike[str], n_ctx: int | None = None) -> dict[str, Any]:
    """Describes a GGUF file.

    Works for files that cannot be run, too; ``supported`` and ``reason`` say whether and why. What
    a file does not say is None.

    Args:
        path: The file, or a name that was pulled.
        n_ctx: Positions of the context for the estimate of the memory; None: as `Generator`.

    Returns:
        ``path, files`` (how many), ``file_size, gguf_version, architecture, name, parameters,
        layers, width, heads, kv_heads, head_dim, ffn_width, context_length, vocab_size, tokenizer,
        pre_tokenizer, tensor_types`` (type -> ``{"count", "bytes"}``), ``chat_template`` (bool),
        ``chat_templates`` (their names), ``sampling`` (the recommended values, by the names of
        `SamplingParams`), ``supported, reason, n_ctx, memory`` (as `estimate_memory`).

    Raises:
        GgufError: The file is no sound GGUF file.
        FileNotFoundError: There is none.
    """
    file = _core.GgufFile(resolve_model(path))
    about = ModelFacts(file)
    reason = _reason_against(file)
    runnable = reason is None
    context = about.context(n_ctx) if runnable else n_ctx
    return {
        "path": file.path,
        "files": len(file.paths),
        "file_size": file.file_size,
        "gguf_version": file.version,
        "architecture": about.architecture,
        "name": about.text("general.name"),
        "parameters": sum(_elements(tensor) for tensor in file.tensors),
        "layers": about.number("block_count"),
        "width": about.number("embedding_length"),
        "heads": about.number("attention.head_count"),
        "kv_heads": about.kv_heads,
        "head_dim": about.head_dim,
        "ffn_width": about.number("feed_forward_length"),
        "context_length": about.number("context_length"),
        "vocab_size": about.vocab_size,
        "tokenizer": about.text("tokenizer.ggml.model"),
        "pre_tokenizer": about.text("tokenizer.ggml.pre"),
        "tensor_types": _tensor_types(file.tensors),
        "chat_template": bool(about.text("tokenizer.chat_template")),
        "chat_templates": about.chat_templates,
        "sampling": about.sampling,
        "supported": runnable,
        "reason": reason,
        "n_ctx": context,
        "memory": estimate_memory(path, n_ctx=n_ctx) if runnable else None,
    }


def estimate_memory(
    model: str | os.PathLike[str],
    draft: str | os.PathLike[str] | Drafter | Sequence[str | Drafter] | None = None,
    n_ctx: int | None = None,
    *,
    kv_type: str = "f16",
    gpu_layers: int | None = None,
) -> dict[str, int]:
    """Estimates the memory of a `Generator` before anything is loaded.

    Args:
        model: A GGUF file, or a name that was pulled.
        draft: As for `Generator`.
        n_ctx: Positions of the context; None: the trained length, at most 8192.
        kv_type: Type of the key/value cache: ``"f16"``, ``"q8_0"`` or ``"f32"``.
        gpu_layers: None: wherever it is. A number, as for `Generator`: only what then lies on the
            device; of the drafts those without a device of their own.

    Returns:
        Bytes under the keys of `Generator.memory`; ``scratch`` is that of a long prompt.

    Raises:
        GgufError: A file is damaged or not supported.
        FileNotFoundError: There is no such file.
        ValueError: An unknown `kv_type` or draft, or `gpu_layers` that is no number of layers.
    """
    if kv_type not in _CACHE_BYTES:
        raise ValueError(f"kv_type is {kv_type!r}; supported: {', '.join(_CACHE_BYTES)}")
    target = ModelFacts(_core.GgufFile(resolve_model(model)))
    context = target.context(n_ctx)
    parts = {
        "target_weights": target.weight_bytes(),
        "draft_weights": 0,
        "target_cache": target.cache_bytes(context, kv_type),
        "draft_cache": 0,
        "scratch": target.scratch_bytes(),
    }
    drafters = parse_draft(draft)
    gpu_layers = checked_gpu_layers(gpu_layers)
    if gpu_layers is not None:
        layers = target.needed("block_count")
        whole = not 0 <= gpu_layers <= layers
        there = target.device_bytes(layers + 1 if whole else gpu_layers, context, kv_type)
        parts["target_weights"], parts["target_cache"] = there["weights"], there["cache"]
        parts["scratch"] = there["scratch"]
        drafters = [one for one in drafters if _is_on_device(one, gpu_layers, whole)]
    for drafter in drafters:
        if isinstance(drafter, DraftModel):
            small = ModelFacts(_core.GgufFile(resolve_model(drafter.path)))
            positions = min(drafter.n_ctx or context, context, small.context(None, limit=context))
            parts["draft_weights"] += small.weight_bytes()
            parts["draft_cache"] += small.cache_bytes(positions, kv_type)
            parts["scratch"] += small.scratch_bytes()
        elif isinstance(drafter, (MedusaDraft, EagleDraft)):
            heads = ModelFacts(_core.GgufFile(resolve_model(drafter.path)))
            parts["draft_weights"] += heads.weight_bytes()
            if isinstance(drafter, EagleDraft):
                parts["draft_cache"] += heads.cache_bytes(context, kv_type)
                parts["scratch"] += heads.scratch_bytes()
    return {**parts, "total": sum(parts.values())}


def _is_on_device(drafter: Drafter, gpu_layers: int, whole: bool) -> bool:
    if isinstance(drafter, DraftModel):
        return drafter.device is None and gpu_layers != 0
    return whole  # heads are where the target's output head is


def vocabularies_fit(
    model: str | os.PathLike[str], draft: str | os.PathLike[str]
) -> tuple[bool, str | None]:
    """Whether a file can serve as draft of another.

    Returns:
        True and None, or False and the reason.
    """
    files = [_core.GgufFile(resolve_model(one)) for one in (model, draft)]
    try:
        _core.check_same_vocabulary(*files)
    except Error as error:
        return False, str(error)
    return True, None


class ModelFacts:
    """What the metadata of a file says, read with care: it is input from outside."""

    def __init__(self, file: _core.GgufFile) -> None:
        self.file = file
        self.metadata: Mapping[str, Any] = file.metadata
        self.architecture = self.text("general.architecture")

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        if not isinstance(value, str):
            return None
        # Bytes that are no UTF-8 come as surrogates, which can be neither printed nor sent.
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def number(self, name: str) -> int | None:
        """A number of this architecture; of an array with one value per layer, the largest."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        items = value.tolist() if isinstance(value, np.ndarray) else [value]
        # bool is an int to Python, but no number of layers.
        return max((one for one in items if type(one) is int), default=None)

    @property
    def kv_heads(self) -> int | None:
        return self.number("attention.head_count_kv") or self.number("attention.head_count")

    @property
    def head_dim(self) -> int | None:
        given = self.number("attention.key_length")
        width, heads = self.number("embedding_length"), self.number("attention.head_count")
        return given or (width // heads if width and heads else None)

    @property
    def vocab_size(self) -> int | None:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return len(tokens) if isinstance(tokens, list) else None

    @property
    def chat_templates(self) -> list[str]:
        """The names of the chat templates; one without a name of its own is the default."""
        key = "tokenizer.chat_template"
        names = [one[len(key) + 1 :] for one in self.metadata if one.startswith(key + ".")]
        found = sorted(name for name in names if self.text(f"{key}.{name}"))
        return ["default", *found] if self.text(key) else found

    @property
    def sampling(self) -> dict[str, Any]:
        """The recommended sampling values, as far as they are sound."""
        try:
            return recommended_in(self.metadata)
        except Error:
            return {}

    def needed(self, name: str) -> int:
        """A number without which nothing can be estimated."""
        value = self.number(name)
        if not value or value < 0:
            raise Error(
                f"{self.file.path}: key {self.architecture}.{name} is missing or 0, so its memory "
                "cannot be estimated"
            )
        return value

    def context(self, n_ctx: int | None, limit: int = MAX_DEFAULT_CONTEXT) -> int:
        if n_ctx is not None and n_ctx < 2:
            raise ValueError(f"n_ctx is {n_ctx}; it must be at least 2")
        return n_ctx or min(self.needed("context_length"), limit)

    def weight_bytes(self) -> int:
        return sum(_loaded_bytes(tensor) for tensor in self.file.tensors)

    def device_bytes(self, layers: int, positions: int, kv_type: str) -> dict[str, int]:
        """What the first `layers` layers take on a device; more than there are: with the head."""
        total = self.needed("block_count")
        tensors = {tensor.name: tensor for tensor in self.file.tensors}
        prefixes = {f"blk.{i}" for i in range(min(layers, total))}
        there = [one for name, one in tensors.items() if ".".join(name.split(".")[:2]) in prefixes]
        if layers > total:
            head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
            there += [tensors[name] for name in (head, "output_norm.weight") if name in tensors]
        cache = self.cache_bytes(positions, kv_type) * min(layers, total) // total
        return {
            "weights": sum(_loaded_bytes(tensor) for tensor in there),
            "cache": cache,
            "scratch": self.scratch_bytes() if layers else 0,
        }

    def cache_bytes(self, positions: int, kv_type: str) -> int:
        row = (self.kv_heads or 0) * (self.head_dim or 0)
        return int(2 * self.needed("block_count") * row * positions * _CACHE_BYTES[kv_type])

    def scratch_bytes(self) -> int:
        """Activations of a full prefill pass, and logits of a verify pass."""
        width = self.needed("embedding_length")
        used, expert_ffn = (
            self.number("expert_used_count"),
            self.number("expert_feed_forward_length"),
        )
        if used and self.number("expert_count"):  # rows by expert, and what experts make of them
            ffn = used * (2 * width + (expert_ffn or self.needed("feed_forward_length")))
        else:
            ffn = self.needed("feed_forward_length")
        attention = self.needed("attention.head_count") * (self.head_dim or 0)
        row = 3 * width + 2 * attention + ffn + (self.head_dim or 0)
        return 4 * (PREFILL_CHUNK * row + _VERIFY_ROWS * (self.vocab_size or 0))


def _loaded_bytes(tensor: _core.GgufTensor) -> int:
    return max(tensor.bytes, int(_elements(tensor) * _PACKED_BITS.get(tensor.dtype, 0) / 8))


def _elements(tensor: _core.GgufTensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def _tensor_types(tensors: Sequence[_core.GgufTensor]) -> dict[str, dict[str, int]]:
    """Type -> count and bytes, the largest first."""
    types: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        entry = types.setdefault(tensor.dtype, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += tensor.bytes
    return dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))


def _reason_against(file: _core.GgufFile) -> str | None:
    """Why a file cannot be run; None if nothing speaks against it."""
    try:
        _core.check_model(file)
        with naming_file(file.path):
            Tokenizer.from_metadata(file.metadata)
            recommended_in(file.metadata)
    except Error as error:
        return str(error)
    return None
