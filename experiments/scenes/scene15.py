"""Figure 3 of the paper: recognising scenes, where what is looked at takes time to compute.

The features of the miser are decision values of support vector machines, one per descriptor and
class. To have one, an image has to be decoded, its intermediates (gradients, patches, words) and
the descriptor computed, compared with the images that the machine knows (a kernel row), and the
machine evaluated. Each of these is a resource, timed for real and paid once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.methods import EARLY_EXIT, MISER, MISER_EXIT, STAGEWISE
from experiments.scenes.costs import Prices, cheap_sets, timings
from experiments.scenes.descriptors import catalogue
from experiments.scenes.images import (
    EXTRACTION,
    IMAGES,
    Floats,
    ImageDistances,
    Images,
    Indices,
    Kernels,
    check_readable,
    codebooks_of,
    embeddings,
    extract,
    read_images,
)
from experiments.scenes.methods import (
    BOOSTING,
    EXIT_EVERY,
    EXIT_THRESHOLDS,
    L1,
    L1_STRENGTHS,
    SVM,
    SVM_C,
    SVM_SUBSETS,
    ImageSplit,
    check_sizes,
    draw_split,
    l1_columns,
    l1_table,
    machine_features,
    miser_curves,
    priced,
    svm_table,
)
from experiments.workspace import Results, Workspace
from greedymiser._core.version import __version__

if TYPE_CHECKING:
    import pandas as pd

# What the steps depend on, by the names of settings.
TIMING = (
    *EXTRACTION, "timing_images", "train_per_class", "support_share", "l1_columns", "max_depth"
)  # fmt: skip
SPLITS = (*EXTRACTION, "train_per_class", "val_per_class", "support_share", "svm_C")
EXITS = ("exit_thresholds", "exit_every")


@dataclass(frozen=True)
class SceneScale:
    """How large the experiment is; the defaults are the paper's where the paper tells."""

    # Names of the descriptors; None: all.
    descriptors: tuple[str, ...] | None = None
    # Sizes of the codebooks, and how many images, with no labels, they are learned from.
    n_words: int = 200
    n_words_large: int = 800
    codebook_images: int = 200
    # Images that every piece of work is timed on.
    timing_images: int = 150
    n_splits: int = 10
    train_per_class: int = 100
    val_per_class: int = 20
    # Part of the training images that the support vector machines are trained on.
    support_share: float = 0.3
    max_iter: int = 200
    max_depth: int = 3
    learning_rate: float = 0.1
    min_samples_leaf: int = 10
    max_bins: int = 31
    # The λ of the miser's curve, in nats of mean log-loss per millisecond; 0 is stage-wise.
    tradeoffs: tuple[float, ...] = (
        0.0, 1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1
    )  # fmt: skip
    # Columns of each descriptor that the l1 baseline sees, drawn at random where there are more.
    l1_columns: int = 50
    seed: int = 0


# A version to see that everything works, in a few minutes: descriptors that take a moment.
SMALL: dict[str, Any] = {
    "descriptors": (
        "tiny8", "intensity", "spectrum", "census_half_level0", "census_half_level2",
        "edge_directions", "hog_grid4", "gist_coarse", "sift16_half_level2",
    ),
    "n_words": 50,
    "codebook_images": 50,
    "timing_images": 30,
    "n_splits": 1,
    "max_iter": 50,
    "tradeoffs": (0.0, 1e-3, 1e-2, 3e-2, 1e-1),
}  # fmt: skip


def run(
    data: Path | None, workspace: Workspace, small: bool = False, *, n_jobs: int | None = None,
    **scale: Any,
) -> Results:  # fmt: skip
    """Describe the images, time everything, and compare the methods on random splits.

    Parameters
    ----------
    data : Path
        Folder with images.tar, which has a folder per class.
    workspace : Workspace
        Where steps and results go.
    small : bool
        A quick version: one split, few descriptors.
    n_jobs : int, optional
        Processes that describe images; 1 by default.
    **scale
        Fields of ``SceneScale`` that differ from the paper's.
    """
    import pandas as pd

    size = SceneScale(**(SMALL if small else {}) | scale)
    size = replace(size, tradeoffs=tuple(sorted({0.0, *size.tradeoffs})))  # 0 is the reference
    exits = {"exit_thresholds": EXIT_THRESHOLDS, "exit_every": list(EXIT_EVERY)}
    images, workspace = opened("scene15", data, size, workspace, exits)
    seen = look(images, workspace, n_jobs)
    curves, alone = [], []
    for number in range(size.n_splits):
        workspace.told("splits", number, size.n_splits)
        split = draw_split(seen.labels, number, workspace.settings)
        curves += [method(split, seen, workspace) for method in (_price_conscious, _svm, _l1)]
        alone.append(_single_descriptors(split, seen, workspace))
    workspace.told("splits", size.n_splits, size.n_splits)
    tables = {"curves": pd.concat(curves, ignore_index=True), "timings": seen.timed}
    return _results(tables | {"descriptors": pd.concat(alone)}, workspace)


