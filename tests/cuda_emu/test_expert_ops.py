"""A mixture of experts on the device: by bytes what the cpu backend gives, and without the host.

Passes of one shape run one after the other: two as they are, until all memory has its place, the
third while it is recorded, which refuses every wait of the host, and the others as what was
recorded. Each row chooses other experts in each pass, so nothing of a choice may be recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_native import _core
from support.backends import CUDA_DEVICE, make_backend
from support.weights import DTYPES, block_geometry, random_weight

WIDTHS = [1, 2, 3, 8, 9, 17, 33]
PASSES = 4
Raw = tuple[str, np.ndarray]


@pytest.fixture(scope="module")
def emu() -> _core.testing.Backend:
    return make_backend(CUDA_DEVICE)


@pytest.fixture(scope="module")
def cpu() -> _core.testing.Backend:
    return make_backend("cpu")


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def identity_router(experts: int, width: int) -> Raw:
    """The first values of a row are its logits."""
    return "F32", np.eye(experts, width, dtype=np.float32).view(np.uint8)


def stacks(dtype: str, experts: int, features: int, width: int) -> list[Raw]:
    """Gate, up and down."""
    shapes = [(features, width), (features, width), (width, features)]
    return [(dtype, random_weight(dtype, experts * n, k, seed=n + k)[0]) for n, k in shapes]


def check(emu: Any, cpu: Any, x: np.ndarray, *weights: Raw, **fields: Any) -> None:
    """The device gives the bytes of the cpu; of several passes it repeats what it recorded."""
    actual, (recorded, repeated) = emu.expert_mlp(x, *weights, **fields)
    expected, _ = cpu.expert_mlp(x, *weights, **fields)
    assert np.all(np.isfinite(expected))
    assert actual.tobytes() == expected.tobytes()
    if len(x) > 1:
        assert (recorded, repeated) == (1, len(x) - 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_at_every_width(emu: Any, cpu: Any, dtype: str) -> None:
    """Five experts, of which rows use two: octets that are full, that are not, and none."""
    block = block_geometry(dtype)[0]
    features, width = (256, 256) if block == 256 else (96, 64)
    weights = stacks(dtype, 5, features, width)
    thorough = dtype in ("Q5_K", "Q8_0", "BF16")
    for rows in WIDTHS if thorough else (1, 9):
        x = floats(PASSES if thorough else 1, rows, width, seed=rows)
        check(emu, cpu, x, identity_router(5, width), *weights, used=2)


@pytest.mark.parametrize("types", [("F32", "Q4_0", "Q6_K"), ("Q4_K", "Q4_K", "F16")])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_a_layer_of_several_types(
    emu: Any, cpu: Any, types: tuple[str, str, str], rows: int
) -> None:
    weights = [(t, random_weight(t, 7 * 256, 256, seed=i)[0]) for i, t in enumerate(types)]
    router = ("Q8_0", random_weight("Q8_0", 7, 256, seed=9)[0])
    check(emu, cpu, floats(PASSES, rows, 256), router, *weights, used=3, softmax_of_used=True)


@pytest.mark.parametrize("activation", ["silu", "gelu", "clamped_swiglu"])
@pytest.mark.parametrize("dtype", ["MXFP4", "BF16"])
@pytest.mark.parametrize("rows", [4, 18])
def test_biases_are_those_of_the_expert(
    emu: Any, cpu: Any, activation: str, dtype: str, rows: int
) -> None:
    experts, features, width = 6, 96, 64
    biases = [
        floats(*shape, seed=i + 1)
        for i, shape in enumerate([(experts,), *[(experts, n) for n in (features,) * 2 + (width,)]])
    ]
    weights = stacks(dtype, experts, features, width)
    x = floats(PASSES, rows, width)
    router = identity_router(experts, width)
    check(emu, cpu, x, router, *weights, used=4, activation=activation, biases=biases)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [(1, "Q4_0"), (3, "Q4_0"), (16, "Q4_0"), (40, "Q4_0"), (1, "F32"), (16, "F32")],
)
@pytest.mark.parametrize("used", [1, 3, 14])
def test_choices_at_the_edge(emu: Any, cpu: Any, dtype: str, rows: int, used: int) -> None:
    """Of 14 experts: all rows want one; a tie of all; NaN; a row of its own choice; all of them."""
    experts, width = 14, 32
    x = np.zeros((7, rows, width), np.float32)
    x[:, :, experts:] = floats(7, rows, width - experts)
    x[1, :, 11] = 9  # and ids 0 and 1 by the tie of the others
    x[2, :, experts - 1] = 2
    x[3, :, 5] = -1
    x[4] = floats(rows, width)
    x[5] = x[4, ::-1]
    x[6] = x[4]
    x[6, 0, :experts] = np.sort(x[6, 0, :experts])
    weights = stacks(dtype, experts, 32, width)
    check(emu, cpu, x, identity_router(experts, width), *weights, used=used)


@pytest.mark.parametrize("of_used", [False, True])
def test_a_nan_is_chosen_last(emu: Any, cpu: Any, of_used: bool) -> None:
    """It spoils its own row alone, whichever experts that has then."""
    x = floats(PASSES, 5, 64)
    x[:, 2, 3] = np.nan
    x[1, 4, :] = np.nan
    weights = (identity_router(9, 64), *stacks("Q8_0", 9, 32, 64))
    found = [b.expert_mlp(x, *weights, used=2, softmax_of_used=of_used)[0] for b in (emu, cpu)]
    assert np.array_equal(np.isnan(found[0]), np.isnan(found[1]))
    finite = np.isfinite(found[1])
    assert np.all(finite[:, [0, 1, 3]])
    assert found[0][finite].tobytes() == found[1][finite].tobytes()


def test_as_many_experts_as_there_may_be(emu: Any, cpu: Any) -> None:
    x = floats(PASSES, 3, 32)
    router = ("Q8_0", random_weight("Q8_0", 1024, 32, seed=1)[0])
    check(emu, cpu, x, router, *stacks("Q4_0", 1024, 32, 32), used=8)


def test_a_row_does_not_depend_on_the_others(emu: Any) -> None:
    x = floats(1, 40, 256)
    weights = (identity_router(8, 256), *stacks("Q5_K", 8, 256, 256))
    whole, _ = emu.expert_mlp(x, *weights, used=3)
    for first, last in ((0, 1), (0, 2), (7, 12), (20, 40)):
        part, _ = emu.expert_mlp(x[:, first:last].copy(), *weights, used=3)
        assert part.tobytes() == whole[:, first:last].tobytes()
