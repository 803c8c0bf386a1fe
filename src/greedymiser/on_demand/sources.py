"""Where features come from: functions that turn an object into columns.

A *source* makes one or more columns of an object, an *intermediate* makes something that several
sources share, such as decoded pixels. Both say what they need by the names of their parameters. To
the cost model both are resources.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, TypeVar, overload

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from greedymiser.data.tables import is_frame

Function = TypeVar("Function", bound=Callable[..., Any])

Values = NDArray[np.float64] | list[Any]
"""Values of a source's columns: numbers, or a list where some of them may be labels."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


class AcquisitionError(RuntimeError):
    """A source failed on an object; what it raised is the ``__cause__``.

    Attributes
    ----------
    source : str
        Name of the source or intermediate.
    index : int
        Position of the object among those that were given.
    reason : str
    """

    def __init__(self, source: str, index: int, reason: str):
        super().__init__(source, index, reason)
        self.source = source
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"source {self.source!r} failed on object {self.index}: {self.reason}"


class SourceTimeoutError(AcquisitionError, TimeoutError):
    """A source did not answer in time."""


class AcquisitionWarning(UserWarning):
    """Sources failed, and their columns count as missing."""


@dataclass(frozen=True)
class Source:
    """A registered function.

    Examples
    --------
    >>> sources = Sources(raw="text")
    >>> @sources.columns("n_letters")
    ... def letters(text):
    ...     return len(text)
    >>> source = sources.maker("n_letters")
    >>> source.name, source.needs, source.columns
    ('letters', ('text',), ('n_letters',))
    """

    name: str
    function: Callable[..., Any]
    # What it is called with: names of other sources or intermediates, or of the object.
    needs: tuple[str, ...]
    # The last of them, so many, are passed by keyword.
    n_keywords: int
    # Names of the columns that it makes; none for an intermediate.
    columns: tuple[str, ...]
    # Those of the columns that hold labels instead of numbers.
    categorical: frozenset[str]
    is_coroutine: bool
    # Whether it takes many objects at once: lists of what it needs, for a result each.
    is_batch: bool = False

    @property
    def kind(self) -> str:
        return "source" if self.columns else "intermediate"

    def call(self, arguments: Sequence[Any]) -> Any:
        """Call the function for one object, with what it needs in the order of ``needs``."""
        if not self.is_batch:
            return self.apply(arguments)
        called = self.apply([[argument] for argument in arguments])
        return self._only(called) if self.is_coroutine else split_batch(called, 1)[0]

    async def _only(self, called: Any) -> Any:
        return split_batch(await called, 1)[0]

    def apply(self, arguments: Sequence[Any]) -> Any:
        """Call the function as it is: with lists, if it takes many objects at once."""
        if not self.n_keywords:
            return self.function(*arguments)
        n = len(arguments) - self.n_keywords
        by_keyword = dict(zip(self.needs[n:], arguments[n:], strict=True))
        return self.function(*arguments[:n], **by_keyword)


