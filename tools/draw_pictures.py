"""Draw the pictures of README and docs: light and dark, for a desk and for a phone.

Usage: python tools/draw_pictures.py

The thyroid curve is that of ``greedymiser demo``, the other one that of the tutorial, whose
snippets are run. Names end in ``_dark``, ``_narrow`` or both; the site shows the one that fits
(``docs/conf.py``).
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.style

from greedymiser.cli.commands.demo import demo_curve, demo_data
from greedymiser.datasets import load_thyroid
from greedymiser.plotting.axes import new_figure

DOCS = Path(__file__).parents[1] / "docs"

# Inches and dots per inch: as wide as the text of a page, or as a phone.
SIZES = {"": ((7.5, 4.5), 150), "_narrow": ((3.9, 4.4), 200)}
# The dark one has the background of the site.
BACKGROUND = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "#14181e")
STYLES: dict[str, Any] = {"": "default", "_dark": ["dark_background", BACKGROUND]}


def draw(curve: Any, name: str) -> None:
    """Draw a curve in all sizes and styles."""
    for narrow, (size, dpi) in SIZES.items():
        for dark, style in STYLES.items():
            with matplotlib.style.context(style):
                ax = new_figure(size).add_subplot()
                curve.plot(ax)
                path = DOCS / "images" / f"{name}{narrow}{dark}.png"
                ax.figure.savefig(path, dpi=dpi)
                print(path.name)


def curve_of_the_tutorial() -> Any:
    """The curve that the snippets of the tutorial make."""
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / "start.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for snippet in snippets:
            exec(compile(snippet, "start.md", "exec"), names)
            if "curve" in names:
                break
        os.chdir(DOCS)
    return names["curve"]


if __name__ == "__main__":
    thyroid = demo_curve(demo_data(load_thyroid()))
    print(thyroid)
    draw(thyroid, "thyroid_curve")
    draw(curve_of_the_tutorial(), "start_curve")
