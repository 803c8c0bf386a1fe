"""Kernels that only kernels call, called by tests."""

from functools import cache

from numba import njit


@cache
def compiled(kernel):
    """A function that Python can call, and that does nothing but call a kernel."""

    @njit
    def call(*args):
        return kernel(*args)

    return call
