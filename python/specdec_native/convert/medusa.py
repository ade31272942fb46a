"""Medusa heads (arXiv 2401.10774): the checkpoint layout of FasterDecoding/Medusa.

``config.json`` says ``medusa_num_heads``, ``medusa_num_layers`` and ``base_model_name_or_path``.
Head i is a sequence: residual blocks ``{i}.{j}.linear.weight/bias`` for j below
``medusa_num_layers``, then the output matrix ``{i}.{medusa_num_layers}.weight``, which is left out
where the heads share the target's (as text-generation-inference loads them).
"""

from __future__ import annotations

import re

from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.convert.gguf_file import FilePlan
from specdec_native.convert.target import Target
from specdec_native.convert.tensors import stored
from specdec_native.errors import ConvertError

__all__ = ["is_medusa", "plan_medusa"]


def is_medusa(source: Checkpoint) -> bool:
    """Whether the configuration is one of Medusa heads."""
    return "medusa_num_heads" in source.config


def plan_medusa(source: Checkpoint, target: Target | None) -> FilePlan:
    """The file for these heads; its layout is described in csrc/model/README.md.

    Raises:
        ConvertError: A tensor is missing, has a wrong shape or is unknown, or the heads do not fit
            the target.
    """
    config = source.config
    heads, blocks = config.whole("medusa_num_heads"), config.whole("medusa_num_layers", 1, least=0)
    prefix = "medusa_head." if any(one.startswith("medusa_head.") for one in source.names) else ""
    outputs = [f"{prefix}{i}.{blocks}.weight" for i in range(heads)]
    own = [name in source for name in outputs]
    if any(own) and not all(own):
        raise ConvertError(f"{source.folder}: tensor {outputs[own.index(False)]!r} is missing")
    if blocks == 0 and not all(own):
        raise ConvertError(f"{source.folder}: tensor {outputs[0]!r} is missing")
    first = source.shape(f"{prefix}0.0.linear.weight" if blocks else outputs[0])
    if len(first) != 2:
        raise ConvertError(f"{source.folder}: the first tensor has shape {first}, no matrix")
    width = first[1]
    if target is not None and width != target.width:
        raise ConvertError(
            f"{source.folder}: the heads are made for a target of width {width}, but "
            f"{target.path} has {target.width}"
        )
    plan = FilePlan("medusa", _metadata(source, target, heads, blocks, width))
    known = set()
    for i in range(heads):
        for j in range(blocks):
            for part, shape in (("weight", (width, width)), ("bias", (width,))):
                name = f"{prefix}{i}.{j}.linear.{part}"
                plan.tensors.append(stored(source, name, f"head.{i}.blk.{j}.{part}", shape))
                known.add(name)
        if all(own):
            shape = (source.shape(outputs[0])[0], width)
            plan.tensors.append(stored(source, outputs[i], f"head.{i}.output.weight", shape))
            known.add(outputs[i])
    _refuse_unknown(source, known, prefix)
    return plan


def _metadata(
    source: Checkpoint, target: Target | None, heads: int, blocks: int, width: int
) -> dict[str, object]:
    base = source.config.text("base_model_name_or_path", "")
    values: dict[str, object] = {"general.name": source.folder.resolve().name}
    if base:
        values["medusa.base_model"] = base
    values |= {
        "medusa.head_count": heads,
        "medusa.block_count": blocks,
        "medusa.embedding_length": width,
    }
    return values if target is None else {**values, **target.tokenizer}


def _refuse_unknown(source: Checkpoint, known: set[str], prefix: str) -> None:
    """A head that is left out would go unnoticed; what else a whole model holds is not ours."""
    for name in source.names:
        if name not in known and re.match(rf"{re.escape(prefix)}\d+\.", name):
            raise ConvertError(
                f"{source.folder}: tensor {name!r} belongs to no head that config.json announces"
            )
