"""Reads a few series out of a page of metrics, in the text format that Prometheus scrapes.

The page is a stranger's: it may be HTML, of a version nobody has seen, enormous, or cut off in the middle. So only lines
that begin with a wanted name are looked at, a line that is not understood whole is passed over, and nothing raises. What
comes after the last line end is not read at all: half of the number 12 is a number, too.

Source: Prometheus' exposition formats 0.0.4 and OpenMetrics. Cost: one pass over the page, 0.3 ms for the 600 lines of vLLM.
"""

import re
from collections.abc import Iterable

SAMPLES_MAX = 1024  # that are kept of one page: hundreds of ranks have fewer
PARSED_BYTES_MAX = 262_144  # of lines that begin with a wanted name; vLLM's are 5,000
LINE_BYTES_MAX = 16_384  # of a line that is read; vLLM's longest has 2,000
VALUE_MAX = 1e15  # beyond, a float no longer counts exactly, and no engine does

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|(?=\}))')
_CLOSE = re.compile(rb"[ \t]*\}")
_VALUE = re.compile(rb"[ \t]+(\+?[0-9]{1,24}(?:\.[0-9]{0,24})?(?:[eE][+-]?[0-9]{1,3})?)(?:[ \t]+-?[0-9.]{1,24})?(?:[ \t]+#.*)?[ \t\r]*")
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}

Labels = dict[str, str]


class Series:
    """The samples of the wanted names on one page. Values are finite and not negative; others were passed over."""

    def __init__(self, page: bytes, names: Iterable[str], *, only: Labels | None = None) -> None:
        """Keep the samples of these names whose labels, where they are there, have the values `only`."""
        self._samples: dict[str, dict[bytes, tuple[Labels, float]]] = {name: {} for name in names}
        starts = tuple(name.encode() for name in self._samples)
        only = only or {}
        kept = parsed = 0
        for line in page[: page.rfind(b"\n") + 1].split(b"\n"):
            if not line.startswith(starts) or len(line) > LINE_BYTES_MAX:
                continue
            parsed += len(line)
            if parsed > PARSED_BYTES_MAX:
                break
            sample = _sample(line)
            if sample is None:
                continue
            name, key, labels, value = sample
            known = self._samples.get(name)
            if known is not None and kept < SAMPLES_MAX and all(labels.get(label, wanted) == wanted for label, wanted in only.items()):
                known[key] = labels, value
                kept += 1

    def __bool__(self) -> bool:
        return any(self._samples.values())

    def total(self, *names: str) -> float | None:
        """The sum over all labels of the first of these names that the page has."""
        values = self._values(names)
        return sum(values) if values else None

    def count(self, *names: str) -> int | None:
        """The same as a whole number."""
        total = self.total(*names)
        return None if total is None else round(total)

    def greatest(self, *names: str) -> float | None:
        """The largest value of the first of these names that the page has."""
        return max(self._values(names), default=None)

    def ratio(self, *names: str) -> float | None:
        """The same as a part of the whole."""
        greatest = self.greatest(*names)
        return None if greatest is None else min(greatest, 1.0)

    def labels(self, name: str) -> list[Labels]:
        """The labels of each sample of a name."""
        return [labels for labels, _ in self._samples[name].values()]

    def _values(self, names: tuple[str, ...]) -> list[float]:
        found = next((samples for name in names if (samples := self._samples[name])), {})
        return [value for _, value in found.values()]


def _sample(line: bytes) -> tuple[str, bytes, Labels, float] | None:
    """The name of a line, its labels as they stand there and as they are meant, and its value; None if it is no sample."""
    name = _NAME.match(line)
    if name is None:
        return None
    labels: Labels = {}
    at = name.end()
    if line[at : at + 1] == b"{":
        at += 1
        while (label := _LABEL.match(line, at)) is not None:
            labels[label[1].decode()] = _ESCAPE.sub(_unescaped, label[2].decode(errors="replace"))
            at = label.end()
        close = _CLOSE.match(line, at)
        if close is None:
            return None
        at = close.end()
    value = _VALUE.fullmatch(line, at)
    if value is None or (number := float(value[1])) > VALUE_MAX:
        return None
    return name[0].decode(), line[name.end() : at], labels, number


def _unescaped(escape: re.Match[str]) -> str:
    return _UNESCAPED.get(escape[1], escape[1])
