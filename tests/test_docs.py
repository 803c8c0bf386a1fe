"""Every Python snippet of README and docs runs, each in a fresh namespace and folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(match[1], id=f"{page.name}-{number}")
    for page in PAGES
    for number, match in enumerate(re.finditer(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


# shap makes its colour maps with methods that matplotlib is about to drop, while it is imported.
@pytest.mark.filterwarnings("ignore:The set_:PendingDeprecationWarning")
@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet_runs(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
    # Where a line says what it prints, it prints that.
    promised = re.findall(r"^print\(.*\)\s+# (\[.*\]|\d[\d.]*)$", code, re.MULTILINE)
    printed = capsys.readouterr().out.splitlines()
    for line in promised:
        assert line in [shown.strip() for shown in printed]


def test_there_are_snippets():
    assert len(SNIPPETS) >= 4


def test_links_and_pictures_of_the_pages_exist():
    for page in PAGES:
        assert page.stat().st_size > 0
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
