"""The miser on scenes, and what it is compared with: each predicts, and tells what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.methods import EARLY_EXIT, MISER, MISER_EXIT, STAGEWISE, whole_curve
from experiments.scenes.costs import support_size
from experiments.scenes.images import Floats, Images, Indices, likeness
from greedymiser.cascades import EarlyExitClassifier
from greedymiser.costs.cost_model import CostModel
from greedymiser.estimators import MiserClassifier
from greedymiser.model.predictor import as_predictor

if TYPE_CHECKING:
    import pandas as pd

# How the baselines are called in tables and figures, beside those of ``methods``.
SVM = "SVM, all descriptors"
SVM_SUBSETS = "SVM, cheap descriptors"
L1 = "l1"

# The machines' trade-off between margin and mistakes: 100 gives the same scores, 1 lower ones.
SVM_C = 10.0

# The paper's s: a row leaves when its class is likelier than this.
EXIT_THRESHOLDS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)

# Rounds between two exits, and what early exits over stage-wise boosting are then called. The
# paper's 10 trees are less than a round of 15 trees, so an exit after every round comes closest.
EXIT_EVERY = {1: EARLY_EXIT, 10: f"{EARLY_EXIT}, every 10 rounds"}

L1_STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3)

# Settings of the trees.
BOOSTING = (
    "max_iter", "max_depth", "learning_rate", "min_samples_leaf", "max_bins", "tradeoffs"
)  # fmt: skip


# -- splits, and the features of the miser --------------------------------------------------------


@dataclass(frozen=True)
class ImageSplit:
    """Who does what: positions of images."""

    number: int
    # The smaller part of the training images, which the machines are trained on, and the larger
    # part, which the trees are.
    support: Indices
    train: Indices
    valid: Indices
    test: Indices

    @property
    def known(self) -> Indices:
        """All training images."""
        return np.sort(np.concatenate([self.support, self.train]))


def check_sizes(images: Images, scale: Mapping[str, Any]) -> None:
    """Raise if a class has too few images to be divided: now, and not after the long work."""
    n_used = scale["train_per_class"] + scale["val_per_class"]
    for name, count in zip(images.classes, np.bincount(images.labels), strict=True):
        if count <= n_used:
            raise ValueError(
                f"class {name!r} has {count} images: too few for {scale['train_per_class']} to "
                f"train with, {scale['val_per_class']} to validate and at least one to test"
            )


def draw_split(labels: Indices, number: int, scale: Mapping[str, Any]) -> ImageSplit:
    """Divide the images at random, as many of each class as the scale says."""
    rng = np.random.default_rng([scale["seed"], 2, number])
    n_support, n_train = support_size(scale), scale["train_per_class"]
    n_used = n_train + scale["val_per_class"]
    parts: list[list[Indices]] = [[], [], [], []]
    for label in np.unique(labels):
        mine = rng.permutation(np.flatnonzero(labels == label))
        pieces = np.split(mine, [n_support, n_train, n_used])
        for part, chosen in zip(parts, pieces, strict=True):
            part.append(chosen)
    return ImageSplit(number, *(np.sort(np.concatenate(part)) for part in parts))


class Machines:
    """One support vector machine per class, against all other classes."""

    def __init__(self, gram: Floats, labels: Indices, C: float = SVM_C):
        from sklearn.svm import SVC

        classes = np.unique(labels)
        self.duals = np.zeros((len(classes), len(gram)), dtype=np.float32)
        self.biases = np.zeros(len(classes), dtype=np.float32)
        gram = gram.astype(np.float64)
        for k, label in enumerate(classes):
            machine = SVC(C=C, kernel="precomputed", cache_size=50).fit(gram, labels == label)
            self.duals[k, machine.support_] = machine.dual_coef_[0]
            self.biases[k] = machine.intercept_[0]

    def decisions(self, rows: Floats) -> Floats:
        """Decision values, one column per class, of rows of the kernel."""
        return rows @ self.duals.T + self.biases


def machine_features(distances: Mapping[str, Floats], labels: Indices, split: ImageSplit) -> Floats:
    """Decision values of every image, one column per descriptor and class."""
    columns = []
    for name in distances:
        rows = likeness(distances[name], split.support)
        columns.append(Machines(rows[split.support], labels[split.support]).decisions(rows))
    return np.concatenate(columns, axis=1)


# -- methods --------------------------------------------------------------------------------------

COLUMNS = [
    "method", "split", "parameter", "valid_cost", "valid_score", "cost", "score",
    "n_trees", "n_features", "n_descriptors",
]  # fmt: skip


@dataclass(frozen=True)
class LabelledImages:
    """Some images: what a method sees of them, and their classes."""

    X: Floats
    y: Indices

    def accuracy(self, model: Any) -> float:
        return float(np.mean(model.predict(self.X) == self.y))

    def cost(self, model: Any) -> float:
        """The one meter: what a method's predictions of these images cost on average."""
        return float(np.mean(model.prediction_costs(self.X)))


