"""``greedymiser baseline``: what a model of LightGBM or XGBoost costs, and how good it is."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from greedymiser._core.amounts import money
from greedymiser.cli.app import Costs, Drop, Qid, TargetOption
from greedymiser.cli.commands.score import encoded, score_of, scores_of_model
from greedymiser.cli.errors import InputError, Reads
from greedymiser.cli.inputs import Task, TrainingData
from greedymiser.cli.printing import say
from greedymiser.cli.tables import show_receipt
from greedymiser.costs.files import CostFile, read_costs

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.model.predictor import Predictor

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
    prices = read_costs(costs)
    predictor = _metered(model, prices)
    show_receipt(predictor)
    whole = prices.costs.total(range(prices.costs.n_features))
    say(
        f"A prediction costs {money(predictor.cost_, prices.unit)}, of "
        f"{money(whole, prices.unit)} for everything: {len(predictor.features_used_)} of "
        f"{prices.costs.n_features} features are used.",
    )
    if data is not None:
        scores_of_model(predictor, data, target, scoring, qid, drop or ())
        dropped = "".join(f" --drop {name}" for name in drop or ())
        say(
            f"What a budget would save: greedymiser curve {data} --costs {costs} --target "
            f"{target or 'TARGET'}{dropped} --baseline {model} --out curve"
        )


def cost_and_score(path: Path, job: TrainingData, curve: TradeoffCurve) -> tuple[float, float]:
    """What a model of another library costs, and its score on the rows that a curve goes by."""
    assert job.valid is not None
    if curve.scoring == "total_cost":
        raise InputError("--baseline cannot be compared by total_cost; name another --scoring")
    predictor = _metered(path, job.costs)
    raw, _ = predictor.run(predictor.table(job.valid.X), job.valid.qid)
    y = encoded(predictor, job.valid.y)
    scoring = curve.models[0].scoring
    if isinstance(scoring, str) and scoring != "loss":
        return predictor.cost_, score_of(predictor, scoring, y, raw, job.valid.qid)
    if job.task is Task.ranking:
        raise InputError("--baseline needs a --scoring to compare rankers by, such as ndcg@5")
    loss = curve.models[0].predictor_.loss
    return predictor.cost_, -float(loss.value(y, raw[0] if len(raw) == 1 else raw, None))


def _metered(path: Path, prices: CostFile) -> Predictor:
    """The model of a file, with a bill."""
    from greedymiser.estimators.baselines import baseline as metered

    predictor = metered(_read_model(path), prices.costs)
    return replace(predictor.predictor_, about={"cost_unit": prices.unit or ""})


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
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{library} cannot read {str(path)!r}: {reason}") from None
