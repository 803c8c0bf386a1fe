"""Where the engine for the cores of this machine is entered."""

from __future__ import annotations

from greedymiser._core.threads import Threads
from greedymiser.engines.cpu.rows import CpuRows
from greedymiser.engines.cpu.state import Tuning
from greedymiser.engines.interface import Sample


class CpuEngine:
    """Histograms in Numba kernels, over blocks of eight features, on several threads."""

    def __init__(self, threads: Threads, tuning: Tuning | None = None):
        self.threads = threads
        self.tuning = tuning or Tuning()

    def place(self, sample: Sample) -> CpuRows:
        return CpuRows(sample, self.threads, self.tuning)
