"""Kernels: compiled by Numba when they are first called, and kept on disk.

Numba keeps compiled code in the first of these folders that it can write to: ``NUMBA_CACHE_DIR``,
``__pycache__`` beside the source, the user's own cache. Where it finds none, as in a container
whose file system can only be read, it refuses to import the kernel at all, and code that somebody
compiled beforehand into a folder that is now read-only is not even looked at. Here such a folder is
read, and what is not in it is compiled for this process alone. ``greedymiser.warm`` fills one.

Numba takes compiled code for current as long as the file of its own kernel is; but kernels contain
what they call in other files. Here it is current as long as the kernel, and all that it refers to,
is what it was: also if an image was copied and every file looks new, and if another kernel of the
same file has changed.

The first fit of a fresh installation waits for the compiler. Most of its work was done beforehand
(``precompiled``); where that cannot be used, kernels leave out what Numba does more than once: see
``KernelCompiler`` and ``PartCompiler``.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numba
from numba import _dynfunc, types
from numba.core import cgutils, event, ir, typed_passes, untyped_passes
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import get_definition, guard
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher

from greedymiser._core import precompiled
from greedymiser._core.digests import digest_of
from greedymiser._core.precompiled import compiler_text, described

KERNELS: list[Any] = []
"""All kernels of the modules that are imported."""

# Whether the compilers below, which go into the insides of Numba's, were tried with this version of
# it. With a newer one kernels are compiled as Numba would, which takes twice as long.
IS_KNOWN = numba.version_info.short <= (0, 68)


class CacheWarning(UserWarning):
    """Compiled code cannot be kept, so that every process spends seconds on compiling it anew."""


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Numba's ``njit``, without the GIL and with a cache that nothing depends on.

    A quotient by 0 is what NumPy makes of it.

    Parameters
    ----------
    function : callable, optional
        What to compile; without it, a decorator is returned.
    **options
        As for Numba's ``njit``; ``cache`` and ``nogil`` are True unless something else is said.
    """
    if function is None:
        return lambda function: njit(function, **options)
    # No C function is made of a kernel, since nobody asks for one; and all have one error model, so
    # that what they call is compiled once.
    ours: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    if IS_KNOWN:
        ours["pipeline_class"] = KernelCompiler
    settings = {**ours, **options}
    cached = settings.pop("cache", True)
    kernel: Any = numba.njit(**settings)(function)
    if kernel is not function:  # as it is with NUMBA_DISABLE_JIT
        if cached:
            kernel._cache = KernelCache(function)
        KERNELS.append(kernel)
    return kernel


def inner(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``njit`` for what only kernels call: kept as a part of them, and quicker to compile."""
    if function is None:
        return lambda function: inner(function, **options)
    unwrapped: dict[str, Any] = {"no_cpython_wrapper": True}
    if IS_KNOWN:
        unwrapped["pipeline_class"] = PartCompiler
    kernel = njit(function, cache=False, **unwrapped, **options)
    if kernel is not function:
        kernel.__class__ = Unwrapped
    return kernel


class KernelFlags(Flags):
    """Flags of a kernel, of which the functions that it calls see only what they inherit.

    Numba compiles its own functions (``np.empty``, ``max``) anew for callers with other flags, and
    compares all flags whenever it looks for a function or an operator.
    """

    __slots__ = ()

    def copy(self) -> Any:
        """What the functions that are called inherit."""
        if self.error_model != "numpy" or self.fastmath or self.debuginfo or self.boundscheck:
            return super().copy()
        return INHERITED


class InheritedFlags(Flags):
    """Flags that there is one instance of, and so quick to compare."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))

    def __hash__(self) -> int:
        return HASH_OF_FLAGS


HASH_OF_FLAGS = hash(Flags())  # of the names of all flags, so the same for all
INHERITED = InheritedFlags()
INHERITED.nrt, INHERITED.error_model = True, "numpy"


class KernelCompiler(Compiler):
    """Numba's compiler, without what it repeats."""

    def __init__(
        self, typingctx: Any, targetctx: Any, library: Any, args: Any, return_type: Any,
        flags: Any, locals: Any,
    ):  # fmt: skip
        flags = KernelFlags(flags)
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)

    def define_pipelines(self) -> list[Any]:
        pipelines: list[Any] = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.add_pass_after(FoldConstants, untyped_passes.IRProcessing)
            ours = {typed_passes.NativeLowering: BorrowingLowering}
            pipeline.passes = [(ours.get(kind, kind), why) for kind, why in pipeline.passes]
            pipeline.finalize()
        return pipelines

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        with without_collector():
            return super().compile_extra(func)


