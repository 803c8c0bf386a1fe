"""Launches and copies for the device, in order: a CUDA stream; and kernels for it.

Numba's own launch looks at every argument anew, which takes longer than most of these kernels run.
The same arrays come back thousands of times, so what is known of them is kept, and the driver is
called directly. What was not compiled beforehand, Numba compiles and launches.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.engines.cuda.device import SIMULATED, cuda
from greedymiser.engines.cuda.precompiled import ARCHIVE, ENTRY, key_of, ptx_of

if not SIMULATED:
    try:
        from cuda.bindings import driver
    except ImportError:
        driver = None
else:
    driver = None


class DeviceError(RuntimeError):
    """The GPU failed: what was on it is lost."""


class _Bound:
    """A kernel and the arrays that it is called with: what the driver wants to know of them."""

    def __init__(self, function: Any, arrays: tuple[Any, ...], n_scalars: int):
        values = [word for array in arrays for word in _described(array)]
        self.arrays = arrays  # so that nobody else gets their place in memory
        self.function = function
        # All parameters have 64 bits: a list of them, and a list of where they are.
        n = len(values)
        self.values = np.array([*values, *[0] * n_scalars], dtype=np.int64)
        self.ints, self.floats = self.values[n:], self.values[n:].view(np.float64)
        self.places = self.values.ctypes.data + 8 * np.arange(n + n_scalars, dtype=np.uint64)
        self.at = self.places.ctypes.data


def _described(array: Any) -> tuple[int, ...]:
    """An array as the archive's kernels take it: owners (none), sizes, address, shape, strides."""
    address = int(array.__cuda_array_interface__["data"][0])
    return 0, 0, array.size, array.dtype.itemsize, address, *array.shape, *array.strides


# The driver's functions by device and key, None where there is none.
_functions: dict[tuple[int, str], Future[Any]] = {}
_functions_lock = threading.Lock()


def load_beforehand(kernels: Sequence[Any]) -> None:
    """Load kernels that will be launched, in a thread: meanwhile data is prepared."""
    if driver is not None:
        device = cuda.get_current_device().id
        # No daemon: the driver must not be at work when the process ends.
        threading.Thread(target=_load_all, args=(device, kernels)).start()


def _load_all(device: int, kernels: Sequence[Any]) -> None:
    # What fails here is tried again when a kernel is launched, and told there.
    with contextlib.suppress(Exception):
        cuda.select_device(device)
        for kernel in kernels:
            for key in ARCHIVE.digests:
                if key.partition("-")[0] == kernel.py_func.__name__:
                    _function(device, key, kernel)


def _function(device: int, key: str, kernel: Any) -> Any:
    """The driver's function for a kernel that was compiled beforehand; None if there is none."""
    with _functions_lock:
        future = _functions.get((device, key))
        is_first = future is None
        if future is None:
            future = _functions[device, key] = Future()
    if is_first:
        try:
            future.set_result(_load(ptx_of(kernel, key)))
        except BaseException as error:
            del _functions[device, key]
            future.set_exception(error)
    return future.result()


def _load(ptx: bytes | None) -> Any:
    if ptx is None:
        return None
    text = np.frombuffer(ptx + b"\0", dtype=np.uint8)
    error, module = driver.cuModuleLoadData(text.ctypes.data)
    # A driver or a GPU may be too old for this PTX, say: Numba may know better.
    if int(error) != 0:
        return None
    error, function = driver.cuModuleGetFunction(module, ENTRY.encode())
    return function if int(error) == 0 else None


class Stream:
    """Work is done in the order in which it is given; only ``wait`` waits for it."""

    def __init__(self) -> None:
        self.stream = cuda.stream()
        self._thread = threading.get_ident()
        self.n_waits = 0
        self._bound: dict[tuple[int, ...], _Bound | None] = {}
        # Arrays by their id, and where they begin.
        self._addresses: dict[int, tuple[Any, int]] = {}
        self._handle = None if driver is None else driver.CUstream(int(self.stream.handle))

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int],
        threads: int,
        arrays: tuple[Any, ...],
        *scalars: int | float,
    ) -> None:
        """Launch a kernel, whose parameters are arrays first, and then numbers."""
        key = (id(kernel), *map(id, arrays))
        bound = self._bound.get(key)
        if bound is None and key not in self._bound and driver is not None:
            name = key_of(kernel.py_func.__name__, arrays, scalars)
            function = _function(cuda.get_current_device().id, name, kernel)
            bound = None if function is None else _Bound(function, arrays, len(scalars))
            self._bound[key] = bound
        if bound is None:
            kernel[grid, threads, self.stream](*arrays, *scalars)
            return
        self._enter()
        for i, number in enumerate(scalars):
            if type(number) is float:
                bound.floats[i] = number
            else:
                bound.ints[i] = number
        _raise_if_failed(
            driver.cuLaunchKernel(
                bound.function, *grid, 1, threads, 1, 1, 0, self._handle, bound.at, 0
            )
        )

    def forget(self) -> None:
        """Let go of all arrays: some of them are replaced."""
        self._bound.clear()
        self._addresses.clear()

    def send(self, here: NDArray[Any], there: Any, n_bytes: int) -> None:
        """Copy the first bytes of an array to one on the device; it must not change before that."""
        if driver is None:
            n = n_bytes // here.itemsize
            there.ravel()[:n].copy_to_device(here.ravel()[:n], stream=self.stream)
            return
        self._enter()
        _raise_if_failed(
            driver.cuMemcpyHtoDAsync(
                self._address_of(there), here.ctypes.data, n_bytes, self._handle
            )
        )

    def fetch(self, there: Any, here: NDArray[Any], n_bytes: int) -> None:
        """Copy the first bytes of an array on the device to one here."""
        if driver is None:
            n = n_bytes // here.itemsize
            there.ravel()[:n].copy_to_host(here.ravel()[:n], stream=self.stream)
            return
        self._enter()
        _raise_if_failed(
            driver.cuMemcpyDtoHAsync(
                here.ctypes.data, self._address_of(there), n_bytes, self._handle
            )
        )

    def wait(self) -> None:
        """Wait for all work that was given."""
        self.n_waits += 1
        if driver is None:
            self.stream.synchronize()
            return
        self._enter()
        _raise_if_failed(driver.cuStreamSynchronize(self._handle))

    def _address_of(self, array: Any) -> int:
        known = self._addresses.get(id(array))
        if known is None:
            at = int(array.__cuda_array_interface__["data"][0])
            self._addresses[id(array)] = known = array, at
        return known[1]

    def _enter(self) -> None:
        """Make sure that this thread knows the device."""
        if self._thread != threading.get_ident():
            cuda.current_context()
            self._thread = threading.get_ident()


def _raise_if_failed(answer: Any) -> None:
    if int(answer[0]) != 0:
        raise DeviceError(f"the GPU failed with {answer[0]!s}; what was on it is lost")
