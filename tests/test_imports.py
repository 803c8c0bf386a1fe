"""Imports flow downwards, and importing the package is cheap."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "greedymiser"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

# The packages from bottom to top. Each imports only from those above it in this list, and from
# itself. A new one has to be given its place here.
PACKAGES = [
    "_core",
    "data",
    "costs",
    "losses",
    "scoring",
    "model",
    "engines",
    "training",
    "estimators",
    "cascades",
    "curve",
    "files",
    "on_demand",
    "plotting",
    "cli",
    "warm",
]

# Packages that anyone may import, with all that they may import themselves.
OPEN_PACKAGES = {
    "datasets": {"_core", "data", "costs"},
}

# Methods that open a package above when they are called, and only then: ``curve.plot()``.
CONVENIENCES = {
    "model": {"engines", "plotting"},
    "curve": {"plotting"},
    "cascades": {"curve"},
}

# Ways to say that something is one's own.
OWN = {"self", "cls", "super()", "type(self)"}

# Public names of named tuples, which begin with an underscore so that fields may have any name.
NAMED_TUPLES = {"_replace", "_asdict", "_make", "_fields", "_field_defaults"}

# Private attributes of other libraries' objects.
FOREIGN = {
    # How Numba keeps what it has compiled.
    "_core": {"_cache", "_reduce"},
    "engines": {"_prepare_args", "_codelibrary"},
    # What scikit-learn's boosters have no public name for: their trees.
    "estimators": {
        "_predictors",
        "_baseline_prediction",
        "_bin_mapper",
        "_preprocessor",
        "_raw_predict_init",
    },
}

# They may import everything, and nobody imports them.
OUTSIDE = {"__init__", "__main__"}


parsed = cache(ast.parse)


def package_of(module: str) -> str:
    """The package of a module, by its name below ours: engines.cpu is in engines."""
    return module.partition(".")[0]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every import, wherever it stands; ruff sees to it that none is relative.

    Imports inside functions and under ``if TYPE_CHECKING`` count like all others. The names in
    ``from a import b`` are given as a.b, since b may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def direction_faults(source: str, module: str) -> list[str]:
    """What is wrong with the imports of a module, one sentence per fault."""
    package = package_of(module)
    if package in OUTSIDE:
        return []
    if package in OPEN_PACKAGES:
        allowed = OPEN_PACKAGES[package] | {package}
    elif package in PACKAGES:
        allowed = {*PACKAGES[: PACKAGES.index(package) + 1], *OPEN_PACKAGES}
    else:
        return [f"{module} has no place in the order of packages; give it one in {__file__}"]
    faults = []
    tree = parsed(source)
    inside = {
        node.lineno
        for function in (ast.walk(tree) if package in CONVENIENCES else ())
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    for line, name in imported(tree):
        parts = name.split(".")
        if parts[0] != PACKAGE:
            continue
        target = parts[1] if len(parts) > 1 else ""
        if target not in PACKAGES and target not in OPEN_PACKAGES:
            faults.append(f"{module}:{line} imports {name}: not from one of the packages")
        elif target in CONVENIENCES.get(package, ()) and line in inside:
            continue
        elif target not in allowed:
            faults.append(f"{module}:{line} imports {name}: {target} is above {package}")
    return faults


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and name not in NAMED_TUPLES


def own_names(source: str) -> set[str]:
    """What a module defines: functions, classes, variables, and attributes of self and cls."""
    found = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) in OWN else set()
    return found


def privacy_faults(source: str, module: str, own: Set[str]) -> list[str]:
    """Private names of other packages that a module uses; ``own`` are the names of its own package.

    The class of an object is not known here. So a private attribute passes if it is one of self,
    or of something from another library, or if the package itself defines that name somewhere.
    """
    tree = parsed(source)
    faults, foreign = [], set()
    for line, name in imported(tree):
        first, *rest = name.split(".")
        if first != PACKAGE:
            foreign |= {first, name.rpartition(".")[2]}
        elif rest and rest[0] != package_of(module) and any(map(is_private, rest[1:])):
            faults.append(f"{module}:{line} imports {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            owner = ast.unparse(node.value)
            if owner not in OWN and owner.partition(".")[0] not in foreign:
                faults.append(f"{module}:{node.lineno} uses {owner}.{node.attr}")
    return faults


def imports_library(source: str, library: str) -> bool:
    return library in source and any(
        name.split(".")[0] == library for _, name in imported(parsed(source))
    )


def compiles(source: str) -> bool:
    """Whether a module takes a compiling decorator from Numba."""
    if "numba" not in source:
        return False
    tree = parsed(source)
    taken = {name for _, name in imported(tree)}
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return any(
        re.fullmatch(r"(numba|nb)(\.\w+)*\.(n?jit|jitclass|vectorize|guvectorize|cfunc)", name)
        for name in taken | used
    )


def prints(source: str) -> bool:
    return "print" in source and any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        for node in ast.walk(parsed(source))
    )


def modules() -> dict[str, Path]:
    """Every module of the package, named relative to it."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


