"""``greedymiser score``: how good a model is on labelled rows, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from greedymiser._core.amounts import money, plain_score_name, quoted, rounded_score, shortlist
from greedymiser.cli.app import DataFile, Drop, ModelFile, Qid, TargetOption
from greedymiser.cli.errors import InputError
from greedymiser.cli.inputs import check_column, load_model, rows_for
from greedymiser.cli.printing import complain, say, show_table
from greedymiser.cli.tables import cost_unit
from greedymiser.datasets import LABEL, is_svmlight, read_table
from greedymiser.scoring import TOTAL_COST

if TYPE_CHECKING:
    from greedymiser.model.predictor import Predictor

# What is told of each kind of model if nothing else is asked for.
USUAL = {
    "regressor": ("r2", "neg_root_mean_squared_error", "neg_mean_absolute_error"),
    "classifier": ("roc_auc", "accuracy", "balanced_accuracy", "neg_log_loss"),
    "ranker": ("ndcg@5", "ndcg@10"),
}


def score(
    model: ModelFile,
    data: DataFile,
    target: TargetOption = None,
    scoring: Annotated[
        list[str] | None,
        typer.Option(
            help="Score to tell: a scikit-learn scorer, ndcg@5, or total_cost where errors have "
            "costs. May be repeated."
        ),
    ] = None,
    qid: Qid = None,
    drop: Drop = None,
) -> None:
    """Score a model on labelled rows, and tell what their predictions cost."""
    trained = load_model(model)
    scores_of_model(trained, data, target, scoring, qid, drop or ())


def scores_of_model(
    trained: Predictor,
    data: Any,
    target: str | None,
    scoring: list[str] | None,
    qid: str | None,
    drop: Any,
) -> None:
    """Print the scores of a model and the mean cost of a prediction."""
    if target is None and is_svmlight(data):
        target = LABEL
    if target is None:
        columns = read_table(data).columns
        raise InputError(f"name the target with --target; the columns are {shortlist(columns, 12)}")
    X, queries, others = rows_for(trained, data, qid, drop, [target])
    check_column(others, data, target)
    if others[target].isna().any():
        n_missing = int(others[target].isna().sum())
        raise InputError(f"column {target!r} of {str(data)!r} is missing in {n_missing} rows")
    table = trained.table(X)
    raw, left = trained.run(table, queries)
    y = encoded(trained, others[target].to_numpy())
    costs = trained.bills(table, left)
    unit = cost_unit(trained)
    wanted, rows = scoring or _usual(trained), []
    for name in wanted:
        if name != TOTAL_COST:
            score = score_of(trained, name, y, raw, queries)
            rows.append((plain_score_name(name), rounded_score(score)))
    mean = "mean cost of a prediction" if np.ptp(costs) else "cost of a prediction"
    rows.append((mean, money(float(costs.mean()), unit)))
    if TOTAL_COST in wanted:
        errors = _mean_error(trained, y, raw)
        rows.append(("mean cost of its errors", money(errors, unit)))
        rows.append(("both together", money(float(costs.mean()) + errors, unit)))
    say(f"{len(y)} rows, {len(trained.features_used_)} of {trained.n_features} features used")
    show_table("", ["", " "], rows, left="")


def _usual(trained: Predictor) -> list[str]:
    names = list(USUAL[trained.kind])
    if trained.classes is not None and len(trained.classes) > 2:
        names[0] = "roc_auc_ovr"
    return names if trained.error_costs is None else [*names, TOTAL_COST]


def _mean_error(trained: Predictor, y: NDArray[np.float64], raw: NDArray[np.float64]) -> float:
    if trained.error_costs is None:
        raise InputError(
            f"{TOTAL_COST!r} needs a model that knows what errors cost, and this one was trained "
            "without a table [errors]"
        )
    paid = trained.error_costs.realised(y.astype(np.intp), trained.probabilities(raw))
    return float(paid.mean())


def encoded(trained: Predictor, labels: NDArray[Any]) -> NDArray[np.float64]:
    """The target in the terms of the loss: codes of classes, or numbers."""
    if trained.classes is None:
        try:
            return labels.astype(np.float64)
        except ValueError:
            raise InputError(f"the target must be numbers, got {labels[0]!r}") from None
    codes = {str(label): code for code, label in enumerate(trained.classes.tolist())}
    # A file may write the class 1 as 1.0, and 1.0 as 1.
    for code, label in enumerate(trained.classes.tolist()):
        if isinstance(label, int | float) and float(label) == int(label):
            codes.setdefault(str(int(label)), code)
            codes.setdefault(str(float(label)), code)
    unknown = sorted({str(label) for label in labels if str(label) not in codes})
    here = np.unique(labels.astype(str)).tolist()
    classes = trained.classes.tolist()
    if len(unknown) == len(here) == len(classes) and "estimator" not in trained.about:
        # Models of other libraries know classes by numbers, in the order of their names.
        complain(f"Note: the classes {shortlist(here)} are taken for {shortlist(classes)}")
        codes = {label: code for code, label in enumerate(here)}
        unknown = []
    if unknown:
        raise InputError(
            f"the model does not know the class {unknown[0]!r}; it knows {shortlist(classes)}"
        )
    return np.array([codes[str(label)] for label in labels], dtype=np.float64)


def score_of(
    trained: Predictor,
    name: str,
    y: NDArray[np.float64],
    raw: NDArray[np.float64],
    queries: NDArray[Any] | None,
) -> float:
    """The score of that name; ``y`` as ``encoded`` has it."""
    from greedymiser.scoring.scores import known_score

    compiled = known_score(name, trained.kind, trained.loss, trained.classes)
    if compiled is None:
        return _score_of_scikit_learn(trained, name, y, raw)
    starts = None
    if queries is not None:
        order = np.argsort(queries, kind="stable")
        y, raw = y[order], raw[:, order]
        changes = np.flatnonzero(queries[order][1:] != queries[order][:-1]) + 1
        starts = np.concatenate([[0], changes, [len(y)]]).astype(np.intp)
    return compiled.bind(y, None, starts)(raw)


def _score_of_scikit_learn(
    trained: Predictor, name: str, y: NDArray[np.float64], raw: NDArray[np.float64]
) -> float:
    from sklearn.metrics import get_scorer_names

    from greedymiser.scoring.names import refuse_misspelt_score
    from greedymiser.scoring.truth import Truth, ask_scikit_learn

    refuse_misspelt_score(name, ["ndcg@5"] if trained.kind == "ranker" else [])
    classes = np.empty(0) if trained.classes is None else trained.classes
    rows = Truth(trained.kind, trained.loss, classes, y, None, None)
    try:
        return ask_scikit_learn(name, rows, raw)
    except ValueError as error:
        why = str(error)
        if "pos_label" in why:  # which nobody has named here
            why = f"it needs the classes 0 and 1, and these are {quoted(classes.tolist())}"
            averaged = f"{name}_macro"
            why += f"; {averaged} takes any" if averaged in get_scorer_names() else ""
        raise InputError(f"{name!r} does not suit this {trained.kind}: {why}") from None
