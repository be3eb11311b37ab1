"""The file of a trained model: its trees, the names of the features that they split on, and what the histograms had learned.

The names must be the ones that this version computes, in the same order: else the trees would read one thing for another.
"""

from fairlane.predict.predictor import Predictor
from fairlane.predict.state import Document, expect, lengths_document, lengths_from, opened
from fairlane.predict.trained.boosted import FEATURES, Boosted
from fairlane.predict.trained.trees import Trees

FORMAT = "fairlane-length-model"
VERSION = 1

TreeList = list[list[list[float]]]


def model_document(trees: TreeList, histograms: Predictor, now: float) -> Document:
    """A model as plain values. `trees` are in the form that `Trees` reads, `now` is as for `dump`."""
    lengths = lengths_document(histograms, now)
    return {"format": FORMAT, "version": VERSION, "features": FEATURES, "trees": trees, "lengths": lengths}


def load(data: bytes, now: float) -> Boosted:
    """The predictor that a model's file describes, or `SettingsError`."""

    def read(document: Document) -> Boosted:
        expect(document["features"] == list(FEATURES), "its features are not those of this version: train it anew")
        return Boosted(Trees(document["trees"], len(FEATURES)), lengths_from(document["lengths"], now))

    return opened(data, FORMAT, VERSION, "trained model", read)
