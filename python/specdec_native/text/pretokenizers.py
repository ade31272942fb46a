"""How each ``tokenizer.ggml.pre`` cuts text into words before byte pairs are merged.

A pre-tokeniser is a chain of steps, the same as in the ``pre_tokenizer`` of the model's own
``tokenizer.json`` and run by the same library, so that the ids are those of Hugging Face. GGUF
carries only the chain's name; the table below is read both ways: from the name to the chain when a
file is loaded, from the chain to the name when a checkpoint is converted (`recognized_names`).

To add one: an entry in `PRE_TOKENIZERS`, with the steps of the model's ``tokenizer.json``, and
words for it in the tests.

The patterns are facts of the formats. They are those of ``tokenizer.json`` files on the Hugging
Face hub (of gpt2, SmolLM2, starcoder2, Refact-1.6B, falcon-7b, deepseek-llm, deepseek-coder,
DeepSeek-V3, Meta-Llama-3, Qwen2, gpt-oss, Mistral-Nemo, c4ai-command-r, gpt-neox-20b for ``mpt``
and ``olmo``), of Hugging Face's own classes (Qwen 3.5, GPT-NeoX, Cohere), and else the originals
that llama.cpp's ``llama-vocab.cpp`` quotes. Where llama.cpp deviates from the model's own file (no
normal form C, no single digits for ``deepseek-llm``, and so on), the model's own file wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from specdec_native.errors import GgufError, shortened

__all__ = [
    "ALIASES",
    "PRE_TOKENIZERS",
    "PreTokenizer",
    "find_pre_tokenizer",
    "recognized_names",
    "supported_names",
]


# Patterns that take quadratic time for some texts, and others with the same matches that do not:
# here a long run of blanks, each of which would be a place to begin.
_LINEAR = {r"\s+$": r"(?<!\s)\s+$"}


@dataclass(frozen=True)
class Split:
    """Each match of a pattern is a word of its own, and so is what lies between two matches."""

    pattern: str

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Returns the step for the `tokenizers` library."""
        return pre_tokenizers.Split(Regex(_LINEAR.get(self.pattern, self.pattern)), "isolated")


@dataclass(frozen=True)
class Digits:
    """Numbers apart from the rest; each digit apart if `individual`."""

    individual: bool

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Returns the step for the `tokenizers` library."""
        return pre_tokenizers.Digits(individual_digits=self.individual)


@dataclass(frozen=True)
class Punctuation:
    """Runs of punctuation apart from the rest."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Returns the step for the `tokenizers` library."""
        return pre_tokenizers.Punctuation("contiguous")


@dataclass(frozen=True)
class ByteLevel:
    """Bytes become visible characters; with `use_regex` GPT-2's pattern cuts words before that."""

    use_regex: bool

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Returns the step for the `tokenizers` library."""
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.use_regex)


Step = Split | Digits | Punctuation | ByteLevel


@dataclass(frozen=True)
class PreTokenizer:
    """One way of cutting text into words.

    Attributes:
        steps: Applied in order, each to the pieces of the one before; bytes become characters in
            one of them.
        nfc: Text is brought into Unicode normal form C first.
        ignore_merges: A word that is a token as a whole is taken as it is, without merging.
        add_bos: Whether a sequence starts with BOS when the file does not say.
    """

    steps: tuple[Step, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        """Returns the normaliser for the `tokenizers` library, or None."""
        return normalizers.NFC() if self.nfc else None

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Returns the pre-tokeniser for the `tokenizers` library."""
        return pre_tokenizers.Sequence([step.build() for step in self.steps])


def _bytes_after(*patterns: str) -> tuple[Step, ...]:
    """Patterns, and bytes at the end."""
    return (*map(Split, patterns), ByteLevel(use_regex=False))


# The letters, marks and punctuation patterns below occur in several families; %s is where they
# differ: how many digits make a word.
_CASELESS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# A capital starts a word: `camelCase` is two.
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%(ending)s"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%(ending)s|\p{{N}}%(digits)s{_TAIL}"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CL100K = _CASELESS % "{1,3}"
_O200K = _CASED % {"ending": _CONTRACTION, "digits": "{1,3}"}
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED_CODER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _characters(ranges: str) -> str:
    """Hexadecimal code points, ``from-to`` or single, as the inside of a character class."""
    return "".join("-".join(chr(int(end, 16)) for end in one.split("-")) for one in ranges.split())


