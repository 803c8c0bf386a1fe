"""Digests of functions: whether what was made of one is still current."""

from __future__ import annotations

import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

OURS = __name__.split(".")[0]

# Options of Numba's that change what a function computes, or where it is.
IN_TEXT = {"fastmath", "forceinline"}


def digest_of(function: Callable[..., Any], of_text: bool = False, compiler: bytes = b"") -> str:
    """A digest of a function and of all functions and constants of ours that it refers to.

    It is that of compiled Python; with ``of_text`` that of the words in the source, which is the
    same for all versions of Python. ``compiler`` says how it is compiled further: what is compiled
    otherwise is other code.
    """
    seen, waiting = {function}, [function]
    digest = hashlib.sha256(compiler)
    while waiting:
        said, needed = _content_of(waiting.pop(), of_text)
        digest.update(said)
        waiting.extend(other for other in needed if other not in seen)
        seen.update(needed)
    return digest.hexdigest()


@cache
def _content_of(
    function: Callable[..., Any], of_text: bool
) -> tuple[bytes, tuple[Callable[..., Any], ...]]:
    """What a function says by itself, and the functions of ours that it refers to."""
    said: list[Any] = [(function.__defaults__, function.__kwdefaults__)]
    needed, names = [], set[str]()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes.extend(inner for inner in code.co_consts if isinstance(inner, CodeType))
        plain = [value for value in code.co_consts if not isinstance(value, CodeType)]
        if not of_text:
            said.append((code.co_code, code.co_names, code.co_varnames, repr(plain)))
    if of_text:
        said += words_of(inspect.getsource(function))
    known = {name: function.__globals__[name] for name in names if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    known |= {name: cell.cell_contents for name, cell in cells}
    for name in sorted(known):
        value = known[name]
        # How others are compiled; with ``of_text`` what is in no text.
        options = getattr(value, "targetoptions", {})
        chosen = [key for key in options if not of_text or (key in IN_TEXT and options[key])]
        said.append((name, [(key, _option_text(options[key])) for key in sorted(chosen)]))
        # What stands behind a kernel, and behind an intrinsic.
        value = getattr(value, "py_func", getattr(value, "_defn", value))
        if isinstance(value, FunctionType):
            if value.__module__.startswith(OURS):
                needed.append(value)
        elif isinstance(value, type):
            constants = {key: vars(value)[key] for key in sorted(vars(value)) if key.isupper()}
            said.append((name, getattr(value, "_fields", ()), repr(constants)))
        elif not isinstance(value, ModuleType):
            said.append((name, repr(value)))
    return repr(said).encode(), tuple(needed)


def _option_text(value: Any) -> str:
    return str(sorted(value)) if isinstance(value, set) else str(value)


def words_of(text: str) -> list[str]:
    """Source without comments and docstrings; lines and blocks by where they end."""
    lines = io.StringIO(textwrap.dedent(text)).readline
    kinds = tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING
    ends = {tokenize.INDENT: "{", tokenize.DEDENT: "}", tokenize.NEWLINE: ";"}
    words = [";"]
    for word in tokenize.generate_tokens(lines):
        begins = words[-1] in ends.values()
        if word.type in ends and not (begins and word.type == tokenize.NEWLINE):
            words.append(ends[word.type])
        elif word.type in kinds and not (begins and word.type == tokenize.STRING):
            words.append(word.string)
    return words
