"""One running request as an iterator of chunks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_native.closing import Closing
from specdec_native.stats import Stats, stats_from
from specdec_native.text import IncrementalDetokenizer, StopMatcher

if TYPE_CHECKING:
    from specdec_native import _core
    from specdec_native.generator import Generator
    from specdec_native.sampling import ResolvedParams

__all__ = ["Chunk", "Completion", "Stream", "TokenLogprob"]

_TARGET = "target"


@dataclass(frozen=True)
class TokenLogprob:
    """What the target itself thought of a token, before any filter or penalty.

    The natural log-softmax of the raw logits; the same numbers, bit for bit, with drafting and
    without.

    Attributes:
        token: The token's id.
        logprob: Its natural log-probability.
        top: ``(id, log-probability)`` of the likeliest tokens, best first, ties by the lower id.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Chunk:
    """What one round brought.

    Attributes:
        text: Text that is now certain; may be empty while bytes of a character or the start of a
            stop string are held back. The texts of all chunks join to the whole text.
        tokens: The round's tokens, the stop token and the token that completed a stop string
            included.
        sources: For each token ``"target"``, or the name of the drafter that proposed it.
        logprobs: For each token its log-probability; None if not asked for.
    """

    text: str
    tokens: list[int]
    sources: list[str]
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True)
class Completion:
    """A whole result.

    Attributes:
        text: The text, cut before a stop string.
        tokens: All tokens, the stop token and the token that completed a stop string included.
        finish_reason: ``"stop"``, ``"length"``, ``"context"`` or ``"cancelled"``.
        sources: For each token ``"target"``, or the name of the drafter that proposed it.
        stats: Counts and times.
        logprobs: For each token its log-probability; None if not asked for.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    sources: list[str]
    stats: Stats
    logprobs: list[TokenLogprob] | None = None


class Stream(Closing, Iterator[Chunk]):
    """An iterator of `Chunk`; starts working at the first `next`.

    Leaving it early is fine: closing it (or dropping the last reference) ends the request, and the
    generator is free again; from another thread, too, which waits for one layer of the running pass
    at most. After the last chunk `finish_reason` and `stats` are set; ``"cancelled"`` if it was
    closed before its end. Several threads may take chunks from one stream: they take turns.
    """

    def __init__(
        self,
        generator: Generator,
        prompt: Sequence[int],
        params: ResolvedParams,
        stop_tokens: frozenset[int],
    ) -> None:
        """Prepares a request; use `Generator.stream`."""
        self._generator = generator
        self._prompt = list(prompt)
        self._params = params
        self._stop_tokens = stop_tokens
        self._detokenizer = IncrementalDetokenizer(
            generator.tokenizer, previous_token=self._prompt[-1] if self._prompt else None
        )
        self._stops = StopMatcher(params.stop)
        self._lock = threading.Lock()  # held while a chunk is being made, or the end
        self._core: _core.Generator | None = None  # while the request runs
        self._generated = 0
        self._closed = False
        self.finish_reason: str | None = None
        self.stats: Stats | None = None

    def __iter__(self) -> Stream:
        """Returns itself."""
        return self

    def __next__(self) -> Chunk:
        """Runs rounds until one brings tokens.

        Raises:
            BusyError: Another stream of this generator is not finished.
            ContextFullError: The prompt does not fit.
        """
        with self._lock:
            if self._closed:
                raise StopIteration
            try:
                if self._core is None:
                    self._core = self._generator._start(self, self._prompt, self._params)
                return self._next_chunk(self._core)
            except BaseException:  # KeyboardInterrupt too: the generator stays usable
                self._end("cancelled")
                raise

    def _next_chunk(self, core: _core.Generator) -> Chunk:
        """Steps until a round brings tokens or the end."""
        while True:
            result = core.step()
            if result.tokens or result.finish_reason is not None:
                return self._chunk(core, result)

    def _chunk(self, core: _core.Generator, result: _core.StepResult) -> Chunk:
        """The chunk of a step that brought tokens or the end."""
        tokens: list[int] = []
        text = ""
        reason = result.finish_reason
        for token in result.tokens:
            tokens.append(token)
            if token in self._stop_tokens:
                continue
            released, matched = self._stops.push(self._detokenizer.push([token]))
            text += released
            if matched:
                core.cut_output(self._generated + len(tokens), "stop")
                reason = "stop"
                break
        self._generated += len(tokens)
        if reason is not None:
            text += self._finish(reason)
        sources = [result.source if i < result.drafted else _TARGET for i in range(len(tokens))]
        return Chunk(text, tokens, sources, self._logprobs(tokens, result))

    def _logprobs(self, tokens: list[int], result: _core.StepResult) -> list[TokenLogprob] | None:
        """Of the tokens that are kept of a step."""
        if self._params.logprobs is None:
            return None
        return [
            TokenLogprob(token, logprob, top)
            for token, (logprob, top) in zip(tokens, result.logprobs, strict=False)
        ]

    def _finish(self, reason: str) -> str:
        """Ends the request; returns the text still held back."""
        released, matched = self._stops.push(self._detokenizer.flush())
        rest = released + self._stops.flush()
        self._end("stop" if matched else reason)
        return rest

    def _end(self, reason: str) -> None:
        """Gives the engine back; the caller holds the lock."""
        if self._closed:
            return
        self._closed = True
        self.finish_reason = reason
        if self._core is not None:
            self.stats = stats_from(self._core.stats(), self._params.seed)
            self._core = None
            self._generator._finish()

    def close(self) -> None:
        """Ends the request if it still runs, and frees the generator."""
        core = self._core
        if core is not None and not self._closed:
            core.cancel()  # a pass that another thread is in ends at its next layer
        with self._lock:
            self._end("cancelled")

    def __del__(self) -> None:
        """Closes the stream when the last reference goes."""
        if not getattr(self, "_closed", True):
            self.close()

    def result(self) -> Completion:
        """Runs to the end and returns everything as one."""
        text: list[str] = []
        tokens: list[int] = []
        sources: list[str] = []
        logprobs: list[TokenLogprob] | None = None if self._params.logprobs is None else []
        for chunk in self:
            text.append(chunk.text)
            tokens += chunk.tokens
            sources += chunk.sources
            if logprobs is not None:
                logprobs += chunk.logprobs or []
        if self.stats is None or self.finish_reason is None:
            raise ValueError("the stream was closed before it began; there is no result")
        return Completion("".join(text), tokens, self.finish_reason, sources, self.stats, logprobs)
