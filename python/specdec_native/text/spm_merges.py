"""Merge rules for SentencePiece vocabularies, which store scores instead.

SentencePiece joins, again and again, the two neighbours whose union has the best score (the
leftmost on a tie). A list of merges in the order of the scores of their results does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["derive_merges"]


def derive_merges(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Lists the pairs of pieces whose union is a piece, best first.

    Args:
        pieces: Text of a piece -> token id: only those that merging may use or produce.
        scores: Score of each token id.

    Returns:
        The pairs in the order in which they are to be merged.
    """
    # Sorting the pieces (not the pairs, of which there are several times as many) keeps this fast.
    # The id breaks ties between pieces; within a piece the longest left part comes first, as
    # Hugging Face's converter has it, whose ids models are compared with.
    ranked = sorted(pieces.items(), key=lambda item: (-scores[item[1]], item[1]))
    merges: list[tuple[str, str]] = []
    for piece, _ in ranked:
        for cut in range(len(piece) - 1, 0, -1):
            left = piece[:cut]
            if left in pieces:
                right = piece[cut:]
                if right in pieces:
                    merges.append((left, right))
    return merges
