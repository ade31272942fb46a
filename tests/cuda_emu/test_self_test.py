"""The self-test that tools run on a real device, on the emulated one."""

from __future__ import annotations

import pytest

from specdec_native import _core
from support.backends import CUDA_DEVICE


def test_the_emulated_instructions_do_what_they_are_defined_to_do():
    assert _core.testing.cuda_self_test(CUDA_DEVICE) == []


def test_other_backends_have_no_instructions_to_test():
    with pytest.raises(ValueError, match="'cpu' is no CUDA device"):
        _core.testing.cuda_self_test("cpu")
