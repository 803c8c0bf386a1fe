"""A curve in words: the models on its front, what each adds, and which one to take.

The picture, the report and the command line show the same few models: those that no other beats,
each with what it buys beyond the one before it, and a standard error of its score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.amounts import money, rounded_score, shortlist
from greedymiser.costs.cost_model import CostModel
from greedymiser.data.tables import ArrayTable, FrameTable, SparseTable, Table, chosen
from greedymiser.model.predictor import as_predictor
from greedymiser.scoring import TOTAL_COST

if TYPE_CHECKING:
    import pandas as pd

    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.model.protocols import Protocol
    from greedymiser.training.preparation import Cases, Prepared

# Models that a reader can take in.
MOST_STEPS = 12

# Parts of the validation rows that are left out in turn to find a standard error.
GROUPS = 20

# A model is nearly as good as the best if it has so much of what can be gained.
NEARLY_ALL = 0.99


@dataclass(frozen=True)
class FrontStep:
    """A model that no other of its curve beats.

    Attributes
    ----------
    position, n_iter : int
        Which of the curve's models it is, and how many of its rounds.
    cost, score : float
        Of one prediction; on the validation rows.
    error : float or None
        Standard error of the score; None where it is not known.
    test_score : float or None
    n_trees, n_features : int
    resources : tuple of str
        All that it buys.
    adds, drops : tuple of str
        What it buys beyond the step before, and no longer; the most expensive first.
    choice_score : float or None
        What models are compared by where cross-fitting has a say as well as the validation rows:
        this rises from step to step, while ``score`` need not. None where they go by ``score``.
    is_total : bool
        Whether the score is minus a total, which has the cost in it.
    """

    position: int
    n_iter: int
    cost: float
    score: float
    error: float | None
    test_score: float | None
    n_trees: int
    n_features: int
    resources: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    choice_score: float | None = None
    is_total: bool = False

    @property
    def errors(self) -> float:
        """What errors cost, where the score is minus a total."""
        return -self.score - self.cost

    @property
    def chosen_by(self) -> float:
        """The score that it was chosen by."""
        return self.score if self.choice_score is None else self.choice_score

    def change(self, most: int = 2) -> str:
        """What it adds and drops, in a few words."""
        signs = (("+", self.adds), ("\N{MINUS SIGN}", self.drops))
        return ", ".join(f"{sign} {shortlist(names, most)}" for sign, names in signs if names)


def front_steps(curve: TradeoffCurve, most: int | None = MOST_STEPS) -> list[FrontStep]:
    """The models of a curve that no other beats, the cheapest first; at most so many.

    Where there are more, those remain that a step line misses most: the picture is nearly the same.
    None where no model has a score.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor, tradeoff_curve
    >>> X, y = load_diabetes(as_frame=True, return_X_y=True)
    >>> curve = tradeoff_curve(
    ...     MiserRegressor(max_iter=20), X[:300], y[:300], X_val=X[300:], y_val=y[300:],
    ...     tradeoffs=3, search="path", scoring="r2")
    >>> front_steps(curve)[1].change()
    '+ bmi, s5'
    """
    front = curve.pareto()
    if front.empty:
        return []
    return _steps(curve, front.iloc[_shown(curve, front, most)])


def whole_front(curve: TradeoffCurve) -> tuple[list[FrontStep], list[int]]:
    """All models of a curve that no other beats, and which of them ``front_steps`` has.

    Standard errors are computed for those, and each of the others has that of the one before it:
    they hardly differ, and a front may be long.
    """
    front = curve.pareto()
    if front.empty:
        return [], []
    shown = _shown(curve, front, MOST_STEPS)
    steps = _steps(curve, front, certain=shown)
    error = None
    for i, step in enumerate(steps):
        error = step.error if i in shown else error
        steps[i] = replace(step, error=error)
    return steps, shown


def _shown(curve: TradeoffCurve, front: pd.DataFrame, most: int | None) -> list[int]:
    """Which models of a front that has some are shown."""
    by = "choice_score" if "choice_score" in front else "score"
    costs, scores = front["cost"].to_numpy(float), front[by].to_numpy(float)
    best = front.iloc[-1]
    error = score_error(curve, curve.position(best), int(best["n_iter"]))
    to_take = int(np.argmax(scores >= scores[-1] - _slack(scores, error)))
    return _kept(costs, scores, most, to_take)


def all_steps(curve: TradeoffCurve) -> list[FrontStep]:
    """Every model of a curve at its best round, the cheapest first, also those that others beat."""
    points = curve.points[curve.points["score"].notna()]
    return _steps(curve, points.sort_values(["cost", "score"]))


def _steps(
    curve: TradeoffCurve, rows: pd.DataFrame, certain: Sequence[int] | None = None
) -> list[FrontStep]:
    """Models as steps, with the standard errors of some of them; of all by default."""
    steps: list[FrontStep] = []
    for i, (_, row) in enumerate(rows.iterrows()):
        step = _step(curve, row, has_error=certain is None or i in certain)
        if not curve.models:  # of traces that were read from a file: nobody knows what was bought
            steps.append(step)
            continue
        before = set(steps[-1].resources) if steps else set()
        costs, now = curve.models[step.position].costs_, set(step.resources)
        steps.append(
            replace(
                step,
                adds=named_purchases(costs, now - before),
                drops=named_purchases(costs, before - now),
            )
        )
    return steps


def _step(curve: TradeoffCurve, row: Any, has_error: bool) -> FrontStep:
    position, n_iter = curve.position(row), int(row["n_iter"])
    used = model_at(curve, position, n_iter).resources_used_ if curve.models else ()
    test = float(row["test_score"]) if "test_score" in row else math.nan
    return FrontStep(
        position=position,
        n_iter=n_iter,
        cost=float(row["cost"]),
        score=float(row["score"]),
        error=score_error(curve, position, n_iter) if has_error else None,
        test_score=test if math.isfinite(test) else None,
        choice_score=float(row["choice_score"]) if "choice_score" in row else None,
        is_total=curve.scoring == TOTAL_COST,
        n_trees=int(row["n_trees"]),
        n_features=int(row["n_features"]),
        resources=tuple(map(str, used)),
    )


def model_at(curve: TradeoffCurve, position: int, n_iter: int) -> Any:
    """One of a curve's models, with so many of its rounds."""
    model = curve.models[position]
    return model.truncate(n_iter) if hasattr(model, "truncate") else model


