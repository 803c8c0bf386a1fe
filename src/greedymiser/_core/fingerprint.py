"""Settings as text: equal texts mean that two runs compute the same, down to the user's own code.

A function is what its code holds: instructions, constants, defaults, what it closes over, and the
globals that it refers to, which are described in turn. An object is its class, methods and all,
and its state. What belongs to an installed library is its name and the version of that library.

Where that is not the whole truth there is no text but an error: a function that opens a file, code
that is compiled, an object that does not show its state.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

# Longer texts are told by their beginning and a digest.
LONGEST = 200

# Values that ``repr`` tells completely.
PLAIN = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range,
)  # fmt: skip

# Builtins that let a function depend on something that its code does not name.
OPAQUE = {"__import__", "compile", "eval", "exec", "globals", "input", "open"}

# Of a module, what Python puts there.
OF_EVERY_MODULE = {
    "__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__", "__package__",
    "__path__", "__spec__",
}  # fmt: skip

# Of a class, what says nothing about what it computes, or is told elsewhere.
UNTOLD = {
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__",
    "__annotations_cache__", "__dict__", "__doc__", "__firstlineno__", "__module__",
    "__orig_bases__", "__parameters__", "__static_attributes__", "__weakref__", "_abc_impl",
}  # fmt: skip

# What may be looked at before somebody has put a whole world into a setting.
MOST_PARTS = 100_000


class IncompleteError(ValueError):
    """Something in a setting cannot be described; the text says what."""


def describe(value: Any) -> str:
    """A setting as text: what it holds, not where it is or in which order it happens to be.

    Raises IncompleteError where a change could go unnoticed.
    """
    try:
        return _Describer().describe(value)
    except RecursionError:
        raise IncompleteError("it is nested too deeply") from None


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}... {_digest(text.encode())}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class _Describer:
    """Describes one value, and all the globals that its code refers to, each once."""

    def __init__(self) -> None:
        # Objects that are being described: one that holds itself is told by how far up it is.
        self._above: list[int] = []
        # The highest of them that was referred to since it was last looked at.
        self._reaches = sys.maxsize
        # Finished texts by identity; the objects are kept, so that nothing else gets their place.
        self._finished: dict[int, tuple[Any, str]] = {}
        self._n_parts = 0
        # Globals to describe, by module and name; modules of the user's own, and all the names
        # that any code mentions: it may ask any of the modules for them.
        self._globals: dict[tuple[str, str], Any] = {}
        self._namespaces: dict[str, Mapping[str, Any]] = {}
        self._modules: dict[str, types.ModuleType] = {}
        self._names: set[str] = set()

    def describe(self, value: Any) -> str:
        text = self._text(value)
        texts: dict[tuple[str, str], str] = {}
        while True:
            for module in list(self._modules.values()):
                for name in sorted(self._names & vars(module).keys() - OF_EVERY_MODULE):
                    self._add_global(vars(module), name)
            left = [key for key in self._globals if key not in texts]
            if not left:
                break
            for key in left:
                texts[key] = self._text(self._globals[key])
        named = [f"{m}.{name} = {texts[m, name]}" for m, name in sorted(texts)]
        return _shortened("; ".join([text, *named]))

    # -- values ---------------------------------------------------------------------------------

    def _text(self, value: Any) -> str:
        if type(value) in PLAIN:
            return repr(value)
        if id(value) in self._above:
            level = self._above.index(id(value))
            self._reaches = min(self._reaches, level)
            return f"<{len(self._above) - level} up>"
        if id(value) in self._finished:
            return self._finished[id(value)][1]
        self._n_parts += 1
        if self._n_parts > MOST_PARTS:
            raise IncompleteError(f"it has more than {MOST_PARTS} parts")
        before, self._reaches = self._reaches, sys.maxsize
        self._above.append(id(value))
        text = _shortened(self._text_of_parts(value))
        self._above.pop()
        # What refers to something above it reads differently elsewhere.
        if self._reaches >= len(self._above):
            self._finished[id(value)] = value, text
            self._reaches = before
        else:
            self._reaches = min(before, self._reaches)
        return text

    def _text_of_parts(self, value: Any) -> str:
        match value:
            case np.ndarray() if type(value) is np.ndarray:
                return self._array(value)
            case list() | tuple() if type(value) in (list, tuple):
                return f"{type(value).__name__}[{self._joined(value)}]"
            case dict() if type(value) is dict:
                return self._mapping(value)
            case types.MappingProxyType():
                return self._mapping(dict(value))
            case set() | frozenset() if type(value) in (set, frozenset):
                return f"{{{', '.join(sorted(map(self._text, value)))}}}"
            case slice():
                return f"slice({self._joined((value.start, value.stop, value.step))})"
            case types.CodeType():
                return self._code(value)
            case types.ModuleType():
                return self._module(value)
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return f"{self._text(value.__func__)} of {self._text(value.__self__)}"
            case types.BuiltinMethodType() | types.MethodWrapperType():
                return self._builtin(value)
            case functools.partial() if type(value) is functools.partial:
                return f"partial({self._joined((value.func, value.args, value.keywords))})"
            case staticmethod() | classmethod():
                return f"{type(value).__name__}({self._text(value.__func__)})"
            case functools.cached_property():
                return f"cached_property({self._text(value.func)})"
            case property():
                return f"property({self._joined((value.fget, value.fset, value.fdel))})"
            case types.MemberDescriptorType() | types.GetSetDescriptorType():
                return f"slot {value.__name__}"
            case type():
                return self._class(value)
        if isinstance(value, DESCRIPTORS) and _library(value.__objclass__.__module__) is None:
            raise IncompleteError(f"{_called(value)} is compiled")
        return _name_in_library(value) or self._object(value)

    def _joined(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self._text, values))

    def _mapping(self, value: Mapping[Any, Any]) -> str:
        pairs = (f"{self._text(key)}: {self._text(held)}" for key, held in value.items())
        return f"{{{', '.join(sorted(pairs))}}}"

    def _array(self, value: np.ndarray[Any, Any]) -> str:
        if value.dtype.hasobject:
            held = self._text(value.tolist())
        else:
            held = _digest(np.ascontiguousarray(value).tobytes())
        return f"array({value.dtype.descr}, {value.shape}, {held})"

    # -- code -----------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> str:
        # Not ``__module__``: a decorator gives its wrapper that of what it wraps.
        module = str(function.__globals__.get("__name__"))
        library = _library(module)
        if library and _find(module, function.__qualname__) is function:
            return f"{library} {module}.{function.__qualname__}"
        held = (function.__defaults__, function.__kwdefaults__, vars(function))
        closed = [_content(cell) for cell in function.__closure__ or ()]
        if library is None:  # what a library's code refers to is in its version
            self._follow(function.__code__, function.__globals__)
        return (
            f"{library or ''}{module}.{function.__qualname__}({self._text(function.__code__)}, "
            f"{self._joined(held)}, {self._joined(closed)})"
        )

    def _code(self, code: types.CodeType) -> str:
        counts = (
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
            code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars,
        )  # fmt: skip
        instructions = _digest(code.co_code + code.co_exceptiontable)
        return f"code({instructions}, {counts!r}, {self._joined(code.co_consts)})"

    def _follow(self, code: types.CodeType, namespace: Mapping[str, Any]) -> None:
        """See to it that what a function refers to is described."""
        self._names.update(code.co_names)
        self._names.update(const for const in code.co_consts if type(const) is str)
        instructions = list(dis.get_instructions(code))
        for i, step in enumerate(instructions):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                self._add_global(namespace, str(step.argval), code.co_name)
            elif step.opname == "IMPORT_NAME":
                level = instructions[i - 2].argval  # pushed before the names and the module
                self._module(_imported(str(step.argval), level, namespace, code.co_name))
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                self._follow(const, namespace)

    def _add_global(self, namespace: Mapping[str, Any], name: str, user: str = "") -> None:
        if name not in namespace:
            if name in OPAQUE and hasattr(builtins, name):
                raise IncompleteError(f"{user} calls {name}")
            return  # a builtin, which its name tells, or something that is not there yet
        module = str(namespace.get("__name__"))
        if self._namespaces.setdefault(module, namespace) is not namespace:
            raise IncompleteError(f"there are two modules of the name {module}")
        self._globals[module, name] = namespace[name]

    def _module(self, module: types.ModuleType) -> str:
        library = _library(module.__name__)
        if library is None:
            self._modules[module.__name__] = module
            if "__getattr__" in vars(module):
                self._add_global(vars(module), "__getattr__")
        return f"module {module.__name__} {library or ''}"

    def _builtin(self, function: Any) -> str:
        """A function in C, or a method of an object whose type is written in C."""
        owner = function.__self__
        if owner is not None and not isinstance(owner, types.ModuleType):
            return f"{function.__name__} of {self._text(owner)}"
        known = _name_in_library(function)
        if known is None:
            raise IncompleteError(f"{_called(function)} is compiled")
        return known

    def _class(self, kind: type) -> str:
        known = _name_in_library(kind)
        if known:
            return known
        held = {name: part for name, part in vars(kind).items() if name not in UNTOLD}
        parts = self._joined((type(kind), kind.__bases__, held))
        return f"class {kind.__module__}.{kind.__qualname__}({parts})"

    # -- objects --------------------------------------------------------------------------------

    def _object(self, value: Any) -> str:
        kind = type(value)
        if _library(kind.__module__):
            inside = getattr(value, "__dict__", {}).get(WRAPPERS.get(kind.__name__))
            if inside is None:
                return f"{self._text(kind)}({self._reduced(value)})"
            options = getattr(value, "targetoptions", None)  # how Numba compiles it
            return f"{self._text(kind)}({self._joined((inside, options))})"
        # Looked at directly: what is left out of pickles may matter.
        state = dict(getattr(value, "__dict__", {}))
        state |= {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
        texts = [self._text(kind), self._text(state)]
        if any(_library(base.__module__) for base in kind.__mro__ if base is not object):
            texts.append(self._reduced(value))  # a list or the like holds more than attributes
        return f"({', '.join(texts)})"

    def _reduced(self, value: Any) -> str:
        """What pickle would write: how the object is made again, and from what."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            made = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception:  # whatever an object says when it is asked
            raise IncompleteError(f"{_called(value)} does not show its state") from None
        if isinstance(made, str):  # a global by that name
            for name, module in list(sys.modules.items()):
                if vars(module).get(made) is value and _library(name):
                    return f"{_library(name)} {made}"
            raise IncompleteError(f"{_called(value)} does not show its state")
        make, arguments, *rest = made
        return self._joined((make, arguments, *(_listed(part) for part in rest)))


