"""The vocabulary reader and the tokeniser."""

from __future__ import annotations

import json
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_native.errors import Error, GgufError, TokenizerError
from specdec_native.text import Tokenizer, Vocabulary
from specdec_native.text.special_split import SpecialSplitter
from support.toy_vocabulary import CONTROL, NORMAL, USER, gpt2_metadata, llama_metadata

TEXTS = [
    "",
    " ",
    "  ",
    "hello world",
    " hello",
    "   hello",
    "x != y",
    "': 'search",
    "3333+777 I'll\n\n  x\u2029",
    "naïve 東京 🙂 привет\u200d\ufe0f",
    "\x00\t\r\n",
    "<|im_end|>",
    "\ufffd",
]


def ids_of(tokenizer: Tokenizer, *texts: str) -> list[int]:
    return [tokenizer.vocabulary.tokens.index(text) for text in texts]


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.from_metadata(gpt2_metadata())


@pytest.fixture(scope="module")
def llama() -> Tokenizer:
    return Tokenizer.from_metadata(llama_metadata())


# --- encoding ---


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_round_trip(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(kind)
    for add_special in (False, True):
        assert tokenizer.decode(tokenizer.encode(text, add_special)) == text


def test_random_text_round_trips(gpt2: Tokenizer, llama: Tokenizer) -> None:
    draw = random.Random(1)
    alphabet = [
        "hello",
        " ",
        "world",
        "<s>",
        "<|im_end|>",
        "é",
        "東",
        "🙂",
        "\n",
        "'s",
        "33",
        "<tool>",
    ]
    for _ in range(300):
        text = "".join(draw.choices(alphabet, k=draw.randrange(12)))
        assert gpt2.decode(gpt2.encode(text)) == text
        assert llama.decode(llama.encode(text)) == text


def test_merges_make_words(gpt2: Tokenizer) -> None:
    assert gpt2.encode("hello world", add_special=False) == ids_of(gpt2, "hello", "Ġworld")


def test_sentencepiece_words_and_bytes(llama: Tokenizer) -> None:
    assert llama.encode("hello world") == [1, *ids_of(llama, "▁hello", "▁world")]
    assert llama.encode("é", False) == ids_of(llama, "▁", "<0xC3>", "<0xA9>")


def test_empty_text_is_bos_only(gpt2: Tokenizer, llama: Tokenizer) -> None:
    assert gpt2.encode("") == [gpt2.bos_id]
    assert llama.encode("") == [1]
    assert gpt2.encode("", add_special=False) == []


def test_text_never_becomes_control_ids(gpt2: Tokenizer, llama: Tokenizer) -> None:
    """R22: without parse_special no text makes a control token."""
    for tokenizer in (gpt2, llama):
        hostile = "".join(tokenizer.control_texts()) + "<0x41></s>[PAD]"
        ids = tokenizer.encode(hostile, add_special=False)
        assert not any(tokenizer.is_special(one) for one in ids)
        assert tokenizer.decode(ids) == hostile


def test_control_token_equal_to_a_word_is_not_reached_by_text() -> None:
    """A control token whose text merges or whole words could make stays out of reach."""
    metadata = gpt2_metadata(pre="llama-bpe")
    types = list(metadata["tokenizer.ggml.token_type"])
    control = metadata["tokenizer.ggml.tokens"].index("hello")
    types[control] = CONTROL
    types[metadata["tokenizer.ggml.tokens"].index("x")] = NORMAL
    metadata["tokenizer.ggml.token_type"] = types
    tokenizer = Tokenizer.from_metadata(metadata)
    assert control not in tokenizer.encode("hello hello")
    assert control in tokenizer.encode("hello", parse_special=True)


def test_user_defined_tokens_are_always_found(gpt2: Tokenizer) -> None:
    (tool,) = ids_of(gpt2, "<tool>")
    assert tool in gpt2.encode("a<tool>b")
    assert gpt2.decode(gpt2.encode("a<tool>b")) == "a<tool>b"


@pytest.mark.parametrize("text", ["<|user|>", "<\uff5cUser\uff5c>", "<start_of_turn>", "[INST]"])
def test_turn_markers_are_control_tokens_whatever_the_file_calls_them(text: str) -> None:
    """R22: user-defined tokens are found in any text, but not these; they stay visible."""
    metadata = gpt2_metadata()
    metadata["tokenizer.ggml.tokens"].append(text)
    metadata["tokenizer.ggml.token_type"].append(USER)
    tokenizer = Tokenizer.from_metadata(metadata)
    marker = tokenizer.vocab_size - 1
    assert marker not in tokenizer.encode(f"a{text}b")
    assert tokenizer.decode(tokenizer.encode(f"a{text}b")) == f"a{text}b"
    assert marker in tokenizer.encode(f"a{text}b", parse_special=True)
    assert tokenizer.decode([marker]) == text
    assert text in tokenizer.control_texts()


def test_parse_special_finds_control_tokens(gpt2: Tokenizer) -> None:
    ids = gpt2.encode("<|im_start|>hello<|im_end|>", False, parse_special=True)
    assert ids == ids_of(gpt2, "<|im_start|>", "hello", "<|im_end|>")


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("text_has_bos", [True, False])
@pytest.mark.parametrize("kind", [gpt2_metadata, llama_metadata])
def test_one_bos_exactly(kind: Any, text_has_bos: bool, add_bos: bool) -> None:
    """R17: a BOS in the text is not added again."""
    tokenizer = Tokenizer.from_metadata(kind(add_bos_token=add_bos))
    assert tokenizer.bos_id is not None
    bos_text = tokenizer.vocabulary.tokens[tokenizer.bos_id]
    ids = tokenizer.encode(bos_text * text_has_bos + "hello", parse_special=True)
    assert ids.count(tokenizer.bos_id) == (add_bos or text_has_bos)
    plain = tokenizer.encode(bos_text + "hello", parse_special=False)
    assert plain.count(tokenizer.bos_id) == add_bos


def test_eos_is_added_only_where_wanted() -> None:
    tokenizer = Tokenizer.from_metadata(gpt2_metadata(add_eos_token=True))
    assert tokenizer.encode("hello")[-1] == tokenizer.vocabulary.eos_id
    assert tokenizer.encode("hello<|endoftext|>", parse_special=True).count(267) == 1


def test_dummy_space_is_added_after_special_tokens_and_stripped_once(llama: Tokenizer) -> None:
    """R21: as llama.cpp and the models' tokenizer.json files have it."""
    ids = llama.encode("hello</s>hello", parse_special=True)
    assert ids == [1, *ids_of(llama, "▁hello", "</s>", "▁hello")]
    assert llama.decode(ids) == "hello hello"
    assert llama.decode(llama.encode("  hello")) == "  hello"


def test_a_space_only_at_the_start() -> None:
    """Files whose tokenizer.json has the prepend scheme "first" say so by a key of ours."""
    metadata = llama_metadata() | {"specdec.tokenizer.space_prefix": "first"}
    tokenizer = Tokenizer.from_metadata(metadata)
    (first,) = ids_of(tokenizer, "▁hello")
    (later,) = ids_of(tokenizer, "hello")
    assert tokenizer.encode("hello</s>hello", parse_special=True) == [1, first, 2, later]
    assert tokenizer.encode("<s>hello", parse_special=True) == [1, later]
    assert tokenizer.encode(" hello") == [1, first]  # one that is there will do
    assert tokenizer.decode([1, first, 2, later]) == "hellohello"
    metadata["specdec.tokenizer.space_prefix"] = "last"
    with pytest.raises(GgufError, match=r"space_prefix is 'last'"):
        Tokenizer.from_metadata(metadata)


@pytest.mark.parametrize("space", ["▁", " "])
def test_runs_of_spaces_may_be_tokens(space: str) -> None:
    """Gemma's: greedy from the left, whether the file writes them with marks or with spaces."""
    metadata = llama_metadata(add_space_prefix=False)
    metadata["tokenizer.ggml.tokens"] += [space * count for count in (2, 3)] + ["\n\n"]
    metadata["tokenizer.ggml.scores"] += [-1000.0] * 3
    metadata["tokenizer.ggml.token_type"] += [USER] * 3
    tokenizer = Tokenizer.from_metadata(metadata)
    two, three, lines = range(tokenizer.vocab_size - 3, tokenizer.vocab_size)
    (one, hello) = ids_of(tokenizer, "▁", "hello")
    for count, ids in [(1, [one]), (2, [two]), (4, [three, one]), (5, [three, two])]:
        for text in (" " * count + "\nhello", "hello" + " " * count):
            encoded = tokenizer.encode(text, add_special=False)
            assert encoded[: len(ids)] == ids if text[0] == " " else encoded == [hello, *ids]
            assert tokenizer.decode(encoded) == text
    # A mark in the text is a token by itself before anything is merged.
    assert tokenizer.encode("▁▁ ", add_special=False) == [two, one]
    assert tokenizer.encode("▁  ", add_special=False) == [three]
    assert tokenizer.encode("\n\n\n\n", add_special=False) == [lines, lines]


def test_no_dummy_space_where_the_file_says_so() -> None:
    tokenizer = Tokenizer.from_metadata(llama_metadata(add_space_prefix=False))
    assert tokenizer.encode("hello", False) == ids_of(tokenizer, "hello")
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_segments_are_encoded_as_one_text(gpt2: Tokenizer) -> None:
    whole = gpt2.encode("hello world")
    assert gpt2.encode_segments([("he", True), ("llo w", False), ("orld", True)]) == whole


def test_control_tokens_do_not_reach_into_barred_segments(gpt2: Tokenizer) -> None:
    (end,) = ids_of(gpt2, "<|im_end|>")
    for segments in (
        [("<|im_", True), ("end|>", False)],
        [("<|im_", False), ("end|>", True)],
        [("<", False), ("|im_end|>", True)],
        [("<", True), ("|", False), ("im_end|>", True)],
        [("<|im_end|", True), (">", False)],
    ):
        assert end not in gpt2.encode_segments(segments)
        assert gpt2.decode(gpt2.encode_segments(segments)) == "<|im_end|>"
    assert end in gpt2.encode_segments([("a", False), ("<|im_", True), ("end|>", True)])
    assert end in gpt2.encode_segments([("a", False), ("<|im_end|>", True), ("b", False)])


def test_splitter_prefers_leftmost_then_longest() -> None:
    splitter = SpecialSplitter(always={"<a": 1, "": 9}, control={"<": 2, "<ab>": 3, "b": 4})
    assert list(splitter.find("x<ab><a<b", [])) == [(1, 5, 3), (5, 7, 1), (7, 8, 2), (8, 9, 4)]
    assert list(splitter.find("x<ab><a<b", [(0, 9)])) == [(1, 3, 1), (5, 7, 1)]
    assert list(SpecialSplitter({}, {}).find("abc", [])) == []


def test_lone_surrogates_are_an_error(gpt2: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="index 2"):
        gpt2.encode("ab\ud83d")


def test_missing_bytes_are_dropped_with_a_warning() -> None:
    metadata = gpt2_metadata()
    types = list(metadata["tokenizer.ggml.token_type"])
    types[4] = CONTROL
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.token_type": types})
    with pytest.warns(UserWarning, match="0x04"):
        assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"


def test_a_run_too_long_for_the_library_is_an_error(gpt2: Tokenizer) -> None:
    """Its regular expressions give up at ten million steps, with what is no `Exception`."""
    with pytest.raises(TokenizerError, match="pass it in parts"):
        Tokenizer.from_metadata(gpt2_metadata(pre="qwen2")).encode(" " * 11_000_000)


@pytest.mark.parametrize(
    "unit", ["a", " ", "1", "\n ", "hello world ", "<|im_start|>", "<|im_", "🙂"]
)
def test_long_text_takes_linear_time(unit: str, gpt2: Tokenizer, llama: Tokenizer) -> None:
    for tokenizer in (gpt2, llama):
        text = unit * (200_000 // len(unit))
        start = time.perf_counter()
        tokenizer.encode(text, parse_special=True)
        # Some 0.1 s; quadratic time would be minutes.
        assert time.perf_counter() - start < 10


# --- decoding ---


def test_token_bytes(gpt2: Tokenizer, llama: Tokenizer) -> None:
    assert gpt2.token_bytes(ids_of(gpt2, "Ġworld")[0]) == b" world"
    assert gpt2.token_bytes(0xF0) == b"\xf0"
    assert gpt2.token_bytes(ids_of(gpt2, "<|im_end|>")[0]) == b""
    assert gpt2.token_bytes(ids_of(gpt2, "<|im_end|>")[0], control=True) == b"<|im_end|>"
    assert gpt2.token_bytes(ids_of(gpt2, "[PAD]")[0]) == b""
    assert llama.token_bytes(3 + 0xC3) == b"\xc3"
    assert llama.token_bytes(ids_of(llama, "▁hello")[0]) == b" hello"
    assert llama.token_bytes(np.int32(0)) == b""


@pytest.mark.parametrize("token", [-1, 10**6])
def test_ids_outside_are_an_error(token: int, gpt2: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=str(token)):
        gpt2.decode([token])
    with pytest.raises(TypeError):
        gpt2.decode([1.5])  # type: ignore[list-item]


def test_invalid_bytes_decode_to_replacement_characters(gpt2: Tokenizer) -> None:
    assert gpt2.decode([0xF0, 0x9F, 0x61, 0xFF]) == "\ufffda\ufffd"


# --- pre-tokenisers (R24; their words are in test_pretokenizers) ---


def test_missing_pre_warns_and_uses_default() -> None:
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre"):
        missing = Tokenizer.from_metadata(gpt2_metadata(pre=None))
    default = Tokenizer.from_metadata(gpt2_metadata(pre="default"))
    assert missing.encode("3333+777") == default.encode("3333+777")


def test_missing_pre_of_llama_kind_is_fine() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tokenizer.from_metadata(llama_metadata())


# --- the vocabulary ---


def test_every_end_id_counts() -> None:
    """R18: eos, eot, eom, lists, and known end markers."""
    tokenizer = Tokenizer.from_metadata(
        gpt2_metadata(eot_token_id=1, eom_token_id=2, eos_token_ids=np.array([3, 4], np.uint32))
    )
    assert tokenizer.eog_ids == {1, 2, 3, 4, *ids_of(tokenizer, "<|endoftext|>", "<|im_end|>")}


@pytest.mark.parametrize(
    ("text", "kind", "ends"),
    [
        ("<|eot_id|>", NORMAL, True),
        ("<end_of_turn>", USER, True),
        ("</s>", CONTROL, True),
        ("</s>", NORMAL, False),
        ("</s>", USER, False),
        ("<|tool|>", CONTROL, False),
    ],
)
def test_end_markers_by_text(text: str, kind: int, ends: bool) -> None:
    metadata = gpt2_metadata()
    metadata["tokenizer.ggml.tokens"][5] = text
    metadata["tokenizer.ggml.token_type"][5] = kind
    vocabulary = Vocabulary.from_metadata(metadata)
    assert (5 in vocabulary.eog_ids) is ends


def test_end_of_channel_is_no_end_of_turn() -> None:
    metadata = gpt2_metadata()
    for index, text in enumerate(["<|end|>", "<|return|>", "<|call|>"]):
        metadata["tokenizer.ggml.tokens"][index] = text
        metadata["tokenizer.ggml.token_type"][index] = CONTROL
    assert Vocabulary.from_metadata(metadata).eog_ids & {0, 1, 2} == {1, 2}


def test_no_bos_is_none() -> None:
    tokenizer = Tokenizer.from_metadata(gpt2_metadata(bos_token_id=None, add_bos_token=None))
    assert tokenizer.bos_id is None
    assert tokenizer.encode("hello") == ids_of(tokenizer, "hello")


def test_defaults_outside_a_tiny_vocabulary_are_not_used() -> None:
    """R29: the format's default ids hold only where they exist and are special."""
    tiny = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.scores": [0.0],
        "tokenizer.ggml.token_type": [NORMAL],
    }
    vocabulary = Vocabulary.from_metadata(tiny)
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.unknown_id) == (None, None, None)
    assert vocabulary.eog_ids == frozenset()


