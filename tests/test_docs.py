"""Every Python snippet of README and docs runs, each in a fresh namespace and folder.

So do the examples in docstrings, and the reference leaves no public name out.
"""

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import greedymiser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages that are one tour: each snippet goes on where the last one ended.
TOURS = {"protocol.md", "start.md"}


# A snippet, and what the page says that it prints.
SNIPPET = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
# Pages whose text tells what their picture shows: amounts and scores are those that are printed.
TOLD_IN_WORDS = {"README.md", "index.md", "start.md"}
AMOUNTS_AND_SCORES = re.compile(r"[$€]\d+\.\d\d\b|\b0\.\d{3}\b")


def snippets_of(page: Path) -> list[tuple[str, list[str]]]:
    text = page.read_text()
    found = SNIPPET.findall(text)
    told = []
    if page.name in TOLD_IN_WORDS:
        told = AMOUNTS_AND_SCORES.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    if page.name in TOURS:
        return [("\n".join(code for code, _ in found), [text for _, text in found if text] + told)]
    return [(code, [text] * bool(text) + told) for code, text in found]


# A snippet that several pages have is run once.
SHOWN: dict[str, list[str]] = {}
NAMES: dict[str, str] = {}
for _page in PAGES:
    for _number, (_code, _shown) in enumerate(snippets_of(_page)):
        SHOWN.setdefault(_code, []).extend(_shown)
        NAMES.setdefault(_code, f"{_page.name}-{_number}")
SNIPPETS = [pytest.param(code, shown, id=NAMES[code]) for code, shown in SHOWN.items()]


# shap makes its colour maps with methods that matplotlib is about to drop, while it is imported.
@pytest.mark.filterwarnings("ignore:The set_:PendingDeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize(("code", "shown"), SNIPPETS)
def test_snippet_runs(code, shown, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
    # Where a line says what it prints, it prints that.
    promised = re.findall(r"^print\(.*\)\s+# (\[.*\]|\d[\d.]*)$", code, re.MULTILINE)
    printed = capsys.readouterr().out
    for line in promised:
        assert line in [said.strip() for said in printed.splitlines()]
    for text in shown:
        assert text in printed


def test_there_are_snippets():
    assert len(SNIPPETS) >= 4


def test_links_and_pictures_of_the_pages_exist():
    for page in PAGES:
        assert page.stat().st_size > 0
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_pictures_come_light_and_dark_and_for_phones():
    """As tools/draw_pictures.py draws them, and the site shows the one that fits."""
    names = {file.stem for file in (ROOT / "docs/images").glob("*.png")}
    plain = {name for name in names if not name.endswith(("_dark", "_narrow"))}
    assert plain
    assert names == {
        f"{name}{variant}" for name in plain for variant in ("", "_dark", "_narrow", "_narrow_dark")
    }


def modules_with_examples() -> list[str]:
    found = pkgutil.walk_packages(greedymiser.__path__, "greedymiser.")
    names = [module.name for module in found if not module.name.startswith("greedymiser.engines.")]
    files = {name: Path(importlib.util.find_spec(name).origin) for name in names}
    return [name for name, file in files.items() if ">>> " in file.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def listed_in_the_reference() -> list[str]:
    return re.findall(r"^   ([A-Za-z_.]+)$", (ROOT / "docs/reference.md").read_text(), re.MULTILINE)


def test_reference_is_complete():
    listed = listed_in_the_reference()
    assert set(greedymiser.__all__) - {"__version__"} <= set(listed)
    for room in ("costs", "datasets", "on_demand", "plotting", "plotting.report", "files"):
        public = importlib.import_module(f"greedymiser.{room}").__all__
        names = {name for name in public if not name.isupper()}
        assert names <= {name.rpartition(".")[2] for name in listed}, room
    losses = vars(importlib.import_module("greedymiser.losses"))
    kinds = {name for name in losses if isinstance(losses[name], type) and name[0] != "_"}
    ours = {name for name in kinds if issubclass(losses[name], losses["Loss"])}
    assert {f"losses.{name}" for name in ours} <= set(listed)


@pytest.mark.parametrize("name", listed_in_the_reference())
def test_everything_in_the_reference_has_an_example(name):
    """But errors and warnings, which others raise, and plots, which the gallery shows."""
    room, _, own = name.rpartition(".")
    thing = getattr(importlib.import_module(f"greedymiser.{room}".rstrip(".")), own)
    assert thing.__doc__
    is_error = isinstance(thing, type) and issubclass(thing, Exception)
    if not is_error and room != "plotting":
        assert ">>> " in thing.__doc__, f"{name} has no example"


def test_gallery_shows_every_example():
    examples = {file.stem for file in (ROOT / "examples").glob("*.py")}
    order = (ROOT / "docs/ordering.py").read_text()
    assert set(re.findall(r'^    "(\w+)": ', order, re.MULTILINE)) == examples
