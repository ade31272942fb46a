"""The results of the benches as plain text tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["compare_report", "generate_report", "passes_report", "table"]


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns with two spaces between; the first is text, the others are aligned to the right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _head(result: dict[str, Any]) -> str:
    return f"{result['model']}, {result['isa']}, {result['threads']} threads"


def _limits(result: dict[str, Any]) -> str:
    limits, machine = result["limits"], result["machine"]
    lines = [
        f"limits   read {limits['read_gbps']:.1f} GB/s "
        f"(1 thread {limits['read_gbps_1_thread']:.1f}, best {limits['read_gbps_best']:.1f}), "
        f"int8 {limits['int8_gmacs']:.0f} GMAC/s "
        f"(1 thread {limits['int8_gmacs_1_thread']:.0f}, best {limits['int8_gmacs_best']:.0f})"
    ]
    if machine["disturbance"] is not None:
        load = machine["load_average"]
        tail = "" if load is None else f", load average {load:.1f}"
        lines.append(f"machine  medians are {machine['disturbance']:.2f} x the fastest{tail}")
    return "\n".join(lines)


def passes_report(result: dict[str, Any]) -> str:
    """The table of ``specdec bench passes``."""
    types = ", ".join(
        f"{one['type']} {one['bytes'] / 1e6:.1f} MB"
        for one in sorted(result["weights"], key=lambda one: -one["bytes"])
    )
    header = ("depth", "width", "ms", "ratio", "fastest", "p90", "GB/s", "of read", "GMAC/s")
    rows = [
        (
            one["depth"],
            one["width"],
            _number(one["ms"], 3),
            _number(one["ratio"]),
            _number(one["min_ms"], 3),
            _number(one["p90_ms"], 3),
            _number(one["gbps"], 1),
            _percent(one["share_of_read"]),
            _number(one["gmacs"], 1),
            _percent(one["share_of_int8"]),
        )
        for one in result["passes"]
    ]
    parts = [_head(result), f"weights  {types}", _limits(result)]
    parts += ["", table((*header, "of int8"), rows)]
    for one in result.get("profile", ()):
        parts += ["", _profile(one)]
    return "\n".join(parts)


def _profile(profile: dict[str, Any]) -> str:
    title = f"pass of {profile['width']} at depth {profile['depth']}: {profile['ms']:.3f} ms"
    rows = [
        (
            " ".join(filter(None, (one["op"], one["types"]))),
            _number(one["calls"], 0),
            _number(one["ms"], 3),
            _percent(one["share"]),
            _number(one["gbps"], 1),
            _number(one["gmacs"], 1),
        )
        for one in profile["ops"]
    ]
    return f"{title}\n{table(('op', 'calls', 'ms', 'share', 'GB/s', 'GMAC/s'), rows)}"


def compare_report(result: dict[str, Any]) -> str:
    """The table of ``specdec bench compare``."""
    rows = [
        (
            one["what"],
            _number(one["ours_ms"], 3),
            _number(one["peer_ms"], 3),
            _number(one["ours_by_peer"]),
            one["peer_test"],
        )
        for one in result["rows"]
    ]
    build = f" {result['peer']['build']}" if result["peer"]["build"] else ""
    lines = [
        _head(result),
        f"peer     {result['peer']['path']}{build}",
        _limits(result),
        "",
        table(("", "ours, ms", "llama-bench, ms", "ours / theirs", "its test"), rows),
    ]
    return "\n".join(lines)


def generate_report(result: dict[str, Any]) -> str:
    """The table of ``specdec bench generate``."""
    rows = []
    for prompt in result["prompts"]:
        for name, one in prompt["contenders"].items():
            interval = one["speedup_interval"]
            rows.append(
                (
                    f"{prompt['name']}, {name}",
                    prompt["tokens"],
                    _number(one["tokens_per_second"], 1),
                    _number(one["speedup"]),
                    "" if interval is None else " to ".join(_number(end) for end in interval),
                    _percent(one["acceptance_rate"]),
                    _number(one["tokens_per_round"]),
                )
            )
    for name, one in result["overall"].items():
        speed = _number(one["tokens_per_second"], 1)
        rows.append((f"all, {name}", "", speed, _number(one["speedup"]), "", "", ""))
        rows.append((f"geometric mean, {name}", "", "", _number(one["geometric_mean"]), "", "", ""))
    header = ("", "tokens", "tokens/s", "speed-up", "95 %", "accepted", "tokens/round")
    if result["synthetic_acceptance"] is None:
        said = "all answers equal those of plain decoding"
    else:
        share = _percent(result["synthetic_acceptance"])
        said = f"{share} of drafted tokens accepted whatever they are: speeds, not answers"
    return f"{result['model']}: {said}\n\n{table(header, rows)}"