@register_pass(mutates_CFG=True, analysis_only=False)
class FoldConstants(FunctionPass):
    """Replaces ``argument.name`` by the constant ``NAME`` of the argument's class, if it has one.

    Numba leaves out branches that a constant excludes: so a kernel is compiled for one case of
    several, and the others when they occur.
    """

    _name = "fold_constants"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        classes = [getattr(kind, "instance_class", None) for kind in state.args]
        definitions = vars(state.func_ir)["_definitions"]
        for block in state.func_ir.blocks.values() if any(classes) else ():
            for statement in block.find_insts(ir.Assign):
                read = statement.value
                if not isinstance(read, ir.Expr) or read.op != "getattr":
                    continue
                owner = guard(get_definition, state.func_ir, read.value)
                if not isinstance(owner, ir.Arg):
                    continue
                value = getattr(classes[owner.index], read.attr.upper(), None)
                if value is not None:
                    statement.value = ir.Const(value, read.loc)
                    definitions[statement.target.name] = [statement.value]
        return any(classes)


class BorrowingLower(Lower):
    """Writes a function that borrows its arguments: it does not count itself among their owners.

    Numba counts the owners of an array whenever a function is given it, or takes a row or a slice
    of it. That is a third of the time of short kernels, and threads that do so at the same time
    wait for each other. The caller owns what it hands over until the function returns. A function
    counts if it returns arrays, which may be those that it was given, and if it is given anything
    that it could keep them in.
    """

    def extract_function_arguments(self) -> Any:
        values: Any = super().extract_function_arguments()
        if holds_no_array(self.fndesc.restype) and all(map(keeps_nothing, self.fndesc.argtypes)):
            kinds = zip(self.fndesc.argtypes, values, strict=True)
            values = [self._borrowed(kind, value) for kind, value in kinds]
        self.fnargs = values
        return values

    def _borrowed(self, kind: Any, value: Any) -> Any:
        """An array, or a tuple of arrays, as if nobody owned it."""
        if isinstance(kind, types.Array):
            owner = self.context.data_model_manager[kind].get_field_position("meminfo")
            nobody = cgutils.get_null_value(value.type.elements[owner])
            return self.builder.insert_value(value, nobody, owner)
        if isinstance(kind, types.BaseTuple):
            for i, part in enumerate(kind):
                borrowed = self._borrowed(part, self.builder.extract_value(value, i))
                value = self.builder.insert_value(value, borrowed, i)
        return value


def holds_no_array(kind: Any) -> bool:
    """Whether values of one of Numba's types are numbers, or tuples of numbers."""
    if isinstance(kind, types.BaseTuple):
        return all(holds_no_array(part) for part in kind)
    return isinstance(kind, (types.Number, types.Boolean, types.NoneType))


def keeps_nothing(kind: Any) -> bool:
    """Whether no array can be left in an argument of one of Numba's types, as it can in a list."""
    if isinstance(kind, types.BaseTuple):
        return all(keeps_nothing(part) for part in kind)
    if isinstance(kind, types.Optional):
        return keeps_nothing(kind.type)
    plain = types.Array, types.Record, types.Callable, types.Omitted, types.StringLiteral
    return holds_no_array(kind) or isinstance(kind, plain)


@register_pass(mutates_CFG=True, analysis_only=False)
class BorrowingLowering(typed_passes.NativeLowering):
    """Numba's last pass, with ``BorrowingLower``."""

    _name = "borrowing_lowering"

    @property
    def lowering_class(self) -> Any:
        return BorrowingLower


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause the garbage collector: a compiler makes many objects, most of which stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:  # what somebody else has frozen stays so
                # As if they had survived already: the next full collection looks at them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class PartCompiler(KernelCompiler):
    """Writes what a function does, and leaves it to the kernels around it to make code of that.

    Numba would optimise each function, with all that it calls, and then its callers, with all that
    they call: the innermost once for every level above it.
    """

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        state = self.state
        state.flags.no_compile = True
        state.library = PartLibrary(state.targetctx.codegen(), func.__qualname__)
        result = super().compile_extra(func)
        # What callers find the function by: as Numba makes it, but at address 0.
        entry = _dynfunc.make_function(
            result.fndesc.lookup_module(), func.__name__, "", 0, result.environment, ()
        )
        result.target_context.insert_user_function(entry, result.fndesc, [result.library])
        return result._replace(entry_point=entry)


class PartLibrary(JITCodeLibrary):
    """Code that is a part of other code."""

    def _optimize_final_module(self) -> None:
        """Those who contain it do."""

    def _finalize_final_module(self) -> None:
        """Machine code is made of those who contain it."""
        self._finalize_dynamic_globals()
        self._finalized = True


