"""The tensors of a tiny model's layers, for every architecture."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_families import EXPERTS, Family


class Shape(Protocol):
    """Sizes of a model."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    expert_ffn: int
    later_gain: float


class Weights(Protocol):
    """Where tensors go; values are random, but depend on the seed and the name only."""

    def norm(self, name: str, gain: float = 1.0, size: int = 0) -> None:
        """Adds the gains of a norm over `size` values (0: the width), around `gain`."""

    def bias(self, name: str, shape: tuple[int, ...], std: float = 0.1) -> None:
        """Adds normal values around 0."""

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


class _Layer:
    """Adds one layer's tensors."""

    def __init__(self, weights: Weights, shape: Shape, family: Family, index: int) -> None:
        self.weights = weights
        self.shape = shape
        self.family = family
        self.prefix = f"blk.{index}."
        # What the layer adds to the residual stream, against the first one's.
        self.gain = 1.0 if index == 0 else shape.later_gain

    def norm(self, name: str, gain: float = 1.0, size: int = 0) -> None:
        self.weights.norm(f"{self.prefix}{name}.weight", gain, size)
        if self.family.layer_norm:
            self.weights.bias(f"{self.prefix}{name}.bias", (size or self.shape.width,))

    def matrix(self, name: str, rows: int, cols: int, std: float, bias: bool = False) -> None:
        self.weights.matrix(f"{self.prefix}{name}.weight", rows, cols, std)
        if bias:
            self.weights.bias(f"{self.prefix}{name}.bias", (rows,), 0.1)

    def attention(self) -> None:
        shape, family, unit = self.shape, self.family, 1.0 / math.sqrt(self.shape.width)
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        if family.pre_norms:
            self.norm("attn_norm")
        # 1.5: attention that picks rather than averages, so that text depends on its order.
        if family.fused:
            std = np.full(queries + 2 * keys, 1.5, np.float32)
            std[-keys:] = 1.0
            name = self.prefix + "attn_qkv.weight"
            self.weights.matrix(name, queries + 2 * keys, shape.width, unit, std)
        else:
            self.matrix("attn_q", queries, shape.width, 1.5 * unit, family.qkv_bias)
            self.matrix("attn_k", keys, shape.width, 1.5 * unit, family.qkv_bias)
            self.matrix("attn_v", keys, shape.width, unit, family.qkv_bias)
        if family.qk_norm:
            row = family.qk_norm == "row"
            for name, size in (("attn_q_norm", queries), ("attn_k_norm", keys)):
                self.weights.norm(
                    f"{self.prefix}{name}.weight", 1.5, size if row else shape.head_dim
                )
        if family.sinks:
            self.weights.bias(self.prefix + "attn_sinks.weight", (shape.heads,), 1.0)
        # An average of values is smaller than one value.
        output_std = 2.0 / math.sqrt(queries) * (1.0 if family.post_norms else self.gain)
        self.matrix("attn_output", shape.width, queries, output_std, family.output_bias)
        if family.post_norms:
            self.norm("post_attention_norm", self.gain)

    def feed_forward(self) -> None:
        shape, family, unit = self.shape, self.family, 1.0 / math.sqrt(self.shape.width)
        gain = 1.0 if family.post_norms else self.gain
        if family.pre_norms:
            self.norm(family.ffn_norm)
        if family.experts:
            self.experts(gain)
        else:
            if family.gated and not family.fused:
                self.matrix("ffn_gate", shape.ffn, shape.width, unit, family.mlp_bias)
            rows = shape.ffn * (2 if family.fused else 1)
            self.matrix("ffn_up", rows, shape.width, unit, family.mlp_bias)
            # silu(gate) * up of unit inputs has a standard deviation near 0.6.
            down_std = 1.7 * gain / math.sqrt(shape.ffn)
            self.matrix("ffn_down", shape.width, shape.ffn, down_std, family.mlp_bias)
        if family.post_norms:
            self.norm("post_ffw_norm", self.gain)

    def experts(self, gain: float) -> None:
        shape, family, unit = self.shape, self.family, 1.0 / math.sqrt(self.shape.width)
        ffn = shape.expert_ffn
        self.matrix("ffn_gate_inp", EXPERTS, shape.width, 2.0 * unit, family.expert_bias)
        down_std = 2.0 * gain / math.sqrt(ffn)
        for name, rows, cols, std in (
            ("ffn_gate_exps", ffn, shape.width, unit),
            ("ffn_up_exps", ffn, shape.width, unit),
            ("ffn_down_exps", shape.width, ffn, down_std),
        ):
            self.weights.matrix(f"{self.prefix}{name}.weight", rows, cols, std, stack=EXPERTS)
            if family.expert_bias:
                self.weights.bias(f"{self.prefix}{name}.bias", (EXPERTS, rows), 0.1)
        if not family.shared_expert:
            return
        self.weights.bias(self.prefix + "ffn_gate_inp_shexp.weight", (shape.width,), unit)
        self.matrix("ffn_gate_shexp", ffn, shape.width, unit)
        self.matrix("ffn_up_shexp", ffn, shape.width, unit)
        self.matrix("ffn_down_shexp", shape.width, ffn, down_std)


def add_layer(weights: Weights, shape: Shape, family: Family, index: int) -> None:
    """Adds the tensors `blk.INDEX.*`."""
    layer = _Layer(weights, shape, family, index)
    layer.attention()
    layer.feed_forward()
