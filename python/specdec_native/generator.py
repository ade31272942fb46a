"""The Generator: a target model, its drafters and one running text."""

from __future__ import annotations

import operator
import os
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from specdec_native import _core
from specdec_native.chat import ChatTemplate, encode_chat
from specdec_native.closing import Closing
from specdec_native.defaults import MAX_DEFAULT_CONTEXT, PREFILL_CHUNK
from specdec_native.drafter_building import build_drafter
from specdec_native.drafters import Drafter, DraftModel, parse_draft
from specdec_native.errors import (
    BusyError,
    ContextFullError,
    OutputError,
    naming_file,
)
from specdec_native.models import resolve_model
from specdec_native.placement import Devices, Place, same_device
from specdec_native.progress import Progress, ProgressOption, open_progress
from specdec_native.sampling import (
    ResolvedParams,
    SamplingParams,
    merge_params,
    recommended_in,
)
from specdec_native.stream import Completion, Stream
from specdec_native.text import Tokenizer, Vocabulary

__all__ = ["Generator"]

_LOGIT_ROWS = 64  # rows with logits per pass: bounds the scratch memory

Message = Mapping[str, Any]


class Generator(Closing):
    """Generates text with speculative decoding; the output is that of ordinary decoding.

    One request runs at a time; a second one, from this or another thread, is a `BusyError`.

    Example:
        >>> with sd.Generator("target.gguf", draft="ngram") as gen:  # doctest: +SKIP
        ...     for chunk in gen.stream("Once upon a time", max_tokens=50, temperature=0):
        ...         print(chunk.text, end="", flush=True)
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        draft: str | os.PathLike[str] | Drafter | Sequence[str | Drafter] | None = "auto",
        n_ctx: int | None = None,
        device: str = "auto",
        gpu_layers: int | None = None,
        threads: int | None = None,
        kv_type: str = "f16",
        chat_template: str | None = None,
        progress: ProgressOption = None,
    ) -> None:
        """Loads a target and its drafters, and checks that they fit together.

        Args:
            model: Path of a GGUF file, or a name known to ``specdec pull``.
            draft: None (plain decoding), ``"auto"`` (``"suffix"``), ``"suffix"``, ``"ngram"``,
                ``"layerskip:N"``, a path to a GGUF draft model, a drafter object, or a list of
                these. A controller weighs them against each other and against plain decoding,
                round by round; those with ``adaptive=False`` are asked in order where nothing else
                pays.
            n_ctx: Positions of the context; None: the trained length, at most 8192.
            device: ``"auto"`` (today the CPU), ``"cpu"``, ``"cuda"`` or ``"cuda:N"``; ``"ref"`` is
                the slow reference in double precision.
            gpu_layers: Only so many of the first layers run on the device, the others and the
                output head on the CPU; the text is the same. None, -1 or more than there are:
                everything.
            threads: Threads that compute; None: one per physical core.
            kv_type: Type of the key/value cache: ``"f16"``, ``"f32"``, or ``"q8_0"``, which takes
                half the memory of f16 and needs heads of a multiple of 32.
            chat_template: What `chat` uses: a template in Jinja's language, or the name of one in
                the file (``tokenizer.chat_template.NAME``). None: the file's.
            progress: None: a bar if stderr is a terminal; True; False; or a callback that gets the
                fraction done and a text.

        Raises:
            GgufError: A file is damaged or not supported.
            IncompatibleModelsError: A draft model has another vocabulary.
            BackendUnavailableError: The device is not to be had.
            OutOfMemoryError: The device has too little memory; says how many layers would fit.
            FileNotFoundError: No such file or model name.
        """
        wanted = parse_draft(draft)
        self._slot = threading.Lock()  # held while a request runs
        # Weak, so that dropping the last reference to a stream ends its request.
        self._active: weakref.ref[Stream] | None = None
        self._synthetic_acceptance = -1.0  # off; set by the bench alone
        self._devices = Devices(threads)
        place = self._devices.place(device, gpu_layers)
        with open_progress(progress) as shown:
            target = self._load_model(model, "target", place, n_ctx, kv_type, shown)
            metadata = target.file.metadata
            with naming_file(target.file.path):
                self.tokenizer = Tokenizer(Vocabulary.from_metadata(metadata))
                self._recommended = recommended_in(metadata)
            self._chat_template = chat_template
            self._templates: dict[bool, ChatTemplate] = {}
            self._n_ctx = _context_length(n_ctx, target.trained_context)
            self._drafters = []
            self._homes: list[str] = []  # the devices of the drafters
            for one in wanted:
                home = target.spans[-1][0]
                if isinstance(one, DraftModel):
                    home = self._devices.place(one.device or place.device).device
                self._drafters.append(self._build_drafter(one, home, target, kv_type, shown))
                self._homes.append(home)
        self._model: _core.Model | None = target
        self._core: _core.Generator | None = _core.Generator(target, self._n_ctx, kv_type)

    def _load_model(
        self,
        name: str | os.PathLike[str],
        role: str,
        place: Place,
        n_ctx: int | None,
        kv_type: str,
        shown: Progress,
    ) -> _core.Model:
        path = resolve_model(name)
        return self._devices.load(
            path,
            place,
            lambda part: shown(part, f"loading {role} {path.name}"),
            n_ctx=n_ctx,
            kv_type=kv_type,
        )

    def _build_drafter(
        self, drafter: Drafter, home: str, target: _core.Model, kv_type: str, shown: Progress
    ) -> _core.Drafter:
        def load(one: DraftModel) -> _core.Model:
            positions = min(one.n_ctx or self._n_ctx, self._n_ctx)
            return self._load_model(one.path, "draft", Place(home), positions, kv_type, shown)

        return build_drafter(drafter, target, n_ctx=self._n_ctx, kv_type=kv_type, load=load)

    # --- Generating ------------------------------------------------------------------------------

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **sampling: Any,
    ) -> Stream:
        """Streams the continuation of a prompt.

        Args:
            prompt: Text, or token ids (taken as they are).
            params: Sampling parameters; keywords win over it.
            **sampling: The fields of `SamplingParams`.

        Returns:
            An iterator of `Chunk`, one per round.

        Raises:
            ValueError: A parameter is out of range.
            ContextFullError: At the first chunk, if the prompt leaves no room.
            BusyError: At the first chunk, if another request is running.
        """
        merged = merge_params(params, sampling).resolved(self._recommended)
        for token in merged.logit_bias:
            if token >= self.vocab_size:
                raise ValueError(
                    f"logit_bias is given for token {token}; the vocabulary has the ids 0 to "
                    f"{self.vocab_size - 1}"
                )
        ids = self._ids(prompt)
        return Stream(self, ids, merged, self.tokenizer.eog_ids)

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **sampling: Any,
    ) -> Completion:
        """As `stream`, whole."""
        return self.stream(prompt, params, **sampling).result()

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> Stream:
        """Streams the answer to a conversation, using the model's chat template.

        Args:
            messages: Dicts with ``role`` and ``content``. Their text never turns into control
                tokens.
            params: Sampling parameters; keywords win over it.
            tools: JSON schemas of functions that the model may call, for templates that know them.
            documents: Dicts with ``title`` and ``text``, for templates that know them.
            continue_final_message: Go on with the last message in place of answering it.
            template_variables: More variables of the template, such as ``enable_thinking``.
            **sampling: The fields of `SamplingParams`.

        Raises:
            TemplateError: The model has no template, or the template refuses the messages.
        """
        ids = encode_chat(
            self.tokenizer,
            self._template(with_tools=tools is not None),
            messages,
            continue_final_message=continue_final_message,
            **{"tools": tools, "documents": documents, **(template_variables or {})},
        )
        return self.stream(ids, params, **sampling)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Completion:
        """As `stream_chat`, whole."""
        return self.stream_chat(messages, params, **options).result()

    def _template(self, *, with_tools: bool) -> ChatTemplate:
        """The template for a conversation with tools or without, compiled once."""
        if with_tools not in self._templates:
            self._templates[with_tools] = ChatTemplate.from_tokenizer(
                self.tokenizer, self._chat_template, with_tools=with_tools
            )
        return self._templates[with_tools]

    def cancel(self) -> None:
        """Ends the running request within one pass; callable from any thread."""
        if self._core is not None:
            self._core.cancel()

    def _start(
        self, stream: Stream, prompt: Sequence[int], params: ResolvedParams
    ) -> _core.Generator:
        """Gives the engine to a stream, which gives it back by `_finish`."""
        core = self._engine()
        request = _core.RequestParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            typical_p=params.typical_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=list(params.logit_bias.items()),
            logprobs=-1 if params.logprobs is None else params.logprobs,
            seed=params.seed,
            acceptance=params.acceptance,
            max_tokens=-1 if params.max_tokens is None else params.max_tokens,
            stop_tokens=sorted(self.tokenizer.eog_ids),
            prefill_chunk=PREFILL_CHUNK,
            synthetic_acceptance=self._synthetic_acceptance,
        )
        self._acquire()
        try:
            core.begin(self._drafters, prompt, request)
            self._active = weakref.ref(stream)
        except BaseException:
            self._finish()
            raise
        return core

    def _finish(self) -> None:
        self._active = None
        try:
            if self._core is not None:
                self._core.end()
        except OutputError as error:  # a corpus; the answer is there nevertheless
            warnings.warn(str(error), stacklevel=2)
        finally:
            self._slot.release()

    @contextmanager
    def _drafting_with(self, index: int | None) -> Iterator[None]:
        """Uses one of the drafters only, or none: what the bench takes turns with."""
        everything = self._drafters
        self._drafters = [] if index is None else [everything[index]]
        try:
            yield
        finally:
            self._drafters = everything

    def _acquire(self) -> None:
        if not self._slot.acquire(blocking=False):
            raise BusyError(
                "this generator is already executing a request; finish or close() the other "
                "stream first, or use a generator of its own for each thread"
            )

    def _engine(self) -> _core.Generator:
        if self._core is None:
            raise ValueError("this generator is closed; make a new one")
        return self._core

    # --- Tokens and scores -----------------------------------------------------------------------

    def tokenize(
        self, text: str, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text; see `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids; control tokens give none."""
        return self.tokenizer.decode(tokens)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The target's logits.

        Args:
            tokens: Token ids, at most `n_ctx`.

        Returns:
            float32 ``[len(tokens), vocab]``; row i scores the token after position i.
        """
        rows = [block for _, block in self._logit_blocks(self._ids(tokens))]
        return np.concatenate(rows)

    def score(self, text: str | Sequence[int]) -> float:
        """Mean negative log-likelihood of a text under the target.

        Args:
            text: Text, or token ids; at least two tokens.

        Returns:
            Nats per token, over all tokens but the first.
        """
        tokens = self._ids(text)
        if len(tokens) < 2:
            raise ValueError(f"a score needs at least two tokens; the text has {len(tokens)}")
        total = 0.0
        for first, block in self._logit_blocks(tokens[:-1]):
            wide = block.astype(np.float64)
            peak = wide.max(axis=1)
            log_total = peak + np.log(np.exp(wide - peak[:, None]).sum(axis=1))
            following = tokens[first + 1 : first + 1 + len(block)]
            total += float((log_total - wide[np.arange(len(block)), following]).sum())
        return total / (len(tokens) - 1)

    def _ids(self, prompt: str | Iterable[int]) -> list[int]:
        """Token ids of a text, or the given ones, checked."""
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        if isinstance(prompt, (bytes, bytearray)):
            raise TypeError("a prompt is text or token ids, not bytes; decode it first")
        ids = [operator.index(token) for token in prompt]
        vocab = self._target().vocab
        for position, token in enumerate(ids):
            if not 0 <= token < vocab:
                raise ValueError(
                    f"token id {token} at index {position} is outside the vocabulary of {vocab} "
                    "tokens"
                )
        return ids

    def _logit_blocks(self, tokens: list[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(index of the first row, logits [rows, vocab]), block by block."""
        if not tokens:
            raise ValueError("no tokens were given; give at least one")
        if len(tokens) > self._n_ctx:
            raise ContextFullError(
                f"the text has {len(tokens)} tokens, but the context holds {self._n_ctx}; shorten "
                "it or raise n_ctx"
            )
        core = self._engine()
        vocab = self._target().vocab
        self._acquire()
        try:
            for first in range(0, len(tokens), _LOGIT_ROWS):
                yield first, core.logits(tokens[: first + _LOGIT_ROWS], first)[:, :vocab]
        finally:
            self._slot.release()

    # --- The object ------------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """Positions of the context."""
        return self._n_ctx

    @property
    def vocab_size(self) -> int:
        """Tokens that can be generated; ids beyond are padding."""
        return self._target().vocab

    def _target(self) -> _core.Model:
        if self._model is None:
            raise ValueError("this generator is closed; make a new one")
        return self._model

    def memory(self, device: str | None = None) -> dict[str, int]:
        """Bytes in use: weights, caches and scratch of target and drafts, and their total.

        Args:
            device: Only what lies in the memory of this device, such as ``"cuda"`` or ``"cpu"``.
        """

        def counts(home: str) -> bool:
            return device is None or same_device(device, home)

        spans = [use for home, use in self._engine().memory() if counts(home)]
        drafters = [
            one for one, home in zip(self._drafters, self._homes, strict=True) if counts(home)
        ]
        parts = {
            "target_weights": sum(use["target_weights"] for use in spans),
            "draft_weights": sum(one.weight_bytes for one in drafters),
            "target_cache": sum(use["target_cache"] for use in spans),
            "draft_cache": sum(one.cache_bytes for one in drafters),
            "scratch": sum(use["target_scratch"] for use in spans)
            + sum(one.scratch_bytes for one in drafters),
        }
        return {**parts, "total": sum(parts.values())}

    def close(self) -> None:
        """Frees models and caches; a running stream is closed first."""
        active = self._active() if self._active is not None else None
        if active is not None:
            active.close()
        self._core = None
        self._model = None
        self._drafters, self._homes = [], []
        self._devices = Devices(None)

    def __reduce__(self) -> NoReturn:
        """Refuses: weights and caches are no data to copy."""
        raise TypeError("a Generator cannot be copied or pickled; make a new one")


def _context_length(n_ctx: int | None, trained: int) -> int:
    if n_ctx is None:
        return min(trained, MAX_DEFAULT_CONTEXT)
    if type(n_ctx) is not int or not 2 <= n_ctx <= 2**24:
        raise ValueError(f"n_ctx is {n_ctx!r}; it must be a whole number from 2 to {2**24}")
    if n_ctx > trained:
        warnings.warn(
            f"n_ctx is {n_ctx}, but the model was trained for {trained} positions; text beyond "
            "these will be poor",
            stacklevel=3,
        )
    return n_ctx
