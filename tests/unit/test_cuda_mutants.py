"""The seeded faults of tools/cuda_mutants.py still fit the kernels' sources."""

from __future__ import annotations

import pytest

from cuda_mutant_table import CUDA, MUTANTS, Mutant, mutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_faults_text_stands_once_in_its_file(mutant: Mutant) -> None:
    assert mutant.find in (CUDA / mutant.file).read_text()
    assert mutated(mutant) != (CUDA / mutant.file).read_text()
    assert mutant.under in ("", "reverse", "asan", "tsan")
    assert bool(mutant.units) == (CUDA / mutant.file).suffix.startswith((".cuh", ".h"))
    assert all((CUDA / unit).exists() for unit in mutant.units)


def test_names_tell_the_faults_apart() -> None:
    assert len({one.name for one in MUTANTS}) == len(MUTANTS) >= 20
