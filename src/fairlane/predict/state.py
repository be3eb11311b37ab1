"""What was learned, as bytes that survive a restart.

A state is JSON: one line a program or a person can read. Weights are written as of today, times as ages, so that a clock that
starts anew does no harm. What does not match is refused as a whole, before anything is changed.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from fairlane.errors import SettingsError
from fairlane.predict.estimate import FACTOR_MAX, FACTORS_MAX, TEMPLATE_ANSWERS, TEMPLATES_MAX, Estimator, Factor, Sightings
from fairlane.predict.histogram import BUCKETS, Lengths
from fairlane.predict.kept import Kept
from fairlane.predict.levels import HISTOGRAMS_MAX, PRIORS, TRUST_MAX, Key, Tenant
from fairlane.predict.predictor import SHIFTS_MAX, UPPER_SHIFT_MAX, Predictor, Shift

FORMAT = "fairlane-lengths"
VERSION = 1

Document = dict[str, Any]
Row = list[Any]
_T = TypeVar("_T")
_L = TypeVar("_L", bound=Lengths)


def dump(estimator: Estimator, now: float) -> bytes:
    """All that an estimator has learned, as of `now` in the seconds that it was taught with."""
    return "".join(pieces(estimator, now)).encode()


def pieces(estimator: Estimator, now: float) -> Iterator[str]:
    """The same in pieces of at most one histogram, between which the estimator may go on learning.

    Each histogram is whole; which answers are in it depends on when its piece was made. None of them rests on another.
    """
    predictor = estimator.lengths.histograms
    yield f'{{"format":"{FORMAT}","version":{VERSION},"lengths":{{"phase":{predictor.phase!r},"shifts":'
    yield from _listed(predictor.shifts.items(), lambda entry: _shift_row(*entry))
    yield ',"tenants":'
    yield from _listed(predictor.levels.tenants.items(), lambda entry: _tenant_row(*entry, now))
    yield ',"nodes":'
    yield from _listed(predictor.levels.nodes.items(), lambda entry: _node_row(*entry, now))
    yield '},"models":'
    yield from _listed(estimator.models.items(), lambda entry: _factor_row([entry[0]], entry[1]))
    yield ',"tenants":'
    yield from _listed(estimator.tenants.items(), lambda entry: _factor_row(entry[0], entry[1]))
    yield "}"


def load(data: bytes, estimator: Estimator, now: float) -> None:
    """Give an estimator what another had learned, or raise `SettingsError` and leave it as it is."""

    def read(document: Document) -> tuple[Predictor, Kept[str, Factor], Kept[tuple[str, str], Factor]]:
        expect(max(len(document["models"]), len(document["tenants"])) <= FACTORS_MAX, "it holds too many factors")
        models = [(_text(model), _factor(log, samples)) for model, log, samples in document["models"]]
        tenants = [((_text(tenant), _text(model)), _factor(log, samples)) for tenant, model, log, samples in document["tenants"]]
        return lengths_from(document["lengths"], now), Kept(FACTORS_MAX, models), Kept(FACTORS_MAX, tenants)

    lengths, estimator.models, estimator.tenants = opened(data, FORMAT, VERSION, "state of predictions", read)
    estimator.lengths.histograms.become(lengths)
    estimator.templates = Kept(TEMPLATES_MAX)
    for model, tenant, template in lengths.levels.templates():
        estimator.templates.use((tenant, model, template), Sightings).answers = TEMPLATE_ANSWERS


def opened(data: bytes, kind: str, version: int, name: str, read: Callable[[Document], _T]) -> _T:
    """What `read` makes of a document of this kind and version; `SettingsError` with the `name` of it if that fails."""
    try:
        document = json.loads(data)
        expect(isinstance(document, dict) and document.get("format") == kind, f"it is not a {kind} document")
        expect(document["version"] == version, f"version {document['version']!r} is not {version}")
        return read(document)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SettingsError([f"the {name} does not match: {type(error).__name__}: {error}"]) from error


def lengths_document(predictor: Predictor, now: float) -> Document:
    """The histograms and the calibration of a predictor as plain values."""
    return {
        "phase": predictor.phase,
        "shifts": [_shift_row(*entry) for entry in predictor.shifts.items()],
        "tenants": [_tenant_row(*entry, now) for entry in predictor.levels.tenants.items()],
        "nodes": [_node_row(*entry, now) for entry in predictor.levels.nodes.items()],
    }


def lengths_from(document: Document, now: float) -> Predictor:
    """A predictor from its plain values; `ValueError`, `TypeError` or `KeyError` where they are not such."""
    predictor = Predictor()
    predictor.phase = _number(document["phase"], 0.0, 1.0)
    expect(len(document["shifts"]) <= SHIFTS_MAX, "it holds too many calibrations")
    predictor.shifts = Kept(
        SHIFTS_MAX,
        [
            ((_text(model), int(_number(rank, 0)), bool(is_guessed)), Shift(_number(log, -UPPER_SHIFT_MAX, UPPER_SHIFT_MAX)))
            for model, rank, is_guessed, log in document["shifts"]
        ],
    )
    expect(max(len(document["nodes"]), len(document["tenants"])) <= HISTOGRAMS_MAX, "it holds too many histograms")
    predictor.levels.tenants = Kept(
        HISTOGRAMS_MAX, [(_key(key), _lengths(Tenant(_odds(odds)), now, *values)) for key, *values, odds in document["tenants"]]
    )
    predictor.levels.nodes = Kept(HISTOGRAMS_MAX, [(_key(key), _lengths(Lengths(), now, *values)) for key, *values in document["nodes"]])
    return predictor


def _listed(entries: Iterator[_T], row: Callable[[_T], Row]) -> Iterator[str]:
    """A row for each of the entries that there are now, as a list in JSON; each is made when its turn comes."""
    before = "["
    for entry in list(entries):
        yield before + json.dumps(row(entry), separators=(",", ":"))
        before = ","
    yield "]" if before == "," else "[]"


def _factor_row(key: Iterable[str], factor: Factor) -> Row:
    return [*key, factor.log, factor.samples]


def _shift_row(key: tuple[str, int, bool], shift: Shift) -> Row:
    return [*key, shift.log]


def _tenant_row(key: Key, node: Tenant, now: float) -> Row:
    return [list(key), *_values(node, now), [_short(odds) for odds in node.odds]]


def _node_row(key: Key, node: Lengths, now: float) -> Row:
    return [list(key), *_values(node, now)]


def _values(node: Lengths, now: float) -> tuple[float, int, list[list[float]]]:
    """Age in seconds, answers, and of each bucket that is not empty its number, its count and its tokens."""
    filled = [
        [index, _short(count / node.weight), _short(tokens / node.weight)]
        for index, (count, tokens) in enumerate(zip(node.counts, node.sums, strict=True))
        if count
    ]
    return max(0.0, round(now - node.at, 3)), node.learned, filled


def _lengths(node: _L, now: float, age_s: object, learned: object, buckets: list[Any]) -> _L:
    node.at = now - _number(age_s, 0.0)
    node.learned = int(_number(learned, 1))
    for index, count, tokens in buckets:
        node.put(int(_number(index, 0, BUCKETS - 1)), _number(count, 0.0), _number(tokens, 0.0))
    expect(node.mass > 0.0, "a histogram is empty")
    return node


def _odds(values: list[Any]) -> list[float]:
    expect(len(values) == len(PRIORS), "a tenant has another number of odds")
    return [_number(odds, -TRUST_MAX, TRUST_MAX) for odds in values]


def _key(parts: object) -> Key:
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str | int) for part in parts):
        raise ValueError(f"{parts!r} is no key of texts and numbers")
    return tuple(parts)


def _factor(log: object, samples: object) -> Factor:
    most = math.log(FACTOR_MAX)
    return Factor(_number(log, -most, most), int(_number(samples, 1)))


def _short(value: float) -> float:
    """Six digits: a hundredth of what a single answer changes."""
    return float(f"{value:.6g}")


def _text(value: object) -> str:
    expect(isinstance(value, str), f"{value!r} is no text")
    return str(value)


def _number(value: object, least: float, most: float = 1e18) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{value!r} is no number from {least:g} to {most:g}")
    return value


def expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - as with assert, the condition comes first
    """Raise `ValueError` if a part of a document is not as it has to be."""
    if not holds:
        raise ValueError(otherwise)
