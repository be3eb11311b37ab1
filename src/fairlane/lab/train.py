"""Training of a light model of answer lengths on recorded requests.

The trees learn the logarithm of lengths from the features that the gateway computes, as it would have computed them: over a
replay, from the past only. Half of the records is then replayed with the guesses of trees that have seen only the other, older
half. So the histograms that go with the model know how good guesses are on traffic that the trees were not fitted to.

LightGBM fits them (extra `predict`). The model's file holds plain numbers, and serving needs no library to read it.
"""

import math
from collections.abc import Sequence
from typing import Any

from fairlane.errors import FairlaneError
from fairlane.lab.records import Record
from fairlane.lab.replay import replay
from fairlane.predict.asked import Asked
from fairlane.predict.predictor import Predictor
from fairlane.predict.state import Document
from fairlane.predict.trained.boosted import FEATURES, features
from fairlane.predict.trained.model import TreeList, model_document
from fairlane.predict.trained.trees import Trees

RECORDS_MIN = 200
RECORDS_MAX = 50_000  # the latest: more of them take minutes and add little
SETTINGS = {
    "objective": "regression",
    "num_leaves": 8,
    "learning_rate": 0.12,
    "min_data_in_leaf": 40,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "use_missing": False,  # what is unknown is -1, so that walking a tree is one comparison a level
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "seed": 1,
    "verbose": -1,
}
ROUNDS = 50  # trees: at three levels each, walking them takes about ten microseconds

Rows = list[tuple[float, ...]]


def train(records: Sequence[Record]) -> Document:
    """A model that has learned from these records."""
    if len(records) < RECORDS_MIN:
        raise FairlaneError(f"{len(records)} requests are too few to train on: at least {RECORDS_MIN} are needed")
    records = records[-RECORDS_MAX:]
    rows = _rows(records)
    lengths = [math.log2(record.tokens) for record in records]
    half = len(records) // 2
    older = Trees(fit(rows[:half], lengths[:half]), len(FEATURES))

    def with_guess(place: int, record: Record) -> Asked:
        return record.asked if place < half else record.asked._replace(guess=older.sum(rows[place]))

    histograms = Predictor()
    for _ in replay(records, histograms, with_guess):
        pass
    return model_document(fit(rows, lengths), histograms, records[-1].t)


def _rows(records: Sequence[Record]) -> Rows:
    histograms = Predictor()
    rows: Rows = []

    def note(_: int, record: Record) -> Asked:
        rows.append(features(histograms.tenant(record.asked), histograms.mixture(record.asked), record.asked, record.cap))
        return record.asked

    for _ in replay(records, histograms, note):
        pass
    return rows


def fit(rows: Rows, lengths: Sequence[float]) -> TreeList:
    """Trees whose sum comes near these lengths."""
    try:
        import lightgbm  # noqa: PLC0415 - an extra, needed for this alone
        import numpy as np  # noqa: PLC0415 - comes with it
    except (ImportError, OSError) as error:  # the latter where a library of the system is missing
        raise FairlaneError(f"training needs the extra 'predict': pip install 'fairlane[predict]' ({error})") from error
    table = lightgbm.Dataset(np.array(rows), np.array(lengths), free_raw_data=False)
    booster = lightgbm.train(SETTINGS, table, num_boost_round=ROUNDS)
    return [_flat(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]]


def _flat(root: dict[str, Any]) -> list[list[float]]:
    """LightGBM's nested nodes as a list, parents before their children."""
    nodes: list[list[float]] = []
    waiting = [root]
    while waiting:
        node = waiting.pop(0)
        if "leaf_value" in node:
            nodes.append([float(node["leaf_value"])])
            continue
        left = len(nodes) + len(waiting) + 1
        nodes.append([node["split_feature"], float(node["threshold"]), left, left + 1])
        waiting += [node["left_child"], node["right_child"]]
    return nodes
