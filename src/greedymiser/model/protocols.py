"""What rows are asked, in which order, under which conditions, and at what cost.

A model whose rows pay for themselves (``charge="row"``) is a protocol: first this test for all, and
only where it is abnormal, that one. Here it is counted over rows, for people to read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.text_tables import html_table
from greedymiser.data.tables import Categories, Table
from greedymiser.model.conditions import Conditions
from greedymiser.model.row_costs import Accounts, Notes, mean_cost, note_questions
from greedymiser.model.trees import Stage, row_blocks

# Questions of a row that are followed one by one; later ones are counted by resource only.
MOST_QUESTIONS = 24


class Reason(NamedTuple):
    """One of the ways in which rows come to a question.

    Examples
    --------
    >>> Reason(("TSH > 6",), n_rows=204).conditions
    ('TSH > 6',)
    """

    # The splits on the way, in words; none where the question is the first of a tree.
    conditions: tuple[str, ...]
    # Rows that met the question on this way.
    n_rows: int


@dataclass(frozen=True)
class Step:
    """A question, and the rows that are asked it after all the questions above.

    Examples
    --------
    >>> last = Step(("FTI",), 10.0, ("FTI",), (Reason(("TSH > 6",), 204),), 204, (), 204, 0)
    >>> first = Step(("draw", "TSH"), 22.5, ("TSH",), (Reason((), 2000),), 2000, (last,), 1796, 0)
    >>> [(depth, step.name) for depth, step in first.each()]
    [(0, 'TSH with draw'), (1, 'FTI')]
    """

    # What is paid for with it, and the price of that.
    resources: tuple[str, ...]
    price: float
    # Features that ask for it, and the ways to it: those of most rows first.
    features: tuple[str, ...]
    reasons: tuple[Reason, ...]
    n_rows: int
    # What is asked next, of most rows first.
    steps: tuple[Step, ...]
    # Rows that are asked nothing more, and rows that are asked something too rare to be shown.
    n_done: int
    n_rare: int
    # Rows that are asked more after so many questions that they are not followed any further.
    n_far: int = 0

    @property
    def name(self) -> str:
        """What is asked for: the features, if they are few, and what else is paid with them."""
        if len(self.features) > 2:
            return ", ".join(self.resources)
        # A feature without a name is told as "feature 3", and its own resource is called "3".
        own = {feature.removeprefix("feature ") for feature in self.features}
        rest = [resource for resource in self.resources if resource not in own]
        features = " or ".join(self.features)
        return f"{features} with {', '.join(rest)}" if rest else features

    def each(self, depth: int = 0) -> Iterator[tuple[int, Step]]:
        """Yield the step and all below it, with their depths."""
        yield depth, self
        for step in self.steps:
            yield from step.each(depth + 1)


class Line(NamedTuple):
    """What is asked of rows about one resource.

    Examples
    --------
    >>> line = Line("FTI", ("FTI",), share=0.1, order=2.0, price=10.0, mean_cost=1.0)
    >>> line.share * line.price == line.mean_cost
    True
    """

    resource: str
    # The features of the model that need it.
    features: tuple[str, ...]
    # Share of rows that are asked, and how many questions come before it on average, plus one;
    # free questions count as well.
    share: float
    order: float
    # Its price, and what it adds to the mean cost of a row.
    price: float
    mean_cost: float


@dataclass(frozen=True)
class Protocol:
    """Which resources a model asks of which rows, in which order, at what mean cost.

    ``print(protocol)`` tells it in words, ``table`` has a line per resource, ``plot()`` draws it.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor
    >>> X = np.random.default_rng(0).integers(0, 10, (1000, 2))
    >>> y = np.where(X[:, 0] == 9, X[:, 1], 0.0)
    >>> model = MiserRegressor(costs=[1.0, 5.0], charge="row", max_depth=2, max_iter=3)
    >>> print(model.fit(X, y).protocol(X))
    1000 rows at a mean cost of 1.54, at most 6
      first, of all: feature 0 (1); 89.2% end here
        then, of the 10.8% with feature 0 > 8.5: feature 1 (5)
    """

    n_rows: int
    # What a prediction costs on average and at most, over these rows, trees included.
    mean_cost: float
    max_cost: float
    # The trees' part of the mean.
    tree_cost: float
    # The beginning: a step without a question, of all rows.
    start: Step
    # By resource, those asked first come first.
    lines: tuple[Line, ...]
    # The smallest share of rows that is shown.
    min_share: float
    # Whether questions that cost nothing are shown.
    shows_free: bool = True

    @property
    def table(self) -> Any:
        """A line per resource that the model may ask for, as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.lines, columns=list(Line._fields))

    def without_free(self) -> Protocol:
        """The protocol without requests for free features.

        Requests that follow them stay, with all their conditions, below the request before. Rows
        that then have the same next request are counted together.

        Examples
        --------
        >>> import numpy as np
        >>> from greedymiser import MiserRegressor
        >>> X = np.random.default_rng(0).integers(0, 10, (1000, 2))
        >>> y = np.where(X[:, 0] == 9, X[:, 1], 0.0)
        >>> model = MiserRegressor(costs=[0.0, 5.0], charge="row", max_depth=2, max_iter=3)
        >>> print(model.fit(X, y).protocol(X).without_free())
        1000 rows at a mean cost of 0.54, at most 5
          first, of the 10.8% with feature 0 > 8.5: feature 1 (5)
          89.2% are asked for nothing that costs
        """
        free = frozenset(line.resource for line in self.lines if line.price == 0)
        return replace(
            self,
            start=_without(free, self.start),
            lines=tuple(line for line in self.lines if line.resource not in free),
            shows_free=False,
        )

    def share(self, n_rows: int) -> str:
        """A number of rows as a share of all, in words."""
        return f"{100 * n_rows / self.n_rows:.3g}%"

    def __str__(self) -> str:
        trees = f" (trees: {self.tree_cost:.4g})" if self.tree_cost else ""
        costs = f"a mean cost of {self.mean_cost:.4g}, at most {self.max_cost:.4g}{trees}"
        lines = [f"{self.n_rows} rows at {costs}"]
        for depth, step in self.start.each():
            if depth > 0:
                lines.append(f"{'  ' * depth}{self._step_text(step, depth)}")
        done = self.start.n_done
        if done:
            nothing = "nothing" if self.shows_free else "nothing that costs"
            lines.append(f"  {self.share(done)} are asked for {nothing}")
        hidden = sum(step.n_rare for _, step in self.start.each())
        if hidden:
            lines.append(
                f"  left out: rarer questions, each to less than {100 * self.min_share:g}% of the "
                f"rows, to {self.share(hidden)} of them in all"
            )
        if far := sum(step.n_far for _, step in self.start.each()):
            lines.append(
                f"  left out: all questions after the first {MOST_QUESTIONS}, to {self.share(far)} "
                "of the rows"
            )
        return "\n".join(lines)

    def _step_text(self, step: Step, depth: int) -> str:
        whom = "all" if step.n_rows == self.n_rows else f"the {self.share(step.n_rows)}"
        if conditions := conditions_text(step):
            whom += f" with {conditions}"
        ends = f"; {self.share(step.n_done)} end here" if step.steps and step.n_done else ""
        first = "first" if depth == 1 else "then"
        return f"{first}, of {whom}: {step.name} ({step.price:.4g}){ends}"

    def plot(self, ax: Any = None) -> Any:
        """Draw it as a tree of questions, with shares and costs.

        See ``plotting.plot_protocol``; ``ProtocolDisplay`` shows the same in a notebook.
        """
        from greedymiser.plotting import plot_protocol

        return plot_protocol(self, ax)

    def __repr__(self) -> str:
        return (
            f"<Protocol of {self.n_rows} rows: {len(self.lines)} resources, "
            f"mean cost {self.mean_cost:.4g}>"
        )

    def _repr_html_(self) -> str:
        head, *notes = (line for line in str(self).splitlines() if ", of " not in line)
        rows = [
            [
                "\N{EM SPACE}" * (2 * depth - 2) + step.name,
                f"{step.price:.4g}",
                self.share(step.n_rows),
                self.share(step.n_done),
                conditions_text(step),
            ]
            for depth, step in self.start.each()
            if depth > 0
        ]
        heads = ["asked for", "price", "of the rows", "end here", "with"]
        caption = ";".join([f"Protocol: {head}", *notes])
        return html_table(caption, heads, rows, left={0, 4})