MODULES = modules()
SOURCES = {module: path.read_text(encoding="utf-8") for module, path in MODULES.items()}


def test_modules_are_found():
    assert {"costs", "datasets", "_core.version"} <= MODULES.keys()


def test_contributing_shows_all_rooms_in_their_order():
    """Its map is what a newcomer reads, and ``ls`` shows no more than it and Python's own files."""
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^    (\w+)(?:/|\.py) ", text, re.MULTILINE)
    assert [package for package in listed if package not in OPEN_PACKAGES] == PACKAGES
    here = {path.stem for path in SOURCE.iterdir() if path.is_file() or [*path.glob("*.py")]}
    assert here == {*listed, *OUTSIDE, "py"}


def test_imports_flow_downwards():
    faults = [direction_faults(source, m) for m, source in SOURCES.items()]
    assert [*itertools.chain(*faults)] == []


def test_private_names_stay_in_their_package():
    names = {package: set(foreign) for package, foreign in FOREIGN.items()}
    for module, source in SOURCES.items():
        names.setdefault(package_of(module), set()).update(own_names(source))
    faults = [privacy_faults(source, m, names[package_of(m)]) for m, source in SOURCES.items()]
    assert [*itertools.chain(*faults)] == []


def test_only_plotting_imports_matplotlib():
    users = {package_of(m) for m, s in SOURCES.items() if imports_library(s, "matplotlib")}
    assert users == {"plotting"}


def test_only_compiling_compiles():
    """Elsewhere a kernel would not be importable where nothing can be cached."""
    assert [m for m, source in SOURCES.items() if compiles(source)] == ["_core.compiling"]


def test_only_the_cli_prints():
    assert {package_of(m) for m, source in SOURCES.items() if prints(source)} <= {"cli"}


def test_the_grower_knows_no_loops():
    assert not imports_library(SOURCES["training.grower"], "numba")


# The checks themselves


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("costs", "from greedymiser.model import Ensemble"),
        ("costs", "from greedymiser import model"),
        ("costs", "from greedymiser import data, model"),
        ("costs", "import greedymiser.model"),
        ("costs", "import greedymiser.model as t"),
        ("costs", "import numpy, greedymiser.model"),
        ("costs", "if TYPE_CHECKING:\n    from greedymiser.model import Ensemble"),
        ("costs", "def f():\n    from greedymiser.model import Ensemble"),
        ("engines.cpu", "import greedymiser.training"),
        ("model", "from greedymiser.engines.cpu import CpuEngine"),
        # The whole is above every package.
        ("cli", "import greedymiser"),
        ("cli", "from greedymiser import MiserRegressor"),
        # Side by side is not downwards.
        ("estimators", "from greedymiser.cascades import EarlyExitClassifier"),
        # The open packages stay small.
        ("datasets", "from greedymiser.model import Ensemble"),
        ("datasets", "from greedymiser.estimators import MiserRegressor"),
        ("_core", "from greedymiser.costs import CostModel"),
        ("attic", "import numpy"),
    ],
)
def test_faults_are_seen(module, line):
    assert len(direction_faults(line, module)) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("model", "from greedymiser.costs import CostModel"),
        ("costs", "import numpy as np\nfrom trees import oak"),
        ("costs", "from greedymiserly.trees import Ensemble"),
        ("engines.cpu", "from greedymiser.engines import Engine"),
        ("datasets", "from greedymiser.costs import CostModel"),
        ("cli", "from greedymiser._core.version import __version__"),
        ("costs", "from greedymiser.datasets import load_thyroid"),
        ("__init__", "from greedymiser.cli import main\nfrom greedymiser.model import Ensemble"),
    ],
)
def test_downward_imports_pass(module, line):
    assert direction_faults(line, module) == []