def test_padding_tokens_and_equal_texts_do_no_harm() -> None:
    metadata = gpt2_metadata()
    metadata["tokenizer.ggml.tokens"] += ["hello", "[PAD]", ""]
    metadata["tokenizer.ggml.token_type"] += [NORMAL, CONTROL, CONTROL]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("hello", False) == ids_of(tokenizer, "hello")
    assert tokenizer.encode("hello", False, parse_special=True) == ids_of(tokenizer, "hello")


GPT2_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model is missing"),
    ({"model": "bert"}, r"'bert'.*gpt2"),
    ({"model": 3}, "model must be a string"),
    ({"tokens": None}, "tokens is missing"),
    ({"tokens": []}, "tokens is empty"),
    ({"tokens": "abc"}, r"tokens must be an array"),
    ({"tokens": ["a", 3]}, r"tokens\[1\] must be of type string"),
    ({"tokens": ["a", "\ud800"]}, r"tokens\[1\] is not valid Unicode"),
    ({"token_type": [1]}, r"token_type has 1 entries.*272"),
    ({"token_type": [7] * 272}, r"token_type\[0\] is 7"),
    ({"token_type": [1.0] * 272}, r"token_type\[0\] must be of type integer"),
    ({"token_type": [True] * 272}, r"token_type\[0\] must be of type integer"),
    ({"merges": None}, "merges is missing"),
    ({"merges": ["h e", "q z"]}, r"merges\[1\] is 'q z'"),
    ({"merges": ["he"]}, r"merges\[0\] is 'he'"),
    ({"bos_token_id": 272}, r"bos_token_id is 272.*272 tokens"),
    ({"eos_token_id": -1}, "eos_token_id is -1"),
    ({"eot_token_id": True}, "eot_token_id must be an integer"),
    ({"eom_token_id": "1"}, "eom_token_id must be an integer"),
    ({"padding_token_id": "1"}, "padding_token_id must be an integer"),
    ({"add_sep_token": True}, "add_sep_token is true, but texts with a separator"),
    ({"unknown_token_id": 1.0}, "unknown_token_id must be an integer"),
    ({"eos_token_ids": [1, 999]}, r"eos_token_ids\[1\] is 999"),
    ({"add_bos_token": 1}, "add_bos_token must be a boolean"),
    ({"bos_token_id": None}, "add_bos_token is true, but"),
    ({"chat_template": 5}, "chat_template must be a string"),
    ({"pre": 5}, "pre must be a string"),
]
LLAMA_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"scores": None}, "scores is missing"),
    ({"scores": [0.0]}, "scores has 1 entries"),
    ({"scores": np.zeros(300, np.uint8)}, r"scores\[0\] must be of type float"),
    ({"scores": [float("nan")] * 300}, "scores.*"),
]


