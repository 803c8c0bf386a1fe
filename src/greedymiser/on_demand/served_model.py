"""How a model and the sources fit together: what is called for which stage and feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from greedymiser.model.predictor import Predictor
from greedymiser.on_demand.request import Placement
from greedymiser.on_demand.sources import Source, Sources


class StagePlan(NamedTuple):
    """What an object needs to get through a stage, beside what earlier ones have fetched."""

    plan: tuple[Source, ...]
    placements: tuple[Placement, ...]


class Supply(NamedTuple):
    """Where a feature comes from."""

    # All that must be called for it, what others need first.
    plan: tuple[Source, ...]
    # The one of them that makes it, and where all that it makes goes.
    source: Source
    placement: Placement


class ServedModel:
    """A finished model, and the sources of what it looks at."""

    def __init__(self, predictor: Predictor, sources: Sources):
        self.predictor = predictor
        # The column of each feature that the model looks at, and the source of each column.
        self.names = _names_of_features(predictor, sources)
        self.maker = {name: sources.maker(name).name for name in self.names.values()}
        self.stages = _stage_plans(predictor, sources, self.names)
        self.supplies = _supplies(predictor, sources, self.names)
        # All that may be called, in a possible order.
        self.plan = tuple(source for stage in self.stages for source in stage.plan)
        self.source_names = frozenset(source.name for source in self.plan)
        labels = {self.names[f] for f in predictor.categories if f in self.names}
        self.labelled = frozenset(labels.union(sources.categorical_names))


def _names_of_features(predictor: Predictor, sources: Sources) -> dict[int, str]:
    """Column of each feature that the model looks at; raise if one has no source."""
    names = predictor.names
    columns = sources.column_names
    if names is None:
        if len(columns) != predictor.n_features:
            raise ValueError(
                f"the model has {predictor.n_features} features without names, but the sources "
                f"make {len(columns)} columns"
            )
        names = columns
    used = {feature: names[feature] for feature in predictor.features}
    known, categorical = set(columns), set(sources.categorical_names)
    missing = [name for name in used.values() if name not in known]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"no source makes column {missing[0]!r}{more}, which the model looks at")
    for feature, name in used.items():
        if name in categorical and feature not in predictor.categories:
            raise ValueError(
                f"column {name!r} holds labels by its source {sources.maker(name).name!r}, but "
                "numbers by the model"
            )
    return used


def _stage_plans(
    predictor: Predictor, sources: Sources, names: Mapping[int, str]
) -> list[StagePlan]:
    stages: list[StagePlan] = []
    planned: set[str] = set()
    for k in range(len(predictor.stages)):
        asked = [names[feature] for feature in predictor.stage_features(k)]
        new = [source for source in sources.plan(asked) if source.name not in planned]
        planned.update(source.name for source in new)
        placements = [
            Placement.of(source, names, predictor.categories) for source in new if source.columns
        ]
        stages.append(StagePlan(tuple(new), tuple(placements)))
    return stages


def _supplies(
    predictor: Predictor, sources: Sources, names: Mapping[int, str]
) -> dict[int, Supply]:
    """Where each feature comes from that the model looks at."""
    makers = {sources.maker(name).name: sources.maker(name) for name in names.values()}
    made = {
        name: Supply(
            tuple(sources.plan(source.columns[:1])),
            source,
            Placement.of(source, names, predictor.categories),
        )
        for name, source in makers.items()
    }
    return {feature: made[sources.maker(name).name] for feature, name in names.items()}
