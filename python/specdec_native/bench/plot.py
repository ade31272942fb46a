"""The chart of ``specdec bench generate --plot``; the only place that needs matplotlib."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

__all__ = ["check_plotting", "plot_speedups"]


def check_plotting() -> None:
    """Says at once, rather than after minutes of measuring, that matplotlib is missing.

    Raises:
        ValueError: It is; the message says how to install it.
    """
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ValueError(
            "a plot needs matplotlib; run: pip install 'specdec_native[bench]'"
        ) from None


def plot_speedups(result: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Draws the speed-up of each drafter on each prompt as grouped bars.

    Args:
        result: What `compare_drafters` returned.
        path: The picture to write; its ending says in which format.
    """
    figure_class = importlib.import_module("matplotlib.figure").Figure
    names = [name for name in result["contenders"] if name != "plain"]
    groups = [(one["name"], one["contenders"]) for one in result["prompts"]]
    groups.append(("all", result["overall"]))
    figure = figure_class(figsize=(2 + 1.2 * len(groups), 4), layout="constrained")
    axes = figure.add_subplot()
    thickness = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        places = [i + (index - (len(names) - 1) / 2) * thickness for i in range(len(groups))]
        heights = [contenders[name]["speedup"] or 0.0 for _, contenders in groups]
        axes.bar(places, heights, thickness, label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups])
    axes.set_ylabel("tokens per second, plain decoding = 1")
    axes.set_title(Path(result["model"]).name)
    axes.legend()
    figure.savefig(path)
    return Path(path)
