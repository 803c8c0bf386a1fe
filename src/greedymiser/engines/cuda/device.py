"""The compiler for the GPU, and how a function of the CPU gets a twin there that rounds alike.

In Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) every kernel is plain Python, a thread of the GPU
is one of Python, and blocks must be small. Nothing here uses what the simulator does not know: no
shuffles, no dynamic shared memory.
"""

from __future__ import annotations

import ast
import inspect
import math
import struct
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from greedymiser._core import intrinsics

SIMULATED = bool(numba.config.ENABLE_CUDASIM)


def _import_cuda() -> Any:
    # numba-cuda 0.30 asks NumPy for a name that NumPy 2.5 no longer has, and uses what it warns of.
    name = "row_stack"
    lent = not hasattr(np, name)
    if lent:
        setattr(np, name, np.vstack)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from numba import cuda

            if not SIMULATED:
                from numba.cuda import cudaimpl  # noqa: F401, where the name is asked for
    finally:
        if lent:
            delattr(np, name)
    return cuda


cuda = _import_cuda()

# The levels of a small tree are small; there is nobody to warn.
numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
if not SIMULATED and hasattr(cuda, "core"):
    cuda.core.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0


def kernel(function: Callable[..., Any]) -> Any:
    """A kernel; compiled when it is first launched, unless it was beforehand (``precompiled``)."""
    return cuda.jit(function)


def device(function: Callable[..., Any]) -> Any:
    """A function that kernels call."""
    return cuda.jit(function, device=True)


def room_for(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """An array on the device that nobody has written to yet."""
    try:
        return cuda.device_array(shape, dtype=dtype)
    except Exception as error:  # Numba and the driver have had several types for it
        if "OUT_OF_MEMORY" not in str(error).upper():
            raise
        size = math.prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize
        raise MemoryError(
            f"the GPU has no room for {size / 2**20:.1f} MiB more; others may be using it too"
        ) from error


def sent(array: NDArray[Any]) -> Any:
    """A copy of an array on the device."""
    array = np.ascontiguousarray(array)
    there = room_for(array.shape, array.dtype)
    if array.size > 0:
        there.copy_to_device(array)
    return there


if SIMULATED:

    @device
    def mul(a, b):
        """The rounded product of two numbers."""
        return np.float64(a) * np.float64(b)

    @device
    def bits_of(number):
        """The 64 bits of a float, as an integer."""
        return np.int64(struct.unpack("<q", struct.pack("<d", number))[0])

    @device
    def from_bits(bits):
        """The float that has these 64 bits."""
        return np.float64(struct.unpack("<d", struct.pack("<q", bits))[0])

else:
    from numba.cuda import libdevice

    bits_of, from_bits = intrinsics.bits_of, intrinsics.from_bits

    @device
    def mul(a, b):
        """The rounded product of two numbers, which is never fused with the addition after it."""
        return libdevice.dmul_rn(float(a), float(b))


class _Rounded(ast.NodeTransformer):
    """Replaces ``a * b`` by ``mul(a, b)``."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return node
        name = ast.Name("mul", ast.Load())
        return ast.copy_location(ast.Call(name, [node.left, node.right], []), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if isinstance(node.op, ast.Mult):
            raise NotImplementedError("write a = a * b, which has a twin")
        return self.generic_visit(node)


def twin(function: Any, **names: Any) -> Any:
    """The function of a kernel of the CPU on the device: the same text, and so the same bits.

    The compiler for the GPU makes one fused operation of ``a * b + c``, which rounds once instead
    of twice. In a twin every product is rounded. It is for functions whose products are of floats.

    Parameters
    ----------
    function : kernel
        Made by ``compiling.njit`` or ``inner``.
    **names
        What is called inside, by its name there: twins themselves.
    """
    plain = getattr(function, "py_func", function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(plain)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    tree = ast.fix_missing_locations(_Rounded().visit(tree))
    # Where it stands in its file: what asks for the source of the twin gets this function.
    ast.increment_lineno(tree, plain.__code__.co_firstlineno - 1)
    known = {"mul": mul, "bits_of": bits_of, "from_bits": from_bits}
    scope = {**plain.__globals__, **known, **names}
    exec(compile(tree, inspect.getfile(plain), "exec"), scope)
    return device(scope[plain.__name__])
