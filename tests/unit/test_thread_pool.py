"""The thread pool runs each task of a region exactly once, however threads are scheduled."""

from __future__ import annotations

import pytest

from specdec_native import _core


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_task_runs_exactly_once(threads: int) -> None:
    """More threads than cores: a late worker must not claim a task of the next region."""
    for most in (3, 40):
        assert _core.testing.count_bad_regions(threads, 700_000, most) == 0


@pytest.mark.parametrize("threads", [1, 4])
def test_an_exception_reaches_the_caller(threads: int) -> None:
    for bad_task in (0, 17, 99):
        with pytest.raises(ValueError, match=f"task {bad_task}"):
            _core.testing.throw_in_region(threads, 100, bad_task)
