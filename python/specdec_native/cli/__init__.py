"""The command line, ``specdec``: one module per command, shared parts in `common` and `options`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from specdec_native import __version__
from specdec_native.cli.bench import bench_app
from specdec_native.cli.chat import chat
from specdec_native.cli.common import DEBUG_VARIABLE
from specdec_native.cli.convert import convert
from specdec_native.cli.generate import generate
from specdec_native.cli.inspect import inspect
from specdec_native.cli.layers import layers
from specdec_native.cli.pull import pull
from specdec_native.cli.quantize import quantize

__all__ = ["app", "main"]

app = typer.Typer(
    name="specdec",
    help="Runs GGUF models with speculative decoding; the text is that of ordinary decoding.",
    epilog="Start with: specdec chat",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"specdec_native {__version__}")
        raise typer.Exit


@app.callback()
def _main_options(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help=f"Show the traceback of an error; so does {DEBUG_VARIABLE}=1."
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


app.command(epilog="Example: specdec pull smollm2-135m")(pull)
app.command(epilog='Example: specdec generate -m model.gguf -p "Once upon a time" -n 100')(generate)
app.command(epilog='Example: specdec chat --system "Answer in one sentence."')(chat)
app.command(epilog="Example: specdec inspect model.gguf --draft small.gguf")(inspect)
app.command(epilog="Example: specdec convert HF_DIR model.gguf --type q4_k_m")(convert)
app.command(epilog="Example: specdec layers -m model.gguf layers.json")(layers)
app.command(epilog="Example: specdec quantize model.gguf small.gguf --type q4_k")(quantize)
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Runs the command line and leaves with its exit code."""
    # Ended politely, a pull still removes its half-fetched file.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        # A model writes any character; one that the terminal cannot show is no reason to stop.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="specdec")