def score_error(curve: TradeoffCurve, position: int, n_iter: int) -> float | None:
    """Standard error of a model's validation score; None where the rows are gone."""
    validation = getattr(curve, "validation", None)
    if validation is None:
        return None
    if isinstance(validation, dict):  # of a curve that has left its process
        stored = validation.get((position, n_iter))
        return None if stored is None else float(stored)
    error: float | None = validation.error(curve.models[position], n_iter)
    return error


def kept_errors(curve: TradeoffCurve) -> dict[tuple[int, int], float | None]:
    """The standard errors of the front, for a curve that leaves its validation rows behind."""
    return {(step.position, step.n_iter): step.error for step in front_steps(curve)}


def _kept(
    costs: NDArray[np.float64], scores: NDArray[np.float64], most: int | None, chosen: int
) -> list[int]:
    """Which points of a rising staircase to keep: always the first, the last and the chosen one."""
    left = list(range(len(costs)))
    if most is None or len(left) <= most:
        return left
    positive = costs[costs > 0]
    # In logarithms, so that the cheap end counts as much as the expensive one.
    place = np.log(np.maximum(costs, positive.min() / 2 if len(positive) else 1.0))
    while len(left) > most:
        inner = [i for i in range(1, len(left) - 1) if left[i] != chosen]
        # Without a point, the staircase is lower from it to the next one.
        lost = [
            (scores[left[i]] - scores[left[i - 1]]) * (place[left[i + 1]] - place[left[i]])
            for i in inner
        ]
        del left[inner[int(np.argmin(lost))]]
    return left


# -- a table ------------------------------------------------------------------------------------


