"""The command line, as a user runs it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from make_tiny_heads import make_medusa
from specdec_native import Generator
from specdec_native.bench.prediction import expected_speedup, predict_speedups
from support.command_line import Run, assert_failed, result_of

COMMANDS = ("pull", "generate", "chat", "inspect", "convert", "layers", "quantize")


# --- Help ----------------------------------------------------------------------------------------


def test_help_names_all_commands(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"Example: specdec {command} " in " ".join(done.stdout.split())
    assert "--json" in done.stdout


def test_importing_the_package_loads_no_command_line() -> None:
    code = "import specdec_native, sys; print({'typer', 'rich', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "set()"


# --- generate ------------------------------------------------------------------------------------


def test_generate_json(run: Run, tiny_model: Path) -> None:
    done = run("generate", "-m", tiny_model, "-p", "the cat", "-n", 30, "--temp", 0, "--json")
    result = result_of(done)
    assert done.stderr == ""
    with Generator(tiny_model, draft=None) as generator:
        prompt = generator.tokenize("the cat")
        expected = generator.generate(prompt, max_tokens=30, temperature=0)
    assert result["text"] == expected.text
    assert result["tokens"] == expected.tokens
    assert result["prompt_tokens"] == prompt
    assert result["finish_reason"] == expected.finish_reason
    assert len(result["sources"]) == len(expected.tokens)
    assert result["stats"]["generated_tokens"] == len(expected.tokens)
    assert {"drafted", "accepted", "rounds", "seed"} <= set(result["stats"])


def test_generate_streams_the_same_text(run: Run, tiny_model: Path) -> None:
    options = ("-m", tiny_model, "-p", "the cat", "-n", 30, "--seed", 5)
    plain = run("generate", *options)
    assert plain.returncode == 0
    assert plain.stdout.rstrip("\n") == result_of(run("generate", *options, "--json"))[
        "text"
    ].rstrip("\n")
    assert plain.stderr == ""


def test_every_way_to_give_the_prompt(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    text = "the cat\nand ünï"
    (tmp_path / "prompt.txt").write_text(text, encoding="utf-8")
    with Generator(tiny_model) as generator:
        ids = ",".join(map(str, generator.tokenize(text)))
    common = ("generate", "-m", tiny_model, "-n", 8, "--temp", 0, "--json")
    results = [
        result_of(run(*common, "-p", text)),
        result_of(run(*common, "-f", "prompt.txt")),
        result_of(run(*common, "-f", "-", stdin=text)),
        result_of(run(*common, "--ids", ids)),
    ]
    assert len({tuple(one["tokens"]) for one in results}) == 1
    assert len({tuple(one["prompt_tokens"]) for one in results}) == 1


@pytest.mark.parametrize("draft", [["none"], ["ngram"], ["auto"], ["MODEL"], ["ngram", "MODEL"]])
def test_drafts_change_nothing(run: Run, tiny_model: Path, draft: list[str]) -> None:
    named = [str(tiny_model) if one == "MODEL" else one for one in draft]
    options = [part for one in named for part in ("-d", one)]
    common = ("generate", "-m", tiny_model, "-p", "the cat", "-n", 40, "--seed", 3, "--json")
    result = result_of(run(*common, *options, "--draft-max", 3))
    with Generator(tiny_model, draft=None) as generator:
        assert result["tokens"] == generator.generate("the cat", max_tokens=40, seed=3).tokens
    if draft == ["none"]:
        assert result["stats"]["drafted"] == 0
    if "MODEL" in draft:
        assert result["stats"]["drafted"] > 0
    assert max(map(int, result["stats"]["draft_lengths"])) <= 3


def test_stop_and_limits(run: Run, tiny_model: Path) -> None:
    common = ("generate", "-m", tiny_model, "-p", "the cat", "--temp", 0, "--json")
    whole = result_of(run(*common, "-n", 20))["text"]
    stop = whole[4:6]
    result = result_of(run(*common, "-n", 20, "--stop", "never this", "--stop", stop))
    assert result["finish_reason"] == "stop"
    assert result["text"] == whole[: whole.index(stop)]
    assert result_of(run(*common, "-n", 5))["finish_reason"] == "length"
    assert result_of(run(*common, "-n", 500, "--ctx", 32))["finish_reason"] == "context"


def test_engine_options(run: Run, tiny_model: Path) -> None:
    common = ("generate", "-m", tiny_model, "-p", "the cat", "-n", 12, "--seed", 1, "--json")
    filters = ("--temp", 0.9, "--top-k", 40, "--top-p", 0.9, "--min-p", 0.01)
    engine = ("--device", "cpu", "--threads", 1, "--kv-type", "f32", "--acceptance", "rejection")
    assert len(result_of(run(*common, *filters, *engine))["tokens"]) == 12


def test_sampling_options_and_logprobs(run: Run, tiny_model: Path) -> None:
    common = ("generate", "-m", tiny_model, "-p", "the cat", "-n", 12, "--seed", 1, "--json")
    chain = ("--typical-p", 0.9, "--repetition-penalty", 1.2, "--presence-penalty", 0.3)
    more = ("--frequency-penalty", 0.2, "--logit-bias", "65=1.5", "--logit-bias", "66=-inf")
    result = result_of(run(*common, *chain, *more, "--logprobs", 2))
    with Generator(tiny_model, draft=None) as generator:
        expected = generator.generate(
            "the cat",
            max_tokens=12,
            seed=1,
            typical_p=0.9,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            logit_bias={65: 1.5, 66: -float("inf")},
            logprobs=2,
        )
    assert result["tokens"] == expected.tokens
    assert result["logprobs"] == [
        {"token": one.token, "logprob": one.logprob, "top": [list(pair) for pair in one.top]}
        for one in expected.logprobs or ()
    ]
    assert "logprobs" not in result_of(run(*common))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give the prompt with one of"),
        (("-p", "a", "--logit-bias", "5"), "logit-bias is '5'; it must be ID=VALUE"),
        (("-p", "a", "--logit-bias", "5=x"), "logit-bias is '5=x'; it must be ID=VALUE"),
        (("-p", "a", "--logit-bias", "5=1", "--logit-bias", "5=2"), "given twice for token 5"),
        (("-p", "a", "--logit-bias", "5=nan"), "logit_bias of token 5 is nan"),
        (("-p", "a", "--typical-p", 2), "typical_p is 2.0; it must be from 0 to 1"),
        (("-p", "a", "--logprobs", 2), "logprobs are part of the JSON output; give --json"),
        (("-p", "a", "--ids", "1"), "give the prompt with one of"),
        (("-p", "a", "--temp", "-1"), "temperature is -1"),
        (("-p", "a", "--top-p", "1.5"), "top_p is 1.5"),
        (("-p", "a", "--acceptance", "maybe"), "acceptance is 'maybe'"),
        (("-p", "a", "--stop", ""), "stop holds ''"),
        (("-p", "a", "-n", "many"), "--max-tokens"),
        (("-p", "a", "-d", "mystery"), "draft is 'mystery'"),
        (("-p", "a", "-d", "none", "-d", "ngram"), "none"),
        (("-p", "a", "--device", "tpu"), "device is 'tpu'"),
        (("-p", "a", "-d", "none", "--draft-device", "cuda"), "but draft is 'none'"),
        (("-p", "a", "--device", "cuda:00"), "device is 'cuda:00'"),
        (("-p", "a", "--kv-type", "f8"), "kv-type is 'f8'"),
        (("-p", "a", "--threads", "0"), "threads"),
        (("--ids", "1,x"), "ids is '1,x'"),
        (("-p", "a", "--unknown"), "--unknown"),
    ],
)
def test_bad_usage(run: Run, tiny_model: Path, options: tuple[str, ...], message: str) -> None:
    assert_failed(run("generate", "-m", tiny_model, *options), 2, re.escape(message))


def test_unknown_command(run: Run) -> None:
    assert_failed(run("dance"), 2, "dance")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-m", "missing.gguf", "-p", "a"), r"no such file: missing\.gguf"),
        (("-m", "smollm2-135m", "-p", "a"), "specdec pull smollm2-135m"),
        (("-m", "nothing", "-p", "a"), "known models: smollm2-135m"),
        (("-m", "MODEL", "-p", "a", "-d", "missing.gguf"), r"no such file: missing\.gguf"),
        (("-m", "MODEL", "-f", "missing.txt"), "missing.txt"),
        (("-m", "MODEL", "-p", "a", "--device", "cuda"), "cuda"),
        (("-m", "MODEL", "--ids", "1,999999"), "999999"),
        (("-m", "MODEL", "-p", "the cat " * 60, "--ctx", "16"), "context"),
        (("-m", "BROKEN", "-p", "a"), "GGUF|gguf|magic"),
    ],
)
def test_failure(
    run: Run, tiny_model: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"this is no model\n" * 10)
    files = {"MODEL": str(tiny_model), "BROKEN": str(broken)}
    named = [files.get(one, one) for one in options]
    assert_failed(run("generate", *named), 1, message)
    assert_failed(run("generate", *named, "--json"), 1, message)


def test_stdin_that_is_no_text(
    tiny_model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "specdec_native", "generate", "-m", str(tiny_model), "-f", "-"]
    done = subprocess.run(
        command, input=b"abc\xff", capture_output=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert done.stderr == b"error: the standard input is not UTF-8 text: byte 3 is wrong\n"


def test_debug_shows_the_traceback(run: Run) -> None:
    done = run("--debug", "generate", "-m", "missing.gguf", "-p", "a")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_reader_that_leaves_early(
    tiny_model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "specdec_native", "generate", "-m", str(tiny_model)]
    command += ["-p", "the cat", "-n", "900"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


# --- chat ----------------------------------------------------------------------------------------


def test_chat_from_a_pipe(run: Run, tiny_model: Path) -> None:
    lines = "hello\n\nwhat is this\n/reset\nhello\n/exit\nnever read\n"
    chat = ("chat", "-m", tiny_model, "-n", 12, "--temp", 0, "--system", "be brief", "--json")
    chat = (*chat, "--logprobs", 1)
    done = run(*chat, stdin=lines)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 3
    assert answers[0]["text"] == answers[2]["text"]  # the conversation was forgotten
    assert answers[1]["stats"]["reused_tokens"] > 0
    with Generator(tiny_model) as generator:
        messages = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ]
        first = generator.chat(messages, max_tokens=12, temperature=0)
        messages += [
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "what is this"},
        ]
        second = generator.chat(messages, max_tokens=12, temperature=0)
    assert [one["text"] for one in answers[:2]] == [first.text, second.text]
    assert [one["token"] for one in answers[0]["logprobs"]] == first.tokens


def test_chat_prints_answers_only(run: Run, tiny_model: Path) -> None:
    done = run("chat", "-m", tiny_model, "-n", 5, "--temp", 0, stdin="hello\n")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.endswith("\n")


def test_chat_forgets_the_oldest_where_the_context_is_full(run: Run, tiny_model: Path) -> None:
    chat = ("chat", "-m", tiny_model, "-n", 10, "--ctx", 96, "--json")
    done = run(*chat, stdin="hello there\n" * 6)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
    assert "the oldest messages were forgotten" in done.stderr


def test_chat_without_a_template(run: Run, make_model: Callable[..., Path]) -> None:
    model = make_model(metadata={"tokenizer.chat_template": None})
    done = run("chat", "-m", model, stdin="hello\n")
    assert_failed(done, 1, "no chat template .*--template FILE")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_chat_on_a_terminal(make_model: Callable[..., Path], environment: dict[str, str]) -> None:
    import pty
    import select

    model = make_model(layers=12, context=8192)
    main_end, terminal = pty.openpty()
    command = [sys.executable, "-m", "specdec_native", "chat", "-m", str(model), "-n", "8000"]
    process = subprocess.Popen(
        [*command, "--seed", "1", "--stop", "never this"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**environment, "TERM": "xterm", "NO_COLOR": ""},
        start_new_session=True,
    )
    os.close(terminal)

    def wait_for(pattern: bytes) -> bytes:
        seen = b""
        end = time.monotonic() + 60
        while not re.search(pattern, seen):
            assert time.monotonic() < end, seen[-500:]
            if select.select([main_end], [], [], 0.1)[0]:
                seen += os.read(main_end, 65536)
        return seen

    # A prompt comes after a dim line; the model itself may well write "> ".
    prompt = rb"\x1b\[0m\r\n> $"
    try:
        wait_for(prompt)
        os.write(main_end, b"hello\n")
        wait_for(rb"hello\r\n(?s:.){20}")  # in the middle of the answer
        process.send_signal(signal.SIGINT)
        seen = wait_for(prompt)
        assert re.search(rb"\d+ tokens", seen)
        time.sleep(0.5)  # readline shows the prompt before it listens to signals
        process.send_signal(signal.SIGINT)  # at the prompt: a hint, and a new prompt
        assert b"/exit" in wait_for(prompt)
        os.write(main_end, b"/reset\n")
        wait_for(rb"forgotten" + prompt)
        os.write(main_end, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main_end)


# --- inspect and pull ----------------------------------------------------------------------------


def test_inspect_json(run: Run, tiny_model: Path) -> None:
    about = result_of(run("inspect", tiny_model, "--json"))
    assert about["architecture"] == "llama"
    assert about["layers"] == 4
    assert about["vocab_size"] == 300
    assert about["supported"] is True
    assert about["file_size"] == tiny_model.stat().st_size
    assert sum(one["count"] for one in about["tensor_types"].values()) == 38
    with Generator(tiny_model, draft=None) as generator:
        used = generator.memory()
    assert about["memory"]["target_cache"] == used["target_cache"]
    assert set(about["memory"]) == set(used)


def test_inspect_table(run: Run, tiny_model: Path) -> None:
    done = run("inspect", tiny_model, "--draft", tiny_model)
    assert done.returncode == 0
    assert "architecture" in done.stdout
    assert "This draft fits" in done.stdout
    assert "best draft length" in done.stdout


def test_inspect_predicts_from_measured_passes(run: Run, tiny_model: Path) -> None:
    about = result_of(run("inspect", tiny_model, "--draft", tiny_model, "--json"))
    costs = about["draft"]["costs"]
    assert sorted(map(int, costs["pass_ms"])) == list(range(1, 10))
    assert [one["acceptance"] for one in costs["predictions"]] == [0.5, 0.6, 0.7, 0.8, 0.9]
    pass_ms = {int(width): ms for width, ms in costs["pass_ms"].items()}
    assert costs["predictions"] == predict_speedups(pass_ms, costs["draft_ms"])


def test_predicted_speedups_by_hand() -> None:
    """Flat passes and a free draft: (1 - a^(k + 1)) / (1 - a); a dear draft: better none."""
    flat = dict.fromkeys(range(1, 10), 2.0)
    assert expected_speedup(0.5, 2, flat, 0.0) == pytest.approx(1.75)
    assert expected_speedup(0.5, 2, flat, 0.5) == pytest.approx(1.75 * 2 / 3)
    best = predict_speedups(flat, 0.0)[-1]
    assert best["draft_length"] == 8
    assert best["speedup"] == pytest.approx((1 - 0.9**9) / 0.1)
    assert predict_speedups(flat, 2.1)[-1] == {
        "acceptance": 0.9,
        "draft_length": 0,
        "speedup": 1.0,
    }


def test_convert_and_draft_with_heads(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    folder, out = make_medusa(tmp_path / "heads"), tmp_path / "heads.gguf"
    result = result_of(run("convert", folder, out, "--target", tiny_model, "--json"))
    assert (result["kind"], result["path"], result["type"]) == ("medusa", str(out), "f16")
    assert result["bytes"] == out.stat().st_size
    assert "medusa heads" in run("convert", folder, out, "--type", "q8_0").stdout
    options = ("-m", tiny_model, "--temp", 0, "-n", 20, "--ids", "5,6,7", "--json")
    plain = result_of(run("generate", *options, "-d", "none"))
    drafted = result_of(run("generate", *options, "-d", f"medusa:{out}"))
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["stats"]["drafted"] > 0
    assert run("convert", folder, out, "--type", "q9").returncode == 2
    done = run("convert", tmp_path, out)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "config.json" in done.stderr


def test_layers_are_searched_and_used(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "layers.json"
    result = result_of(run("layers", "-m", tiny_model, out, "--tokens", 4, "--json"))
    assert json.loads(out.read_text())["layers"] == result["layers"]
    options = ("-m", tiny_model, "--temp", 0, "-n", 20, "--ids", "5,6,7", "--json")
    drafted = result_of(run("generate", *options, "-d", f"layerskip:{out}"))
    assert drafted["tokens"] == result_of(run("generate", *options, "-d", "none"))["tokens"]


def test_inspect_draft_that_does_not_fit(
    run: Run, tiny_model: Path, make_model: Callable[..., Path]
) -> None:
    other = make_model(vocab=290)
    done = run("inspect", tiny_model, "--draft", other, "--json")
    about = json.loads(done.stdout)
    assert about["supported"] is True
    assert about["draft"]["fits"] is False
    assert "290" in about["draft"]["fits_reason"]
    assert done.returncode == 1
    assert done.stderr.startswith("error: this draft does not fit: ")


def test_inspect_what_cannot_be_run(run: Run, make_model: Callable[..., Path]) -> None:
    hostile = "evil\x1b]0;title\x07[bold]"
    model = make_model(metadata={"general.architecture": "mystery", "general.name": hostile})
    done = run("inspect", model, "--json")
    about = json.loads(done.stdout)
    assert about["supported"] is False
    assert "mystery" in about["reason"]
    assert about["memory"] is None
    assert done.returncode == 1
    assert done.stderr == f"error: {about['reason']}\n"
    done = run("inspect", model)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {model}: key general.architecture is 'mystery'")
    assert "\x1b" not in done.stdout
    assert "[bold]" in done.stdout


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("layerskip:nope.json", r"nope\.json: no saved layers .*No such file.*specdec layers"),
        ("layerskip:folder.json", r"folder\.json: no saved layers .*directory"),
        ("layerskip:broken.json", r"broken\.json: no saved LayerSkipDraft"),
        ("layerskip:bytes.json", r"bytes\.json: no saved LayerSkipDraft"),
    ],
)
def test_saved_layers_that_cannot_be_read(
    run: Run, tiny_model: Path, tmp_path: Path, draft: str, message: str
) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "broken.json").write_text("[1, 2")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    done = run("generate", "-m", tiny_model, "-p", "a", "-d", draft)
    assert done.returncode in (1, 2)
    text = " ".join(done.stderr.replace("\u2502", " ").split())
    assert re.search(message, text), text
    assert "Errno" not in text
    assert "Traceback" not in text


def test_what_the_system_says_of_a_file_comes_without_its_number(
    run: Run, tiny_model: Path
) -> None:
    done = run("layers", "-m", tiny_model, "missing/layers.json", "--tokens", 2)
    assert "Errno" not in done.stderr
    assert "missing" in done.stderr


def test_inspect_failures(run: Run, tmp_path: Path) -> None:
    assert_failed(run("inspect", "missing.gguf"), 1, "no such file")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    assert_failed(run("inspect", "broken.gguf", "--json"), 1, "version")


def test_pull_unknown_name(run: Run) -> None:
    assert_failed(run("pull", "nothing"), 1, "known models: smollm2-135m")


def test_pull_without_an_answer(run: Run, environment: dict[str, str]) -> None:
    # A closed port of this machine in the place of every index that may be configured.
    for name in [name for name in environment if name.startswith("PIP_")]:
        del environment[name]
    environment |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "SPECDEC_PULL_TIMEOUT": "2",
    }
    done = run("pull", "smollm2-135m", "--json")
    assert_failed(done, 1, "no answer from the Python package index")
