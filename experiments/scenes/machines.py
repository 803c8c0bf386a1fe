"""Figure 3 once more, with machines that know all training images, and all that we have.

``scene15`` is the paper's protocol. Here trees see out-of-fold outputs over all training images,
and the budget is searched for: the frontier, rows that pay with gates, and early exits between
growing sets; beside them the averaged-kernel machine with price limits wherever these have points.
Descriptors that cost more than 10 ms by themselves are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.methods import MISER
from experiments.scenes.costs import machine_prices
from experiments.scenes.crossfit import (
    N_FOLDS,
    RIDGE,
    SET_ROUNDS,
    SET_TRADEOFFS,
    bought_sets,
    joint_opinions,
    single_opinions,
)
from experiments.scenes.descriptors import catalogue
from experiments.scenes.gated_machines import (
    EXITS,
    GATED_MACHINES,
    SHARPNESS,
    THRESHOLDS,
    TRADEOFFS,
    MachineStates,
    Offer,
    chosen_for_budgets,
)
from experiments.scenes.images import Floats, Kernels
from experiments.scenes.methods import (
    COLUMNS,
    SVM,
    SVM_SUBSETS,
    ImageSplit,
    draw_split,
    priced,
    svm_table,
)
from experiments.scenes.scene15 import SMALL as SMALL_SCENES
from experiments.scenes.scene15 import SPLITS, SceneData, SceneScale, look, mean_curves, opened
from experiments.scenes.stacking import (
    BUDGETS,
    CROSS_MISER,
    FRONTIER,
    GATES,
    STUMPS,
    Opinions,
    plain_misers,
    searched,
)
from experiments.workspace import Results, Workspace
from greedymiser.costs.cost_model import CostModel

if TYPE_CHECKING:
    import pandas as pd

# What the paper's own protocol gives, as kept in the repository.
KEPT = Path(__file__).parents[1] / "scene15" / "mean_curves.csv"

JOINT = "machine on a miser's purchases"

# What the steps depend on, by the names of settings.
MACHINES = (*SPLITS, "folds", "ridge")
TREES = (*MACHINES, "max_depth", "min_samples_leaf", "max_bins", "set_tradeoffs", "prices")
CURVES = (*TREES, "budgets", "effort", "stumps")
LEAVING = (*TREES, "budgets", "thresholds", "gates")
PATHS = (*TREES, "max_iter", "learning_rate", "tradeoffs")

# Families of descriptors that cost more than 10 ms by themselves.
DEAR = ("textons", "daisy", "lbp2", "lbp3", "similarity_full", "hog8", "templates", "sift16_dense")


@dataclass(frozen=True)
class MachinesScale(SceneScale):
    """How large the experiment is."""

    descriptors: tuple[str, ...] | None = tuple(
        name for name in catalogue().names if not name.startswith(DEAR)
    )
    # The λ of Algorithm 1 over the machines of single descriptors.
    tradeoffs: tuple[float, ...] = (0.0, 1e-3, 5e-3, 2e-2, 1e-1)
    # Milliseconds that an image may cost.
    budgets: tuple[float, ...] = BUDGETS
    # How long to search.
    effort: float = 0.2


# A version to see that everything works, in a few minutes.
SMALL: dict[str, Any] = SMALL_SCENES | {
    "max_iter": 20, "tradeoffs": (0.0, 1e-2), "budgets": (1.0, 2.0, 4.0, 8.0), "effort": 0.02,
}  # fmt: skip


def run(
    data: Path | None, workspace: Workspace, small: bool = False, *, n_jobs: int | None = None,
    **scale: Any,
) -> Results:  # fmt: skip
    """Describe the images, train cross-fitted machines, and spend budgets on them.

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
        Fields of ``MachinesScale`` that differ.
    """
    import pandas as pd

    size = MachinesScale(**(SMALL if small else {}) | scale)
    constants = {
        "folds": N_FOLDS, "ridge": RIDGE, "set_tradeoffs": [SET_ROUNDS, *SET_TRADEOFFS],
        "stumps": STUMPS, "thresholds": THRESHOLDS,
        "gates": [*TRADEOFFS.tolist(), *SHARPNESS.tolist()],
    }  # fmt: skip
    images, workspace = opened("scene15-machines", data, size, workspace, constants)
    seen = look(images, workspace, n_jobs)
    workspace = workspace.using(prices=seen.prices.fingerprint)
    tables = []
    for number in range(size.n_splits):
        split = draw_split(seen.labels, number, workspace.settings)
        for what, make in SplitRun(split, seen, workspace).steps():
            workspace.told(what, number, size.n_splits)
            tables.append(make())
    curves = pd.concat(tables, ignore_index=True)
    return _results(
        curves,
        workspace,
        pd.read_csv(KEPT) if size.descriptors == MachinesScale.descriptors else None,
    )


class SplitRun:
    """The methods on one split, step by step."""

    def __init__(self, split: ImageSplit, seen: SceneData, workspace: Workspace):
        self.split, self.seen, self.workspace = split, seen, workspace
        self.scale = workspace.settings
        self.names = list(seen.distances)
        # 27 MB a descriptor, for all steps of the split.
        self.kernels = Kernels(seen.distances, split.known, kept=True)

    def steps(self) -> Iterator[tuple[str, Callable[[], pd.DataFrame]]]:
        """What there is to do, in words, and how: each gives a part of the table of curves."""
        name = f"split {self.split.number}"
        yield f"{name}: {SVM_SUBSETS}", self.svm
        for mean_of_folds in (False, True):
            yield f"{name}: {JOINT}", partial(self.joint, mean_of_folds)
        yield f"{name}: {GATED_MACHINES}", self.gated
        yield f"{name}: {EXITS}", self.exits
        yield f"{name}: {GATES}", partial(self.searched, GATES, "row")
        yield f"{name}: {FRONTIER}", partial(self.searched, FRONTIER, "model")
        yield f"{name}: {CROSS_MISER}", self.path

    # -- what trees see ---------------------------------------------------------------------------

    @cached_property
    def singles(self) -> Floats:
        """What the machines of single descriptors say."""
        return self._arrays(
            "singles",
            lambda: single_opinions(self.kernels, self.seen.labels, self.split),
            MACHINES,
        )

    @cached_property
    def single_costs(self) -> CostModel:
        return self._prices({name: [name] for name in self.names})

    @cached_property
    def sets(self) -> list[list[str]]:
        """Growing sets of descriptors: what misers buy."""
        import pandas as pd

        def make() -> pd.DataFrame:
            given = (self.singles, self.seen.labels, self.split, self.single_costs, self.names)
            found = bought_sets(*given, self.scale)
            return pd.DataFrame({"uses": [" ".join(chosen) for chosen in found]})

        table = self.workspace.table(self._key("sets"), make, TREES)
        return [uses.split() for uses in table["uses"]]

    def opinions(self, *, mean_of_folds: bool = False) -> Opinions:
        """What the machines of growing sets say."""
        what = "joint-mean" if mean_of_folds else "joint"
        X = self._arrays(
            what,
            lambda: joint_opinions(
                self.kernels,
                self.seen.labels,
                self.split,
                self.sets,
                mean_of_folds=mean_of_folds,
            ),
            TREES,
        )
        costs = self._prices({f"set {i}": chosen for i, chosen in enumerate(self.sets)})
        return Opinions.of(X, self.seen.labels, self.split, costs, self.scale)

    def _arrays(self, what: str, make: Callable[[], Floats], depends_on: Sequence[str]) -> Floats:
        return self.workspace.arrays(self._key(what), lambda: {"X": make()}, depends_on)["X"]

    def _prices(self, groups: Mapping[str, Sequence[str]]) -> CostModel:
        return machine_prices(self.seen.timed, catalogue(), groups, self.seen.classes)

    def _key(self, what: str) -> str:
        return f"{what}/split-{self.split.number}"

    # -- methods ----------------------------------------------------------------------------------

    def svm(self) -> pd.DataFrame:
        """The averaged-kernel machine of the cheapest descriptors, as many as each budget buys."""
        costs = self.seen.prices.svm
        sets = affordable_sets(costs, self.scale["budgets"])
        table = self.workspace.using(sets=list(sets.values())).table(
            self._key("kernels"),
            lambda: svm_table(
                self.kernels, self.seen.labels, self.split, list(sets.values()), costs
            ),
            (*SPLITS, "sets"),
        )
        return priced(table.assign(parameter=list(sets)), SVM_SUBSETS, self.split, costs)

    def joint(self, mean_of_folds: bool) -> pd.DataFrame:
        """The machines of the sets by themselves: a class that is ahead wins, without any tree."""
        import pandas as pd

        seen = self.opinions(mean_of_folds=mean_of_folds)
        n_classes = len(self.seen.classes)
        rows = []
        for i, chosen in enumerate(self.sets):
            own = slice(i * n_classes, (i + 1) * n_classes)
            cost = seen.costs.total(range(own.start, own.stop))
            scores = [
                float(np.mean(part.X[:, own].argmax(axis=1) == part.y))
                for part in (seen.valid, seen.test)
            ]
            rows.append((i, cost, scores[0], cost, scores[1], 0, n_classes, len(chosen)))
        method = f"{JOINT}, mean of folds" if mean_of_folds else JOINT
        return pd.DataFrame(rows, columns=COLUMNS[2:]).assign(
            method=method, split=self.split.number
        )[COLUMNS]

    def gated(self) -> pd.DataFrame:
        """Gates between the machines of growing sets."""
        return self._leaving("gated", GATED_MACHINES, MachineStates.policies)

    def exits(self) -> pd.DataFrame:
        """Early exits between them."""
        return self._leaving("exits", EXITS, MachineStates.exits)

    def _leaving(
        self, what: str, method: str, offers: Callable[[MachineStates], Iterable[Offer]]
    ) -> pd.DataFrame:
        def make() -> list[dict[str, Any]]:
            states = MachineStates(self.opinions(), self.sets)
            return chosen_for_budgets(states, method, offers(states), self.scale["budgets"])

        return self._table(what, make, LEAVING)

    def searched(self, method: str, charge: str) -> pd.DataFrame:
        """The frontier over the machines of the sets, for everybody or for rows that pay."""
        given = (method, charge, self.scale["budgets"], self.scale["effort"])
        return self._table(charge, lambda: searched(self.opinions(), *given))

    def path(self) -> pd.DataFrame:
        """Algorithm 1 over the machines of single descriptors."""
        seen = Opinions.of(
            self.singles, self.seen.labels, self.split, self.single_costs, self.scale
        )
        return self._table("path", lambda: plain_misers(seen, self.scale["tradeoffs"]), PATHS)

    def _table(
        self, what: str, make: Callable[[], list[dict[str, Any]]],
        depends_on: Sequence[str] = CURVES,
    ) -> pd.DataFrame:  # fmt: skip
        import pandas as pd

        return self.workspace.table(
            self._key(what), lambda: pd.DataFrame(make(), columns=COLUMNS), depends_on
        )


def affordable_sets(costs: CostModel, budgets: Sequence[float]) -> dict[float, list[str]]:
    """For each budget, the cheapest descriptors by their own price, as many as it buys."""
    names = list(costs.feature_names or [])
    by_price = [names[i] for i in np.argsort(costs.prices(), kind="stable")]
    totals = [costs.total(by_price[: n + 1]) for n in range(len(by_price))]
    counts = {budget: int(np.searchsorted(totals, budget, side="right")) for budget in budgets}
    found: dict[float, list[str]] = {}
    for budget, n in counts.items():
        if n and by_price[:n] not in found.values():
            found[budget] = by_price[:n]
    return found


def beside_svm(curves: pd.DataFrame) -> pd.DataFrame:
    """For each budget, how much better each method is than the cheap descriptors' machine.

    ``gain`` is the mean over splits of the difference in test accuracy between what a method and
    what the machine of the cheapest descriptors has for the budget; ``gain_se`` its standard error.
    """
    import pandas as pd

    limited = curves[curves["method"].isin([GATED_MACHINES, EXITS, GATES, FRONTIER, SVM_SUBSETS])]
    scores = limited.pivot_table(index="parameter", columns=["method", "split"], values="score")
    costs = limited.pivot_table(index="parameter", columns=["method", "split"], values="cost")
    # A budget that buys nothing more buys the same.
    scores, costs = scores.ffill(), costs.ffill()
    rows = []
    for method in dict.fromkeys(limited["method"]):
        gains = scores[method] - scores[SVM_SUBSETS]
        n = gains.notna().sum(axis=1)
        rows.append(
            pd.DataFrame(
                {
                    "budget": scores.index,
                    "method": method,
                    "cost": costs[method].mean(axis=1),
                    "score": scores[method].mean(axis=1),
                    "gain": gains.mean(axis=1),
                    "gain_se": gains.std(axis=1, ddof=1) / np.sqrt(n),
                    "n_splits": n,
                }
            )
        )
    return pd.concat(rows, ignore_index=True)


def _results(curves: pd.DataFrame, workspace: Workspace, kept: pd.DataFrame | None) -> Results:
    """Write the tables and the figure."""
    means = mean_curves(curves)
    tables = {"curves": curves, "mean_curves": means, "beside_svm": beside_svm(curves)}
    for name, table in tables.items():
        workspace.write_table(name, table)
    drawn = workspace.write("machines.png", partial(_draw, means, kept))
    return Results("Scene-15; costs are measured CPU times", tables, {"machines": drawn})


def _draw(means: pd.DataFrame, kept: pd.DataFrame | None, path: Path) -> None:
    """Accuracy against cost, mean over splits; ``kept`` is of the paper's own protocol."""
    from greedymiser.plotting import compare_curves

    order = (GATED_MACHINES, EXITS, JOINT, GATES, FRONTIER, CROSS_MISER, SVM_SUBSETS)
    # Where some methods were run on few splits only, their means cannot be compared.
    whole = means[means["n_splits"] == means["n_splits"].max()]
    drawn = {name: whole[whole["method"] == name].sort_values("cost") for name in order}
    if kept is not None:
        drawn |= {
            f"{name} (the paper's protocol)" if name == MISER else name: kept[
                kept["method"] == name
            ].sort_values("cost")
            for name in (MISER, SVM)
        }
    ax: Any = compare_curves({name: table for name, table in drawn.items() if len(table)})
    shown = whole[whole["method"] != SVM_SUBSETS]["score"]
    ax.set_ylim(shown.min() - 0.01, max(shown.max(), 0.875) + 0.01)
    ax.set_xlabel("CPU time per image (ms)")
    ax.set_ylabel("accuracy on test images")
    ax.figure.savefig(path, dpi=150)
