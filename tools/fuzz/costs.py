"""Cost files: TOML and CSV."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from fuzz.mutations import ON_BYTES, ON_TEXT, Kind, refused
from greedymiser.costs.files import CostFileError, read_costs, template, write_costs

BY_GROUP = """\
unit = "dollars"
tree_cost = 0.5

[features]
age = 1
"x.y" = 20.68
größe = 0

[groups."blood draw"]
cost = 2.10
features = ["x.y", "größe"]
"""

BY_RESOURCE = """\
[resources]
decode = 3.0
hog = 2.0

[needs]
hog_0 = ["decode", "hog"]
hog_1 = ["hog"]
free = []
"""

AS_CSV = """\
feature,cost,group
age,1,
TSH,20.68,blood
"T,3",9.31,blood
,2.10,blood
"""


def seeds() -> dict[str, bytes]:
    texts = {
        "group.toml": BY_GROUP,
        "resource.toml": BY_RESOURCE,
        "template.toml": template(["a", "b c", "[d]"]),
        "table.csv": AS_CSV,
        "template.csv": template(["a", "b c"], ".csv"),
    }
    return {name: text.encode() for name, text in texts.items()}


def use(path: Path) -> str:
    """See that costs which are read are costs, and can be written and read again."""
    try:
        found = read_costs(path)
    except CostFileError as error:
        return refused(path, error)
    costs = found.costs
    assert np.isfinite(costs.prices()).all()
    assert (costs.prices() >= 0).all()
    assert 0 <= costs.total(range(costs.n_features), n_trees=3) < np.inf
    repr(costs)
    assert costs.feature_names
    if len(set(costs.resource_names)) == len(costs.resource_names):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.toml"
            write_costs(copy, costs, unit=found.unit)
            again = read_costs(copy)
        assert again.unit == found.unit
        assert again.costs.feature_names == costs.feature_names
        assert again.costs.needs == costs.needs
        assert again.costs.resource_costs.tolist() == costs.resource_costs.tolist()
    return "read"


COSTS = Kind("costs", seeds, [*ON_BYTES, *ON_TEXT], use, is_text=True)
