"""Tables and a figure of what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# In this order, and called like this; of the two ways to tell CEGB prices the better is shown.
NAMES = {
    "path": "path",
    "frontier": "frontier",
    "cegb": "CEGB",
    "forward": "forward search",
    "coai": "CoAI's way",
    "exhaustive": "all 16 sets",
}
# Differences are shown from these to the best of ours that was measured.
RIVALS = ("cegb", "forward", "path")


def measured_rows(path: Path) -> pd.DataFrame:
    """The measured rows, where CEGB is told prices in the way that serves it better."""
    rows = pd.read_csv(path, dtype={"split": str})
    kept = [_better_cegb(of_data) for _, of_data in rows.groupby("data", sort=False)]
    return pd.concat(kept, ignore_index=True)


def _better_cegb(rows: pd.DataFrame) -> pd.DataFrame:
    """The better one by its mean test score, which favours the rival."""
    ways = rows[rows["method"].str.startswith("cegb-")]
    if ways.empty:
        return rows
    best = ways.groupby("method", sort=False)["test_score"].mean().idxmax()
    others = rows[~rows["method"].str.startswith("cegb-")]
    told = ways[ways["method"] == best].assign(method="cegb", way=best.removeprefix("cegb-"))
    return pd.concat([others, told], ignore_index=True)


def standard_error(values: Any) -> float:
    """Of a mean over splits; 0 for a single one."""
    values = np.asarray(values, dtype=float)
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def scores_of(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """Test scores, a row per split and a column per budget, and their mean over budgets."""
    table = rows[rows["method"] == method].pivot(
        index="split", columns="budget", values="test_score"
    )
    return table.assign(average=table.mean(axis=1))


def markdown(rows: pd.DataFrame) -> str:
    """A table per data set: scores by budget, and how far ours are from the rivals."""
    return "\n\n".join(
        "\n".join(_table_lines(str(name), of_data))
        for name, of_data in rows.groupby("data", sort=False)
    )


def _table_lines(name: str, rows: pd.DataFrame) -> Iterator[str]:
    scores = {key: scores_of(rows, key) for key in NAMES if (rows["method"] == key).any()}
    ours = "frontier" if "frontier" in scores else "path"
    gaps = [(ours, b) for b in RIVALS if ours in scores and b in scores and b != ours]
    heads = [_heading(rows, key) for key in scores] + [f"{NAMES[a]} - {NAMES[b]}" for a, b in gaps]
    counts = sorted({len(table) for table in scores.values()})
    n_splits = " or ".join(map(str, counts))
    yield f"### {name}: test {rows['scoring'].iloc[0]}, {n_splits} splits"
    yield ""
    yield f"| budget | {' | '.join(heads)} |"
    yield "|---" * (len(heads) + 1) + "|"
    for budget in next(iter(scores.values())).columns:
        cells = [_mean_and_error(table[budget]) for table in scores.values()]
        cells += [_gap(scores[a][budget], scores[b][budget]) for a, b in gaps]
        shown = budget if isinstance(budget, str) else f"{budget:g}"
        yield f"| {shown} | {' | '.join(cells)} |"
    times = [
        f"{rows[rows['method'] == key].groupby('split')['seconds'].first().mean():.1f} s"
        for key in scores
    ]
    yield f"| time | {' | '.join(times + [''] * len(gaps))} |"


def _heading(rows: pd.DataFrame, key: str) -> str:
    if key != "cegb":
        return NAMES[key]
    return f"{NAMES[key]} ({rows['way'].dropna().iloc[0]} prices)"


def _mean_and_error(values: pd.Series) -> str:
    return f"{values.mean():.3f} ± {standard_error(values):.3f}"


def _gap(ours: pd.Series, theirs: pd.Series) -> str:
    """Mean of the paired differences over the splits that both have, in their standard errors."""
    gaps = (ours - theirs).dropna()
    if gaps.empty:
        return ""
    error = standard_error(gaps)
    return f"{gaps.mean():+.3f}" + (f" ({gaps.mean() / error:+.1f} SE)" if error > 0 else "")


def draw_panels(rows: pd.DataFrame, path: Path) -> None:
    """Test score against budget, a panel per data set, bars of one standard error."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(rows["data"]))
    figure = Figure(figsize=(4.2 * min(3, len(names)), 3.2 * -(-len(names) // 3)))
    for at, name in enumerate(names, start=1):
        ax = figure.add_subplot(-(-len(names) // 3), min(3, len(names)), at)
        of_data = rows[rows["data"] == name]
        for i, key in enumerate(NAMES):
            if not (of_data["method"] == key).any():
                continue
            table = scores_of(of_data, key).drop(columns="average")
            errors = [standard_error(table[budget]) for budget in table]
            ax.errorbar(
                table.columns.to_numpy(float), table.mean().to_numpy(), yerr=errors,
                label=NAMES[key], color=f"C{i}", marker="o", markersize=3, capsize=2,
            )  # fmt: skip
        ax.set(title=name, xlabel="budget", ylabel=of_data["scoring"].iloc[0], xscale="log")
        ax.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
