"""Data on its way to training: checked, encoded, divided, binned and placed in an engine.

``Inputs`` is what a user passes; ``Cases`` are rows in the loss' terms; ``Schema`` is what was
learned of columns and targets, and all that a model keeps of its data; ``Prepared`` is ready to
learn from, by any number of models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    assert_all_finite,
    check_consistent_length,
    column_or_1d,
)

from greedymiser._core.threads import Threads
from greedymiser.costs.cost_model import CostModel, Feature, as_cost_model
from greedymiser.costs.errors import ErrorCosts, as_error_costs
from greedymiser.costs.prices import positions
from greedymiser.data.binning import BinMapper, BinnedMatrix, Cuts
from greedymiser.data.splits import divide
from greedymiser.data.tables import (
    Categories,
    Parted,
    Rows,
    Table,
    as_table,
    categorical_columns,
    is_lazy,
    learn_categories,
)
from greedymiser.engines.interface import Engine, Floats, PlacedRows
from greedymiser.engines.interface import Sample as EngineSample
from greedymiser.engines.marks import share_unit
from greedymiser.losses import Kind, Loss
from greedymiser.losses.ndcg import query_order
from greedymiser.model.links import gives_probabilities
from greedymiser.training.grower import Interactions
from greedymiser.training.parameters import Parameters
from greedymiser.training.targets import Classes, Target, learn_target

Part = Literal["val", "test"]
"""Data beside that which is learned from, as arguments are named after it: ``X_val``."""

# Above so many rows, some are set aside to stop early by; as in HistGradientBoosting.
MANY_ROWS = 10_000


@dataclass(frozen=True)
class Inputs:
    """X, y and what goes with them, as a user passes them. X has been looked at already."""

    X: Any
    y: Any
    weight: Any = None
    qid: Any = None


NO_INPUTS = Inputs(None, None)


@dataclass(frozen=True)
class Checked:
    """The same, checked: the rows of X that count, and what belongs to them."""

    X: Any
    # None for all rows.
    rows: Rows
    y: NDArray[Any]
    weight: Floats | None
    qid: NDArray[Any] | None


@dataclass(frozen=True)
class Cases:
    """Some rows of a table and what goes with them, in the loss' terms."""

    table: Table
    # None for all rows, in their order.
    rows: Rows
    y: Floats
    weight: Floats | None
    # Where each query starts; None if all rows are one query.
    starts: NDArray[np.intp] | None = None
    # How many rows each stands for where costs are shared out: its weight, but for the factor that
    # its class may have been given, which is about errors. None for 1 each.
    shares: Floats | None = None

    def take(self, chosen: NDArray[np.intp]) -> Cases:
        rows = chosen if self.rows is None else self.rows[chosen]
        weight = None if self.weight is None else self.weight[chosen]
        shares = None if self.shares is None else self.shares[chosen]
        return Cases(self.table, rows, self.y[chosen], weight, shares=shares)

    def by_query(self, qid: NDArray[Any]) -> Cases:
        """The same rows, those of each query together."""
        order, starts = query_order(qid)
        return replace(self.take(order), starts=starts)

    def take_queries(self, queries: NDArray[np.intp]) -> Cases:
        assert self.starts is not None
        sizes = np.diff(self.starts)[queries]
        chosen = np.concatenate([np.arange(*self.starts[q : q + 2]) for q in queries])
        return replace(self.take(chosen), starts=np.append(0, np.cumsum(sizes)))

    def told(self, loss: Loss) -> Loss:
        """The loss for these rows: one that is computed by query gets their starts."""
        if not hasattr(loss, "over"):
            return loss
        return loss.over(np.array([0, len(self.y)]) if self.starts is None else self.starts)

    @property
    def total_weight(self) -> float:
        """W of eq. 5; summed exactly, so that the order of the rows does not matter."""
        return float(len(self.y)) if self.weight is None else math.fsum(self.weight)


