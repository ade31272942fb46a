"""``specdec convert`` with a whole model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oracle_checkpoint import read_oracle, write_checkpoint
from specdec_native.cli import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_convert_a_model(tmp_path: Path) -> None:
    folder = write_checkpoint(read_oracle("llama"), tmp_path / "hf")
    done = run(folder, tmp_path / "m.gguf", "--type", "q4_k_m")
    assert done.exit_code == 0, done.output
    assert "m.gguf: llama model, 21 tensors" in done.stdout
    assert "are Q5_0, since their rows are no whole blocks of q4_k_m" in done.stderr
    done = run(folder, tmp_path / "s.gguf", "-t", "q8_0", "--split-size", "40K", "--json")
    result = json.loads(done.stdout)
    assert len(result["files"]) > 1
    assert result["path"] == result["files"][0]
    assert result["fallbacks"] == {}
    assert run(folder, tmp_path / "m.gguf", "--split-size", "much").exit_code == 2


INTERRUPTED = """
import os, signal, sys
from specdec_native.convert import gguf_file
real = gguf_file._row_bytes
def interrupted(plan, dtype, threads):
    for rows in real(plan, dtype, threads):
        yield rows
        os.kill(os.getpid(), signal.SIGINT)
gguf_file._row_bytes = interrupted
from specdec_native.cli import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("split", [(), ("--split-size", "40K")])
def test_an_interrupt_leaves_nothing(tmp_path: Path, split: tuple[str, ...]) -> None:
    folder = write_checkpoint(read_oracle("llama"), tmp_path / "hf")
    (tmp_path / "out").mkdir()
    arguments = ["convert", str(folder), str(tmp_path / "out" / "m.gguf"), *split]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")
    assert list((tmp_path / "out").iterdir()) == []
