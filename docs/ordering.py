"""The order of the gallery, what its thumbnails show, and how its examples are called."""

from pathlib import Path
from typing import Any

# What those read who do not see the thumbnail, by example, in the order of the gallery.
EXAMPLES = {
    "medical_tests": "Accuracy for each budget: one line for a set of tests that all patients get, "
    "one for tests that are chosen for each patient",
    "price_of_mistakes": "Bars of what tests and errors cost a patient: no tests, the same tests "
    "for all, each patient's own, and LightGBM",
    "ranking_latency": "NDCG against milliseconds per document, for one budget for all documents "
    "and with early exits",
    "paid_calls": "Bars of the share of orders for which each paid service was called",
    "images_on_demand": "Bars of the milliseconds per image of a full model and of one with a "
    "budget, by the prices and as measured",
    "budget_for_lightgbm": "Accuracy for each budget, with an existing LightGBM model as a star",
    "on_a_cluster": "The error after each round, equal on two workers and on one machine",
    "on_a_gpu": "Milliseconds per tree on a CPU and on a GPU, by the size of the data",
}


def by_subject(file: str) -> int:
    """Key by which examples are sorted."""
    return list(EXAMPLES).index(Path(file).stem)


def described(index: str) -> str:
    """The gallery's page, with what its thumbnails show, which Sphinx-Gallery leaves empty."""
    for name, text in EXAMPLES.items():
        thumbnail = f"thumb/sphx_glr_{name}_thumb.png\n    :alt:"
        index = index.replace(thumbnail, f"{thumbnail} {text}")
    return index


def arguments(settings: Any, variables: dict[str, Any]) -> list[str]:
    """Command line of an example while the site is built: little, so that it takes seconds."""
    if Path(variables["src_file"]).stem == "images_on_demand":
        return ["--images", "400", "--max-iter", "8"]
    return []
