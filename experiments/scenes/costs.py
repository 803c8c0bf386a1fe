"""What it costs to look at a scene: every piece of work is timed, and has a price."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.scenes.descriptors import Descriptors, one_thread
from experiments.scenes.images import (
    Embedding,
    Floats,
    Images,
    Indices,
    squared_distances,
)
from experiments.workspace import Workspace
from greedymiser.costs.cost_model import CostModel
from greedymiser.estimators import MiserClassifier
from greedymiser.model.predictor import as_predictor

if TYPE_CHECKING:
    import pandas as pd

# Descriptors within these milliseconds, all they need included, make the cheaper averaged kernels.
PRICE_LIMITS = (0.6, 1.0, 3.0, 10.0, 30.0)


def support_size(scale: Mapping[str, Any]) -> int:
    """Images per class that the machines are trained on."""
    return max(1, round(scale["support_share"] * scale["train_per_class"]))


def timings(
    images: Images, pieces: Descriptors, values: Mapping[str, Floats],
    how: Mapping[str, Embedding], workspace: Workspace,
) -> pd.DataFrame:  # fmt: skip
    """Milliseconds of CPU of every piece of work on one image: medians over some images.

    Columns ``resource``, ``kind``, ``milliseconds``, ``low`` and ``high`` (quartiles). Everything
    runs on one thread, after a warm-up.
    """
    from threadpoolctl import threadpool_limits

    scale = workspace.settings
    rng = np.random.default_rng([scale["seed"], 1])
    chosen = rng.permutation(len(images.files))[: scale["timing_images"]]
    n_known = len(images.classes) * scale["train_per_class"]
    n_support = len(images.classes) * support_size(scale)
    one_thread()
    with threadpool_limits(1):
        samples = _piece_times(images, pieces, list(values), chosen, workspace)
        known = rng.permutation(len(images.files))
        for kind, n in (("kernel", n_support), ("wide kernel", n_known)):
            rows = _kernel_row_times(values, how, chosen[:40], known[:n])
            samples |= {(f"{name}: {kind}", kind): times for name, times in rows.items()}
        n_classes = len(images.classes)
        n_columns = sum(min(v.shape[1], scale["l1_columns"]) for v in values.values())
        samples["svm", "evaluation"] = [_dot_time(n_support, 1)]
        samples["wide svm", "evaluation"] = [_dot_time(n_known, n_classes)]
        samples["linear", "evaluation"] = [_dot_time(n_columns, n_classes)]
        samples["tree", "evaluation"] = [_tree_time(n_classes, scale["max_depth"])]
    return _medians(samples)


def _medians(samples: Mapping[tuple[str, str], Sequence[float]]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for (resource, kind), times in samples.items():
        low, middle, high = np.quantile(times, [0.25, 0.5, 0.75])
        rows.append((resource, kind, middle, low, high))
    return pd.DataFrame(rows, columns=["resource", "kind", "milliseconds", "low", "high"])


def _piece_times(
    images: Images, pieces: Descriptors, names: Sequence[str], chosen: Indices,
    workspace: Workspace,
) -> dict[tuple[str, str], list[float]]:  # fmt: skip
    for i in chosen[:5]:
        pieces.time(images.files[i], names)
    samples: dict[tuple[str, str], list[float]] = {}
    for done, i in enumerate(chosen):
        workspace.told("images timed", done, len(chosen))
        for name, spent in pieces.time(images.files[i], names).items():
            kind = "descriptor" if name in pieces.kinds else "intermediate"
            samples.setdefault((name, kind), []).append(spent)
    return samples


def _kernel_row_times(
    values: Mapping[str, Floats], how: Mapping[str, Embedding], chosen: Indices, known: Indices
) -> dict[str, list[float]]:
    """Time to compare one image with the known ones, by each descriptor.

    Descriptor after descriptor for each image, as a predictor would meet them: the known points
    have left the caches until they are needed again.
    """
    points = {name: how[name](matrix[known]) for name, matrix in values.items()}
    squares = {name: np.einsum("ij,ij->i", p, p) for name, p in points.items()}
    samples: dict[str, list[float]] = {name: [] for name in values}
    for i in [chosen[0], *chosen]:  # the first one once more, to warm up
        for name, matrix in values.items():
            row = matrix[i : i + 1].copy()
            start = time.thread_time()
            np.exp(squared_distances(how[name](row), points[name], squares[name]) / -1.0)
            samples[name].append(1e3 * (time.thread_time() - start))
    return {name: times[1:] for name, times in samples.items()}


def _dot_time(n: int, n_outputs: int) -> float:
    """Time to weigh a row of n numbers once per output, and to add a bias."""
    rng = np.random.default_rng(0)
    row, weights = rng.random(n, np.float32), rng.random((n_outputs, n), np.float32)
    bias = rng.random(n_outputs, np.float32)
    return _mean_time(lambda: weights @ row + bias)


def _tree_time(n_classes: int, max_depth: int) -> float:
    """Time that one more tree takes for one row: the slope between a short and a long ensemble."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((100 * n_classes, 20)), np.tile(np.arange(n_classes), 100)
    long = MiserClassifier(max_iter=40, max_depth=max_depth, n_jobs=1).fit(X, y)
    row = X[:1]
    models = (as_predictor(long.truncate(2)), as_predictor(long))
    times = [_mean_time(partial(model.raw_predict, row)) for model in models]
    n_trees = long.ensemble_.n_trees * (1 - 2 / long.n_iter_)
    return max(times[1] - times[0], 0.0) / n_trees


