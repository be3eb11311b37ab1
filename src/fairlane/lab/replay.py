"""Past-only prediction over a trace: each request is predicted at its arrival, from the answers that were complete by then."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fairlane.lab.records import Record
from fairlane.predict.asked import Asked, Prediction
from fairlane.predict.predictor import LengthModel

SHORT_TOKENS = 256  # an answer of at most so many is short


class Foretold(NamedTuple):
    """What was said of a request before its answer was known, and how long the answer was."""

    tokens: int
    prediction: Prediction
    short: float  # the chance of a short answer
    half: int  # the median, in whole tokens as lengths are


def replay(
    records: Iterable[Record], lengths: LengthModel, prepare: Callable[[int, Record], Asked] = lambda _, record: record.asked
) -> Iterator[Foretold]:
    """Predict and learn in the order of time. `prepare` may add to what is asked, given the place of the record."""
    waiting: list[tuple[float, int, Record, Asked, Prediction]] = []
    for place, record in enumerate(records):
        while waiting and waiting[0][0] <= record.t:
            done, _, past, asked, prediction = heapq.heappop(waiting)
            lengths.learn(asked, past.cap, prediction, past.tokens, done)
        asked = prepare(place, record)
        prediction = lengths.predict(asked, record.cap)
        heapq.heappush(waiting, (record.done, place, record, asked, prediction))
        mixture = lengths.mixture(asked, record.cap)
        yield Foretold(record.tokens, prediction, mixture.up_to(SHORT_TOKENS)[0], math.ceil(mixture.quantile(0.5)))
    for done, _, past, asked, prediction in sorted(waiting, key=lambda entry: entry[:2]):
        lengths.learn(asked, past.cap, prediction, past.tokens, done)
