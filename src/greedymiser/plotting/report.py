"""The trade-off as one HTML page that needs no network.

The page is ``assets/report.html`` with its style, its script and the data put in: text as it is to
be read, and numbers for the picture.
"""

from __future__ import annotations

import html
import inspect
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from greedymiser._core.amounts import currency, money, plain_score_name, rounded_score, shortlist
from greedymiser._core.files import write_file
from greedymiser._core.version import __version__
from greedymiser.curve.summary import (
    FrontStep,
    ResourceLine,
    ValidationRows,
    asked_more,
    first_purchases,
    front_steps,
    goes_by_choice,
    is_by_row,
    model_at,
    named_purchases,
    protocol_of,
    recommendation,
    recommended,
    resource_groups,
    same_purchases,
    score_text,
    share_text,
    whole_front,
)
from greedymiser.model.predictor import as_predictor
from greedymiser.model.protocols import conditions_text
from greedymiser.plotting.axes import cost_scale, nice_costs, tick_label
from greedymiser.plotting.curves import (
    FAR,
    PRICES_IGNORED,
    reference_models,
    score_range,
    staircase,
    step_labels,
)
from greedymiser.scoring import TOTAL_COST

if TYPE_CHECKING:
    from greedymiser.costs.cost_model import CostModel
    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.model.protocols import Protocol

__all__ = ["write_report"]

MINUS = "\N{MINUS SIGN}"

# Questions of a protocol that a reader can take in.
MOST_QUESTIONS = 12


def write_report(
    curve: TradeoffCurve,
    path: str | os.PathLike[str],
    title: str | None = None,
    X: Any = None,
    *,
    baselines: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write an interactive page about a trade-off curve.

    It opens at the recommended budget, and shows the curve, what the model for a budget buys, what
    changes to the next cheaper and the next more expensive one, and which model buys what. It is
    one small file and can be opened and mailed as it is.

    Parameters
    ----------
    curve : TradeoffCurve
    path : path of the file, which is replaced if it exists
    title : str, optional
    X : array, sparse matrix or data frame, optional
        Rows over which it is counted whom models with ``charge="row"`` ask for what; by default
        the validation rows. A curve that was read from a file has none.
    baselines : mapping from name to (cost, score) or to fitted model, optional
        Models to compare with, as in ``plot_curve``.
    about : mapping from str to Any, optional
        Where it comes from, to be told on top: ``{"file": "loans.csv", "rows": 30000}``.

    Returns
    -------
    Path
        Where the page is.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor, tradeoff_curve
    >>> X, y = load_diabetes(return_X_y=True)
    >>> curve = tradeoff_curve(
    ...     MiserRegressor(max_iter=5), X, y, X_val=X, y_val=y, tradeoffs=[0.0, 100.0])
    >>> write_report(curve, "report.html").name
    'report.html'
    """
    data = _data(curve, X, baselines or {}, about or {})
    page = _page("What each budget buys" if title is None else title, data)
    target = Path(path)
    _write_report(target, page.encode("utf-8", errors="replace"))
    return target


def _page(title: str, data: dict[str, Any]) -> str:
    assets = files("greedymiser") / "plotting" / "assets"
    parts = {
        "title": html.escape(title),
        "version": html.escape(__version__),
        "css": (assets / "report.css").read_text(encoding="utf-8"),
        "js": (assets / "report.js").read_text(encoding="utf-8"),
        "data": _script_json(data),
    }
    template = (assets / "report.html").read_text(encoding="utf-8")
    # In one pass, so that what is put in is never read as a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _script_json(data: Any) -> str:
    """JSON that may stand in a script element, whatever the names in it are."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _write_report(target: Path, content: bytes) -> None:
    """Write a file so that nobody ever sees half of it."""
    folder = target.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"cannot write {target}: {folder} is not an existing folder")
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder; name a file in it")
    try:
        write_file(target, content, "a report")
    except OSError as error:
        reason = error.strerror or error
        raise type(error)(f"cannot write {target}: {reason}") from error


