"""``specdec bench generate``: drafters beside plain decoding, prompt by prompt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from specdec_native.bench.prompts import BUILT_IN, Prompt
from specdec_native.bench.samples import (
    geometric_mean,
    load_average,
    median,
    median_interval,
    ratio,
)
from specdec_native.chat import ChatTemplate, encode_chat
from specdec_native.drafters import Drafter, drafter_label, parse_draft
from specdec_native.errors import Error, TemplateError
from specdec_native.generator import Generator
from specdec_native.progress import ProgressOption, open_progress
from specdec_native.stats import Stats
from specdec_native.stream import Completion

__all__ = ["DifferentOutputError", "compare_drafters", "first_difference"]

PLAIN = "plain"


class DifferentOutputError(Error, RuntimeError):
    """A drafter changed the text: the figures would mean nothing."""


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two token lists differ, or None."""
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def compare_drafters(
    model: str | os.PathLike[str],
    drafts: Sequence[str | Drafter] = ("auto",),
    *,
    prompts: Sequence[Prompt] = BUILT_IN,
    max_tokens: int = 128,
    repeats: int = 3,
    threads: int | None = None,
    n_ctx: int | None = None,
    device: str = "auto",
    synthetic_acceptance: float | None = None,
    progress: ProgressOption = None,
) -> dict[str, Any]:
    """Generates greedily with each drafter and with none, in turns, and compares the times.

    A speed-up is the median over the turns of plain time by drafted time, each pair measured next
    to each other, so that a machine that gets slower in between counts for both.

    Args:
        model: Path of a GGUF file, or a name known to ``specdec pull``.
        drafts: What to compare, each on its own; see `Generator`.
        prompts: What to answer, by the model's chat template where it has one.
        max_tokens: Tokens of an answer.
        repeats: Turns; the median counts.
        threads: Threads that compute; None: one per physical core.
        n_ctx: Positions of the context.
        device: As for `Generator`.
        synthetic_acceptance: A probability with which each drafted token counts as accepted,
            whatever the target says: the speed at that acceptance. The text is then meaningless,
            so it is neither compared nor shown.
        progress: As for `Generator`.

    Returns:
        What ``specdec bench generate --json`` prints.

    Raises:
        DifferentOutputError: Some text differs from that of plain decoding.
    """
    drafters = [one for draft in drafts for one in parse_draft(draft)]
    names = [PLAIN, *_names(drafters)]
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be at least 1")
    if synthetic_acceptance is not None and not 0.0 <= synthetic_acceptance <= 1.0:
        raise ValueError(f"synthetic_acceptance is {synthetic_acceptance}; it must be 0 to 1")
    with (
        open_progress(progress) as shown,
        Generator(
            model, draft=drafters, threads=threads, n_ctx=n_ctx, device=device, progress=shown
        ) as generator,
    ):
        if synthetic_acceptance is not None:
            generator._synthetic_acceptance = synthetic_acceptance
        results = []
        for index, prompt in enumerate(prompts):
            shown(index / len(prompts), f"answering {prompt.name!r} with each drafter in turn")
            runs = _run_prompt(generator, _encode(generator, prompt), names, max_tokens, repeats)
            if synthetic_acceptance is None:
                _check_same_output(prompt, runs)
            results.append(_prompt_result(prompt, runs))
    return {
        "model": os.fspath(model),
        "contenders": names,
        "prompts": results,
        "overall": _overall(results, names),
        "synthetic_acceptance": synthetic_acceptance,
        "machine": {"load_average": load_average()},
    }


def _names(drafters: Sequence[Drafter]) -> list[str]:
    """A name for each, also where two are alike."""
    names: list[str] = []
    for one in drafters:
        name = drafter_label(one)
        count = sum(known.split(" #")[0] == name for known in names)
        names.append(f"{name} #{count + 1}" if count else name)
    return names


