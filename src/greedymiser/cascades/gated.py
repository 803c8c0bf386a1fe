"""Gated cascades: for each row only those features are bought that are worth their price.

Rows begin with the model of a small set of resources. A gate estimates, from what a row has paid
for alone, how much more would lower its loss; where that is worth the price the row goes on to the
model of a larger set.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.utils import _safe_indexing, check_random_state, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import _num_samples, check_is_fitted

from greedymiser._core.threads import Threads, thread_count
from greedymiser.cascades._ensemble_based import OverEnsemble, RankerAnswers, taken_or_fitted
from greedymiser.cascades.candidates import LEAST_ROWS, Cascade, CascadeFamily, FoldModels
from greedymiser.cascades.ranked import RankedFamily
from greedymiser.costs.cost_model import CostModel, Ledger, Purchase, Receipt
from greedymiser.data.splits import divide
from greedymiser.data.tables import chosen, is_lazy, or_lazily
from greedymiser.estimators import (
    BudgetWarning,
    ClassifierAnswers,
    Miser,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    documented_like,
    fitted_like,
    tags_like,
)
from greedymiser.losses.ndcg import queries_or_one, query_order
from greedymiser.model.exit_rules import FirstOfQuery
from greedymiser.model.gating import Gate, Gates
from greedymiser.model.links import Floats
from greedymiser.model.predictor import Predictor, Stage
from greedymiser.model.row_costs import mean_cost
from greedymiser.training.parameters import BUDGET
from greedymiser.training.preparation import NO_INPUTS, HeldOut, Inputs, Schema
from greedymiser.training.train import Model

# Kinds of gates by what a user asks for.
GATES = {
    "auto": ("score", "paid", "band"),
    "tree": ("tree",),
    "score": ("score",),
    "band": ("band",),
}
# Share of the rows that is set aside to choose by, where none are inputs.
SHARE_ASIDE = 0.2
# Trade-offs of the path that the search for sets starts from.
N_PATH = 8


@dataclass(frozen=True, eq=False)
class Chain:
    """What is served: models of growing sets, and gates between them."""

    schema: Schema
    models: tuple[Model, ...]
    gates: tuple[Gate, ...] = ()
    kinds: tuple[str, ...] = ()
    # What rows cost on average that no model or gate has seen; None where all cost the same.
    mean_cost: float | None = None
    # Of rankers, instead of gates: how many documents of each query go on.
    first: FirstOfQuery | None = None

    @classmethod
    def of(cls, schema: Schema, cascade: Cascade) -> Chain:
        chain = cls(schema, cascade.models, cascade.gates, cascade.kinds, cascade.mean_price)
        return replace(chain, first=cascade.first)

    def truncated(self, n: int) -> Chain:
        """The first states, so many of them."""
        first = self.first and replace(self.first, places=self.first.places[: n - 1])
        return replace(
            self,
            models=self.models[:n],
            gates=self.gates[: n - 1],
            kinds=self.kinds[: n - 1],
            mean_cost=None,
            first=first,
        )

    @property
    def rule(self) -> Gates | FirstOfQuery:
        """Who goes on."""
        if self.first is not None:
            return self.first
        return Gates(self.gates, self.schema.n_features, self.schema.loss)

    def predictor(self, n_jobs: int | None) -> Predictor:
        """The finished model."""
        if len(self.models) == 1:
            return self.models[0].predictor(self.schema, n_jobs)
        stages, n_trees = [], 0
        for model in self.models:
            n_trees += model.ensemble.n_trees
            stages.append(Stage(model.ensemble, 0, model.n_iter, n_trees))
        last = self.models[-1].predictor(self.schema, n_jobs)
        predictor = replace(
            last, stages=tuple(stages), rule=self.rule, purchases=(), mean_cost=self.mean_cost
        )
        return replace(predictor, purchases=_purchases(predictor))


def _purchases(predictor: Predictor) -> tuple[Purchase, ...]:
    """What is bought in each state; its number stands for the round."""
    costs, lines = predictor.costs, []
    ledger = Ledger(costs)
    for k, stage in enumerate(predictor.stages):
        gains = stage.ensemble.importances()
        for feature in predictor.stage_features(k):
            price = float(ledger.prices[feature])
            if not costs.needs[feature] or ledger.owned_features[feature]:
                continue
            bought = ledger.buy(feature)
            name = feature if costs.feature_names is None else costs.feature_names[feature]
            gain = float(gains[feature])
            lines.append(Purchase(k, 0, 0, name, bought, price, ledger.spent, gain))
    return tuple(lines)


class Gated(OverEnsemble):
    """What all gated cascades share.

    Parameters
    ----------
    estimator : estimator of this library, optional
        The settings of the models of all states: costs, loss, trees. It is cloned and never fitted
        itself; its own ``tradeoff``, ``budget`` and ``charge`` are ignored.
    tradeoff : float
        The drop in mean loss that a unit of mean cost per row must bring. A larger one never has a
        larger ``cost_``.
    budget : float or None
        Most that rows may cost on average.
    row_budget : float or None
        Most that any row may cost, new rows included: what a row pays is the price of one of few
        sets.
    gate : {"auto", "tree", "score", "band"}
        "tree": one tree of depth 3 on the features that are paid for, which people can read.
        "score": one tree of depth 2 on the model's predictions. "band": an interval of scores.
        "auto": the best of the last two and of a few trees on all features that are paid for.
    effort : float
        How long to search for sets of resources; see ``tradeoff_curve``.
    random_state : int, RandomState or None
        Draws validation rows, where none are inputs.
    n_jobs : int or None
        Threads; None for all cores.

    Attributes
    ----------
    n_iter_ : int
        Number of states that rows may stop in.
    kinds_ : tuple of str
        The kind of each gate.
    notes_ : tuple of str
        Why there are no gates, where there are none.
    estimator_ : estimator
        The model of the last state.
    predictor_ : Predictor
        The finished model, for serving and saving.
    cost_ : float
        What rows cost on average: training rows, by models and gates that were not trained on them.
    cost_max_ : float
        The most that any row can cost.
    features_used_, resources_used_ : list
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["fit", "predict"]), None],
        "tradeoff": [Interval(Real, 0, None, closed="left")],
        "budget": [BUDGET, None],
        "row_budget": [BUDGET, None],
        "gate": [StrOptions(set(GATES))],
        "effort": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
        "n_jobs": [Integral, None],
    }
    _default: ClassVar[type[Miser]]

    kinds_: tuple[str, ...]
    notes_: tuple[str, ...]
    _chain: Chain

    def __init__(
        self,
        estimator: Any = None,
        *,
        tradeoff: float = 0.0,
        budget: float | None = None,
        row_budget: float | None = None,
        gate: str = "auto",
        effort: float = 1.0,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        self.estimator = estimator
        self.tradeoff = tradeoff
        self.budget = budget
        self.row_budget = row_budget
        self.gate = gate
        self.effort = effort
        self.random_state = random_state
        self.n_jobs = n_jobs

    # -- fitting ----------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
    ) -> Self:
        """Find states, learn gates between them, and take the cascade that the trade-off asks for.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            NaN is allowed and means missing.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
        X_val, y_val, sample_weight_val : optional
            Validation data, which rounds are chosen by; without it, a fifth of the rows is.
        """
        return self._fit(Inputs(X, y, sample_weight), Inputs(X_val, y_val, sample_weight_val))

    def _fit(self, inputs: Inputs, inputs_val: Inputs) -> Self:
        self._validate_params()
        if (inputs_val.X is None) != (inputs_val.y is None):
            missing = "X_val" if inputs_val.X is None else "y_val"
            raise ValueError(f"X_val and y_val must be given together, but {missing} is missing")
        base, notes = self._base(), list[str]()
        parts = self._divided(base, inputs, inputs_val, notes)
        cascade = None
        if parts is not None:
            with Threads(thread_count(base.n_jobs)) as threads:
                cascade = self._learned(base, *parts, threads, notes)
        if cascade is None:
            base.set_params(tradeoff=self.tradeoff, budget=self._limit)
            plain = taken_or_fitted(base, inputs, inputs_val)
            cascade = plain, Chain(plain.schema_, (plain.model_,))
        self.notes_ = tuple(notes)
        return self.taking(*cascade)

    def taking(self, estimator: Miser, chain: Chain) -> Self:
        """Take over what was learned: a cascade, and a fitted estimator for the last of it."""
        self.estimator_, self._chain, self.kinds_ = estimator, chain, chain.kinds
        self.predictor_ = chain.predictor(self.n_jobs)
        if "notes_" not in self.__dict__:
            self.notes_ = ()
        return self

    @property
    def _limit(self) -> float | None:
        limits = [limit for limit in (self.budget, self.row_budget) if limit is not None]
        return min(limits) if limits else None

    def _base(self) -> Miser:
        """A copy of the estimator to work with."""
        estimator = self._default() if self.estimator is None else self._inner()
        changes: dict[str, Any] = {"charge": "model", "row_budget": None, "warm_start": False}
        base = clone(estimator).set_params(tradeoff=0.0, budget=None, verbose=0, **changes)
        if self.n_jobs is not None:
            base.set_params(n_jobs=self.n_jobs)
        return base

    def _divided(
        self, base: Miser, inputs: Inputs, inputs_val: Inputs, notes: list[str]
    ) -> tuple[Inputs, Inputs] | None:
        """Rows to learn from and rows to choose by; None where nothing is to be learned."""
        if is_lazy(inputs.X):
            notes.append("gates learn from rows in memory, not from those of a cluster")
            return None
        base.look_at(inputs)
        n = _num_samples(inputs.X)
        if n < LEAST_ROWS:
            notes.append(f"gates need at least {LEAST_ROWS} rows, got {n}")
            return None
        if inputs_val.X is not None:
            return inputs, inputs_val
        rng = check_random_state(self.random_state if self.random_state is not None else 0)
        try:
            learn, check = self._aside(inputs, n, rng)
        except ValueError:
            notes.append(f"no rows can be set aside to choose by: {self._too_few}")
            return None
        return _some_of(inputs, learn), _some_of(inputs, check)

    # Why rows cannot be divided.
    _too_few: ClassVar[str] = "classes are too small"

    def _aside(
        self, inputs: Inputs, n: int, rng: np.random.RandomState
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows to learn from and to choose by; raise ValueError where there are too few."""
        strata = np.zeros(n)
        if isinstance(self, ClassifierMixin):
            y = np.asarray(inputs.y).reshape(-1)
            strata = np.unique(y, return_inverse=True)[1].astype(np.float64)
        return divide(strata, SHARE_ASIDE, rng, "rows")

    def _learned(
        self, base: Miser, inputs: Inputs, inputs_val: Inputs, threads: Threads, notes: list[str]
    ) -> tuple[Miser, Chain] | None:
        from greedymiser.curve.curve import configured
        from greedymiser.curve.frontier import Frontier
        from greedymiser.curve.models import CurveModels
        from greedymiser.curve.path import TradeoffPath

        blank = configured(base, None, None)
        # The choice has a warning of its own, and knows what to do with what is no number.
        with warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
            warnings.simplefilter("ignore", BudgetWarning)
            models = CurveModels(blank, inputs, inputs_val, NO_INPUTS, threads)
            path = TradeoffPath(models, is_patient=True)
            for some in path.choose(N_PATH):
                for _ in path.train(*some):
                    pass
            models.correct_priors()
            frontier = Frontier(path, self.effort)
            flat = frontier.flat_models()
        models.params = replace(models.params, row_budget=self.row_budget)
        folds = frontier.fold_models()
        with np.errstate(over="ignore", invalid="ignore"):
            family = self._family(models, frontier.sets, flat, folds)
            chain = self._chosen(family, models.schema)
        notes.extend(family.notes)
        if chain is None:
            return None
        return fitted_like(blank, models.schema, chain.models[-1]), chain

    def _family(self, models: Any, sets: Any, flat: Sequence[Any], folds: FoldModels | None) -> Any:
        """All that may be chosen."""
        return CascadeFamily(models, sets, flat, kinds=GATES[self.gate], folds=folds)

    def _offers(self, family: Any, schema: Schema) -> list[tuple[float, float, Chain]]:
        """Mean loss and mean price of all cascades and plain models; none if nothing is known."""
        states = family.known
        if states is None:
            return []
        offers = []
        for i, bits in enumerate(family.states):
            if states.is_usable(i):
                chain = Chain(schema, (family.models[bits],))
                offers.append((states.mean(states.values[i]), family.plain_price(i), chain))
        for cascade in family.cascades():
            offers.append((cascade.loss, cascade.mean_price, Chain.of(schema, cascade)))
        # Trees on free features cost money too, where trees do; the constant never does.
        return [*offers, (family.constant_loss(states), 0.0, Chain(schema, (family.constant,)))]

    def _chosen(self, family: Any, schema: Schema) -> Chain | None:
        """The least mean loss and price, in terms of the trade-off, within the budget.

        The family does not depend on the trade-off, so a larger one cannot choose what costs more.
        """
        offers = self._offers(family, schema)
        if not offers:
            return None
        if self.row_budget is not None:
            limit = self.row_budget
            offers = [o for o in offers if o[2].predictor(1).cost_max_ <= limit]
        if self.budget is not None:
            offers = [offer for offer in offers if offer[1] <= self.budget]
        offers.sort(key=lambda o: (o[0] + self.tradeoff * o[1], o[1]))
        # Rows that nobody has seen may pay more than those that the price was estimated by.
        best = next(offer for offer in offers if self._keeps_budget(offer[2], family))
        if self._limit is not None and not best[2].predictor(1).features_used_:
            warnings.warn(
                f"{'budget' if self.budget is not None else 'row_budget'}={self._limit:g} buys no "
                "useful feature, so the model is a constant",
                BudgetWarning,
                stacklevel=4,
            )
        return best[2]

    def _keeps_budget(self, chain: Chain, family: Any) -> bool:
        """Whether the rows that are set aside cost no more than the budget in the mean."""
        if self.budget is None or len(chain.models) == 1:
            return True
        models = family.curve_models
        seen = _judged(models, chain.predictor(1), models.trainer.prepared.validation)
        return bool(seen.cost <= self.budget)

    # -- what scikit-learn and users ask ----------------------------------------------------------

    @or_lazily
    def prediction_costs(self, X: Any) -> Floats:
        """What each row's prediction costs: the set that it ended with, and the trees it met."""
        return self._costs_of(X)

    def receipt(self) -> Receipt:
        """What is bought in which state, at what price; the state stands for the round."""
        check_is_fitted(self)
        return self.predictor_.receipt()

    def truncate(self, n_iter: int) -> Self:
        """Return a copy that ends with the first states: so many of them."""
        check_is_fitted(self)
        if not 1 <= operator.index(n_iter) <= self.n_iter_:
            raise ValueError(f"n_iter must lie between 1 and {self.n_iter_}, got {n_iter}")
        if n_iter == self.n_iter_:
            return copy.copy(self)
        shorter = self._chain.truncated(n_iter)
        last = fitted_like(self.estimator_, shorter.schema, shorter.models[-1])
        return copy.copy(self).taking(last, shorter)

    @property
    def n_iter_(self) -> int:
        return len(self._chain.models)

    @property
    def costs_(self) -> CostModel:
        return self.predictor_.costs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return tags_like(tags, self._default()) if self.estimator is None else tags


def _some_of(inputs: Inputs, rows: NDArray[np.intp]) -> Inputs:
    # As scikit-learn's searches do it: what has no rows to choose from gets some.
    parts = indexable(inputs.X, inputs.y, inputs.weight, inputs.qid)
    return Inputs(*(None if part is None else _safe_indexing(part, rows) for part in parts))


@documented_like(Gated)
class GatedClassifier(ClassifierMixin, ClassifierAnswers, Gated):
    """Classifiers of growing sets of resources, and gates that say which rows go on.

    Examples
    --------
    The second feature matters only where the first is large, and costs 10:

    >>> import numpy as np
    >>> from greedymiser import GatedClassifier, MiserClassifier
    >>> X = np.random.default_rng(0).integers(0, 5, (2000, 2))
    >>> y = np.where(X[:, 0] == 4, X[:, 1] > 1, X[:, 0] > 1)
    >>> base = MiserClassifier(costs=[1.0, 10.0], max_iter=20, learning_rate=0.3)
    >>> model = GatedClassifier(base, tradeoff=1e-3, gate="tree").fit(X, y)
    >>> sorted(set(model.prediction_costs(X).tolist()))
    [1.0, 11.0]
    >>> model.score(X, y)
    1.0
    """

    _bases = (MiserClassifier,)
    _wants = "a MiserClassifier"
    _default = MiserClassifier

    def _learner(self) -> Any:
        return None if self.estimator is None else self._inner()


@documented_like(Gated)
class GatedRegressor(RegressorMixin, Gated):
    """Regressors of growing sets of resources, and gates that say which rows go on.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import GatedRegressor, MiserRegressor
    >>> X = np.random.default_rng(0).integers(0, 5, (2000, 2))
    >>> y = np.where(X[:, 0] == 4, X[:, 1], 0.0)
    >>> base = MiserRegressor(costs=[1.0, 10.0], max_iter=20, learning_rate=0.3)
    >>> model = GatedRegressor(base, tradeoff=1e-3, gate="tree").fit(X, y)
    >>> sorted(set(model.prediction_costs(X).tolist()))
    [1.0, 11.0]
    """

    _bases = (MiserRegressor,)
    _wants = "a MiserRegressor"
    _default = MiserRegressor


@documented_like(Gated)
class GatedRanker(RankerAnswers, Gated):
    """Rankers of growing sets of resources: the first documents of each query go on.

    All documents get the score of a small set. The best few of each query (``places_``) are asked
    for more, and get the score of the larger set. They stay ahead of the others, which keep their
    order, or all are ordered by the scores that they have, whichever was better. Of equal scores,
    what comes first in the data goes on first: so a query pays for no more than so many documents.
    Cascades are compared by the estimator's ``scoring``, NDCG@5 where it has
    none, over queries that no model has seen; ``tradeoff`` is the gain in that score that a unit of
    mean cost per document must bring. There is no ``gate`` to choose.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import GatedRanker, MiserRanker
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.standard_normal((2000, 2)), np.repeat(np.arange(100), 20)
    >>> y = np.clip(np.round(X[:, 0] + X[:, 1]), 0, 4)
    >>> base = MiserRanker(costs=[1.0, 10.0], max_iter=20, learning_rate=0.3)
    >>> model = GatedRanker(base, budget=6.0).fit(X, y, qid=qid)
    >>> model.places_
    (10,)
    >>> float(model.prediction_costs(X, qid).mean())
    6.0
    """

    _bases = (MiserRanker,)
    _wants = "a MiserRanker"
    _default = MiserRanker
    _too_few = "queries are too few"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        name: allowed for name, allowed in Gated._parameter_constraints.items() if name != "gate"
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        tradeoff: float = 0.0,
        budget: float | None = None,
        row_budget: float | None = None,
        effort: float = 1.0,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        self.estimator = estimator
        self.tradeoff = tradeoff
        self.budget = budget
        self.row_budget = row_budget
        self.effort = effort
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        qid: ArrayLike | None = None,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        qid_val: ArrayLike | None = None,
    ) -> Self:
        """Find states, and take the cascade that the trade-off asks for.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            NaN is allowed and means missing.
        y : array-like of shape (n,)
            Relevance labels, not negative.
        sample_weight : array-like of shape (n,), optional
        qid : array-like of shape (n,), optional
            The query of each row, in any order. Without it, all rows are one query, and nothing
            can be learned about cascades.
        X_val, y_val, sample_weight_val, qid_val : optional
            Validation data, which rounds are chosen by; without it, a fifth of the queries is.
        """
        return self._fit(
            Inputs(X, y, sample_weight, qid), Inputs(X_val, y_val, sample_weight_val, qid_val)
        )

    @property
    def places_(self) -> tuple[int, ...]:
        """How many documents of each query go on after each state."""
        first = self._chain.first
        return () if first is None else first.places

    def _base(self) -> Miser:
        base = super()._base()
        if base.scoring is None or base.scoring == "loss":
            base.set_params(scoring="ndcg@5")
        return base

    def _aside(
        self, inputs: Inputs, n: int, rng: np.random.RandomState
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        order, starts = query_order(queries_or_one(inputs.qid, n))
        learn, _ = divide(np.zeros(len(starts) - 1), SHARE_ASIDE, rng, "queries")
        is_learned = np.zeros(n, dtype=bool)
        query = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        is_learned[order] = np.isin(query, learn)
        return np.flatnonzero(is_learned), np.flatnonzero(~is_learned)

    def _family(self, models: Any, sets: Any, flat: Sequence[Any], folds: FoldModels | None) -> Any:
        return RankedFamily(models, sets, flat, folds=folds)

    def _offers(self, family: Any, schema: Schema) -> list[tuple[float, float, Chain]]:
        best = family.best()
        offers = []
        for i, bits in enumerate(family.states):
            if bits in best.plain:
                chain = Chain(schema, (family.models[bits],))
                offers.append((-best.plain[bits].mean(), family.plain_price(i), chain))
        for cascade, scores in best.cascades:
            offers.append((-scores.mean(), cascade.mean_price, Chain.of(schema, cascade)))
        if not offers:
            return []
        return [*offers, (-family.constant_score(), 0.0, Chain(schema, (family.constant,)))]


# -- for those who have learned a cascade themselves -----------------------------------------------


def gated_classifier(
    estimator: Miser,
    schema: Schema,
    models: Sequence[Model],
    gates: Sequence[Gate],
    kinds: Sequence[str],
    *,
    mean_cost: float | None,
    tradeoff: float,
) -> GatedClassifier:
    """A fitted cascade of these models; one model without gates is one, too."""
    chain = Chain(schema, tuple(models), tuple(gates), tuple(kinds), mean_cost)
    gated = GatedClassifier(estimator, tradeoff=tradeoff, n_jobs=estimator.n_jobs)
    return gated.taking(fitted_like(estimator, schema, chain.models[-1]), chain)


def gated_candidates(
    models: Any,
    sets: Any,
    flat: Sequence[Any],
    more: Sequence[int] = (),
    folds: FoldModels | None = None,
) -> tuple[list[tuple[Any, Floats]], dict[int, Floats]]:
    """Cascades over a flat frontier that none beats, for a curve.

    Each comes with the scores of training rows that neither its models nor its gates have seen, by
    fold; so do the sets of the states, by themselves.
    """
    ranks = models.schema.kind == "ranker"
    family = (RankedFamily if ranks else CascadeFamily)(models, sets, flat, more, folds=folds)
    best, candidates = family.best(), []
    models.trainer.phases.begin(0.95, len(best.cascades))
    for cascade, scores in best.cascades:
        candidate = _candidate(models, cascade)
        models.trainer.phases.step()
        unseen = family.score_at(best, cascade, scores, candidate.cost)
        if unseen is not None:
            candidates.append((candidate, unseen))
    return candidates, best.plain


def _candidate(models: Any, cascade: Cascade) -> Any:
    kinds = {"classifier": GatedClassifier, "regressor": GatedRegressor, "ranker": GatedRanker}
    gated: Gated = kinds[models.schema.kind](
        models.blank,
        tradeoff=cascade.tradeoff,
        row_budget=models.params.row_budget,
        n_jobs=models.blank.n_jobs,
    )
    last = fitted_like(models.blank, models.schema, cascade.models[-1])
    gated.taking(last, Chain.of(models.schema, cascade))
    return judged_candidate(models, gated, "gates", cascade.tradeoff)


def gated_like(estimator: Miser, budget: float | None, effort: float) -> Gated | None:
    """A cascade of such models, not fitted; None for what has no gates."""
    if not isinstance(estimator, MiserClassifier | MiserRegressor):
        return None
    kind = GatedClassifier if isinstance(estimator, MiserClassifier) else GatedRegressor
    return kind(
        estimator,
        budget=budget,
        row_budget=estimator.row_budget,
        effort=effort,
        n_jobs=estimator.n_jobs,
    )


def cost_and_score(gated: Gated, models: Any, X: Any) -> tuple[float, float]:
    """Mean cost and score of the validation rows of others, which are in X."""
    predictor, cases = gated.predictor_, models.trainer.prepared.validation.cases
    table = predictor.table(X)
    raw, left = predictor.run(table)
    paid = mean_cost(predictor.bills(table, left), cases.shares)
    return paid, float(models.score_of(np.ascontiguousarray(raw), "validation", paid))


def judged_candidate(models: Any, gated: Gated, found_by: str, tradeoff: float = 0.0) -> Any:
    """A fitted cascade as a curve takes it in, judged by the rows that it did not learn from."""
    from greedymiser.curve.models import FittedCandidate

    predictor = replace(gated.predictor_, n_jobs=1)
    seen = _judged(models, predictor, models.trainer.prepared.validation)
    tested: dict[str, float] = {}
    if models.test is not None:
        unseen = _judged(models, predictor, models.test, "test")
        tested = {"test_cost": unseen.cost, "test_score": unseen.score}
    return FittedCandidate(
        model=gated,
        cost=seen.cost,
        score=seen.score,
        found_by=found_by,
        tradeoff=tradeoff,
        n_iter=gated.n_iter_,
        n_trees=predictor.stages[-1].n_trees,
        feature_cost=seen.cost - seen.tree_cost,
        n_features=len(predictor.features),
        **tested,
    )


class _Judgement(NamedTuple):
    """What some rows cost in the mean, how much of that is for trees, and their score."""

    cost: float
    tree_cost: float
    score: float


def _judged(
    models: Any, predictor: Predictor, held_out: HeldOut, part: str = "validation"
) -> _Judgement:
    """Mean cost and score of some rows."""
    cases = held_out.cases
    table = cases.table if cases.rows is None else chosen(cases.table, cases.rows)
    qid = None
    if cases.starts is not None:
        qid = np.repeat(np.arange(len(cases.starts) - 1), np.diff(cases.starts))
    raw, left = predictor.run(table, qid)
    paid = mean_cost(predictor.bills(table, left), cases.shares)
    trees = predictor.costs.tree_cost * np.array([stage.n_trees for stage in predictor.stages])
    score = float(models.score_of(np.ascontiguousarray(raw), part, paid))
    return _Judgement(paid, mean_cost(trees[left], cases.shares), score)
