"""``specdec inspect``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from specdec_native import inspection
from specdec_native.cli.common import print_json, readable_size, reported_errors
from specdec_native.cli.options import ContextOption, JsonOption, ThreadsOption
from specdec_native.drafters import DraftModel
from specdec_native.errors import Error

__all__ = ["inspect"]


def inspect(
    file: Annotated[str, typer.Argument(help="A GGUF file, or a name that was pulled.")],
    draft: Annotated[
        str | None,
        typer.Option("-d", "--draft", help="A smaller model: can it draft for this one?"),
    ] = None,
    ctx: ContextOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Shows what is in a GGUF file, whether it can be run, and the memory it needs.

    With --draft also whether the two fit together, and, from measured passes, what the draft would
    bring. The exit status is 1 where the model cannot be run or the draft does not fit.
    """
    with reported_errors():
        about = inspection.inspect(file, n_ctx=ctx)
        if draft is not None:
            about["draft"] = _about_draft(about, file, draft, ctx, threads)
        if as_json:
            print_json(about)
        else:
            _print_tables(about)
        reason = _reason_against(about)
        if reason is not None:
            raise Error(reason)


def _reason_against(about: dict[str, Any]) -> str | None:
    """Why what was asked about cannot be run; None where it can."""
    if not about["supported"]:
        return str(about["reason"])
    draft = about.get("draft")
    return (
        None
        if draft is None or draft["fits"]
        else f"this draft does not fit: {draft['fits_reason']}"
    )


def _about_draft(
    about: dict[str, Any], file: str, draft: str, ctx: int | None, threads: int | None
) -> dict[str, Any]:
    """What the draft is, whether it fits, the memory of both, and what it would bring."""
    small = inspection.inspect(draft, n_ctx=ctx)
    reasons = [one["reason"] for one in (about, small) if not one["supported"]]
    fits, reason = (False, reasons[0]) if reasons else inspection.vocabularies_fit(file, draft)
    memory = costs = None
    if not reasons:
        memory = inspection.estimate_memory(file, DraftModel(draft), about["n_ctx"])
    if fits:
        # Imported here: it loads both models, which no other use of the command does.
        from specdec_native.bench.prediction import measure_costs

        costs = measure_costs(file, draft, threads=threads)
    return {
        **small,
        "fits": fits,
        "fits_reason": reason,
        "memory_together": memory,
        "costs": costs,
    }


def _print_tables(about: dict[str, Any]) -> None:
    # Imported here: no other command needs tables.
    from rich.console import Console

    console = Console()
    console.print(_table(about))
    draft = about.get("draft")
    if draft is not None:
        console.print(_table(draft))
        console.print(_verdict(draft))
        if draft["costs"]:
            console.print(_prediction(draft["costs"]))


def _table(about: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, title=Text(_clean(about["path"])), title_justify="left")
    for name, value in _rows(about):
        # Text, not markup: names come from the file.
        table.add_row(Text(name, style="bold"), Text(_clean(value)))
    return table


def _rows(about: dict[str, Any]) -> list[tuple[str, str]]:
    heads = about["heads"]
    if about["kv_heads"] != heads:
        heads = f"{heads}, key/value: {about['kv_heads']}"
    types = [
        f"{name}: {entry['count']} ({readable_size(entry['bytes'])})"
        for name, entry in about["tensor_types"].items()
    ]
    supported = "yes" if about["supported"] else f"no: {about['reason']}"
    rows = [
        ("name", about["name"]),
        ("architecture", about["architecture"]),
        ("supported", supported),
        ("file", f"{_size(about)}, GGUF version {about['gguf_version']}"),
        ("parameters", f"{about['parameters'] / 1e6:,.1f} million"),
        ("layers", about["layers"]),
        ("width", about["width"]),
        ("heads", heads),
        ("context", about["context_length"]),
        ("vocabulary", about["vocab_size"]),
        ("tokenizer", about["tokenizer"]),
        ("pre-tokenizer", about["pre_tokenizer"]),
        ("tensors", ", ".join(types)),
        ("chat template", ", ".join(about["chat_templates"]) or "no"),
        ("sampling", ", ".join(f"{name} {value:g}" for name, value in about["sampling"].items())),
    ]
    if about["memory"]:
        rows.append((f"memory at {about['n_ctx']} positions", _memory(about["memory"])))
    return [(name, "-" if value in (None, "") else str(value)) for name, value in rows]


def _memory(memory: dict[str, int]) -> str:
    parts = [
        f"{name.replace('_', ' ')} {readable_size(value)}"
        for name, value in memory.items()
        if value
    ]
    return ", ".join(parts)


def _verdict(draft: dict[str, Any]) -> Any:
    from rich.text import Text

    if not draft["fits"]:
        return Text(f"This draft does not fit: {_clean(draft['fits_reason'])}", style="red")
    together = _memory(draft["memory_together"])
    return Text(f"This draft fits. Memory of both: {together}", style="green")


def _prediction(costs: dict[str, Any]) -> Any:
    from rich.table import Table

    pass_ms = costs["pass_ms"]
    title = (
        f"Expected speed-up: a pass of 1 takes {pass_ms[1]:.2f} ms, of {max(pass_ms)} "
        f"{pass_ms[max(pass_ms)]:.2f} ms, a draft step {costs['draft_ms']:.2f} ms "
        f"({costs['threads']} threads)"
    )
    table = Table(title=title, title_justify="left")
    for name in ("drafts that stand", "best draft length", "speed-up"):
        table.add_column(name, justify="right")
    for one in costs["predictions"]:
        length = str(one["draft_length"]) if one["draft_length"] else "none"
        table.add_row(f"{one['acceptance']:.0%}", length, f"{one['speedup']:.2f}")
    return table


def _size(about: dict[str, Any]) -> str:
    size = readable_size(about["file_size"])
    return size if about["files"] == 1 else f"{size} in {about['files']} files"


def _clean(text: str) -> str:
    """Without control characters, which could reprogram a terminal."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
