"""Gradient-boosted regression trees, read from plain lists and walked in plain Python: serving needs no library for them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

TREES_MAX = 1_000
LEAVES_MAX = 64  # of one tree


class TreesError(ValueError):
    """A document does not describe trees; the text says why."""


class _Split(NamedTuple):
    """Go left where the feature is at most the threshold."""

    feature: int
    threshold: float
    left: "_Split | float"
    right: "_Split | float"


class Trees:
    """A sum of trees.

    A document is a list of trees, a tree a list of nodes with its root first: `[value]` is a leaf, `[feature, threshold,
    left, right]` a split with the places of its children, which stand further on.
    """

    __slots__ = ("_roots",)

    def __init__(self, document: object, features: int) -> None:
        if not isinstance(document, list) or not 1 <= len(document) <= TREES_MAX:
            raise TreesError(f"a list of 1 to {TREES_MAX} trees is needed")
        self._roots = [_root(nodes, features) for nodes in document]

    def sum(self, features: Sequence[float]) -> float:
        """What the trees add up to for a vector of features."""
        total = 0.0
        for root in self._roots:
            node: _Split | float = root
            while type(node) is _Split:
                feature, threshold, left, right = node
                node = left if features[feature] <= threshold else right
            total += node  # type: ignore[operator]  # what is no split is a number
        return total


def _root(nodes: object, features: int) -> _Split | float:
    if not isinstance(nodes, list) or not 1 <= len(nodes) < 2 * LEAVES_MAX:
        raise TreesError(f"a tree is a list of nodes with at most {LEAVES_MAX} leaves")
    built: dict[int, _Split | float] = {}
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        if not isinstance(node, list) or not all(isinstance(one, int | float) and math.isfinite(one) for one in node):
            raise TreesError("a node is a list of finite numbers")
        if len(node) == 1:
            built[place] = float(node[0])
            continue
        if len(node) != 4:
            raise TreesError("a node has one number or four")
        feature, threshold, left, right = node
        if feature not in range(features) or not all(child in built and child > place for child in (left, right)):
            raise TreesError("a split names a feature or a child that is not there")
        built[place] = _Split(int(feature), float(threshold), built[left], built[right])
    return built[0]
