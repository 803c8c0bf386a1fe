"""The order of the gallery, and how its examples are called."""

from pathlib import Path
from typing import Any

EXAMPLES = [
    "medical_tests",
    "price_of_mistakes",
    "ranking_latency",
    "paid_calls",
    "images_on_demand",
    "budget_for_lightgbm",
    "on_a_cluster",
    "on_a_gpu",
]


def by_subject(file: str) -> int:
    """Key by which examples are sorted."""
    return EXAMPLES.index(Path(file).stem)


def arguments(settings: Any, variables: dict[str, Any]) -> list[str]:
    """Command line of an example while the site is built: little, so that it takes seconds."""
    if Path(variables["src_file"]).stem == "images_on_demand":
        return ["--images", "400", "--max-iter", "8"]
    return []