@pytest.mark.parametrize(("changes", "message"), GPT2_FAULTS)
def test_damaged_gpt2_metadata(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GgufError, match=message) as caught:
        Tokenizer.from_metadata(gpt2_metadata(**changes))
    assert isinstance(caught.value, Error)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("padding", [2**32 - 1, 272, -1])
def test_a_padding_id_outside_of_the_vocabulary_is_none(padding: int) -> None:
    """Only chat templates see it, and fine-tuned models name lost ones; llama.cpp ignores them."""
    assert Vocabulary.from_metadata(gpt2_metadata(padding_token_id=padding)).padding_id is None
    assert Vocabulary.from_metadata(gpt2_metadata(padding_token_id=5)).padding_id == 5
    assert Tokenizer.from_metadata(gpt2_metadata(add_sep_token=False)).encode("a")


@pytest.mark.parametrize("key", ["model", "pre", "bos_token_id", "tokens"])
def test_long_values_are_cut_in_messages(key: str) -> None:
    value = ["\ud800" * 100_000] if key == "tokens" else "x" * 100_000
    with pytest.raises(GgufError) as caught:
        Tokenizer.from_metadata(gpt2_metadata(**{key: value}))
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("key", ["model", "eos_token_id"])
def test_a_file_is_named(make_model: Callable[..., Path], key: str) -> None:
    path = make_model(layers=1, metadata={f"tokenizer.ggml.{key}": "odd"})
    with pytest.raises(GgufError) as caught:
        Tokenizer(path)
    assert str(caught.value).startswith(f"{path}: tokenizer.ggml.{key} ")


