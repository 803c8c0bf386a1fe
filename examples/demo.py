"""The accuracy that each budget buys, on the thyroid data with its real prices in dollars.

Trains one model per trade-off, prints what each costs and which tests it orders, and draws the
curve. Run it with ``make demo``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split

from greedymiser import MiserClassifier
from greedymiser.datasets import load_thyroid

TRADEOFFS = [0.0, 1e-4, 3e-4, 1e-3, 5e-3, 8e-3, 1e-2, 1.5e-2, 3e-2]


def train(data, tradeoff):
    """Fit one model; the round with the best validation loss is kept."""
    X, X_val, y, y_val = train_test_split(
        data.X_train, data.y_train, test_size=0.25, stratify=data.y_train, random_state=0
    )
    model = MiserClassifier(costs=data.costs, tradeoff=tradeoff, max_iter=300, max_depth=4)
    return model.fit(X, y, X_val=X_val, y_val=y_val)


def describe(model, names):
    """Name the blood tests, and count the questions."""
    used = [names[f] for f in model.ensemble_.features]
    tests = [name for name in used if name in ("TSH", "T3", "TT4", "T4U", "FTI")]
    questions = len(used) - len(tests)
    asked = [f"{questions} question{'s' if questions > 1 else ''}"] if questions else []
    return ", ".join([*tests, *asked]) or "nothing"


def draw(rows, full_price, path):
    """Balanced test accuracy against dollars per patient."""
    costs = np.array([row["cost"] for row in rows])
    scores = np.array([row["score"] for row in rows])
    fig, ax = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    ax.plot(costs, scores, color="#0b5394", marker="o", markersize=6, linewidth=1.5)
    for i, row in enumerate(rows):
        # Neighbours are numbered above and below in turn, so that the numbers do not collide.
        ax.annotate(
            str(i + 1), (row["cost"], row["score"]), xytext=(0, 7 if i % 2 else -16),
            textcoords="offset points", ha="center", fontsize=10, fontweight="bold",
        )  # fmt: skip
    key = "\n".join(f"{i + 1}  ${row['cost']:5.2f}  {row['label']}" for i, row in enumerate(rows))
    ax.text(
        0.97, 0.05, key, transform=ax.transAxes, ha="right", va="bottom", fontsize=8.5, ma="left",
        family="monospace", bbox={"facecolor": "white", "edgecolor": "#cccccc", "pad": 6},
    )  # fmt: skip
    ax.axvline(full_price, color="#777777", linestyle=":", linewidth=1.2)
    ax.annotate(
        f"everything: ${full_price:.2f}", (full_price, scores.max()), xytext=(-5, -4),
        textcoords="offset points", rotation=90, ha="right", va="top", fontsize=9, color="#555555",
    )  # fmt: skip
    ax.set_xlim(-3, full_price + 4)
    ax.set_ylim(scores.min() - 0.07, scores.max() + 0.05)
    ax.set_xlabel("cost of one prediction (dollars of medical tests per patient)")
    ax.set_ylabel("balanced accuracy on test patients")
    ax.set_title("UCI thyroid disease: what each budget buys", fontsize=11)
    ax.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    out = parser.parse_args().out
    start = time.perf_counter()
    data = load_thyroid()
    print(
        f"Thyroid disease: {len(data.y_train)} patients to learn from, {len(data.y_test)} to test."
    )
    print(
        "The first model compiles the kernels, which takes a few seconds; later runs reuse them.\n"
    )
    print(f"{'tradeoff':>9} {'cost':>8} {'accuracy':>9} {'balanced':>9} {'trees':>6}  orders")
    rows = []
    for tradeoff in TRADEOFFS:
        model = train(data, tradeoff)
        predicted = model.predict(data.X_test)
        row = {
            "cost": model.cost_,
            "score": balanced_accuracy_score(data.y_test, predicted),
            "label": describe(model, data.feature_names),
        }
        accuracy = np.mean(predicted == data.y_test)
        print(
            f"{tradeoff:9g} {row['cost']:7.2f}$ {accuracy:9.4f} {row['score']:9.4f} "
            f"{model.n_iter_:6d}  {row['label']}"
        )
        rows.append(row)
    full = data.costs.total(range(len(data.feature_names)))
    path = out / "thyroid_curve.png"
    distinct = {row["cost"]: row for row in rows}
    draw([distinct[cost] for cost in sorted(distinct)], full, path)
    print("\nWhat the model at tradeoff 3e-4 bought, and when:\n")
    print(train(data, 3e-4).receipt())
    print(f"\nPicture: {path}   ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
