"""The trees of a model file: all that kernels rely on is checked.

The kernels that walk trees do not check their indices, and a wrong one would read foreign memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.tables import Categories
from greedymiser.files.checking import MOST, Arrays, is_ascending, require
from greedymiser.model.predictor import Stage
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Ensemble

Mask = NDArray[np.bool_]

FLOAT, INTEGER = np.dtype(np.float64), np.dtype(np.int64)


def read_ensembles(arrays: Arrays, n_features: int, categories: Categories) -> list[Ensemble]:
    """Read all ensembles of a file."""
    categorical = np.zeros(n_features, dtype=bool)
    categorical[list(categories)] = True
    ensembles = [read_ensemble("ensemble.0", arrays, categorical)]
    while f"ensemble.{len(ensembles)}.baseline" in arrays:
        ensembles.append(read_ensemble(f"ensemble.{len(ensembles)}", arrays, categorical))
    require(
        len({ensemble.n_outputs for ensemble in ensembles}) == 1,
        "its ensembles differ in their number of outputs",
    )
    return ensembles


def read_stages(
    arrays: Arrays, ensembles: Sequence[Ensemble], is_family: bool
) -> tuple[Stage, ...]:
    """Read the stages that cut up the ensembles: all of them, or some of those of a family.

    Every tree is in one stage at most, so a row meets no tree twice however a file is made up.
    """
    table = arrays.take("stages", INTEGER, (None, 4))
    require(len(table) > 0, "it has no stages")
    require(((table >= 0) & (table <= MOST)).all(), "a stage has a number that is out of range")
    rows = table.tolist()
    order = list(dict.fromkeys(which for which, *_ in rows))
    if not is_family:
        require(order == list(range(len(ensembles))), "the stages are out of order")
    require(max(order) < len(ensembles), "a stage is of an unknown ensemble")
    ends = {which: last for which, _, last, _ in rows}
    by_position: dict[int, Ensemble] = {}
    stages: list[Stage] = []
    for which, first, last, n_trees in rows:
        if which not in by_position:
            ensemble = by_position[which] = _beginning(ensembles[which], ends[which], is_family)
            require(first == 0, "a stage does not begin where its ensemble does")
        else:
            ensemble = by_position[which]
            require(ensemble is stages[-1].ensemble, "the stages are out of order")
            require(0 < first == stages[-1].last < last, "a stage does not begin where one ends")
        stage = Stage(ensemble, first, last, n_trees)
        _check_stage(stage, stages[-1] if stages else None)
        stages.append(stage)
    return tuple(stages)


def _beginning(ensemble: Ensemble, n_iter: int, is_family: bool) -> Ensemble:
    """What a model has of an ensemble; models of a family may have its first rounds only."""
    require(n_iter <= ensemble.n_iter, "a stage has more rounds than its ensemble")
    return ensemble.truncated(n_iter) if is_family else ensemble


def _check_stage(stage: Stage, before: Stage | None) -> None:
    # A tree that is met twice is paid for once.
    new = stage.n_trees - (0 if before is None else before.n_trees)
    met = (stage.last - stage.first) * stage.ensemble.n_outputs
    require(0 <= new <= met, "a stage counts more trees than it has, or fewer than the last")


def read_ensemble(name: str, arrays: Arrays, categorical: Mask) -> Ensemble:
    """Read the ensemble whose arrays have names that begin with this one."""
    baseline = arrays.take(f"{name}.baseline", FLOAT, (None,))
    starts = arrays.take(f"{name}.tree_starts", INTEGER, (None,))
    sets = arrays.take(f"{name}.category_sets", np.dtype(np.uint64), (None, CATEGORY_WORDS))
    values = arrays.take(f"{name}.nodes.value", FLOAT, (None,))
    n_nodes = len(values)
    require(n_nodes <= MOST, "it has too many nodes")
    nodes = np.zeros(n_nodes, dtype=NODE_DTYPE)
    nodes["value"] = values
    for field_name in NODE_DTYPE.names or ():
        if field_name != "value":
            dtype = NODE_DTYPE[field_name]
            nodes[field_name] = arrays.take(f"{name}.nodes.{field_name}", dtype, (n_nodes,))
    require(len(baseline) > 0 and np.isfinite(baseline).all(), "its baseline is not a number")
    require(is_ascending(starts, n_nodes, strictly=True), "its trees do not follow each other")
    require((len(starts) - 1) % len(baseline) == 0, "a round lacks a tree for some of the outputs")
    _check_numbers(nodes)
    _check_structure(nodes, starts)
    _check_splits(nodes, len(sets), categorical)
    return Ensemble(nodes, starts, sets, baseline, len(categorical))


def _check_numbers(nodes: NDArray[np.void]) -> None:
    for name in ("value", "gain", "hessian"):
        require(np.isfinite(nodes[name]).all(), f"the {name} of a node is not a number")
    require((nodes["threshold"] > -np.inf).all(), "the threshold of a node is not a number")
    for name in ("hessian", "count"):
        require((nodes[name] >= 0).all(), f"the {name} of a node is negative")
    require(((nodes["bin"] >= -1) & (nodes["bin"] < 256)).all(), "a node has an unknown bin")


def _check_structure(nodes: NDArray[np.void], starts: NDArray[np.int64]) -> None:
    """Every tree is a tree: each node but its root is the child of exactly one earlier node."""
    sizes = np.diff(starts)
    first = np.repeat(starts[:-1], sizes)
    left = nodes["left"].astype(np.int64)
    inner = left != -1
    parent = np.flatnonzero(inner)
    child = first[inner] + left[inner]
    end = (first + np.repeat(sizes, sizes))[inner]
    require(
        ((child > parent) & (child + 1 < end) & (left[inner] > 0)).all(),
        "a node has a child outside of its tree, or before itself",
    )
    # Each child is in range, so counting them takes no more memory than the nodes do.
    children = np.concatenate([child, child + 1])
    times = np.bincount(children, minlength=len(nodes))
    times[starts[:-1]] += 1
    require((times == 1).all(), "a node is the child of no other node, or of several")
    depth = nodes["depth"].astype(np.int64)
    require((depth[starts[:-1]] == 0).all(), "a root has a depth other than 0")
    require(
        (depth[children] == np.tile(depth[parent], 2) + 1).all(),
        "a node is not one deeper than its parent",
    )


def _check_splits(nodes: NDArray[np.void], n_sets: int, categorical: Mask) -> None:
    inner = nodes["left"] != -1
    feature, which = nodes["feature"], nodes["category_set"]
    require(((feature[~inner] == -1) & (which[~inner] == -1)).all(), "a leaf splits on a feature")
    require(
        ((feature[inner] >= 0) & (feature[inner] < len(categorical))).all(),
        "a node splits on an unknown feature",
    )
    require(((which >= -1) & (which < n_sets)).all(), "a node has an unknown set of categories")
    require(
        ((which[inner] >= 0) == categorical[feature[inner]]).all(),
        "a split treats numbers as categories, or categories as numbers",
    )
