"""Options that several commands have, and what is made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import typer

from specdec_native.cli.common import usage_errors
from specdec_native.device_arguments import DEVICE_NUMBER
from specdec_native.drafters import Drafter, DraftModel, parse_draft
from specdec_native.sampling import Acceptance, SamplingParams
from specdec_native.stream import TokenLogprob

__all__ = [
    "ContextOption",
    "DraftMaxOption",
    "EngineOptions",
    "JsonOption",
    "KvTypeOption",
    "SamplingOptions",
    "SplitSizeOption",
    "ThreadsOption",
    "logprobs_json",
]

_DEVICE = re.compile("auto|cpu|ref|cuda" + DEVICE_NUMBER)

DraftOption = Annotated[
    list[str] | None,
    typer.Option(
        "-d",
        "--draft",
        metavar="DRAFT",
        help="What drafts tokens: auto (the default: suffix), suffix or ngram (lookup in the text "
        "so far), the path of a smaller GGUF model of the same family, layerskip:N (N of the "
        "model's own layers; layerskip:0,1,5 says which), medusa:PATH or eagle:PATH (drafting "
        "heads), or none (plain decoding). May be given several times; what pays is chosen round "
        "by round.",
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
TypicalPOption = Annotated[
    float | None,
    typer.Option("--typical-p", help="Draw from tokens that are as surprising as expected."),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Makes tokens of the prompt and the answer less likely; 1 is off."),
]
PresencePenaltyOption = Annotated[
    float | None, typer.Option(help="Makes tokens of the answer less likely; 0 is off.")
]
FrequencyPenaltyOption = Annotated[
    float | None, typer.Option(help="The same for each time that the token came; 0 is off.")
]
LogitBiasOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID=VALUE",
        help="Adds VALUE to the logit of token ID; -inf: never. May be given several times.",
        show_default=False,
    ),
]
LogprobsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With --json: the log-probability of each token and of the N likeliest.",
    ),
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
DeviceOption = Annotated[
    str, typer.Option(help="auto (the CPU), cpu, cuda or cuda:N; ref is the slow reference.")
]
DraftDeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="Where a draft model runs. Default: with the target.",
        show_default=False,
    ),
]
SplitSizeOption = Annotated[
    str | None,
    typer.Option(
        "--split-size",
        metavar="SIZE",
        help="Largest size of a file, such as 2G or 500M; a larger model is split.",
        show_default=False,
    ),
]
GpuLayersOption = Annotated[
    int | None,
    typer.Option(
        "--gpu-layers",
        metavar="N",
        help="With --device cuda: the first N layers run there, the others on the CPU; -1: all.",
        show_default=False,
    ),
]
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


def check_kv_type(kv_type: str) -> None:
    """Raises ValueError for a type that no cache has."""
    if kv_type not in ("f16", "q8_0", "f32"):
        raise ValueError(f"kv-type is {kv_type!r}; known are f16, q8_0 and f32")


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn, and where the text ends."""

    temp: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    min_p: MinPOption = None
    typical_p: TypicalPOption = None
    repetition_penalty: RepetitionPenaltyOption = None
    presence_penalty: PresencePenaltyOption = None
    frequency_penalty: FrequencyPenaltyOption = None
    logit_bias: LogitBiasOption = None
    seed: SeedOption = None
    stop: StopOption = None
    acceptance: AcceptanceOption = "coupled"
    logprobs: LogprobsOption = None

    def params(self, max_tokens: int, as_json: bool) -> SamplingParams:
        """Checked parameters; a wrong one is bad usage."""
        with usage_errors():
            if self.logprobs is not None and not as_json:
                raise ValueError("logprobs are part of the JSON output; give --json as well")
            return SamplingParams(
                max_tokens=max_tokens,
                temperature=self.temp,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                typical_p=self.typical_p,
                repetition_penalty=self.repetition_penalty,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=_biases(self.logit_bias or []),
                seed=self.seed,
                stop=self.stop or (),
                acceptance=cast(Acceptance, self.acceptance),
                logprobs=self.logprobs,
            )


@dataclass(frozen=True)
class EngineOptions:
    """What computes, and what drafts."""

    draft: DraftOption = None
    draft_max: DraftMaxOption = None
    device: DeviceOption = "auto"
    gpu_layers: GpuLayersOption = None
    draft_device: DraftDeviceOption = None
    threads: ThreadsOption = None
    ctx: ContextOption = None
    kv_type: KvTypeOption = "f16"

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `Generator`; what can be checked before loading is checked here."""
        with usage_errors():
            for device in (self.device, self.draft_device or "auto"):
                if not _DEVICE.fullmatch(device):
                    raise ValueError(f"device is {device!r}; known are auto, cpu, cuda and cuda:N")
            if self.gpu_layers is not None and not self.device.startswith("cuda"):
                raise ValueError("gpu-layers goes with --device cuda")
            check_kv_type(self.kv_type)
            drafters = _drafters(self.draft or ["auto"], self.draft_max, self.draft_device)
        return {
            "draft": drafters or None,
            "device": self.device,
            "gpu_layers": self.gpu_layers,
            "threads": self.threads,
            "n_ctx": self.ctx,
            "kv_type": self.kv_type,
        }


def logprobs_json(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities for JSON, which has no -infinity: null."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return [
        {
            "token": one.token,
            "logprob": number(one.logprob),
            "top": [[token, number(value)] for token, value in one.top],
        }
        for one in logprobs
    ]


def _biases(given: list[str]) -> dict[int, float]:
    """The logit bias of ``ID=VALUE`` texts."""
    found: dict[int, float] = {}
    for text in given:
        match = re.fullmatch(r"(\d{1,10})=(\S+)", text)
        try:
            token, value = int(match[1]) if match else -1, float(match[2]) if match else 0.0
        except ValueError:
            token = -1
        if token < 0:
            raise ValueError(f"logit-bias is {text!r}; it must be ID=VALUE, such as 42=-1.5")
        if token in found:
            raise ValueError(f"logit-bias is given twice for token {token}")
        found[token] = value
    return found


def _drafters(
    names: list[str], draft_max: int | None, draft_device: str | None = None
) -> list[Drafter]:
    if "none" in names:
        if len(names) > 1:
            raise ValueError("draft 'none' goes with no other draft")
        if draft_device is not None:
            raise ValueError("draft-device is given, but draft is 'none'")
        return []
    drafters = parse_draft(names)
    if draft_device is not None:
        if not any(isinstance(one, DraftModel) for one in drafters):
            raise ValueError("draft-device is given, but no draft model: add --draft PATH")
        drafters = [
            replace(one, device=draft_device) if isinstance(one, DraftModel) else one
            for one in drafters
        ]
    if draft_max is None:
        return drafters
    return [replace(one, max_draft=draft_max) for one in drafters]
