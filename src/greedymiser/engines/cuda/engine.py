"""Where the engine for one GPU is entered: what it needs is checked before anything is moved."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from greedymiser._core.threads import Threads
from greedymiser.engines.interface import Engine, PlacedRows, Sample

# The process that uses the device: its children by fork cannot.
_owner: int | None = None


class CudaUnavailableError(RuntimeError):
    """There is no GPU to use, or nothing to use it with."""


def open_engine(threads: Threads) -> Engine:
    """The engine on the current device; ``CUDA_VISIBLE_DEVICES`` says which that is."""
    check_available()
    from greedymiser.engines.cuda.rows import USUAL
    from greedymiser.engines.cuda.stream import load_beforehand

    load_beforehand(USUAL)
    return CudaEngine(threads)


def check_available() -> None:
    """Raise CudaUnavailableError if there is no GPU to use, and say what is missing."""
    global _owner
    if _owner is not None and _owner != os.getpid():
        raise CudaUnavailableError(
            "engine='cuda' cannot be used in a forked child of a process that has used it: CUDA "
            "does not survive a fork. Start children by 'spawn' or 'forkserver'"
        )
    if importlib.util.find_spec("numba.cuda") is None:
        raise CudaUnavailableError(
            "engine='cuda' needs numba-cuda: pip install 'greedymiser[cuda]'"
        )
    from greedymiser.engines.cuda.device import SIMULATED, cuda

    if not SIMULATED and not cuda.is_available():
        raise CudaUnavailableError(
            "engine='cuda' needs an NVIDIA GPU, its driver and numba-cuda (pip install "
            f"'greedymiser[cuda]'); here {_missing(cuda)}"
        )
    _owner = os.getpid()


def _missing(cuda: Any) -> str:
    """What stands in the way."""
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    try:
        error = cuda.cuda_error()
    except Exception as raised:  # whatever the driver says is what the user must know
        error = raised
    return f"no device is found{hidden}: {str(error).strip() or 'the driver knows of none'}"


class CudaEngine:
    """Rows in the memory of the current device; what it cannot do is done by the threads here."""

    def __init__(self, threads: Threads):
        self.threads = threads

    def place(self, sample: Sample) -> PlacedRows:
        from greedymiser.engines.cuda import rows

        free, total = context().get_memory_info()
        check_room(rows.bytes_needed(sample, total), free, total)
        return rows.CudaRows(sample, self.threads)


def context() -> Any:
    """What is known of the device."""
    from greedymiser.engines.cuda.device import cuda

    return cuda.current_context()


def check_room(needed: float, free: float, total: float) -> None:
    """Raise MemoryError if rows do not fit; before anything is moved."""
    if needed > free:
        gib = 2.0**30
        raise MemoryError(
            f"training on these rows needs {needed / gib:.2f} GiB of the GPU's memory, of which "
            f"{free / gib:.2f} GiB of {total / gib:.2f} are free; engine='cpu' trains the same "
            "model"
        )
