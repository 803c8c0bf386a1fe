"""Settings as text: whatever changes what is computed changes the text, or there is none."""

from __future__ import annotations

import functools
import importlib
import re
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, make_scorer

from greedymiser import MiserRegressor
from greedymiser._core.fingerprint import IncompleteError, describe
from greedymiser.losses import Huber


def written(tmp_path, monkeypatch):
    """A function that makes a module of some source, as if a file had been edited."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(source, name="edited"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return write


@pytest.fixture
def write(tmp_path, monkeypatch):
    yield written(tmp_path, monkeypatch)
    for name in ("edited", "helpers"):
        sys.modules.pop(name, None)


def test_what_is_equal_has_one_text():
    def add(a, b):
        return a + b

    same = [
        ({"a", "b"}, {"b", "a"}),
        ({"x": 1, "y": [2]}, {"y": [2], "x": 1}),
        (functools.partial(add, b=1), functools.partial(add, b=1)),
        (make_scorer(add), make_scorer(add)),
        (make_scorer(f1_score), make_scorer(f1_score)),
        (Huber(2.0), Huber(2.0)),
        (np.arange(5000), np.arange(5000)),
        (LogisticRegression(C=2), LogisticRegression(C=2)),
        (pd.DataFrame({"a": [1, None]}), pd.DataFrame({"a": [1, None]})),
        (re.compile("a+"), re.compile("a+")),
    ]
    for a, b in same:
        assert describe(a) == describe(b)
        assert "0x" not in describe(a)
        assert len(describe(a)) < 300
    assert describe(0.1) == "0.1"
    assert describe("loss") == "'loss'"
    assert describe(MiserRegressor) == describe(MiserRegressor)


# One source and another that differs in a single place; ``setting`` is what is described.
EDITS = {
    "constant": ("def setting(x): return x > .5", "def setting(x): return x > .15"),
    "zero": ("def setting(x): return x + 0.0", "def setting(x): return x - 0.0"),
    "sign of zero": ("setting = 0.0", "setting = -0.0"),
    "type of a constant": ("def setting(x): return x * 1", "def setting(x): return x * 1.0"),
    "name": ("def setting(x): return x.min()", "def setting(x): return x.max()"),
    "default": ("def setting(x, t=1): return x > t", "def setting(x, t=2): return x > t"),
    "keyword default": ("def setting(x, *, t=1): return x > t",
                        "def setting(x, *, t=2): return x > t"),
    "order of arguments": ("def setting(a, b): return a - b", "def setting(b, a): return a - b"),
    "global": ("t = 1\ndef setting(x): return x > t", "t = 2\ndef setting(x): return x > t"),
    "global of a global": (
        "t = 1\ndef cut(x): return x > t\ndef setting(x): return cut(x)",
        "t = 2\ndef cut(x): return x > t\ndef setting(x): return cut(x)",
    ),
    "global that is an object": (
        "class Box: pass\nbox = Box()\nbox.t = [1]\ndef setting(x): return x > box.t[0]",
        "class Box: pass\nbox = Box()\nbox.t = [2]\ndef setting(x): return x > box.t[0]",
    ),
    "inner function": (
        "def setting(x):\n  return [(lambda v: v > 1)(v) for v in x]",
        "def setting(x):\n  return [(lambda v: v > 2)(v) for v in x]",
    ),
    "global of an inner function": (
        "t = 1\ndef setting(x):\n  return [(lambda v: v > t)(v) for v in x]",
        "t = 2\ndef setting(x):\n  return [(lambda v: v > t)(v) for v in x]",
    ),
    "closure": (
        "def make(t):\n  def score(x): return x > t\n  return score\nsetting = make(1)",
        "def make(t):\n  def score(x): return x > t\n  return score\nsetting = make(2)",
    ),
    "closure over a function": (
        "def make(f):\n  return lambda x: f(x)\nsetting = make(lambda x: x + 1)",
        "def make(f):\n  return lambda x: f(x)\nsetting = make(lambda x: x + 2)",
    ),
    "exception": (
        "def setting(x):\n  try: return 1 / x\n  except ZeroDivisionError: return 0",
        "def setting(x):\n  try: return 1 / x\n  except ValueError: return 0",
    ),
    "attribute of a function": (
        "def setting(x): return setting.t\nsetting.t = 1",
        "def setting(x): return setting.t\nsetting.t = 2",
    ),
    "decorated": (
        "import functools\n@functools.lru_cache\ndef setting(x): return x + 1",
        "import functools\n@functools.lru_cache\ndef setting(x): return x + 2",
    ),
    "wrapped by a library": (
        "import contextlib\n@contextlib.contextmanager\ndef setting(): yield 1",
        "import contextlib\n@contextlib.contextmanager\ndef setting(): yield 2",
    ),
    "compiled": (
        "from numba import njit\n@njit\ndef setting(x): return x + 1",
        "from numba import njit\n@njit\ndef setting(x): return x + 2",
    ),
    "how it is compiled": (
        "from numba import njit\n@njit\ndef setting(x): return x + 1",
        "from numba import njit\n@njit(fastmath=True)\ndef setting(x): return x + 1",
    ),
    "called by what is compiled": (
        "from numba import njit\n@njit\ndef f(x): return x + 1\n@njit\ndef setting(x): return f(x)",
        "from numba import njit\n@njit\ndef f(x): return x + 2\n@njit\ndef setting(x): return f(x)",
    ),
    "method": (
        "class Own:\n  def values(self, x): return self.f(x)\n  def f(self, x): return x\n"
        "setting = Own()",
        "class Own:\n  def values(self, x): return self.f(x)\n  def f(self, x): return 20 * x\n"
        "setting = Own()",
    ),
    "bound method": (
        "class Own:\n  def f(self, x): return x > self.t\nown = Own()\nown.t = 1\nsetting = own.f",
        "class Own:\n  def f(self, x): return x > self.t\nown = Own()\nown.t = 2\nsetting = own.f",
    ),
    "method of a base": (
        "class A:\n  def f(self, x): return x\nclass Own(A): pass\nsetting = Own()",
        "class A:\n  def f(self, x): return 2 * x\nclass Own(A): pass\nsetting = Own()",
    ),
    "loss": (
        "from greedymiser.losses import Loss\nclass Own(Loss):\n"
        "  def gradients(self, y, raw): return 1 * (raw - y), 1\nsetting = Own()",
        "from greedymiser.losses import Loss\nclass Own(Loss):\n"
        "  def gradients(self, y, raw): return 20 * (raw - y), 1\nsetting = Own()",
    ),
    "method of a metaclass": (
        "class M(type):\n  def f(cls): return 1\nclass Own(metaclass=M): pass\nsetting = Own()",
        "class M(type):\n  def f(cls): return 2\nclass Own(metaclass=M): pass\nsetting = Own()",
    ),
    "super": (
        "class A:\n  def f(self): return 1\nclass Own(A):\n  def f(self): return super().f()\n"
        "setting = Own()",
        "class A:\n  def f(self): return 2\nclass Own(A):\n  def f(self): return super().f()\n"
        "setting = Own()",
    ),
    "property": (
        "class Own:\n  @property\n  def f(self): return 1\nsetting = Own()",
        "class Own:\n  @property\n  def f(self): return 2\nsetting = Own()",
    ),
    "cached property": (
        "import functools\nclass Own:\n  @functools.cached_property\n  def f(self): return 1\n"
        "setting = Own()",
        "import functools\nclass Own:\n  @functools.cached_property\n  def f(self): return 2\n"
        "setting = Own()",
    ),
    "static method": (
        "class Own:\n  @staticmethod\n  def f(x): return 1\nsetting = Own()",
        "class Own:\n  @staticmethod\n  def f(x): return 2\nsetting = Own()",
    ),
    "attribute of a class": ("class Own:\n  t = 1\nsetting = Own()",
                             "class Own:\n  t = 2\nsetting = Own()"),
    "state": ("class Own: pass\nsetting = Own()\nsetting.t = 1",
              "class Own: pass\nsetting = Own()\nsetting.t = 2"),
    "slot": ("class Own:\n  __slots__ = ['t']\nsetting = Own()\nsetting.t = 1",
             "class Own:\n  __slots__ = ['t']\nsetting = Own()\nsetting.t = 2"),
    "list of one's own": ("class Own(list): pass\nsetting = Own([1])",
                          "class Own(list): pass\nsetting = Own([2])"),
    "state that pickles leave out": (
        "class Own:\n  def __getstate__(self): return {}\nsetting = Own()\nsetting.t = 1",
        "class Own:\n  def __getstate__(self): return {}\nsetting = Own()\nsetting.t = 2",
    ),
    "partial": (
        "import functools\ndef f(x, t): return x > t\nsetting = functools.partial(f, t=1)",
        "import functools\ndef f(x, t): return x > t\nsetting = functools.partial(f, t=2)",
    ),
    "scorer": (
        "from sklearn.metrics import make_scorer\n"
        "setting = make_scorer(lambda y, p: ((p > .5) == y).mean())",
        "from sklearn.metrics import make_scorer\n"
        "setting = make_scorer(lambda y, p: ((p > .15) == y).mean())",
    ),
    "option of a scorer": (
        "from sklearn.metrics import make_scorer, fbeta_score\n"
        "setting = make_scorer(fbeta_score, beta=1)",
        "from sklearn.metrics import make_scorer, fbeta_score\n"
        "setting = make_scorer(fbeta_score, beta=2)",
    ),
    "array": ("import numpy as np\nsetting = np.arange(5000)",
              "import numpy as np\nsetting = np.arange(5000)[::-1]"),
    "type of an array": ("import numpy as np\nsetting = np.zeros(3)",
                         "import numpy as np\nsetting = np.zeros(3, dtype=np.int64)"),
    "objects in an array": ("import numpy as np\nsetting = np.array(['a', None])",
                            "import numpy as np\nsetting = np.array(['b', None])"),
    "mask": ("import numpy as np\nsetting = np.ma.array([1, 2], mask=[0, 1])",
             "import numpy as np\nsetting = np.ma.array([1, 2], mask=[1, 0])"),
    "frame": ("import pandas as pd\nsetting = pd.DataFrame({'a': [1]})",
              "import pandas as pd\nsetting = pd.DataFrame({'a': [2]})"),
    "regular expression": ("import re\nsetting = re.compile('a')",
                           "import re\nsetting = re.compile('b')"),
    "data class": (
        "import dataclasses\n@dataclasses.dataclass\nclass Own:\n  t: int = 1\nsetting = Own()",
        "import dataclasses\n@dataclasses.dataclass\nclass Own:\n  t: int = 2\nsetting = Own()",
    ),
    "member of an enumeration": (
        "import enum\nclass Own(enum.Enum):\n  A = 1\n  B = 2\nsetting = Own.A",
        "import enum\nclass Own(enum.Enum):\n  A = 1\n  B = 2\nsetting = Own.B",
    ),
    "named tuple": (
        "import typing\nclass Own(typing.NamedTuple):\n  t: int\nsetting = Own(1)",
        "import typing\nclass Own(typing.NamedTuple):\n  t: int\nsetting = Own(2)",
    ),
    "vectorized": ("import numpy as np\nsetting = np.vectorize(lambda x: x + 1)",
                   "import numpy as np\nsetting = np.vectorize(lambda x: x + 2)"),
    "estimator of one's own": (
        "from greedymiser import MiserRegressor\nclass setting(MiserRegressor):\n"
        "  def f(self): return 1",
        "from greedymiser import MiserRegressor\nclass setting(MiserRegressor):\n"
        "  def f(self): return 2",
    ),
    "method of a list": ("setting = [1].count", "setting = [2].count"),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_shows(write, what):
    one, other = EDITS[what]
    text = describe(write(one).setting)
    assert describe(write("# moved\n\n" + textwrap.dedent(one)).setting) == text
    assert describe(write(other).setting) != text


@pytest.mark.parametrize(
    "source",
    [
        "import helpers\ndef setting(x): return x > helpers.t",
        "from helpers import cut\ndef setting(x): return cut(x)",
        "import helpers\ndef setting(x): return helpers.cut(x)",
        "import helpers\ndef setting(x): return getattr(helpers, 't')",
        "import helpers\ndef ask(h): return h.t\ndef setting(x): return ask(helpers)",
        "import helpers as h\nclass Own:\n  def __init__(self): self.h = h\n"
        "  def f(self): return self.h.t\nsetting = Own()",
        "def setting(x):\n  import helpers\n  return helpers.cut(x)",
        "def setting(x):\n  from helpers import cut\n  return cut(x)",
    ],
)
def test_an_edit_of_another_module_shows(write, source):
    write("t = 1\ndef cut(x): return x > t", "helpers")
    text = describe(write(source).setting)
    write("t = 1\n\ndef cut(x): return x > t\n\nother = 3", "helpers")
    assert describe(write(source).setting) == text
    write("t = 2\ndef cut(x): return x > t", "helpers")
    assert describe(write(source).setting) != text


def test_what_refers_to_itself_is_described(write):
    one = write("""
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n > 0 and even(n - 1)
        class Tree:
            def __init__(self): self.up, self.same = [self], type(self)
            def f(self): return __class__, Tree, even
        setting = Tree()
        def local(n):
            def count(n): return n and count(n - 1)
            return count
        counted = local(3)
    """)
    assert describe(one.setting) == describe(one.Tree())
    assert describe(one.counted) == describe(one.local(3))
    assert describe(one.even) != describe(one.odd)
    loop = []
    loop.append(loop)
    assert describe(loop) == "list[<1 up>]"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def setting(x): return float(open('t.txt').read())", "setting calls open"),
        ("def setting(x): return eval('x + 1')", "setting calls eval"),
        ("def setting(x): return [globals()[name] for name in x]", "calls globals"),
        ("def setting(x):\n  import no_such_module", "'no_such_module', which fails"),
        ("import threading\nlock = threading.Lock()\ndef setting(x):\n  with lock: return x",
         "a lock does not show its state"),
        ("setting = (x for x in [1, 2])", "<genexpr> does not show its state"),
        ("import numpy as np\nsetting = np.frompyfunc(lambda x: x + 1, 1, 1)",
         "does not show its state"),
        ("import io\nsetting = open(__file__)", "does not show its state"),
        ("import ctypes\nsetting = ctypes.CDLL(None).abs", "does not show its state"),
        ("setting = []\nfor _ in range(100_000): setting = [setting]", "nested too deeply"),
        ("setting = [[] for _ in range(100_001)]", "more than 100000 parts"),
    ],
)  # fmt: skip
def test_what_cannot_be_described_is_refused(write, source, said):
    setting = write(source).setting
    try:
        with pytest.raises(IncompleteError, match=re.escape(said)):
            describe(setting)
    finally:
        if hasattr(setting, "close"):
            setting.close()


def test_many_shared_parts_take_no_time():
    shared = [0]
    for _ in range(200):
        shared = [shared, shared]
    assert len(describe(shared)) < 300
