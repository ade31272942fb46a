"""The benches without timing anything: statistics, parsing, prompts, tables."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_native import NgramDraft
from specdec_native.bench import plot, tables
from specdec_native.bench.generating import _names, first_difference
from specdec_native.bench.passes import check_counts
from specdec_native.bench.peer import (
    LlamaBench,
    PeerError,
    PeerTest,
    find_llama_bench,
    parse_output,
)
from specdec_native.bench.prompts import BUILT_IN, read_prompts
from specdec_native.bench.samples import (
    disturbance,
    geometric_mean,
    median,
    median_interval,
    percentile,
    ratio,
    summary,
)
from specdec_native.drafters import DraftModel

# --- Statistics ----------------------------------------------------------------------------------


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_median_interval() -> None:
    """The sign test's: of 6 samples all, of 15 the fourth to the twelfth (standard tables)."""
    assert median_interval([3.0, 1.0, 2.0, 5.0, 4.0]) is None
    assert median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == [1.0, 6.0]
    assert median_interval([float(i) for i in range(1, 16)]) == [4.0, 12.0]
    assert median_interval([float(i) for i in range(1, 21)]) == [6.0, 15.0]
    rng = random.Random(4)
    samples = ([rng.expovariate(1.0) for _ in range(15)] for _ in range(2000))
    missed = sum(not low <= math.log(2.0) <= high for low, high in map(interval_of, samples))
    assert missed < 2000 * 0.05


def interval_of(samples: list[float]) -> list[float]:
    found = median_interval(samples)
    assert found is not None
    return found


def test_median_and_percentile() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0]) == 2.5
    assert percentile([5.0], 0.9) == 5.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert percentile(list(map(float, range(11))), 0.9) == pytest.approx(9.0)
    for empty in (median, lambda them: percentile(them, 0.5)):
        with pytest.raises(ValueError, match="no samples"):
            empty([])


def test_summary_and_ratio() -> None:
    assert summary([2.0, 1.0, 9.0]) == {
        "ms": 2.0,
        "min_ms": 1.0,
        "p90_ms": pytest.approx(7.6),
        "samples": 3,
    }
    assert ratio(1.0, 4.0) == 0.25
    assert ratio(None, 4.0) is None
    assert ratio(1.0, None) is None
    assert ratio(1.0, 0.0) is None


def test_disturbance() -> None:
    assert disturbance([[1.0, 1.0, 1.0]]) == 1.0
    assert disturbance([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], []]) == 1.5
    assert disturbance([]) is None


def test_counts() -> None:
    assert check_counts("widths", [8, 1, 8], 1, 16) == [1, 8]
    with pytest.raises(ValueError, match="widths holds 17; each must be from 1 to 16"):
        check_counts("widths", [1, 17], 1, 16)
    with pytest.raises(ValueError, match="none are given"):
        check_counts("widths", [], 1, 16)


# --- llama-bench ---------------------------------------------------------------------------------


def entry(prompt: int, generate: int, **more: Any) -> dict[str, Any]:
    return {"build_commit": "abc1234", "n_prompt": prompt, "n_gen": generate, **more}


def test_parse_samples() -> None:
    text = json.dumps([entry(8, 0, avg_ns=9e6, samples_ns=[10_000_000, 12_000_000])])
    assert parse_output(text, PeerTest(8, 0, 8)) == ([10.0, 12.0], "abc1234")


def test_parse_generation_per_token() -> None:
    text = json.dumps([entry(512, 0, samples_ns=[1]), entry(0, 32, samples_ns=[64_000_000])])
    assert parse_output(text, PeerTest(0, 32, 512)) == ([2.0], "abc1234")


def test_parse_average_of_old_versions() -> None:
    assert parse_output(json.dumps([entry(1, 0, avg_ns=5e6)]), PeerTest(1, 0, 1))[0] == [5.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON but ''"),
        ("error: no such model\n", "no JSON but 'error: no such model'"),
        ("{}", "not a list"),
        ("[]", "no result for -p 8 -n 0"),
        (json.dumps([entry(16, 0, samples_ns=[1])]), "no result for -p 8 -n 0"),
        (json.dumps([entry(8, 0)]), "without times"),
        (json.dumps([entry(8, 0, samples_ns=["soon"])]), "without times"),
        (json.dumps([entry(8, 0, samples_ns=[0])]), "without times"),
        (json.dumps([entry(8, 0, samples_ns="12")]), "without times"),
    ],
)
def test_parse_failure(text: str, message: str) -> None:
    with pytest.raises(PeerError, match=message):
        parse_output(text, PeerTest(8, 0, 8))


def test_arguments() -> None:
    assert PeerTest(8, 0, 8).arguments() == ["-p", "8", "-n", "0", "-b", "8", "-ub", "8"]
    assert PeerTest(0, 32, 512).passes == 32
    assert PeerTest(512, 0, 512).passes == 1


