"""What Numba cannot say: fetch this cache line early, add two words at once, find the first bit."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]``, which will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # A read, to be kept in all levels of the cache, of data.
        builder.call(function, [builder.bitcast(address, pointer), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def add_pair_to_lanes(typing_context: Any, hist: Any, code: Any, words: Any, row: Any) -> Any:
    """Add ``words[row, 0:2]`` to the bin of each of the eight lanes whose bytes make up ``code``.

    The same as, for k in 0..7, with b = 2 * (256 * k + byte k of code):

        hist[b] += words[row, 0]
        hist[b + 1] += words[row, 1]

    but with one 128-bit load, addition and store per lane, where Numba would make two of each.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pair = ir.VectorType(_WORD, 2)
        hist_, code_, words_, row_ = arguments

        def pair_at(kind: Any, array: Any, index: Any) -> Any:
            address = _address(context, builder, kind, array, index)
            return builder.bitcast(address, pair.as_pointer())

        first = builder.shl(row_, _WORD(1))
        value = builder.load(pair_at(signature.args[2], words_, first), align=8)
        for lane in range(8):
            byte = builder.and_(builder.lshr(code_, _WORD(8 * lane)), _WORD(255))
            at = builder.shl(builder.add(byte, _WORD(256 * lane)), _WORD(1))
            pointer = pair_at(signature.args[0], hist_, at)
            total = builder.add(builder.load(pointer, align=8), value)
            builder.store(total, pointer, align=8)
        return context.get_dummy_value()

    return types.void(hist, code, words, row), generate


@intrinsic
def first_bit(typing_context: Any, word: Any) -> Any:
    """Position of the lowest bit that is set; the word must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), generate


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Address of an element of a contiguous array, counted from its first."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])
