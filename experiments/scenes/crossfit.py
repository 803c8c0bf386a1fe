"""Machines that know all training images, and what they say of images that they have not seen.

The paper's trees learn from 70% of the training images, by machines that know the other 30%. Here
machines learn from all of them, and trees from what machines say that were trained without the
image in question: five folds. The machines are least-squares ones, because those have their
out-of-fold outputs in closed form: one inverse of a matrix for a machine and all its folds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.scenes.images import Floats, Indices
from experiments.scenes.methods import ImageSplit
from greedymiser.costs.cost_model import CostModel
from greedymiser.estimators import MiserClassifier

N_FOLDS = 5
# What is added to the diagonal of a kernel, whose own diagonal is 1.
RIDGE = 0.03


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """One least-squares machine per class, and what its folds say of what they have not seen."""

    # (n, n_classes): weights of kernel rows, of the machine that knows all images.
    duals: Floats
    # (n, n_classes): the same of the mean of the fold machines; an image costs as much with it.
    mean_duals: Floats
    # (n, n_classes): outputs for the training images, each by a machine that does not know it.
    unseen: Floats

    @classmethod
    def of(cls, gram: Floats, labels: Indices, folds: Indices, ridge: float = RIDGE) -> CrossFitted:
        """Train on a kernel between the training images.

        Parameters
        ----------
        gram : array of shape (n, n)
        labels : array of shape (n,)
        folds : array of shape (n,)
            The part of each image.
        ridge : float

        Notes
        -----
        With A the inverse of kernel and ridge, and α = A y the weights, the machine that does not
        know fold F errs there by (A_FF)⁻¹ α_F, and has weights α − A_·F (A_FF)⁻¹ α_F, 0 in F.
        """
        targets = (labels[:, None] == np.unique(labels)).astype(gram.dtype)
        targets -= targets.mean(axis=0)
        inverse = _inverse(gram, ridge)
        duals = inverse @ targets
        unseen, mean_duals = np.empty_like(targets), np.zeros_like(targets)
        parts = np.unique(folds)
        for fold in parts:
            out = folds == fold
            errors = np.linalg.solve(inverse[np.ix_(out, out)], duals[out])
            unseen[out] = targets[out] - errors
            without = duals - inverse[:, out] @ errors
            without[out] = 0.0
            mean_duals += without / len(parts)
        return cls(duals, mean_duals, unseen)


def _inverse(gram: Floats, ridge: float) -> Floats:
    """Inverse of a kernel with a ridge, by Cholesky."""
    from scipy.linalg.lapack import get_lapack_funcs

    factor, invert = get_lapack_funcs(("potrf", "potri"), (gram,))
    upper, failed = factor(gram + ridge * np.eye(len(gram), dtype=gram.dtype), overwrite_a=True)
    found, failed_too = invert(upper, overwrite_c=True)
    if failed or failed_too:
        raise ValueError(f"the kernel has no inverse with ridge {ridge}; it must be larger")
    return np.triu(found) + np.triu(found, 1).T


def fold_of(labels: Indices, n_folds: int = N_FOLDS) -> Indices:
    """The part of each image: as many of each class in every one, in the order of the images."""
    folds = np.empty(len(labels), dtype=np.intp)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        folds[mine] = np.arange(len(mine)) % n_folds
    return folds


def leads(outputs: Floats) -> Floats:
    """By how much each class is ahead of the best of the others; one of them is, at most."""
    place = outputs.argmax(axis=1)
    rows = np.arange(len(outputs))
    best = outputs[rows, place]
    others = outputs.copy()
    others[rows, place] = -np.inf
    ahead = outputs - best[:, None]
    ahead[rows, place] = best - others.max(axis=1)
    return ahead


def opinions(
    rows: Floats, labels: Indices, split: ImageSplit, *, mean_of_folds: bool = False
) -> Floats:
    """What the machines of a kernel say of all images; of training images, those without them.

    Parameters
    ----------
    rows : array of shape (n_images, n_known)
        The kernel between all images and the training images.
    labels : array of shape (n_images,)
    split : ImageSplit
    mean_of_folds : bool
        Other images are judged by the mean of the fold machines, not by one that knows all.
    """
    known = split.known
    machine = CrossFitted.of(rows[known], labels[known], fold_of(labels[known]))
    said = rows @ (machine.mean_duals if mean_of_folds else machine.duals)
    said[known] = machine.unseen
    return leads(said)


def single_opinions(kernels: Mapping[str, Floats], labels: Indices, split: ImageSplit) -> Floats:
    """The machines of single descriptors: one column per descriptor and class."""
    return np.concatenate([opinions(rows, labels, split) for rows in kernels.values()], axis=1)


def joint_opinions(
    kernels: Mapping[str, Floats], labels: Indices, split: ImageSplit,
    sets: Sequence[Sequence[str]], *, mean_of_folds: bool = False,
) -> Floats:  # fmt: skip
    """The machines of averaged kernels of growing sets: one column per set and class."""
    columns = [
        opinions(rows, labels, split, mean_of_folds=mean_of_folds)
        for rows in averaged_kernels(kernels, sets)
    ]
    return np.concatenate(columns, axis=1)


def averaged_kernels(
    kernels: Mapping[str, Floats], sets: Sequence[Sequence[str]]
) -> Iterator[Floats]:
    """The averaged kernel of each of some growing sets."""
    total: Floats = np.zeros(1, dtype=np.float32)
    added = set[str]()
    for chosen in sets:
        for name in chosen:
            if name not in added:
                total = total + kernels[name]
                added.add(name)
        yield total / len(added)


# -- which descriptors are combined ---------------------------------------------------------------

# The λ of the misers whose purchases are combined, from nothing to nearly everything, and their
# rounds: what a miser buys it buys early.
SET_TRADEOFFS = (0.3, 0.1, 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 3e-4)
SET_ROUNDS = 12


def bought_sets(
    X: Floats, labels: Indices, split: ImageSplit, costs: CostModel, names: Sequence[str],
    scale: Mapping[str, Any],
) -> list[list[str]]:  # fmt: skip
    """Growing sets of descriptors: what misers buy, and all that those with larger λ have bought.

    Parameters
    ----------
    X : array of shape (n_images, n_features)
        What the machines of single descriptors say: as many columns of each as there are classes.
    labels, split, costs
        Of these images and features.
    names : sequence of str
        The descriptors, in the order of the columns.
    scale : mapping
        Settings of the trees.
    """
    n_classes = X.shape[1] // len(names)
    known = split.known
    bought: set[int] = set()
    sets: list[list[str]] = []
    for tradeoff in SET_TRADEOFFS:
        model = MiserClassifier(
            costs=costs, tradeoff=tradeoff, max_iter=SET_ROUNDS, learning_rate=0.3, n_jobs=1,
            **{name: scale[name] for name in ("max_depth", "min_samples_leaf", "max_bins")},
        )  # fmt: skip
        model.fit(X[known], labels[known])
        bought |= {costs.position(f) // n_classes for f in model.features_used_}
        found = [names[i] for i in sorted(bought)]
        if found and found not in sets:
            sets.append(found)
    return sets
