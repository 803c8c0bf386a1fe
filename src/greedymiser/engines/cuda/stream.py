"""Launches and copies for the device, in order: a CUDA stream.

Numba's own launch looks at every argument anew, which takes longer than most of these kernels run.
The same arrays come back thousands of times, so what was found of them is kept, and the driver is
called directly. Where that is not possible (in the simulator, or if Numba has changed inside),
Numba launches.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.engines.cuda.device import SIMULATED, cuda

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

    def __init__(self, kernel: Any, arrays: tuple[Any, ...], n_scalars: int, stream: Any):
        # One signature: the types of arguments never change.
        (compiled,) = kernel.overloads.values()
        values: list[int] = []
        for kind, array in zip(compiled.argument_types, arrays, strict=False):
            compiled._prepare_args(kind, array, stream, [], values)
        self.arrays = arrays  # so that nobody else gets their place in memory
        self.function = driver.CUfunction(int(compiled._codelibrary.get_cufunc().handle))
        # All parameters have 64 bits: a list of them, and a list of where they are.
        n = len(values)
        self.values = np.array([*map(int, values), *[0] * n_scalars], dtype=np.int64)
        self.ints, self.floats = self.values[n:], self.values[n:].view(np.float64)
        self.places = self.values.ctypes.data + 8 * np.arange(n + n_scalars, dtype=np.uint64)
        self.at = self.places.ctypes.data


class Stream:
    """Work is done in the order in which it is given; only ``wait`` waits for it."""

    def __init__(self) -> None:
        self.stream = cuda.stream()
        self._thread = threading.get_ident()
        self.n_waits = 0
        self._bound: dict[tuple[int, ...], _Bound | None] = {}
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
        if bound is None:
            kernel[grid, threads, self.stream](*arrays, *scalars)
            if driver is not None and key not in self._bound:
                self._bound[key] = self._bind(kernel, arrays, len(scalars))
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

    def _bind(self, kernel: Any, arrays: tuple[Any, ...], n_scalars: int) -> _Bound | None:
        try:
            return _Bound(kernel, arrays, n_scalars, self.stream)
        except (AttributeError, TypeError, ValueError):
            return None

    def forget(self) -> None:
        """Let go of all arrays: some of them are replaced."""
        self._bound.clear()

    def send(self, here: NDArray[Any], there: Any, n_bytes: int) -> None:
        """Copy the first bytes of an array to one on the device; it must not change before that."""
        if driver is None:
            n = n_bytes // here.itemsize
            there.ravel()[:n].copy_to_device(here.ravel()[:n], stream=self.stream)
            return
        self._enter()
        _raise_if_failed(
            driver.cuMemcpyHtoDAsync(device_address(there), here.ctypes.data, n_bytes, self._handle)
        )

    def fetch(self, there: Any, here: NDArray[Any], n_bytes: int) -> None:
        """Copy the first bytes of an array on the device to one here."""
        if driver is None:
            n = n_bytes // here.itemsize
            there.ravel()[:n].copy_to_host(here.ravel()[:n], stream=self.stream)
            return
        self._enter()
        _raise_if_failed(
            driver.cuMemcpyDtoHAsync(here.ctypes.data, device_address(there), n_bytes, self._handle)
        )

    def wait(self) -> None:
        """Wait for all work that was given."""
        self.n_waits += 1
        if driver is None:
            self.stream.synchronize()
            return
        self._enter()
        _raise_if_failed(driver.cuStreamSynchronize(self._handle))

    def _enter(self) -> None:
        """Make sure that this thread knows the device."""
        if self._thread != threading.get_ident():
            cuda.current_context()
            self._thread = threading.get_ident()


def device_address(array: Any) -> int:
    """Where an array on the device begins."""
    return int(array.__cuda_array_interface__["data"][0])


def _raise_if_failed(answer: Any) -> None:
    if int(answer[0]) != 0:
        raise DeviceError(f"the GPU failed with {answer[0]!s}; what was on it is lost")
