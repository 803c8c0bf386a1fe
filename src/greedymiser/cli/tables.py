"""From models to tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from greedymiser._core.amounts import amount, money, plain_score_name, rounded_score, shortlist
from greedymiser.cli.errors import interruption
from greedymiser.cli.printing import escaped, in_unit, price_of, say, show_table

# To predict needs none of those that train, and to be helped none of those that predict: they are
# imported by the commands that do.
if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.curve.summary import FrontStep
    from greedymiser.model.predictor import Predictor
    from greedymiser.model.protocols import Protocol


def show_steps(trained: TradeoffCurve, steps: Sequence[FrontStep]) -> None:
    """Print models of a curve, the cheapest first: cost, score, and what each adds."""
    from greedymiser.curve.summary import recommendation, step_table
    from greedymiser.scoring import TOTAL_COST

    heads, cells = step_table(trained, steps)
    # In brackets, which no line breaks apart.
    cells = [[*row, adds.replace("  <- recommended", " (recommended)")] for *row, adds in cells]
    rows = [[str(number), *row] for number, row in enumerate(cells, 1)]
    show_table("", ["model", *heads], rows, left="what it adds")
    certain = ", ± one standard error" if any(step.error for step in steps) else ""
    chosen = ""
    if any(step.choice_score is not None for step in steps):
        chosen = " Models are chosen by what these rows and cross-fitting say together."
    what = f"Score: {plain_score_name(trained.scoring)} of the validation rows{certain}; higher"
    if trained.scoring == TOTAL_COST:
        what = "Total: features and errors of a validation row, on average; less"
    advice = recommendation(trained)
    say(f"Recommended: {advice}.", f"{what} is better.{chosen}", "")


def show_baselines(trained: TradeoffCurve, others: Mapping[str, tuple[float, float]]) -> None:
    """Say what budgets would save beside other models, which have a cost and a score."""
    for name, (cost, score) in others.items():
        unit = trained.cost_unit
        line = f"{name}: score {rounded_score(score)} for {money(cost, unit)}."
        as_good = trained.traces[trained.traces["score"] >= score]["cost"].min()
        if as_good < cost:
            line += f" As good for {money(as_good, unit)}: {money(cost - as_good, unit)} less."
        elif not as_good >= cost:
            line += " No model of the curve scores as much."
        say(line, "")


def show_files(files: Sequence[tuple[Path, str]]) -> None:
    """Print which files were written."""
    width = max(len(escaped(str(path))) for path, _ in files)
    say(*(f"{escaped(str(path)).ljust(width)}  {what}" for path, what in files))


def tell_of_half_a_curve(n_models: int, out: Path) -> None:
    """Say what a folder has of a curve that was interrupted."""
    if interruption.happened:
        interruption.keep(f"{str(out)!r} has the best {n_models} of the models that were finished")


def cost_unit(model: Predictor) -> str | None:
    """What a model's file says that its costs are counted in."""
    unit = model.about.get("cost_unit")
    return unit if isinstance(unit, str) and unit else None


def show_summary(model: Predictor) -> None:
    """Print what a model is."""
    about = _about_trees(model)
    last = model.stages[-1]
    rows = [
        ("kind", _text(model.about.get("estimator", model.kind))),
        (in_unit("cost of a prediction", cost_unit(model)), _cost_range(model)),
        ("features", f"{len(model.features_used_)} of {model.n_features}"),
        ("rounds, trees", f"{_rounds(model)}, {last.n_trees}"),
        ("trade-off", _text(_parameters(about).get("tradeoff", "unknown"))),
        ("budget", _budget(model, about)),
        ("stopped by", _why_stopped(model, about)),
    ]
    if model.classes is not None:
        rows.insert(1, ("classes", shortlist(model.classes.tolist())))
    if "validation_score" in about:
        name, score = plain_score_name(_score_of(model, about)), about["validation_score"]
        shown = rounded_score(score) if isinstance(score, float) else _text(score)
        rows.append((f"validation {name}", shown))
    if "search" in about:
        rows.append(("search", _text(about["search"])))
    show_table("Model", ["", " "], rows, left=", ")


def _score_of(model: Predictor, about: dict[str, Any]) -> str:
    """Name of the validation score; files of earlier versions leave it to be guessed."""
    if isinstance(about.get("score"), str):
        return str(about["score"])
    from greedymiser.scoring.names import score_name

    scoring = _parameters(about).get("scoring")
    return score_name(scoring if isinstance(scoring, str) else "loss", model.loss)


def _about_trees(model: Predictor) -> dict[str, Any]:
    """What a file tells about the training of the trees, below the exits between them."""
    about = dict(model.about)
    while isinstance(about.get("base"), dict):
        about = about["base"]
    return about