def _mean_time(work: Callable[[], object], repeats: int = 300) -> float:
    """Milliseconds of work that is too short to be timed by itself; best of five means."""
    work()
    means = []
    for _ in range(5):
        start = time.thread_time()
        for _ in range(repeats):
            work()
        means.append(1e3 * (time.thread_time() - start) / repeats)
    return min(means)


@dataclass(frozen=True)
class Prices:
    """What features cost: of the miser, of the averaged kernel, and of the linear baseline."""

    # Per descriptor and class: shared pieces, a kernel row, and an evaluation of its own.
    miser: CostModel
    # Per descriptor: shared pieces, a row against all training images; and one evaluation in all.
    svm: CostModel
    # Per descriptor: shared pieces; and one evaluation in all.
    linear: CostModel

    @classmethod
    def of(
        cls, timed: pd.DataFrame, pieces: Descriptors, names: Sequence[str], classes: Sequence[str]
    ) -> Prices:
        """Read prices off a table of timings."""
        cost = dict(zip(timed["resource"], timed["milliseconds"].astype(float), strict=True))
        needed = {name: pieces.required([name]) for name in names}
        shared = {name: cost[name] for name in pieces.required(names)}
        features = {
            f"{name}: {scene}": [*needed[name], f"{name}: kernel", f"{name}: {scene}"]
            for name in names
            for scene in classes
        }
        rows = {f"{name}: kernel": cost[f"{name}: kernel"] for name in names}
        wide = {f"{name}: wide kernel": cost[f"{name}: wide kernel"] for name in names}
        return cls(
            CostModel.from_resources(
                shared | rows | dict.fromkeys(features, cost["svm"]),
                features,
                tree_cost=cost["tree"],
            ),
            CostModel.from_resources(
                shared | wide | {"wide svm": cost["wide svm"]},
                {name: [*needed[name], f"{name}: wide kernel", "wide svm"] for name in names},
            ),
            CostModel.from_resources(
                shared | {"linear": cost["linear"]},
                {name: [*needed[name], "linear"] for name in names},
            ),
        )

    @property
    def fingerprint(self) -> str:
        """Changes with any price of the miser."""
        numbers = [*self.miser.resource_costs.tolist(), self.miser.tree_cost]
        return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()


def machine_prices(
    timed: pd.DataFrame, pieces: Descriptors, groups: Mapping[str, Sequence[str]],
    classes: Sequence[str],
) -> CostModel:  # fmt: skip
    """Prices of machines that know all training images, each on the averaged kernel of a group.

    A feature per group and class needs the group's descriptors, a row of each of their kernels, and
    the machine: one product for all classes, however it was trained.

    Parameters
    ----------
    timed : DataFrame
        Of ``timings``.
    pieces : Descriptors
    groups : mapping
        From the name of a group to its descriptors.
    classes : sequence of str
    """
    cost = dict(zip(timed["resource"], timed["milliseconds"].astype(float), strict=True))
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    shared = {name: cost[name] for name in pieces.required(names)}
    rows = {f"{name}: wide kernel": cost[f"{name}: wide kernel"] for name in names}
    machines = {f"{group}: machine": cost["wide svm"] for group in groups}
    features = {
        f"{group}: {scene}": [
            *pieces.required(members),
            *(f"{name}: wide kernel" for name in members),
            f"{group}: machine",
        ]
        for group, members in groups.items()
        for scene in classes
    }
    return CostModel.from_resources(shared | rows | machines, features, tree_cost=cost["tree"])


def cheap_sets(prices: Prices) -> list[list[str]]:
    """Growing sets of descriptors by their price alone; the last one has all."""
    names, alone = list(prices.svm.feature_names or []), prices.svm.prices()
    sets = [[n for n, p in zip(names, alone, strict=True) if p <= most] for most in PRICE_LIMITS]
    growing = [chosen for chosen in sets if chosen] + [names]
    return [chosen for i, chosen in enumerate(growing) if chosen not in growing[:i]]
