"""Captures logits of a real target and a real draft, for the statistical tests.

After a prompt the 64 likeliest tokens are taken as the whole vocabulary; row t holds the logits of
these tokens after the prompt and token t. So two models become two small Markov chains with the
shapes that real distributions have.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import specdec_native as sd


def main() -> None:
    """Writes ``target`` and ``draft`` logits [tokens, tokens] float32 and their ids to OUT.npz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="GGUF file")
    parser.add_argument("draft", help="GGUF file with the same vocabulary")
    parser.add_argument("out", type=Path, help="OUT.npz")
    parser.add_argument("--prompt", default="The weather today is warm, so we went")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    with sd.Generator(args.target, draft=None, n_ctx=256) as target:
        prompt = target.tokenize(args.prompt)
        ids = np.sort(np.argsort(-target.logits(prompt)[-1], kind="stable")[: args.tokens])
        target_rows = rows_after(target, prompt, ids)
    with sd.Generator(args.draft, draft=None, n_ctx=256) as draft:
        draft_rows = rows_after(draft, prompt, ids)
    np.savez_compressed(args.out, ids=ids, target=target_rows, draft=draft_rows)


def rows_after(model: sd.Generator, prompt: list[int], ids: np.ndarray) -> np.ndarray:
    """Returns the logits of ``ids`` after the prompt and each of them, [tokens, tokens]."""
    rows = [model.logits([*prompt, int(token)])[-1][ids] for token in ids]
    return np.stack(rows).astype(np.float32)


if __name__ == "__main__":
    main()
