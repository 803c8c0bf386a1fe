"""Training of one model on prepared data, from a constant or from a model that is continued."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.threads import Threads
from greedymiser.costs.cost_model import Ledger, Purchase, sum_of_prices
from greedymiser.data.binning import Cuts, PartedTable
from greedymiser.data.tables import Table, chosen
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.engines.interface import (
    Engine,
    EngineLostError,
    Floats,
    PlacedRows,
    SplitRules,
)
from greedymiser.engines.sampling import RoundRule
from greedymiser.model.predictor import Charge, Predictor, Stage
from greedymiser.model.row_costs import Meter, Owned
from greedymiser.model.trees import Ensemble, stack_trees
from greedymiser.training.accounts import Account, ModelAccount, RowAccount, marks_of, mean_bill
from greedymiser.training.boosting import (
    WHOLE_RECORD,
    Callback,
    History,
    Patience,
    Record,
    Validation,
    boost,
)
from greedymiser.training.grower import Grower, GrowerParams
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import Cases, HeldOut, Inputs, Prepared, Schema, is_elsewhere


def _cuda_engine(threads: Threads) -> Engine:
    # Nothing of CUDA is imported where it is not asked for.
    from greedymiser.engines.cuda.engine import open_engine

    return open_engine(threads)


def _dask_engine(threads: Threads) -> Engine:
    try:
        from greedymiser.engines.dask.engine import open_engine
    except ImportError as error:
        raise ImportError(
            f"engine='dask' needs Dask ({error}); pip install 'greedymiser[dask]'"
        ) from error
    return open_engine(threads)


ENGINES: dict[str, Callable[[Threads], Engine]] = {
    "auto": CpuEngine,
    "cpu": CpuEngine,
    "cuda": _cuda_engine,
    "dask": _dask_engine,
}


def open_engine(name: str, inputs: Sequence[Inputs], threads: Threads) -> Engine:
    """The engine of a name; "auto" goes where the data is."""
    if any(map(is_elsewhere, inputs)):
        if name not in ("auto", "dask"):
            raise ValueError(
                f"engine={name!r} cannot learn from Dask collections; pass engine='dask' or "
                "'auto', or bring the data here with compute()"
            )
        name = "dask"
    return ENGINES[name](threads)


# HistGradientBoosting's floor for the Hessian of a child, per unit of mean weight.
MIN_HESSIAN = 1e-3

# Losses of the first model beyond which gradients may be too small, or too large, to be squared,
# and the range of those whose squares and sums of squares keep their digits.
ORDINARY_LOSS = 1e-40, 1e40
SQUARABLE = 1e-152, 1e154

# Rows of X that are copied together to be asked, where not all of them are.
ROWS_COPIED = 2**16

Watch = Callable[[HeldOut], Validation]
"""How to score rows that are held out, given where they are."""


@dataclass(frozen=True)
class Model:
    """Trees, and how they came about."""

    ensemble: Ensemble
    purchases: tuple[Purchase, ...] = ()
    # Entry i is the score after i rounds, also of rounds that were not kept; higher is better.
    train_score: Floats = field(default_factory=lambda: np.empty(0))
    validation_score: Floats = field(default_factory=lambda: np.empty(0))
    # Why there are no more rounds.
    stopped: str = ""
    # How many rounds are worth keeping: up to the best validation score since training began.
    best_iter: int = 0
    # Who pays: the model, once, or every row.
    charge: Charge = "model"
    # Where rows pay: entry i is their mean cost after i rounds, trees included.
    train_cost: Floats = field(default_factory=lambda: np.empty(0))
    validation_cost: Floats = field(default_factory=lambda: np.empty(0))
    # Whether a round is one tree, repeated for each output: it is paid for once.
    has_copies: bool = False

    @property
    def n_iter(self) -> int:
        return self.ensemble.n_iter

    @property
    def mean_cost(self) -> float | None:
        """Where rows pay: what those cost on average that it was trained on, if that is known."""
        if self.charge != "row" or len(self.train_cost) == 0:
            return None
        return float(self.train_cost[self.n_iter])

    def predictor(self, schema: Schema, n_jobs: int | None) -> Predictor:
        """The model for serving: it knows nothing of training. It is made once, and kept."""
        kept: tuple[Schema, Predictor] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] is not schema or kept[1].n_jobs != n_jobs:
            # As cached properties do it: a frozen dataclass has no other way.
            self.__dict__["_kept"] = kept = schema, _finished(self, schema, n_jobs)
        return kept[1]

    def __getstate__(self) -> dict[str, Any]:
        """Leave what is only kept out of copies and pickles."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def raise_if_cut_short(self) -> None:
        """Raise what ended the training, where it was neither the data nor a rule."""
        if self.stopped == "interrupted":
            raise KeyboardInterrupt
        if self.stopped == "cluster lost":
            raise EngineLostError(
                f"all workers were lost in round {self.n_iter}; an estimator keeps the rounds "
                "before it (n_iter_), and warm_start=True continues with them on another cluster"
            )

    def truncated(self, n_iter: int) -> Model:
        """The first rounds, and what they bought."""
        purchases = tuple(line for line in self.purchases if line.iteration < n_iter)
        ensemble = self.ensemble.truncated(n_iter)
        return replace(self, ensemble=ensemble, purchases=purchases, best_iter=n_iter)


