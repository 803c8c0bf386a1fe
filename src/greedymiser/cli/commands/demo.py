"""``greedymiser demo``: a curve and a protocol on an embedded data set with real prices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from greedymiser.cli.errors import Writes, interruption
from greedymiser.cli.inputs import LabelledRows, Task, TrainingData
from greedymiser.cli.outputs import (
    WRITES_CURVE,
    new_curve,
    save_model,
    write_curve,
    write_picture,
    write_table,
)
from greedymiser.cli.printing import say
from greedymiser.cli.tables import show_files, show_protocol, show_steps, tell_of_half_a_curve
from greedymiser.cli.training import trained_curve
from greedymiser.costs.files import CostFile, write_costs
from greedymiser.datasets import CostedData, load_thyroid

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve

# What is written below the folder.
WRITES_DEMO = Writes(
    (*WRITES_CURVE.below, "*_train.csv", "*_test.csv", "*_costs.toml", "protocol.*")
)

# Rounds of boosting: no model of the demo is at its best after more than 60.
ROUNDS = 100

# What a patient may cost on average where each pays for the own tests: an amount that shows how.
MEAN_BUDGET = 25.5

UNIT = "dollars"

# How many trade-offs are tried for the curve, and for the protocol at the end.
TRADEOFFS, TRADEOFFS_BY_ROW = 8, 4

SCORING = "balanced_accuracy"


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the pictures, report and data."), WRITES_DEMO
    ] = Path("demo-output"),
) -> None:
    """Show what each budget buys, on an embedded data set with real prices."""
    from greedymiser.curve.summary import front_steps

    start = time.perf_counter()
    new_curve(out)
    data = load_thyroid()
    job = demo_data(data)
    say(
        f"Thyroid disease: {len(data.y_train)} patients to learn from, {len(data.y_test)} to test.",
        "The first model compiles the kernels, which takes a few seconds; later runs reuse them.",
    )
    trained = demo_curve(job)
    steps = front_steps(trained)
    title = "Thyroid disease: what each budget for tests buys"
    files = [*write_curve(trained, steps, out, title=title), *_write_data(data, out)]
    show_steps(trained, steps)
    if not interruption.happened:
        files += _tell_protocol(job, out)
    show_files(files)
    say(f"Done in {time.perf_counter() - start:.0f} s. Open {out / 'report.html'} in a browser.")
    tell_of_half_a_curve(len(steps), out)


def demo_data(data: CostedData) -> TrainingData:
    """The data set as a command would have read it from files.

    Every second row chooses, as in the example of README, whose picture is that of the demo.
    """
    X, X_test = data.as_frame()
    everything = LabelledRows(X, data.y_train, None)
    held = np.arange(len(X)) % 2 == 1
    return TrainingData(
        Task.classification,
        CostFile(data.costs, UNIT),
        everything.take(~held),
        everything.take(held),
        LabelledRows(X_test, data.y_test, None),
    )


def demo_curve(job: TrainingData) -> TradeoffCurve:
    """What each budget buys; the pictures of README and docs are of it, too."""
    from greedymiser.estimators import MiserClassifier

    return trained_curve(job, MiserClassifier(max_iter=ROUNDS), TRADEOFFS, SCORING, None)


def _write_data(data: CostedData, out: Path) -> list[tuple[Path, str]]:
    """Write what other commands want to read; tell the files and what they are."""
    files = []
    X, X_test = data.as_frame()
    for name, frame, y in (("train", X, data.y_train), ("test", X_test, data.y_test)):
        path = out / f"thyroid_{name}.csv"
        write_table(frame.assign(diagnosis=y), path, "data")
        files.append((path, f"the data, to {name}"))
    prices = out / "thyroid_costs.toml"
    write_costs(prices, data.costs, unit=UNIT)
    return [*files, (prices, "the prices")]


def _tell_protocol(job: TrainingData, out: Path) -> list[tuple[Path, str]]:
    """Train a model that buys more only where the first purchases ask for it; its protocol."""
    from sklearn.metrics import balanced_accuracy_score

    from greedymiser.estimators import MiserClassifier

    say("", "Now each patient pays for the tests that are ordered for this patient alone.")
    estimator = MiserClassifier(max_iter=ROUNDS, charge="row")
    trained = trained_curve(job, estimator, TRADEOFFS_BY_ROW, SCORING, None)
    best = trained.best(MEAN_BUDGET, train=False)
    assert job.test is not None
    protocol = best.protocol(job.test.X)
    show_protocol(protocol, UNIT)
    score = balanced_accuracy_score(job.test.y, best.predict(job.test.X))
    say(f"Its balanced accuracy on these patients is {score:.3f}.", "")
    save_model(best, out / "protocol.miser", UNIT, {})
    write_picture(protocol.plot(), out / "protocol.png")
    return [
        (out / "protocol.png", "who is asked for which tests"),
        (out / "protocol.miser", "the model behind it"),
    ]
