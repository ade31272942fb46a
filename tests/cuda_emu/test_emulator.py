"""What the emulated device refuses, and that it runs sound kernels afterwards."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from specdec_native import _core

SANITIZER = os.environ.get("SPECDEC_KERNELS_SANITIZED", "")
PROGRAM = Path(_core.__file__).parent / "emulator_faults"
EXPECTED = {
    "sound": "ok 32",
    "divergent_barrier": "__syncthreads at emulator_faults.cpp:",
    "early_return": "lanes wait for ever at emulator_faults.cpp:",
    "half_a_warp": "lanes wait for ever at emulator_faults.cpp:",
    "divergent_shuffles": "a warp collective at emulator_faults.cpp:",
    "too_much_shared_memory": "a block uses 52000 bytes of shared memory",
    "unasked_dynamic_memory": "dynamic shared memory in a launch that asked for none",
    "half_warp_block": "blocks of 48 threads",
    "host_pointer": "is not device memory",
    "copies": "ok 3",
    "waiting_while_recording": "a copy that waits while work is being recorded",
    "recorded": "ok 1",  # noted, not run
    "repeated": "ok 7",
    "other_device": "is memory of device 1, but the stream is one of device 0",
    "sound_again": "ok 32",
}


def reports(**settings: str) -> dict[str, str]:
    result = subprocess.run(
        [PROGRAM], env={**os.environ, **settings}, capture_output=True, text=True, check=True
    )
    return dict(line.split(": ", 1) for line in result.stdout.splitlines())


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("deferred", ["0", "1"])
def test_faults_are_found(order: str, deferred: str) -> None:
    found = reports(SPECDEC_EMU_ORDER=order, SPECDEC_EMU_DEFER=deferred)
    for name, text in EXPECTED.items():
        assert text in found[name], name


def test_streams_that_only_an_event_orders() -> None:
    late = reports(SPECDEC_EMU_DEFER="1")
    assert late["ordered_streams"] == "ok 3"
    assert late["unordered_streams"] == "ok 2"  # it read before anybody wrote


def test_pinned_memory_is_read_when_the_stream_gets_there() -> None:
    assert reports(SPECDEC_EMU_DEFER="0")["early_reuse"] == "ok 3"
    assert reports(SPECDEC_EMU_DEFER="1")["early_reuse"] == "ok 4"


def test_a_missing_barrier_shows_in_one_of_the_orders() -> None:
    assert reports(SPECDEC_EMU_ORDER="forward")["missing_barrier"] == "ok 7"
    assert "nan" in reports(SPECDEC_EMU_ORDER="reverse")["missing_barrier"]


def test_a_host_that_follows_a_device_pointer_ends_as_with_a_real_device() -> None:
    result = subprocess.run([PROGRAM, "read_from_the_host"], capture_output=True, check=False)
    assert result.returncode != 0
    assert result.returncode != 5  # the value that lies there


# Fault -> what the sanitizer that finds it says.
FOUND_BY = {
    "asan": {
        "sound": "",
        "beyond_device_memory": "use-after-poison",
        "beyond_shared_memory": "heap-buffer-overflow",
    },
    "tsan": {
        "sound": "",
        "missing_barrier": "data race",
        "order_by_shuffle": "data race",
        "blocks_collide": "data race",
    },
}


@pytest.mark.skipif(not SANITIZER, reason="the kernels of this build are not under a sanitizer")
@pytest.mark.parametrize("fault", sorted({**FOUND_BY["asan"], **FOUND_BY["tsan"]}))
def test_sanitizers_see_lanes_and_device_memory(fault: str) -> None:
    result = subprocess.run([PROGRAM, fault], capture_output=True, text=True, check=False)
    expected = FOUND_BY[SANITIZER].get(fault, "")
    assert expected in result.stderr
    assert (result.returncode == 0) == (expected == "")