def opened(
    name: str, data: Path | None, size: SceneScale, workspace: Workspace, more: Mapping[str, Any]
) -> tuple[Images, Workspace]:
    """The images of an experiment, checked, and a workspace that knows what its steps depend on."""
    if data is None:
        raise ValueError(f"{name} needs data: a folder with {IMAGES}")
    images = read_images(Path(data))
    check_sizes(images, asdict(size))
    check_readable(images)
    settings = (
        asdict(size)
        | {"descriptors": list(size.descriptors or catalogue().names)}
        | {"images": images.fingerprint, "svm_C": SVM_C, "l1_strengths": L1_STRENGTHS}
        | dict(more)
    )
    return images, workspace.using(version=__version__, **settings)


@dataclass(frozen=True)
class SceneData:
    """All that the methods are given."""

    labels: Indices
    classes: list[str]
    distances: ImageDistances
    timed: pd.DataFrame
    prices: Prices
    # Columns of the raw descriptors for the linear baseline, and the descriptor of each.
    columns: Floats
    owners: list[str]


def look(images: Images, workspace: Workspace, n_jobs: int | None) -> SceneData:
    """Describe and compare all images, and time what that takes."""
    names = workspace.settings["descriptors"]
    sizes = (workspace.settings["n_words"], workspace.settings["n_words_large"])
    codebooks = codebooks_of(images, catalogue(*sizes), names, workspace)
    pieces = catalogue(*sizes, codebooks=codebooks)
    values = extract(images, pieces, names, workspace, n_jobs)
    how = embeddings(values, pieces, workspace)
    timed = workspace.table(
        "timings", lambda: timings(images, pieces, values, how, workspace), TIMING
    )
    distances = ImageDistances.between(values, how, workspace)
    prices = Prices.of(timed, pieces, names, images.classes)
    columns, owners = l1_columns(values, workspace.settings)
    return SceneData(images.labels, images.classes, distances, timed, prices, columns, owners)


def _machines(split: ImageSplit, seen: SceneData, workspace: Workspace) -> Floats:
    """Decision values of the machines of all descriptors: the features of the miser."""
    return workspace.arrays(
        f"machines/split-{split.number}",
        lambda: {"X": machine_features(seen.distances, seen.labels, split)},
        SPLITS,
    )["X"]


def _single_descriptors(split: ImageSplit, seen: SceneData, workspace: Workspace) -> pd.DataFrame:
    """How well the machines of single descriptors do, and what they cost by themselves."""
    import pandas as pd

    X, names = _machines(split, seen, workspace), list(seen.distances)
    votes = X[split.test].reshape(len(split.test), len(names), -1).argmax(axis=2)
    scores = np.mean(votes == seen.labels[split.test][:, None], axis=0)
    prices = seen.prices.miser.prices().reshape(len(names), -1)[:, 0]
    return pd.DataFrame({"descriptor": names, "cost": prices, "score": scores})


def _price_conscious(split: ImageSplit, seen: SceneData, workspace: Workspace) -> pd.DataFrame:
    """The miser and its kin, which look at prices while they learn."""
    X = _machines(split, seen, workspace)
    workspace = workspace.using(prices=seen.prices.fingerprint)
    return workspace.table(
        f"misers/split-{split.number}",
        lambda: miser_curves(X, seen.labels, split, seen.prices.miser, workspace.settings),
        (*SPLITS, *BOOSTING, *EXITS, "prices"),
    )


def _svm(split: ImageSplit, seen: SceneData, workspace: Workspace) -> pd.DataFrame:
    """The averaged-kernel machines; new prices need no new machines."""
    import pandas as pd

    costs, sets = seen.prices.svm, cheap_sets(seen.prices)
    table = workspace.using(sets=sets).table(
        f"kernels/split-{split.number}",
        lambda: svm_table(Kernels(seen.distances, split.known), seen.labels, split, sets, costs),
        (*SPLITS, "sets"),
    )
    whole, subsets = (
        priced(rows, method, split, costs)
        for rows, method in ((table[-1:], SVM), (table, SVM_SUBSETS))
    )
    return pd.concat([whole, subsets], ignore_index=True)


