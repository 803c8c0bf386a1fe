"""Which share of the rows needs which source."""

from __future__ import annotations

from typing import Any

import numpy as np

from greedymiser.on_demand.request import Request
from greedymiser.on_demand.row_walk import RowWalk
from greedymiser.on_demand.served_model import ServedModel


def asked_shares(served: ServedModel, X: Any) -> dict[str, float]:
    """The share of the rows of X for which each source or intermediate is called.

    With ``charge="row"`` a source is called if the path of a row asks for one of its columns, else
    if the row gets to a stage that does.
    """
    predictor = served.predictor
    table = predictor.table(X)
    if not table.n_rows:
        raise ValueError("sample must have at least one row")
    if predictor.charge == "row":
        asked = _asked_by_paths(served, table.rows(0, table.n_rows, predictor.features))
    else:
        left = predictor.leaving_stages(table)
        asked = np.zeros((table.n_rows, predictor.n_features), dtype=bool)
        for k in range(len(predictor.stages)):
            for feature in predictor.stage_features(k):
                asked[left >= k, feature] = True
    called = {source.name: np.zeros(table.n_rows, dtype=bool) for source in served.plan}
    for feature, supply in served.supplies.items():
        for source in supply.plan:
            called[source.name] |= asked[:, feature]
    return {name: float(rows.mean()) for name, rows in called.items()}


def _asked_by_paths(served: ServedModel, rows: Any) -> Any:
    requests = [Request(i, None) for i in range(len(rows))]
    walk = RowWalk(served, requests)
    walk.tell_all(np.ascontiguousarray(rows, dtype=np.float64))
    walk.release()
    return walk.way.asked.astype(bool)
