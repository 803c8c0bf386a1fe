"""Kernels that were compiled beforehand, as far as all processors of a kind have it in common.

Numba finds the types of a kernel and writes it in LLVM's language, which is Python and most of the
time of a first fit; then LLVM makes instructions of it. What LLVM is given is in an archive, which
``tools/compile_kernels.py`` writes, and only the last step is left to do, for the processor at
hand: what comes out is what Numba would have made. A kernel that has changed since, is called with
other types or meets another Numba, is compiled by Numba.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import serialize
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult

from greedymiser._core.archives import Archive

# What the archive was tried with. With other versions kernels are compiled as ever.
NUMBAS, PYTHONS, NUMPYS = {"0.68.0", "0.68.1"}, {(3, 11), (3, 12)}, {"2.4", "2.5"}

# One more where what is kept, here or in Numba's own cache, must not be read any longer.
FORMAT = 1


@cache
def compiler_text() -> bytes:
    """The text of the module that compiles: what is compiled otherwise is other code."""
    try:
        return Path(__file__).with_name("compiling.py").read_bytes() + bytes([FORMAT])
    except OSError:  # in a zip file
        return bytes([FORMAT])


ARCHIVE = Archive(resources.files("greedymiser._core") / "kernels.zip", compiler_text)


def kernel_key(function: Callable[..., Any], signature: Any) -> str:
    """What a kernel is found by: its name, and the types of what it is called with."""
    types = hashlib.blake2b(described(signature).encode(), digest_size=8).hexdigest()
    return f"{function.__module__}.{function.__qualname__}-{types}"


def described(kinds: Iterable[Any]) -> str:
    """Types of Numba's with all that kernels know of them.

    Of a named tuple Numba itself tells no names, and nothing of its class, whose constants are in
    the code.
    """
    said = []
    for kind in kinds:
        said.append(str(kind))
        owner = getattr(kind, "instance_class", None)
        if owner is not None:
            constants = {name: getattr(owner, name) for name in dir(owner) if name.isupper()}
            fields = getattr(owner, "_fields", ())
            said += [owner.__module__, owner.__qualname__, repr(fields), repr(constants)]
        if isinstance(kind, numba.types.BaseTuple):
            said.append(f"({described(kind)})")
    return " ".join(said)


def load_kernel(function: Callable[..., Any], signature: Any, context: Any) -> Any:
    """A kernel that was compiled beforehand, as Numba has it; None if there is none for here."""
    if not suits(context):
        return None
    content = ARCHIVE.current(kernel_key(function, signature), function)
    if content is None:
        return None
    try:
        return revived(content, context)
    except Exception:  # whatever an archive of somebody else's holds, Numba can do without it
        return None


def suits(context: Any) -> bool:
    """Whether the archive was made for this, and tried with these versions.

    Somebody who looks for a mistake wants Numba's checks in the kernels.
    """
    is_tried = (
        numba.__version__ in NUMBAS
        and sys.version_info[:2] in PYTHONS
        and np.__version__.rpartition(".")[0] in NUMPYS
    )
    is_plain = not (numba.config.BOUNDSCHECK or numba.config.DEBUGINFO_DEFAULT)
    return is_tried and is_plain and ARCHIVE.about == made_with(context)


def made_with(context: Any) -> dict[str, Any]:
    """What an archive depends on: LLVM, and how it lays out data here."""
    return {
        "layout": str(context.codegen().target_data),
        "llvm": list(llvm.llvm_version_info),
        "triple": llvm.get_process_triple(),
    }


class PrecompiledLibrary(JITCodeLibrary):
    """Code that LLVM was given beforehand."""

    def __init__(self, codegen: Any, name: str, code: bytes):
        super().__init__(codegen, name)
        self.enable_object_caching()
        self._final_module = llvm.parse_bitcode(code)
        self._final_module.name = name
        self._final_module.verify()
        self._optimize_final_module()
        self._finalize_final_module()


def stored(result: Any, code: bytes) -> bytes:
    """A compiled kernel for the archive; ``code`` is what LLVM was given, as bitcode."""
    library, found = result.library, result.fndesc
    module = llvm.parse_bitcode(code)
    for function in module.functions:
        # What is called inside has the same name elsewhere, perhaps with other contents.
        named = function.name in (found.llvm_func_name, found.llvm_cpython_wrapper_name)
        if not function.is_declaration and not named:
            function.linkage = "internal"
    # Nothing here may depend on the processor, as the length of vectors does.
    machine = llvm.Target.from_default_triple().create_target_machine()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.add_refprune_pass()
    passes.add_strip_symbols_pass()
    passes.run(module, builder)
    _, fndesc, environment, signature, _, _, _, begin, others = result._reduce()
    kept = library.name, module.as_bitcode(), fndesc, environment, signature, begin, others
    content: bytes = serialize.dumps(kept)
    return content


def revived(content: bytes, context: Any) -> Any:
    """The compiled kernel: what Numba does once it has written one."""
    name, code, fndesc, environment, signature, begin, others = pickle.loads(content)
    for function in begin:
        function()
    context.refresh()  # Numba's own functions may not be there yet, which kernels call
    library = PrecompiledLibrary(context.codegen(), name, code)
    entry = context.get_executable(library, fndesc, environment)
    for other in others:
        library.codegen.set_env(other.env_name, other)
    return CompileResult(
        typing_context=context.typing_context, target_context=context, entry_point=entry,
        typing_error=None, type_annotation="", signature=signature, objectmode=False, lifted=(),
        fndesc=fndesc, library=library, call_helper=None, environment=environment, metadata=None,
        reload_init=begin, referenced_envs=others,
    )  # fmt: skip