def test_find(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="is no folder"):
        find_llama_bench(tmp_path / "missing")
    with pytest.raises(PeerError, match="there is no llama-bench"):
        find_llama_bench(tmp_path)
    inner = tmp_path / "build" / "bin"
    inner.mkdir(parents=True)
    program = inner / "llama-bench"
    program.write_text("")
    with pytest.raises(PeerError, match="may not be run"):
        find_llama_bench(tmp_path)
    program.chmod(0o755)
    assert find_llama_bench(tmp_path) == program.resolve()
    assert find_llama_bench(inner) == program.resolve()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; print('first'); sys.exit('out of memory')", "code 1: out of memory"),
        ("import sys; sys.exit(3)", "code 3: it said nothing"),
        ("print('hello')", "no JSON but 'hello'"),
    ],
)
def test_failing_program(tmp_path: Path, code: str, message: str) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)
    with pytest.raises(PeerError, match=message):
        LlamaBench(program, tmp_path / "m.gguf", 2).run(PeerTest(1, 0, 1), 2)


def test_program_of_another_machine(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_bytes(b"\x00\x01\x02")
    program.chmod(0o755)
    with pytest.raises(PeerError, match="cannot be run"):
        LlamaBench(program, tmp_path / "m.gguf", 2).run(PeerTest(1, 0, 1), 2)


# --- Prompts and drafters ------------------------------------------------------------------------


def test_built_in_prompts() -> None:
    names = [one.name for one in BUILT_IN]
    for kind in ("chat", "summary", "editing", "extraction", "code"):
        assert {kind, f"{kind} 2"} <= set(names)
    assert all(20 < len(one.text) < 2000 for one in BUILT_IN)


def test_prompts_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("first\nline two\n---\n\nsecond ünï\n ---\n---\n", encoding="utf-8")
    assert [one.text for one in read_prompts(path)] == ["first\nline two", "second ünï"]
    path.write_text("---\n")
    with pytest.raises(ValueError, match="holds no prompt"):
        read_prompts(path)


def test_prompts_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"name": "b", "prompt": "two", "more": 1}\n')
    assert [(one.name, one.text) for one in read_prompts(path)] == [
        ("prompt 1", "one"),
        ("b", "two"),
    ]
    for bad in ("[1]", "{}", '{"prompt": 1}', "no json", '{"prompt": ""}'):
        path.write_text(bad + "\n")
        with pytest.raises(ValueError, match="line 1"):
            read_prompts(path)


def test_names_differ() -> None:
    drafters = [NgramDraft(), DraftModel("a/x.gguf"), NgramDraft(4), DraftModel("b/x.gguf")]
    assert _names(drafters) == ["ngram", "x.gguf", "ngram #2", "x.gguf #2"]


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


# --- Output --------------------------------------------------------------------------------------


def test_table() -> None:
    text = tables.table(("op", "ms"), [("matmul", "1.25"), ("add", "10")])
    assert text.splitlines() == ["op        ms", "matmul  1.25", "add       10"]


def generate_result() -> dict[str, Any]:
    one = {
        "ms_per_token": 2.0,
        "tokens_per_second": 500.0,
        "speedup": 1.0,
        "speedup_interval": None,
        "acceptance_rate": None,
        "tokens_per_round": 1.0,
    }
    fast = {**one, "ms_per_token": 1.0, "speedup": 2.0, "acceptance_rate": 0.5}
    fast["speedup_interval"] = [1.9, 2.1]
    contenders = {"plain": one, "ngram": fast}
    mean = {"tokens_per_second": 1.0, "speedup": 2.0, "geometric_mean": 1.8}
    overall = dict.fromkeys(contenders, mean)
    return {
        "model": "m.gguf",
        "contenders": list(contenders),
        "prompts": [{"name": "chat", "tokens": 9, "contenders": contenders}],
        "overall": overall,
        "synthetic_acceptance": None,
    }


def test_generate_report() -> None:
    lines = tables.generate_report(generate_result()).splitlines()
    assert lines[3].split() == ["chat,", "plain", "9", "500.0", "1.00", "-", "1.00"]
    assert lines[4].split() == [
        "chat,",
        "ngram",
        "9",
        "500.0",
        "2.00",
        "1.90",
        "to",
        "2.10",
        "50%",
        "1.00",
    ]
    assert lines[-2].split() == ["all,", "ngram", "1.0", "2.00"]
    assert lines[-1].split() == ["geometric", "mean,", "ngram", "1.80"]
    synthetic = {**generate_result(), "synthetic_acceptance": 0.7}
    assert "70% of drafted tokens accepted" in tables.generate_report(synthetic)


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = plot.plot_speedups(generate_result(), tmp_path / "out.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"specdec_native\[bench\]"):
        plot.check_plotting()
