"""The losses that every engine computes itself: loss, slope and curvature of single rows.

A kernel is told which loss it computes by a number, and by the loss' one parameter. Rows come in
blocks, so that a thread can work on a part of them while its numbers are in the cache.

Each loss has a class of its own, so that kernels are compiled for the losses that are used, and not
for all: see ``compiling.FoldConstants``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from greedymiser._core.arithmetic import exp, log, sigmoid, softplus
from greedymiser._core.compiling import inner, njit

SQUARED, ABSOLUTE, QUANTILE, HUBER, POISSON, GAMMA, LOGISTIC, MULTINOMIAL = range(8)


class Formula(NamedTuple):
    """How kernels know a loss."""

    kind: int
    # The quantile, or Huber's delta.
    parameter: float = 0.0
    # Whether the second derivative is 1 everywhere.
    is_flat: bool = True


class SquaredFormula(Formula):
    """Half the squared error."""

    KIND = SQUARED


class AbsoluteFormula(Formula):
    """The absolute error."""

    KIND = ABSOLUTE


class QuantileFormula(Formula):
    """The quantile loss."""

    KIND = QUANTILE


class HuberFormula(Formula):
    """Huber's loss."""

    KIND = HUBER


class PoissonFormula(Formula):
    """Half the Poisson deviance."""

    KIND = POISSON


class GammaFormula(Formula):
    """Half the gamma deviance."""

    KIND = GAMMA


class LogisticFormula(Formula):
    """Log-loss of two classes."""

    KIND = LOGISTIC


class MultinomialFormula(Formula):
    """Log-loss of several classes."""

    KIND = MULTINOMIAL


@njit
def find_gradients(formula, y, raw, gradients, hessians):
    """Derivatives of all rows, for Python."""
    spare = np.empty((2, y.size))
    write_gradients(formula, y, raw, 0, y.size, gradients, hessians, spare)


@njit
def find_values(formula, y, raw, out):
    """Loss of all rows, for Python."""
    write_values(formula, y, raw, 0, y.size, out, np.empty((2, y.size)))


@inner
def write_gradients(formula, y, raw, first, last, gradients, hessians, spare):
    """Derivatives of rows first:last.

    ``raw``, ``gradients`` and ``hessians`` are (n_outputs, n); ``hessians`` is only written to
    where the formula is not flat. ``spare`` is room to compute in, (2, last - first).
    """
    kind = formula.kind
    parameter = formula.parameter
    if kind == MULTINOMIAL:
        softmax_gradients(y, raw, first, last, gradients, hessians, spare)
        return
    f, g = raw[0], gradients[0]
    if kind == SQUARED:
        for i in range(np.uint64(first), np.uint64(last)):
            g[i] = f[i] - y[i]
    elif kind == ABSOLUTE:
        for i in range(np.uint64(first), np.uint64(last)):
            g[i] = 1.0 if f[i] > y[i] else (-1.0 if f[i] < y[i] else 0.0)
    elif kind == QUANTILE:
        for i in range(np.uint64(first), np.uint64(last)):
            g[i] = 1.0 - parameter if f[i] > y[i] else (-parameter if f[i] < y[i] else 0.0)
    elif kind == HUBER:
        for i in range(np.uint64(first), np.uint64(last)):
            g[i] = min(max(f[i] - y[i], -parameter), parameter)
    elif kind == POISSON:
        for i in range(np.uint64(first), np.uint64(last)):
            mean = exp(f[i])
            g[i] = mean - y[i]
            hessians[0, i] = mean
    elif kind == GAMMA:
        for i in range(np.uint64(first), np.uint64(last)):
            ratio = y[i] * exp(-f[i])
            g[i] = 1.0 - ratio
            hessians[0, i] = ratio
    elif kind == LOGISTIC:
        for i in range(np.uint64(first), np.uint64(last)):
            p = sigmoid(f[i])
            g[i] = p - y[i]
            hessians[0, i] = p * (1.0 - p)


@inner
def find_largest(raw, start, n, largest):
    """Largest raw prediction of rows, to be taken away before exponentials overflow."""
    for i in range(n):
        largest[i] = raw[np.uint64(0), start + i]
    for k in range(np.uint64(1), np.uint64(raw.shape[0])):
        f = raw[k]
        for i in range(n):
            largest[i] = max(largest[i], f[start + i])


@inner
def softmax_gradients(y, raw, first, last, gradients, hessians, spare):
    """Derivatives of rows that may belong to several classes.

    One output after the other: LLVM makes vectors of loops over rows.
    """
    n_outputs, start, n = np.uint64(raw.shape[0]), np.uint64(first), np.uint64(last - first)
    largest, total = spare[0], spare[1]
    find_largest(raw, start, n, largest)
    for i in range(n):
        total[i] = 0.0
    for k in range(n_outputs):
        f, g = raw[k], gradients[k]
        for i in range(n):
            part = exp(f[start + i] - largest[i])
            g[start + i] = part
            total[i] += part
    # Friedman's factor: K outputs say what K - 1 could, and share the step between them.
    factor = float(n_outputs) / (float(n_outputs) - 1.0)
    for k in range(n_outputs):
        g, h = gradients[k], hessians[k]
        for i in range(n):
            p = g[start + i] / total[i]
            g[start + i] = p
            h[start + i] = p * (1.0 - p) * factor
    for i in range(n):
        gradients[np.uint64(y[start + i]), start + i] -= 1.0


@inner
def write_values(formula, y, raw, first, last, out, spare):
    """Loss of rows first:last, to ``out[: last - first]``; ``spare`` as in ``write_gradients``."""
    kind = formula.kind
    parameter, start = formula.parameter, np.uint64(first)
    f = raw[0]
    if kind == SQUARED:
        for i in range(np.uint64(last - first)):
            error = f[start + i] - y[start + i]
            out[i] = 0.5 * (error * error)
    elif kind == ABSOLUTE:
        for i in range(np.uint64(last - first)):
            out[i] = abs(y[start + i] - f[start + i])
    elif kind == QUANTILE:
        for i in range(np.uint64(last - first)):
            residual = y[start + i] - f[start + i]
            out[i] = max(parameter * residual, (parameter - 1.0) * residual)
    elif kind == HUBER:
        for i in range(np.uint64(last - first)):
            size = abs(f[start + i] - y[start + i])
            near = min(size, parameter)
            out[i] = near * (size - 0.5 * near)
    elif kind == POISSON:
        for i in range(np.uint64(last - first)):
            target, value = y[start + i], f[start + i]
            entropy = target * log(max(target, 1e-300))  # 0 where the target is 0
            out[i] = exp(value) - target * value + entropy - target
    elif kind == GAMMA:
        for i in range(np.uint64(last - first)):
            target, value = y[start + i], f[start + i]
            out[i] = value + target * exp(-value) - log(target) - 1.0
    elif kind == LOGISTIC:
        for i in range(np.uint64(last - first)):
            out[i] = softplus(f[start + i]) - y[start + i] * f[start + i]
    else:
        softmax_values(y, raw, start, np.uint64(last - first), out, spare)


@inner
def softmax_values(y, raw, start, n, out, spare):
    """Log-loss of rows that may belong to several classes."""
    largest, total = spare[0], spare[1]
    find_largest(raw, start, n, largest)
    for i in range(n):
        total[i] = 0.0
    for k in range(np.uint64(raw.shape[0])):
        f = raw[k]
        for i in range(n):
            total[i] += exp(f[start + i] - largest[i])
    for i in range(n):
        out[i] = log(total[i]) - (raw[np.uint64(y[start + i]), start + i] - largest[i])