class Sources:
    """A registry of functions that turn objects into columns.

    A parameter named ``raw`` is the object itself, any other names an intermediate (or another
    source) whose result is passed on. A parameter with a default is left alone. Functions may be
    coroutines (``async def``). The decorators return the function as it is.

    A source returns a number, or one value per column: a sequence in the order of its columns, or
    a mapping. None or NaN is a missing value: alone for a source of one column, each in its place
    for one of several. NumPy arrays that are passed on are read-only; nothing else must be changed
    either, since others may get the same object. Iterators are refused for the same reason.

    Parameters
    ----------
    raw : str
        Name of the parameter that is the object itself.

    Examples
    --------
    >>> sources = Sources(raw="text")
    >>> @sources.intermediate
    ... def words(text):
    ...     return text.split()
    >>> @sources.columns("n_words", "longest")
    ... def lengths(words):
    ...     return len(words), max(map(len, words))
    >>> sources.column_names
    ['n_words', 'longest']
    >>> lengths(["it", "is", "callable"])
    (3, 8)
    """

    def __init__(self, raw: str = "raw"):
        self.raw = raw
        self._sources: dict[str, Source] = {}
        self._maker: dict[str, str] = {}

    # -- registering ----------------------------------------------------------------------------

    @overload
    def intermediate(self, function: Function, /) -> Function: ...

    @overload
    def intermediate(
        self, *, name: str | None = None, needs: Sequence[str] | None = None, batch: bool = False
    ) -> Callable[[Function], Function]: ...

    def intermediate(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        needs: Sequence[str] | None = None,
        batch: bool = False,
    ) -> Any:
        """Register a function whose result others need; with or without parentheses."""

        def register(function: Function) -> Function:
            self.add(function, name=name, needs=needs, batch=batch)
            return function

        return register if function is None else register(function)

    @overload
    def columns(self, function: Function, /) -> Function: ...

    @overload
    def columns(
        self,
        *columns: str,
        categorical: bool | Sequence[str] = False,
        name: str | None = None,
        needs: Sequence[str] | None = None,
        batch: bool = False,
    ) -> Callable[[Function], Function]: ...

    def columns(
        self,
        *columns: Any,
        categorical: bool | Sequence[str] = False,
        name: str | None = None,
        needs: Sequence[str] | None = None,
        batch: bool = False,
    ) -> Any:
        """Register a function that makes these columns.

        Without parentheses, it makes one column that is named like the function.

        Parameters
        ----------
        *columns : str
        categorical : bool or sequence of str
            Columns that hold labels; True for all of them.
        name, needs, batch : optional
            As for ``add``.
        """

        def register(function: Function) -> Function:
            self.add(
                function, columns, categorical=categorical, name=name, needs=needs, batch=batch
            )
            return function

        if len(columns) == 1 and callable(columns[0]):
            function, columns = columns[0], (_name_of(columns[0], name),)
            return register(function)
        if not columns:
            raise ValueError("a source makes at least one column: name them, as in columns('age')")
        return register

    def add(
        self,
        function: Callable[..., Any],
        columns: Iterable[str] = (),
        *,
        categorical: bool | Sequence[str] = False,
        name: str | None = None,
        needs: Sequence[str] | None = None,
        batch: bool = False,
    ) -> None:
        """Register a function without a decorator.

        Parameters
        ----------
        function : callable or coroutine function
        columns : iterable of str
            Columns that it makes; none for an intermediate.
        categorical : bool or sequence of str
            Columns that hold labels; True for all of them.
        name : str, optional
            The function's own name by default.
        needs : sequence of str, optional
            What to call it with, by position. By default its parameters say it.
        batch : bool
            It takes many objects at once: a list of what it needs for each parameter. It returns a
            sequence, an array or a data frame, with an entry or a row per object.
        """
        if isinstance(columns, str):
            raise TypeError(f"columns must be a sequence of names, got the string {columns!r}")
        name = _name_of(function, name)
        if name == self.raw:
            raise ValueError(f"{name!r} is the object itself, and cannot name a source")
        if name in self._sources:
            raise ValueError(f"there are two sources or intermediates named {name!r}")
        made = tuple(columns)
        _check_columns(self._maker, name, made)
        wanted, n_keywords = _needs_of(name, function, needs)
        source = Source(
            name=name,
            function=function,
            needs=wanted,
            n_keywords=n_keywords,
            columns=made,
            categorical=_labelled(name, made, categorical),
            is_coroutine=_is_coroutine_function(function),
            is_batch=bool(batch),
        )
        self._sources[name] = source
        self._maker.update(dict.fromkeys(made, name))

    @classmethod
    def from_transformer(cls, transformer: Any) -> Sources:
        """Make a source of every named part of a fitted scikit-learn transformer.

        The transformers of a ColumnTransformer or FeatureUnion become sources, the steps of a
        Pipeline before it intermediates; a part whose name is taken is called ``union__part``. The
        columns are those of ``get_feature_names_out``. An object is a row: a mapping (other keys
        are ignored), a list, a data frame or array of one row, or whatever a single sample is to
        the transformer (a string to a vectorizer). Objects are transformed one at a time wherever
        they are used, so that training and serving see the same bits.
        """
        from greedymiser.on_demand.adapters import sources_of

        sources = cls()
        sources_of(transformer, sources)
        return sources

    @classmethod
    def from_feast(cls, store: Any, features: Any, *, full_feature_names: bool = False) -> Sources:
        """Make a source of every feature view of a Feast store that some features belong to.

        A view is read once, whatever number of its features is asked for, so it is one resource;
        views that a model does not need are not read. An object is a mapping of the entity's join
        keys, such as ``{"driver_id": 1001}``.

        Parameters
        ----------
        store : feast.FeatureStore
        features : list of str, or a feature service or its name
            Features as Feast names them, ``"view:feature"``. They become columns; text holds
            labels.
        full_feature_names : bool
            Columns are called ``view__feature``, for features of the same name.
        """
        from greedymiser.on_demand.adapters import sources_of_store

        sources = cls(raw="entity")
        sources_of_store(store, features, sources, full_feature_names)
        return sources

    # -- looking up -----------------------------------------------------------------------------

    @property
    def column_names(self) -> list[str]:
        """All columns, in the order in which they were registered."""
        return list(self._maker)

    @property
    def categorical_names(self) -> list[str]:
        """The columns that hold labels."""
        return [column for column in self._maker if column in self.maker(column).categorical]

    def maker(self, column: str) -> Source:
        """The source that makes a column."""
        if column not in self._maker:
            raise ValueError(f"no source makes column {column!r}")
        return self._sources[self._maker[column]]

    def plan(self, columns: Iterable[str] | None = None) -> list[Source]:
        """All that must be called for these columns (None: for all), what others need first."""
        wanted = self._maker if columns is None else columns
        return self.upstream(self.maker(column).name for column in wanted)

    def upstream(self, names: Iterable[str]) -> list[Source]:
        """These sources and intermediates and all that they stand on, what others need first.

        Examples
        --------
        >>> sources = Sources(raw="text")
        >>> @sources.intermediate
        ... def words(text): ...
        >>> @sources.intermediate
        ... def pairs(words): ...
        >>> [source.name for source in sources.upstream(["pairs"])]
        ['words', 'pairs']
        """
        wanted = set(names)
        unknown = sorted(wanted.difference(self._sources))
        if unknown:
            raise ValueError(f"there is no source or intermediate named {unknown[0]!r}")
        order: dict[str, Source] = {}
        # In the order of registration, so that the order of ``names`` does not matter.
        for name in self._sources:
            if name in wanted:
                self._visit(name, order, [])
        return list(order.values())

    def _visit(self, name: str, order: dict[str, Source], path: list[str]) -> None:
        """Put a source into ``order`` after everything that it needs."""
        if name in order:
            return
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise ValueError(f"sources need each other in a circle: {circle}")
        source = self._sources[name]
        for need in source.needs:
            if need == self.raw:
                continue
            if need not in self._sources:
                raise ValueError(
                    f"{source.kind} {name!r} needs {need!r}, which is neither an intermediate nor "
                    f"the object itself ({self.raw!r})"
                )
            self._visit(need, order, [*path, name])
        order[name] = source

    def needs(self) -> dict[str, list[str]]:
        """Resources that each column needs, as ``CostModel.from_resources`` takes them.

        Examples
        --------
        >>> from greedymiser import CostModel
        >>> sources = Sources()
        >>> @sources.columns("credit_score")
        ... def credit_bureau(raw): ...
        >>> costs = CostModel.from_resources({"credit_bureau": 1.20}, sources.needs())
        >>> costs.total(["credit_score"])
        1.2
        """
        upstream = {
            name: [source.name for source in self.plan(self._sources[name].columns)]
            for name in dict.fromkeys(self._maker.values())
        }
        return {column: list(upstream[name]) for column, name in self._maker.items()}

    def check(self) -> None:
        """Raise unless there are columns, all that is needed is there, and nothing goes in circles.

        Intermediates that no column needs are checked too.
        """
        if not self._maker:
            raise ValueError("these sources make no columns; register some with sources.columns")
        order: dict[str, Source] = {}
        for name in self._sources:
            self._visit(name, order, [])

    def __iter__(self) -> Iterator[Source]:
        return iter(list(self._sources.values()))

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, name: str) -> Source:
        return self._sources[name]

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __repr__(self) -> str:
        n_sources = sum(bool(source.columns) for source in self)
        return (
            f"<Sources of {len(self._maker)} columns: {n_sources} sources, "
            f"{len(self) - n_sources} intermediates>"
        )


