"""``specdec bench``: passes, compare, generate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_native.bench import tables
from specdec_native.bench.compare import compare_with_peer
from specdec_native.bench.generating import compare_drafters
from specdec_native.bench.passes import LEAST_REPEATS, check_counts, measure_passes
from specdec_native.bench.plot import check_plotting, plot_speedups
from specdec_native.bench.prompts import BUILT_IN, read_prompts
from specdec_native.cli.common import note, print_json, reported_errors, usage_errors
from specdec_native.cli.options import (
    ContextOption,
    DraftMaxOption,
    EngineOptions,
    JsonOption,
    KvTypeOption,
    ThreadsOption,
    check_kv_type,
)

__all__ = ["bench_app"]

bench_app = typer.Typer(
    name="bench",
    help="Measures passes and drafters, beside the limits of the machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_ModelOption = Annotated[
    str, typer.Option("-m", "--model", help="Path of a GGUF file, or a name that was pulled.")
]
_WidthsOption = Annotated[
    str, typer.Option(metavar="1,2,4", help="Tokens of a pass; logits for each.")
]


@bench_app.command(epilog="Example: specdec bench passes -m model.gguf --widths 1,8 --profile")
def passes(
    model: _ModelOption,
    widths: _WidthsOption = "1,2,4,8,16",
    depth: Annotated[
        str, typer.Option(metavar="64,1024", help="Tokens in the cache before the pass.")
    ] = "64",
    threads: ThreadsOption = None,
    device: Annotated[str, typer.Option(help="cpu, or ref (the slow reference).")] = "cpu",
    kv_type: KvTypeOption = "f16",
    repeats: Annotated[
        int, typer.Option(min=LEAST_REPEATS, help="Passes of each width; the median counts.")
    ] = LEAST_REPEATS,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also show where the time of a pass goes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Times verify passes of each width. First checks that all widths give the same bytes."""
    with usage_errors():
        if device not in ("cpu", "ref"):
            raise ValueError(f"device is {device!r}; known are cpu and ref")
        check_kv_type(kv_type)
        wanted = check_counts("widths", _numbers("widths", widths), 1, 512)
        depths = check_counts("depth", _numbers("depth", depth), 0, 2**20)
    with reported_errors():
        result = measure_passes(
            model,
            wanted,
            depths,
            threads=threads,
            device=device,
            kv_type=kv_type,
            repeats=repeats,
            profile=profile,
        )
        _show(result, tables.passes_report(result), as_json)


@bench_app.command(epilog="Example: specdec bench compare --peer ~/llama.cpp/build -m model.gguf")
def compare(
    model: _ModelOption,
    peer: Annotated[str, typer.Option(metavar="DIR", help="The folder of a llama-bench.")],
    widths: _WidthsOption = "1,8,16",
    prefill: Annotated[int, typer.Option(min=0, help="Tokens of a prefill; 0: none.")] = 512,
    threads: ThreadsOption = None,
    kv_type: KvTypeOption = "f16",
    rounds: Annotated[int, typer.Option(min=1, help="How often the two take turns.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Times passes and a prefill beside those of llama-bench on the same file, in turns."""
    with usage_errors():
        check_kv_type(kv_type)
        wanted = check_counts("widths", _numbers("widths", widths), 1, 512)
    with reported_errors():
        result = compare_with_peer(
            model,
            peer,
            widths=wanted,
            prefill=prefill,
            threads=threads,
            kv_type=kv_type,
            rounds=rounds,
        )
        _show(result, tables.compare_report(result), as_json)


@bench_app.command(epilog="Example: specdec bench generate -m model.gguf -d ngram -d small.gguf")
def generate(
    model: _ModelOption,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            "-d",
            "--draft",
            metavar="DRAFT",
            help="A drafter to compare: auto (the default: suffix), ngram, or the path of a "
            "smaller GGUF model. May be given several times; each is measured on its own.",
            show_default=False,
        ),
    ] = None,
    draft_max: DraftMaxOption = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Prompts with --- lines between them, or .jsonl with {"name", "prompt"}. '
            "Default: ten of our own.",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", min=2, help="Most tokens of an answer.")
    ] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Turns; the median counts.")] = 3,
    threads: ThreadsOption = None,
    ctx: ContextOption = None,
    synthetic_acceptance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Accept each drafted token with this probability, whatever the target says: the "
            "speed at that acceptance. The text is then meaningless.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Also draw the speed-ups.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compares drafters with plain decoding, in turns. Refuses if any answer differs."""
    with usage_errors():
        if plot is not None:
            check_plotting()
    # The same rules for -d as elsewhere; all of them are contenders here.
    drafts = EngineOptions(draft, draft_max, threads=threads, ctx=ctx).arguments()["draft"]
    with reported_errors():
        result = compare_drafters(
            model,
            drafts or [],
            prompts=BUILT_IN if prompts is None else read_prompts(prompts),
            max_tokens=max_tokens,
            repeats=repeats,
            threads=threads,
            n_ctx=ctx,
            synthetic_acceptance=synthetic_acceptance,
        )
        _show(result, tables.generate_report(result), as_json)
        if plot is not None:
            note(f"wrote {plot_speedups(result, plot)}")


def _numbers(name: str, text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise ValueError(f"{name} is {text!r}; it must be whole numbers and commas: 1,2,4")
    return [int(one) for one in text.split(",")]


def _show(result: dict[str, Any], report: str, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print(report, flush=True)
