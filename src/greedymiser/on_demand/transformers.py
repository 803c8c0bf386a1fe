"""Fitted scikit-learn transformers as sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from greedymiser.data.tables import is_frame

if TYPE_CHECKING:
    from greedymiser.on_demand.sources import Sources


@dataclass(frozen=True)
class Row:
    """Makes of an object what scikit-learn takes for a single sample."""

    # Columns that the transformer was fitted on, where it knows their names.
    names: tuple[str, ...] | None = None

    def __call__(self, raw: Any) -> Any:
        if is_frame(raw) or sparse.issparse(raw):
            return raw
        if isinstance(raw, np.ndarray):
            return raw if raw.ndim == 2 else raw.reshape(1, -1)
        if isinstance(raw, Mapping) or hasattr(raw, "to_frame"):  # a pandas Series has to_frame
            return self._named(raw if isinstance(raw, Mapping) else raw.to_dict())
        if isinstance(raw, Sequence) and not isinstance(raw, str | bytes):
            # NumPy would make strings of numbers that are next to a string.
            are_numbers = all(isinstance(value, Real) for value in raw)
            return np.array([raw]) if are_numbers else np.fromiter(raw, object).reshape(1, -1)
        return [raw]

    def _named(self, values: Mapping[Any, Any]) -> Any:
        import pandas as pd

        if self.names is not None:  # in their order; what is missing is the transformer's business
            values = {name: values[name] for name in self.names if name in values}
        return pd.DataFrame([values])


@dataclass(frozen=True)
class FittedStep:
    """Transforms what comes before it, one row at a time."""

    transformer: Any

    def __call__(self, row: Any) -> Any:
        return self.transformer.transform(row)


@dataclass(frozen=True)
class NamedTransformer:
    """Columns that one named transformer makes of a row."""

    # None where the row is passed through.
    transformer: Any
    # Columns of the row that it looks at; None for all of them.
    columns: Any = None
    weight: float | None = None

    def __call__(self, row: Any) -> NDArray[Any]:
        seen = row if self.columns is None else _safe_indexing(row, self.columns, axis=1)
        made = seen if self.transformer is None else self.transformer.transform(seen)
        made = made.toarray() if sparse.issparse(made) else np.asarray(made)
        if len(made) != 1 or made.ndim != 2:
            raise ValueError(f"the transformer made an array of shape {made.shape} of one row")
        return made[0] if self.weight is None else made[0] * self.weight


def sources_of(transformer: Any, sources: Sources) -> None:
    """Register what a fitted transformer consists of."""
    check_is_fitted(transformer)
    if not hasattr(transformer, "transform"):
        raise TypeError(
            f"{type(transformer).__name__} does not transform; of a pipeline that ends in a model "
            "pass all steps but the last: pipeline[:-1]"
        )
    before = _free_name("row", transformer)
    seen = getattr(transformer, "feature_names_in_", None)
    sources.add(Row(None if seen is None else tuple(seen)), name=before, needs=[sources.raw])
    names, parent = None, type(transformer).__name__.lower()
    if isinstance(transformer, Pipeline):
        *steps, (last_name, last) = _real_steps(transformer)
        for name, step in steps:
            name = _qualified(name, parent, sources)
            sources.add(FittedStep(step), name=name, needs=[before])
            before = name
        names, transformer, parent = list(transformer.get_feature_names_out()), last, last_name
    for name, part, columns in _parts(transformer, parent, names):
        if columns:
            sources.add(part, columns, name=_qualified(name, parent, sources), needs=[before])


def _real_steps(pipeline: Pipeline) -> list[tuple[str, Any]]:
    steps = [(name, step) for name, step in pipeline.steps if step not in (None, "passthrough")]
    if not steps:
        raise ValueError("the pipeline has no steps")
    return steps


def _parts(
    transformer: Any, name: str, names: list[str] | None
) -> Iterator[tuple[str, NamedTransformer, list[str]]]:
    """Named parts of a transformer, and the columns that each makes.

    ``names`` are those of all columns where a pipeline knows them better.
    """
    if names is None:
        names = [str(column) for column in transformer.get_feature_names_out()]
    if isinstance(transformer, ColumnTransformer):
        weights = transformer.transformer_weights or {}
        for key, part, columns in transformer.transformers_:
            if not isinstance(part, str) or part == "passthrough":
                made = names[transformer.output_indices_[key]]
                yield key, NamedTransformer(_or_none(part), columns, weights.get(key)), made
    elif isinstance(transformer, FeatureUnion):
        weights = transformer.transformer_weights or {}
        first = 0
        for key, part in transformer.transformer_list:
            if not isinstance(part, str) or part == "passthrough":
                n = _width(part, transformer)
                yield (
                    key,
                    NamedTransformer(_or_none(part), None, weights.get(key)),
                    names[first : first + n],
                )
                first += n
    else:
        yield name, NamedTransformer(transformer), names


def _or_none(part: Any) -> Any:
    return None if isinstance(part, str) else part


def _width(part: Any, union: FeatureUnion) -> int:
    """Number of columns that a part of a union makes."""
    if isinstance(part, str):  # passed through
        return int(union.n_features_in_)
    inputs = getattr(union, "feature_names_in_", None)
    return len(part.get_feature_names_out(inputs))


def _free_name(wanted: str, transformer: Any) -> str:
    """A name that no part of the transformer has."""
    taken = set(transformer.get_params(deep=True)) if hasattr(transformer, "get_params") else set()
    while wanted in taken:
        wanted += "_"
    return wanted


def _qualified(name: str, parent: str, sources: Sources) -> str:
    """The name of a part, with that of the whole before it if it is taken."""
    if name not in sources and name != sources.raw:
        return name
    name = f"{parent}__{name}"
    while name in sources:
        name += "_"
    return name
