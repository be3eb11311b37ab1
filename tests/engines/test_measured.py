"""Adapters that read metrics: of vLLM over what it really sent, of SGLang and TGI over pages written from their documentation."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.engines.adapter import Adapter, Gauges, Report
from fairlane.engines.sglang import SGLang
from fairlane.engines.tgi import TGI
from fairlane.engines.vllm import VLLM
from tests.engines.record import PAGES

Answers = list[tuple[int, bytes]]


def page(name: str) -> bytes:
    """A page as it is kept."""
    return (PAGES / name).read_bytes()


VLLM_PAGE, MODELS = page("vllm-0.32.0-metrics.txt"), page("vllm-0.32.0-models.json")
SGLANG_PAGE = page("sglang-0.5.23-written-from-its-documentation-metrics.txt")
TGI_PAGE, INFO = page("tgi-3-written-from-its-documentation-metrics.txt"), page("tgi-3-written-from-its-documentation-info.json")
BUSY = Gauges(running=2, waiting=3, kv_ratio=0.004887585532746819, preemptions=0, prompt_tokens=480, cached_tokens=128)
OLD = b"""\
vllm:num_requests_running{model_name="m"} 4.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:num_preemptions_total{model_name="m"} 9.0
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 40.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",sliding_window="None"} 1.0
"""
OLD_GAUGES = Gauges(running=4, waiting=1, kv_ratio=0.5, preemptions=9, prompt_tokens=100, cached_tokens=40)
SGLANG_GAUGES = Gauges(running=12, waiting=2, kv_ratio=0.28, preemptions=3, prompt_tokens=8_128_902, cached_tokens=61_005)


def served(metrics: bytes, status: int = 200) -> Answers:
    """The answers of a server that is well, with this page of metrics."""
    return [(200, b""), (200, MODELS), (status, metrics)]


def told(gauges: Gauges | None, kv_tokens: int | None = None, problem: str | None = None) -> Report:
    """The report of that server."""
    return Report(healthy=True, context=2048, models=("tiny",), gauges=gauges, kv_tokens=kv_tokens, problem=problem)


def ranks(text: bytes) -> bytes:
    """A page of one core as two cores have it: the second has its own samples beside the first's."""
    samples = [line for line in text.splitlines(keepends=True) if not line.startswith(b"#")]
    return text + b"".join(line.replace(b'engine="0"', b'engine="1"') for line in samples)


