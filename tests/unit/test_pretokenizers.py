"""Words that each pre-tokeniser makes (R24), and the names of the chains of steps."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from specdec_native.errors import GgufError
from specdec_native.text import Tokenizer
from specdec_native.text.pretokenizers import (
    _LINEAR,
    ALIASES,
    PRE_TOKENIZERS,
    Split,
    find_pre_tokenizer,
    recognized_names,
    supported_names,
)
from support.toy_vocabulary import gpt2_metadata

# Digits, contractions, line ends, U+2029, capitals inside a word, a combining mark, scripts without
# spaces, symbols, numbers that are no digits, slashes, and the long s (a contraction for those that
# ignore case, as the `tokenizers` library folds it to s).
TEXT = "3333+777 I'LL\n\n  x\u2029y\r\nHelloWorld e\u0301 東京カナ한국 🙂🙂 ½² a/b//\n don't.. 'ſ"  # noqa: RUF001
# The words, in the byte-level alphabet (Ġ space, Ċ line feed, č carriage return). They were
# computed with another regular expression engine (the PyPI package regex) from the patterns of
# llama.cpp's llama-vocab.cpp, but for falcon (by hand) and the last word, where the library rules.
WORDS = {
    "llama-bpe dbrx glm4 minicpm5": (
        "333 3 + 777 ĠI 'LL ĊĊ Ġ Ġx âĢ©y čĊ HelloWorld Ġe Ìģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ ĠðŁĻĤðŁĻĤ Ġ "
        "Â½Â² Ġa /b //Ċ Ġdon 't .. Ġ' Å¿"
    ),
    "qwen2 stablelm2 hunyuan bailingmoe": (
        "3 3 3 3 + 7 7 7 ĠI 'LL ĊĊ Ġ Ġx âĢ©y čĊ HelloWorld Ġe Ìģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ "
        "ĠðŁĻĤðŁĻĤ Ġ Â½ Â² Ġa /b //Ċ Ġdon 't .. Ġ' Å¿"
    ),
    "qwen35": (
        "3 3 3 3 + 7 7 7 ĠI 'LL ĊĊ Ġ Ġx âĢ©y čĊ HelloWorld ĠeÌģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ ĠðŁĻĤðŁĻĤ "
        "Ġ Â½ Â² Ġa /b //Ċ Ġdon 't .. Ġ' Å¿"
    ),
    "gpt-2 mpt olmo": (
        "3333 + 777 ĠI ' LL ĊĊĠ Ġx âĢ© y č Ċ HelloWorld Ġe Ìģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ ĠðŁĻĤðŁĻĤ "
        "ĠÂ½Â² Ġa / b // Ċ Ġdon 't .. Ġ' Å¿"
    ),
    "smollm starcoder refact command-r": (
        "3 3 3 3 + 7 7 7 ĠI ' LL ĊĊĠ Ġx âĢ© y č Ċ HelloWorld Ġe Ìģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ "
        "ĠðŁĻĤðŁĻĤ Ġ Â½ Â² Ġa / b // Ċ Ġdon 't .. Ġ' Å¿"
    ),
    "gpt-4o": (
        "333 3 + 777 ĠI'LL ĊĊ Ġ Ġx âĢ©y čĊ Hello World ĠeÌģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ ĠðŁĻĤðŁĻĤ Ġ "
        "Â½Â² Ġa /b //Ċ Ġdon't .. Ġ' Å¿"
    ),
    "tekken": (
        "3 3 3 3 + 7 7 7 ĠI 'LL ĊĊ Ġ Ġx âĢ©y čĊ Hello World ĠeÌģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ "
        "ĠðŁĻĤðŁĻĤ Ġ Â½ Â² Ġa /b //Ċ Ġdon 't .. Ġ' Å¿"
    ),
    "deepseek-llm": (
        "3 3 3 3 + 7 7 7 ĠI ' LL Ċ Ċ Ġ Ġx âĢ© y č Ċ HelloWorld Ġe ÌģĠ æĿ±äº¬ãĤ«ãĥĬíķľêµŃ "
        "ĠðŁĻĤðŁĻĤĠ Â½ Â² Ġa / b // Ċ Ġdon ' t .. Ġ' Å¿"
    ),
    "deepseek-coder": (
        "3 3 3 3 + 7 7 7 ĠI ' LL Ċ Ċ Ġ Ġx âĢ© y č Ċ HelloWorld Ġe Ìģ Ġ æĿ±äº¬ãĤ«ãĥĬíķľêµŃ "
        "ĠðŁĻĤðŁĻĤĠ Â½ Â² Ġa / b // Ċ Ġdon ' t .. Ġ' Å¿"
    ),
    "deepseek-v3": (
        "333 3 + 777 ĠI 'LL ĊĊ Ġ Ġx âĢ©y čĊ HelloWorld ĠeÌģ Ġ æĿ±äº¬ãĤ«ãĥĬ íķľêµŃ ĠðŁĻĤðŁĻĤ Ġ "
        "Â½Â² Ġa /b //Ċ Ġdon 't .. Ġ' Å¿"
    ),
    "falcon": (
        "333 3 + 777 ĠI ' LL ĊĊĠ Ġx âĢ© y č Ċ HelloWorld Ġe Ìģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ ĠðŁĻĤðŁĻĤ "
        "ĠÂ ½ Â ² Ġa / b // Ċ Ġdon ' t .. Ġ ' Å¿"
    ),
    "default": (
        "333 3 + 777 ĠI ' LL ĊĊĠ Ġx âĢ© y č Ċ HelloWorld Ġe Ìģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ ĠðŁĻĤðŁĻĤ "
        "Ġ Â½Â² Ġa / b // Ċ Ġdon ' t .. Ġ ' Å¿"
    ),
    "seed-coder": (
        "3 3 3 3 + 7 7 7 ĠI 'LL ĊĊ Ġ Ġx âĢ©y čĊ HelloWorld Ġe Ìģ ĠæĿ±äº¬ãĤ«ãĥĬíķľêµŃ "
        "ĠðŁĻĤðŁĻĤ Ġ Â½ Â² Ġa /b // Ċ Ġdon 't .. Ġ' Å¿"
    ),
}  # fmt: skip


@pytest.mark.parametrize("names", WORDS)
def test_words(names: str) -> None:
    for name in names.split():
        words = PRE_TOKENIZERS[name].build().pre_tokenize_str(TEXT)
        assert [word for word, _ in words] == WORDS[names].split(), name


def test_all_are_tested() -> None:
    assert {name for names in WORDS for name in names.split()} == PRE_TOKENIZERS.keys()


def test_families_of_the_format_are_known() -> None:
    wanted = (
        "llama-bpe qwen2 gpt-2 smollm starcoder refact deepseek-llm deepseek-coder deepseek-v3 "
        "tekken gpt-4o command-r falcon mpt olmo dbrx stablelm2 glm4 qwen35 default"
    )
    assert set(wanted.split()) <= PRE_TOKENIZERS.keys()
    assert set(ALIASES.values()) <= PRE_TOKENIZERS.keys()
    assert not ALIASES.keys() & PRE_TOKENIZERS.keys()
    assert supported_names() == sorted({*ALIASES, *PRE_TOKENIZERS})


def test_normal_form() -> None:
    """Where the model's own file composes characters, so do we (llama.cpp does not)."""
    composed = {name for name, one in PRE_TOKENIZERS.items() if one.nfc}
    assert composed == {"qwen2", "qwen35", "stablelm2", "command-r", "mpt", "olmo"}
    for name in ("qwen2", "gpt-2"):
        tokenizer = Tokenizer.from_metadata(gpt2_metadata(pre=name))
        ids = tokenizer.encode("e\u0301", add_special=False)
        assert tokenizer.decode(ids) == ("é" if name == "qwen2" else "e\u0301")


