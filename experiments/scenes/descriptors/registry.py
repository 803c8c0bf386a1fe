"""The steps of work on an image, as sources."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from experiments.scenes.descriptors.grids import Floats
from greedymiser.on_demand import Source, Sources


class Descriptors:
    """Sources of what can be seen in an image file.

    Every step is an intermediate of ``sources``, also the descriptors, which are vectors and no
    columns: the miser's columns are made of distances between them.

    Parameters
    ----------
    codebooks : mapping, optional
        Words of the steps that need some. Those without a codebook cannot be computed.

    Examples
    --------
    >>> pieces = Descriptors()
    >>> pieces.add("size", ("file",), len)
    >>> pieces.add("twice", ("size",), lambda size: 2 * size, kind="vector")
    >>> pieces.compute(b"abc", ["twice"])["twice"]
    6
    """

    def __init__(self, codebooks: Mapping[str, Floats] | None = None):
        self.sources = Sources(raw="file")
        # How images are compared by each descriptor: "histogram" or "vector".
        self.kinds: dict[str, str] = {}
        # Words to learn from the local features of the only need of a step.
        self.n_words: dict[str, int] = {}
        self._codebooks = codebooks or {}

    def add(
        self, name: str, needs: Sequence[str], compute: Callable[..., Any], *, kind: str = "",
        n_words: int = 0,
    ) -> None:  # fmt: skip
        """Add a step; with a kind it is a descriptor, and with words it has a codebook."""
        if kind:
            self.kinds[name] = kind
        if n_words:
            self.n_words[name] = n_words
            words = self._codebooks.get(name)
            compute = partial(_fail, name) if words is None else partial(compute, words=words)
        self.sources.add(compute, name=name, needs=needs)

    @property
    def names(self) -> list[str]:
        """Names of all descriptors."""
        return list(self.kinds)

    def required(self, names: Iterable[str]) -> list[str]:
        """These steps and all that they stand on, each once, in an order to compute them in."""
        return [source.name for source in self.sources.upstream(names)]

    def compute(self, file: bytes, names: Iterable[str]) -> dict[str, Any]:
        """Values of these steps and all that they stand on, for one image file."""
        return {source.name: value for source, value, _ in self._visit(file, names)}

    def time(self, file: bytes, names: Iterable[str]) -> dict[str, float]:
        """Milliseconds of CPU that each step takes by itself, its needs being there already."""
        return {source.name: 1e3 * spent for source, _, spent in self._visit(file, names)}

    def _visit(self, file: bytes, names: Iterable[str]) -> Iterator[tuple[Source, Any, float]]:
        """Each step with its value and the CPU seconds of this thread that it took."""
        values: dict[str, Any] = {self.sources.raw: file}
        for source in self.sources.upstream(names):
            arguments = [values[need] for need in source.needs]
            start = time.thread_time()
            value = source.call(arguments)
            spent = time.thread_time() - start
            values[source.name] = value
            yield source, value, spent


def _fail(name: str, *_: Any) -> Any:
    raise ValueError(f"{name!r} needs a codebook; learn_codebooks makes it")