def _finished(model: Model, schema: Schema, n_jobs: int | None) -> Predictor:
    ensemble = model.ensemble
    n_trees = model.n_iter if model.has_copies else ensemble.n_trees
    return Predictor(
        kind=schema.kind,
        stages=(Stage(ensemble, 0, ensemble.n_iter, n_trees),),
        rule=None,
        costs=schema.costs,
        loss=schema.loss,
        n_features=schema.n_features,
        classes=schema.classes,
        categories=schema.categories,
        feature_names=schema.columns,
        purchases=model.purchases,
        n_jobs=n_jobs,
        charge=model.charge,
        mean_cost=model.mean_cost,
        error_costs=schema.error_costs,
    )


def blank_model(prepared: Prepared, params: Parameters) -> Model:
    """A model without trees: the best constant, or 0."""
    schema, train = prepared.schema, prepared.train
    baseline = np.zeros(schema.loss.n_outputs)
    if params.init == "prior":
        baseline = schema.loss.prior(train.y, train.weight)
    return Model(Ensemble.empty(baseline, schema.n_features), charge=params.charge)


def train(
    prepared: Prepared,
    params: Parameters,
    model: Model,
    watch: Watch,
    callbacks: Sequence[Callback] = (),
    allowed: NDArray[np.bool_] | None = None,
    sunk: NDArray[np.bool_] | None = None,
    record: Record = WHOLE_RECORD,
) -> Model:
    """Add rounds to a model, all that there will be; ``best_iter`` says how many are worth keeping.

    Trees ask only for the ``allowed`` features, by default all of them; where
    rows pay, ``sunk`` resources count as paid when gains are weighed against prices.
    ``record`` is what is written down of every round.
    An interruption from the keyboard ends the training: the model has the rounds that were
    finished, and ``stopped`` is "interrupted"; "cluster lost" where all workers are gone.
    """
    grower = make_grower(prepared, params, model, allowed, sunk)
    grower.account.check_start(model.ensemble.n_trees)
    validation = None
    if prepared.validation is not None:
        held_out = prepared.validation
        start_rows(prepared, held_out.rows, held_out.cases, model)
        validation = watch(held_out)
        if model.charge == "row":
            validation = replace(validation, cost=mean_cost_of(prepared, held_out.rows))
    history = History()
    before = _before(prepared, model, grower, validation)
    try:
        boost(
            grower,
            prepared.schema.loss,
            validation,
            history,
            first=model.n_iter,
            max_iter=params.max_iter,
            patience=Patience(
                params.n_iter_no_change if prepared.is_patient else None, float(params.tol)
            ),
            rounds=_round_rule(params, prepared.schema.seed),
            callbacks=callbacks,
            record=record,
        )
    except KeyboardInterrupt:
        history.stopped = "interrupted"
    except EngineLostError:
        history.stopped = "cluster lost"
    return _extended(model, history, before)


def make_grower(
    prepared: Prepared,
    params: Parameters,
    model: Model,
    allowed: NDArray[np.bool_] | None = None,
    sunk: NDArray[np.bool_] | None = None,
) -> Grower:
    """A grower for the next tree of a model."""
    schema = prepared.schema
    start_rows(prepared, prepared.rows, prepared.train, model)
    account: Account
    if model.charge == "row":
        limits = params.budget, params.row_budget
        account = RowAccount(schema.costs, prepared.rows, *limits, sunk)
    else:
        account = ModelAccount(Ledger(schema.costs, model.ensemble.features), params.budget)
    categorical = np.array(list(schema.categories), dtype=np.intp)
    grower_params = _grower_params(prepared, params)
    thresholds = prepared.cuts.thresholds
    grower = Grower(prepared.rows, account, thresholds, categorical, grower_params, allowed)
    grower.used[model.ensemble.features] = True
    return grower


