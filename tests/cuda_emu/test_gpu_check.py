"""tools/gpu_check.py on the emulated device: every step that needs no GPU, on a tiny shape."""

from __future__ import annotations

import json
from pathlib import Path

import gpu_check
from specdec_native import _core


def test_a_dry_run(tmp_path: Path) -> None:
    """The steps run, and the JSON holds what they found."""
    out = tmp_path / "result" / "gpu_check.json"
    site = Path(_core.__file__).parent.parent
    options = ["--device", "cuda_emu", "--site", site, "--out", out, "--shapes", "tiny:q4_k_m"]
    options += ["--only", "build", "self-test", "times", "--repeats", 2, "--widths", 1, 4]
    options += ["--depths", 3, 66, "--copy-bytes", 1 << 16, "--max-tokens", 6]
    options += ["--model", tmp_path / "none.gguf"]
    assert gpu_check.main([str(one) for one in options]) == 0
    steps = json.loads(out.read_text())["steps"]
    assert steps["build"]["status"] == "skipped"
    assert steps["self-test"] == {**steps["self-test"], "status": "ok", "result": []}
    figures = steps["times of tiny:q4_k_m"]["result"]
    assert [(one["depth"], one["width"]) for one in figures["passes"]] == [
        (depth, width) for depth in (3, 66) for width in (1, 4, 8)
    ]
    assert figures["cache_bytes_per_position"] == 2 * 2 * 2 * 2 * 64
    assert {one["rule"] for one in figures["verify"]} == {"greedy", "rejection"}
    assert all(one["ms"] > 0 for one in figures["passes"] + figures["verify"])
    assert figures["copy_gbps"] > 0


def test_a_step_that_fails_or_hangs_does_not_end_the_others(tmp_path: Path) -> None:
    out = tmp_path / "gpu_check.json"
    site = str(Path(_core.__file__).parent.parent)
    options = ["--device", "cuda_emu", "--site", site, "--out", str(out), "--limit", "60"]
    options += ["--only", "self-test", "times", "--shapes", "none:q8_0", "--device", "cuda:77"]
    assert gpu_check.main(options) == 1
    steps = json.loads(out.read_text())["steps"]
    assert steps["self-test"]["status"] == "failed"
    assert "no CUDA device" in steps["self-test"]["result"]
    assert steps["times of none:q8_0"]["status"] == "failed"
    assert gpu_check.main([*options, "--limit", "0"]) == 0
    assert json.loads(out.read_text())["steps"]["self-test"]["status"] == "skipped"
