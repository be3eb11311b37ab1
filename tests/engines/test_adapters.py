"""Adapters over pages that real engines sent, and over pages that nobody should send."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.engines.adapter import Adapter, Gauges, Report
from fairlane.engines.llamacpp import LlamaCpp
from fairlane.engines.openai import OpenAI, Simulated
from tests.engines.record import BUSY, LOADING, page

HEALTH, PROPS, MODELS = page("health.json"), page("props.json"), page("models.json")
DEEP = b"[" * 100_000
VLLM = b'{"object":"list","data":[{"id":"m","object":"model","max_model_len":1024},{"id":"m-lora","max_model_len":2048,"parent":"m"}]}'
NO_METRICS = b'{"error":{"code":501,"message":"This server does not support metrics endpoint.","type":"not_supported_error"}}'
KNOWN = Report(healthy=True, slots=2, context=4096, models=("smollm2-135m",))
IDLE = Gauges(running=0, waiting=0, prompt_tokens=0, cached_tokens=0)

LLAMACPP = {
    "recorded": ([(200, HEALTH), (200, PROPS), (200, page("metrics.txt"))], replace(KNOWN, gauges=IDLE)),
    "recorded without metrics": ([(200, HEALTH), (200, PROPS)], KNOWN),
    "recorded while loading": ([(503, page(LOADING)), (503, page(LOADING))], Report(healthy=False, problem="loading model")),
    "old loading page": ([(503, b'{"status": "loading model"}')], Report(healthy=False, problem="loading model")),
    "a proxy's 503": ([(503, b"<h1>no upstream</h1>"), (0, b"")], Report(healthy=False, problem="HTTP 503")),
    "not reached": ([(0, b""), (0, b"")], Report(healthy=False, problem="not reached")),
    "no answers": ([], Report(healthy=False, problem="not reached")),
    "key refused": (
        [(200, HEALTH), (401, b'{"error":{"message":"Invalid API Key"}}')],
        Report(healthy=True, problem="/props: HTTP 401: the engine refuses the api_key"),
    ),
    "props failed": ([(200, HEALTH), (500, PROPS)], Report(healthy=True, problem="/props: HTTP 500")),
    "props not reached": ([(200, HEALTH), (0, b"")], Report(healthy=True, problem="/props: not reached")),
    "router mode": ([(200, HEALTH), (200, b'{"role":"router","max_instances":4,"model_alias":""}')], Report(healthy=True)),
    "nonsense": (
        [(200, b"\xff"), (200, b'{"total_slots":true,"default_generation_settings":[4096],"model_alias":7}')],
        Report(healthy=True),
    ),
    "busy": (
        [(200, HEALTH), (200, PROPS), (200, page(BUSY))],
        replace(KNOWN, gauges=Gauges(running=2, waiting=3, prompt_tokens=8, cached_tokens=0)),
    ),
    "older": (
        [(200, HEALTH), (200, PROPS), (200, b"llamacpp:kv_cache_usage_ratio 0.25\nllamacpp:requests_processing 1\n")],
        replace(KNOWN, gauges=Gauges(running=1, kv_ratio=0.25)),
    ),
    "started without metrics": ([(200, HEALTH), (200, PROPS), (501, NO_METRICS)], KNOWN),
    "metrics not reached": ([(200, HEALTH), (200, PROPS), (0, b"")], KNOWN),
    "another page of metrics": ([(200, HEALTH), (200, PROPS), (200, b"<html>\nup 1\n")], KNOWN),
    "no places": ([(200, b""), (200, b'{"total_slots":0,"default_generation_settings":{"n_ctx":-1}}')], Report(healthy=True)),
}

OPENAI = {
    "vllm": ([(200, VLLM)], Report(healthy=True, context=2048, models=("m", "m-lora"))),
    "llamacpp recorded": ([(200, MODELS)], Report(healthy=True, models=("smollm2-135m",))),
    "a bare list": ([(200, b'[{"id":"a"},{"id":"b"},{"id":"a"}]')], Report(healthy=True, models=("a", "b"))),
    "ollama without a model": ([(200, b'{"object":"list","data":null}')], Report(healthy=True)),
    "no such page": ([(404, b"404 page not found")], Report(healthy=True)),
    "page not for GET": ([(405, b"")], Report(healthy=True)),
    "key refused": ([(401, VLLM)], Report(healthy=True, problem="HTTP 401: the engine refuses the api_key")),
    "forbidden": ([(403, b"{}")], Report(healthy=True, problem="HTTP 403: the engine refuses the api_key")),
    "elsewhere": ([(301, b"")], Report(healthy=True, problem="HTTP 301")),
    "failing": ([(500, VLLM)], Report(healthy=False, problem="HTTP 500")),
    "busy": ([(503, b"{}")], Report(healthy=False, problem="HTTP 503")),
    "not reached": ([(0, b"")], Report(healthy=False, problem="not reached")),
    "no answers": ([], Report(healthy=False, problem="not reached")),
    "not JSON": ([(200, b"<html>")], Report(healthy=True)),
    "deep": ([(200, DEEP)], Report(healthy=True)),
    "cards of other types": (
        [(200, b'{"data":[null,1,"m",{"id":3},{"id":""},{"max_model_len":"8"},{"id":"m"}]}')],
        Report(True, models=("m",)),
    ),
    "data of another type": ([(200, b'{"data":{"id":"m"}}')], Report(healthy=True)),
}

SIMULATED = {
    "as it is": (
        [(200, b'{"object":"list","data":[{"id":"m","max_model_len":1024,"max_num_seqs":256}]}')],
        Report(healthy=True, slots=256, context=1024, models=("m",)),
    ),
    "another server": ([(200, VLLM)], Report(healthy=True, context=2048, models=("m", "m-lora"))),
    "a bare list": ([(200, b'[{"id":"a"}]')], Report(healthy=True, models=("a",))),
    "slots of another type": ([(200, b'{"data":[{"id":"m","max_num_seqs":"8"}]}')], Report(healthy=True, models=("m",))),
    "no such page": ([(404, b"")], Report(healthy=True)),
    "deep": ([(200, DEEP)], Report(healthy=True)),
    "not reached": ([(0, b"")], Report(healthy=False, problem="not reached")),
    "no answers": ([], Report(healthy=False, problem="not reached")),
}


@pytest.mark.parametrize("case", SIMULATED)
def test_simulated(case: str) -> None:
    """The simulated engine's slots are read beside what every server of the API tells."""
    answers, report = SIMULATED[case]
    assert Simulated().read(answers) == report


