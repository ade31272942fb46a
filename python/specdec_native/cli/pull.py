"""``specdec pull``."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_native import models
from specdec_native.cli.common import note, print_json, reported_errors
from specdec_native.cli.options import JsonOption

__all__ = ["pull"]

_KNOWN = "; ".join(f"{one.name} ({one.about})" for one in models.KNOWN_MODELS.values())


def pull(
    name: Annotated[
        str,
        typer.Argument(
            help=f"A known model, or OWNER/REPO[:FILE] on the Hugging Face hub. Known: {_KNOWN}.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Fetches a model file, checks it, and keeps it in the user's cache folder."""
    with reported_errors():
        path = models.pull(name)
        if as_json:
            print_json({"name": name, "path": str(path), "size": path.stat().st_size})
            return
        known = models.KNOWN_MODELS.get(name)
        if known is not None:
            note(f"{known.about}; licence {known.licence}", dim=True)
        print(path)
