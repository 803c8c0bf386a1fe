"""Numbers and names for readers: amounts of money, scores, names of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# Units that are written before the amount, and with cents.
CURRENCIES = {
    "dollar": "$",
    "usd": "$",
    "$": "$",
    "euro": "€",
    "eur": "€",
    "€": "€",
    "pound": "£",
    "gbp": "£",
    "£": "£",
    "franc": "CHF ",
    "chf": "CHF ",
}

# Names of scores that are not their words with underscores between them.
SCORE_NAMES = {
    "roc_auc": "ROC AUC",
    "roc_auc_ovr": "ROC AUC (one class against the rest)",
    "roc_auc_ovr_weighted": "ROC AUC (one class against the rest, weighted)",
    "roc_auc_ovo": "ROC AUC (class against class)",
    "roc_auc_ovo_weighted": "ROC AUC (class against class, weighted)",
    "r2": "R²",
    "d2_absolute_error_score": "D² of the absolute error",
    "matthews_corrcoef": "Matthews correlation",
    "f1": "F1",
    "neg_log_loss": "negative log-loss",
    "neg_brier_score": "negative Brier score",
    "total_cost": "negative total cost",
}


def currency(unit: str | None) -> str:
    """The sign of a currency, "" for other units.

    Examples
    --------
    >>> currency("dollars"), currency("ms")
    ('$', '')
    """
    word = (unit or "").strip().lower()
    return CURRENCIES.get(word) or CURRENCIES.get(word.removesuffix("s"), "")


def amount(value: float, digits: int = 3) -> str:
    """A number without more digits than anybody reads.

    Examples
    --------
    >>> amount(0.0051878), amount(22.78), amount(69.0), amount(123456.7)
    ('0.00519', '22.8', '69', '123,500')
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) >= 1e15:
        return f"{value:.{digits}g}"
    if abs(value) >= 10 ** (digits - 1):
        digits = max(digits, 4)
        return f"{round(value, min(digits - 1 - math.floor(math.log10(abs(value))), 0)):,.0f}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    if places > 8:
        return f"{value:.{digits}g}"
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def check_unit(cost_unit: Any) -> None:
    """Raise if a unit of costs is no text."""
    if not isinstance(cost_unit, str):
        raise TypeError(f"cost_unit must be a string, got {cost_unit!r}")


def money(value: float, unit: str | None = "") -> str:
    """A cost with its unit: cents where the unit has them, three digits elsewhere.

    Examples
    --------
    >>> money(22.78, "dollars"), money(69.0, "dollars"), money(2.3, "euros"), money(0.0123, "ms")
    ('$22.78', '$69', '€2.30', '0.0123 ms')
    """
    sign = currency(unit)
    if sign and math.isfinite(value) and (abs(value) >= 0.1 or value == 0):
        cents = round(100 * value)
        if cents % 100 == 0 or abs(value) >= 10_000:
            return f"{sign}{value:,.0f}"
        return f"{sign}{value:,.2f}"
    if sign:
        return f"{sign}{amount(value, 2)}"
    return f"{amount(value)} {unit}" if unit else amount(value)


def rounded_score(value: float, error: float | None = None) -> str:
    """A score with the digits that are certain.

    Examples
    --------
    >>> rounded_score(0.77797, 0.0041), rounded_score(0.77797), rounded_score(-1234.5)
    ('0.778', '0.778', '-1,234')
    """
    if not math.isfinite(value):
        return "unknown"
    if error is not None and math.isfinite(error) and error > 0:
        places = -math.floor(math.log10(error))
        if places < 0:
            return f"{round(value, places):,.0f}"
        return f"{value:.{min(places, 6)}f}"
    if 0.0005 <= abs(value) < 10 or abs(value) < 1e-9:
        return f"{value:.3f}"
    return amount(value, 4)


def shortlist(names: Sequence[Any], most: int = 6) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def quoted(names: Sequence[Any], most: int = 5) -> str:
    """The first names in quotes, and how many more there are."""
    return shortlist([repr(str(name)) for name in names], most)


def plain_score_name(name: str) -> str:
    """The name of a score in words.

    Examples
    --------
    >>> plain_score_name("balanced_accuracy"), plain_score_name("neg_mean_squared_error")
    ('balanced accuracy', 'negative mean squared error')
    >>> plain_score_name("ndcg@5"), plain_score_name("roc_auc")
    ('NDCG@5', 'ROC AUC')
    """
    if name in SCORE_NAMES:
        return SCORE_NAMES[name]
    if name.lower().startswith("ndcg@"):
        return f"NDCG{name[4:]}"
    if not name.isidentifier():  # of a user's own making
        return name
    words = name.replace("_", " ")
    return f"negative {words[4:]}" if name.startswith("neg_") else words
