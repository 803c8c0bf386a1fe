"""A path of trade-offs: which ones to train, one after the other, as the models come in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from greedymiser.curve.models import CurveModels, best_cost
from greedymiser.curve.trainer import LONG_PATIENCE, Trainer
from greedymiser.estimators import Miser, warn_of_budget
from greedymiser.model.predictor import Charge
from greedymiser.scoring import TOTAL_COST
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import Prepared, costs_of_columns
from greedymiser.training.train import Model, make_grower, root_gains

Floats = NDArray[np.float64]

# Between the smallest positive trade-off and 0 there is always room; this is how far to jump.
STEP_TOWARDS_ZERO = 10.0

# Neighbours whose ratio is below this have nothing worth a model between them.
CLOSE = 1.2

# A gap that was looked into in vain, since the model was that of one of its ends, or so much of the
# gap away from it, counts so much: what is sold in one piece makes a step wherever one looks.
IN_VAIN, NEARLY_THE_SAME = 0.25, 0.1

# Rows × features × trees of a round, from which on the models of a path look at new features
# only so often: measured, it costs nothing in score (docs/rounds.md).
LARGE, SHOPPING_INTERVAL = 1_000_000, 8

# Around the trade-off of the least total, where that is known, these are tried first.
AROUND_MIDDLE = (0.25, 4.0)

# Models of a path that are trained together, where what comes next depends on them: those between
# neighbours that differ at least so much, in terms of the widest gap.
TOGETHER, NEARLY_AS_WIDE = 2, 0.5


class TradeoffPath:
    """A model for each of some trade-offs.

    Parameters
    ----------
    models : CurveModels
        Where models are trained, and handed in.
    may_skip : bool
        Whether models on large data may look at new features only every few rounds.
    charge : {"model", "row"}, optional
        Who pays; as in the estimator by default.
    is_patient : bool, optional
        Whether models end when ``LONG_PATIENCE`` rounds have brought nothing, which is enough where
        a search goes on from them; as in the estimator by default.
    """

    def __init__(
        self,
        models: CurveModels,
        may_skip: bool = True,
        charge: Charge | None = None,
        is_patient: bool | None = None,
    ):
        self.models = models
        self.is_patient = is_patient
        self._charge = models.params.charge if charge is None else charge
        self.by_tradeoff: dict[float, Miser] = {}
        # The neighbours that a trade-off was put between.
        self._between: dict[float, tuple[float, float]] = {}
        self._may_skip = may_skip

    def choose(self, tradeoffs: int | Sequence[float]) -> Iterator[list[float]]:
        """Yield the trade-offs that are asked for, or find good ones as the models come in.

        Those that are found are the same on any number of threads, and go on where there are models
        already; those that are asked for come as many at a time as can be trained at once.
        """
        if not isinstance(tradeoffs, int):
            n_together = self.models.pool.n_trainers
            for start in range(0, len(tradeoffs), n_together):
                yield list(tradeoffs[start : start + n_together])
            return
        if not self.by_tradeoff:
            highest = self.highest()
            yield [0.0, highest] if tradeoffs > 1 and highest > 0 else [0.0]
            middle = self._middle()
            around = [factor * middle for factor in (1.0, *AROUND_MIDDLE)]
            within = [tradeoff for tradeoff in around if 0 < tradeoff < highest]
            if within and tradeoffs > 2:
                yield within[: tradeoffs - 2]
        while 1 < len(self.by_tradeoff) < tradeoffs:
            following = self._widest_gaps()[: tradeoffs - len(self.by_tradeoff)]
            if not following:
                return
            yield following

    def _middle(self) -> float:
        """Where the least total is expected; 0 where nobody asks for it."""
        if self.models.score_name != TOTAL_COST:
            return 0.0
        return tradeoff_in_money(self.models.trainer.prepared)

    def highest(self) -> float:
        """Least trade-off at which no feature that costs anything pays at the first root."""
        trainer = self.models.trainer
        return highest_tradeoff(trainer.prepared, self.params(0.0), trainer.start)

    def _widest_gaps(self) -> list[float]:
        """Trade-offs between the neighbours that differ most; none if none differ.

        They differ by their costs, half by how many units they are apart and half by the logarithm,
        so that both ends of the curve have models; and by their scores: where neither changes there
        is nothing to find. Where a model between two others was nearly one of them again, there
        is probably nothing, either.
        """
        tradeoffs = sorted(self.by_tradeoff)
        places = self._places(tradeoffs)
        gaps = np.abs(np.diff(places, axis=0)).sum(axis=1)
        gaps[np.diff(places[:, 0]) == 0] = 0.0
        place_of = dict(zip(tradeoffs, places, strict=True))
        gaps *= [IN_VAIN ** self._n_misses(*ends, place_of) for ends in pairwise(tradeoffs)]
        # Some gaps cannot be filled: what is sold in one piece has no price in between.
        low, high = np.array(tradeoffs[:-1]), np.array(tradeoffs[1:])
        gaps[(low > 0) & (high < low * CLOSE)] = 0.0
        chosen = []
        for i in np.argsort(-gaps, kind="stable")[:TOGETHER]:
            if gaps[i] > 0 and gaps[i] >= NEARLY_AS_WIDE * gaps.max():
                is_last = low[i] == 0
                middle = np.sqrt(low[i]) * np.sqrt(high[i])
                chosen.append(self._towards_zero(tradeoffs[i + 1]) if is_last else float(middle))
                self._between[chosen[-1]] = tradeoffs[i], tradeoffs[i + 1]
        return chosen

    def _places(self, tradeoffs: Sequence[float]) -> Floats:
        """Where models lie by cost, by its logarithm and by score, in shares of what there is."""
        costs = np.array([self._cost(tradeoff) for tradeoff in tradeoffs])
        scores = np.array([self._score(tradeoff) for tradeoff in tradeoffs])
        prices = self.models.schema.costs.prices()
        floor = np.min(prices[prices > 0], initial=max(float(costs.max()), 1e-300)) / 2
        axes = np.column_stack([costs, np.log(np.maximum(costs, floor)), scores])
        return np.asarray([0.5, 0.5, 1.0] * axes / np.maximum(np.ptp(axes, axis=0), 1e-300))

    def _towards_zero(self, lowest: float) -> float:
        """A trade-off between the lowest positive one and 0.

        It is a step down, or as far down as what the model of 0 explains more is worth for each
        unit that it costs more: at a higher trade-off the rest is hardly bought.
        """
        gain = self._train_score(0.0) - self._train_score(lowest)
        more = self._cost(0.0) - self._cost(lowest)
        step = lowest / STEP_TOWARDS_ZERO
        return min(step, gain / more) if gain > 0 and more > 0 else step

    def _n_misses(self, low: float, high: float, place_of: Mapping[float, Floats]) -> int:
        """How often the gap between two neighbours was looked into in vain."""
        for end, other in ((low, high), (high, low)):
            before = self._between.get(end)
            if before is not None and other in before:  # the end was put between it and a third
                third = before[0] if other == before[1] else before[1]
                moved, whole = (
                    np.abs(place_of[one] - place_of[third]).sum() for one in (end, other)
                )
                # Towards 0 there are trade-offs of every size: a small step is no miss.
                is_same = moved <= (NEARLY_THE_SAME * whole if other > 0 else 0.0)
                return 1 + self._n_misses(*before, place_of) if is_same else 0
        return 0

    def _cost(self, tradeoff: float) -> float:
        return best_cost(self.by_tradeoff[tradeoff])

    def _train_score(self, tradeoff: float) -> float:
        model = self.by_tradeoff[tradeoff]
        return float(model.train_score_[model.model_.best_iter])

    def _score(self, tradeoff: float) -> float:
        model = self.by_tradeoff[tradeoff]
        return float(np.nan_to_num(model.validation_score_[model.model_.best_iter]))

    def params(self, tradeoff: float) -> Parameters:
        """How the model of a trade-off is trained."""
        params = replace(self.models.params, tradeoff=tradeoff, charge=self._charge)
        if self._charge == "model" and params.row_budget is not None:
            # All rows pay the same, and so none of them more than it may.
            limits = [b for b in (params.budget, params.row_budget) if b is not None]
            params = replace(params, budget=min(limits), row_budget=None)
        if self.is_patient:
            params = replace(params, n_iter_no_change=LONG_PATIENCE)
        # On large data most of the time is spent on features that nobody buys.
        schema = self.models.schema
        n_cells = self.models.trainer.prepared.rows.n_rows * schema.n_features
        is_large = n_cells * schema.loss.n_outputs >= LARGE and params.shopping_interval == 1
        if self._may_skip and tradeoff > 0 and is_large:
            return replace(params, shopping_interval=SHOPPING_INTERVAL)
        return params

    def train(self, *tradeoffs: float) -> Iterator[str]:
        """Train models of some trade-offs; tell how each came out, in a line."""
        trainer, schema = self.models.trainer, self.models.schema
        tasks = [(self.params(tradeoff), None, self.is_patient) for tradeoff in tradeoffs]
        for params, *_ in tasks:  # does the trade-off overflow?
            costs_of_columns(params, schema.n_features, schema.columns)
        trained = self.models.pool.run(Trainer.train, tasks)
        for (params, *_), model in zip(tasks, trained, strict=True):
            if model.n_iter == 0:
                warn_of_budget(trainer.prepared, params, trainer.start)
            tradeoff = params.tradeoff
            if self._charge == self.models.params.charge:
                self.by_tradeoff[tradeoff] = self.models.add(model, params, "path")
            else:  # bought for everybody, and yet rows pay only for what they are asked
                self.by_tradeoff[tradeoff] = self.models.fitted(model)
                best = model.truncated(model.best_iter)  # nobody chooses what comes after
                self.models.add(self.models.paying_by_row(best), params, "path")
            cost, score = self._cost(tradeoff), self._score(tradeoff)
            yield f"tradeoff {tradeoff:.3g}: cost {cost:g}, score {score:.5g}"


def highest_tradeoff(prepared: Prepared, params: Parameters, start: Model) -> float:
    """Least trade-off at which no feature that costs anything pays at the first root."""
    grower = make_grower(prepared, params, start)
    gains = root_gains(prepared, grower)
    prices = grower.root_prices()
    dear = (prices > 0) & (gains > 0)
    highest = np.max(gains[dear] / prices[dear], initial=0.0)
    return float(np.nextafter(highest, np.inf)) if highest > 0 else 0.0


def tradeoff_in_money(prepared: Prepared) -> float:
    """The trade-off at which a unit of cost brings what it saves in errors; 0 if there are none.

    A constant has some loss, and its errors cost something: a unit of money is worth as much loss
    as the constant has for each unit that its errors cost.
    """
    errors, loss, cases = prepared.schema.error_costs, prepared.schema.loss, prepared.train
    assert errors is not None
    y, weight = cases.y, cases.weight
    raw = np.repeat(loss.prior(y, weight)[:, None], len(y), axis=1)
    lost = loss.value(y, raw[0] if len(raw) == 1 else raw, weight)
    shares = np.bincount(y.astype(np.intp), weights=weight, minlength=len(errors.matrix))
    shares = shares / shares.sum()
    paid = float(np.min(shares @ errors.matrix) - shares @ errors.matrix.min(axis=1))
    return lost / paid if paid > 0 else 0.0