# -- the data ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Report:
    """What a page shows: a model or a curve, and the data that goes with it."""

    curve: TradeoffCurve
    # Every model that no other beats: the line, the slider and a typed budget go by all of them.
    steps: list[FrontStep]
    # The few that tables have, in the order of ``steps``.
    main: list[int]
    # Each step as a model, and whom it asks for what; None where all rows are asked for the same.
    models: list[Any]
    protocols: list[Protocol | None]

    @property
    def unit(self) -> str:
        return str(self.curve.cost_unit or "")

    @property
    def costs(self) -> CostModel:
        costs: CostModel = self.curve.models[0].costs_
        return costs

    def main_before(self, i: int) -> int | None:
        """The last of the few that is cheaper."""
        return max((k for k in self.main if k < i), default=None)

    def main_after(self, i: int) -> int | None:
        """The first of the few that costs more."""
        return min((k for k in self.main if k > i), default=None)

    def change(self, before: int, after: int) -> str:
        """From one model to another, in words."""
        old, new = self.steps[before], self.steps[after]
        adds, drops = (
            named_purchases(self.costs, set(one.resources) - set(other.resources))
            for one, other in ((new, old), (old, new))
        )
        changes = [replace(new, adds=adds, drops=drops).change(4)]
        if not adds or (new.cost < old.cost and not drops):  # so it must be about other rows
            changes.append(asked_more(self.protocols[before], self.protocols[after]))
        changes = [words for words in changes if words]
        return "; ".join(changes) or same_purchases(self.curve, is_cheaper=new.cost < old.cost)


def _data(
    curve: TradeoffCurve, X: Any, baselines: Mapping[str, Any], about: Mapping[str, Any]
) -> dict[str, Any]:
    steps, main = whole_front(curve)
    if not steps:
        raise ValueError("no model of the curve has a score, so there is nothing to report")
    if X is None and isinstance(curve.validation, ValidationRows):
        X = curve.validation.table
    models = [model_at(curve, step.position, step.n_iter) for step in steps]
    protocols = [protocol_of(model, X) for model in models]
    report = _Report(curve, steps, main, models, protocols)
    line = np.column_stack(staircase(curve)).tolist()
    others = reference_models(curve, baselines)
    unit, costs = report.unit, report.costs
    bought = {name for step in steps for name in step.resources}
    lines = [
        line for group in resource_groups(costs, bought) for line in group.lines if line.price > 0
    ]
    few = front_steps(curve)
    labels = dict(zip(main, step_labels(curve, few), strict=True))
    return {
        "scoring": _score_name(curve),
        "unit": unit,
        "by_row": is_by_row(curve),
        "heading": _heading(curve),
        "lead": _lead(curve, few),
        "provenance": _provenance(curve, about),
        "total": costs.total(range(costs.n_features)),
        "axes": _axes(curve, few, line, others),
        "line": line,
        "steps": [_step_entry(report, i, lines, labels.get(i, [])) for i in range(len(steps))],
        "recommended": main[recommended(few)],
        "has_choice": goes_by_choice(few),
        "lines": [
            {"name": line.name, "is_part": line.is_part, "price_text": money(line.price, unit)}
            for line in lines
        ],
        "baselines": [
            {
                "name": "a model that ignores prices" if name == PRICES_IGNORED else str(name),
                "ignores_prices": name == PRICES_IGNORED,
                "cost": cost,
                "score": score,
                "cost_text": money(cost, unit),
                "score_text": score_text(curve, score),
                "beside": [_beside(curve, step, cost, score) for step in steps],
            }
            for name, (cost, score) in others.items()
        ],
        "settings": _shared_settings(curve.models),
    }


def _score_name(curve: TradeoffCurve) -> str:
    return "features and errors" if curve.scoring == TOTAL_COST else plain_score_name(curve.scoring)


def _heading(curve: TradeoffCurve) -> str:
    if curve.scoring == TOTAL_COST:
        return "Features and errors of a row for each budget: less is better"
    score = _score_name(curve)
    return f"{score[:1].upper()}{score[1:]} for each budget"


def _lead(curve: TradeoffCurve, steps: Sequence[FrontStep]) -> str:
    """What to take, beside spending nothing and beside all that is for sale."""
    said = recommendation(curve, steps)
    costs, first = curve.models[0].costs_, steps[0]
    whole = money(costs.total(range(costs.n_features)), curve.cost_unit)
    sentences = [f"{said[:1].upper()}{said[1:]}."]
    if first.cost == 0 and recommended(steps) > 0 and not first.is_total:
        free = "What is free" if first.n_features else "A constant"
        sentences.append(f"{free} scores {score_text(curve, first.score)}.")
    sentences.append(f"All {costs.n_features} features would cost {whole}.")
    return " ".join(sentences)


def _provenance(curve: TradeoffCurve, about: Mapping[str, Any]) -> str:
    """The foot of a page: the user's notes, the rows, the date and the version."""
    notes = [
        f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}"
        for name, value in about.items()
    ]
    if isinstance(curve.validation, ValidationRows):
        notes.append(f"validation rows: {curve.validation.n_rows:,}")
    today = date.today()
    notes += [f"{today.day} {today:%B %Y}", f"greedymiser {__version__}"]
    return " \N{MIDDLE DOT} ".join(notes)