def _encode(generator: Generator, prompt: Prompt) -> list[int]:
    messages = [{"role": "user", "content": prompt.text}]
    try:
        template = ChatTemplate.from_tokenizer(generator.tokenizer)
    except TemplateError:
        return generator.tokenize(prompt.text)
    return encode_chat(generator.tokenizer, template, messages)


def _run_prompt(
    generator: Generator, tokens: list[int], names: list[str], max_tokens: int, repeats: int
) -> dict[str, list[Completion]]:
    """All runs of one prompt; each turn begins with another contender."""
    runs: dict[str, list[Completion]] = {name: [] for name in names}
    for turn in range(repeats):
        order = [(i + turn) % len(names) for i in range(len(names))]
        for place in order:
            with generator._drafting_with(place - 1 if place else None):
                done = generator.generate(tokens, max_tokens=max_tokens, temperature=0)
            runs[names[place]].append(done)
    return runs


def _check_same_output(prompt: Prompt, runs: dict[str, list[Completion]]) -> None:
    expected = runs[PLAIN][0].tokens
    for name, completions in runs.items():
        for one in completions:
            at = first_difference(expected, one.tokens)
            if at is not None:
                raise DifferentOutputError(
                    f"with {name} the answer to {prompt.name!r} differs from that of plain "
                    f"decoding from token {at} on; no times are reported. Please report this."
                )


def _prompt_result(prompt: Prompt, runs: dict[str, list[Completion]]) -> dict[str, Any]:
    contenders = {}
    for name, completions in runs.items():
        ms = _milliseconds_per_token(completions)
        drafted = sum(one.stats.drafted for one in completions)
        accepted = sum(one.stats.accepted for one in completions)
        rounds = sum(one.stats.rounds for one in completions)
        tokens = sum(len(one.tokens) for one in completions)
        contenders[name] = {
            "ms_per_token": ms,
            "tokens_per_second": ratio(1000.0, ms),
            **_speedup(runs[PLAIN], completions),
            # Over all turns: what an adaptive drafter does differs from turn to turn.
            "acceptance_rate": accepted / drafted if drafted else None,
            "tokens_per_round": ratio(tokens, rounds),
        }
    return {"name": prompt.name, "tokens": len(runs[PLAIN][0].tokens), "contenders": contenders}


def _speedup(plain: Sequence[Completion], drafted: Sequence[Completion]) -> dict[str, Any]:
    """The median over the turns, and an interval that holds it with 95 % certainty."""
    pairs = [
        (_decode_time(a.stats), _decode_time(b.stats)) for a, b in zip(plain, drafted, strict=True)
    ]
    ratios = [a / b for a, b in pairs if a is not None and b is not None]
    return {
        "speedup": median(ratios) if ratios else None,
        "speedup_interval": median_interval(ratios),
    }


def _milliseconds_per_token(completions: Sequence[Completion]) -> float | None:
    """The median; None where an answer was too short to be timed."""
    times = [_decode_time(one.stats) for one in completions]
    known = [one for one in times if one is not None]
    return median(known) if known else None


def _decode_time(stats: Stats) -> float | None:
    return 1000.0 / stats.tokens_per_second if stats.tokens_per_second else None


def _overall(results: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """All prompts together: the time of all their tokens, and the mean of their speed-ups."""
    timed = [
        one
        for one in results
        if all(one["contenders"][name]["ms_per_token"] is not None for name in names)
    ]
    totals = {
        name: sum(one["tokens"] * one["contenders"][name]["ms_per_token"] for one in timed)
        for name in names
    }
    tokens = sum(one["tokens"] for one in timed)
    return {
        name: {
            "tokens_per_second": ratio(1000.0 * tokens, ms),
            "speedup": ratio(totals[PLAIN], ms),
            "geometric_mean": geometric_mean([one["contenders"][name]["speedup"] for one in timed]),
        }
        for name, ms in totals.items()
    }
