"""``specdec layers``."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_native.cli.common import print_json, reported_errors
from specdec_native.cli.options import JsonOption, ThreadsOption
from specdec_native.layer_search import search_layers

__all__ = ["layers"]


def layers(
    model: Annotated[
        str, typer.Option("-m", "--model", metavar="MODEL", help="The target's GGUF file, or name.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT.json", help="The file to write.")],
    tokens: Annotated[int, typer.Option(min=2, help="Generated per text and subset.")] = 24,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Searches once for the layers of a model that draft best for it: -d layerskip:OUT.json."""
    with reported_errors():
        found = search_layers(model, tokens=tokens, threads=threads)
        found.draft.save(out)
        if as_json:
            print_json(
                {
                    "path": out,
                    "layers": found.draft.layers,
                    "max_draft": found.draft.max_draft,
                    "acceptance": found.acceptance,
                    "speedup": found.speedup,
                    "tried": found.tried,
                }
            )
            return
        chosen = ",".join(str(one) for one in _listed(found.draft.layers))
        print(
            f"{out}: layers {chosen}, {found.draft.max_draft} tokens a round; "
            f"{found.acceptance:.0%} of single drafts accepted, {found.speedup:.2f} x plain "
            "decoding expected"
        )


def _listed(layers: object) -> list[int]:
    return list(layers) if isinstance(layers, tuple) else []
