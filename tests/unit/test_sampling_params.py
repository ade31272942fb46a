"""What SamplingParams accepts, and what it says about the rest."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import specdec_native as sd
from specdec_native.sampling import recommended_in


def test_defaults_leave_the_distribution_alone() -> None:
    params = sd.SamplingParams().resolved({})
    assert params.temperature == params.top_p == params.typical_p == params.repetition_penalty == 1
    assert params.top_k == params.min_p == params.presence_penalty == params.frequency_penalty == 0
    assert params.logit_bias == {}
    assert params.logprobs is None


def test_numbers_of_any_kind_are_taken() -> None:
    params = sd.SamplingParams(
        typical_p=np.float32(0.5),
        repetition_penalty=2,
        presence_penalty=-1,
        logit_bias={np.int64(5): np.float32(-2.0), 7: -math.inf, 0: 3},
        logprobs=np.uint8(4),
    )
    assert params.typical_p == 0.5
    assert params.logit_bias == {5: -2.0, 7: -math.inf, 0: 3.0}
    assert all(type(key) is int for key in params.logit_bias)
    assert params.logprobs == 4
    assert hash(params) == hash(sd.SamplingParams(**{**vars(params), "logit_bias": None}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"typical_p": 1.5}, "typical_p is 1.5; it must be from 0 to 1"),
        ({"typical_p": -0.1}, "typical_p is -0.1; it must be from 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0.0; it must be from 0.01 to 100"),
        ({"repetition_penalty": math.nan}, "repetition_penalty is nan; it must be from 0.01"),
        ({"presence_penalty": 1e9}, "presence_penalty is 1000000000.0; it must be from -100 to"),
        ({"frequency_penalty": -(10**400)}, "frequency_penalty is -inf; it must be from -100"),
        ({"temperature": -1}, "temperature is -1.0; it must be finite and >= 0"),
        ({"logprobs": -1}, "logprobs is -1; it must be from 0 to"),
        ({"logit_bias": {3: math.nan}}, "logit_bias of token 3 is nan; it must be from -1e+06 to"),
        ({"logit_bias": {3: math.inf}}, "logit_bias of token 3 is inf; it must be from -1e+06"),
        ({"logit_bias": {-3: 1.0}}, "a token id of logit_bias is -3; it must be from 0"),
    ],
)
def test_values_out_of_range_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        sd.SamplingParams(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"typical_p": "0.5"}, "typical_p is '0.5'; it must be a number"),
        ({"repetition_penalty": True}, "repetition_penalty is True; it must be a number"),
        ({"logprobs": True}, "logprobs is True; it must be a whole number"),
        ({"logit_bias": [(3, 1.0)]}, "logit_bias is [(3, 1.0)]; it must map token ids to numbers"),
        ({"logit_bias": {"3": 1.0}}, "a token id of logit_bias is '3'; it must be a whole number"),
        ({"logit_bias": {None: 1.0}}, "a token id of logit_bias is None; it must be a whole"),
        ({"logit_bias": {3: "x"}}, "logit_bias of token 3 is 'x'; it must be a number"),
    ],
)
def test_values_of_another_type_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        sd.SamplingParams(**fields)


def test_values_that_a_file_recommends() -> None:
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
        "general.sampling.min_p": 0.0,
        "general.sampling.penalty_repeat": 1.05,
        "general.sampling.mirostat": 2,
        "general.name": "x",
    }
    found = recommended_in(metadata)
    assert found == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
    }
    params = sd.SamplingParams(top_k=5, repetition_penalty=1).resolved(found)
    assert (params.temperature, params.top_k, params.repetition_penalty) == (0.6, 5, 1.0)
    assert recommended_in({"general.sampling.top_k": -1}) == {"top_k": 0}


@pytest.mark.parametrize(
    ("key", "value"),
    [("temp", -1.0), ("temp", "hot"), ("top_p", 1.5), ("top_k", 2.5), ("penalty_repeat", 0.0)],
)
def test_recommendations_out_of_range_name_the_key(key: str, value: Any) -> None:
    with pytest.raises(sd.GgufError, match=rf"general\.sampling\.{key} is {value!r}"):
        recommended_in({f"general.sampling.{key}": value})


def test_long_recommended_values_are_cut_in_messages() -> None:
    with pytest.raises(sd.GgufError) as caught:
        recommended_in({"general.sampling.temp": "x" * 100_000})
    assert len(str(caught.value)) < 400
