"""The trade-off as one HTML page that needs no network.

The page is ``assets/report.html`` with its style, its script, plotly.js and the data put in. All
that is shown is computed by the script from the data.
"""

from __future__ import annotations

import html
import inspect
import json
import math
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from greedymiser._core.files import write_file
from greedymiser._core.version import __version__
from greedymiser.model.protocols import said_conditions

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.model.protocols import Protocol

__all__ = ["write_report"]

# More points of a trace than this cannot be told apart on a screen.
MOST_POINTS = 300


def write_report(
    curve: TradeoffCurve, path: str | os.PathLike[str], title: str | None = None, X: Any = None
) -> Path:
    """Write an interactive page about a trade-off curve.

    It shows the curve, the best model within a budget with its receipt, the features by price and
    the settings. It is one file and can be opened and mailed as it is.

    Parameters
    ----------
    curve : TradeoffCurve
    path : path of the file, which is replaced if it exists
    title : str, optional
    X : array, sparse matrix or data frame, optional
        Rows over which the protocols of models with ``charge="row"`` are counted; without them,
        the page has no protocols.

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
    page = _page(curve, "What each budget buys" if title is None else title, X)
    target = Path(path)
    _write_report(target, page.encode("utf-8", errors="replace"))
    return target


def _page(curve: TradeoffCurve, title: str, X: Any) -> str:
    assets = files("greedymiser") / "plotting" / "assets"
    parts = {
        "title": html.escape(title),
        "version": html.escape(__version__),
        "css": (assets / "report.css").read_text(encoding="utf-8"),
        "js": (assets / "report.js").read_text(encoding="utf-8"),
        "plotly": _plotly_js(),
        "data": _script_json(_data(curve, X)),
    }
    template = (assets / "report.html").read_text(encoding="utf-8")
    # In one pass, so that what is put in is never read as a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(
            "the report needs plotly, which is not installed; the extra greedymiser[report] "
            "brings it"
        ) from error
    return str(get_plotlyjs())


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


def _data(curve: TradeoffCurve, X: Any) -> dict[str, Any]:
    points, models = curve.points, curve.models
    costs = models[0].costs_
    front = curve.pareto().sort_values("cost")
    traces = [curve.trace(i) for i in range(len(points))]
    return {
        "scoring": str(curve.scoring),
        "unit": str(curve.cost_unit or ""),
        "has_test": "test_score" in points,
        "tree_cost": float(costs.tree_cost),
        "total": costs.total(range(costs.n_features)),
        "traces": [
            _trace_entry(rows, keep) for rows, keep in zip(traces, points["n_iter"], strict=True)
        ],
        "chosen": [_point_entry(row, i) for i, (_, row) in enumerate(points.iterrows())],
        "front": [_front_row(curve, row, X) for _, row in front.iterrows()],
        "receipts": [[_purchase_entry(line) for line in model.receipt()] for model in models],
        "features": _features_by_price(models),
        "settings": _shared_settings(models),
    }


def _front_row(curve: TradeoffCurve, row: Any, X: Any) -> dict[str, Any]:
    position = curve.position(row)
    told = _point_entry(row, position)
    model = curve.models[position]
    if X is None or model.predictor_.charge != "row":
        return {**told, "protocol": None}
    return {**told, "protocol": _protocol_entry(model.truncate(told["n_iter"]).protocol(X))}


def _protocol_entry(protocol: Protocol) -> dict[str, Any]:
    rare = sum(step.n_rare for _, step in protocol.start.each())
    far = sum(step.n_far for _, step in protocol.start.each())
    return {
        "n_rows": protocol.n_rows,
        "mean_cost": protocol.mean_cost,
        "max_cost": protocol.max_cost,
        "rare": rare / protocol.n_rows,
        "far": far / protocol.n_rows,
        "steps": [
            {
                "depth": depth - 1,
                "name": step.name,
                "share": step.n_rows / protocol.n_rows,
                "ends": step.n_done / protocol.n_rows,
                "conditions": said_conditions(step),
                "price": step.price,
            }
            for depth, step in protocol.start.each()
            if depth > 0
        ],
    }


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _point_entry(row: Any, trace: int) -> dict[str, Any]:
    return {
        "trace": trace,
        "n_iter": int(row["n_iter"]),
        "n_trees": int(row["n_trees"]),
        "n_features": int(row["n_features"]),
        "cost": float(row["cost"]),
        "score": _finite(row["score"]),
        "test": _finite(row["test_score"]) if "test_score" in row else None,
    }


def _trace_entry(rows: Any, chosen: int) -> dict[str, Any]:
    """A trace, thinned where it is long; purchases and the chosen round stay."""
    if len(rows) > MOST_POINTS:
        bought = rows["n_features"].diff().ne(0)
        keep = bought | bought.shift(-1, fill_value=True) | (rows["n_iter"] == chosen)
        keep |= np.arange(len(rows)) % math.ceil(len(rows) / MOST_POINTS) == 0
        rows = rows[keep]
    columns = {name: rows[name].astype(int).tolist() for name in ("n_iter", "n_trees")}
    return {
        **columns,
        "tradeoff": float(rows["tradeoff"].iloc[0]),
        "found_by": str(rows["found_by"].iloc[0]) if "found_by" in rows else "path",
        "n_features": rows["n_features"].astype(int).tolist(),
        "cost": rows["cost"].astype(float).tolist(),
        "score": [_finite(score) for score in rows["score"]],
        "test": [_finite(s) for s in rows["test_score"]] if "test_score" in rows else None,
    }


def _purchase_entry(line: Any) -> dict[str, Any]:
    return {
        "round": line.iteration,
        "feature": str(line.feature),
        "resources": [str(resource) for resource in line.resources],
        "price": line.price,
        "spent": line.spent,
        "gain": _finite(line.gain),
    }


def _features_by_price(models: list[Any]) -> list[dict[str, Any]]:
    """Every feature, cheapest first, with the round in which each model first uses it."""
    costs = models[0].costs_
    prices = costs.prices()
    firsts = [model.ensemble_.first_uses() for model in models]
    names = costs.feature_names or range(costs.n_features)
    table = [
        {
            "index": i,
            "name": str(name),
            "price": float(prices[i]),
            "needs": [str(costs.resource_names[resource]) for resource in costs.needs[i]],
            "first": [first.get(i) for first in firsts],
        }
        for i, name in enumerate(names)
    ]
    return sorted(table, key=lambda feature: (feature["price"], feature["index"]))


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