@pytest.mark.parametrize("case", LLAMACPP)
def test_llamacpp(case: str) -> None:
    """Each state of a llama.cpp server is reported as it is."""
    answers, report = LLAMACPP[case]
    assert LlamaCpp().read(answers) == report


@pytest.mark.parametrize("case", OPENAI)
def test_openai(case: str) -> None:
    """Each list of models is read as far as it makes sense, and whatever answers is healthy."""
    answers, report = OPENAI[case]
    assert OpenAI().read(answers) == report


KEYS = ["data", "id", "max_num_seqs", "total_slots", "default_generation_settings", "n_ctx", "model_alias"]
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=10,
)
body = st.binary() | json_value.map(lambda value: json.dumps(value).encode())


@pytest.mark.parametrize("adapter", [LlamaCpp(), OpenAI(), Simulated()], ids=lambda adapter: adapter.kind)
@given(data=st.data())
def test_no_answer_raises(adapter: Adapter, data: st.DataObject) -> None:
    """Whatever an engine sends, an adapter gives a report, whose numbers can be used as they are."""
    answers = data.draw(st.lists(st.tuples(st.integers(0, 999), body), max_size=3))
    report = adapter.read(answers)
    assert report.slots is None or report.slots > 0
    assert report.context is None or report.context > 0
    assert all(report.models)
    assert report.healthy or report.problem
