"""Validation scores while an estimator trains, by its ``scoring``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from greedymiser._core.amounts import shortlist
from greedymiser.engines.interface import Floats
from greedymiser.estimators.fitted import fitted_like
from greedymiser.losses import LambdaMART
from greedymiser.losses.ndcg import ndcg_depth
from greedymiser.model.predictor import Charge
from greedymiser.model.trees import Ensemble, GrowingEnsemble
from greedymiser.scoring import TOTAL_COST
from greedymiser.scoring.names import refuse_misspelt_score
from greedymiser.scoring.total_cost import error_score
from greedymiser.training.boosting import Validation
from greedymiser.training.preparation import HeldOut, Schema
from greedymiser.training.train import Model, Watch

if TYPE_CHECKING:
    from greedymiser.estimators.base import Miser


def validation_of(estimator: Miser, schema: Schema) -> Watch:
    """How an estimator's ``scoring`` scores rows that are held out."""
    if _scores_by_loss(estimator):
        return lambda held_out: Validation(held_out.rows, lambda: -held_out.rows.loss())
    if estimator.scoring == TOTAL_COST:
        return partial(_watch_total, schema)
    compiled = _known_score(estimator, schema)

    def watch(held_out: HeldOut) -> Validation:
        rows, cases = held_out.rows, held_out.cases
        if compiled is None:
            return _score_by_scikit_learn(estimator, schema, held_out)
        score = compiled.bind(cases.y, cases.weight, cases.starts)
        return Validation(rows, lambda: score(rows.raw()))

    return watch


def _watch_total(schema: Schema, held_out: HeldOut) -> Validation:
    """Score rows by what they cost: their errors here, their bills where the account is."""
    assert schema.error_costs is not None
    rows, cases = held_out.rows, held_out.cases
    score = error_score(schema.error_costs, schema.loss, cases.y, cases.weight)
    return Validation(rows, lambda: score(rows.raw()), pays=True)


def works_in_kernels(estimator: Miser, schema: Schema) -> bool:
    """Whether an estimator trains and scores without calling anything of the user's."""
    loss = schema.loss
    if loss.formula is None and type(loss) is not LambdaMART:
        return False
    if estimator.scoring == TOTAL_COST:
        return True
    return _scores_by_loss(estimator) or _known_score(estimator, schema) is not None


def _scores_by_loss(estimator: Miser) -> bool:
    return estimator.scoring is None or estimator.scoring == "loss"


def _known_score(estimator: Miser, schema: Schema) -> Any:
    """The built-in score of an estimator's ``scoring``; None if only scikit-learn knows it."""
    # Here, since most programs that import the estimators never need them.
    from greedymiser.scoring.scores import known_score

    return known_score(estimator.scoring, schema.kind, schema.loss, schema.classes)


def check_scoring_of(estimator: Miser) -> None:
    """Raise if ``scoring`` is no score that is known here or to scikit-learn."""
    if _scores_by_loss(estimator):
        return
    scoring = estimator.scoring
    if scoring == TOTAL_COST:
        if getattr(estimator, "error_costs", None) is None:
            raise ValueError(
                f"scoring={TOTAL_COST!r} adds up bills and errors, and needs a classifier with "
                f"error_costs; this {type(estimator).__name__} has none"
            )
        return
    if estimator._kind == "ranker" and ndcg_depth(scoring) is not None:
        return
    from sklearn.metrics import check_scoring

    ours = ["loss", "ndcg@5"] if estimator._kind == "ranker" else ["loss", TOTAL_COST]
    refuse_misspelt_score(scoring, ours)
    check_scoring(estimator, scoring)


def _score_by_scikit_learn(estimator: Miser, schema: Schema, held_out: HeldOut) -> Validation:
    """Scores by scikit-learn: raw predictions of these rows are taken from the engine."""
    from sklearn.metrics import check_scoring

    scorer = check_scoring(estimator, estimator.scoring)
    rows, cases = held_out.rows, held_out.cases
    X, y = cases.table.take(cases.rows), schema.target.decode(cases.y)
    weight = {}
    if cases.weight is not None and _accepts(scorer, "sample_weight"):
        weight = {"sample_weight": cases.weight}
    if estimator._is_continued():
        start = estimator.model_
    else:
        blank = Ensemble.empty(rows.raw()[:, 0].copy(), schema.n_features)
        start = Model(blank, charge=cast(Charge, estimator.charge))
    grown = GrowingEnsemble(start.ensemble)
    model = fitted_like(estimator, schema, start)

    def raw_predict(some: Any) -> Floats:
        return rows.raw().copy() if some is X else type(estimator)._raw_predict(model, some)

    def score() -> float:
        # Nothing is copied, and what serves other rows is made when it is first needed.
        model.model_ = Model(grown.ensemble(), charge=start.charge)
        try:
            return float(scorer(model, X, y, **weight))
        except (AttributeError, TypeError, ValueError) as error:
            labels = [] if schema.classes is None else schema.classes.tolist()
            classes = f" with the classes {shortlist(labels)}" if labels else ""
            ask = "; scores of such classes end in _macro, _weighted or _ovr" if labels else ""
            what = f"scoring={estimator.scoring!r} of a {type(estimator).__name__}"
            error.add_note(f"This is about {what}{classes}{ask}.")
            raise

    model.__dict__["_raw_predict"] = raw_predict
    return Validation(rows, score, grown.add)


def _accepts(function: Callable[..., Any], argument: str) -> bool:
    parameters = inspect.signature(function).parameters
    return argument in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())
