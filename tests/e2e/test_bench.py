"""``specdec bench`` as a user runs it: what it prints, not how fast anything is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from make_tiny_model import cut_layers
from specdec_native import _core
from specdec_native.bench import generating
from specdec_native.bench.passes import measure_passes
from specdec_native.bench.prompts import Prompt
from specdec_native.drafters import DraftModel
from support.command_line import Run, assert_failed, result_of

# Prints what llama-bench prints, with times that say which test was run, and keeps a record.
FAKE_LLAMA_BENCH = """#!{python}
import json, os, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.environ["FAKE_RECORD"], "a") as record:
    record.write(json.dumps(options) + "\\n")
prompt, generate = int(options["-p"]), int(options["-n"])
time = (prompt + 3 * generate) * 1000000
entry = {{"build_commit": "fake123", "n_prompt": prompt, "n_gen": generate,
         "samples_ns": [time] * int(options["-r"])}}
print(json.dumps([entry]))
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "specdec_native", "bench", *map(str, arguments)],
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "FAKE_RECORD": str(tmp_path / "record")},
            cwd=tmp_path,
            timeout=180,
            check=False,
        )

    return start


@pytest.mark.parametrize("command", ["passes", "compare", "generate"])
def test_help(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"Example: specdec bench {command} " in " ".join(done.stdout.split())
    assert "--json" in done.stdout


# --- passes --------------------------------------------------------------------------------------


def test_passes_json(run: Run, tiny_model: Path) -> None:
    options = ("--widths", "8,1,3", "--depth", "16,64", "--threads", 2, "--json")
    done = run("passes", "-m", tiny_model, *options)
    assert done.stderr == ""
    result = result_of(done)
    assert result["model"] == str(tiny_model)
    assert result["isa"] == _core.cpu_info().active
    assert result["threads"] == 2
    places = [(one["depth"], one["width"]) for one in result["passes"]]
    assert places == [(16, 1), (16, 3), (16, 8), (64, 1), (64, 3), (64, 8)]
    for one in result["passes"]:
        assert one["ms"] > 0
        assert one["ratio"] > 0
        assert one["samples"] >= 20
        assert one["min_ms"] <= one["ms"] <= one["p90_ms"]
        assert (one["width"] == 1) <= (one["ratio"] == 1.0)
    limits = result["limits"]
    assert limits["buffer_bytes"] >= 256 << 20
    for name in ("read_gbps", "int8_gmacs"):
        assert 0 < limits[name] <= limits[f"{name}_best"]
        assert limits[f"{name}_1_thread"] > 0
    assert "profile" not in result


def test_width_one_is_the_yardstick_even_unasked(run: Run, tiny_model: Path) -> None:
    options = ("-m", tiny_model, "--widths", "4", "--threads", 1, "--json")
    result = result_of(run("passes", *options))
    assert [one["width"] for one in result["passes"]] == [4]


def test_passes_with_profile(run: Run, make_model: Any) -> None:
    model = make_model(layers=2, dtype="q8_0", tied=False, tensor_dtypes={"ffn_down": "q4_0"})
    options = ("-m", model, "--widths", "1,4", "--profile", "--threads", 1)
    result = result_of(run("passes", *options, "--json"))
    assert [(one["depth"], one["width"]) for one in result["profile"]] == [(64, 1), (64, 4)]
    for profile in result["profile"]:
        ops = {(one["op"], one["types"]): one for one in profile["ops"]}
        expected = {
            ("qkv", "Q8_0"): 2,
            ("attn_output", "Q8_0"): 2,
            ("mlp", "Q8_0+Q4_0"): 2,
            ("head", "Q8_0"): 1,
            ("embed", "Q8_0"): 1,
            ("attention", ""): 2,
            ("norm", ""): 5,
            ("add", ""): 4,
            ("(between)", ""): 0,
        }
        assert {key: one["calls"] for key, one in ops.items()} == expected
        assert sum(one["share"] for one in profile["ops"]) == pytest.approx(1.0)
        assert ops["mlp", "Q8_0+Q4_0"]["gbps"] > 0
        assert ops["head", "Q8_0"]["gmacs"] > 0
        assert ops["norm", ""]["gbps"] is None
    table = run("passes", *options)
    assert table.returncode == 0
    for word in ("limits", "GB/s", "GMAC/s", "pass of 4 at depth 64", "mlp Q8_0+Q4_0", "share"):
        assert word in table.stdout


def test_weights_of_a_pass_are_counted(make_model: Any) -> None:
    model = make_model(layers=2, dtype="q8_0")
    result = measure_passes(model, [1], threads=1, progress=False)
    file = _core.GgufFile(model)
    matrices = [one for one in file.tensors if one.dtype == "Q8_0"]  # the tied head included
    (weights,) = result["weights"]
    assert weights["bytes"] == sum(one.bytes for one in matrices)
    assert weights["multiply_adds"] == sum(one.shape[0] * one.shape[1] for one in matrices)
    entry = result["passes"][0]
    assert entry["gbps"] == pytest.approx(weights["bytes"] / entry["ms"] / 1e6)
    at_70_percent = weights["multiply_adds"] / (0.7 * result["limits"]["int8_gmacs"]) / 1e6
    assert entry["int8_ms"] == pytest.approx(at_70_percent)


def test_reference_backend(run: Run, make_model: Any) -> None:
    model = make_model(layers=1)
    result = result_of(
        run("passes", "-m", model, "--widths", "1,2", "--depth", "4", "--device", "ref", "--json")
    )
    assert result["isa"] == "ref"


@pytest.mark.parametrize("level", _core.cpu_info().detected)
def test_limits_at_every_level(level: str) -> None:
    code = "from specdec_native import _core; p = _core.MachineProbe(2); print(p.int8_peak(True))"
    environment = {**os.environ, "SPECDEC_CPU_ISA": level}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 1e8


def test_timer_checks_its_arguments(tiny_model: Path) -> None:
    model = _core.Model.load(str(tiny_model), _core.make_backend("cpu", 1))
    timer = _core.PassTimer(model, 32, "f16")
    timer.fill(20)
    timer.check_widths([1, 5, 12])
    timer.check_widths([])
    timer.fill(8)  # back, too
    assert len(timer.time_passes([1, 2, 1])) == 3
    assert timer.time_prefill(20, 8) > 0
    for call in (
        lambda: timer.fill(32),
        lambda: timer.fill(-1),
        lambda: timer.time_passes([25]),
        lambda: timer.time_passes([0]),
        lambda: timer.check_widths([25]),
        lambda: timer.time_prefill(8, 0),
        lambda: _core.PassTimer(model, 32, "q4_0"),
    ):
        with pytest.raises(ValueError, match=r"cache of 32|passes of at most|passes of 0|kv_type"):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--widths", "1,x"), "widths is '1,x'"),
        (("--widths", "0"), "widths holds 0"),
        (("--depth", ""), "depth is ''"),
        (("--device", "tpu"), "device is 'tpu'"),
        (("--kv-type", "f8"), "kv-type is 'f8'"),
        (("--repeats", "3"), "repeats"),
    ],
)
def test_passes_bad_usage(
    run: Run, tiny_model: Path, options: tuple[str, ...], message: str
) -> None:
    assert_failed(run("passes", "-m", tiny_model, *options), 2, re.escape(message))