# Letters with case, as the model's file lists them. They are written as code points since some are
# replaced by others when text is brought into a normal form, as editors may.
_DEEPSEEK_LETTERS = _characters(
    """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386
    388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA
    1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59
    1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC
    1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139
    213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B
    A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F
    104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
    """
)
_DEEPSEEK_PUNCTUATION = _characters("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_DEEPSEEK_CJK = f"[{_characters('4E00-9FA5 800-4E00 AC00-D7FF')}]+"
_DEEPSEEK_V3_CJK = f"[{_characters('4E00-9FA5 3040-309F 30A0-30FF')}]+"

_WORDS = (ByteLevel(use_regex=True),)
_SINGLE_DIGITS = (Digits(individual=True), ByteLevel(use_regex=True))
_DEEPSEEK_END = (Split(_DEEPSEEK_CJK), Digits(individual=True), ByteLevel(use_regex=False))

# Of entries with the same steps, the first is the one that a converter writes.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "llama-bpe": PreTokenizer(_bytes_after(_CL100K), ignore_merges=True, add_bos=True),
    "dbrx": PreTokenizer(_bytes_after(_CL100K)),
    "glm4": PreTokenizer(_bytes_after(_CL100K)),
    "qwen2": PreTokenizer(_bytes_after(_CASELESS % ""), nfc=True),
    "stablelm2": PreTokenizer(_bytes_after(_CASELESS % ""), nfc=True),
    "hunyuan": PreTokenizer(_bytes_after(_CASELESS % "")),
    "qwen35": PreTokenizer(_bytes_after(_QWEN35), nfc=True),
    "gpt-2": PreTokenizer(_WORDS),
    "mpt": PreTokenizer(_WORDS, nfc=True),
    "olmo": PreTokenizer(_WORDS, nfc=True),
    "smollm": PreTokenizer(_SINGLE_DIGITS),
    "starcoder": PreTokenizer(_SINGLE_DIGITS),
    "refact": PreTokenizer(_SINGLE_DIGITS),
    "command-r": PreTokenizer(_SINGLE_DIGITS, nfc=True),
    "gpt-4o": PreTokenizer(_bytes_after(_O200K)),
    "tekken": PreTokenizer(
        _bytes_after(_CASED % {"ending": "", "digits": ""}), ignore_merges=True, add_bos=True
    ),
    "deepseek-llm": PreTokenizer(
        (
            Split(r"[\r\n]"),
            Split(rf"\s?[{_DEEPSEEK_LETTERS}]+"),
            Split(rf"\s?[{_DEEPSEEK_PUNCTUATION}]+"),
            Split(r"\s+$"),
            *_DEEPSEEK_END,
        )
    ),
    "deepseek-coder": PreTokenizer(
        (Split(r"[\r\n]"), Split(r"\s?\p{L}+"), Split(r"\s?\p{P}+"), *_DEEPSEEK_END)
    ),
    "deepseek-v3": PreTokenizer(_bytes_after(r"\p{N}{1,3}", _DEEPSEEK_V3_CJK, _DEEPSEEK_V3)),
    # Bytes are characters before the digits are looked for, so that some letters' second bytes
    # count as digits: odd, but so the model was trained.
    "falcon": PreTokenizer(
        (
            Punctuation(),
            ByteLevel(use_regex=True),
            Digits(individual=False),
            Split("[0-9][0-9][0-9]"),
        )
    ),
    # No model's own: what llama.cpp takes where a file names none.
    "default": PreTokenizer(
        _bytes_after(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
    ),
    "bailingmoe": PreTokenizer(_bytes_after(_BAILING)),
    "minicpm5": PreTokenizer(_bytes_after(r"\p{N}{1,3}", _CASELESS % "+"), ignore_merges=True),
    "seed-coder": PreTokenizer(_bytes_after(_SEED_CODER)),
}

# Other names of the same, from llama.cpp's llama-vocab.cpp.
ALIASES: dict[str, str] = {
    alias: name
    for name, aliases in {
        "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        "dbrx": "smaug-bpe",
        "glm4": "chatglm-bpe",
        "qwen2": "deepseek-r1-qwen kormo f2llmv2 megrez",
        "hunyuan": "solar-open grok-2",
        "gpt-2": "phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling",
        "smollm": "codeshell exaone minerva-7b mellum2",
        "gpt-4o": "llama4 kanana2 talkie minimax-m2",
        "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
        "bailingmoe": "bailingmoe2 llada-moe",
    }.items()
    for alias in aliases.split()
}


def supported_names() -> list[str]:
    """Returns every accepted name, aliases included, sorted."""
    return sorted([*PRE_TOKENIZERS, *ALIASES])


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """Returns the pre-tokeniser called `name`.

    Raises:
        GgufError: There is none. A guess would give wrong ids without a sign of it.
    """
    found = PRE_TOKENIZERS.get(ALIASES.get(name, name))
    if found is None:
        shown = shortened(repr(name))
        raise GgufError(
            f"tokenizer.ggml.pre is {shown}, which is not supported; supported are "
            f"{', '.join(supported_names())}. Use a model with one of these, or ask for "
            f"{shown} to be added."
        )
    return found


def recognized_names(tokenizer: Mapping[str, Any]) -> list[str]:
    """The names whose words are those of a ``tokenizer.json``, the preferred one first.

    Args:
        tokenizer: The parsed file; of it ``pre_tokenizer``, ``normalizer`` and ``model`` count.

    Returns:
        Names of `PRE_TOKENIZERS`; none if the chain of steps is not among them. Names that agree
        on ``ignore_merges`` too come first.
    """
    try:
        steps = tuple(_steps(tokenizer.get("pre_tokenizer")))
        kinds = [one.get("type") for one in _flat(tokenizer.get("normalizer"), "normalizers")]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []
    if kinds not in ([], ["NFC"]):
        return []
    ignore_merges = bool((tokenizer.get("model") or {}).get("ignore_merges", False))
    found = [
        name
        for name, one in PRE_TOKENIZERS.items()
        if one.nfc == bool(kinds) and tuple(map(_comparable, one.steps)) == steps
    ]
    return sorted(found, key=lambda name: PRE_TOKENIZERS[name].ignore_merges != ignore_merges)


def _flat(part: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a part of ``tokenizer.json``, sequences laid out."""
    if part is None:
        return
    if part.get("type") == "Sequence":
        for inner in part[name]:
            yield from _flat(inner, name)
    else:
        yield part


def _steps(part: Mapping[str, Any] | None) -> Iterator[Step]:
    """The steps of a ``pre_tokenizer``, in the form that is compared.

    Raises:
        ValueError: One of them is of no kind that we know.
    """
    for one in _flat(part, "pretokenizers"):
        kind = one["type"]
        if kind == "Split" and _keeps_all(one):
            yield _comparable(Split(one["pattern"]["Regex"]))
        elif kind == "Digits":
            yield Digits(bool(one.get("individual_digits", False)))
        elif kind == "Punctuation" and one.get("behavior") == "Contiguous":
            yield Punctuation()
        elif kind == "ByteLevel" and not one.get("add_prefix_space", True):
            yield ByteLevel(bool(one.get("use_regex", True)))
        else:
            raise ValueError(kind)


def _keeps_all(split: Mapping[str, Any]) -> bool:
    """Whether a split gives matches and what is between them.

    "Removed" with "invert" gives the matches alone; the patterns written so match every character.
    """
    return split["behavior"] == "Isolated" or (
        split["behavior"] == "Removed" and split.get("invert", False) is True
    )


def _comparable(step: Step) -> Step:
    """A step whose pattern has one spelling: some files write line ends as themselves."""
    if isinstance(step, Split):
        return Split(step.pattern.replace("\r", r"\r").replace("\n", r"\n"))
    return step