def step_table(
    curve: TradeoffCurve, steps: Sequence[FrontStep], most: int = 4
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a table of models: cost, score, and what each adds; recommended marked.

    Where the score of the validation rows does not explain the choice, what models are chosen by
    has a column of its own.
    """
    front = front_steps(curve)
    marked = front[recommended(front)] if front else None
    has_test = any(step.test_score is not None for step in steps)
    has_choice = goes_by_choice(steps) or goes_by_choice(front)
    cost = "mean cost" if is_by_row(curve) else "cost"
    heads = [cost, "score"] + ["chosen by"] * has_choice + ["test score"] * has_test
    if curve.scoring == TOTAL_COST:
        heads = ["bill", "errors", "together"] + ["chosen by"] * has_choice + ["test"] * has_test
    rows = []
    for i, step in enumerate(steps):
        adds = step.change(most)
        if i == 0:
            adds = adds or first_purchases(step)
        elif not step.adds:  # so rows are asked more of the same, where they pay for themselves
            more = asked_more(*(asked_of_rows(curve, one) for one in steps[i - 1 : i + 1]))
            adds = "; ".join(words for words in (adds, more) if words) or same_purchases(curve)
        if marked and (step.position, step.n_iter) == (marked.position, marked.n_iter):
            adds += "  <- recommended"
        cells = [money(step.cost, curve.cost_unit)]
        if step.is_total:
            cells.append(money(step.errors, curve.cost_unit))
        cells.append(score_text(curve, step.score, step.error))
        cells += [score_text(curve, step.choice_score)] * has_choice
        cells += [score_text(curve, step.test_score)] * has_test
        rows.append([*cells, adds])
    return [*heads, "what it adds"], rows


def goes_by_choice(steps: Sequence[FrontStep]) -> bool:
    """Whether the score of the validation rows alone does not explain which models are shown.

    It need not rise, and it may say that another one is to be taken.
    """
    if all(step.choice_score is None for step in steps):
        return False
    if any(one.score > other.score for one, other in pairwise(steps)):
        return True
    return recommended(steps) != recommended([replace(s, choice_score=None) for s in steps])


def is_by_row(curve: TradeoffCurve) -> bool:
    """Whether costs are means over rows."""
    return any(getattr(model, "charge", "model") == "row" for model in curve.models)


def same_purchases(curve: TradeoffCurve, is_cheaper: bool = False) -> str:
    """What a step changes that buys nothing new."""
    more = "fewer" if is_cheaper else "more"
    return f"the same, for {more} rows" if is_by_row(curve) else f"{more} trees"


def asked_of_rows(curve: TradeoffCurve, step: FrontStep) -> Protocol | None:
    """Whom a model asks for what, of the validation rows; None where nobody knows, or all are."""
    if not isinstance(curve.validation, ValidationRows):
        return None
    return protocol_of(model_at(curve, step.position, step.n_iter), curve.validation.table)


def protocol_of(model: Any, rows: Any) -> Protocol | None:
    """Whom a model asks for what; None where all rows are asked for the same."""
    predictor = as_predictor(model)
    if rows is None or not predictor.has_protocol or predictor.compares_rows:
        return None
    return predictor.protocol(rows)


def asked_more(before: Protocol | None, after: Protocol | None) -> str:
    """What is asked of more rows, or of fewer: what makes most of the difference in cost."""
    if before is None or after is None:
        return ""
    earlier = {line.resource: line for line in before.lines}
    pairs = [(earlier[line.resource], line) for line in after.lines if line.resource in earlier]
    if not pairs:
        return ""
    old, new = max(pairs, key=lambda pair: abs(pair[1].mean_cost - pair[0].mean_cost))
    was, now = share_text(old.share), share_text(new.share)
    return f"{new.resource}: {was} \N{RIGHTWARDS ARROW} {now} of rows" if was != now else ""


def share_text(share: float) -> str:
    """A share of the rows: 100%, 34%, 2.9%, less than 0.1%.

    Examples
    --------
    >>> share_text(0.3421), share_text(0.0288), share_text(0.0001)
    ('34%', '2.9%', '< 0.1%')
    """
    if 0 < share < 0.001:
        return "< 0.1%"
    percent = 100 * share
    return f"{percent:.0f}%" if percent >= 9.95 or percent == 0 else f"{percent:.1f}%"


def first_purchases(step: FrontStep) -> str:
    """What the cheapest step has where it buys nothing."""
    return f"{step.n_features} free features" if step.n_features else "nothing: a constant"


def score_text(curve: TradeoffCurve, score: float | None, error: float | None = None) -> str:
    """A score and its standard error, if there is one; totals are amounts of money."""
    if score is None:
        return ""

    def said(value: float) -> str:
        if curve.scoring == TOTAL_COST:
            return money(value, curve.cost_unit)
        return rounded_score(value)

    shown = said(-score if curve.scoring == TOTAL_COST else score)
    certain = "" if error is None else rounded_score(error)
    return f"{shown} ± {said(error or 0.0)}" if certain.strip("0.") else shown


# -- what is bought -----------------------------------------------------------------------------


def named_purchases(costs: CostModel, resources: Iterable[str]) -> tuple[str, ...]:
    """What people would say was bought, the most expensive first.

    A test that needs a blood draw is called by the test, since the draw is the smaller part of the
    price; columns of a paid report are called by the report. What is free is not named.

    Examples
    --------
    >>> from greedymiser.datasets import load_thyroid
    >>> named_purchases(load_thyroid().costs, ["blood_draw", "TSH", "age"])
    ('TSH', 'age')
    """
    price, users = _prices_and_users(costs)
    bought = price.keys() & set(resources)
    hidden: set[str] = set()
    for name in sorted(bought, key=lambda name: -len(users[name])):
        parts = [part for part in bought if users[part] < users[name]]
        if not parts or name in hidden:
            continue
        if price[name] > sum(price[part] for part in parts):
            hidden.update(parts)
        else:
            hidden.add(name)
    shown = (name for name in price if name in bought - hidden and price[name] > 0)
    return tuple(sorted(shown, key=lambda name: -price[name]))


def _prices_and_users(costs: CostModel) -> tuple[dict[str, float], dict[str, set[int]]]:
    """The price of each resource, and the features that need it."""
    names = [str(name) for name in costs.resource_names]
    users: dict[str, set[int]] = {name: set() for name in names}
    for feature, needs in enumerate(costs.needs):
        for need in needs:
            users[names[need]].add(feature)
    return dict(zip(names, costs.resource_costs.tolist(), strict=True)), users


@dataclass(frozen=True)
class ResourceLine:
    """A resource in a list: a part of the one above it if ``is_part``."""

    name: str
    price: float
    is_part: bool


@dataclass(frozen=True)
class ResourceGroup:
    """A shared resource and those that only its users need, or one by itself."""

    lines: tuple[ResourceLine, ...]

    @property
    def price(self) -> float:
        return sum(line.price for line in self.lines)


def resource_groups(costs: CostModel, resources: Iterable[str]) -> list[ResourceGroup]:
    """Some resources by what they share, the most expensive group first.

    Examples
    --------
    >>> from greedymiser.datasets import load_thyroid
    >>> groups = resource_groups(load_thyroid().costs, ["age", "blood_draw", "TSH"])
    >>> [[line.name for line in group.lines] for group in groups]
    [['blood_draw', 'TSH'], ['age']]
    """
    price, users = _prices_and_users(costs)
    wanted = [name for name in price if name in set(resources)]
    heads: dict[str, list[str]] = {}
    for name in sorted(wanted, key=lambda name: -len(users[name])):
        head = next((head for head in heads if users[name] < users[head]), None)
        if head is None:
            heads[name] = []
        else:
            heads[head].append(name)
    groups = []
    for head, parts in heads.items():
        parts.sort(key=lambda name: -price[name])
        lines = [ResourceLine(head, price[head], False)]
        lines += [ResourceLine(part, price[part], True) for part in parts]
        groups.append(ResourceGroup(tuple(lines)))
    return sorted(groups, key=lambda group: -group.price)


# -- which one to take --------------------------------------------------------------------------


def recommended(steps: Sequence[FrontStep]) -> int:
    """Position of the cheapest step that is nearly as good as the best, of steps that rise.

    What it is chosen by is within one standard error of the best, or has 99% of what can be gained
    over the first step. Of totals it is the best: what is cheaper has no other advantage.
    """
    if steps[-1].is_total:
        return len(steps) - 1
    scores = [step.chosen_by for step in steps]
    slack = _slack(scores, steps[-1].error)
    return next(i for i, score in enumerate(scores) if score >= scores[-1] - slack)


def _slack(scores: Any, error: float | None) -> float:
    """How far below the best score a model may be that is nearly as good; scores rise."""
    gained = float(scores[-1] - scores[0])
    return max((1 - NEARLY_ALL) * gained if math.isfinite(gained) else 0.0, error or 0.0)


def recommendation(curve: TradeoffCurve, steps: Sequence[FrontStep] | None = None) -> str:
    """Which model to take, in a sentence."""
    if curve.scoring == TOTAL_COST:
        return total_in_words(curve)
    steps = front_steps(curve) if steps is None else steps
    if not steps:
        return "no model has a score"
    best, chosen = steps[-1], steps[recommended(steps)]
    cost = money(chosen.cost, curve.cost_unit)
    if chosen is best:
        return f"the best score costs {cost}"
    whole = money(best.cost, curve.cost_unit)
    reached, most, start = chosen.chosen_by, best.chosen_by, steps[0].chosen_by
    if reached > 0:
        bought = f"{_percent(reached / most)} of the best score"
    elif not math.isfinite(most - start) or most == start:
        bought = "nearly the best score"
    else:
        bought = f"{_percent((reached - start) / (most - start))} of the gain of the best score"
    mean = " on average" if is_by_row(curve) else ""
    return f"{cost}{mean} buys {bought}, which costs {whole}"


def total_in_words(curve: TradeoffCurve) -> str:
    """What the least total is made of, beside buying nothing and buying most."""
    best = curve.best_row()

    def said(value: float) -> str:
        return money(value, curve.cost_unit)

    text = (
        f"{said(-best['score'])} a row in all, {said(best['cost'])} for features and "
        f"{said(best['errors'])} for errors"
    )
    free = curve.traces[curve.traces["cost"] == 0]
    if best["cost"] > 0 and not free.empty:
        text += f"; buying nothing costs {said(-free['score'].max())}"
    most = curve.points.loc[curve.points["cost"].idxmax()]
    if most["cost"] > best["cost"]:
        text += f"; the model with the largest bill costs {said(-most['score'])}"
    return text


def _percent(share: float) -> str:
    """A share, rounded down: 99.96% is not all of it."""
    tenths = math.floor(1000 * share + 1e-9)
    if tenths >= 990 and tenths % 10:
        return f"{tenths / 10:.1f}%"
    return f"{tenths // 10}%"


# -- how certain a score is ---------------------------------------------------------------------


class ValidationRows:
    """The rows that models of a curve were chosen by, and how certain their scores are.

    Parameters
    ----------
    estimator : Miser
        Whose ``scoring`` it is.
    prepared : Prepared
        Data with validation rows.
    """

    def __init__(self, estimator: Any, prepared: Prepared):
        self._scoring = estimator.scoring
        self._schema = prepared.schema
        assert prepared.validation is not None
        self._cases: Cases = prepared.validation.cases
        self._groups = _groups(self._cases)
        self._known: dict[tuple[int, int], tuple[Any, float | None]] = {}

    @property
    def n_rows(self) -> int:
        return len(self._cases.y)

    @property
    def table(self) -> Table:
        """The rows, as predictors take them."""
        cases = self._cases
        return cases.table if cases.rows is None else chosen(cases.table, cases.rows)

    @classmethod
    def of(cls, estimator: Any, prepared: Prepared) -> ValidationRows | None:
        """The validation rows; None where they are on a cluster."""
        assert prepared.validation is not None
        table = prepared.validation.cases.table
        is_here = isinstance(table, ArrayTable | SparseTable | FrameTable)
        return cls(estimator, prepared) if is_here else None

    def error(self, model: Any, n_iter: int) -> float | None:
        """Standard error of the score after so many rounds: the jackknife, group by group.

        None where the score cannot be computed of a part of the rows.
        """
        key = (id(model), n_iter)
        if key not in self._known:  # with the model, so that its id is not given to another
            cut = model.truncate(n_iter) if hasattr(model, "truncate") else model
            self._known[key] = model, self._error(cut)
        return self._known[key][1]

    def _error(self, model: Any) -> float | None:
        if len(self._groups) < 2:
            return None
        score = self._score_of(model)
        if score is None:
            return None
        scores = np.array([score(rows) for rows in self._groups])
        if not np.isfinite(scores).all():
            return None
        n = len(scores)
        return float(np.sqrt((n - 1) / n * np.sum((scores - scores.mean()) ** 2)))

    def _score_of(self, model: Any) -> Callable[[NDArray[np.intp]], float] | None:
        """From some units of the validation rows (queries, where there are some) to the score."""
        from greedymiser.scoring.scores import known_score

        cases, schema, scoring = self._cases, self._schema, self._scoring
        by_loss = scoring is None or scoring == "loss"
        compiled = None
        if not by_loss:
            compiled = known_score(scoring, schema.kind, schema.loss, schema.classes)
            if compiled is None:
                return None
        raw = model.predictor_.raw_predict(cases.table)
        raw = raw if cases.rows is None else raw[:, cases.rows]

        def score(units: NDArray[np.intp]) -> float:
            if cases.starts is None:
                rows, part = units, cases.take(units)
            else:
                starts = cases.starts
                rows = np.concatenate([np.arange(*starts[q : q + 2]) for q in units])
                part = cases.take_queries(units)
            mine = np.ascontiguousarray(raw[:, rows])
            if compiled is not None:
                return compiled.bind(part.y, part.weight, part.starts)(mine)
            loss = part.told(schema.loss)
            return -loss.value(part.y, mine[0] if len(mine) == 1 else mine, part.weight)

        return score


def _groups(cases: Cases) -> list[NDArray[np.intp]]:
    """Rows (or queries) that are left when one group after the other is left out.

    Each group has its share of every target, so that no class is ever missing.
    """
    rng = np.random.default_rng(0)
    if cases.starts is None:
        n = len(cases.y)
        order = np.lexsort((rng.permutation(n), cases.y))
    else:
        n = len(cases.starts) - 1
        order = rng.permutation(n)
    group = np.empty(n, dtype=np.intp)
    group[order] = np.arange(n) % GROUPS
    if n < 2 * GROUPS:
        return []
    return [np.flatnonzero(group != left_out) for left_out in range(GROUPS)]