def conditions_text(step: Step, most: int = 3) -> str:
    """The main way to a question in words, and how many others there are."""
    if not step.reasons or not step.reasons[0].conditions:
        return ""
    main, others = step.reasons[0], len(step.reasons) - 1
    conditions = " and ".join(main.conditions[:most])
    if len(main.conditions) > most:
        conditions += f" and {len(main.conditions) - most} more"
    if not others:
        return conditions
    share = f"{100 * main.n_rows / step.n_rows:.3g}% of them"
    ways = "1 other way" if others == 1 else f"{others} other ways"
    return f"{conditions} ({share}; {ways})"


def _without(free: frozenset[str], step: Step) -> Step:
    """A step in which no question below it is about free resources alone."""
    below = [_without(free, child) for child in step.steps]
    passed = [child for child in below if not child.resources]
    steps = [child for child in below if child.resources]
    steps += [later for child in passed for later in child.steps]
    return replace(
        step,
        resources=tuple(resource for resource in step.resources if resource not in free),
        steps=_counted_together(steps),
        n_done=step.n_done + sum(child.n_done for child in passed),
        n_rare=step.n_rare + sum(child.n_rare for child in passed),
        n_far=step.n_far + sum(child.n_far for child in passed),
    )


def _counted_together(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Steps of which no two ask for the same, those of most rows first."""
    alike: dict[tuple[str, ...], list[Step]] = {}
    for step in steps:
        alike.setdefault(step.resources, []).append(step)
    merged = (same[0] if len(same) == 1 else _as_one(same) for same in alike.values())
    return tuple(sorted(merged, key=lambda step: -step.n_rows))


def _as_one(same: Sequence[Step]) -> Step:
    """Several steps that ask different rows for the same."""
    features: Counter[str] = Counter()
    ways: Counter[tuple[str, ...]] = Counter()
    for step in same:
        features.update(dict.fromkeys(step.features, step.n_rows))
        ways.update(dict(step.reasons))
    return replace(
        same[0],
        features=tuple(name for name, _ in features.most_common()),
        reasons=tuple(Reason(*way) for way in ways.most_common()),
        n_rows=sum(step.n_rows for step in same),
        steps=_counted_together([later for step in same for later in step.steps]),
        n_done=sum(step.n_done for step in same),
        n_rare=sum(step.n_rare for step in same),
        n_far=sum(step.n_far for step in same),
    )


# -- counting -------------------------------------------------------------------------------------


@dataclass
class _CountedStep:
    """A step while rows are counted."""

    owned: frozenset[int]
    resources: tuple[int, ...]
    n_rows: int = 0
    n_rare: int = 0
    n_far: int = 0
    features: Counter[int] = field(default_factory=Counter)
    places: Counter[int] = field(default_factory=Counter)
    children: list[_CountedStep] = field(default_factory=list)


class Count:
    """Counts who is asked what on the way through the stages of a model.

    Parameters
    ----------
    accounts : Accounts
    stages : sequence of stages
    names : names of the features, or None
    categories : dict from feature to labels
    table : Table
        The rows.
    left : array of int
        The stage after which each row left.
    min_share : float
        Questions to a smaller share of the rows are not followed.
    """

    def __init__(
        self,
        accounts: Accounts,
        stages: Sequence[Stage],
        names: Sequence[str] | None,
        categories: Categories,
        table: Table,
        left: NDArray[np.intp],
        min_share: float,
    ):
        self._accounts, self._stages, self._costs = accounts, stages, accounts.meter.costs
        self._n, self._min_share, self._names = table.n_rows, min_share, names
        meter = accounts.meter
        # Nodes of different ensembles are told apart by an offset.
        ensembles = {id(stage.ensemble): stage.ensemble for stage in stages}
        sizes = [len(ensemble.nodes) for ensemble in ensembles.values()]
        self._offsets = dict(zip(ensembles, np.cumsum([0, *sizes]).tolist(), strict=False))
        self._feature = np.concatenate([e.nodes["feature"] for e in ensembles.values()])
        longest = min(len(meter.resources), MOST_QUESTIONS)
        self._notes = Notes(
            place=np.full((self._n, longest), -1, dtype=np.int64),
            number=np.zeros(self._n, dtype=np.int64),
            owned=meter.nothing(self._n),
            times=np.zeros(len(meter.resources), dtype=np.int64),
            order=np.zeros(len(meter.resources), dtype=np.int64),
        )
        self._left = left
        # Features that some of the rows lack.
        self._missing: set[int] = set()
        self._walk(table)
        self._conditions = [
            (self._offsets[key], Conditions(ensemble, self._name_of, categories, self._missing))
            for key, ensemble in ensembles.items()
        ]

    def _name_of(self, feature: int) -> str:
        return f"feature {feature}" if self._names is None else self._names[feature]

    def _walk(self, table: Table) -> None:
        notes, features = self._notes, list(self._accounts.meter.features)
        for start, stop in row_blocks(self._n, self._stages[0].ensemble.n_features):
            rows = table.rows(start, stop, features)
            self._missing.update(f for f in features if np.isnan(rows[:, f]).any())
            for k, stage in enumerate(self._stages):
                going = start + np.flatnonzero(self._left[start:stop] >= k)
                walk, offset = self._accounts.walk(k), self._offsets[id(stage.ensemble)]
                mine = Notes(
                    place=notes.place[going],
                    number=notes.number[going],
                    owned=notes.owned[going],
                    times=notes.times,
                    order=notes.order,
                )
                n_outputs = stage.ensemble.n_outputs
                trees = stage.first * n_outputs, stage.last * n_outputs
                steps = stage.ensemble.serving.steps
                note_questions(rows[going - start], steps, walk.asking, *trees, offset, mine)
                notes.place[going], notes.number[going] = mine.place, mine.number
                notes.owned[going] = mine.owned

    def protocol(self) -> Protocol:
        """What was counted."""
        bills = self._accounts.bills(self._notes.owned, self._left)
        trees = np.array([stage.n_trees for stage in self._stages])[self._left]
        return Protocol(
            n_rows=self._n,
            mean_cost=mean_cost(bills),
            max_cost=float(bills.max()),
            tree_cost=mean_cost(self._costs.tree_cost * trees),
            start=self._step(self._grown()),
            lines=tuple(self._lines()),
            min_share=self._min_share,
        )

    def _lines(self) -> Iterator[Line]:
        notes, costs = self._notes, self._costs
        resources = self._accounts.meter.resources
        means = notes.order / np.maximum(notes.times, 1)
        for j in np.lexsort((-notes.times, means, notes.times == 0)).tolist():
            resource, share = resources[j], notes.times[j] / self._n
            users = [f for f in self._accounts.meter.features if resource in costs.needs[f]]
            price = float(costs.resource_costs[resource])
            yield Line(
                resource=costs.resource_names[resource],
                features=tuple(self._name_of(f) for f in users),
                share=float(share),
                order=float(means[j]) if notes.times[j] else float("nan"),
                price=price,
                mean_cost=float(price * share),
            )

    def _grown(self) -> _CountedStep:
        """The tree of questions, level by level."""
        root = _CountedStep(frozenset(), (), n_rows=self._n)
        level, at = [root], np.zeros(self._n, dtype=np.int64)
        for place in self._notes.place.T:
            here = np.flatnonzero((at >= 0) & (place >= 0))
            if not len(here):
                break
            level, at = self._next_level(level, at, here, place[here])
        # Only who is still followed after the last level can have been asked more than was noted.
        is_far = (at >= 0) & (self._notes.number > self._notes.place.shape[1])
        for i, n in enumerate(np.bincount(at[is_far], minlength=len(level)).tolist()):
            level[i].n_far = n
        return root

    def _next_level(
        self,
        level: Sequence[_CountedStep],
        at: NDArray[np.int64],
        here: NDArray[np.intp],
        place: NDArray[np.int64],
    ) -> tuple[list[_CountedStep], NDArray[np.int64]]:
        """Divide the rows of each node by what they are asked next."""
        keys = np.stack([at[here], place], axis=1)
        pairs, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        children: dict[tuple[int, tuple[int, ...]], _CountedStep] = {}
        chosen = []
        for (parent, node), n in zip(pairs.tolist(), counts.tolist(), strict=True):
            feature, owned = int(self._feature[node]), level[parent].owned
            new = tuple(r for r in self._costs.needs[feature] if r not in owned)
            child = children.setdefault((parent, new), _CountedStep(owned | set(new), new))
            child.n_rows += n
            child.features[feature] += n
            child.places[node] += n
            chosen.append((parent, new))
        kept: list[_CountedStep] = []
        number = {}
        for (parent, new), child in children.items():
            if child.n_rows >= self._min_share * self._n:
                number[parent, new] = len(kept)
                kept.append(child)
                level[parent].children.append(child)
            else:
                level[parent].n_rare += child.n_rows
        following = np.full(self._n, -1, dtype=np.int64)
        following[here] = np.array([number.get(key, -1) for key in chosen])[which.ravel()]
        return kept, following

    def _step(self, node: _CountedStep) -> Step:
        children = sorted(node.children, key=lambda child: -child.n_rows)
        costs = self._costs
        asked = sum(child.n_rows for child in children) + node.n_rare + node.n_far
        return Step(
            resources=tuple(costs.resource_names[r] for r in node.resources),
            price=costs.bill(list(node.resources), 0),
            features=tuple(self._name_of(f) for f, _ in node.features.most_common()),
            reasons=self._reasons(node),
            n_rows=node.n_rows,
            steps=tuple(self._step(child) for child in children),
            n_done=node.n_rows - asked,
            n_rare=node.n_rare,
            n_far=node.n_far,
        )

    def _reasons(self, node: _CountedStep) -> tuple[Reason, ...]:
        ways: Counter[tuple[str, ...]] = Counter()
        for place, n in node.places.items():
            offset, conditions = [entry for entry in self._conditions if entry[0] <= place][-1]
            ways[conditions.of(place - offset)] += n
        return tuple(Reason(*way) for way in ways.most_common())
