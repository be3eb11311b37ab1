"""The reader of metrics: what a real writer of the format makes is read as it was meant, and anything else does no harm."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from fairlane.engines.series import LINE_BYTES_MAX, SAMPLES_MAX, Series

NAME = "vllm:num_requests_running"
LABELS = st.lists(st.sampled_from(string.ascii_letters), unique=True, max_size=3)


def total(page: bytes) -> float | None:
    """What a page says of one name."""
    return Series(page, [NAME]).total(NAME)


@given(labels=LABELS, data=st.data())
def test_what_the_library_writes_is_read(labels: list[str], data: st.DataObject) -> None:
    """Any labels, whatever they hold, come out as they went in, and the values add up."""
    registry = CollectorRegistry()
    gauge = Gauge(NAME, 'Says "what" \\ it is.', labels, registry=registry)
    Gauge(NAME + "_too", "Another, whose name begins so, too.", registry=registry).set(5)
    texts = st.text(st.characters(exclude_categories=["Cs"]))
    rows = data.draw(st.dictionaries(st.tuples(*(texts for _ in labels)), st.integers(0, 10**9), min_size=1, max_size=4))
    for row, value in rows.items():
        (gauge.labels(*row) if labels else gauge).set(value)
    series = Series(generate_latest(registry), [NAME])
    assert series.total(NAME) == sum(rows.values())
    assert series.greatest(NAME) == max(rows.values())
    assert [tuple(found[label] for label in labels) for found in series.labels(NAME)] == list(rows)


@given(st.binary() | st.lists(st.sampled_from([NAME, "{", "}", 'a="', '"', "\\", ",", " ", "1", "e9", "NaN", "\n", "#"])).map("".join))
def test_no_page_raises(page: bytes | str) -> None:
    """Whatever a page holds, what is read of it is a number that can be used or nothing."""
    found = total(page.encode() if isinstance(page, str) else page)
    assert found is None or 0 <= found < float("inf")


@pytest.mark.parametrize(
    ("page", "value"),
    [
        (f"{NAME} 7\n", 7),
        (f"{NAME}{{}} 7.5e1 1395066363000\r\n", 75),
        (f'{NAME}{{a="}} 9"}} 7 # {{trace="x"}} 1\n', 7),
        (f'{NAME}{{ a = "1" , b="2",}} 7\n', 7),
        (f'{NAME}{{a="0"}} 3\n{NAME}{{a="1"}} 4\n', 7),
        (f'{NAME}{{a="0"}} 3\n{NAME}{{a="0"}} 4\n', 4),
        (f"{NAME} 7\n{NAME}_created 1e9\n", 7),
        (f"x{NAME} 7\n # {NAME} 7\n", None),
        (f"{NAME} NaN\n", None),
        (f"{NAME} +Inf\n", None),
        (f"{NAME} 1e400\n", None),
        (f"{NAME} -1\n", None),
        (f"{NAME} 1_0\n", None),
        (f'{NAME}{{a="0"\n{NAME}{{a=0}} 1\n{NAME}{{a="0"}}1\n', None),
        (f"{NAME} 7\n{NAME}", 7),
        (f"{NAME} 1", None),
        ("<!doctype html><title>metrics</title>\n", None),
        ("", None),
    ],
)
def test_lines_are_read_whole_or_not_at_all(page: str, value: float | None) -> None:
    """Spacing, time stamps and exemplars are understood; a number that is none, or cut off, is not taken for another."""
    assert total(page.encode()) == value


def test_work_and_memory_are_bounded() -> None:
    """Of endless lines and endless samples only so much is looked at."""
    assert total(f'{NAME}{{a="{"x" * LINE_BYTES_MAX}"}} 1\n{NAME} 2\n'.encode()) == 2
    many = "".join(f'{NAME}{{a="{number}"}} 1\n' for number in range(SAMPLES_MAX + 10))
    assert total(many.encode()) == SAMPLES_MAX
    label = "x" * 1_000
    wide = "".join(f'{NAME}{{b="{number}{label}"}} 1\n' for number in range(500))
    assert (total(wide.encode()) or 0) < 300
    assert total(f"{NAME} {'1' * 15}\n{NAME} {'0' * 100}1\n".encode()) == int("1" * 15)


def test_only_the_wanted_part_is_added_up() -> None:
    """A sample whose label has another value is left out; one without the label belongs to what is wanted."""
    page = f'{NAME}{{tp="0"}} 1\n{NAME}{{tp="1"}} 2\n{NAME} 4\n'.encode()
    assert Series(page, [NAME], only={"tp": "0"}).total(NAME) == 5
