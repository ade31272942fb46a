"""Which type each tensor gets: whole models against lists worked out from the published rules."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_native import _core

MODEL = {"architecture": "llama", "layers": 32, "heads_per_kv": 4}
MATRIX = (4096, 4096)


def kind(recipe: str, name: str, shape: tuple[int, ...] = MATRIX, **facts: Any) -> str:
    return _core.recipe_type(recipe, name, shape, **{**MODEL, **facts})[0]


def layers_with(recipe: str, part: str, dtype: str, **facts: Any) -> list[int]:
    """The layers whose tensor has this type."""
    count = facts.get("layers", 32)
    names = [f"blk.{i}.{part}.weight" for i in range(count)]
    return [i for i, name in enumerate(names) if kind(recipe, name, **facts) == dtype]


# Of 32 layers: the first and last four, and every third between, from 4 + 2 on.
MORE_BITS = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]


@pytest.mark.parametrize(("recipe", "base"), [("q4_k_m", "Q4_K"), ("q5_k_m", "Q5_K")])
def test_medium_recipes_raise_half_of_the_layers(recipe: str, base: str) -> None:
    for part in ("attn_v", "ffn_down", "attn_qkv", "ffn_down_exps"):
        assert layers_with(recipe, part, "Q6_K") == MORE_BITS, part
        rest = [i for i in range(32) if i not in MORE_BITS]
        assert layers_with(recipe, part, base) == rest
    for part in ("attn_q", "attn_k", "attn_output", "ffn_up", "ffn_gate", "ffn_up_exps"):
        assert layers_with(recipe, part, base) == list(range(32)), part


def test_small_models_round_fractions_down() -> None:
    """Of 30 layers an eighth is 3, and 7 * 30 / 8 is 26."""
    expected = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]
    assert layers_with("q4_k_m", "ffn_down", "Q6_K", layers=30) == expected
    assert layers_with("q4_k_m", "ffn_down", "Q6_K", layers=2) == [1]


# recipe -> part -> the type of its first layers, how many these are, and that of the others.
FIRST = {
    "q3_k_m": {"attn_v": ("Q5_K", 2, "Q4_K"), "ffn_down": ("Q5_K", 2, "Q4_K"),
               "attn_output": ("Q4_K", 32, ""), "ffn_up": ("Q3_K", 32, "")},
    "q3_k_l": {"attn_v": ("Q5_K", 32, ""), "ffn_down": ("Q5_K", 32, ""),
               "attn_output": ("Q5_K", 32, ""), "attn_q": ("Q3_K", 32, "")},
    "q3_k_s": {"attn_v": ("Q3_K", 32, ""), "ffn_down": ("Q3_K", 32, "")},
    "q4_k_s": {"attn_v": ("Q5_K", 4, "Q4_K"), "ffn_down": ("Q5_K", 4, "Q4_K"),
               "attn_output": ("Q4_K", 32, "")},
    "q5_k_s": {"attn_v": ("Q5_K", 32, ""), "ffn_down": ("Q5_K", 32, "")},
    "q2_k": {"attn_v": ("Q4_K", 32, ""), "ffn_down": ("Q3_K", 32, ""),
             "attn_output": ("Q3_K", 32, ""), "attn_k": ("Q2_K", 32, "")},
    "q6_k": {"attn_v": ("Q6_K", 32, ""), "ffn_down": ("Q6_K", 32, "")},
    "q4_0": {"attn_v": ("Q4_0", 32, ""), "ffn_down": ("Q4_0", 32, "")},
    "q8_0": {"attn_v": ("Q8_0", 32, ""), "ffn_down": ("Q8_0", 32, "")},
    "iq4_xs": {"attn_v": ("Q5_K", 32, ""), "ffn_down": ("Q5_K", 4, "IQ4_XS")},
    "iq4_nl": {"attn_v": ("Q5_K", 32, ""), "ffn_down": ("Q5_K", 4, "IQ4_NL")},
    "f16": {"attn_v": ("F16", 32, ""), "ffn_down": ("F16", 32, "")},
}  # fmt: skip


@pytest.mark.parametrize("recipe", FIRST)
def test_first_layers(recipe: str) -> None:
    for part, (first, count, others) in FIRST[recipe].items():
        assert layers_with(recipe, part, first) == list(range(count)), part
        if others:
            assert layers_with(recipe, part, others) == list(range(count, 32)), part


def test_output_and_embedding() -> None:
    for recipe in ("q2_k", "q3_k_m", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q6_k", "iq4_xs"):
        assert kind(recipe, "output.weight") == "Q6_K"
        assert kind(recipe, "token_embd.weight", tied_output=True) == "Q6_K"
    assert kind("q4_k_m", "token_embd.weight") == "Q4_K"
    assert kind("q4_0", "token_embd.weight") == "Q4_0"
    for recipe in ("q8_0", "f16", "bf16", "f32"):
        assert kind(recipe, "output.weight") == recipe.upper()


def test_what_a_model_is_like_matters() -> None:
    assert layers_with("q2_k", "attn_v", "Q3_K", heads_per_kv=3) == list(range(32))
    assert layers_with("iq4_xs", "attn_v", "IQ4_XS", heads_per_kv=2) == list(range(32))
    # A key/value head of the 80-layer models serves eight heads.
    large = {"layers": 80, "heads_per_kv": 8}
    assert "Q4_K" not in {kind("q4_k_m", f"blk.{i}.attn_v.weight", **large) for i in range(80)}
    assert kind("q3_k_s", "blk.40.attn_v.weight", **large) == "Q5_K"
    assert kind("q3_k_s", "blk.40.attn_v.weight", **large, architecture="qwen3") == "Q3_K"
    # Eight experts: their attention is small beside them.
    eight = {"experts": 8}
    for recipe in ("q2_k", "q4_k_m", "q5_0"):
        assert kind(recipe, "blk.1.attn_v.weight", **eight) == "Q8_0"
        assert kind(recipe, "blk.1.attn_k.weight", **eight) == "Q8_0"
    assert kind("q4_k_m", "blk.1.attn_output.weight", **eight) == "Q5_K"
    assert kind("q5_k_m", "blk.1.attn_output.weight", **eight) == "Q5_K"
    assert kind("q3_k_l", "blk.1.attn_output.weight", **eight) == "Q3_K"
    assert kind("q4_k_m", "blk.7.ffn_gate_exps.weight", (8, 512, 512), **eight) == "Q4_K"


def test_importance_weights_change_three_recipes() -> None:
    down = "blk.3.ffn_down.weight"
    assert kind("q4_0", down, has_weights=True) == "Q4_1"
    assert kind("q5_0", down, has_weights=True) == "Q5_1"
    assert kind("iq4_xs", down, has_weights=True) == "IQ4_XS"
    assert kind("q4_0", "blk.4.ffn_down.weight", has_weights=True) == "Q4_0"


def test_mxfp4_is_for_experts() -> None:
    assert kind("mxfp4_moe", "blk.0.ffn_up_exps.weight", (4, 64, 64)) == "MXFP4"
    assert kind("mxfp4_moe", "blk.0.ffn_up.weight") == "Q8_0"
    assert kind("mxfp4_moe", "output.weight") == "Q8_0"
    assert kind("mxfp4", "blk.0.ffn_up.weight") == "MXFP4"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_norm.weight", (64,)),
        ("blk.0.attn_q_norm.weight", (4, 64)),
        ("blk.0.ffn_gate_inp.weight", (8, 64)),
        ("blk.0.ffn_gate_inp_shexp.weight", (1, 64)),
        ("blk.0.ffn_gate_exps.bias", (8, 64)),
        ("blk.0.attn_sinks.weight", (64,)),
        ("blk.0.attn_q.bias", (64,)),
        ("rope_freqs.weight", (64,)),
        ("rope_factors_long.weight", (64,)),
        ("blk.0.attn_q.weight", (1, 1, 64)),
        ("d2t", (4, 64)),
    ],
)
def test_what_stays_float32(name: str, shape: tuple[int, ...]) -> None:
    for recipe in _core.recipe_names():
        assert _core.recipe_type(recipe, name, shape, **MODEL) == ("F32", False)


FALLBACKS = {
    "q2_k": "Q4_0", "q3_k_s": "Q4_0", "q4_k_s": "Q5_0", "q5_k_s": "Q5_1", "q6_k": "Q8_0",
    "iq4_xs": "IQ4_NL",
}  # fmt: skip


@pytest.mark.parametrize("recipe", FALLBACKS)
def test_rows_that_are_no_whole_blocks(recipe: str) -> None:
    """R49: rows of 896 or 64 values."""
    for cols in (896, 64):
        found = _core.recipe_type(recipe, "blk.9.attn_q.weight", (8, cols), **MODEL)
        assert found == (FALLBACKS[recipe], True)
        found = _core.recipe_type(recipe, "output.weight", (8, cols), **MODEL)
        assert found == ("Q8_0", True)
    assert _core.recipe_type(recipe, "blk.9.attn_q.weight", (8, 100), **MODEL) == ("F16", True)


def test_pure_ignores_the_rules() -> None:
    for name in ("output.weight", "token_embd.weight", "blk.0.attn_v.weight"):
        assert kind("q4_k_m", name, pure=True) == "Q4_K"
    assert kind("mxfp4_moe", "blk.0.attn_v.weight", pure=True) == "MXFP4"


def test_names_and_numbers() -> None:
    assert [_core.recipe_file_type(one) for one in ("Q4_K", "q4_k_m", "q3_k", "Q5_K")] == [
        15, 15, 12, 17,
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"unknown type 'q4_k_x'; known are f32, f16.*q4_k_m"):
        _core.recipe_file_type("q4_k_x")