def _parameters(about: dict[str, Any]) -> dict[str, Any]:
    parameters = about.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def _text(value: Any) -> str:
    """Show a parameter, which a file may hold in any form."""
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _budget(model: Predictor, about: dict[str, Any]) -> str:
    budget = _parameters(about).get("budget", "unknown")
    return price_of(budget, cost_unit(model)) if isinstance(budget, float) else _text(budget)


# Why boosting ends, in plain words; other reasons speak for themselves.
REASONS = {
    "max_iter": "all {max_iter} rounds were trained",
    "early stopping": "more rounds did not help on the validation rows",
    "budget": "nothing more fits the budget",
    "nothing pays": "no split is worth its price any more",
}


def _why_stopped(model: Predictor, about: dict[str, Any]) -> str:
    """Why training ended, and where its rounds were cut."""
    reason, most = _text(about.get("stopped", "unknown")), _parameters(about).get("max_iter")
    if reason not in REASONS or not isinstance(most, int):
        return reason
    text, rounds = f"{reason}: {REASONS[reason].format(max_iter=most)}", _rounds(model)
    if reason == "early stopping" or (reason == "max_iter" and rounds < most):
        why = ", after which the validation score is best" if "validation_score" in about else ""
        text += f"; kept are the first {rounds}{why}"
    return text


def _rounds(model: Predictor) -> int:
    return sum(stage.last - stage.first for stage in model.stages)


def _cost_range(model: Predictor) -> str:
    unit = cost_unit(model)
    least, most = price_of(model.stage_costs[0], unit), price_of(model.cost_max_, unit)
    if model.charge == "row":
        mean = "" if model.mean_cost is None else f"{price_of(model.mean_cost, unit)} on average, "
        return f"{mean}at most {most}: each row pays for what its own paths ask"
    return most if len(model.stages) == 1 else f"{least} to {most}"


def show_stages(model: Predictor) -> None:
    """Print after which trees rows may leave, if they may."""
    if len(model.stages) == 1:
        return
    rows = [
        (str(k), str(stage.n_trees), price_of(cost, cost_unit(model)), model.why_stopped(k))
        for k, (stage, cost) in enumerate(zip(model.stages, model.stage_costs, strict=True))
    ]
    heads = ["stage", "trees so far", "cost so far", "a row leaves when"]
    show_table("Stages", heads, rows, left="a row leaves when")


def show_receipt(model: Predictor) -> None:
    """Print what a model has bought."""
    receipt = model.receipt()
    if not receipt:
        say("The model has bought nothing: it predicts the same for every row.", "")
        return
    unit = cost_unit(model)
    rows = [
        (
            str(line.iteration),
            str(line.feature),
            ", ".join(line.resources),
            price_of(line.price, unit),
            price_of(line.spent, unit),
            amount(line.gain),
        )
        for line in receipt
    ]
    heads = ["round", "feature", "pays for", in_unit("price", unit), "spent", "gain"]
    show_table("Receipt", heads, rows, left="feature,pays for")


def show_protocol(protocol: Protocol, unit: str | None) -> None:
    """Print what is asked of which rows, and what each resource adds to the mean cost."""
    head, *steps = str(protocol).splitlines()
    say(f"{head}; all costs in {unit}" if unit else head, *steps, "")
    rows = [
        (
            line.resource,
            f"{100 * line.share:.3g}%",
            f"{line.order:.3g}",
            price_of(line.price, unit),
            price_of(line.mean_cost, unit),
        )
        for line in protocol.lines
        if line.share > 0
    ]
    if rows:
        costs = [in_unit("price", unit), in_unit("adds to the mean cost", unit)]
        heads = ["resource", "asked of", "place", *costs]
        show_table("Protocol", heads, rows, left="resource")


def show_features(model: Predictor) -> None:
    """Print what a model uses, and how much each feature gave."""
    ensembles = {id(stage.ensemble): stage.ensemble for stage in model.stages}
    gains = np.sum([ensemble.importances() for ensemble in ensembles.values()], axis=0)
    with np.errstate(over="ignore", invalid="ignore"):  # gains are what a file says
        shares = 100 * (gains / max(gains.sum(), np.finfo(np.float64).tiny))
    prices, unit = model.costs.prices(), cost_unit(model)
    named = zip(model.features, model.features_used_, strict=True)
    used = sorted(named, key=lambda pair: -shares[pair[0]])
    rows = [(str(name), price_of(prices[f], unit), f"{shares[f]:.1f}%") for f, name in used]
    if rows:
        show_table("Features", ["feature", "price alone", "share of gain"], rows, left="feature")


def show_settings(model: Predictor) -> None:
    """Print how a model was trained."""
    rows = []
    about: Any = model.about
    while isinstance(about, dict):
        parameters, changed = _parameters(about), about.get("changed")
        names = [str(name) for name in changed] if isinstance(changed, list) else []
        rows += [(name, _text(parameters[name])) for name in names if name in parameters]
        about = about.get("base")
    rows.append(("costs", str(model.costs).strip("<>")))
    show_table("Settings that are not the default", ["name", "value"], rows, left="name,value")
