"""Makes tests/golden/unigrams.json: small unigram vocabularies, and the ids of texts.

    pip install sentencepiece protobuf
    python tools/make_unigram_golden.py

Both are trained on a few sentences: one with rules that replace characters and without extra
spaces, as T5's, the other with bytes for unknown characters and all spaces kept.
"""

from __future__ import annotations

import base64
import json
import random
import tempfile
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden" / "unigrams.json"
SEED = 4
SENTENCES = [
    "the draft model proposes tokens and the target verifies them",
    "a token is accepted if the target agrees, else it is recovered",
    "verifying eight tokens costs about as much as verifying one",
    "the text is the same, bit for bit, with drafting as without",
    "caches are rolled back to the accepted prefix of the text",
]
# Source and target of each rule as hexadecimal code points.
RULES = ["FB01\t66 69", "BD\t31 2F 32", "3000\t20", "9\t20"]
PARTS = [
    *(
        " ",
        "  ",
        "   ",
        "\n",
        "\t",
        "the",
        " the",
        "token",
        "tokens",
        "draft",
        " verif",
        "ies",
        "xyz",
    ),
    *("\u00e9", "\u6771\u4eac", "\U0001f642", "\ufb01x", "\u00bd", "\u3000", ",", "<0x0A>", "</s>"),
]


def train(folder: Path, **options: Any) -> dict[str, Any]:
    """One vocabulary and its ids of random texts."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    prefix = str(folder / "model")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_prefix=prefix,
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(Path(prefix + ".model").read_bytes())
    draw = random.Random(SEED)
    texts = ["".join(draw.choices(PARTS, k=draw.randrange(12))) for _ in range(120)]
    processor = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    spec = model.normalizer_spec
    return {
        "pieces": [piece.piece for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "types": [piece.type for piece in model.pieces],
        "charsmap": base64.b64encode(spec.precompiled_charsmap).decode(),
        "squeezes_spaces": spec.remove_extra_whitespaces,
        "texts": texts,
        "ids": [processor.encode(text) for text in texts],
    }


def main() -> None:
    """Trains both and writes the file."""
    import sentencepiece

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rules = folder / "rules.tsv"
        rules.write_text("\n".join(RULES) + "\n", encoding="utf-8")
        found = {
            "squeezed": train(folder, vocab_size=60, normalization_rule_tsv=str(rules)),
            "bytes": train(
                folder,
                vocab_size=320,
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
            ),
        }
    whole = {"versions": {"sentencepiece": sentencepiece.__version__}, "seed": SEED, **found}
    OUT.write_text(json.dumps(whole, indent=None) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