# Methods of types in C.
DESCRIPTORS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip

# What a library makes of a function, and where it keeps it.
WRAPPERS = {"_lru_cache_wrapper": "__wrapped__", "CPUDispatcher": "py_func"}


def _name_in_library(value: Any) -> str | None:
    """What a part of a library is called there; None for anything else."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)):
        return None
    library = _library(module)
    return f"{library} {module}.{name}" if library and _find(module, name) is value else None


def _called(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return str(name) if name else f"a {type(value).__name__}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "nothing yet"


def _listed(part: Any) -> Any:
    return list(part) if isinstance(part, Iterator) else part


def _slots(kind: type) -> list[str]:
    return [
        name
        for base in kind.__mro__
        for name, part in vars(base).items()
        if isinstance(part, types.MemberDescriptorType)
    ]


def _find(module: str, qualname: str) -> Any:
    value: Any = sys.modules.get(module)
    for name in qualname.split("."):
        value = getattr(value, name, None)
    return value


def _imported(name: str, level: int, namespace: Mapping[str, Any], user: str) -> types.ModuleType:
    """The module that a function would import."""
    try:
        if level:
            name = importlib.util.resolve_name("." * level + name, namespace.get("__package__"))
        return importlib.import_module(name)
    except Exception as error:
        raise IncompleteError(f"{user} imports {name!r}, which fails ({error})") from None


@functools.cache
def _library(module: str) -> str | None:
    """Name and version of the library that a module belongs to; None for the user's own."""
    top = module.partition(".")[0]
    if top == "greedymiser":
        return top  # whose version is told once for all settings
    if top in sys.stdlib_module_names or top == "builtins":
        return f"python {sys.version_info[0]}.{sys.version_info[1]}"
    place = getattr(sys.modules.get(top), "__file__", None) or ""
    if not {"site-packages", "dist-packages"} & set(place.split(os.sep)):
        return None
    version = getattr(sys.modules[top], "__version__", None)
    if not isinstance(version, str):
        names = importlib.metadata.packages_distributions().get(top, ())
        version = ", ".join(importlib.metadata.version(name) for name in names)
    return f"{top} {version}" if version else None
