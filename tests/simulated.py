"""Makes Numba's simulator of a GPU fit for use: quick, without a race, as strict as a driver.

Imported for that.
"""

import sys
import threading

from numba.cuda.simulator.kernel import FakeCUDAKernel
from numba.cuda.simulator.kernelapi import FakeCUDAShared

from greedymiser.engines.cuda import precompiled
from greedymiser.engines.cuda.stream import Stream

# Simulated threads wait for each other at every turn, and each time for Python.
sys.setswitchinterval(1e-6)


class OneAtATime(dict):
    """Whoever does not find a key holds the others up until it has written it.

    The simulator asks whether a shared array is there and makes it if not; two threads that ask at
    the same time would get one each.
    """

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def get(self, key):
        self.lock.acquire()
        found = super().get(key)
        if found is not None:
            self.lock.release()
        return found

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.lock.release()


_begin = FakeCUDAShared.__init__


def _begin_safely(self, *args):
    _begin(self, *args)
    self._allocations = OneAtATime()


FakeCUDAShared.__init__ = _begin_safely


_launch = FakeCUDAKernel.__call__


def _launch_blocks(self, *args):
    # No driver launches a grid without blocks.
    assert self._device or min(self.grid_dim) > 0
    return _launch(self, *args)


FakeCUDAKernel.__call__ = _launch_blocks

_launch_on_stream = Stream.launch


def _launch_known(self, kernel, grid, threads, arrays, *scalars):
    # On a GPU, Numba would have to compile it.
    key = precompiled.key_of(kernel.fn.__name__, arrays, scalars)
    assert key in precompiled.ARCHIVE.digests
    _launch_on_stream(self, kernel, grid, threads, arrays, *scalars)


Stream.launch = _launch_known
