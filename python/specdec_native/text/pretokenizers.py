"""How each ``tokenizer.ggml.pre`` cuts text into words before byte pairs are merged.

To add one: an entry in `PRE_TOKENIZERS` (and its aliases in `ALIASES`), with the patterns of the
model's own ``tokenizer.json``, and a golden test of its ids.

The patterns are facts of the formats: those of ``tokenizer.json`` files on the Hugging Face hub
(gpt2, HuggingFaceTB/SmolLM2, meta-llama/Meta-Llama-3, Qwen/Qwen2), and for ``default`` of
llama.cpp's ``llama-vocab.cpp``. Where the two differ the model's own file wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from specdec_native.errors import GgufError

__all__ = ["ALIASES", "PRE_TOKENIZERS", "PreTokenizer", "find_pre_tokenizer", "supported_names"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The patterns of Llama 3 and Qwen 2 differ only in how many digits make a word.
_CASELESS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """One way of cutting text into words.

    Attributes:
        patterns: Applied in order; each cuts the pieces of the one before into its matches and
            what lies between them.
        nfc: Text is brought into Unicode normal form C first.
        ignore_merges: A word that is a token as a whole is taken as it is, without merging.
        add_bos: Whether a sequence starts with BOS when the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        """Returns the normaliser for the `tokenizers` library, or None."""
        return normalizers.NFC() if self.nfc else None

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Returns the pre-tokeniser for the `tokenizers` library."""
        splits: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns
        ]
        splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(splits)


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": PreTokenizer((_CASELESS % "{1,3}",), ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer((_CASELESS % "",), nfc=True),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
}

ALIASES: dict[str, str] = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}


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
        raise GgufError(
            f"tokenizer.ggml.pre is {name!r}, which is not supported; supported are "
            f"{', '.join(supported_names())}. Use a model with one of these, or ask for "
            f"{name!r} to be added."
        )
    return found
