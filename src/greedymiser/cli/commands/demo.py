"""``greedymiser demo``: the whole story on an embedded data set, told in its own words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from greedymiser.cli.guarding import Writes, interruption
from greedymiser.cli.inputs import LabelledRows, Task, TrainingData, held_out
from greedymiser.cli.outputs import (
    WRITES_CURVE,
    new_curve,
    save_model,
    write_curve,
    write_picture,
    write_table,
)
from greedymiser.cli.printing import say
from greedymiser.cli.showing import show_files, show_points, show_protocol, tell_of_half_a_curve
from greedymiser.cli.training import chosen_models, trained_curve
from greedymiser.costs.files import CostFile, write_costs
from greedymiser.datasets import CostedData, Wording, load_thyroid

# What is written below the folder.
WRITES_DEMO = Writes(
    (*WRITES_CURVE.below, "*_train.csv", "*_test.csv", "*_costs.toml", "protocol.*")
)

# Rounds of boosting: no model of the demo is at its best after more than 60.
ROUNDS = 100

# How many trade-offs are tried for the curve, and for the protocol at the end.
TRADEOFFS, TRADEOFFS_BY_ROW = 8, 4

SCORING = "balanced_accuracy"


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the pictures, report and data."), WRITES_DEMO
    ] = Path("demo-output"),
) -> None:
    """Show what each budget buys, on an embedded data set with real prices."""
    from greedymiser.estimators import MiserClassifier

    start = time.perf_counter()
    new_curve(out)
    data = load_thyroid()
    wording, job = data.wording, _training_data(data)
    say(
        f"{wording.title}: {len(data.y_train)} {wording.rows} to learn from, "
        f"{len(data.y_test)} to test.",
        "The first model compiles the kernels, which takes a few seconds; later runs reuse them.",
    )
    trained = trained_curve(job, MiserClassifier(max_iter=ROUNDS), TRADEOFFS, SCORING, None)
    models = chosen_models(trained)
    files = [*write_curve(trained, models, out), *_write_data(data, out)]
    show_points(
        trained, models, wording.unit, f"{wording.purchases} {wording.bought}",
        lambda model: wording.list_purchases(model.features_used_),
    )  # fmt: skip
    if not interruption.happened:
        files += _tell_protocol(job, wording, out)
    show_files(files)
    say(f"Done in {time.perf_counter() - start:.0f} s. Open {out / 'report.html'} in a browser.")
    tell_of_half_a_curve(models, out)


def _training_data(data: CostedData) -> TrainingData:
    """The data set as a command would have read it from files."""
    X, X_test = data.as_frame()
    everything = LabelledRows(X, data.y_train, None)
    held = held_out(everything, Task.classification)
    return TrainingData(
        Task.classification,
        CostFile(data.costs, data.wording.unit),
        everything.take(~held),
        everything.take(held),
        LabelledRows(X_test, data.y_test, None),
    )


def _write_data(data: CostedData, out: Path) -> list[tuple[Path, str]]:
    """Write what other commands want to read; tell the files and what they are."""
    wording, files = data.wording, []
    X, X_test = data.as_frame()
    for name, frame, y in (("train", X, data.y_train), ("test", X_test, data.y_test)):
        path = out / f"{wording.name}_{name}.csv"
        write_table(frame.assign(**{wording.target: y}), path, "data")
        files.append((path, f"the data, to {name}"))
    prices = out / f"{wording.name}_costs.toml"
    write_costs(prices, data.costs, unit=wording.unit)
    return [*files, (prices, "the prices")]


def _tell_protocol(job: TrainingData, wording: Wording, out: Path) -> list[tuple[Path, str]]:
    """Train a model that buys more only where the first purchases ask for it; its protocol."""
    from sklearn.metrics import balanced_accuracy_score

    from greedymiser.estimators import MiserClassifier

    say(
        "",
        f"Now each {wording.row} pays for the {wording.purchases} that are {wording.bought} "
        f"for this {wording.row} alone.",
    )
    estimator = MiserClassifier(max_iter=ROUNDS, charge="row")
    trained = trained_curve(job, estimator, TRADEOFFS_BY_ROW, SCORING, None)
    best = trained.best(wording.budget, train=False)
    assert job.test is not None
    protocol = best.protocol(job.test.X)
    show_protocol(protocol, wording.unit)
    score = balanced_accuracy_score(job.test.y, best.predict(job.test.X))
    say(f"Its balanced accuracy on these {wording.rows} is {score:.4f}.", "")
    save_model(best, out / "protocol.miser", wording.unit, {})
    write_picture(protocol.plot(), out / "protocol.png")
    return [
        (out / "protocol.png", f"who is asked for which {wording.purchases}"),
        (out / "protocol.miser", "the model behind it"),
    ]