def start_rows(prepared: Prepared, rows: PlacedRows, cases: Cases, model: Model) -> None:
    """Let placed rows begin with what a model says of them, and has asked of them."""
    ensemble = model.ensemble
    marks = marks_of(prepared.schema.costs) if model.charge == "row" else None
    if grown_on(ensemble, prepared.cuts):
        rows.start(ensemble.baseline, marks)
        for t in range(ensemble.n_trees):
            rows.add_tree(ensemble.tree(t), t % ensemble.n_outputs)
        return
    # The trees were grown on other bins: the rows walk down them by their values.
    raw = _answers_for(cases, prepared.threads, partial(_predicted, ensemble))
    had = None if marks is None else owned_by(prepared, ensemble, cases)
    rows.start(np.ascontiguousarray(raw.T), marks, had)


def grown_on(ensemble: Ensemble, cuts: Cuts) -> bool:
    """Whether trees split where bins end, so that rows can walk down them by their bins."""
    nodes = ensemble.nodes
    numeric = nodes[(nodes["feature"] >= 0) & (nodes["category_set"] < 0)]
    if len(numeric) == 0:
        return True
    values, starts = cuts.thresholds
    place = starts[numeric["feature"]] + numeric["bin"]
    is_there = (numeric["bin"] >= 0) & (place < starts[numeric["feature"] + 1])
    return bool(is_there.all() and np.array_equal(values[place], numeric["threshold"]))


def owned_by(prepared: Prepared, ensemble: Ensemble, cases: Cases) -> NDArray[np.bool_] | None:
    """Whether each row has asked for each resource, (n, n_resources); None without trees."""
    if ensemble.n_trees == 0:
        return None
    costs = prepared.schema.costs
    meter = Meter.of(costs, ensemble.features)
    marks = meter.marks(_answers_for(cases, prepared.threads, partial(_asked, meter, ensemble)))
    owned = np.zeros((len(marks), len(costs.resource_names)), dtype=bool)
    owned[:, list(meter.resources)] = marks
    # Free resources have no marks.
    owned[:, costs.resource_costs == 0] = False
    return owned


def _answers_for(cases: Cases, threads: Threads, ask: Callable[[Table, Threads], Any]) -> Any:
    """What ``ask`` answers of some rows of a table, a line for each."""
    table, rows = cases.table, cases.rows
    if isinstance(table, PartedTable):
        answers = np.concatenate(table.of_parts(partial(_on_one_thread, ask)))
        return answers if rows is None else answers[rows]
    if rows is None:
        return ask(table, threads)
    starts = range(0, len(rows), ROWS_COPIED)
    return np.concatenate([ask(chosen(table, rows[i : i + ROWS_COPIED]), threads) for i in starts])


def _on_one_thread(ask: Callable[[Table, Threads], Any], part: Table) -> Any:
    with Threads(1) as threads:
        return ask(part, threads)


def _predicted(ensemble: Ensemble, table: Table, threads: Threads) -> Floats:
    return ensemble.raw_predict(table, threads).T


def _asked(meter: Meter, ensemble: Ensemble, table: Table, threads: Threads) -> Owned:
    owned = meter.nothing(table.n_rows)
    meter.over(ensemble).rounds(table, threads, owned)
    return owned


def mean_cost_of(prepared: Prepared, rows: PlacedRows) -> Callable[[int], float]:
    """What rows that have marks cost in the mean, by the number of trees."""
    costs = prepared.schema.costs
    every = range(len(costs.resource_names))

    def mean_cost(n_trees: int) -> float:
        weights = rows.marked(None, every)[0]
        return mean_bill(costs, weights[1:], int(weights[0]), n_trees)

    return mean_cost


def root_gains(prepared: Prepared, grower: Grower) -> Floats:
    """Raw gain of each feature's best split of all rows, of the output where it is largest."""
    n_outputs = prepared.schema.loss.n_outputs
    return np.max([grower.root_gains(k) for k in range(n_outputs)], axis=0)


def cheapest_useful(
    prepared: Prepared, params: Parameters, model: Model
) -> tuple[int, float, float] | None:
    """The cheapest feature that would have paid, if the budget had not been in the way.

    The feature, its price, and what a model with it would cost.
    """
    grower = make_grower(prepared, params, model)
    gains = root_gains(prepared, grower)
    prices = grower.root_prices()
    useful = np.flatnonzero(gains > params.tradeoff * prices).tolist()
    n_trees = prepared.schema.loss.n_outputs
    bills = {f: sum_of_prices([grower.account.total(n_trees), float(prices[f])]) for f in useful}
    cheapest = min(useful, key=bills.__getitem__, default=None)
    limits = [limit for limit in (params.budget, params.row_budget) if limit is not None]
    if cheapest is None or bills[cheapest] <= min(limits, default=math.inf):
        return None  # no budget is to blame
    return cheapest, float(prices[cheapest]), bills[cheapest]