def _l1(split: ImageSplit, seen: SceneData, workspace: Workspace) -> pd.DataFrame:
    """The linear baseline; new prices need no new training."""
    costs = seen.prices.linear
    table = workspace.table(
        f"l1/split-{split.number}",
        lambda: l1_table(seen.columns, seen.owners, seen.labels, split, costs),
        (*SPLITS, "l1_columns", "l1_strengths"),
    )
    return priced(table, L1, split, costs)


# -- what came out --------------------------------------------------------------------------------


def mean_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """Means over the splits at each parameter of each method, with deviations of the score."""
    grouped = curves.groupby(["method", "parameter"], sort=False)
    means = grouped[["cost", "score", "n_trees", "n_features", "n_descriptors"]].mean()
    means["score_sd"] = grouped["score"].std(ddof=0)
    means["n_splits"] = grouped["split"].nunique()
    return means.reset_index()


def comparison(curves: pd.DataFrame, share: float = 0.99) -> pd.DataFrame:
    """What each method costs where it first has this share of stage-wise's accuracy.

    Per split, the cheapest point of a method's curve that reaches it on the test images, as a share
    of what stage-wise and the averaged-kernel machine cost: mean and standard deviation over the
    splits that reach it. ``on_mean_curve`` is the same of the curves' means over splits. ``best``
    is the test accuracy of the point with the best validation score.
    """
    import pandas as pd

    whole = curves[curves["method"] == STAGEWISE].set_index("split")
    svm_cost = curves[curves["method"] == SVM].set_index("split")["cost"]
    means = mean_curves(curves)
    bar = share * whole["score"].mean()
    rows = []
    for method, mine in curves.groupby("method", sort=False):
        good = mine[mine["score"] >= share * mine["split"].map(whole["score"])]
        cost = good.groupby("split")["cost"].min()
        on_mean = means[(means["method"] == method) & (means["score"] >= bar)]["cost"].min()
        picked = mine.sort_values(["valid_score", "cost"], ascending=[False, True])
        best = picked.drop_duplicates("split")
        rows.append(
            {
                "method": method,
                "cost": cost.mean(),
                "of_stagewise": (cost / whole["cost"]).mean(),
                "of_stagewise_sd": (cost / whole["cost"]).std(ddof=0),
                "of_svm": (cost / svm_cost).mean(),
                "of_svm_sd": (cost / svm_cost).std(ddof=0),
                "splits_reached": len(cost),
                "n_splits": mine["split"].nunique(),
                "on_mean_curve": on_mean,
                "best": best["score"].mean(),
                "best_sd": best["score"].std(ddof=0),
                "best_cost": best["cost"].mean(),
            }
        )
    return pd.DataFrame(rows)


def _results(found: Mapping[str, pd.DataFrame], workspace: Workspace) -> Results:
    """Write everything down; ``found`` has curves, timings, and descriptors by split."""
    curves = found["curves"]
    by_name = found["descriptors"].groupby("descriptor", sort=False)
    tables = {
        "curves": curves,
        "mean_curves": mean_curves(curves),
        "timings": found["timings"],
        "descriptors": by_name.mean().sort_values("cost").reset_index(),
        "comparison": comparison(curves),
    }
    for name, table in tables.items():
        workspace.write_table(name, table)
    figures = {"figure3": workspace.write("figure3.png", lambda path: _draw_figure(curves, path))}
    return Results("Scene-15; costs are measured CPU times", tables, figures)


def _draw_figure(curves: pd.DataFrame, path: Path) -> None:
    """Accuracy against cost, mean over splits (Figure 3)."""
    from greedymiser.plotting import compare_curves

    means = mean_curves(curves)
    order = [MISER, MISER_EXIT, EARLY_EXIT, STAGEWISE, SVM_SUBSETS, SVM, L1]
    drawn = {name: means[means["method"] == name] for name in order}
    ax: Any = compare_curves({name: table for name, table in drawn.items() if len(table)})
    # The sparsest linear models and the smallest kernels lie far below everything else.
    shown = means[~means["method"].isin([L1, SVM_SUBSETS])]["score"]
    pad = 0.05 * max(float(np.ptp(shown)), 0.01)
    ax.set_ylim(shown.min() - pad, shown.max() + pad)
    ax.set_xlabel("CPU time per image (ms)")
    ax.set_ylabel("accuracy on test images")
    ax.figure.savefig(path, dpi=150)
