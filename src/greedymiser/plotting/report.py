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
from dataclasses import replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from greedymiser._core.amounts import currency, money, plain_score_name, rounded_score
from greedymiser._core.files import write_file
from greedymiser._core.version import __version__
from greedymiser.curve.summary import (
    FrontStep,
    ValidationRows,
    first_purchases,
    front_steps,
    is_by_row,
    model_at,
    named_purchases,
    recommendation,
    recommended,
    resource_groups,
    same_purchases,
    score_text,
)
from greedymiser.model.predictor import as_predictor
from greedymiser.model.protocols import conditions_text
from greedymiser.plotting.axes import cost_scale, nice_costs, score_limits, tick_label
from greedymiser.plotting.curves import FAR, reference_models, staircase, step_labels
from greedymiser.scoring import TOTAL_COST

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.model.protocols import Protocol

__all__ = ["write_report"]

MINUS = "\N{MINUS SIGN}"


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
        Rows over which the protocols of models with ``charge="row"`` are counted; without them,
        the page has no protocols.
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
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


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


def _data(
    curve: TradeoffCurve, X: Any, baselines: Mapping[str, Any], about: Mapping[str, Any]
) -> dict[str, Any]:
    steps = front_steps(curve)
    if not steps:
        raise ValueError("no model of the curve has a score, so there is nothing to report")
    costs = curve.models[0].costs_
    line = np.column_stack(staircase(curve)).tolist()
    others = reference_models(curve, baselines)
    bought = {name for step in steps for name in step.resources}
    by_row = is_by_row(curve)
    unit = str(curve.cost_unit or "")
    labels = step_labels(curve, steps)
    return {
        "scoring": _score_name(curve),
        "unit": unit,
        "by_row": by_row,
        "heading": _heading(curve),
        "lead": _lead(curve, steps),
        "provenance": _provenance(curve, about),
        "total": costs.total(range(costs.n_features)),
        "axes": _axes(curve, steps, line, others),
        "line": line,
        "steps": [_step_entry(curve, steps, i, X, labels[i]) for i in range(len(steps))],
        "recommended": recommended(steps),
        "columns": [i for i, step in enumerate(steps) if step.resources],
        "lines": [
            {"name": line.name, "is_part": line.is_part, "price_text": money(line.price, unit)}
            for group in resource_groups(costs, bought)
            for line in group.lines
        ],
        "baselines": [
            {
                "name": str(name),
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
    said = recommendation(curve, steps)
    costs = curve.models[0].costs_
    whole = money(costs.total(range(costs.n_features)), curve.cost_unit)
    return f"{said[:1].upper()}{said[1:]}. All {costs.n_features} features would cost {whole}."


def _provenance(curve: TradeoffCurve, about: Mapping[str, Any]) -> str:
    """Where it comes from: what is told, the rows, the date and the version."""
    told = [f"{name}: {value}" for name, value in about.items()]
    if isinstance(curve.validation, ValidationRows):
        told.append(f"validation rows: {curve.validation.n_rows:,}")
    told += [f"{date.today():%d %B %Y}", f"greedymiser {__version__}"]
    return " \N{MIDDLE DOT} ".join(told)


def _axes(
    curve: TradeoffCurve,
    steps: Sequence[FrontStep],
    line: Sequence[Sequence[float]],
    others: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """Scales of the picture, and its ticks."""
    costs = np.array([cost for cost, _ in line])
    near = [cost for cost, _ in others.values() if cost <= FAR * costs[-1]]
    values = np.unique([*costs, *near])
    low, high, power = cost_scale(values)
    scores = np.array([score for _, score in line])
    beside = [step.test_score for step in steps if step.test_score is not None]
    beside += [score for _, score in others.values()]
    beside += [
        step.score + sign * step.error
        for step in steps[1:]
        if step.error is not None
        for sign in (-1, 1)
    ]
    bottom, top = score_limits(
        scores[1:] if len(scores) > 1 else scores, np.array([scores[0], *beside]), 0.09
    )
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
    curve: TradeoffCurve, steps: Sequence[FrontStep], i: int, X: Any, labels: list[str]
) -> dict[str, Any]:
    step, unit = steps[i], curve.cost_unit
    model = model_at(curve, step.position, step.n_iter)
    neighbours = {
        k: {
            "change": _change(curve, steps[k], step),
            "score": _difference(curve, step.score - steps[k].score),
        }
        for k in (i - 1, i + 1)
        if 0 <= k < len(steps)
    }
    trees = model.costs_.tree_cost * step.n_trees
    note = "It asks for nothing that costs anything." if not step.resources else ""
    if step.is_total:
        parts = [money(part, unit) for part in (step.cost, step.errors, -step.score)]
        note = f"{parts[0]} for features and {parts[1]} for errors: {parts[2]} a row. {note}"
    if trees:
        note = f"{note} {step.n_trees} trees cost {money(trees, unit)} more.".strip()
    return {
        "cost": step.cost,
        "cost_text": money(step.cost, unit),
        "budget": _rounded_up(step.cost),
        "score": step.score,
        "score_text": score_text(curve, step.score),
        "error": step.error,
        "error_text": _error_text(step.error),
        "test": step.test_score,
        "test_text": score_text(curve, step.test_score),
        "n_trees": step.n_trees,
        "n_features": step.n_features,
        "change": step.change(3),
        "labels": labels,
        "adds": step.change(6) or (first_purchases(step) if i == 0 else same_purchases(curve)),
        "resources": list(step.resources),
        "list": _shopping_list(model, step, unit),
        "note": note,
        "score_difference_from": neighbours,
        "protocol": _protocol_of(model, X, unit),
    }


def _error_text(error: float | None) -> str:
    said = "" if error is None else rounded_score(error)
    return said if said.strip("0.") else ""


def _change(curve: TradeoffCurve, before: FrontStep, after: FrontStep) -> str:
    """From one model to another, in words."""
    costs = curve.models[after.position].costs_
    old, new = set(before.resources), set(after.resources)
    adds, drops = named_purchases(costs, new - old), named_purchases(costs, old - new)
    return replace(after, adds=adds, drops=drops).change(4) or same_purchases(
        curve, is_cheaper=after.cost < before.cost
    )


def _difference(curve: TradeoffCurve, difference: float) -> str:
    """How much a score rises, or a total."""
    if curve.scoring == TOTAL_COST:
        sign = "+" if difference <= 0 else MINUS
        return f"total {sign}{money(abs(difference), curve.cost_unit)}"
    size = abs(difference) if abs(difference) >= 0.0005 else 0.0
    return f"score {'+' if difference >= 0 else MINUS}{rounded_score(size)}"


def _beside(curve: TradeoffCurve, step: FrontStep, cost: float, score: float) -> str:
    """A model beside another one."""
    less = cost - step.cost
    saved = f"{money(abs(less), curve.cost_unit)} {'less' if less >= 0 else 'more'}"
    return f"{saved}, {_difference(curve, step.score - score)}"


def _rounded_up(cost: float) -> float:
    """A short number that is not less than the cost, so that the model still fits."""
    if cost == 0:
        return 0.0
    digits = 5 - math.floor(math.log10(cost))
    short = round(cost, digits)
    return short if short >= cost else round(short + 10.0**-digits, digits)


def _shopping_list(model: Any, step: FrontStep, unit: str) -> list[dict[str, Any]]:
    """What a model buys by what it shares; with the running total and the share of the gain."""
    costs = model.costs_
    shares = _gain_shares(model)
    entries, total = [], 0.0
    for group in resource_groups(costs, step.resources):
        for line in group.lines:
            total += line.price
            share = shares.get(line.name)
            entries.append(
                {
                    "name": line.name,
                    "is_part": line.is_part,
                    "price_text": money(line.price, unit),
                    "total_text": money(total, unit),
                    "share_text": "" if share is None else f"{100 * share:.0f}%",
                }
            )
    return entries


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


def _protocol_of(model: Any, X: Any, unit: str) -> dict[str, Any] | None:
    if X is None or not as_predictor(model).has_protocol:
        return None
    return _protocol_entry(model.protocol(X), unit)


def _protocol_entry(protocol: Protocol, unit: str) -> dict[str, Any]:
    rare = sum(step.n_rare for _, step in protocol.start.each())
    far = sum(step.n_far for _, step in protocol.start.each())
    return {
        "n_rows": protocol.n_rows,
        "mean_cost": protocol.mean_cost,
        "mean_text": money(protocol.mean_cost, unit),
        "max_text": money(protocol.max_cost, unit),
        "rare": rare / protocol.n_rows,
        "far": far / protocol.n_rows,
        "steps": [
            {
                "depth": depth - 1,
                "name": step.name,
                "share": step.n_rows / protocol.n_rows,
                "ends": step.n_done / protocol.n_rows,
                "conditions": conditions_text(step),
                "price_text": money(step.price, unit),
            }
            for depth, step in protocol.start.each()
            if depth > 0
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