def _grower_params(prepared: Prepared, params: Parameters) -> GrowerParams:
    total = prepared.total_weight
    rules = SplitRules(
        min_samples_leaf=params.min_samples_leaf,
        min_hessian=MIN_HESSIAN * total / len(prepared.train.y),
        l2_regularization=float(params.l2_regularization),
        bound_gains=params.tradeoff > 0,
        monotonic_cst=prepared.schema.monotonic_cst,
    )
    return GrowerParams(
        rules=rules,
        tradeoff=float(params.tradeoff),
        total_weight=total,
        learning_rate=float(params.learning_rate),
        max_depth=params.max_depth,
        max_leaf_nodes=params.max_leaf_nodes,
        step=params.step,
        interactions=prepared.schema.interactions,
    )


def _round_rule(params: Parameters, seed: int) -> RoundRule:
    most = params.max_features
    return RoundRule(
        seed=seed,
        shopping_interval=int(params.shopping_interval),
        subsample=float(params.subsample),
        max_features=int(most) if isinstance(most, Integral) else float(most),
    )


class _Before(NamedTuple):
    """Scores and mean costs of a model before boosting goes on."""

    train_score: float
    validation_score: float | None
    train_cost: float
    validation_cost: float | None


def _before(
    prepared: Prepared, model: Model, grower: Grower, validation: Validation | None
) -> _Before:
    with np.errstate(over="ignore"):
        loss = prepared.rows.loss()
    if not math.isfinite(loss):
        most = np.abs(prepared.train.y).max()
        raise ValueError(
            f"the loss of the first model is {loss}; y reaches {most:g} and may need rescaling"
        )
    if not ORDINARY_LOSS[0] < loss < ORDINARY_LOSS[1]:
        _check_squares(prepared, model)
    n_trees = model.ensemble.n_trees
    score, cost = None, None
    if validation is not None:
        cost = None if validation.cost is None else validation.cost(n_trees)
        score = validation.total(grower.account.total(n_trees) if cost is None else cost)
    return _Before(-loss, score, grower.account.total(n_trees), cost)


def _check_squares(prepared: Prepared, model: Model) -> None:
    """Raise if squares of gradients, which gains are made of, would vanish or overflow."""
    loss, train = prepared.schema.loss, prepared.train
    if loss.formula is None or model.ensemble.n_trees > 0:
        return
    raw = np.repeat(model.ensemble.baseline[:, None], len(train.y), axis=1)
    slopes = np.abs(loss.gradients(train.y, raw)[0])
    most = float((slopes if train.weight is None else slopes * train.weight).max())
    if most == 0 or (SQUARABLE[0] < most and most * len(train.y) < SQUARABLE[1]):
        return
    what = "vanish" if most < 1 else "overflow"
    weights = "" if train.weight is None else f" and the weights {train.weight.max():g}"
    raise ValueError(
        f"y reaches {np.abs(train.y).max():g}{weights}, so that gradients reach {most:g} and their "
        f"squares would {what}; rescale y{', or sample_weight' if weights else ''}"
    )


def _extended(model: Model, history: History, before: _Before) -> Model:
    """A model and what boosting has added to it."""
    first, n = model.n_iter, len(history.rounds)
    # An interruption may have left half a round behind.
    bought = [line for line in history.purchases if line.iteration < first + n]
    losses = [before.train_score, *(-loss for loss in history.train_loss[:n])]
    tried, best_iter = np.empty(0), first + n
    if before.validation_score is not None:
        scores = [before.validation_score, *history.validation_score[:n]]
        tried = _scores_from(model.validation_score, first, scores)
        # A score that is not a number is no reason to buy anything.
        best_iter = first + int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
    paid: dict[str, Any] = {}
    if model.charge == "row":
        costs = [before.train_cost, *history.train_cost[:n]]
        paid["train_cost"] = _scores_from(model.train_cost, first, costs)
    if before.validation_cost is not None:
        costs = [before.validation_cost, *history.validation_cost[:n]]
        paid["validation_cost"] = _scores_from(model.validation_cost, first, costs)
    return Model(
        ensemble=model.ensemble.extended(stack_trees(history.rounds)),
        purchases=(*model.purchases, *bought),
        train_score=_scores_from(model.train_score, first, losses),
        validation_score=tried,
        stopped=history.stopped,
        best_iter=best_iter,
        charge=model.charge,
        **paid,
    )


def _scores_from(scores: Floats, first: int, new: Sequence[float]) -> Floats:
    """Scores by round, with new ones from round ``first`` on; NaN for rounds without any."""
    before = np.full(first, np.nan)
    before[: len(scores[:first])] = scores[:first]
    return np.append(before, new)
