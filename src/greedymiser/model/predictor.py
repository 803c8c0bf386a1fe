"""Prediction from a finished model, without anything that training needs.

A served model is a sequence of *stages*. A row meets the trees of a stage, and then a rule says
whether it goes on. A plain model has one stage; early exits and cascades have several. What a row
pays depends on the stage after which it left and, where rows pay for themselves (``charge="row"``),
on what its own paths asked for: one meter for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedymiser._core.threads import Threads, thread_count
from greedymiser.costs.cost_model import CostModel, Feature, Ledger, Purchase, Receipt
from greedymiser.costs.errors import ErrorCosts
from greedymiser.data.tables import (
    ArrayTable,
    Categories,
    FrameTable,
    SparseTable,
    Table,
    chosen,
    is_frame,
    or_lazily,
    readable,
)
from greedymiser.losses import Kind, Loss
from greedymiser.losses.ndcg import query_order
from greedymiser.model.exit_rules import (
    ExitRule,
    FirstOfQuery,
    Mask,
    Starts,
    check_queries,
    query_starts,
    rank_leavers,
)
from greedymiser.model.gated_protocols import gated_protocol
from greedymiser.model.gating import Gates
from greedymiser.model.links import Floats, decisions, labels, probabilities, require_probabilities
from greedymiser.model.protocols import Count, Protocol
from greedymiser.model.row_costs import Accounts
from greedymiser.model.trees import CELLS_AT_A_TIME, ROW_BLOCK
from greedymiser.model.trees import Stage as Stage

Charge = Literal["model", "row"]
"""Who pays for a feature: every row that meets a tree with it, or those whose paths ask for it."""

# Rows that go through the stages together: what they need of X stays in the second-level cache.
ROWS_TOGETHER = 1024

# Rows that have left are taken out once so large a share of a block has gone: each removal copies
# the others.
SHARE_GONE = 0.125


@dataclass(frozen=True, eq=False, repr=False)
class Predictor:
    """A finished model: what it predicts, and what each prediction costs.

    Made by ``as_predictor`` from a fitted estimator and by ``greedymiser.load`` from a file.
    Columns of a data frame are found by name, in any order, and only those that the model uses
    must be there.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor, as_predictor
    >>> X = np.arange(100.0).reshape(50, 2)
    >>> as_predictor(MiserRegressor(max_iter=3, min_samples_leaf=5).fit(X, X[:, 0]))
    <Predictor: a regressor with 3 trees, 1 of 2 features, cost 1>
    """

    kind: Kind
    stages: tuple[Stage, ...]
    # Who leaves between the stages; None where there is only one.
    rule: ExitRule | Gates | None
    costs: CostModel
    # Only its ``response`` is used.
    loss: Loss
    n_features: int
    classes: NDArray[Any] | None = None
    categories: Categories = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None
    # What the model bought while it was trained.
    purchases: tuple[Purchase, ...] = ()
    n_jobs: int | None = None
    # Where large batches are predicted: "cpu", or "cuda" for models of one stage.
    engine: str = "cpu"
    # Whether a row pays for all that the trees it met may ask, or for what its own paths asked.
    charge: Charge = "model"
    # For charge="row": what the rows cost on average that the model was trained on.
    mean_cost: float | None = None
    # What errors of a classifier cost: it then says what is expected to cost least.
    error_costs: ErrorCosts | None = None
    # Information only, from a file: the estimator's name and parameters, and how training ended.
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine not in ("cpu", "cuda"):
            raise ValueError(f"engine must be 'cpu' or 'cuda', got {self.engine!r}")
        if self.charge not in ("model", "row"):
            raise ValueError(f"charge must be 'model' or 'row', got {self.charge!r}")
        if self.engine == "cuda" and len(self.stages) > 1:
            raise ValueError("engine='cuda' is for models without early exits; use engine='cpu'")

    def __getstate__(self) -> dict[str, Any]:
        """Leave what is only cached out of copies and pickles."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    # -- accounts ---------------------------------------------------------------------------------

    @cached_property
    def stage_costs(self) -> Floats:
        """What a row pays that leaves after each stage (eq. 3), if it is asked for everything."""
        owned = np.zeros(len(self.costs.resource_names), dtype=bool)
        bills = []
        for k, stage in enumerate(self.stages):
            for feature in self.stage_features(k):
                owned[list(self.costs.needs[feature])] = True
            bills.append(self.costs.bill(owned, stage.n_trees))
        return np.array(bills)

    @property
    def cost_(self) -> float:
        """The most that a prediction can cost.

        With ``charge="row"``, the mean over the rows of the training data where it is known.
        """
        return self.cost_max_ if self.mean_cost is None else self.mean_cost

    @property
    def cost_max_(self) -> float:
        """What a row would pay that meets all trees and is asked for all that they ask."""
        return float(self.stage_costs[-1])

    @cached_property
    def accounts(self) -> Accounts:
        """What rows are asked for on their way through the stages."""
        return Accounts(self.costs, self.stages)

    def bills(self, table: Table, left: NDArray[np.intp]) -> Floats:
        """What rows pay that leave after these stages."""
        if self.charge == "model":
            return self.stage_costs[left]
        with Threads(thread_count(self.n_jobs)) as threads:
            return self.accounts.bills(self.accounts.asked(table, threads, left), left)

    def staged_bills(self, table: Table) -> Floats:
        """What each row would pay that left after each stage, shape (n_stages, n)."""
        if self.charge == "model":
            return np.repeat(self.stage_costs[:, None], table.n_rows, axis=1)
        with Threads(thread_count(self.n_jobs)) as threads:
            return self.accounts.staged(table, threads)

    @cached_property
    def features(self) -> list[int]:
        """Features that any stage looks at, by position."""
        return sorted(itertools.chain.from_iterable(self._new_features))

    @property
    def names(self) -> Sequence[str] | None:
        """Names of the features: those of the training data's columns, or else of the costs."""
        return self.feature_names or self.costs.feature_names

    @property
    def features_used_(self) -> list[Feature]:
        """Features that any stage looks at, by name where there are names."""
        names = self.names
        return [feature if names is None else names[feature] for feature in self.features]

    @property
    def resources_used_(self) -> list[str]:
        return Ledger(self.costs, self.features).resources

    @cached_property
    def _labelled(self) -> str | None:
        """What is wrong with any array: the model looks at labels, and it holds numbers."""
        for feature in self.features if self.categories else ():
            known = self.categories.get(feature)
            if known is not None and known.dtype == object and len(known):
                name = feature if self.names is None else self.names[feature]
                return f"feature {name!r} holds labels such as {known[0]!r}; pass X as a data frame"
        return None

    @property
    def classes_(self) -> NDArray[Any]:
        """Class labels, in the order of the columns of ``predict_proba``."""
        if self.classes is None:
            raise AttributeError(f"a {self.kind} has no classes, and so no class probabilities")
        return self.classes

    @property
    def said_(self) -> NDArray[Any]:
        """What ``predict`` may say: the classes, or the columns of ``error_costs``."""
        return self.classes_ if self.error_costs is None else self.error_costs.said

    def receipt(self) -> Receipt:
        """What was bought in training, when, at what price."""
        return Receipt(self.purchases)

    # -- stage by stage ---------------------------------------------------------------------------

    @property
    def compares_rows(self) -> bool:
        """Whether what is said of a row depends on the others of its query."""
        if self.rule is None or len(self.stages) == 1:
            return False
        return self.kind == "ranker" or self.rule.compares_rows

    def stage_features(self, k: int) -> list[int]:
        """Features that stage k looks at and no earlier stage did."""
        return self._new_features[k]

    @cached_property
    def _new_features(self) -> list[list[int]]:
        known, new = set[int](), []
        for k, stage in enumerate(self.stages):
            looked_at = stage.features
            if isinstance(self.rule, Gates):  # a gate looks at rows, too
                looked_at = sorted({*looked_at, *self.rule.features(k)})
            new.append([feature for feature in looked_at if feature not in known])
            known.update(new[-1])
        return new

    def begin(self, n: int) -> Floats:
        """Raw predictions of n rows that have met no tree, shape (n_outputs, n)."""
        return np.repeat(self.stages[0].ensemble.baseline[:, None], n, axis=1)

    def advance(self, k: int, rows: NDArray[np.floating], raw: Floats) -> None:
        """Let rows meet stage k: brings ``raw`` up to date.

        ``rows`` is a C-ordered array (n, n_features) that holds at least the features of stage k,
        categories as codes.
        """
        self.stages[k].add(rows, raw)

    def stays(
        self,
        k: int,
        raw: Floats,
        starts: Starts = None,
        rows: NDArray[np.floating] | None = None,
    ) -> Mask:
        """Rows that go on after stage k; none after the last one.

        ``rows`` is what is known of them, (n, n_features): gates look at it.
        """
        if self.rule is None or k == len(self.stages) - 1:
            return np.zeros(raw.shape[1], dtype=bool)
        if isinstance(self.rule, Gates):
            return self.rule.goes_on(raw, k, rows)
        return self.rule.stays(raw, k, starts)

    def why_stopped(self, k: int) -> str:
        """Say why a row left after stage k."""
        if self.rule is None or k == len(self.stages) - 1:
            return "it has met all trees"
        return self.rule.because(k)

    def finish(self, raw: Floats, left: NDArray[np.intp], starts: Starts = None) -> Floats:
        """Raw predictions as they are compared with each other.

        Scores of documents that left early mean something else than those of documents that met
        more trees. So a ranker moves those that left together, as one, below all of their query
        that stayed longer, unless its rule says that the scores can be compared.
        """
        if self.kind != "ranker" or not self.compares_rows:
            return raw
        if isinstance(self.rule, FirstOfQuery) and not self.rule.stay_ahead:
            return raw
        if starts is None:
            starts = np.array([0, raw.shape[1]], dtype=np.intp)
        settled = raw.copy()
        rank_leavers(settled[0], left, starts, len(self.stages))
        return settled

    # -- predictions ------------------------------------------------------------------------------

    @or_lazily
    def predict(self, X: Any, qid: ArrayLike | None = None) -> NDArray[Any]:
        """Targets, class labels, or scores to rank by.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            Of a Dask array or data frame, the predictions are a lazy Dask collection too.
        qid : array-like of shape (n,), optional
            The query of each row, for models that compare the rows of a query. Without it, all
            rows are one query.
        """
        return self.respond(self.raw_predict(X, qid))

    @or_lazily
    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities, shape (n, n_classes)."""
        self.classes_  # noqa: B018 - before any work is done
        require_probabilities(self.loss)
        return self.probabilities(self.raw_predict(X))

    @or_lazily
    def expected_costs(self, X: Any) -> Floats:
        """Expected cost of saying each of ``error_costs.said``, shape (n, n_said)."""
        return self.expected_errors(self.raw_predict(X))

    @or_lazily
    def decision_function(self, X: Any) -> Floats:
        """Raw predictions: (n,), or one column per class."""
        return decisions(self.raw_predict(X))

    def raw_predict(self, X: Any, qid: ArrayLike | None = None) -> Floats:
        """Raw predictions, shape (n_outputs, n)."""
        return self.run(self.table(X), qid)[0]

    def staged_raw_predict(self, X: Any, stops: Sequence[int] | None = None) -> Iterator[Floats]:
        """Raw predictions of the last stage's trees, after so many rounds each, without exits.

        Without ``stops``, after each round. X is turned into numbers once.
        """
        table, ensemble = self.table(X), self.stages[-1].ensemble
        with Threads(thread_count(self.n_jobs)) as threads:
            yield from ensemble.staged_raw_predict(table, threads, stops)

    def leaving_stages(self, X: Any, qid: ArrayLike | None = None) -> NDArray[np.intp]:
        """Stage after which each row leaves."""
        return self.run(self.table(X), qid)[1]

    @or_lazily
    def prediction_costs(self, X: Any, qid: ArrayLike | None = None) -> Floats:
        """What each row's prediction costs: the trees that it met, and the resources they need.

        With ``charge="row"``, only the resources that the row's own paths ask for.
        """
        table = self.table(X)
        if len(self.stages) == 1:
            return self.bills(table, np.zeros(table.n_rows, dtype=np.intp))
        return self.bills(table, self.run(table, qid)[1])

    def respond(self, raw: Floats) -> NDArray[Any]:
        """What ``predict`` says of raw predictions."""
        if self.error_costs is not None:
            return self.error_costs.answers(self.probabilities(raw))
        if self.kind == "classifier":
            return labels(raw, self.classes_, self.loss)
        return raw[0] if self.kind == "ranker" else self.loss.response(raw[0])

    def probabilities(self, raw: Floats) -> Floats:
        """What ``predict_proba`` says of raw predictions."""
        return probabilities(raw, self.loss, len(self.classes_))

    def expected_errors(self, raw: Floats) -> Floats:
        """What ``expected_costs`` says of raw predictions."""
        if self.error_costs is None:
            raise AttributeError(
                "this model does not know what errors cost: it was trained without error_costs"
            )
        return self.error_costs.expected(self.probabilities(raw))

    @property
    def has_states(self) -> bool:
        """Whether each stage is a model of its own, which can answer: a gated cascade."""
        return isinstance(self.rule, Gates | FirstOfQuery)

    @property
    def has_protocol(self) -> bool:
        """Whether rows are asked for different things, as ``protocol`` tells."""
        return self.charge == "row" or self.has_states

    def protocol(
        self, X: Any, qid: ArrayLike | None = None, *, min_share: float = 0.01
    ) -> Protocol:
        """What is asked of which rows, in which order, at what mean cost (``charge="row"``).

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        qid : array-like of shape (n,), optional
            The query of each row, for models that compare the rows of a query.
        min_share : float
            Questions to a smaller share of the rows are left out of the steps, not of the table.
        """
        if not self.has_protocol:
            raise ValueError(
                "a protocol is for models with charge='row'; this one has charge='model' and asks "
                "every row for the same, as receipt() tells"
            )
        table = self.table(X)
        if not 0 <= min_share <= 1:
            raise ValueError(f"min_share must lie between 0 and 1, got {min_share!r}")
        if table.n_rows == 0:
            raise ValueError("X must have at least one row for a protocol, got none")
        left = np.zeros(table.n_rows, dtype=np.intp)
        if len(self.stages) > 1:
            left = self.run(table, qid)[1]
        if self.has_states:
            return gated_protocol(self, table, left, min_share)
        count = Count(
            self.accounts, self.stages, self.names, self.categories, table, left, min_share
        )
        return count.protocol()

    def __repr__(self) -> str:
        stages = f" in {len(self.stages)} stages" if len(self.stages) > 1 else ""
        return (
            f"<Predictor: a {self.kind} with {self.stages[-1].n_trees} trees{stages}, "
            f"{len(self.features)} of {self.n_features} features, cost {self.cost_:g}>"
        )

    # -- how it runs ------------------------------------------------------------------------------

    def served_for(self, sample: Any) -> Predictor:
        """The model for parts of rows like these, several of which are asked at the same time."""
        self.table(sample)
        return replace(self, n_jobs=1)

    def table(self, X: Any) -> Table:
        """Check X and wrap it; all methods take such a table in place of X, and check no more.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)

        Examples
        --------
        >>> import numpy as np
        >>> from greedymiser import MiserRegressor
        >>> X = np.arange(100.0).reshape(50, 2)
        >>> model = MiserRegressor(max_iter=3, min_samples_leaf=5).fit(X, X[:, 0]).predictor_
        >>> table = model.table(X)
        >>> len(model.predict(table)) == len(model.prediction_costs(table)) == 50
        True
        """
        if isinstance(X, ArrayTable | FrameTable | SparseTable):
            self._refuse_other_width(X.n_columns)  # it might be of another model
            return X
        try:
            X = readable(X)
        except ValueError as error:
            if self._labelled is None:
                raise
            raise ValueError(f"{error}; {self._labelled}") from None
        return self.table_of(X)

    def table_of(self, X: Any, in_order: bool = False) -> Table:
        """Wrap what ``readable`` gives.

        ``in_order`` says that the columns of a data frame are known to be those of the training
        data, in their order: they are not looked up by name.
        """
        if is_frame(X):
            return self._frame_table(X, in_order)
        if self._labelled is not None:
            raise ValueError(self._labelled)
        wrap = ArrayTable if isinstance(X, np.ndarray) else SparseTable
        return wrap(self.fitting(X), self.categories)

    def fitting(self, X: Any) -> Any:
        """X, if it has as many columns as the model knows features."""
        self._refuse_other_width(X.shape[1])
        return X

    def _refuse_other_width(self, n_columns: int) -> None:
        if n_columns != self.n_features:
            raise ValueError(f"X has {n_columns} features, but the model knows {self.n_features}")

    def run(self, table: Table, qid: ArrayLike | None = None) -> tuple[Floats, NDArray[np.intp]]:
        """Raw predictions (n_outputs, n), and the stage after which each row leaves."""
        order, starts = self._queries(table.n_rows, qid)
        if len(self.stages) == 1:
            return self._whole(table), np.zeros(table.n_rows, dtype=np.intp)
        if order is not None:
            table = chosen(table, order)
        raw = self.begin(table.n_rows)
        left = np.empty(table.n_rows, dtype=np.intp)

        def send(start: int, stop: int) -> None:
            rows = table.rows(start, stop, self.features)
            here = None if starts is None else starts[(starts >= start) & (starts <= stop)] - start
            self._send(rows, here, raw[:, start:stop], left[start:stop])

        with Threads(thread_count(self.n_jobs)) as threads:
            threads.run(send, _blocks(table.n_rows, starts, self.n_features))
        raw = self.finish(raw, left, starts)
        if order is None:
            return raw, left
        back = np.argsort(order)
        return np.ascontiguousarray(raw[:, back]), left[back]

    def _frame_table(self, frame: Any, in_order: bool) -> FrameTable:
        names = None if in_order else self.names
        if names is None:
            return FrameTable(self.fitting(frame), self.categories)
        table = FrameTable(frame, self.categories, names)
        columns = set(table.frame.columns)
        # Names that only the costs know need not be those of the frame.
        if self.feature_names is None and columns.isdisjoint(names):
            return FrameTable(self.fitting(frame), self.categories)
        missing = [name for name in self.features_used_ if name not in columns]
        if missing:
            raise ValueError(f"X has no column {missing[0]!r}, which the model uses")
        return table

    def _queries(self, n: int, qid: ArrayLike | None) -> tuple[NDArray[np.intp] | None, Starts]:
        """Order that brings queries together (None if they are), and where each starts."""
        if qid is None:
            return None, np.array([0, n], dtype=np.intp) if self.compares_rows else None
        check_queries(qid, n)
        if not self.compares_rows:
            return None, None
        order, starts = query_order(qid)
        return (None if (np.diff(order) > 0).all() else order), starts

    def _whole(self, table: Table) -> Floats:
        """Raw predictions of all rows, where all of them meet all trees."""
        if table.n_rows <= ROW_BLOCK:  # the short way for single rows
            raw = np.empty((len(self.stages[0].ensemble.baseline), table.n_rows))
            self.advance(0, table.rows(0, table.n_rows, self.features), raw)
            return raw
        stage = self.stages[0]
        if self.engine == "cuda":
            from greedymiser.engines.cuda.prediction import raw_predict

            return raw_predict(stage.ensemble, table, stage.first, stage.last)
        with Threads(thread_count(self.n_jobs)) as threads:
            return stage.ensemble.raw_predict(table, threads, stage.first, stage.last)

    def _send(
        self,
        rows: NDArray[np.floating],
        starts: Starts,
        raw: Floats,
        left: NDArray[np.intp],
    ) -> None:
        """Send a block of rows through the stages; fills ``raw`` and ``left``."""
        query = None
        if starts is not None:
            query = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        # ``at[i]`` is the place in ``raw`` of row i of those that are still in the block, which
        # may hold some that have left: ``on`` marks the others.
        at, on, out = np.arange(len(rows)), np.ones(len(rows), dtype=bool), raw.copy()
        has_gates = isinstance(self.rule, Gates)
        for k in range(len(self.stages)):
            self.advance(k, rows, out)
            going = at[on]
            together = None if query is None else query_starts(query[going])
            stays = self.stays(k, out[:, on], together, rows[on] if has_gates else None)
            gone = going[~stays]
            raw[:, gone] = out[:, on][:, ~stays]
            left[gone] = k
            on[on] = stays
            if not on.any():
                return
            if np.count_nonzero(on) <= (1.0 - SHARE_GONE) * len(on):
                at, rows, out = at[on], rows[on], np.ascontiguousarray(out[:, on])
                on = np.ones(len(at), dtype=bool)


def as_predictor(model: Any, engine: str | None = None) -> Predictor:
    """The finished form of a fitted estimator, early exit or cascade.

    Parameters
    ----------
    model : fitted estimator or Predictor
    engine : {"cpu", "cuda"}, optional
        Where large batches are predicted; the predictions are the same to the last bit.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor, as_predictor
    >>> X = np.arange(100.0).reshape(50, 2)
    >>> model = MiserRegressor(max_iter=3, min_samples_leaf=5).fit(X, X[:, 0])
    >>> bool((as_predictor(model).predict(X) == model.predict(X)).all())
    True
    """
    predictor = model if isinstance(model, Predictor) else getattr(model, "predictor_", None)
    if engine is not None and isinstance(predictor, Predictor):
        predictor = replace(predictor, engine=engine)
    if not isinstance(predictor, Predictor):
        hint = "; take one of it: .best(budget)" if hasattr(model, "best") else ""
        raise TypeError(f"{type(model).__name__} is not a fitted model of greedymiser{hint}")
    return predictor


def _blocks(n: int, starts: Starts, n_features: int) -> list[tuple[int, int]]:
    """Rows to send together: about ``ROWS_TOGETHER``, fewer of wide ones, and whole queries."""
    together = max(ROW_BLOCK, min(ROWS_TOGETHER, CELLS_AT_A_TIME // n_features))
    edges = np.append(np.arange(0, n, together), n)
    if starts is not None:
        edges = np.unique(np.append(starts[np.searchsorted(starts, edges)], [0, n]))
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges) if b > a]