class AveragedKernelSVM:
    """One machine per class on the mean of several descriptors' kernels, all of them paid for."""

    def __init__(self, descriptors: Sequence[str], costs: CostModel):
        self.descriptors = list(descriptors)
        self.costs = costs

    def fit(self, gram: Floats, labels: Indices) -> AveragedKernelSVM:
        self.machines_ = Machines(gram, labels)
        return self

    def predict(self, rows: Floats) -> Indices:
        return self.machines_.decisions(rows).argmax(axis=1)

    def prediction_costs(self, rows: Floats) -> NDArray[np.float64]:
        return np.full(len(rows), self.costs.total(self.descriptors))


class L1Classifier:
    """Linear classifiers on the raw descriptors; those without any weight need not be computed."""

    def __init__(self, C: float, owners: Sequence[str], costs: CostModel):
        self.C = C
        # The descriptor that each column is from.
        self.owners = owners
        self.costs = costs

    def fit(self, X: Floats, labels: Indices) -> L1Classifier:
        from sklearn.svm import LinearSVC

        self.model_ = LinearSVC(C=self.C, penalty="l1", dual=False, tol=1e-3, max_iter=3000)
        self.model_.fit(X, labels)
        return self

    @property
    def columns(self) -> list[int]:
        """Columns with a weight for any class."""
        return np.flatnonzero(np.any(self.model_.coef_ != 0, axis=0)).tolist()

    @property
    def descriptors(self) -> list[str]:
        return list(dict.fromkeys(self.owners[i] for i in self.columns))

    def predict(self, X: Floats) -> NDArray[Any]:
        return self.model_.predict(X)

    def prediction_costs(self, X: Floats) -> NDArray[np.float64]:
        return np.full(len(X), self.costs.total(self.descriptors))


def miser_curves(
    X: Floats, labels: Indices, split: ImageSplit, costs: CostModel, scale: Mapping[str, Any]
) -> pd.DataFrame:
    """Stage-wise boosting, the miser, and early exits over both."""
    import pandas as pd

    train, valid, test = (
        LabelledImages(X[i], labels[i]) for i in (split.train, split.valid, split.test)
    )
    estimator = MiserClassifier(
        costs=costs, **{name: scale[name] for name in BOOSTING if name != "tradeoffs"}, n_jobs=1
    )
    curve = whole_curve(
        estimator, train.X, train.y, X_val=valid.X, y_val=valid.y,
        tradeoffs=scale["tradeoffs"], scoring="accuracy",
    )  # fmt: skip
    rows = []
    for point, model in zip(curve.points.itertuples(), curve.models, strict=True):
        chosen = model.truncate(int(point.n_iter))
        row = result_row(MISER, split, point.tradeoff, chosen, valid, test, costs)
        rows.append(row)
        if point.tradeoff == 0:
            rows.append(row | {"method": STAGEWISE})
            for every, method in EXIT_EVERY.items():
                exits = _exits(chosen, valid, test, every)
                rows += [row | {"method": method} | exit_ for exit_ in exits]
        free = _free_exit(_exits(chosen, valid, test, every=1))
        rows.append(row | free | {"method": MISER_EXIT, "parameter": point.tradeoff})
    return pd.DataFrame(rows, columns=COLUMNS)


def result_row(
    method: str, split: ImageSplit, parameter: float, model: Any, valid: LabelledImages,
    test: LabelledImages, costs: CostModel,
) -> dict[str, Any]:  # fmt: skip
    """What a model costs and scores, as a row of the table of curves."""
    used = [costs.position(feature) for feature in model.features_used_]
    names = costs.feature_names or []
    return {
        "method": method,
        "split": split.number,
        "parameter": parameter,
        "valid_cost": valid.cost(model),
        "valid_score": valid.accuracy(model),
        "cost": test.cost(model),
        "score": test.accuracy(model),
        "n_trees": as_predictor(model).stages[-1].n_trees,
        "n_features": len(used),
        "n_descriptors": len({names[f].partition(": ")[0] for f in used}),
    }


