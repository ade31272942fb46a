"""Loading: file and packed weights are not in memory together; a lookup table is not packed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HUGE_PAGE = 2 << 20
SCRIPT = """
import json, os, sys
from specdec_native import _core

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))

backend = _core.make_backend("cpu", 2)
before = memory("VmRSS")
model = _core.Model.load(sys.argv[1], backend)
print(json.dumps([memory("VmHWM") - before, model.weight_bytes]))
"""


def load_in_a_process(path: Path) -> tuple[int, int]:
    """Returns the rise of the peak memory and the bytes of the weights."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], env=env, stdout=subprocess.PIPE)
    assert out.returncode == 0
    peak, weights = json.loads(out.stdout)
    return peak, weights


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("dtype", ["q4_K", "iq4_xs"])
def test_peak_memory_stays_near_the_size_of_the_file(
    make_model: Callable[..., Path], dtype: str
) -> None:
    path = make_model(dtype=dtype, width=1024, heads=8, head_dim=64, ffn=8192, layers=2)
    size = path.stat().st_size
    assert size > 25e6
    peak, _ = load_in_a_process(path)
    # Of the file, each of the two threads has a chunk in memory: where the system maps huge pages,
    # with all of the page around it, and of the page before while the chunk lies across its end.
    assert peak < 1.15 * size + 3e6 + 2 * HUGE_PAGE


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_table_that_is_only_looked_up_is_not_repacked(make_model: Callable[..., Path]) -> None:
    shape = {"dtype": "q8_0", "layers": 1, "pad_rows": 20000, "pad_tokens": False}
    tied, untied = (load_in_a_process(make_model(tied=t, **shape))[1] for t in (True, False))
    assert untied == tied
