"""``specdec chat``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_native.chat import ChatTemplate
from specdec_native.cli.common import (
    figures,
    note,
    print_error,
    print_json,
    reported_errors,
    stats_dict,
    write_text,
)
from specdec_native.cli.option_groups import with_option_groups
from specdec_native.cli.options import (
    EngineOptions,
    JsonOption,
    SamplingOptions,
    logprobs_json,
)
from specdec_native.errors import ContextFullError, Error
from specdec_native.generator import Generator
from specdec_native.models import DEFAULT_MODEL, KNOWN_MODELS, pull
from specdec_native.sampling import SamplingParams
from specdec_native.stream import TokenLogprob

__all__ = ["chat"]

_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


@with_option_groups
def chat(
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="Path of a GGUF file, or a name that was pulled. Default: "
            f"{DEFAULT_MODEL}, which is fetched if it is not here.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A file with a chat template in Jinja's language, or the name of one of the "
            "model's own. Default: the model's.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", min=1, help="Most tokens of an answer.")
    ] = 1000,
    *,
    sampling: SamplingOptions,
    engine: EngineOptions,
    as_json: JsonOption = False,
) -> None:
    """Talks with a model. Reads lines from the terminal, or from a pipe."""
    params = sampling.params(max_tokens, as_json)
    arguments = engine.arguments()
    with reported_errors():
        source = None if template is None else _template_source(template)
        path = model if model is not None else str(pull(DEFAULT_MODEL))
        if model is None or model == DEFAULT_MODEL:
            params = _recommended(params)
        with Generator(path, chat_template=source, **arguments) as generator:
            # A model that cannot chat is told of before the user has typed anything.
            ChatTemplate.from_tokenizer(generator.tokenizer, source)
            _Conversation(generator, params, system, as_json).run()


def _template_source(given: str) -> str:
    """The text of a template's file; what is no file is the name of one of the model's templates.

    Raises:
        OSError: It looks like a file's name, but there is none.
    """
    path = Path(given)
    return path.read_text(encoding="utf-8") if path.is_file() or path.suffix else given


def _recommended(params: SamplingParams) -> SamplingParams:
    """Fills in what the authors of the default model recommend and its file does not say."""
    values = KNOWN_MODELS[DEFAULT_MODEL].sampling
    missing = {name: value for name, value in values.items() if getattr(params, name) is None}
    return replace(params, **missing)  # type: ignore[arg-type]


class _Conversation:
    """The messages so far, and the loop over the user's lines."""

    def __init__(
        self, generator: Generator, params: SamplingParams, system: str | None, as_json: bool
    ) -> None:
        self._generator = generator
        self._params = params
        self._as_json = as_json
        self._interactive = sys.stdin.isatty()
        self._start = [{"role": "system", "content": system}] if system is not None else []
        self._messages = list(self._start)

    def run(self) -> None:
        """Answers line after line."""
        if self._interactive:
            note(_HELP, dim=True)
        lines = self._lines()
        while True:
            try:
                line = next(lines, None)
                if line is None or not self._obey(line):
                    return
            except KeyboardInterrupt:  # came between two lines
                if not self._interactive:
                    raise

    def _obey(self, line: str) -> bool:
        """Carries out a command or answers a message; False to leave."""
        command = line.strip()
        if command == "/exit":
            return False
        if command == "/reset":
            self._messages = list(self._start)
            note("forgotten", dim=True)
        elif command == "/help":
            note(_HELP, dim=True)
        elif command:
            self._messages.append({"role": "user", "content": line})
            self._try_answer()
        return True

    def _try_answer(self) -> None:
        """An answer, or the reason why there is none; a user then may try another message."""
        try:
            self._answer()
        except (Error, KeyboardInterrupt) as error:
            if not self._interactive:
                raise
            if self._messages[-1]["role"] == "user":
                self._messages.pop()
            if isinstance(error, Error):
                print_error(error)

    def _answer(self) -> None:
        """Streams one answer, and keeps it."""
        text = ""
        logprobs: list[TokenLogprob] = []
        stream = self._generator.stream_chat(self._messages, self._params)
        try:
            for chunk in stream:
                text += chunk.text
                logprobs += chunk.logprobs or []
                if not self._as_json:
                    write_text(chunk.text)
        except ContextFullError:
            if not self._forget_oldest():
                raise
            self._answer()
            return
        except KeyboardInterrupt:
            # From a script it means the end; a user only wants to stop this answer.
            if not self._interactive:
                raise
        finally:
            stream.close()
        self._messages.append({"role": "assistant", "content": text})
        if self._as_json:
            reason = stream.finish_reason or "cancelled"
            shown: dict[str, Any] = {
                "text": text,
                "finish_reason": reason,
                "stats": stats_dict(stream.stats),
            }
            if self._params.logprobs is not None:
                shown["logprobs"] = logprobs_json(logprobs)
            print_json(shown)
            return
        write_text("\n")
        if self._interactive:
            cut = " (the context is full)" if stream.finish_reason == "context" else ""
            note(figures(stream.stats) + cut, dim=True)

    def _forget_oldest(self) -> bool:
        """Drops the oldest question and answer; False if there is only the newest question."""
        first = len(self._start)
        if len(self._messages) - first < 3:
            return False
        del self._messages[first : first + 2]
        note("the context is full: the oldest messages were forgotten", dim=True)
        return True

    def _lines(self) -> Iterator[str]:
        """What the user types, line by line, until the end of the input."""
        if not self._interactive:
            for raw in sys.stdin.buffer:
                yield raw.decode("utf-8", "replace").rstrip("\r\n")
            return
        with suppress(ImportError):  # Windows' console has its own line editor
            import readline  # noqa: F401  (gives input() a line editor and a history)
        while True:
            try:
                yield self._ask()
            except EOFError:
                print(file=sys.stderr)
                return
            except KeyboardInterrupt:
                print(file=sys.stderr)
                note(_HELP, dim=True)

    def _ask(self) -> str:
        # input() would write the prompt to a stdout that is no terminal, among the answers.
        if sys.stdout.isatty():
            return input("> ")
        print("> ", end="", file=sys.stderr, flush=True)
        return input()