@pytest.mark.parametrize(
    "line",
    [
        "from greedymiser.estimators import _changed",
        "from greedymiser.scoring._kernels import rank",
        "import greedymiser.scoring._kernels",
        "from greedymiser import estimators\nestimators._changed",
        "def f(model):\n    return model._table(1)",
        "def f(model):\n    model._secret = 1",
        "class A:\n    def f(self):\n        return self.model._table(1)",
    ],
)
def test_private_names_of_other_packages_are_seen(line):
    assert len(privacy_faults(line, "curve", own_names(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "from greedymiser._core.files import replace_file",
        "from greedymiser.curve.curve import _best",
        "from greedymiser.estimators import Miser\nMiser.__new__",
        "from sklearn.utils import _safe_indexing\nimport os\nos._exit(1)",
        "def f(pair):\n    return pair._replace(a=1), pair.__dict__, pair.a_",
        "class A:\n    def f(self):\n        return self._b, super()._b, type(self)._b",
        "class A:\n    def _b(self): pass\ndef f(a):\n    return a._b()",
    ],
)
def test_private_names_of_ones_own_pass(line):
    assert privacy_faults(line, "curve", own_names(line)) == []


def test_a_room_has_its_private_names_in_common():
    line = "def f(model):\n    return model._b"
    assert privacy_faults(line, "cascades.early_exit", own_names("class A:\n    _b = 1")) == []


def test_other_checks_can_fail():
    assert imports_library("def f():\n    from numba import njit", "numba")
    assert imports_library("import matplotlib.pyplot as plt", "matplotlib")
    assert compiles("def f():\n    from numba import njit")
    assert compiles("from numba.core.decorators import jit as kernel")
    assert compiles("import numba\n@numba.njit(cache=True)\ndef f(): pass")
    assert compiles("import numba as nb\nf = nb.vectorize(abs)")
    assert not compiles("from greedymiser._core.compiling import njit\n@njit\ndef f(): pass")
    assert not compiles("from numba import types\nfrom numba.extending import intrinsic")
    assert prints("def f():\n    print(1)")
    assert not prints('"""print(1)"""\nself.print(1)')


# What happens on import

PROBE = '''
import json, sys
from numba.core import event
from numba.core.dispatcher import Dispatcher

package = sys.argv[1]
heavy = set()

class Watch:
    """Hide the heavy libraries, and note who asks for them. Scikit-learn does, and may."""

    def find_spec(self, name, path=None, target=None):
        if name in ("matplotlib", "pandas"):
            frame = sys._getframe(1)
            while frame.f_globals.get("__name__", "").startswith("importlib."):
                frame = frame.f_back
            importer = frame.f_globals["__name__"].partition(".")[0]
            if importer != "sklearn":
                heavy.add(f"{importer} imports {name}")
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

watch = Watch()
sys.meta_path.insert(0, watch)
with event.install_recorder("numba:compile") as recorder:
    __import__(package)
    sys.meta_path.remove(watch)
    # A public name may be looked up lazily, so ask for all of them.
    exec(f"from {package} import *")
ours = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == package]
kernels = [value for module in ours for value in list(vars(module).values())
           if isinstance(value, Dispatcher)]
print(json.dumps({
    "heavy": sorted(heavy),
    "modules": len(ours),
    # Has code, be it compiled just now or read from Numba's cache.
    "ready": sorted({kernel.__name__ for kernel in kernels if kernel.signatures}),
    # Catches what is not a kernel of a module: closures, vectorize, jitclass.
    "compilations": sum(when_and_what[1].is_start for when_and_what in recorder.buffer),
}))
'''


def probe(package: str, folder: Path) -> dict:
    """What importing a package brings along, in a fresh interpreter."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    # With the JIT off, as for coverage, there would be nothing to see.
    env = {**os.environ, "PYTHONPATH": path, "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, package],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.subprocess
def test_importing_the_package_is_light():
    report = probe(PACKAGE, SOURCE.parent)
    assert report["modules"] > 0
    assert report["heavy"] == []
    assert report["ready"] == []
    assert report["compilations"] == 0


@pytest.mark.subprocess
def test_the_probe_sees_what_is_heavy(tmp_path):
    (tmp_path / "glutton.py").write_text(
        "import sklearn.utils.fixes\n"
        "try:\n"
        "    import matplotlib.pyplot\n"
        "except ImportError:\n"
        "    pass\n"
        "from numba import njit\n"
        "@njit\n"
        "def lazy(x):\n"
        "    return x\n"
        "@njit('int64(int64)')\n"
        "def eager(x):\n"
        "    return x\n"
    )
    report = probe("glutton", tmp_path)
    assert report == {
        "heavy": ["glutton imports matplotlib"],
        "modules": 1,
        "ready": ["eager"],
        "compilations": 1,
    }
