"""Options that several commands have, and what is made of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any

import typer

from specdec_native.cli.common import usage_errors
from specdec_native.drafters import Drafter, parse_draft
from specdec_native.sampling import SamplingParams

__all__ = [
    "AcceptanceOption",
    "ContextOption",
    "DeviceOption",
    "DraftMaxOption",
    "DraftOption",
    "JsonOption",
    "KvTypeOption",
    "MinPOption",
    "SeedOption",
    "StopOption",
    "TemperatureOption",
    "ThreadsOption",
    "TopKOption",
    "TopPOption",
    "engine_arguments",
    "sampling_params",
]

_DEVICE = re.compile(r"auto|cpu|ref|cuda(:\d+)?")

DraftOption = Annotated[
    list[str] | None,
    typer.Option(
        "-d",
        "--draft",
        metavar="DRAFT",
        help="What drafts tokens: auto (the default: lookup in the text so far), ngram, the path "
        "of a smaller GGUF model of the same family, or none (plain decoding). May be given "
        "several times; asked in order.",
        show_default=False,
    ),
]
DraftMaxOption = Annotated[
    int | None,
    typer.Option(min=1, max=64, metavar="N", help="Most tokens drafted in a round."),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temp", help="0: always the likeliest token. Default: the file's, else 1."),
]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", help="Draw from the K likeliest tokens; 0 is off.")
]
TopPOption = Annotated[
    float | None,
    typer.Option("--top-p", help="Draw from the likeliest tokens that reach this probability."),
]
MinPOption = Annotated[
    float | None,
    typer.Option("--min-p", help="Draw from tokens at least this likely, relative to the first."),
]
SeedOption = Annotated[
    int | None, typer.Option(help="The same seed gives the same text. Default: random.")
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="End before this text. May be given several times.", show_default=False
    ),
]
AcceptanceOption = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="coupled: the text for a seed is that of plain decoding; rejection: more drafts "
        "accepted, the same distribution, but other text.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto or cpu.")]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Default: one per physical core.")
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--ctx", min=2, help="Positions of the context. Default: the trained length, at most 8192."
    ),
]
KvTypeOption = Annotated[
    str, typer.Option("--kv-type", help="Type of the cache: f16, q8_0 or f32.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


def sampling_params(**values: Any) -> SamplingParams:
    """Checked parameters; a wrong one is bad usage."""
    with usage_errors():
        return SamplingParams(**values)


def engine_arguments(
    draft: list[str] | None,
    draft_max: int | None,
    device: str,
    threads: int | None,
    ctx: int | None,
    kv_type: str,
) -> dict[str, Any]:
    """Keyword arguments for `Generator`; what can be checked before loading is checked here."""
    with usage_errors():
        if not _DEVICE.fullmatch(device):
            raise ValueError(f"device is {device!r}; known are auto and cpu")
        if kv_type not in ("f16", "q8_0", "f32"):
            raise ValueError(f"kv-type is {kv_type!r}; known are f16, q8_0 and f32")
        drafters = _drafters(draft or ["auto"], draft_max)
    return {
        "draft": drafters or None,
        "device": device,
        "threads": threads,
        "n_ctx": ctx,
        "kv_type": kv_type,
    }


def _drafters(names: list[str], draft_max: int | None) -> list[Drafter]:
    if "none" in names:
        if len(names) > 1:
            raise ValueError("draft 'none' goes with no other draft")
        return []
    drafters = parse_draft(names)
    if draft_max is None:
        return drafters
    return [replace(one, max_draft=draft_max) for one in drafters]
