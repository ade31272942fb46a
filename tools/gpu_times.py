"""Times one model on a device and prints JSON: a step of gpu_check.py, in a process of its own.

python tools/gpu_times.py --shape 8b:q4_k_m --draft-shape 1b:q4_k_m --device cuda
python tools/gpu_times.py --model SmolLM2-135M-Instruct.Q4_1.gguf --draft layerskip:8
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from make_tiny_model import make_shaped_model
from shaped_model import PRESETS, q4_k_m

__all__ = ["ACCEPTANCE", "main"]

ACCEPTANCE = 0.8
_DRAFTED = 4


def shaped_file(folder: Path, shape: str, layers: int | None) -> Path:
    """A file of random weights: `shape` is a preset and a type, such as ``8b:q4_k_m``."""
    preset, dtype = shape.split(":")
    count = layers or PRESETS[preset].layers
    exceptions = {}
    if dtype == "q4_k_m":
        exceptions = q4_k_m(count, PRESETS[preset].tied)
        dtype = "q4_k"
    name = folder / f"{shape.replace(':', '-')}.gguf"
    return make_shaped_model(
        name, preset, dtype=dtype, layers=count, tensor_dtypes=exceptions, repeating=True
    )


def drafted_speed(model: Path, draft: str, device: str, max_tokens: int) -> dict[str, Any]:
    """Tokens per second with and without drafts, of which a given share counts as accepted."""
    import specdec_native as sd
    from specdec_native.bench.generating import compare_drafters
    from specdec_native.bench.prompts import BUILT_IN

    if Path(draft).exists():
        drafter: Any = sd.DraftModel(draft, max_draft=_DRAFTED, adaptive=False)
    else:
        drafter = draft
    result = compare_drafters(
        model,
        [drafter],
        prompts=BUILT_IN[:1],
        max_tokens=max_tokens,
        repeats=2,
        n_ctx=2048,
        device=device,
        synthetic_acceptance=ACCEPTANCE,
        progress=False,
    )
    return {
        "draft": draft if drafter is draft else Path(draft).name,
        "acceptance": ACCEPTANCE,
        "contenders": result["prompts"][0]["contenders"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape")
    parser.add_argument("--draft-shape")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 4096])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--copy-bytes", type=int, default=1 << 30)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    if (options.shape is None) == (options.model is None):
        parser.error("give one of --shape and --model")

    from specdec_native.bench.device import measure_device_passes

    memory = Path("/dev/shm")  # where there is one, no file on a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = Path(name)
        model = options.model or shaped_file(folder, options.shape, options.layers)
        result = measure_device_passes(
            model,
            options.device,
            widths=options.widths,
            depths=options.depths,
            repeats=options.repeats,
            copy_bytes=options.copy_bytes,
        )
        result["model"] = options.shape or model.name
        draft = options.draft
        if options.draft_shape:
            draft = str(shaped_file(folder, options.draft_shape, options.layers))
        if draft:
            result["drafted"] = drafted_speed(model, draft, options.device, options.max_tokens)
    json.dump(result, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