def _axes(
    curve: TradeoffCurve,
    steps: Sequence[FrontStep],
    line: Sequence[Sequence[float]],
    others: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """Scales of the picture, and its ticks."""
    near = [cost for cost, _ in others.values() if cost <= FAR * steps[-1].cost]
    values = np.unique([*(step.cost for step in steps), *near])
    low, high, power = cost_scale(values)
    scores = np.array([score for _, score in line])
    bottom, top = score_range(scores, steps, [score for _, score in others.values()])
    what = "mean cost of one prediction" if is_by_row(curve) else "cost of one prediction"
    unit = str(curve.cost_unit or "")
    return {
        "low": low,
        "high": high,
        "power": power,
        "bottom": bottom,
        "top": top,
        # Totals are told as amounts, of which less is better.
        "is_total": curve.scoring == TOTAL_COST,
        "currency": currency(unit),
        "title": f"{what} ({unit})" if unit and not currency(unit) else what,
        "ticks": [[tick, tick_label(tick, unit)] for tick in nice_costs(values, low, high, power)],
    }


def _step_entry(
    report: _Report, i: int, lines: Sequence[ResourceLine], labels: list[str]
) -> dict[str, Any]:
    curve, step, unit = report.curve, report.steps[i], report.unit
    model, protocol = report.models[i], report.protocols[i]
    before = report.main_before(i)
    adds = first_purchases(step) if before is None else report.change(before, i)
    cost_text = money(step.cost, unit)
    return {
        "cost": step.cost,
        "cost_text": cost_text,
        # What is printed, as a number: whoever types it gets this model.
        "printed": cost_text.removeprefix(currency(unit))
        .removesuffix(unit)
        .replace(",", "")
        .strip(),
        "budget": _rounded_up(
            step.cost, report.steps[i + 1].cost if i + 1 < len(report.steps) else None
        ),
        "score": step.score,
        "score_text": score_text(curve, step.score),
        "choice_text": score_text(curve, step.choice_score),
        "error": step.error,
        "error_text": _error_text(step.error),
        "test": step.test_score,
        "test_text": score_text(curve, step.test_score),
        "n_trees": step.n_trees,
        "n_features": step.n_features,
        "is_main": i in report.main,
        "labels": labels,
        "adds": adds,
        "bought": [k for k, line in enumerate(lines) if line.name in step.resources],
        "names": list(step.resources),
        "list": _shopping_list(model, step, lines, protocol, unit),
        "asked": None if protocol is None else _asked_entry(protocol, unit),
        "free": _free_features(model),
        "note": _note(model, step, protocol, unit),
        "beside": [
            {
                "step": k,
                "change": report.change(i, k),
                "score": _difference(curve, report.steps[k].score - step.score),
            }
            for k in (before, report.main_after(i))
            if k is not None
        ],
        "protocol": None if protocol is None else _protocol_entry(protocol.without_free(), unit),
    }


def _note(model: Any, step: FrontStep, protocol: Protocol | None, unit: str) -> str:
    """What a list of purchases does not tell."""
    sentences = []
    if step.is_total:
        parts = [money(part, unit) for part in (step.cost, step.errors, -step.score)]
        sentences.append(f"{parts[0]} for features and {parts[1]} for errors: {parts[2]} a row.")
    if step.cost == 0:
        sentences.append("It asks for nothing that costs anything.")
    trees = model.costs_.tree_cost * step.n_trees
    if trees:
        sentences.append(f"{step.n_trees} trees cost {money(trees, unit)} more.")
    if protocol is not None and step.cost > 0:
        sentences.append(
            f"Each row pays for what it is asked for: {money(protocol.mean_cost, unit)} on average "
            f"over {protocol.n_rows:,} rows, {money(protocol.max_cost, unit)} at most."
        )
    return " ".join(sentences)


def _error_text(error: float | None) -> str:
    said = "" if error is None else rounded_score(error)
    return said if said.strip("0.") else ""


def _difference(curve: TradeoffCurve, difference: float) -> str:
    """How much a score rises, or a total."""
    if curve.scoring == TOTAL_COST:
        sign = "+" if difference <= 0 else MINUS
        return f"total {sign}{money(abs(difference), curve.cost_unit)}"
    if abs(difference) < 0.0005:
        return "the same score"
    return f"score {'+' if difference >= 0 else MINUS}{rounded_score(abs(difference))}"


def _beside(curve: TradeoffCurve, step: FrontStep, cost: float, score: float) -> str:
    """A model beside another one."""
    less = cost - step.cost
    saved = f"{money(abs(less), curve.cost_unit)} {'less' if less >= 0 else 'more'}"
    return f"{saved}, {_difference(curve, step.score - score)}"


def _rounded_up(cost: float, below: float | None) -> float:
    """A short number that is not less than the cost, and less than what the next model costs."""
    if cost == 0:
        return 0.0
    for places in range(max(2, 2 - math.floor(math.log10(cost))), 18):
        short = round(cost, places)
        short = short if short >= cost else round(short + 10.0**-places, places)
        if below is None or short < below:
            return short
    return cost


def _shopping_list(
    model: Any,
    step: FrontStep,
    lines: Sequence[ResourceLine],
    protocol: Protocol | None,
    unit: str,
) -> list[list[Any]]:
    """What a model buys: which line it is, and two things about it.

    Where rows pay for themselves, these are the share of rows that is asked, and what that adds to
    the mean cost; elsewhere the running total, and the share of the gain.
    """
    bought = [(k, line) for k, line in enumerate(lines) if line.name in step.resources]
    if protocol is not None:
        asked = {line.resource: line for line in protocol.lines}
        return [
            [k, share_text(asked[line.name].share), money(asked[line.name].mean_cost, unit)]
            for k, line in bought
            if line.name in asked
        ]
    shares = _gain_shares(model)
    totals = np.cumsum([line.price for _, line in bought])
    return [
        [k, money(float(total), unit), _percent_text(shares.get(line.name))]
        for (k, line), total in zip(bought, totals, strict=True)
    ]


def _percent_text(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}%"


def _free_features(model: Any) -> dict[str, Any]:
    """The features of a model that cost nothing, and their share of the gain."""
    costs, predictor = model.costs_, as_predictor(model)
    prices = costs.resource_costs
    free = [f for f in predictor.features if not any(prices[need] for need in costs.needs[f])]
    names = [str(f) if predictor.names is None else predictor.names[f] for f in free]
    gains = getattr(model, "feature_importances_", None)
    share = None
    if gains is not None and np.sum(gains) > 0:
        share = float(np.sum(np.asarray(gains)[free]) / np.sum(gains))
    return {"names": shortlist(names, 12), "n": len(free), "share_text": _percent_text(share)}


def _gain_shares(model: Any) -> dict[str, float]:
    """Share of the gain of the features that need each resource and none with fewer users."""
    gains = getattr(model, "feature_importances_", None)
    if gains is None:
        return {}
    costs = model.costs_
    users = np.bincount([need for needs in costs.needs for need in needs], minlength=1)
    shares: dict[str, float] = {}
    for gain, needs in zip(np.asarray(gains, dtype=float), costs.needs, strict=True):
        if gain > 0 and needs:
            own = min(needs, key=lambda need: users[need])
            name = str(costs.resource_names[own])
            shares[name] = shares.get(name, 0.0) + float(gain)
    whole = sum(float(gain) for gain in gains) or 1.0
    return {name: share / whole for name, share in shares.items()}


def _asked_entry(protocol: Protocol, unit: str) -> dict[str, str]:
    """What a list of what is asked of some rows adds up to."""
    trees = money(protocol.tree_cost, unit) if protocol.tree_cost else ""
    return {"trees_text": trees, "mean_text": money(protocol.mean_cost, unit)}


def _protocol_entry(protocol: Protocol, unit: str) -> dict[str, Any] | None:
    """The questions to most rows, in their order."""
    questions = [(depth, step) for depth, step in protocol.start.each() if depth > 0]
    if not questions:
        return None
    # A question comes before those that follow from it, which go to no more rows than it does.
    most = sorted((step for _, step in questions), key=lambda step: -step.n_rows)[:MOST_QUESTIONS]
    shown = {id(step) for step in most}
    rare = sum(step.n_rare for _, step in protocol.start.each())
    far = sum(step.n_far for _, step in protocol.start.each())
    return {
        "none_text": share_text(protocol.start.n_done / protocol.n_rows),
        "n_hidden": len(questions) - len(most),
        "rare_text": share_text(rare / protocol.n_rows),
        "far_text": share_text(far / protocol.n_rows),
        "steps": [
            {
                "depth": depth - 1,
                "name": step.name,
                "share": step.n_rows / protocol.n_rows,
                "share_text": share_text(step.n_rows / protocol.n_rows),
                "ends": step.n_done / protocol.n_rows,
                "conditions": conditions_text(step),
                "price_text": money(step.price, unit),
            }
            for depth, step in questions
            if id(step) in shown
        ],
    }


def _shared_settings(models: list[Any]) -> list[dict[str, Any]]:
    """Parameters that the models share, and which of them are not the default."""
    model = models[0]
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(type(model).__init__).parameters.items()
    }
    settings = [
        ("estimator", type(model).__name__, False),
        ("costs", repr(model.costs_).strip("<>"), False),
    ]
    for name, value in model.get_params(deep=False).items():
        if name not in ("costs", "tradeoff"):
            settings.append(
                (name, _in_words(value), _in_words(value) == _in_words(defaults.get(name)))
            )
    return [{"name": name, "value": value, "is_default": same} for name, value, same in settings]


def _in_words(value: Any) -> str:
    """A setting in words, without addresses in memory."""
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
