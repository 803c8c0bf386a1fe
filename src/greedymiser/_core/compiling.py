"""Kernels: compiled by Numba when they are first called, and kept on disk.

Numba keeps compiled code in the first of these folders that it can write to: ``NUMBA_CACHE_DIR``,
``__pycache__`` beside the source, the user's own cache. Where it finds none, as in a container
whose file system can only be read, it refuses to import the kernel at all, and code that somebody
compiled beforehand into a folder that is now read-only is not even looked at. Here such a folder is
read, and what is not in it is compiled for this process alone. ``greedymiser.warm`` fills one.

Numba takes compiled code for current as long as the file of its own kernel is; but kernels contain
what they call in other files. Here it is current as long as all of our kernels are what they were,
by their text: also if an image was copied and every file looks new.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
from numba.core.registry import CPUDispatcher

KERNELS: list[Any] = []
"""All kernels of the modules that are imported."""


class CacheWarning(UserWarning):
    """Compiled code cannot be kept, so that every process spends seconds on compiling it anew."""


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Numba's ``njit``, without the GIL and with a cache that nothing depends on.

    Parameters
    ----------
    function : callable, optional
        What to compile; without it, a decorator is returned.
    **options
        As for Numba's ``njit``; ``cache`` and ``nogil`` are True unless something else is said.
    """
    if function is None:
        return lambda function: njit(function, **options)
    settings = {"nogil": True, **options}
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
    unwrapped = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    kernel = njit(function, cache=False, **unwrapped, **options)
    if kernel is not function:
        kernel.__class__ = Unwrapped
    return kernel


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
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if self._own is None:
            _warn_once("no folder for it can be written to")
            return
        try:
            self._own.save_overload(sig, data)
        except Exception as error:  # the disk is full, the folder is gone, its index is damaged
            _warn_once(f"{type(error).__name__} in {self._own.cache_path}: {error}")

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


@cache
def _text_of_kernels() -> str:
    """A digest of all modules of ours that have kernels."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text or b"@intrinsic" in text:
            digest.update(text)
    return digest.hexdigest()


def _cache_in(places: list[type[Any]], **changes: Any) -> type[FunctionCache]:
    """Numba's cache in some of its places."""
    changes = {"get_source_stamp": lambda self: _text_of_kernels(), **changes}
    changed = [type(place.__name__, (place,), changes) for place in places]
    kept = type("Kept", (CompileResultCacheImpl,), {"_locator_classes": changed})
    return type("Cache", (FunctionCache,), {"_impl_class": kept})


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