@pytest.mark.parametrize(("changes", "message"), LLAMA_FAULTS)
def test_damaged_llama_metadata(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GgufError, match=message):
        Tokenizer.from_metadata(llama_metadata(**changes))


def test_byte_token_with_another_text_is_an_error() -> None:
    metadata = llama_metadata()
    metadata["tokenizer.ggml.tokens"][3] = "<0xZZ>"
    with pytest.raises(GgufError, match="<0xZZ>"):
        Tokenizer.from_metadata(metadata)


def test_arrays_may_be_numpy_of_any_width() -> None:
    metadata = llama_metadata()
    types = np.array(metadata["tokenizer.ggml.token_type"], np.int64)
    scores = np.array(metadata["tokenizer.ggml.scores"], np.float32)
    tokenizer = Tokenizer.from_metadata(
        llama_metadata(token_type=types, scores=scores, eos_token_id=np.uint8(2))
    )
    assert tokenizer.encode("hello") == [1, *ids_of(tokenizer, "▁hello")]


# --- a real model ---


def test_golden_ids(real_model: Path) -> None:
    tokenizer = Tokenizer(real_model)
    golden = Path(__file__).parent.parent / "golden" / "smollm2_135m_q4_1.json"
    for case in json.loads(golden.read_text(encoding="utf-8"))["cases"]:
        assert tokenizer.encode(case["text"], parse_special=True) == case["ids"]
        assert tokenizer.decode(case["ids"], control=True) == case["text"]
        assert tokenizer.decode(case["greedy"], control=True) == case["greedy_text"]
    assert tokenizer.bos_id == 1
    assert tokenizer.eog_ids == {0, 2}
