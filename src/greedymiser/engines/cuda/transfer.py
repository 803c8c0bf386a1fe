"""Small tables that go to the device and come back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from greedymiser.engines.cuda.device import cuda, room_for
from greedymiser.engines.cuda.stream import Stream


class TransferBuffer:
    """A table of 64-bit words on both sides; here in pinned memory, there also seen as floats."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self._sent_after = -1
        self._make_room(4096)

    def room(self, n_words: int) -> NDArray[np.int64]:
        """The host's side, with room for so many words, to be written to."""
        if self._sent_after == self._stream.n_waits:
            self._stream.wait()  # it may still be on its way
        if n_words > len(self.here):
            self._make_room(2 * n_words)
        return self.here

    def send(self, n_words: int) -> None:
        """Copy the first words to the device."""
        self._stream.send(self.here, self.there, 8 * n_words)
        self._sent_after = self._stream.n_waits

    def fetch(self, n_words: int) -> NDArray[np.int64]:
        """Wait for the device, and return the first words of its side."""
        self._stream.fetch(self.there, self.here, 8 * n_words)
        self._stream.wait()
        return self.here[:n_words]

    def _make_room(self, n_words: int) -> None:
        self._stream.wait()
        self._stream.forget()
        self.here = cuda.pinned_array(n_words, dtype=np.int64)
        self.here[:] = 0
        self.there = room_for(n_words, dtype=np.int64)
        self.floats = self.there.view(np.float64)