def test_patterns_that_stand_for_slower_ones_have_the_same_matches() -> None:
    draw = random.Random(2)
    for slow in _LINEAR:
        theirs, ours = pre_tokenizers.Split(Regex(slow), "isolated"), Split(slow).build()
        for _ in range(500):
            text = "".join(draw.choices(" \t\u3000\na5.", k=draw.randrange(12)))
            assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


def test_aliases_and_unknown_names() -> None:
    assert find_pre_tokenizer("llama3") is PRE_TOKENIZERS["llama-bpe"]
    assert find_pre_tokenizer("chatglm-bpe") is PRE_TOKENIZERS["glm4"]
    with pytest.raises(GgufError, match=r"tokenizer\.ggml\.pre is 'nonsense'.*smollm"):
        Tokenizer.from_metadata(gpt2_metadata(pre="nonsense"))


# --- from a tokenizer.json ---


def split(pattern: str, **changes: Any) -> dict[str, Any]:
    found = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return {**found, "invert": False, **changes}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
CASELESS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NFC = {"type": "NFC"}


def names_of(steps: Any, normalizer: Any = None, **model: Any) -> list[str]:
    if isinstance(steps, list):
        steps = {"type": "Sequence", "pretokenizers": steps}
    return recognized_names({"pre_tokenizer": steps, "normalizer": normalizer, "model": model})