@dataclass(frozen=True)
class Schema:
    """What was learned of the columns and the target before any tree was grown."""

    kind: Kind
    n_features: int
    # Names of the columns, where X has names.
    columns: tuple[str, ...] | None
    categories: Categories
    target: Target
    costs: CostModel
    loss: Loss
    # Draws the rows that are set aside, and those that rounds look at; kept, so that a continued
    # fit draws the same ones.
    seed: int
    # Per feature, 1 where predictions must not fall, -1 where they must not rise; None for nowhere.
    monotonic_cst: tuple[int, ...] | None = None
    # Which features may meet on a path; None for any.
    interactions: Interactions | None = None
    # What errors cost; None where a prediction is the likeliest class.
    error_costs: ErrorCosts | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the features where X or the costs have names."""
        if self.columns is not None or self.costs.feature_names is None:
            return self.columns
        return tuple(self.costs.feature_names)

    def name(self, feature: int) -> Feature:
        """Name of a feature where there are names, else its position."""
        return feature if self.names is None else self.names[feature]

    @property
    def classes(self) -> NDArray[Any] | None:
        """Class labels, ascending; None where the target is no class."""
        return self.target.labels if isinstance(self.target, Classes) else None

    def encode(self, checked: Checked) -> Cases:
        """From the user's terms to the loss': categories and labels become numbers."""
        table = as_table(checked.X, self.categories)
        y, weight = self.target.encode(checked.y), checked.weight
        cases = Cases(table, checked.rows, y, weight, shares=weight)
        self.loss.check_target(cases.y)
        return cases if checked.qid is None else cases.by_query(checked.qid)


@dataclass(frozen=True)
class HeldOut:
    """Rows to score models with."""

    cases: Cases
    rows: PlacedRows
    binned: BinnedMatrix


@dataclass(frozen=True)
class Prepared:
    """Data that is ready to learn from: models that differ in their trade-off share it."""

    schema: Schema
    train: Cases
    rows: PlacedRows
    validation: HeldOut | None
    # Whether to stop when the score no longer improves.
    is_patient: bool
    mapper: BinMapper
    engine: Engine
    threads: Threads
    binned: BinnedMatrix
    # What the estimator was told; models may differ from it in what data has nothing to do with.
    params: Parameters

    @property
    def cuts(self) -> Cuts:
        return self.mapper.cuts

    @cached_property
    def total_weight(self) -> float:
        return self.train.total_weight

    def hold_out(self, cases: Cases) -> HeldOut:
        """Bin and place more rows to score models with."""
        binned = self.mapper.transform(cases.table, cases.rows, self.threads)
        return HeldOut(cases, _placed(self.engine, binned, cases, self.schema.loss), binned)

    def twin(self, engine: Engine, threads: Threads) -> Prepared:
        """The same data placed once more, for a model that grows at the same time."""
        return replace(self, engine=engine, threads=threads)._placed_again()

    def only(self, features: NDArray[np.bool_]) -> Prepared:
        """The same data placed once more, for a model that asks for no other features."""
        held_out = self.validation
        if held_out is not None:
            held_out = replace(held_out, binned=held_out.binned.only(features))
        return replace(self, binned=self.binned.only(features), validation=held_out)._placed_again()

    def _placed_again(self) -> Prepared:
        loss, held_out = self.schema.loss, self.validation
        if held_out is not None:
            rows = _placed(self.engine, held_out.binned, held_out.cases, loss)
            held_out = replace(held_out, rows=rows)
        rows = _placed(self.engine, self.binned, self.train, loss)
        return replace(self, rows=rows, validation=held_out)

    def folds(self, n_folds: int) -> list[Prepared]:
        """The training rows again, a part of them held out of each: cross-fitting.

        Every fold has its share of each target (of each query's number, for a ranker), so that
        small classes are in all of them. Bins and what was learned of columns stay as they are.
        None where there are too few rows, or queries, to be divided.
        """
        train = self.train
        n_units = len(train.y) if train.starts is None else len(train.starts) - 1
        if n_units < 2 * n_folds:
            return []
        rng = np.random.default_rng(self.schema.seed)
        if train.starts is None:
            order = np.lexsort((rng.permutation(len(train.y)), train.y))
            take: Callable[[NDArray[np.intp]], Cases] = train.take
        else:
            order = rng.permutation(len(train.starts) - 1)
            take = train.take_queries
        fold_of = np.empty(len(order), dtype=np.intp)
        fold_of[order] = np.arange(len(order)) % n_folds
        return [
            self.with_rows(
                take(np.flatnonzero(fold_of != fold)), take(np.flatnonzero(fold_of == fold))
            )
            for fold in range(n_folds)
        ]

    def divided(self, fold_of: NDArray[np.intp], n_folds: int) -> list[Prepared]:
        """The training rows, those of each fold held out once; rows of fold -1 never are."""
        return [
            self.with_rows(
                self.train.take(np.flatnonzero(fold_of != fold)),
                self.train.take(np.flatnonzero(fold_of == fold)),
            )
            for fold in range(n_folds)
        ]

    def with_rows(self, train: Cases, held_out: Cases | None = None) -> Prepared:
        """The same bins and columns, with other rows to learn from and to score with."""
        binned = self.mapper.transform(train.table, train.rows, self.threads)
        rows = _placed(self.engine, binned, train, self.schema.loss)
        part = replace(self, train=train, rows=rows, validation=None, binned=binned)
        return part if held_out is None else replace(part, validation=self.hold_out(held_out))


def prepare(
    params: Parameters,
    learn: Callable[[Checked], Schema],
    inputs: Inputs,
    inputs_val: Inputs,
    engine: Engine,
    threads: Threads,
) -> Prepared:
    """Check, encode, set aside, bin and place; ``learn`` says what columns and target mean."""
    checked = check(inputs)
    schema = learn(checked)
    train = _weighed(schema.encode(checked), schema, params)
    _check_scale(train.weight)
    held_out = encode_held_out(schema, inputs_val)
    check_same_queries(inputs, inputs_val)
    is_patient = _is_patient(params, train, held_out)
    if is_patient and held_out is None and params.validation_fraction is not None:
        train, held_out = _set_aside(train, schema, params.validation_fraction)
        schema.loss.check_target(train.y)
    schema = replace(
        schema,
        loss=schema.loss.adapted(train.y, train.weight),
        monotonic_cst=read_monotonic_cst(params.monotonic_cst, schema),
        interactions=read_interaction_cst(params.interaction_cst, schema),
    )
    mapper = _mapper(params.max_bins, schema)
    binned = mapper.fit_transform(train.table, train.rows, train.weight, threads)
    rows = _placed(engine, binned, train, schema.loss)
    prepared = Prepared(
        schema, train, rows, None, is_patient, mapper, engine, threads, binned, params
    )
    if held_out is None:
        return prepared
    return replace(prepared, validation=prepared.hold_out(held_out))


def learn_schema(
    params: Parameters, kind: Kind, estimator: str, columns: tuple[str, ...] | None, seed: int
) -> Callable[[Checked], Schema]:
    """How to learn what the columns and the target of checked data mean."""

    def learn(checked: Checked) -> Schema:
        try:
            target = learn_target(kind, estimator, checked.y)
        except ValueError as error:
            if checked.rows is not None:
                error.add_note("Rows whose sample_weight is 0 do not count.")
            raise
        n_features = checked.X.shape[1]
        setting = params.categorical_features
        categorical = read_categorical_features(setting, checked.X, n_features, columns)
        categories = learn_categories(checked.X, categorical, checked.rows, params.max_bins)
        loss = target.loss(params.loss, params.quantile)
        costs = costs_of_columns(params, n_features, columns)
        errors = read_error_costs(params.error_costs, target, loss)
        return Schema(
            kind, n_features, columns, categories, target, costs, loss, seed, error_costs=errors
        )

    return learn


def read_error_costs(setting: Any, target: Target, loss: Loss) -> ErrorCosts | None:
    """What errors cost, by the classes of the target; None where nobody says."""
    if setting is None:
        return None
    assert isinstance(target, Classes)  # only the classifier has the parameter
    if not gives_probabilities(loss):
        raise ValueError(
            "error_costs need class probabilities, and the loss "
            f"{type(getattr(loss, '_loss', loss)).__name__} gives none: it has no response"
        )
    return as_error_costs(setting, target.labels)


def _placed(engine: Engine, binned: BinnedMatrix, cases: Cases, loss: Loss) -> PlacedRows:
    units = None
    if cases.starts is not None:
        units = np.repeat(np.arange(len(cases.starts) - 1), np.diff(cases.starts))
    unit = 1.0
    if cases.shares is not None:
        unit = share_unit(len(cases.y), float(cases.shares.max()))
    return engine.place(
        EngineSample(
            binned,
            cases.y,
            cases.weight,
            cases.told(loss),
            units=units,
            shares=cases.shares,
            share_unit=unit,
        )
    )


def _mapper(max_bins: int, schema: Schema) -> BinMapper:
    # Features that are skipped together lie together: the expensive ones behind the cheap ones.
    order = np.argsort(schema.costs.prices(), kind="stable")
    sizes = {column: len(labels) for column, labels in schema.categories.items()}
    return BinMapper(max_bins, sizes, order.tolist())


# -- data that is elsewhere ------------------------------------------------------------------------


def is_elsewhere(inputs: Inputs) -> bool:
    """Whether any of it is a Dask collection, or was one."""
    values = (inputs.X, inputs.y, inputs.weight, inputs.qid)
    return isinstance(inputs.X, Parted) or any(map(is_lazy, values))


def brought(engine: Engine, inputs: Inputs) -> Inputs:
    """What is needed here of data that is elsewhere: all but X, which stays where it is."""
    if not is_elsewhere(inputs):
        return inputs
    from greedymiser.engines.dask.engine import DaskEngine

    if not isinstance(engine, DaskEngine):
        raise ValueError(
            "test data is a Dask collection, but the data to learn from is not; pass "
            "engine='dask', or bring the test data here with compute()"
        )
    return Inputs(*engine.take(inputs.X, inputs.y, inputs.weight, inputs.qid))


# -- checks ---------------------------------------------------------------------------------------


def check(inputs: Inputs) -> Checked:
    """Check the shapes, and leave out the rows of weight 0: they are as good as not there."""
    if np.ma.is_masked(inputs.y):
        n_masked = int(np.ma.getmaskarray(inputs.y).sum())
        raise ValueError(
            f"y is a masked array, {n_masked} of whose values are masked; remove these rows"
        )
    y = column_or_1d(inputs.y, warn=True)
    check_consistent_length(inputs.X, y)
    weight = _check_weight(inputs.weight, inputs.X)
    qid = _check_qid(inputs.qid, inputs.X)
    rows = None
    if weight is not None and not weight.all():
        rows = np.flatnonzero(weight)
        y, weight, qid = y[rows], weight[rows], None if qid is None else qid[rows]
    if weight is not None and (weight == 1).all():
        weight = None  # which is faster
    return Checked(inputs.X, rows, y, weight, qid)


def encode_held_out(schema: Schema, inputs: Inputs, part: Part = "val") -> Cases | None:
    """Validation or test data that a user gave; None if there is none."""
    if inputs.X is None and inputs.y is None:
        if inputs.weight is not None or inputs.qid is not None:
            raise ValueError(f"sample_weight_{part} and qid_{part} need X_{part} and y_{part}")
        return None
    if inputs.X is None or inputs.y is None:
        missing = "X" if inputs.X is None else "y"
        raise ValueError(
            f"X_{part} and y_{part} must be given together, but {missing}_{part} is missing"
        )
    try:
        return schema.encode(check(inputs))
    except ValueError as error:
        note_part(error, part)
        raise


def note_part(error: Exception, part: Part) -> None:
    """Say which data an error is about."""
    what = "validation" if part == "val" else part
    error.add_note(f"This is about the {what} data (X_{part}, y_{part}, ...).")


def check_same_queries(inputs: Inputs, other: Inputs, part: Part = "val") -> None:
    """Queries on one side only would make the other side one giant query."""
    if other.X is not None and (inputs.qid is None) != (other.qid is None):
        there, missing = f"qid_{part}", "qid"
        if inputs.qid is not None:
            there, missing = missing, there
        raise ValueError(
            f"both sides need queries, but there is only {there}: {missing} is missing"
        )


def _check_weight(sample_weight: Any, X: Any) -> Floats | None:
    if sample_weight is None:
        return None
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, copy=True)
    if weight.min() < 0:
        raise ValueError(f"sample_weight must not be negative, got {weight.min():g}")
    if not weight.any():
        raise ValueError("sample_weight must not be 0 for every row")
    return weight


def _check_scale(weight: Floats | None) -> None:
    """Refuse weights whose squares would overflow, or vanish."""
    if weight is not None and not 1e-100 < weight.max() < 1e100:
        raise ValueError(
            f"the largest weight is {weight.max():g}, and must lie between 1e-100 and 1e100; "
            "scale sample_weight: only ratios of weights matter"
        )


def _check_qid(qid: Any, X: Any) -> NDArray[Any] | None:
    if qid is None:
        return None
    qid = np.asarray(qid)
    if qid.shape != (_num_samples(X),):
        raise ValueError(f"qid has shape {qid.shape}, but X has {_num_samples(X)} rows")
    if qid.dtype.kind == "f":
        assert_all_finite(qid, input_name="qid")
    return qid


def costs_of_columns(
    params: Parameters, n_features: int, columns: tuple[str, ...] | None
) -> CostModel:
    """The costs of the columns; checks that they fit the trade-off."""
    costs = as_cost_model(params.costs, n_features, None if columns is None else list(columns))
    dearest = float(costs.prices().max())
    if math.isinf(params.tradeoff * dearest):
        raise ValueError(f"tradeoff={params.tradeoff} times a price of {dearest} overflows")
    return costs


# -- columns --------------------------------------------------------------------------------------


def read_categorical_features(
    setting: Any, X: Any, n_features: int, columns: tuple[str, ...] | None
) -> list[int]:
    """Positions of the columns that hold categories."""
    if setting is None:
        return []
    if isinstance(setting, str):  # "from_dtype"
        return categorical_columns(X)
    setting = np.asarray(setting)
    if setting.dtype == bool or setting.ndim != 1:
        _check_one_per_feature("categorical_features", setting, n_features)
        return np.flatnonzero(setting).tolist()
    named = positions(columns or ())
    name = "categorical_features"
    return sorted({_position(f, name, named, n_features) for f in setting.tolist()})


def read_monotonic_cst(setting: Any, schema: Schema) -> tuple[int, ...] | None:
    """One direction per feature; None where there is none at all."""
    if setting is None:
        return None
    n_features = schema.n_features
    values = np.zeros(n_features, dtype=object)
    if isinstance(setting, dict):
        named = positions(schema.columns or ())
        for feature, direction in setting.items():
            values[_position(feature, "monotonic_cst", named, n_features)] = direction
    else:
        _check_one_per_feature("monotonic_cst", np.asarray(setting), n_features)
        values[:] = np.asarray(setting).tolist()
    bad = [value for value in values if value not in (-1, 0, 1)]
    if bad:
        raise ValueError(f"monotonic_cst must hold only -1, 0 and 1, got {bad[0]!r}")
    both = [f for f in schema.categories if values[f] != 0]
    if both:
        raise ValueError(
            f"monotonic_cst has {values[both[0]]} for {schema.name(both[0])!r}, "
            "which is a categorical feature"
        )
    if any(values) and schema.loss.n_outputs > 1:
        raise ValueError(
            "monotonic_cst is not supported for more than two classes: their probabilities compete"
        )
    return tuple(int(v) for v in values) if any(values) else None


def read_interaction_cst(setting: Any, schema: Schema) -> Interactions | None:
    """Sets of features that may meet on a path; None if any may."""
    if setting is None:
        return None
    if isinstance(setting, str):
        return Interactions(most={"no_interactions": 1, "pairwise": 2}[setting])
    named, n_features = positions(schema.columns or ()), schema.n_features
    sets = []
    for together in setting:
        if isinstance(together, str) or not isinstance(together, Iterable):
            raise ValueError(
                f"interaction_cst must hold sets of features, got {together!r} in {setting!r}"
            )
        members = [_position(f, "interaction_cst", named, n_features) for f in together]
        sets.append(frozenset(members))
    # As in HistGradientBoosting: features in no set may meet each other.
    rest = frozenset(range(n_features)).difference(*sets)
    return Interactions(sets=(*sets, rest) if rest else tuple(sets))


def _check_one_per_feature(argument: str, values: NDArray[Any], n_features: int) -> None:
    if values.shape != (n_features,):
        raise ValueError(f"{argument} has shape {values.shape}, but X has {n_features} features")


def _position(feature: Any, argument: str, named: dict[str, int], n_features: int) -> int:
    if isinstance(feature, str):
        if feature not in named:
            raise ValueError(f"{argument} names {feature!r}, which is not a column of X")
        return named[feature]
    is_number = isinstance(feature, Integral) and not isinstance(feature, bool)
    position = int(feature) if is_number else -1
    if not 0 <= position < n_features:
        raise ValueError(f"{argument} has {feature!r}, but X has {n_features} features")
    return position


# -- rows -----------------------------------------------------------------------------------------


def _weighed(train: Cases, schema: Schema, params: Parameters) -> Cases:
    """Give the training rows the weight that their targets deserve."""
    factors = schema.target.factors(train.y, train.weight, params.class_weight)
    if factors is None:
        return train
    return replace(train, weight=factors if train.weight is None else factors * train.weight)


def _is_patient(params: Parameters, train: Cases, held_out: Cases | None) -> bool:
    """Whether to stop when the score no longer improves."""
    if isinstance(params.early_stopping, str):  # "auto"
        return held_out is not None or len(train.y) > MANY_ROWS
    return bool(params.early_stopping)


def _set_aside(cases: Cases, schema: Schema, share: float | int) -> tuple[Cases, Cases]:
    """Divide into a part to learn from and a part to validate with: rows, or queries."""
    rng = np.random.RandomState(schema.seed)
    if cases.starts is None:
        learn, keep = divide(schema.target.strata(cases.y), share, rng, "rows")
        return cases.take(learn), cases.take(keep)
    learn, keep = divide(np.zeros(len(cases.starts) - 1), share, rng, "queries")
    return cases.take_queries(learn), cases.take_queries(keep)
