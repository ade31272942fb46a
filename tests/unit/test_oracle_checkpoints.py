"""The checkpoints behind the golden logits can be made again without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from oracle_checkpoint import names_of, read_oracle, write_checkpoint


@pytest.mark.parametrize("name", names_of())
def test_checkpoints_are_made_again(tmp_path: Path, name: str) -> None:
    oracle = read_oracle(name)
    write_checkpoint(oracle, tmp_path)  # checks the weights against the golden checksum
    assert {
        key: value.shape for key, value in load_file(tmp_path / "model.safetensors").items()
    } == (oracle.tensors)
    for ids, rows, logits in zip(oracle.prompts, oracle.rows, oracle.logits, strict=True):
        assert logits.shape[0] == len(rows)
        assert max(rows) == len(ids) - 1
        assert np.isfinite(logits).all()
    assert {"torch", "transformers"} <= oracle.made_with.keys()


def test_shards_have_an_index(tmp_path: Path) -> None:
    oracle = read_oracle("llama")
    write_checkpoint(oracle, tmp_path, shards=3)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == oracle.tensors.keys()
    for file in set(index.values()):
        assert load_file(tmp_path / file).keys() == {one for one in index if index[one] == file}
