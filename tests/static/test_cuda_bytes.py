"""The counted bytes of docs/cuda.md are those that the tool counts, and keep their bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

import cuda_bytes

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPE = cuda_bytes.LLAMA_8B_Q4_K


def test_the_page_shows_the_table() -> None:
    assert cuda_bytes.table(SHAPE) in (ROOT / "docs" / "cuda.md").read_text()


@pytest.mark.parametrize(("rows", "depth"), cuda_bytes.CASES)
def test_a_pass_moves_little_but_what_it_needs(rows: int, depth: int) -> None:
    found = cuda_bytes.pass_bytes(SHAPE, rows, depth)
    assert sum(found.values()) <= 1.05 * cuda_bytes.needed_bytes(SHAPE, rows, depth)


@pytest.mark.parametrize(
    ("name", "file", "value"),
    [
        ("kAttentionChunk", "backend/attention_rule.h", cuda_bytes.CHUNK),
        ("kSpanChunks", "backend/attention_rule.h", cuda_bytes.SPAN),
        ("kAttentionTile", "backend/cuda/kernels/kernels.h", cuda_bytes.TILE),
    ],
)
def test_the_tool_counts_with_the_kernels_numbers(name: str, file: str, value: int) -> None:
    assert f"constexpr int {name} = {value};" in (ROOT / "csrc" / file).read_text()
