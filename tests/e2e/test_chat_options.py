"""Chats with templates, tools and variables of one's own, and what a file recommends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import specdec_native as sd
from support.command_line import Run, assert_failed, result_of


def test_chat_with_another_template_tools_and_variables(make_model: Callable[..., Path]) -> None:
    model = make_model(metadata={"tokenizer.chat_template.tool_use": "{{ tools[0].name }} call"})
    user = [{"role": "user", "content": "hi"}]
    options = {"max_tokens": 3, "temperature": 0}
    with sd.Generator(model, draft=None, progress=False) as plain:
        asked = plain.generate(plain.tokenize("abc call"), **options).tokens
        assert plain.chat(user, tools=[{"name": "abc"}], **options).tokens == asked
        assert plain.chat(user, **options).tokens != asked
    source = "{{ documents[0].text }}{{ messages[0].content }}{{ word | default('') }}"
    with sd.Generator(model, draft=None, progress=False, chat_template=source) as own:
        for given, text in [({}, "hi"), ({"template_variables": {"word": "x"}}, "hix")]:
            asked = own.generate(own.tokenize("d" + text), **options).tokens
            assert own.chat(user, documents=[{"text": "d"}], **given, **options).tokens == asked
        asked = own.generate(own.tokenize("dhi"), **options).tokens
        reply = own.chat(user, documents=[{"text": "d"}], continue_final_message=True, **options)
        assert reply.tokens == asked


def test_chat_with_a_template_of_ones_own(
    run: Run, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = make_model(metadata={"tokenizer.chat_template": None})
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[-1].content }}", encoding="utf-8")
    command = ["chat", "-m", model, "--temp", "0", "-n", "4", "--json"]
    done = run(*command, "--template", own, stdin="hello\n")
    assert (done.returncode, done.stderr) == (0, "")
    whole = run("generate", "-m", model, "--temp", "0", "-n", "4", "--json", "-p", "hello")
    assert json.loads(done.stdout)["text"] == json.loads(whole.stdout)["text"]
    assert_failed(run(*command, "--template", "none.jinja", stdin="x\n"), 1, "none.jinja")
    assert_failed(run(*command, "--template", "tool_use", stdin="x\n"), 1, "is no template")


def test_inspect_shows_templates_and_sampling(run: Run, make_model: Callable[..., Path]) -> None:
    metadata = {"general.sampling.temp": 0.25, "tokenizer.chat_template.tool_use": "{{ 1 }}"}
    model = make_model(metadata=metadata)
    about = result_of(run("inspect", model, "--json"))
    assert about["sampling"] == {"temperature": 0.25}
    assert about["chat_templates"] == ["default", "tool_use"]
    shown = run("inspect", model).stdout
    assert "temperature 0.25" in shown
    assert "default, tool_use" in shown
    damaged = make_model(metadata={"general.sampling.top_p": 7.0})
    done = run("inspect", damaged, "--json")
    about = json.loads(done.stdout)
    assert about["supported"] is False
    assert (done.returncode, "top_p is 7.0" in done.stderr) == (1, True)
    assert "general.sampling.top_p is 7.0" in about["reason"]
