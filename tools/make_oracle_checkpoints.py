"""Computes with `transformers` the logits that the tests compare this library's with.

For every architecture: a tiny random checkpoint (`oracle_checkpoint.py` makes its weights from a
seed), prompts shorter and longer than any window or scaling threshold, and the logits of a few
positions, written to `tests/golden/oracles`. Needed only to remake those files:

    pip install torch==2.13.0 transformers ml_dtypes gguf safetensors
    python tools/make_oracle_checkpoints.py            # all of them
    python tools/make_oracle_checkpoints.py qwen2 llama-yarn
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from oracle_checkpoint import (
    ORACLES,
    Oracle,
    checkpoint_tensors,
    norm_mean,
    write_checkpoint,
    write_tensors,
)

VOCAB = 288
_SHORT, _LONG = 10, 48


@dataclass(frozen=True)
class Case:
    """One checkpoint to make.

    Attributes:
        config: Its `config.json`, in the form that public checkpoints have.
        tokenizer: The kind of its tokenizer files.
        dtype: In which it stores the weights.
        n_ctx: Context length to load it with, for the short and the long prompt.
    """

    config: dict[str, Any]
    tokenizer: str = "llama-bpe"
    dtype: str = "float32"
    n_ctx: tuple[int, int] = (64, 64)


def _config(architecture: str, model_type: str, **values: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **values,
    }


def _llama(**values: Any) -> dict[str, Any]:
    return _config("LlamaForCausalLM", "llama", rope_theta=10000.0, **values)


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def _phi3(**values: Any) -> dict[str, Any]:
    return _config(
        "Phi3ForCausalLM", "phi3", **{"rope_theta": 10000.0, "pad_token_id": 0, **values}
    )


def _long_rope(pairs: int, form: str) -> dict[str, Any]:
    short = [1.0 + 0.02 * i for i in range(pairs)]
    long = [1.1 + 0.6 * i for i in range(pairs)]
    return {"type": form, "short_factor": short, "long_factor": long}


_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "pad_token_id": 0}
_GEMMA3_TEXT = {
    **_GEMMA,
    "num_hidden_layers": 6,
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
    "sliding_window_pattern": 6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "tie_word_embeddings": True,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _gemma2(**values: Any) -> dict[str, Any]:
    soft_caps = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
    settings = {**_GEMMA, **soft_caps, "sliding_window": 16, "rope_theta": 10000.0, **values}
    settings["tie_word_embeddings"] = True
    return _config("Gemma2ForCausalLM", "gemma2", **settings)


def _multimodal(architecture: str, model_type: str, text: dict[str, Any]) -> dict[str, Any]:
    vision_type = {"gemma3": "siglip_vision_model", "mistral3": "pixtral"}[model_type]
    text = {key: value for key, value in text.items() if key != "architectures"}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": text,
        "vision_config": {"model_type": vision_type, **_VISION},
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


_MISTRAL_TEXT = _config("MistralForCausalLM", "mistral", head_dim=32, sliding_window=None)

CASES: dict[str, Case] = {
    "llama": Case(_llama(), "llama-spm"),
    "llama-heads": Case(
        _llama(num_attention_heads=32, num_key_value_heads=4, head_dim=16), "llama-spm"
    ),
    "llama-bias": Case(_llama(attention_bias=True, mlp_bias=True), dtype="bfloat16"),
    "llama-linear": Case(
        _llama(rope_scaling={"type": "linear", "factor": 4.0}, tie_word_embeddings=True), "smollm"
    ),
    "llama-llama3": Case(_llama(rope_scaling=_LLAMA3_ROPE, head_dim=16), dtype="bfloat16"),
    "llama-yarn": Case(_llama(rope_scaling=_YARN)),
    "mistral": Case(_config("MistralForCausalLM", "mistral", sliding_window=16), "llama-spm"),
    "mixtral": Case(
        _config(
            "MixtralForCausalLM",
            "mixtral",
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_theta=1e6,
            sliding_window=None,
        ),
        "llama-spm",
        "bfloat16",
    ),
    "qwen2": Case(
        _config("Qwen2ForCausalLM", "qwen2", rope_theta=1e6, tie_word_embeddings=True),
        "qwen2",
        "bfloat16",
    ),
    "qwen2-yarn": Case(_config("Qwen2ForCausalLM", "qwen2", rope_scaling=_YARN), "qwen2"),
    "qwen3": Case(_config("Qwen3ForCausalLM", "qwen3", head_dim=32, rope_theta=1e6), "qwen2"),
    "qwen2moe": Case(
        _config(
            "Qwen2MoeForCausalLM",
            "qwen2_moe",
            **_EXPERTS,
            shared_expert_intermediate_size=64,
            norm_topk_prob=False,
            decoder_sparse_step=1,
        ),
        "qwen2",
    ),
    "qwen3moe": Case(
        _config(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            **_EXPERTS,
            head_dim=32,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        "qwen2",
        "bfloat16",
    ),
    "gemma2": Case(_gemma2(query_pre_attn_scalar=16), "gemma-spm", "bfloat16"),
    "gemma2-scale": Case(_gemma2(query_pre_attn_scalar=16, head_dim=32), "gemma-spm"),
    "gemma3": Case(_config("Gemma3ForCausalLM", "gemma3_text", **_GEMMA3_TEXT), "gemma-spm"),
    "gemma3-multimodal": Case(
        _multimodal(
            "Gemma3ForConditionalGeneration",
            "gemma3",
            _config("Gemma3ForCausalLM", "gemma3_text", **_GEMMA3_TEXT),
        ),
        "gemma-spm",
        "bfloat16",
    ),
    "phi3": Case(_phi3(sliding_window=16, num_key_value_heads=4), "phi3-spm"),
    "phi3-longrope": Case(
        _phi3(
            rope_scaling=_long_rope(8, "longrope"),
            original_max_position_embeddings=32,
            sliding_window=None,
        ),
        "phi3-spm",
        n_ctx=(32, 64),
    ),
    "phi4-mini": Case(
        _phi3(
            head_dim=16,
            partial_rotary_factor=0.75,
            rope_scaling=_long_rope(6, "longrope"),
            original_max_position_embeddings=32,
            sliding_window=None,
            tie_word_embeddings=True,
        ),
        "gpt-4o",
        "bfloat16",
        n_ctx=(32, 64),
    ),
    "mistral3": Case(
        _multimodal("Mistral3ForConditionalGeneration", "mistral3", _MISTRAL_TEXT), "tekken"
    ),
    "ministral3": Case(
        _config(
            "Ministral3ForCausalLM",
            "ministral3",
            head_dim=32,
            sliding_window=None,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 8.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        ),
        "tekken",
    ),
    "granite": Case(
        _config(
            "GraniteForCausalLM",
            "granite",
            attention_multiplier=0.125,
            embedding_multiplier=6.0,
            residual_multiplier=0.4,
            logits_scaling=0.5,
            tie_word_embeddings=True,
        ),
        "smollm",
    ),
    "smollm3": Case(
        _config(
            "SmolLM3ForCausalLM",
            "smollm3",
            num_hidden_layers=4,
            pad_token_id=0,
            no_rope_layers=[1, 1, 1, 0],
            no_rope_layer_interval=4,
            use_sliding_window=False,
            rope_theta=5e6,
            tie_word_embeddings=True,
        ),
        dtype="bfloat16",
    ),
    "olmo2": Case(_config("Olmo2ForCausalLM", "olmo2", rope_theta=500000), "gpt-2"),
    "starcoder2": Case(
        _config(
            "Starcoder2ForCausalLM",
            "starcoder2",
            hidden_act="gelu_pytorch_tanh",
            norm_epsilon=1e-5,
            use_bias=True,
            sliding_window=16,
            tie_word_embeddings=True,
        ),
        "smollm",
    ),
    "gpt-oss": Case(
        _config(
            "GptOssForCausalLM",
            "gpt_oss",
            head_dim=32,
            intermediate_size=64,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
            num_local_experts=4,
            num_experts_per_tok=2,
            swiglu_limit=7.0,
            max_position_embeddings=64,
            attention_bias=True,
            rope_theta=150000,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
            },
            quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": []},
        ),
        "gpt-4o",
        "bfloat16",
    ),
}


def _prompts(seed: int) -> list[list[int]]:
    rng = np.random.Philox(key=[seed, 7])
    return [
        [int(one % (VOCAB - 30)) + 10 for one in rng.random_raw(count)] for count in (_SHORT, _LONG)
    ]


def _model_class(config: dict[str, Any]) -> Any:
    return getattr(transformers, config["architectures"][0])


def _settings(config: dict[str, Any]) -> Any:
    """The configuration object, without what asks for another storage of the weights."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(plain), encoding="utf-8")
        return transformers.AutoConfig.from_pretrained(folder)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes as `save_pretrained` stores them; MXFP4 experts as gpt-oss has them."""
    from safetensors import safe_open

    model = _model_class(config)(_settings(config))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", framework="np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    if "quantization_config" not in config:
        return shapes
    packed: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if re.search(r"experts\.(gate_up|down)_proj$", name):
            experts, inputs, outputs = shape
            packed[f"{name}_blocks"] = (experts, outputs, inputs // 32, 16)
            packed[f"{name}_scales"] = (experts, outputs, inputs // 32)
        else:
            packed[name] = shape
    return packed


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _unpacked(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """MXFP4 experts as the matrices that `transformers` computes with: [experts, in, out]."""
    result = {}
    for name, values in tensors.items():
        if name.endswith("_scales"):
            continue
        if not name.endswith("_blocks"):
            result[name] = values
            continue
        codes = np.stack([values & 15, values >> 4], axis=-1)  # the low half comes first
        numbers = _E2M1[codes & 7] * np.where(codes & 8, np.float32(-1), np.float32(1))
        numbers = numbers.reshape(*values.shape[:-1], 32)
        scales = tensors[name.replace("_blocks", "_scales")].astype(np.int32) - 127
        whole = np.ldexp(numbers, scales[..., None])
        experts, outputs = values.shape[:2]
        matrix = whole.reshape(experts, outputs, -1).swapaxes(1, 2)
        result[name.removesuffix("_blocks")] = np.ascontiguousarray(matrix, np.float32)
    return result


def _logits(
    config: dict[str, Any], tensors: dict[str, NDArray[Any]], prompts: list[list[int]]
) -> list[NDArray[np.float32]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _settings(config).save_pretrained(folder)
        write_tensors(folder, _unpacked(tensors))
        model, info = _model_class(config).from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        problems = {key: value for key, value in info.items() if value}
        if problems:
            raise ValueError(f"the checkpoint does not fit the model: {problems}")
        model.eval()
        with torch.no_grad():
            return [
                model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
                for ids in prompts
            ]


def make(name: str, case: Case, seed: int) -> None:
    """Computes and writes one golden file."""
    torch.manual_seed(0)
    shapes = _shapes(case.config)
    tensors, checksum = checkpoint_tensors(shapes, seed, case.dtype, norm_mean(case.config))
    prompts = _prompts(seed)
    logits = _logits(case.config, tensors, prompts)
    rows = [[0, 3, 6, len(ids) - 1] if len(ids) < 20 else [5, 16, 33, 40, 47] for ids in prompts]
    kept = [values[index].astype(np.float32) for values, index in zip(logits, rows, strict=True)]
    oracle = Oracle(
        name=name,
        config=case.config,
        tokenizer=case.tokenizer,
        seed=seed,
        dtype=case.dtype,
        tensors=shapes,
        checksum=checksum,
        prompts=prompts,
        rows=rows,
        logits=kept,
        n_ctx=list(case.n_ctx),
        made_with={"torch": torch.__version__, "transformers": transformers.__version__},
    )
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(oracle, Path(folder) / name)  # it can be made again
    _write(oracle)
    spread = float(np.std(kept[1]))
    print(f"{name}: {len(shapes)} tensors, logits of standard deviation {spread:.2f}")


def _write(oracle: Oracle) -> None:
    ORACLES.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in vars(oracle).items() if key not in ("name", "logits")}
    values["tensors"] = {name: list(shape) for name, shape in oracle.tensors.items()}
    lines = [
        f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (ORACLES / f"{oracle.name}.json").write_text(text, encoding="utf-8")
    arrays = {f"logits{i}": values for i, values in enumerate(oracle.logits)}
    np.savez(ORACLES / f"{oracle.name}.npz", **arrays)


def main() -> None:
    """Makes the golden files that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    names = parser.parse_args().names or list(CASES)
    for name in names:
        make(name, CASES[name], seed=zlib.crc32(name.encode()) % 10000)


if __name__ == "__main__":
    main()
