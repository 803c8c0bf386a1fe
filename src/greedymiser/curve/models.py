"""The models of a curve: trained on data that is placed once, kept with their traces.

The path, the frontier and whoever else has candidates (gates) hand them in here; the curve reads
``tables`` and knows nothing of how they came about.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.threads import Threads
from greedymiser.cascades.candidates import front
from greedymiser.costs.cost_model import CostModel, Ledger
from greedymiser.curve.checkpoints import Checkpoint, fingerprints
from greedymiser.curve.trainer import Opening, Trainer, TrainerPool
from greedymiser.engines.interface import Floats, PlacedRows
from greedymiser.estimators import Miser, fitted_like, validation_of, works_in_kernels
from greedymiser.model.links import has_log_link
from greedymiser.scoring import TOTAL_COST
from greedymiser.scoring.names import score_name
from greedymiser.scoring.scores import known_score
from greedymiser.training.boosting import Validation
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import (
    HeldOut,
    Inputs,
    Schema,
    brought,
    check_same_queries,
    encode_held_out,
)
from greedymiser.training.train import Model, Watch, blank_model, mean_cost_of, start_rows

if TYPE_CHECKING:
    import pandas as pd

# Scores for which a rare class weighs as much as a common one, or more than its rows.
SCORES_OF_CLASSES = {
    "balanced_accuracy", "matthews_corrcoef", "f1", "jaccard",
    "f1_macro", "recall_macro", "precision_macro", "jaccard_macro",
}  # fmt: skip
# Powers of class frequencies that probabilities may be divided by. The first is what a score of
# equal classes asks for; the next must bring clearly more, as a share of what the best so far
# brings. Where rows pay it is the other way round: gates learn from losses, and corrected in full,
# common rows look as if they were lost.
PRIOR_POWERS, CLEARLY_MORE = (1.0, 0.5), 0.1


@dataclass(frozen=True)
class FittedCandidate:
    """A fitted model of any kind that a curve may offer, as it stands: it has no rounds to choose.

    ``cost`` is the mean cost of the validation rows, trees included, and ``score`` their score, of
    which higher is better.
    """

    model: Any
    cost: float
    score: float
    found_by: str
    tradeoff: float = 0.0
    n_iter: int = 0
    n_trees: int = 0
    # Without trees; all of ``cost`` if nothing is said.
    feature_cost: float | None = None
    n_features: int = 0
    test_score: float | None = None
    test_cost: float | None = None


@dataclass
class CurveEntry:
    """A model of the curve and the rows about it."""

    model: Any
    trace: pd.DataFrame
    tradeoff: float
    # At the best round.
    cost: float
    found_by: str
    # What to add to validation scores to get those to choose by, the same for all rounds or from
    # round 0 on; None if it is the usual.
    shift: float | Floats | None = None
    # How it was trained, where others may be trained in the same way.
    params: Parameters | None = None
    opening: Opening | None = None

    def choice_scores(self, usual: float) -> pd.Series:
        """What each row of the trace is chosen by."""
        return self.trace["score"] + shifts_of(self.trace, self.shift, usual)

    @property
    def pays_by_row(self) -> bool:
        return self.params is not None and self.params.charge == "row"


class CurveModels:
    """Data that is placed once, those who train on it, and the models that a curve has.

    Parameters
    ----------
    estimator : Miser
        Not fitted; all models are copies of it.
    inputs, inputs_val, inputs_test : Inputs
        Rows to learn from, to choose by and, if there are any, to report on.
    threads : Threads
    checkpoint : path, optional
        A folder where finished models are kept.
    """

    def __init__(
        self,
        estimator: Miser,
        inputs: Inputs,
        inputs_val: Inputs,
        inputs_test: Inputs,
        threads: Threads,
        checkpoint: str | os.PathLike[str] | None = None,
    ):
        if inputs_val.X is None or inputs_val.y is None:
            raise ValueError("tradeoff_curve needs X_val and y_val: rounds are chosen by them")
        self.blank = estimator
        self.threads = threads
        self.params = Parameters.of(estimator)
        prepared = estimator.prepare(inputs, inputs_val, threads)
        kept = None
        if checkpoint is not None:
            kept = Checkpoint(checkpoint, fingerprints(prepared, estimator))
        watch = validation_of(estimator, prepared.schema)
        start = blank_model(prepared, self.params)
        in_kernels = works_in_kernels(estimator, prepared.schema)
        self.trainer = Trainer(prepared, start, watch, in_kernels, kept)
        # Power of the class frequencies that probabilities are divided by, and what that does to
        # raw predictions; ``_watch`` scores as if there were none.
        self.prior_correction = 0.0
        self._shift: Floats = np.zeros(0)
        self._watch = watch
        check_same_queries(inputs, inputs_test, "test")
        inputs_test = brought(prepared.engine, inputs_test)
        inputs_test = estimator.check_features(inputs_test, reset=False, part="test")
        cases = encode_held_out(prepared.schema, inputs_test, "test")
        self.test = None if cases is None else prepared.hold_out(cases)
        # What cross-fitting usually says beside validation; see ``FrontierSearch.shift``.
        self.usual_shift = 0.0
        self._entries: list[CurveEntry] = []

    @property
    def schema(self) -> Schema:
        return self.trainer.prepared.schema

    @cached_property
    def pool(self) -> TrainerPool:
        """Several trainers at a time; their rows are placed when the first model is wanted."""
        return TrainerPool(self.trainer)

    @property
    def score_name(self) -> str:
        return score_name(self.blank.scoring, self.schema.loss)

    def check_score(self) -> None:
        """Raise if validation rows have no score, whatever is predicted: one class has no area."""
        schema, validation = self.schema, self.trainer.prepared.validation
        score = known_score(self.blank.scoring, schema.kind, schema.loss, schema.classes)
        if score is None or validation is None:
            return
        cases = validation.cases
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bound = score.bind(cases.y, cases.weight, cases.starts)
            value = bound(np.zeros((schema.loss.n_outputs, len(cases.y))))
        if math.isnan(value):
            found = np.unique(schema.target.decode(np.asarray(cases.y))).tolist()
            what = f"whose y is {found[0]!r}" if len(found) == 1 else "as they are"
            raise ValueError(
                f"scoring={self.score_name!r} is nan for the {len(cases.y)} validation rows, {what}"
            )

    # -- taking models in --------------------------------------------------------------------------

    def add(
        self,
        model: Model,
        params: Parameters,
        found_by: str,
        within: tuple[float, float, float] | None = None,
        shift: float | Floats | None = None,
        opening: Opening | None = None,
    ) -> Miser:
        """Take in a model with all its rounds; the estimator that it has become.

        ``within`` are bounds: rounds count that cost more than the first, less than the second,
        and score less than the third. A model without any such round is not taken in. ``shift``
        added to the validation score is what the model is chosen by: the usual one if not given.
        """
        fitted = self.fitted(model)
        fitted.tradeoff = params.tradeoff
        fitted.shopping_interval = params.shopping_interval
        trace = self._trace(fitted, model)
        if within is not None:
            low, high, score = within
            costs = trace["cost"]
            scores = trace["score"] + shifts_of(trace, shift, self.usual_shift)
            trace = trace[(costs > low) & (costs < high) & (scores < score)]
            if trace.empty:
                return fitted
        cost = best_cost(fitted)
        entry = CurveEntry(fitted, trace, float(params.tradeoff), cost, found_by, shift)
        entry.params, entry.opening = params, opening
        self._entries.append(entry)
        return fitted

    def fitted(self, model: Model) -> Miser:
        """The estimator that a model makes."""
        return fitted_like(self.blank, self.schema, self.corrected(model))

    def paying_by_row(self, model: Model) -> Model:
        """The same trees, if every row pays for what its own paths ask."""
        by_row, validation = replace(model, charge="row"), self.trainer.prepared.validation
        assert validation is not None
        return replace(
            by_row,
            train_cost=self._mean_costs(by_row, self._train_rows),
            validation_cost=self._mean_costs(by_row, validation),
        )

    @cached_property
    def _train_rows(self) -> HeldOut:
        """The training rows once more, to send trees over them."""
        return self.trainer.prepared.hold_out(self.trainer.prepared.train)

    def _mean_costs(self, model: Model, held_out: HeldOut) -> Floats:
        """What rows cost in the mean after every round."""
        prepared, ensemble = self.trainer.prepared, model.ensemble
        start_rows(prepared, held_out.rows, held_out.cases, model.truncated(0))
        watched, mean_cost = self._watch(held_out), mean_cost_of(prepared, held_out.rows)
        costs = [0.0]
        for n_trees in range(1, ensemble.n_trees + 1):
            watched.add_tree(ensemble.tree(n_trees - 1), (n_trees - 1) % ensemble.n_outputs)
            if n_trees % ensemble.n_outputs == 0:
                costs.append(mean_cost(n_trees))
        return np.array(costs)

    def _trace(self, fitted: Miser, model: Model) -> pd.DataFrame:
        trace = trace_of(fitted)
        if self.prior_correction:
            trace["prior_correction"] = self.prior_correction
        if self.test is not None:
            (scores,), costs = self._replayed(model, self.test, [self.trainer.watch])
            trace["test_score"] = scores
            if costs:
                trace["test_cost"] = costs
        return trace

    def add_fitted(self, candidate: FittedCandidate, shift: float | None = None) -> None:
        """Take in a fitted model of another kind; ``shift`` as in ``add``."""
        import pandas as pd

        bill = candidate.cost if candidate.feature_cost is None else candidate.feature_cost
        row = {
            "tradeoff": candidate.tradeoff,
            "n_iter": candidate.n_iter,
            "n_trees": candidate.n_trees,
            "feature_cost": bill,
            "tree_cost": candidate.cost - bill,
            "cost": candidate.cost,
            "score": candidate.score,
            "n_features": candidate.n_features,
        }
        if candidate.test_score is not None:
            row["test_score"] = candidate.test_score
        if candidate.test_cost is not None:
            row["test_cost"] = candidate.test_cost
        entry = (candidate.tradeoff, candidate.cost, candidate.found_by)
        self._entries.append(CurveEntry(candidate.model, pd.DataFrame([row]), *entry, shift))

    def rivals(self, shift: float) -> list[CurveEntry]:
        """Models whose rows pay and that would be chosen for some budget if this were their shift.

        They were compared by validation rows alone. The cheapest come first.
        """
        scores = [entry.choice_scores(shift) for entry in self._entries]
        sizes = [len(entry.trace) for entry in self._entries]
        of = np.repeat(np.arange(len(sizes)), sizes)
        cost = np.concatenate([entry.trace["cost"] for entry in self._entries]).tolist()
        score = np.nan_to_num(np.concatenate(scores), nan=-np.inf).tolist()
        rivals = [self._entries[i] for i in dict.fromkeys(of[front(cost, score)].tolist())]
        return [entry for entry in rivals if entry.shift is None and entry.pays_by_row]

    def shift_others(self, flat: float, by_row: float) -> None:
        """Set the shifts of models that have none yet, by who pays."""
        for entry in self._entries:
            if entry.shift is None:
                entry.shift = by_row if entry.pays_by_row else flat

    # -- classes that count equally ----------------------------------------------------------------

    def correct_priors(self) -> None:
        """Where a score counts classes equally, let the models do so if that validates better.

        A model says what is likely, and so it hardly ever names a rare class; a score like balanced
        accuracy asks for the class that is likely *for its frequency*. Dividing probabilities by
        class frequencies, or by their square roots, is a shift of the raw predictions: the trees
        stay as they are. All models so far decide, in the mean.
        """
        prepared, loss = self.trainer.prepared, self.schema.loss
        held_out = prepared.validation
        if not self._counts_classes_equally() or held_out is None or not self._entries:
            return
        priors = loss.prior(prepared.train.y, prepared.train.weight)
        models = [entry.model.model_ for entry in self._entries]
        without = best = np.mean([_best_score(model.validation_score) for model in models])
        powers = PRIOR_POWERS[::-1] if self.params.charge == "row" else PRIOR_POWERS
        watches = [shifted_watch(self._watch, power * priors) for power in powers]
        replayed = [self._replayed(model, held_out, watches)[0] for model in models]
        for power, watch, *traces in zip(powers, watches, *replayed, strict=True):
            score = np.mean([_best_score(np.array(trace)) for trace in traces])
            if score - best > CLEARLY_MORE * (best - without):
                best, self.prior_correction, self._shift = score, power, power * priors
                self.trainer = replace(self.trainer, watch=watch, name=f"corrected-{power:g}")
                corrected = traces
        if self.prior_correction:
            self.pool.watch_by(self.trainer.watch, self.trainer.name)
            for entry, model, trace in zip(self._entries, models, corrected, strict=True):
                self._correct(entry, model, np.array(trace))

    def corrected(self, model: Model) -> Model:
        """A model whose raw predictions are corrected for the frequencies of classes."""
        if not self.prior_correction:
            return model
        ensemble = replace(model.ensemble, baseline=model.ensemble.baseline - self._shift)
        return replace(model, ensemble=ensemble)

    def _correct(self, entry: CurveEntry, model: Model, scores: Floats) -> None:
        """Exchange the model of an entry for its corrected twin."""
        best = int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
        model = replace(model, validation_score=scores, best_iter=best)
        entry.model.model_ = self.corrected(model)
        entry.trace = self._trace(entry.model, model)
        entry.cost = best_cost(entry.model)

    def _counts_classes_equally(self) -> bool:
        if self.schema.kind != "classifier" or not has_log_link(self.schema.loss):
            return False
        scoring = self.blank.scoring
        if not isinstance(scoring, str):
            score = known_score(scoring, "classifier", self.schema.loss, self.schema.classes)
            scoring = None if score is None else score.name
        return scoring in SCORES_OF_CLASSES

    # -- looking at them ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def tables(self) -> tuple[pd.DataFrame, list[Any]]:
        """All traces and models, by trade-off, then the most expensive first.

        Where not all are of one path, ``found_by`` tells whose each is, and ``model`` which; where
        sets were compared by cross-fitting as well, ``choice_score`` is what they are chosen by.
        """
        import pandas as pd

        is_path = [entry.found_by == "path" for entry in self._entries]
        # Where rows pay, there are models for which all pay as well, with the same trade-offs.
        are_told_apart = len({entry.tradeoff for entry in self._entries}) == len(self._entries)
        order = sorted(
            range(len(self._entries)),
            key=lambda i: (self._entries[i].tradeoff, -self._entries[i].cost, not is_path[i]),
        )
        shifts = [entry.shift for entry in self._entries if entry.shift is not None]
        is_shifted = any(np.any(shift) for shift in [self.usual_shift, *shifts])
        traces = []
        for position, i in enumerate(order):
            entry = self._entries[i]
            trace = entry.trace
            if not (all(is_path) and are_told_apart):
                trace = trace.assign(found_by=entry.found_by, model=position)
            if is_shifted:
                trace = trace.assign(choice_score=entry.choice_scores(self.usual_shift))
            traces.append(trace)
        table = pd.concat(traces, ignore_index=True)
        if self.score_name == TOTAL_COST:
            table["errors"] = -table["score"] - table["cost"]
        return table, [self._entries[i].model for i in order]

    def score_of(self, raw: Floats, part: str = "validation", bill: float = 0.0) -> float:
        """Score of raw predictions, (n_outputs, n), of the validation or the test rows.

        ``bill`` is what they cost in the mean, for scores that it is taken off.
        """
        held_out = self.trainer.prepared.validation if part == "validation" else self.test
        if held_out is None:
            raise ValueError(f"there are no {part} rows")
        held_out.rows.start(raw)
        return self._watch(held_out).total(bill)

    def _replayed(
        self, model: Model, held_out: HeldOut, watches: Sequence[Watch]
    ) -> tuple[list[list[float]], list[float]]:
        """Scores of rows after every round of a model, and their mean cost where rows pay."""
        prepared, ensemble = self.trainer.prepared, model.ensemble
        start_rows(prepared, held_out.rows, held_out.cases, model.truncated(0))
        first, *others = (watch(held_out) for watch in watches)
        mean_cost = mean_cost_of(prepared, held_out.rows)
        n_outputs, pays = ensemble.n_outputs, model.charge == "row"
        rounds = np.arange(ensemble.n_iter + 1)
        bills = []
        if not pays:
            bills = _bills(
                self.schema.costs, ensemble.first_uses(), len(rounds), rounds * n_outputs
            )
        scores = [[one.total(0.0)] for one in (first, *others)]
        costs = [0.0] * pays
        for round_ in range(ensemble.n_iter):
            for k in range(n_outputs):
                tree = ensemble.tree(round_ * n_outputs + k)
                first.add_tree(tree, k)
                for one in others:  # of the same rows
                    if one.hear is not None:
                        one.hear(tree)
            bill = mean_cost((round_ + 1) * n_outputs) if pays else bills[round_ + 1]
            for one, trace in zip((first, *others), scores, strict=True):
                trace.append(one.total(bill))
            if pays:
                costs.append(bill)
        return scores, costs


class ShiftedRows:
    """Placed rows whose raw predictions are shifted for whoever looks at them."""

    def __init__(self, rows: PlacedRows, shift: Floats):
        self._rows = rows
        self._shift = shift[:, None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def raw(self) -> Floats:
        return self._rows.raw() - self._shift


def shifted_watch(watch: Watch, shift: Floats) -> Watch:
    """Score rows by raw predictions that are shifted."""

    def shifted(held_out: HeldOut) -> Validation:
        rows = cast(PlacedRows, ShiftedRows(held_out.rows, shift))
        return watch(replace(held_out, rows=rows))

    return shifted


def _best_score(scores: Floats) -> float:
    return float(np.max(np.nan_to_num(scores, nan=-np.inf)))


def best_cost(model: Miser) -> float:
    """What a model costs up to its best round; where rows pay, the validation rows in the mean."""
    best = model.model_.best_iter
    if model.model_.charge == "row":
        return float(model.model_.validation_cost[best])
    return model.truncate(best).cost_


def shifts_of(trace: pd.DataFrame, shift: float | Floats | None, usual: float) -> Any:
    """What to add to the validation scores of a trace; ``shift`` as entries have it."""
    if shift is None:
        return usual
    n_iter = trace["n_iter"].to_numpy()
    shifts = shift[n_iter] if isinstance(shift, np.ndarray) else shift
    # A constant is the same, whichever set it is the beginning of.
    return np.where(n_iter == 0, usual, shifts)


def trace_of(model: Miser) -> pd.DataFrame:
    """What a model costs and scores after every round, from the constant on."""
    import pandas as pd

    rounds = np.arange(model.n_iter_ + 1)
    n_trees = rounds * model.ensemble_.n_outputs
    first_use = model.ensemble_.first_uses()
    per_tree = model.costs_.tree_cost
    if model.model_.charge == "row":
        # Of the rows that nothing was learned from: they are what choices are made by.
        costs = model.model_.validation_cost[: len(rounds)]
        bills = costs - per_tree * n_trees
    else:
        # The same rounding as cost_: one sum of all resources and all trees.
        costs = np.array(_bills(model.costs_, first_use, len(rounds), n_trees))
        bills = np.array(_bills(model.costs_, first_use, len(rounds)))
    return pd.DataFrame(
        {
            "tradeoff": model.tradeoff,
            "n_iter": rounds,
            "n_trees": n_trees,
            "feature_cost": bills,
            "tree_cost": per_tree * n_trees,
            "cost": costs,
            "score": model.validation_score_[: len(rounds)],
            "n_features": np.searchsorted(sorted(first_use.values()), rounds),
        }
    )


def _bills(
    costs: CostModel, first_use: dict[int, int], n: int, n_trees: NDArray[np.intp] | None = None
) -> list[float]:
    """Bill of the features in use after each round, with the trees where those are given."""
    by_round: dict[int, list[int]] = {}
    for feature, use in first_use.items():
        by_round.setdefault(use, []).append(feature)
    ledger = Ledger(costs)
    bills = []
    for i in range(n):
        for feature in by_round.get(i - 1, []):
            ledger.buy(feature)
        bills.append(ledger.total(0 if n_trees is None else int(n_trees[i])))
    return bills
