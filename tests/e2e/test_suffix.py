"""Suffix drafting through the engine: what it proposes, its corpus file, and that it forgets."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specdec_native as sd
from specdec_native import _core
from support.engine import GREEDY, finish, load, request, run

HEADER = 32


def suffix(corpus: Path | None = None, model: _core.Model | None = None, **fields: object):
    values = {"max_draft": 8, "min_match": 2, "max_match": 8, "branches": 1, "min_score": 0.05}
    values.update(fields)
    return _core.SuffixDrafter(
        *values.values(), corpus=None if corpus is None else str(corpus), model=model
    )


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> _core.Model:
    return load(tiny_model)


@pytest.fixture(scope="module")
def answer(model: _core.Model) -> list[int]:
    """What the model says to PROMPT."""
    return run(model, PROMPT, max_tokens=80, **GREEDY).tokens


PROMPT = [40, 41, 42, 43, 44, 45]


def test_a_repeated_text_is_drafted_and_stands(model: _core.Model, answer: list[int]) -> None:
    prompt = [*PROMPT, *answer[:40], 7, *PROMPT]
    result = run(model, prompt, [suffix()], max_tokens=40, **GREEDY)
    assert result.tokens == run(model, prompt, max_tokens=40, **GREEDY).tokens
    assert result.stats["drafted"] > 0
    drafted = {source for source in result.sources if source != "target"}
    assert drafted <= {"suffix"}


def test_proposals_are_those_of_a_fresh_drafter_whatever_happened_before(
    model: _core.Model,
) -> None:
    """Design, invariant 3: random texts, cut and continued, against a fresh drafter."""
    rng = np.random.default_rng(8)
    bold = {"min_match": 1, "branches": 3}
    used = suffix(**bold)
    text = [int(t) for t in rng.integers(3, 9, size=30)]
    drafted = 0
    for _ in range(80):
        fields = {**GREEDY, "max_tokens": int(rng.integers(1, 9))}
        with_used = run(model, text, [used], **fields)
        with_fresh = run(model, text, [suffix(**bold)], **fields)
        for name in ("drafted_at", "accepted_at", "draft_lengths"):
            assert with_used.stats[name] == with_fresh.stats[name]
        assert (with_used.tokens, with_used.sources) == (with_fresh.tokens, with_fresh.sources)
        drafted += with_used.stats["drafted"]
        keep = int(rng.integers(1, len(text) + 1))
        if rng.random() < 0.3:  # goes on from what was generated
            text = [*text, *with_used.tokens[: int(rng.integers(0, 4))]]
        else:
            text = [*text[:keep], *(int(t) for t in rng.integers(3, 9, size=rng.integers(1, 9)))]
    assert drafted > 200


def test_nothing_outlives_a_request_without_a_corpus(model: _core.Model, answer: list[int]) -> None:
    used = suffix()
    run(model, [*PROMPT, *answer], [used], **GREEDY)
    for drafter in (used, suffix()):
        again = run(model, PROMPT, [drafter], max_tokens=20, **GREEDY)
        assert (
            again.stats["drafted_at"]
            == run(model, PROMPT, [suffix()], max_tokens=20, **GREEDY).stats["drafted_at"]
        )


# --- The corpus ----------------------------------------------------------------------------------


def session(model: _core.Model, drafter: _core.Drafter, prompt: list[int], count: int) -> object:
    generator = _core.Generator(model, 512, "f16")
    generator.begin([drafter], prompt, request(max_tokens=count, **GREEDY))
    result = finish(generator)
    generator.end()
    generator.end()  # once is enough; twice stores nothing twice
    return result


def records(path: Path) -> list[list[int]]:
    data, at, found = path.read_bytes(), HEADER, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        found.append(list(struct.unpack_from(f"<{count}I", data, at + 8)))
        at += 8 + 4 * count
    return found


def test_earlier_sessions_are_drafted_from(
    model: _core.Model, answer: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "corpus"
    first = session(model, suffix(path, model), PROMPT, 60)
    assert records(path) == [[*PROMPT, *answer[:60]]]
    # Another process, the same question: nearly everything was there before.
    later = session(model, suffix(path, model), PROMPT, 60)
    assert later.tokens == first.tokens == answer[:60]
    assert later.stats["rounds"] < first.stats["rounds"] / 3
    assert len(records(path)) == 2


def test_one_object_learns_from_its_own_requests(
    model: _core.Model, answer: list[int], tmp_path: Path
) -> None:
    """And a conversation stores what is new only, with the context it stands in."""
    path = tmp_path / "corpus"
    drafter = suffix(path, model)
    session(model, drafter, PROMPT, 30)
    again = session(model, drafter, PROMPT, 30)
    assert again.stats["rounds"] < 15
    assert len(records(path)) == 1  # the same text again: nothing is new
    longer = [*PROMPT, *answer[:30], 9, 8]
    session(model, drafter, longer, 0)
    whole = [*PROMPT, *answer[:30]]
    assert records(path)[1] == [*whole[-8:], 9, 8]


def test_a_growing_corpus_drops_the_oldest(tmp_path: Path, model: _core.Model) -> None:
    path = tmp_path / "corpus"
    suffix(path, model)
    header = path.read_bytes()
    limit = 1 << 18
    text = np.arange(1, 257, dtype="<u4")
    record = np.tile(text, limit // 256 // 4)  # a quarter of what is kept
    blob = b"".join(struct.pack("<II", len(one), fnv(one)) + one.tobytes() for one in [record] * 5)
    path.write_bytes(header + blob)
    drafter = suffix(path, model)  # the first of five does not fit any more
    session(model, drafter, PROMPT, 4)
    kept = records(path)
    assert sum(len(one) for one in kept) <= limit
    assert kept[-1][: len(PROMPT)] == PROMPT


def fnv(ids: np.ndarray) -> int:
    value = 0x811C9DC5
    for byte in ids.astype("<u4").tobytes():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


@pytest.fixture
def corpus(model: _core.Model, tmp_path: Path) -> Path:
    path = tmp_path / "corpus"
    session(model, suffix(path, model), PROMPT, 10)
    return path


@pytest.mark.parametrize("at", [0, 8, 12, 16, HEADER, HEADER + 4, HEADER + 8, HEADER + 20])
def test_a_changed_byte_is_found(corpus: Path, model: _core.Model, at: int) -> None:
    data = bytearray(corpus.read_bytes())
    data[at] ^= 0x40
    corpus.write_bytes(data)
    with pytest.raises(ValueError, match=r"corpus|no corpus") as caught:
        suffix(corpus, model)
    if at >= HEADER:
        assert "is damaged at byte" in str(caught.value)
        assert "delete it" in str(caught.value)
    assert corpus.read_bytes() == data  # it is left as it was


def test_every_cut_is_found(corpus: Path, model: _core.Model) -> None:
    data = corpus.read_bytes()
    for size in range(1, len(data)):
        corpus.write_bytes(data[:size])
        if size == HEADER:
            suffix(corpus, model)  # no record: fine
            continue
        with pytest.raises(ValueError, match="corpus"):
            suffix(corpus, model)


def test_counts_beyond_the_file_are_refused(corpus: Path, model: _core.Model) -> None:
    header = corpus.read_bytes()[:HEADER]
    for count in (0, 1000, 2**31, 2**32 - 1):
        corpus.write_bytes(header + struct.pack("<II", count, 0) + bytes(8))
        with pytest.raises(ValueError, match=rf"byte 32: a record of {count} tokens"):
            suffix(corpus, model)


def test_a_deleted_corpus_begins_anew(corpus: Path, model: _core.Model) -> None:
    drafter = suffix(corpus, model)
    corpus.unlink()
    session(model, drafter, [7, 8, 9, 10], 12)
    assert records(corpus)[-1][:4] == [7, 8, 9, 10]
    suffix(corpus, model)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
def test_a_full_disk_leaves_the_corpus_whole(corpus: Path, tiny_model: Path) -> None:
    """The request ends well, the half record is taken back, later ones can be read."""
    program = """if True:
        import resource, signal, sys, warnings
        import specdec_native as sd
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        warnings.simplefilter("ignore")
        model, corpus, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
        gen = sd.Generator(model, draft=sd.SuffixDraft(corpus=corpus), progress=False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, resource.RLIM_INFINITY))
        gen.generate([5, 6, 7, 8], max_tokens=40, temperature=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        gen.generate([9, 10, 11, 12], max_tokens=40, temperature=0)
    """
    before = records(corpus)
    size = corpus.stat().st_size
    command = [sys.executable, "-c", program, str(tiny_model), str(corpus), str(size)]
    subprocess.run(command, check=True)
    after = records(corpus)
    assert after[: len(before)] == before
    assert after[-1][:4] == [9, 10, 11, 12]


def test_a_corpus_of_another_vocabulary_is_refused(
    corpus: Path, make_model: Callable[..., Path]
) -> None:
    other = load(make_model(vocab=310))
    with pytest.raises(ValueError, match=r"another vocabulary \(300 tokens; this model has 310\)"):
        suffix(corpus, other)


def test_a_corpus_that_cannot_be_written(model: _core.Model, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        suffix(tmp_path / "missing" / "corpus", model)
    with pytest.raises(ValueError, match="no regular file"):
        suffix(tmp_path, model)


def test_through_the_generator(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    with sd.Generator(tiny_model, draft=sd.SuffixDraft(corpus=path), progress=False) as generator:
        generator.generate(PROMPT, max_tokens=10, temperature=0)
        assert len(records(path)) == 1
        for _ in generator.stream([5, 6, 7], max_tokens=10, temperature=0):
            break  # left early: what there is is kept
        assert len(records(path)) == 2
        path.unlink()
        path.mkdir()
        with pytest.warns(UserWarning, match="cannot write"):
            generator.generate([9, 9], max_tokens=3, temperature=0)
        path.rmdir()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_draft": 0}, "max_draft"),
        ({"max_match": 257}, "max_match"),
        ({"min_match": 40}, "min_match"),
        ({"branches": 4}, "branches"),
        ({"min_score": 0.0}, "min_score"),
        ({"min_score": float("nan")}, "min_score"),
    ],
)
def test_options_are_checked(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sd.SuffixDraft(**fields)
    values = {"max_draft": 8, "min_match": 2, "max_match": 32, **fields}
    with pytest.raises(ValueError, match=message):
        suffix(**values)
