"""Sources from a Feast feature store: a feature view is read once for all of its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from greedymiser.on_demand.sources import Sources

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
