"""How Sphinx builds the site: ``make docs``. Nothing is fetched from elsewhere."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]
# The same pictures everywhere, and no window.
os.environ["MPLBACKEND"] = "agg"

from ordering import described  # noqa: E402

from greedymiser import __version__  # noqa: E402

project = "greedymiser"
author = "The greedymiser developers"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "gallery/README.rst",
    "gallery/sg_execution_times.rst",
    "sg_execution_times.rst",
]
templates_path = ["_templates"]
nitpicky = True

# Pages

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Quotes in values are straight: they are to be copied.
smartquotes = False
# Snippets of the pages are run by tests/test_docs.py.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The reference

autosummary_generate = True
# What a parameter may be is said in its paragraph, in words.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
toc_object_entries_show_parents = "hide"

# The gallery: every example is run, and has a picture.

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "ordering.by_subject",
    "reset_argv": "ordering.arguments",
    "thumbnail_size": (600, 400),
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 60,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "image_scrapers": ("matplotlib",),
    "capture_repr": ("_repr_html_", "__repr__"),
}
# What it looks like

html_theme = "pydata_sphinx_theme"
html_title = "greedymiser"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 8,
    "secondary_sidebar_items": ["page-toc"],
    "show_nav_level": 1,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "article_header_start": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "start": [], "questions": []}


# Pages are read on their own, too, and there they point to files of the repository. Here an example
# is its page in the gallery, and what is included is a page.
LINKS = [
    (r"\]\(\.\./examples/(\w+)\.py\)", r"](gallery/\1.rst)"),
    (r"\]\(\.\./CONTRIBUTING\.md", "](contributing.md"),
    (r"\]\(\.\./CHANGELOG\.md", "](changes.md"),
]
# A folder cannot be downloaded: its name has to do.
FOLDER = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)\)")


PICTURE = re.compile(r"!\[([^\]]+)\]\(images/(\w+)\.png\)")
# Which of the pictures that tools/draw_pictures.py draws is seen where.
VARIANTS = {
    "": "only-light d-none d-sm-block",
    "_dark": "only-dark d-none d-sm-block",
    "_narrow": "only-light d-sm-none",
    "_narrow_dark": "only-dark d-sm-none",
}


def fitting_pictures(picture: re.Match[str]) -> str:
    """All variants of a picture, of which the page shows the one that fits."""
    alt, name = picture.groups()
    return "\n\n".join(
        f"```{{image}} images/{name}{variant}.png\n:alt: {alt}\n:class: {classes}\n```"
        for variant, classes in VARIANTS.items()
        if (ROOT / "docs" / "images" / f"{name}{variant}.png").is_file()
    )


def turn_links(app: Any, name: str, source: list[str]) -> None:
    """Let links out of ``docs`` point into the site, and pictures fit the page."""
    if name == "gallery/index":
        source[0] = described(source[0])
        return
    text = PICTURE.sub(fitting_pictures, source[0])
    for pattern, replacement in LINKS:
        text = re.sub(pattern, replacement, text)

    def named(link: re.Match[str]) -> str:
        return link[1] if (ROOT / "docs" / link[2]).is_dir() else link[0]

    source[0] = FOLDER.sub(named, text)


# What other rooms of the house ask of an estimator, and no user does.
INDOORS = {"check_features", "look_at", "prepare"}


def skip_foreign(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool:
    """Leave out what scikit-learn and Python add to our classes; their own pages tell of it."""
    home = getattr(member, "__module__", None) or getattr(
        getattr(member, "fget", None), "__module__", None
    )
    foreign = home is not None and not str(home).startswith("greedymiser")
    return skip or foreign or name in INDOORS


def add_defaults(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Say the default of every parameter beside its type, as the signature has it."""
    if "Parameters" not in lines or not callable(thing):
        return
    defaults = {one.name: one.default for one in inspect.signature(thing).parameters.values()}
    for i in range(lines.index("Parameters") + 2, len(lines)):
        if lines[i].startswith("---"):  # of the next heading
            return
        found = re.fullmatch(r"(\w+(?:, \w+)*) : (.+)", lines[i])
        if found is None or "default" in found[2] or found[2].endswith("optional"):
            continue
        names = found[1].split(", ")
        values = [repr(defaults.get(name, inspect.Parameter.empty)) for name in names]
        if not any(value.startswith("<") for value in values):
            said = " and ".join(dict.fromkeys(values))
            lines[i] += f", default {said}".replace("'", '"')


def setup(app: Any) -> dict[str, Any]:
    """Connect them."""
    app.connect("source-read", turn_links)
    app.connect("autodoc-skip-member", skip_foreign)
    # Before numpydoc, which makes paragraphs of the sections.
    app.connect("autodoc-process-docstring", add_defaults, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