class Unwrapped(CPUDispatcher):
    """A compiled function that Python has no way to call: Numba would follow a null pointer."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} can only be called by compiled code")


class _FirstOfAll(event.Listener):
    """Tells that something is compiled, once."""

    def __init__(self, tell: Callable[[], None]):
        self._tell: Callable[[], None] | None = tell

    def on_start(self, event: event.Event) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def on_end(self, event: event.Event) -> None:
        pass


@contextmanager
def when_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` when a kernel has to be compiled, the first time; not if all can be read."""
    with event.install_listener("numba:compile", _FirstOfAll(tell)):
        yield


class KernelCache(NullCache):
    """Where the compiled code of one kernel is looked for, and where it is kept.

    Nothing that is wrong with a cache is a reason not to predict: the kernel is compiled then.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    @cached_property
    def _own(self) -> FunctionCache | None:
        """The folder that new code is written to. Looked for when it is needed: not on import."""
        return _opened(WRITER, self._function)

    @cached_property
    def _all(self) -> list[FunctionCache]:
        shelves = [self._own, *(_opened(kind, self._function) for kind in READERS)]
        # By path: usually the folder that can be written to is also one of the others.
        return list({shelf.cache_path: shelf for shelf in shelves if shelf is not None}.values())

    @property
    def cache_path(self) -> str | None:
        """Folder that new code is written to; None if there is none."""
        return None if self._own is None else self._own.cache_path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        for shelf in self._all:
            try:
                code = shelf.load_overload(sig, target_context)
            except Exception:  # a damaged file may raise anything; saving will tell
                continue
            if code is not None:
                return code
        code = precompiled.load_kernel(self._function, sig, target_context)
        if code is not None:
            self.save_overload(sig, code)  # as instructions, for the next process
        return code

    def save_overload(self, sig: Any, data: Any) -> None:
        if self._own is None:
            _warn_once("no folder for it can be written to")
            return
        try:
            self._save(self._own, sig, data)
        except Exception as error:  # the disk is full, the folder is gone
            _warn_once(f"{type(error).__name__} in {self._own.cache_path}: {error}")

    def _save(self, shelf: FunctionCache, sig: Any, data: Any) -> None:
        try:
            shelf.save_overload(sig, data)
        except Exception:  # perhaps its index is damaged, or names what an older version had
            shelf.flush()
            shelf.save_overload(sig, data)

    def flush(self) -> None:
        if self._own is not None:
            self._own.flush()


def _opened(kind: type[FunctionCache], function: Callable[..., Any]) -> FunctionCache | None:
    try:
        return kind(function)
    except (RuntimeError, OSError):  # no such folder, or no source
        return None


def _must_exist(locator: Any) -> None:
    """Raise OSError if there is no such folder; Numba also asks whether it can be written to."""
    os.scandir(locator.get_cache_path()).close()


def _cache_in(places: list[type[Any]], **changes: Any) -> type[FunctionCache]:
    """Numba's cache in some of its places."""
    changed = [type(place.__name__, (_Current, place), changes) for place in places]
    kept = type("Kept", (CompileResultCacheImpl,), {"_locator_classes": changed})
    return type("Cache", (_ByAllOfTypes,), {"_impl_class": kept})


class _ByAllOfTypes(FunctionCache):
    """Numba's cache, which would not notice that the fields of a named tuple are others."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), described(sig))


class _Current:
    """A place for compiled code that knows whether it is current."""

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Any:
        place: Any = super().from_function(py_func, py_file)  # type: ignore[misc]
        if place is not None:
            place.function = py_func
        return place

    def get_source_stamp(self) -> str:
        return digest_of(self.function, compiler=compiler_text())  # type: ignore[attr-defined]

    def get_disambiguator(self) -> str:
        """Not the line, which moves when something above is edited."""
        return ""


# By way of Numba's own list: the places have had other names.
_PLACES = list(CompileResultCacheImpl._locator_classes)
# The first that can be written to, and each by itself whether or not it can.
WRITER = _cache_in(_PLACES)
READERS = [_cache_in([place], ensure_cache_path=_must_exist) for place in _PLACES]

_has_warned = False


def _warn_once(why: str) -> None:
    """Say it once, and not for each of the kernels."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(
            f"greedymiser's compiled code cannot be kept, so that every process spends seconds on "
            f"compiling it anew: {why}. Let NUMBA_CACHE_DIR name a folder that can be written to, "
            "or compile beforehand with python -m greedymiser.warm",
            CacheWarning,
            stacklevel=2,
        )
