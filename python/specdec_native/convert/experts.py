"""The experts of a layer: stacks of matrices, out of the ways that checkpoints hold them."""

from __future__ import annotations

from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.convert.families import Experts
from specdec_native.convert.tensors import (
    Slab,
    TensorPlan,
    every_second,
    mxfp4,
    stacked,
    stored,
    transposed,
)
from specdec_native.errors import ConvertError

__all__ = ["plan_experts"]


def plan_experts(
    source: Checkpoint,
    experts: Experts,
    prefix: str,
    block: str,
    shape: tuple[int, int, int],
    *,
    unpack: bool,
) -> tuple[list[TensorPlan], set[str]]:
    """The router and the stacks of one layer.

    Args:
        source: The checkpoint.
        experts: How the family names them.
        prefix: "model.layers.0."
        block: "blk.0."
        shape: [experts, F, E].
        unpack: Whether MXFP4 is to become the values that it stands for.

    Returns:
        What to write, and the names that were used.
    """
    count, _, width = shape
    router = f"{prefix}{experts.router}"
    plans = [
        stored(source, f"{router}.weight", f"{block}ffn_gate_inp.weight", (count, width)),
    ]
    used = {f"{router}.weight"}
    if not experts.each:
        plans.append(stored(source, f"{router}.bias", f"{block}ffn_gate_inp.bias", (count,)))
        more, names = _gpt_oss(source, f"{prefix}{experts.fused}.", block, shape, unpack)
        return plans + more, used | names | {f"{router}.bias"}
    fused = f"{prefix}{experts.fused}."
    if experts.fused and f"{fused}gate_up_proj" in source:
        more, names = _fused(source, fused, block, shape)
    else:
        more, names = _one_by_one(source, experts, prefix, block, shape)
    return plans + more, used | names


def _shapes(shape: tuple[int, int, int]) -> dict[str, tuple[int, int, int]]:
    count, ffn, width = shape
    return {
        "gate": (count, ffn, width),
        "up": (count, ffn, width),
        "down": (count, width, ffn),
    }


def _one_by_one(
    source: Checkpoint, experts: Experts, prefix: str, block: str, shape: tuple[int, int, int]
) -> tuple[list[TensorPlan], set[str]]:
    """A tensor for each expert."""
    plans, used = [], set()
    for (part, stack), old in zip(_shapes(shape).items(), experts.parts, strict=True):
        names = [
            f"{prefix}{experts.each.format(e=expert, part=old)}.weight"
            for expert in range(stack[0])
        ]
        for name in names:
            source.expect(name, stack[1:])
        slabs = [Slab(name, 0, stack[1]) for name in names]
        plans.append(stacked(source, slabs, f"{block}ffn_{part}_exps.weight", stack))
        used |= set(names)
    return plans, used


def _fused(
    source: Checkpoint, prefix: str, block: str, shape: tuple[int, int, int]
) -> tuple[list[TensorPlan], set[str]]:
    """Stacks already: gate over up [X, 2 F, E], and down [X, E, F]."""
    count, ffn, width = shape
    both, down = f"{prefix}gate_up_proj", f"{prefix}down_proj"
    source.expect(both, (count, 2 * ffn, width))
    plans = []
    for i, (part, stack) in enumerate(list(_shapes(shape).items())[:2]):
        slabs = [Slab(both, (2 * expert + i) * ffn, ffn) for expert in range(count)]
        plans.append(stacked(source, slabs, f"{block}ffn_{part}_exps.weight", stack))
    plans.append(stored(source, down, f"{block}ffn_down_exps.weight", (count, width, ffn)))
    return plans, {both, down}


def _gpt_oss(
    source: Checkpoint, prefix: str, block: str, shape: tuple[int, int, int], unpack: bool
) -> tuple[list[TensorPlan], set[str]]:
    """Gate and up in turn, with biases; MXFP4 [out, in] or other types [in, out]."""
    count, ffn, width = shape
    plans: list[TensorPlan] = []
    used: set[str] = set()
    for part, stack in _shapes(shape).items():
        old, phase = f"{prefix}gate_up_proj", {"gate": 0, "up": 1}.get(part)
        if phase is None:
            old = f"{prefix}down_proj"
        stored_rows = stack[1] if phase is None else 2 * ffn
        new, bias = f"{block}ffn_{part}_exps.weight", f"{block}ffn_{part}_exps.bias"
        if old in source:
            source.expect(old, (count, stack[2], stored_rows))
            plans.append(transposed(source, old, new, stack, phase))
            used.add(old)
        else:
            names = (f"{old}_blocks", f"{old}_scales")
            if stack[2] % 32:
                raise ConvertError(
                    f"{source.folder}: rows of {stack[2]} values in {names[0]!r} are no whole "
                    "blocks of MXFP4"
                )
            source.expect(names[0], (count, stored_rows, stack[2] // 32, 16))
            source.expect(names[1], (count, stored_rows, stack[2] // 32))
            plans.append(mxfp4(source, names, new, stack, phase, unpack=unpack))
            used |= set(names)
        source.expect(f"{old}_bias", (count, stored_rows))
        if phase is None:
            plans.append(stored(source, f"{old}_bias", bias, (count, width)))
        else:
            plans.append(every_second(source, f"{old}_bias", bias, (count, ffn), phase))
        used.add(f"{old}_bias")
    return plans, used