TWICE = Gauges(running=4, waiting=6, kv_ratio=BUSY.kv_ratio, preemptions=0, prompt_tokens=960, cached_tokens=256)
UNKNOWN = "/metrics: has none of the series that are known; its load is not known"
VLLMS: dict[str, tuple[Answers, Report]] = {
    "recorded": (served(VLLM_PAGE), told(BUSY, 131_072)),
    "recorded, as two cores": (served(ranks(VLLM_PAGE)), told(TWICE, 262_144)),
    "older names": (served(OLD), told(OLD_GAUGES, 16_000)),
    "a cache without a size": (served(OLD.replace(b'"1000"', b'"None"')), told(OLD_GAUGES)),
    "a cache of odd sizes": (served(OLD.replace(b'"16"', b'"\xd9\xa1"').replace(b'"1000"', b'"' + b"9" * 5000 + b'"')), told(OLD_GAUGES)),
    "cut off in a number": (served(b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1"), told(Gauges(running=3))),
    "unknown version": (served(b"vllm:requests 3\n"), told(None, problem=UNKNOWN)),
    "HTML": (served(b"<html>vllm:num_requests_running 3\n</html>\n"), told(None, problem=UNKNOWN)),
    "no page": (served(b"", 404), told(None, problem="/metrics: HTTP 404; its load is not known")),
    "page not reached": (served(b"", 0), told(None, problem="/metrics: not reached; its load is not known")),
    "key refused": (
        [(200, b""), (401, b""), (200, VLLM_PAGE)],
        Report(healthy=True, gauges=BUSY, kv_tokens=131_072, problem="HTTP 401: the engine refuses the api_key"),
    ),
    "dead": ([(503, b""), (200, MODELS), (200, VLLM_PAGE)], Report(healthy=False, problem="HTTP 503")),
    "models fail": ([(200, b""), (500, b""), (200, VLLM_PAGE)], Report(healthy=False, problem="HTTP 500")),
    "not reached": ([(0, b"")] * 3, Report(healthy=False, problem="not reached")),
    "no answers": ([], Report(healthy=False, problem="not reached")),
}
SGLANGS: dict[str, tuple[Answers, Report]] = {
    "written": (served(SGLANG_PAGE), told(SGLANG_GAUGES, 942_516)),
    "with underscores": (served(SGLANG_PAGE.replace(b"sglang:", b"sglang_")), told(SGLANG_GAUGES, 942_516)),
    "without metrics": (served(b"", 404), told(None, problem="/metrics: HTTP 404; start it with --enable-metrics")),
    "starting": ([(503, b""), (0, b""), (0, b"")], Report(healthy=False, problem="HTTP 503")),
}
TGIS: dict[str, tuple[Answers, Report]] = {
    "written": (
        [(200, b""), (200, INFO), (200, TGI_PAGE)],
        Report(healthy=True, context=4096, models=("bigscience/bloom",), gauges=Gauges(running=4, waiting=7)),
    ),
    "with all sizes": (
        [(200, b""), (200, b'{"max_batch_total_tokens":9000,"max_batch_size":8,"max_total_tokens":"4096"}'), (200, TGI_PAGE)],
        Report(healthy=True, slots=8, kv_tokens=9000, gauges=Gauges(running=4, waiting=7)),
    ),
    "nothing but health": (
        [(200, b""), (404, b""), (0, b"")],
        Report(healthy=True, problem="/info: HTTP 404; /metrics: not reached; its load is not known"),
    ),
    "not well": ([(503, b'{"error":"unhealthy"}'), (200, INFO), (200, TGI_PAGE)], Report(healthy=False, problem="HTTP 503")),
    "not reached": ([(0, b"")] * 3, Report(healthy=False, problem="not reached")),
}


@pytest.mark.parametrize("case", VLLMS)
def test_vllm(case: str) -> None:
    """Load and size of the cache are read from every version's page, all cores together, and serving goes on without it."""
    answers, report = VLLMS[case]
    assert VLLM().read(answers) == report


@pytest.mark.parametrize("case", SGLANGS)
def test_sglang(case: str) -> None:
    """Data-parallel ranks add up; what other ranks and priorities repeat does not."""
    answers, report = SGLANGS[case]
    assert SGLang().read(answers) == report


@pytest.mark.parametrize("case", TGIS)
def test_tgi(case: str) -> None:
    """The sizes come from its own page of facts, the load from its metrics."""
    answers, report = TGIS[case]
    assert TGI().read(answers) == report


lines = st.sampled_from([line for text in (VLLM_PAGE, OLD, SGLANG_PAGE, TGI_PAGE) for line in text.splitlines(keepends=True) if line])
numbers = st.sampled_from([b" 1e308", b" -4", b" NaN", b" 9999999999999999999999", b" 0.5", b""])
torn = st.lists(st.tuples(lines, numbers).map(lambda pair: pair[0].rpartition(b" ")[0] + pair[1] + b"\n")).map(b"".join)
info = st.dictionaries(
    st.sampled_from(["model_id", "max_batch_size", "max_total_tokens", "max_batch_total_tokens", "data"]),
    st.none() | st.integers() | st.text() | st.lists(st.integers()),
).map(lambda value: json.dumps(value).encode())


@pytest.mark.parametrize("adapter", [VLLM(), SGLang(), TGI()], ids=lambda adapter: adapter.kind)
@given(answers=st.lists(st.tuples(st.sampled_from([0, 200, 200, 200, 404, 503]), st.binary() | torn | info), max_size=4))
def test_no_page_raises_or_gives_a_useless_number(adapter: Adapter, answers: Answers) -> None:
    """Whatever an engine sends, its report holds numbers that can be used as they are, and says what is wrong."""
    report = adapter.read(answers)
    gauges = report.gauges or Gauges()
    counts = (gauges.running, gauges.waiting, gauges.preemptions, gauges.prompt_tokens, gauges.cached_tokens)
    assert all(count is None or 0 <= count < 1 << 63 for count in counts)
    assert gauges.kv_ratio is None or 0 <= gauges.kv_ratio <= 1
    assert all(size is None or size > 0 for size in (report.kv_tokens, report.slots, report.context))
    assert report.problem or (report.healthy and report.gauges)
