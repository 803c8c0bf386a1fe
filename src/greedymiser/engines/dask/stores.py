"""Which worker has the codes of which rows, and how to get back what was lost."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.binning import BinnedMatrix
from greedymiser.engines.dask.session import Session, WorkersLostError
from greedymiser.engines.interface import EngineLostError

_NUMBERS = itertools.count()

# How often codes are made anew before one gives up.
ATTEMPTS = 20

# Chunks that rows of this machine are cut into, per worker: what one loses is shared out.
CHUNKS_PER_WORKER = 2


class Store(ABC):
    """Codes of rows, in chunks, on workers.

    Parameters
    ----------
    session : Session
    head : BinnedMatrix
        What is common to all rows.
    offsets : array of int
        First row of each chunk, and the end.
    """

    def __init__(self, session: Session, head: BinnedMatrix, offsets: NDArray[np.int64]):
        self.session = session
        self.head = replace(head, codes=head.codes[:, :0])
        self.offsets = offsets
        self.name = f"store-{next(_NUMBERS)}"
        weakref.finalize(self, session.discarded.append, self.name)
        # The worker that has each chunk; "" for nobody.
        self.where = [""] * (len(offsets) - 1)

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    def ensure(self) -> None:
        """See to it that every chunk is on a worker that answers."""
        for _ in range(ATTEMPTS):
            alive = self.session.open()
            self._note_held(alive)
            missing = [chunk for chunk, worker in enumerate(self.where) if not worker]
            try:
                if missing:
                    self._make(missing, alive)
                return
            except WorkersLostError:
                continue
        raise EngineLostError(f"workers were lost {ATTEMPTS} times while codes were made")

    def _note_held(self, alive: Sequence[str]) -> None:
        if not any(self.where):
            return
        try:
            held = self.session.ask("held", {worker: (self.name,) for worker in alive})
        except WorkersLostError:
            held = {}
        for chunk, worker in enumerate(self.where):
            if chunk not in held.get(worker, ()):
                self.where[chunk] = ""

    @abstractmethod
    def _make(self, chunks: Sequence[int], alive: Sequence[str]) -> None:
        """Put chunks onto workers, and note where they are."""


class SentStore(Store):
    """Codes that this machine has, and sends."""

    def __init__(self, session: Session, binned: BinnedMatrix):
        n_chunks = CHUNKS_PER_WORKER * session.n_workers()
        edges = np.linspace(0, binned.n_rows, n_chunks + 1).astype(np.int64)
        super().__init__(session, binned, np.unique(edges))
        self._codes = binned.codes

    def _make(self, chunks: Sequence[int], alive: Sequence[str]) -> None:
        load = Counter(dict.fromkeys(alive, 0))
        load.update(worker for worker in self.where if worker)
        letters: dict[str, dict[int, NDArray[np.uint64]]] = {}
        for chunk in chunks:
            worker = min(alive, key=load.__getitem__)
            load[worker] += 1
            first, last = self.offsets[chunk : chunk + 2]
            codes = np.ascontiguousarray(self._codes[:, first:last])
            letters.setdefault(worker, {})[chunk] = codes
        self.session.ask("keep", {worker: (self.name, sent) for worker, sent in letters.items()})
        for worker, sent in letters.items():
            for chunk in sent:
                self.where[chunk] = worker
