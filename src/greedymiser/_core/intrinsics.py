"""Machine instructions that Numba has no function for.

Fetch this cache line early, add two words at once, find the first bit, read a float as bits, agree
with another thread on a word, hand another thread a function.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_ANYTHING = ir.IntType(8).as_pointer()

# A function that threads share: its arguments, who calls, and the items first:last to work on;
# returns whether it failed.
_SHARED = ir.FunctionType(ir.IntType(1), [_ANYTHING, _WORD, _WORD, _WORD])


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]``, which will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = _element_address(context, builder, signature.args[0], arguments[0], arguments[1])
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # A read, to be kept in all levels of the cache, of data.
        builder.call(function, [builder.bitcast(address, pointer), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def add_pair_to_eight(typing_context: Any, hist: Any, code: Any, words: Any, row: Any) -> Any:
    """Add ``words[row, 0:2]`` to the bin of each of the eight lanes whose bytes make up ``code``.

    The same as, for k in 0..7, with b = 2 * (256 * k + byte k of code):

        hist[b] += words[row, 0]
        hist[b + 1] += words[row, 1]

    but with one 128-bit load, addition and store per lane, where Numba would make two of each.
    """
    return types.void(hist, code, words, row), _adding_pairs(8)


@intrinsic
def add_pair_to_four(typing_context: Any, hist: Any, code: Any, words: Any, row: Any) -> Any:
    """Do as ``add_pair_to_eight`` does for the first four lanes."""
    return types.void(hist, code, words, row), _adding_pairs(4)


def _adding_pairs(n_lanes: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pair = ir.VectorType(_WORD, 2)
        hist_, code_, words_, row_ = arguments

        def pair_at(kind: Any, array: Any, index: Any) -> Any:
            address = _element_address(context, builder, kind, array, index)
            return builder.bitcast(address, pair.as_pointer())

        first = builder.shl(row_, _WORD(1))
        value = builder.load(pair_at(signature.args[2], words_, first), align=8)
        for lane in range(n_lanes):
            byte = builder.and_(builder.lshr(code_, _WORD(8 * lane)), _WORD(255))
            at = builder.shl(builder.add(byte, _WORD(256 * lane)), _WORD(1))
            pointer = pair_at(signature.args[0], hist_, at)
            total = builder.add(builder.load(pointer, align=8), value)
            builder.store(total, pointer, align=8)
        return context.get_dummy_value()

    return generate


@intrinsic
def first_bit(typing_context: Any, word: Any) -> Any:
    """Position of the lowest bit that is set; the word must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), generate


@intrinsic
def bits_of(typing_context: Any, number: Any) -> Any:
    """The 64 bits of a float, as an integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _WORD)

    return types.int64(types.float64), generate


@intrinsic
def from_bits(typing_context: Any, bits: Any) -> Any:
    """The float that has these 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def load_word(typing_context: Any, array: Any, index: Any) -> Any:
    """Read ``array[index]`` as other threads left it, and nothing that comes later before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _element_address(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(address, "seq_cst", 8)

    return types.int64(array, types.int64), generate


@intrinsic
def store_word(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write ``array[index]`` so that whoever reads it sees all that was written before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _element_address(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], address, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


@intrinsic
def fetch_add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to ``array[index]`` in one step, and return what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _element_address(context, builder, signature.args[0], *arguments[:2])
        return builder.atomic_rmw("add", address, arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def relax(typing_context: Any) -> Any:
    """Tell the core that this thread only waits: its neighbour on the core may go ahead."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine().lower() in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            pause = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause")
            builder.call(pause, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def yield_core(typing_context: Any) -> Any:
    """Let another thread have the core; by the system's own library."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def nap(typing_context: Any) -> Any:
    """Sleep for the shortest while that the system offers, about a tenth of a millisecond."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        is_windows = sys.platform == "win32"
        # Milliseconds there, microseconds elsewhere.
        name, length = ("Sleep", 1) if is_windows else ("usleep", 20)
        result = ir.VoidType() if is_windows else ir.IntType(32)
        kind = ir.FunctionType(result, [ir.IntType(32)])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [ir.IntType(32)(length)])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def publish(typing_context: Any, team: Any, at: Any, function: Any, arguments: Any) -> Any:
    """Write the address of a compiled function, and of a tuple of arguments, to ``team[at:at+2]``.

    The tuple lives on the caller's stack: it is gone when the caller returns. See ``call_shared``.
    """
    called = function.get_call_type(
        typing_context, (types.int64, types.int64, types.int64, *arguments.types), {}
    )

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        layout = context.get_value_type(signature.args[3])
        slot = cgutils.alloca_once(builder, layout)
        builder.store(values[3], slot)
        shared = _unpacking(context, builder, signature.args[2], called, layout)
        for offset, pointer in enumerate((shared, slot)):
            index = builder.add(values[1], _WORD(offset))
            address = _element_address(context, builder, signature.args[0], values[0], index)
            builder.store(builder.ptrtoint(pointer, _WORD), address)
        return context.get_dummy_value()

    return types.void(team, types.int64, function, arguments), generate


def _unpacking(context: Any, builder: Any, function: Any, called: Any, layout: Any) -> Any:
    """A function of the form ``_SHARED`` that takes its arguments from a tuple in memory."""
    module = builder.module
    shared = ir.Function(module, _SHARED, module.get_unique_name("shared"))
    shared.linkage = "internal"
    inner = ir.IRBuilder(shared.append_basic_block("entry"))
    packed = inner.load(inner.bitcast(shared.args[0], layout.as_pointer()))
    values = [*shared.args[1:], *cgutils.unpack_tuple(inner, packed)]
    compiled = function.dispatcher.get_compile_result(called)
    context.active_code_library.add_linking_library(compiled.library)
    callee = context.declare_function(module, compiled.fndesc)
    convention = context.call_conv
    status, _ = convention.call_function(inner, callee, called.return_type, called.args, values)
    inner.ret(status.is_error)
    return shared


@intrinsic
def call_shared(typing_context: Any, team: Any, at: Any, worker: Any, first: Any, last: Any) -> Any:
    """Call the function whose address is at ``team[at]``; return whether it failed."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        words = []
        for offset in (0, 1):
            index = builder.add(values[1], _WORD(offset))
            words.append(
                builder.load(
                    _element_address(context, builder, signature.args[0], values[0], index)
                )
            )
        function = builder.inttoptr(words[0], _SHARED.as_pointer())
        arguments = builder.inttoptr(words[1], _ANYTHING)
        return builder.zext(builder.call(function, [arguments, *values[2:]]), _WORD)

    word = types.int64
    return types.int64(team, word, word, word, word), generate


def _element_address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Address of an element of a contiguous array, counted from its first."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])
