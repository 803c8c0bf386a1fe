"""``greedymiser baseline``: what a model of LightGBM or XGBoost costs, and how good it is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from greedymiser._core.amounts import money
from greedymiser.cli.app import Costs, Drop, Qid, TargetOption
from greedymiser.cli.commands.score import scores_of_model
from greedymiser.cli.errors import InputError, Reads
from greedymiser.cli.printing import say
from greedymiser.cli.tables import show_receipt
from greedymiser.costs.files import read_costs

# The libraries, by how the names of their files end.
LIBRARIES = {".txt": "lightgbm", ".json": "xgboost", ".ubj": "xgboost"}


def baseline(
    model: Annotated[
        Path,
        typer.Argument(help="A model file of LightGBM (.txt) or XGBoost (.json, .ubj)."),
        Reads(),
    ],
    costs: Costs,
    data: Annotated[
        Path | None, typer.Argument(help="Labelled rows to score the model with."), Reads()
    ] = None,
    target: TargetOption = None,
    scoring: Annotated[
        list[str] | None, typer.Option(help="Score to tell. May be repeated.")
    ] = None,
    qid: Qid = None,
    drop: Drop = None,
) -> None:
    """Tell what the model costs that you have, what it buys, and how good it is."""
    from dataclasses import replace

    from greedymiser.baselines import baseline as metered

    prices = read_costs(costs)
    found = metered(_read_model(model), prices.costs)
    predictor = replace(found.predictor_, about={"cost_unit": prices.unit or ""})
    show_receipt(predictor)
    whole = prices.costs.total(range(prices.costs.n_features))
    say(
        f"A prediction costs {money(found.cost_, prices.unit)}, of {money(whole, prices.unit)} for "
        f"everything: {len(found.features_used_)} of {prices.costs.n_features} features are used.",
    )
    if data is not None:
        scores_of_model(predictor, data, target, scoring, qid, drop or ())
        say(
            "What a budget would save: greedymiser curve "
            f"{data} --costs {costs} --target {target or 'TARGET'} --out curve"
        )


def _read_model(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"there is no model at {str(path)!r}")
    library = LIBRARIES.get(path.suffix.lower())
    if library is None:
        raise InputError(
            f"{str(path)!r} must be a model file of LightGBM (.txt) or XGBoost (.json, .ubj)"
        )
    try:
        booster = importlib.import_module(library).Booster
    except ImportError:
        raise InputError(f"to read {str(path)!r} needs {library}, which is not installed") from None
    try:
        return booster(model_file=str(path))
    except Exception as error:  # each library has its own
        said = " ".join(str(error).split())[:200]
        raise InputError(f"{library} cannot read {str(path)!r}: {said}") from None