def _name_of(function: Any, name: str | None) -> str:
    if not callable(function):
        raise TypeError(f"a source must be a function, got {_short.repr(function)}")
    known_as = name if name is not None else getattr(function, "__name__", None)
    if known_as is None or known_as == "<lambda>":
        raise ValueError(f"{_short.repr(function)} has no name of its own; pass name=")
    if not isinstance(known_as, str) or not known_as:
        raise TypeError(f"name must be a string, got {known_as!r}")
    return known_as


def _needs_of(
    name: str, function: Callable[..., Any], needs: Sequence[str] | None
) -> tuple[tuple[str, ...], int]:
    """What to call a function with, and how many of them (the last ones) by keyword."""
    if needs is not None:
        if isinstance(needs, str):
            raise TypeError(f"needs of {name!r} must be a sequence of names, got {needs!r}")
        return tuple(needs), 0
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise ValueError(f"the parameters of {name!r} cannot be read; pass needs=") from None
    required = [p for p in parameters if p.default is p.empty]
    by_position = [
        p.name for p in required if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    by_keyword = [p.name for p in required if p.kind is p.KEYWORD_ONLY]
    return (*by_position, *by_keyword), len(by_keyword)


def _check_columns(maker: Mapping[str, str], name: str, columns: tuple[Any, ...]) -> None:
    """Raise if columns have no names, or names that are taken; ``maker`` knows those."""
    for column in columns:
        if not isinstance(column, str) or not column:
            raise TypeError(f"source {name!r} makes a column that is no name: {column!r}")
        if column in maker:
            raise ValueError(
                f"column {column!r} is made by two sources, {maker[column]!r} and {name!r}"
            )
        if columns.count(column) > 1:
            raise ValueError(f"source {name!r} names column {column!r} twice")


def _labelled(
    name: str, columns: tuple[str, ...], categorical: bool | Sequence[str]
) -> frozenset[str]:
    if isinstance(categorical, bool):
        return frozenset(columns if categorical else ())
    if isinstance(categorical, str):
        raise TypeError(f"categorical must be a bool or a sequence of names, got {categorical!r}")
    unknown = [column for column in categorical if column not in columns]
    if unknown:
        raise ValueError(f"categorical has {unknown[0]!r}, which source {name!r} does not make")
    return frozenset(categorical)


def _is_coroutine_function(function: Any) -> bool:
    method = getattr(type(function), "__call__", None)  # noqa: B004 - it may be async
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


# -- what a source returns ----------------------------------------------------------------------


def split_batch(returned: Any, n: int) -> Sequence[Any]:
    """What a source of many objects returned, object by object; raise if it is not n results."""
    if is_frame(returned):
        frame = nw.from_native(returned, eager_only=True)
        returned = frame.rows(named=True)
    if isinstance(returned, str | bytes | bytearray | Mapping) or not hasattr(returned, "__len__"):
        raise TypeError(
            f"a source with batch=True must return a sequence with a result per object, got "
            f"{_short.repr(returned)}"
        )
    if len(returned) != n:
        raise ValueError(f"it returned {len(returned)} results for {n} objects")
    return returned


def read_values(source: Source, returned: Any, labelled: frozenset[str]) -> Values:
    """Values of a source's columns, in their order; raise if they are not what was promised.

    Columns in ``labelled`` may hold labels. Where there are any, or only one number, the values
    come as a list.
    """
    columns = source.columns
    if type(returned) in (float, int) and len(columns) == 1 and columns[0] not in labelled:
        return [float(returned)]  # as most of them are, and an array of one takes long to make
    values = _in_order(source, returned)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        numbers = values.astype(np.float64)
        return numbers if labelled.isdisjoint(source.columns) else values.tolist()
    read = [
        _label(column, value) if column in labelled else _number(column, value)
        for column, value in zip(source.columns, values, strict=True)
    ]
    return read if not labelled.isdisjoint(source.columns) else np.array(read, dtype=np.float64)


def _in_order(source: Source, returned: Any) -> Sequence[Any] | NDArray[Any]:
    """What was returned, as one value per column."""
    n = len(source.columns)
    hint = _hint_for_frames(returned)
    if hasattr(returned, "to_dict"):  # a pandas Series: its index says what is what
        items = hasattr(returned, "items")
        returned = dict(returned.items()) if items else returned.to_dict()
    if isinstance(returned, Mapping):
        missing = [column for column in source.columns if column not in returned]
        if missing:
            raise ValueError(f"it returned a mapping without column {missing[0]!r}{hint}")
        if len(returned) > n:
            extra = next(key for key in returned if key not in source.columns)
            raise ValueError(f"it returned a mapping with {extra!r}, which is not its column")
        return [returned[column] for column in source.columns]
    if isinstance(returned, np.ndarray) and returned.ndim > 0:
        if returned.shape != (n,):
            raise ValueError(f"it returned an array of shape {returned.shape} for {n} column(s)")
        return returned
    if isinstance(returned, Sequence) and not isinstance(returned, str | bytes | bytearray):
        if len(returned) != n:
            raise ValueError(f"it returned {len(returned)} values for {n} column(s)")
        return returned
    if returned is None and n > 1:  # from a function that forgot to return, more likely than not
        raise TypeError(f"it returned None for {n} columns; one None is needed for each of them")
    if n > 1:
        raise TypeError(
            f"it returned a single value of type {type(returned).__name__} for {n} columns"
        )
    return [returned]


def _number(column: str, value: Any) -> float:
    if isinstance(value, Real | np.bool_ | Decimal):
        return float(value)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf":
        return float(value)
    if _is_missing(value):
        return np.nan
    hint = _hint_for_frames(value)
    raise TypeError(f"column {column!r} must be a number, got {_short.repr(value)}{hint}")


def _label(column: str, value: Any) -> Any:
    """A label as it is, without NumPy's wrapping; None where it is missing."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, str | Real):
        return None if value != value else value
    if _is_missing(value):
        return None
    hint = _hint_for_frames(value)
    raise TypeError(
        f"column {column!r} must be a label or a number, got {_short.repr(value)}{hint}"
    )


def _hint_for_frames(value: Any) -> str:
    """What to do if a value is of pandas and has one row, as an object of a frame has."""
    if not (hasattr(value, "to_dict") and hasattr(value, "iloc") and len(value) == 1):
        return ""
    return (
        "; each object of a data frame is a frame of one row: for sources that take dicts, give "
        'frame.to_dict("records")'
    )


def _is_missing(value: Any) -> bool:
    """None, or pandas' NA and NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")