@pytest.mark.parametrize("options", [(), ("--kv-type", "q8_0"), ("--kv-type", "f32")])
def test_passes_failure(run: Run, options: tuple[str, ...]) -> None:
    assert_failed(run("passes", "-m", "missing.gguf", *options), 1, "error: no such file")


@pytest.mark.parametrize("kv_type", ["f32", "q8_0"])
def test_passes_with_a_cache_of_another_type(make_model: Any, kv_type: str) -> None:
    model = _core.Model.load(str(make_model(head_dim=32)), _core.make_backend("cpu", 1), None)
    timer = _core.PassTimer(model, 32, kv_type)
    timer.fill(8)
    timer.check_widths([1, 2, 5])
    assert len(timer.time_passes([1, 5])) == 2


# --- compare -------------------------------------------------------------------------------------


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    program = tmp_path / "peer" / "llama-bench"
    program.parent.mkdir()
    program.write_text(FAKE_LLAMA_BENCH.format(python=sys.executable))
    program.chmod(0o755)
    return program.parent


@pytest.mark.skipif(os.name != "posix", reason="a script as an executable")
def test_compare(run: Run, tiny_model: Path, tmp_path: Path, peer: Path) -> None:
    options = ("-m", tiny_model, "--peer", peer, "--threads", 1, "--rounds", 2, "--prefill", 100)
    result = result_of(run("compare", *options, "--json"))
    assert result["peer"] == {"path": str(peer / "llama-bench"), "build": "fake123"}
    rows = {one["what"]: one for one in result["rows"]}
    assert list(rows) == ["pass of 1", "pass of 8", "pass of 16", "prefill of 100"]
    # The better of -p 1 (1 ms) and -n 32 (3 ms a token).
    assert (rows["pass of 1"]["peer_ms"], rows["pass of 1"]["peer_test"]) == (1.0, "-p 1 -n 0")
    assert rows["pass of 16"]["peer_ms"] == 16.0
    assert rows["prefill of 100"]["peer_ms"] == 100.0
    for name, row in rows.items():
        assert row["ours_by_peer"] == pytest.approx(row["ours_ms"] / row["peer_ms"])
        assert row["ours_samples"] >= (20 if "pass" in name else 4)
        assert row["peer_samples"] == 10
    record = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
    asked = [(one["-p"], one["-n"], one["-ub"], one["-t"]) for one in record]
    once = [("1", "0", "1", "1"), ("0", "32", "512", "1"), ("8", "0", "8", "1")]
    once += [("16", "0", "16", "1"), ("100", "0", "100", "1")]
    assert asked == once * 2  # in turns
    assert all(one["-m"] == str(tiny_model) and one["-o"] == "json" for one in record)

    table = run("compare", *options)
    assert table.returncode == 0, table.stderr
    assert "ours / theirs" in table.stdout


