"""Sources of other libraries: fitted scikit-learn transformers, feature views of a Feast store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


# -- Feast ----------------------------------------------------------------------------------------

# Types of features, by Feast's names, whose values are numbers or labels.
NUMBERS, LABELS = {"Int32", "Int64", "Float32", "Float64", "Bool"}, {"String"}


def sources_of_store(
    store: Any, features: Any, sources: Sources, full_feature_names: bool = False
) -> None:
    """Register a source for each feature view that some of these features belong to."""
    derived = {view.name for view in store.list_on_demand_feature_views()}
    for name, wanted in _features_by_view(store, features).items():
        if name in derived:
            raise ValueError(
                f"{name!r} is an on-demand feature view, which computes from others: register the "
                "function itself, so that what it needs is read once"
            )
        view = store.get_feature_view(name)
        types = {field.name: str(field.dtype) for field in view.features}
        unknown = [feature for feature in wanted if feature not in types]
        if unknown:
            raise ValueError(f"feature view {name!r} has no feature {unknown[0]!r}")
        for feature in wanted:
            if types[feature] not in NUMBERS | LABELS:
                raise ValueError(
                    f"feature '{name}:{feature}' has type {types[feature]}, which is neither a "
                    "number nor text"
                )
        column = {f: f"{name}__{f}" if full_feature_names else f for f in wanted}
        read = ViewReader(store, name, column, tuple(view.join_keys), full_feature_names)
        sources.add(
            read,
            column.values(),
            categorical=[column[f] for f in wanted if types[f] in LABELS],
            name=name,
            needs=[sources.raw],
            batch=True,
        )


def _features_by_view(store: Any, features: Any) -> dict[str, list[str]]:
    """Names of features by the view that they belong to, as they were asked for."""
    if isinstance(features, str):
        features = store.get_feature_service(features)
    if hasattr(features, "feature_view_projections"):
        projections = features.feature_view_projections
        for projection in projections:
            if projection.name_alias or projection.join_key_map:
                raise ValueError(
                    f"the feature service renames feature view {projection.name!r} or its keys, "
                    "which is not read: name the features, as in 'view:feature'"
                )
        return {each.name: [field.name for field in each.features] for each in projections}
    if not isinstance(features, Iterable):
        raise TypeError(
            f"features must be names such as 'view:feature', or a feature service, got {features!r}"
        )
    by_view: dict[str, list[str]] = {}
    for reference in features:
        view, colon, feature = str(reference).partition(":")
        if not (view and colon and feature):
            raise ValueError(f"a feature is named 'view:feature', got {reference!r}")
        by_view.setdefault(view, []).append(feature)
    return by_view


class ViewReader:
    """Reads the features of one view for many entities at once."""

    def __init__(
        self,
        store: Any,
        view: str,
        column: Mapping[str, str],
        join_keys: Sequence[str],
        full_feature_names: bool,
    ):
        self._store = store
        self._references = [f"{view}:{feature}" for feature in column]
        self._columns = list(column.values())
        self._join_keys = join_keys
        self._full_feature_names = full_feature_names

    def __call__(self, entities: Sequence[Mapping[str, Any]]) -> list[Any]:
        answer = self._store.get_online_features(
            features=self._references,
            entity_rows=[self._keys_of(entity) for entity in entities],
            full_feature_names=self._full_feature_names,
        ).to_dict()
        columns = [answer[name] for name in self._columns]
        return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))

    def _keys_of(self, entity: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of an entity that this view is joined by; Feast refuses some others."""
        missing = [key for key in self._join_keys if key not in entity]
        if missing:
            raise ValueError(f"the object has no {missing[0]!r}, by which Feast finds it")
        return {key: entity[key] for key in self._join_keys}
