"""Figures 1 and 2 of the paper, for the ranking experiments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.methods import STAGEWISE, by_method
from experiments.workspace import Workspace
from greedymiser.curve.curve import TradeoffCurve

if TYPE_CHECKING:
    import pandas as pd

# Methods that score less than this share of stage-wise's score are below the picture.
LOWEST_SHARE = 0.9


def save_figure(ax: Any, title: str, workspace: Workspace, name: str) -> Path:
    """Write a figure, whose title says what the data is."""
    ax.set_title(title, fontsize="small", loc="left")
    return workspace.write(f"{name}.png", partial(ax.figure.savefig, dpi=150))


def draw_traces(curve: TradeoffCurve) -> Any:
    """Figure 1, left: a trace per λ as trees are added, circles at the best validation round."""
    ax = curve.plot(paths=True)
    ax.set_ylabel("test NDCG@5")
    return ax


def draw_methods(budgets: pd.DataFrame) -> Any:
    """Figure 1, right: what each method's choice for a budget costs and scores on test data."""
    from greedymiser.plotting import compare_curves

    whole = float(budgets[budgets["method"] == STAGEWISE]["score"].iloc[-1])
    lowest = LOWEST_SHARE * whole
    shown = budgets[budgets["score"] >= lowest].drop_duplicates(["method", "cost", "score"])
    ax = compare_curves(dict(by_method(shown)))
    ax.axhline(0.99 * whole, color="grey", linewidth=0.9, linestyle=":", zorder=1)
    ax.annotate(
        "99% of stage-wise",
        xy=(0, 0.99 * whole),
        xycoords=ax.get_yaxis_transform(),
        xytext=(4, 3),
        textcoords="offset points",
        fontsize="small",
    )
    highest = float(shown["score"].max())
    margin = 0.04 * (highest - lowest)
    ax.set_ylim(lowest - margin, highest + margin)
    ax.set_xlabel("mean cost of a document, as a share of stage-wise's")
    ax.set_ylabel("test NDCG@5")
    return ax


def draw_features(features: pd.DataFrame) -> Any:
    """Figure 2: share of the features of each price that are bought, against λ, mean over folds."""
    from greedymiser.plotting import compare_curves

    shares = features.groupby(["price", "tradeoff"], as_index=False)["share"].mean()
    sizes = features.drop_duplicates("price").set_index("price")["n_features"]
    tradeoffs = sorted(features["tradeoff"].unique())
    place = {tradeoff: i for i, tradeoff in enumerate(tradeoffs)}
    groups = {
        f"{price:g} ({sizes[price]})": rows.assign(
            cost=rows["tradeoff"].map(place), score=rows["share"]
        )
        for price, rows in shares.groupby("price")
    }
    ax = compare_curves(groups)
    # λ are given, not measured: one place for each, the first of them is 0.
    ax.set_xscale("linear")
    labels = [f"{tradeoff:.2g}" for tradeoff in tradeoffs]
    ax.set_xticks(list(place.values()), labels, rotation=35, ha="right", rotation_mode="anchor")
    ax.set_xlim(-0.4, len(tradeoffs) - 0.6)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("tradeoff λ")
    ax.set_ylabel("share of the features bought")
    legend = ax.get_legend()
    assert legend is not None
    legend.set_title("price (features)")
    return ax