@pytest.mark.parametrize("changes", [{}, {"behavior": "Removed", "invert": True}])
def test_names_of_a_chain(changes: Any) -> None:
    steps = [split(CASELESS, **changes), BYTES]
    assert names_of(steps) == ["dbrx", "glm4", "llama-bpe"]
    assert names_of(steps, ignore_merges=True) == ["llama-bpe", "dbrx", "glm4"]
    assert names_of(steps, NFC) == []


def test_names_of_a_single_step() -> None:
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    assert names_of(words) == ["gpt-2"]
    assert names_of(words, NFC) == ["mpt", "olmo"]
    assert names_of(words, {"type": "Sequence", "normalizers": []}) == ["gpt-2"]
    digits = {"type": "Digits", "individual_digits": True}
    assert names_of([digits, words]) == ["smollm", "starcoder", "refact"]
    assert names_of([digits, words], {"type": "Sequence", "normalizers": [NFC]}) == ["command-r"]
    assert names_of([{**digits, "individual_digits": False}, words]) == []


def test_line_ends_may_be_written_as_themselves() -> None:
    plain = CASELESS.replace(r"\r", "\r").replace(r"\n", "\n")
    assert names_of([split(plain), BYTES]) == names_of([split(CASELESS), BYTES])


@pytest.mark.parametrize(
    "steps",
    [
        None,
        [],
        {"type": "Whitespace"},
        [split(r"\d+"), BYTES],
        [split(CASELESS, behavior="MergedWithPrevious"), BYTES],
        [split(CASELESS), {**BYTES, "add_prefix_space": True}],
        [split(CASELESS)],
        [{**split(CASELESS), "pattern": {"String": " "}}, BYTES],
        [{"type": "Split"}],
        "ByteLevel",
    ],
)
def test_unknown_chains_have_no_name(steps: Any) -> None:
    assert names_of(steps) == []


def test_every_entry_is_recognised() -> None:
    """What we write we read: each chain as JSON gives its own name."""
    for name, one in PRE_TOKENIZERS.items():
        steps = []
        for step in one.steps:
            built = step.build()
            shown = json.loads(built.__getstate__())
            if isinstance(step, Split):
                shown["pattern"] = {"Regex": step.pattern}
            steps.append(shown)
        found = names_of(steps, NFC if one.nfc else None, ignore_merges=one.ignore_merges)
        assert name in found
        assert PRE_TOKENIZERS[found[0]].ignore_merges == one.ignore_merges