def _exits(
    model: MiserClassifier, valid: LabelledImages, test: LabelledImages, every: int
) -> list[dict[str, float]]:
    """What each threshold of an early exit costs and scores."""
    if model.ensemble_.n_trees == 0:  # nothing was worth its price, so there is nothing to leave
        cost, scores = model.cost_, (valid.accuracy(model), test.accuracy(model))
        return [_exit(1.0, cost, scores[0], cost, scores[1])]
    early = EarlyExitClassifier(model, every=every, n_jobs=1).fit(valid.X, valid.y)
    checked = early.curve(valid.X, valid.y, thresholds=EXIT_THRESHOLDS)
    tested = early.curve(test.X, test.y, thresholds=EXIT_THRESHOLDS)
    return [
        _exit(v.threshold, v.cost, v.score, t.cost, t.score)
        for v, t in zip(checked.itertuples(), tested.itertuples(), strict=True)
    ]


def _exit(
    threshold: float, valid_cost: float, valid_score: float, cost: float, score: float
) -> dict[str, float]:
    return {
        "parameter": threshold,
        "valid_cost": valid_cost,
        "valid_score": valid_score,
        "cost": cost,
        "score": score,
    }


def _free_exit(exits: Sequence[dict[str, float]]) -> dict[str, float]:
    """The cheapest exit that loses nothing on validation data."""
    whole = exits[-1]["valid_score"]
    return min(
        (exit_ for exit_ in exits if exit_["valid_score"] >= whole),
        key=lambda exit_: exit_["valid_cost"],
    )


def svm_table(
    kernels: Mapping[str, Floats], labels: Indices, split: ImageSplit,
    sets: Sequence[Sequence[str]], costs: CostModel,
) -> pd.DataFrame:  # fmt: skip
    """The averaged-kernel machines of growing sets of descriptors; costs come in later."""
    import pandas as pd

    total = np.zeros((len(labels), len(split.known)), dtype=np.float32)
    added: set[str] = set()
    rows = []
    for chosen in sets:
        for name in chosen:
            if name not in added:
                total += kernels[name]
                added.add(name)
        mean = total / len(added)
        model = AveragedKernelSVM(chosen, costs).fit(mean[split.known], labels[split.known])
        scores = [
            LabelledImages(mean[i], labels[i]).accuracy(model) for i in (split.valid, split.test)
        ]
        rows.append((len(chosen), *scores, len(chosen), " ".join(chosen)))
    return pd.DataFrame(rows, columns=["parameter", "valid_score", "score", "n_features", "uses"])


def l1_table(
    columns: Floats, owners: Sequence[str], labels: Indices, split: ImageSplit, costs: CostModel
) -> pd.DataFrame:
    """Linear classifiers of several strengths; costs come in later."""
    import pandas as pd

    mean, spread = columns[split.known].mean(axis=0), columns[split.known].std(axis=0)
    even = np.clip((columns - mean) / np.where(spread > 1e-6, spread, 1), -5, 5)
    rows = []
    for C in L1_STRENGTHS:
        model = L1Classifier(C, owners, costs).fit(even[split.known], labels[split.known])
        scores = [
            LabelledImages(even[i], labels[i]).accuracy(model) for i in (split.valid, split.test)
        ]
        rows.append((C, *scores, len(model.columns), " ".join(model.descriptors)))
    return pd.DataFrame(rows, columns=["parameter", "valid_score", "score", "n_features", "uses"])


def l1_columns(values: Mapping[str, Floats], scale: Mapping[str, Any]) -> tuple[Floats, list[str]]:
    """Some columns of every descriptor, and the descriptor of each."""
    rng = np.random.default_rng([scale["seed"], 3])
    parts, owners = [], []
    for name, matrix in values.items():
        chosen = np.sort(rng.permutation(matrix.shape[1])[: scale["l1_columns"]])
        parts.append(matrix[:, chosen])
        owners += [name] * len(chosen)
    return np.concatenate(parts, axis=1), owners


def priced(table: pd.DataFrame, method: str, split: ImageSplit, costs: CostModel) -> pd.DataFrame:
    """Rows of a baseline that knows no prices, with what its descriptors cost."""
    uses = [str(names).split() if isinstance(names, str) else [] for names in table["uses"]]
    cost = [costs.total(names) for names in uses]
    return table.assign(
        method=method, split=split.number, cost=cost, valid_cost=cost, n_trees=0,
        n_descriptors=[len(names) for names in uses],
    )[COLUMNS]  # fmt: skip
