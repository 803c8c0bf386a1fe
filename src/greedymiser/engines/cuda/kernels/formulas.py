"""Losses, and what a split is worth, on the device: twins of the CPU's functions."""

from __future__ import annotations

from typing import NamedTuple

from greedymiser._core import arithmetic
from greedymiser.engines import scanning
from greedymiser.engines.cuda.device import twin
from greedymiser.losses import formulas

exp = twin(arithmetic.exp)
log = twin(arithmetic.log)
sigmoid = twin(arithmetic.sigmoid, exp=exp)
log_of_one_plus = twin(arithmetic.log_of_one_plus, log=log)
softplus = twin(arithmetic.softplus, exp=exp, log_of_one_plus=log_of_one_plus)

_find_largest = twin(formulas.find_largest)
_softmax_gradients = twin(formulas.softmax_gradients, exp=exp, find_largest=_find_largest)
_softmax_values = twin(formulas.softmax_values, exp=exp, log=log, find_largest=_find_largest)
write_gradients = twin(
    formulas.write_gradients, exp=exp, sigmoid=sigmoid, softmax_gradients=_softmax_gradients
)
write_values = twin(
    formulas.write_values, exp=exp, log=log, softplus=softplus, softmax_values=_softmax_values
)

_score = twin(scanning.score)
_keeps_order = twin(scanning.keeps_order)
admissible_score = twin(scanning.admissible_score, score=_score, keeps_order=_keeps_order)
gain_of_best = twin(scanning.gain_of_best, score=_score)


class TreeScale(NamedTuple):
    """The constants of a tree, as ``scanning.SCALE_DTYPE`` has them."""

    gradient: float
    hessian: float
    l2: float
    min_hessian: float
    min_count: int
    bounded: bool


class OpenNode(NamedTuple):
    """An open node, as ``interface.OPEN_DTYPE`` has it."""

    gradient: int
    hessian: int
    count: int  # type: ignore[assignment]
    lower: float
    upper: float