def test_compare_failures(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    options = ("compare", "-m", tiny_model, "--peer", tmp_path)
    assert_failed(run(*options), 1, "error: there is no llama-bench in")
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\necho 'unknown model' >&2\nexit 7\n")
    program.chmod(0o755)
    if os.name == "posix":
        assert_failed(run(*options), 1, "error: .*failed with code 7: unknown model")


# --- generate ------------------------------------------------------------------------------------


def test_generate(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("the cat the cat the\n---\nsay something\n")
    options = ("-m", tiny_model, "-d", "ngram", "-d", tiny_model, "-n", 24)
    common = ("generate", *options, "--prompts", "prompts.txt", "--repeats", 2)
    done = run(*common, "--json")
    assert done.stderr == ""
    result = result_of(done)
    names = ["plain", "ngram", tiny_model.name]
    assert result["contenders"] == names
    assert [one["name"] for one in result["prompts"]] == ["prompt 1", "prompt 2"]
    for one in result["prompts"]:
        assert list(one["contenders"]) == names
        assert 0 < one["tokens"] <= 24
        assert one["contenders"]["plain"]["acceptance_rate"] is None
    assert set(result["overall"]) == set(names)
    table = run(*common)
    assert table.returncode == 0
    assert "prompt 2, ngram" in table.stdout


def test_generate_with_built_in_prompts(run: Run, make_model: Any) -> None:
    model = make_model(layers=1, context=2048)
    result = result_of(run("generate", "-m", model, "-n", 4, "--repeats", 1, "--json"))
    kinds = [one["name"].split(" ")[0] for one in result["prompts"]]
    assert set(kinds) == {"chat", "summary", "editing", "extraction", "code"}
    assert min(kinds.count(kind) for kind in kinds) >= 2


@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_synthetic_acceptance(tiny_model: Path, tmp_path: Path, share: float) -> None:
    """Drafts count as right at that rate, whatever the target says."""
    draft = cut_layers(tiny_model, tmp_path / "cut.gguf", 1)
    result = generating.compare_drafters(
        tiny_model,
        [DraftModel(draft, max_draft=4, adaptive=False)],
        prompts=[Prompt("one", "a b c d e f"), Prompt("two", "g h i j")],
        max_tokens=200,
        repeats=1,
        synthetic_acceptance=share,
        progress=False,
    )
    assert result["synthetic_acceptance"] == share
    tokens = rounds = 0.0
    for prompt in result["prompts"]:
        one = prompt["contenders"]["cut.gguf"]
        tokens += one["tokens_per_round"]
        rounds += 1
    # 1 + a + a^2 + a^3 + a^4, but for the ends of the texts.
    expected = sum(share**i for i in range(5))
    assert tokens / rounds == pytest.approx(expected, rel=0.15)


def test_synthetic_acceptance_bad_usage(run: Run, tiny_model: Path) -> None:
    assert_failed(run("generate", "-m", tiny_model, "--synthetic-acceptance", 1.5), 2, "synthetic")


def test_different_output_is_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = generating.Generator.generate
    calls = 0

    def spoiled(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        done = original(self, *arguments, **more)
        if calls == 3:  # the second turn begins with the drafter
            done.tokens[3] += 1
        return done

    monkeypatch.setattr(generating.Generator, "generate", spoiled)
    with pytest.raises(generating.DifferentOutputError, match=r"ngram.*'chat'.*from token 3 on"):
        generating.compare_drafters(tiny_model, ["ngram"], max_tokens=8, repeats=2, progress=False)


def test_generate_failure(run: Run, tiny_model: Path) -> None:
    assert_failed(run("generate", "-m", tiny_model, "--prompts", "no.txt"), 1, "no.txt")
    assert_failed(run("generate", "-m", tiny_model, "-d", "mystery"), 2, "draft is 'mystery'")
