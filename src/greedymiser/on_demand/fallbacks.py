"""What answers an object where a source of the model fails: another model that can do without it.

Taking the columns of a source as missing is what a model has not learned to live with. Another
model of the same curve has never looked at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.costs.errors import ErrorCosts
from greedymiser.losses import Loss
from greedymiser.model.family import ModelFamily, as_family
from greedymiser.model.predictor import Predictor, as_predictor
from greedymiser.on_demand.request import Outcome, Plan, Request
from greedymiser.on_demand.sources import AcquisitionError, Source, Sources
from greedymiser.on_demand.walks import ObjectWalk, RowWalk, ServedModel, StageWalk, walk_of


def read_fallbacks(fallbacks: Any, model: ServedModel, sources: Sources) -> list[ServedModel]:
    """The models to fall back to, the best first.

    Of a curve, or a family that was saved, those that can do without something that the model
    needs; in a list, all must.
    """
    if fallbacks is None:
        return []
    if isinstance(fallbacks, str):
        if fallbacks != "states":
            raise ValueError(f"fallbacks must be models or 'states', got {fallbacks!r}")
        if not model.is_gated:
            raise ValueError(
                "fallbacks='states' is for gated cascades; other models have no states"
            )
        return []
    is_list = isinstance(fallbacks, list | tuple)
    models = []
    for i, predictor in enumerate(_predictors(fallbacks)):
        _check_alike(i, predictor, model.predictor)
        served = ServedModel(predictor, sources)
        if served.vital >= model.vital:
            if is_list and model.vital:
                whole = "the first state of the model" if model.is_gated else "the model"
                raise ValueError(
                    f"fallback {i} needs all that {whole} needs, and so it cannot answer where a "
                    "source of it fails"
                )
            continue
        models.append(served)
    return models


def _predictors(fallbacks: Any) -> Iterable[Predictor]:
    if isinstance(fallbacks, list | tuple):
        return [as_predictor(model) for model in fallbacks]
    if isinstance(fallbacks, ModelFamily) or hasattr(fallbacks, "pareto"):
        return reversed(as_family(fallbacks).models)  # the cheapest is first there
    raise TypeError(
        "fallbacks must be a curve, a family of models or a list of models, got "
        f"{type(fallbacks).__name__}"
    )


def _check_alike(i: int, fallback: Predictor, model: Predictor) -> None:
    """Raise if the answers of a fallback mean something else than those of the model."""
    if model.kind == "ranker":
        raise ValueError("a ranker has no fallbacks: scores of two models cannot be compared")
    if fallback.kind != model.kind:
        raise ValueError(f"fallback {i} is a {fallback.kind}, but the model is a {model.kind}")
    if model.kind == "classifier" and list(fallback.classes_) != list(model.classes_):
        raise ValueError(f"fallback {i} knows other classes than the model")
    # The model turns raw predictions of a fallback into answers, as if they were its own.
    if not _respond_alike(fallback.loss, model.loss):
        raise ValueError(
            f"fallback {i} has another link than the model: its loss "
            f"({type(fallback.loss).__name__}) and that of the model ({type(model.loss).__name__}) "
            "make other predictions of the same raw ones"
        )
    if not _cost_alike(fallback.error_costs, model.error_costs):
        raise ValueError(f"fallback {i} has other error_costs than the model")


def _respond_alike(one: Loss, other: Loss) -> bool:
    """Whether two losses make the same of raw predictions; types do not tell, files drop them."""
    if one.n_outputs != other.n_outputs:
        return False
    points = np.linspace(-3.0, 3.0, 13)
    raw = points if one.n_outputs == 1 else np.stack([points * k for k in range(one.n_outputs)])
    first, second = (np.asarray(loss.response(raw.copy())) for loss in (one, other))
    return first.shape == second.shape and np.allclose(first, second, equal_nan=True)


def _cost_alike(one: ErrorCosts | None, other: ErrorCosts | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one.matrix, other.matrix) and list(one.said) == list(other.said)


class Detour(NamedTuple):
    """How an object is answered for which a source of the model failed."""

    why: str
    # What answers it: a fallback, from 0; None where the model does, in the state that was reached.
    fallback: int | None
    walk: ObjectWalk
    # The walks that it was on before, that of the model first.
    before: tuple[ObjectWalk, ...] = ()
    # Whether it has ended in a state, and more of the walk is not to be had.
    is_over: bool = False


class FallbackWalk:
    """Objects on their way through a model; those for which a source fails go on with another.

    Parameters
    ----------
    main : StageWalk or RowWalk
    fallbacks : sequence of ServedModel
        The best first.
    refused : function
        Says why a source would not be called now, if so.
    slowest : function
        The longest time that a source took of late; None where nothing is known.
    is_strict : bool
        Whether an object that no fallback can answer is an error.
    """

    def __init__(
        self,
        main: ObjectWalk,
        fallbacks: Sequence[ServedModel],
        refused: Callable[[Source], Outcome | None],
        slowest: Callable[[Source], float | None],
        is_strict: bool,
    ):
        self.main = main
        self.in_step = main.in_step
        self._fallbacks = fallbacks
        self._refused = refused
        self._slowest = slowest
        self._is_strict = is_strict
        # By the number of the object.
        self.detours: dict[int, Detour] = {}
        # Objects that no fallback can answer: what is not to be had is missing.
        self._given_up: set[int] = set()
        if isinstance(main, RowWalk):
            main.may_miss = self._given_up

    def release(self) -> list[tuple[Request, Plan]]:
        # Of those that wait, some go another way meanwhile; they are not the main walk's any more.
        return self.main.release()

    def follow(self, request: Request) -> Plan:
        detour = self.detours.get(request.index)
        if detour is not None and detour.is_over:
            return ()
        walk = self._walk_of(request)
        if self._is_in_need(walk, request):
            return self._choose(walk, request)
        if detour is not None:
            return self._next(walk, request)
        plan = walk.follow(request)
        # A walk through trees stops at what is not to be had.
        if not plan and self._is_in_need(walk, request):
            return self._choose(walk, request)
        return plan

    def _walk_of(self, request: Request) -> ObjectWalk:
        detour = self.detours.get(request.index)
        return self.main if detour is None else detour.walk

    def _is_in_need(self, walk: ObjectWalk, request: Request) -> bool:
        """Whether something failed that the model needs of the object."""
        if not request.unavailable or request.index in self._given_up:
            return False
        served = walk.served
        sources = (served.maker[served.names[f]] for f in walk.features_asked(request))
        return not request.unavailable.isdisjoint(sources)

    def _failure(self, request: Request) -> AcquisitionError:
        """The failure of something that the model needs of the object."""
        supplies = self.main.served.supplies
        plans = (supplies[feature].plan for feature in self.main.features_asked(request))
        names = (source.name for plan in plans for source in plan)
        return request.failures[next(name for name in names if name in request.failures)]

    def _choose(self, walk: ObjectWalk, request: Request) -> Plan:
        """Let the best model go on that can; if none can, it is as if there were none."""
        failure = self._failure(request)
        earlier = self.detours.get(request.index)
        if isinstance(walk, StageWalk) and walk.has_states:
            walk.stop(request)
            stopped = earlier or Detour(str(failure), None, walk)
            self.detours[request.index] = stopped._replace(is_over=True)
            return ()
        for number, served in enumerate(self._fallbacks):
            if not served.vital.isdisjoint(request.unavailable):
                continue
            if any(self._refused(source) is not None for source in _lacked(served, request)):
                continue
            walk.leave(request)
            before = (walk,) if earlier is None else (*earlier.before, walk)
            chosen = walk_of(served, [request])
            why = str(failure) if earlier is None else earlier.why
            self.detours[request.index] = Detour(why, number, chosen, before)
            return self._next(chosen, request, is_new=True)
        if self._is_strict:
            raise failure from failure.__cause__
        self._given_up.add(request.index)
        return walk.follow(request) if earlier is None else self._next(walk, request)

    def time_to_fall_back(self, request: Request, source: Source) -> float | None:
        """Seconds that the best fallback would take if a source failed now; None: not known."""
        walk = self._walk_of(request)
        if isinstance(walk, StageWalk) and walk.has_states:
            return 0.0
        without = request.unavailable | {source.name}
        for served in self._fallbacks:
            if served.vital.isdisjoint(without):
                more = [
                    other for other in _lacked(served, request) if other.name not in request.open
                ]
                # One after the other, at worst; what is being fetched will be there.
                times = [self._slowest(other) for other in more]
                return None if None in times else sum(filter(None, times))
        return 0.0

    def _next(self, walk: ObjectWalk, request: Request, is_new: bool = False) -> Plan:
        """What an object needs next that is alone on its walk."""
        plan: Plan = () if is_new else walk.follow(request)
        while not plan:
            released = walk.release()
            if not released:
                return ()
            if self._is_in_need(walk, request):
                return self._choose(walk, request)
            plan = [source for source in released[0][1] if not request.knows(source)]
            if not plan:
                walk.follow(request)
        return plan

    def finish(self) -> NDArray[np.float64]:
        """Raw predictions of all objects."""
        raw = self.main.finish()
        for i, request in enumerate(self.main.requests):
            detour = self.detours.get(request.index)
            if detour is not None and detour.walk is not self.main:
                raw[:, i] = detour.walk.finish()[:, 0]
        return raw


def _lacked(served: ServedModel, request: Request) -> list[Source]:
    """What a model must still have of an object to answer it."""
    return [s for s in served.plan if s.name in served.vital and not request.knows(s)]
