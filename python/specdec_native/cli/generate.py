"""``specdec generate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specdec_native.cli.common import (
    figures,
    note,
    print_json,
    reported_errors,
    stats_dict,
    usage_errors,
    write_text,
)
from specdec_native.cli.option_groups import with_option_groups
from specdec_native.cli.options import (
    EngineOptions,
    JsonOption,
    SamplingOptions,
    logprobs_json,
)
from specdec_native.generator import Generator
from specdec_native.stream import Stream

__all__ = ["generate"]


@with_option_groups
def generate(
    model: Annotated[
        str, typer.Option("-m", "--model", help="Path of a GGUF file, or a name that was pulled.")
    ],
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The text to go on.")] = None,
    file: Annotated[
        str | None,
        typer.Option("-f", "--file", help="A file with that text; - is the standard input."),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="1,2,3", help="The prompt as token ids instead.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", min=0, help="Most tokens to generate.")
    ] = 200,
    *,
    sampling: SamplingOptions,
    engine: EngineOptions,
    as_json: JsonOption = False,
) -> None:
    """Continues a text. Drafting makes it faster and never changes it."""
    params = sampling.params(max_tokens, as_json)
    arguments = engine.arguments()
    given = _given_prompt(prompt, file, ids)
    with reported_errors():
        start = given if isinstance(given, list) else _read(given)
        with Generator(model, **arguments) as generator:
            tokens = generator.tokenize(start) if isinstance(start, str) else start
            stream = generator.stream(tokens, params)
            if as_json:
                _print_result(stream, tokens)
            else:
                _print_text(stream)


def _given_prompt(prompt: str | None, file: str | None, ids: str | None) -> str | Path | list[int]:
    """The prompt as text, as a file to read (``-``: stdin), or as token ids."""
    with usage_errors():
        if sum(one is not None for one in (prompt, file, ids)) != 1:
            raise ValueError("give the prompt with one of -p TEXT, -f FILE and --ids 1,2,3")
        if ids is not None:
            return _parse_ids(ids)
    return prompt if prompt is not None else Path(file or "")


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise ValueError(f"ids is {text!r}; it must be whole numbers and commas: 1,2,3") from None


def _read(given: str | Path) -> str:
    if isinstance(given, str):
        return given
    data = sys.stdin.buffer.read() if given == Path("-") else given.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = "the standard input" if given == Path("-") else str(given)
        raise ValueError(f"{where} is not UTF-8 text: byte {error.start} is wrong") from None


def _print_text(stream: Stream) -> None:
    ended = False  # whether the output ends with a line end
    for chunk in stream:
        write_text(chunk.text)
        ended = chunk.text.endswith("\n") if chunk.text else ended
    if not ended:
        write_text("\n")
    if sys.stderr.isatty():
        note(figures(stream.stats), dim=True)


def _print_result(stream: Stream, prompt: list[int]) -> None:
    result = stream.result()
    shown = {
        "text": result.text,
        "tokens": result.tokens,
        "prompt_tokens": prompt,
        "finish_reason": result.finish_reason,
        "sources": result.sources,
        "stats": stats_dict(result.stats),
    }
    if result.logprobs is not None:
        shown["logprobs"] = logprobs_json(result.logprobs)
    print_json(shown)
