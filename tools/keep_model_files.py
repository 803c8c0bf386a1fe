"""Write model files, and what they must predict, to tests/files.

Run it once when the format number goes up: ``python tools/keep_model_files.py``. A file is named
after the format that its model needs. Files that are there are never written again, since the point
of them is to be old.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    GatedClassifier,
    GatedRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    ModelFamily,
    Predictor,
    as_predictor,
    load,
    save,
    tradeoff_curve,
)
from greedymiser.files.container import from_safetensors
from greedymiser.losses import Huber
from greedymiser.model.exit_rules import Above
from greedymiser.model.predictor import Stage

FOLDER = Path(__file__).parents[1] / "tests" / "files"

COSTS = CostModel.from_resources(
    {"fetch": 3.0, "decode": 0.5, "ask": 1.0, "free": 0.0},
    {
        "age": ["ask"],
        "größe": ["fetch", "decode"],
        "colour": ["fetch"],
        "code": ["free"],
        "answer": [],
    },
    tree_cost=0.01,
)


def table(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """Columns of all kinds: numbers, NaN, text, numbers as categories, and a mixture."""
    frame = pd.DataFrame(rng.standard_normal((n, 2)).round(3), columns=["age", "größe"])
    frame.loc[::7, "age"] = np.nan
    frame["colour"] = pd.Categorical(rng.choice(["rot", "", "grün", "日本"], n))
    frame["code"] = pd.Categorical(rng.choice([7, 11, 13], n))
    mixture = np.array(["yes", 3, 2.5, True], dtype=object)
    frame["answer"] = pd.Categorical(mixture[rng.integers(4, size=n)])
    return frame


def models() -> Iterator[tuple[str, Any, Any, Any]]:
    """Name, model, X and queries of every file."""
    rng = np.random.default_rng(0)
    X, qid = table(rng, 400), np.repeat(np.arange(40), 10)
    y = X["age"].fillna(1.0) + X["größe"] + (X["colour"] == "rot") + (X["code"] == 11)
    y += 0.5 * (X["answer"] == "yes")
    plain = X[["age", "größe"]].to_numpy()
    small = {"max_iter": 12, "max_depth": 3, "n_jobs": 1}
    regressor = MiserRegressor(COSTS, tradeoff=1e-4, loss=Huber(1.5), **small).fit(X, y)
    yield "regressor", regressor, X[:30], None
    three = np.array(["low", "mid", "high"])[np.digitize(y, [0.0, 1.5])]
    yield "classes", MiserClassifier(**small).fit(plain, three), plain[:30], None
    two = MiserClassifier(COSTS, **small).fit(X, (y > 0.5).astype(np.int32))
    exits = EarlyExitClassifier(two, threshold=0.7, every=4).fit(X, two.predict(X))
    yield "early-exit", exits, X[:30], None
    stars = np.clip(np.round(y), 0, 4)
    ranker = MiserRanker(tradeoff=1e-4, **small).fit(plain, stars, qid=qid)
    ranks = EarlyExitRanker(ranker, threshold=0.3, every=3).fit(plain, stars, qid=qid)
    some = plain[:40], qid[:40]
    yield "ranker", ranks, *some
    yield "cascade", cascade(regressor), X[:30], None
    counts = MiserRegressor(loss="poisson", tradeoff=1e6, **small).fit(plain, stars)
    yield "constant", counts, plain[:5], None
    paid = MiserRegressor(COSTS, **small)
    curve = tradeoff_curve(
        paid, X[:300], y[:300], X_val=X[300:], y_val=y[300:], tradeoffs=[0.0, 1e-3, 1e-2]
    )
    yield "family", curve, X[:30], None
    base = MiserClassifier(COSTS, max_iter=12, learning_rate=0.3, n_jobs=1)
    asked = np.where(X["age"] > 0.4, X["größe"] > 0, X["age"] > -0.3)
    gated = GatedClassifier(base, tradeoff=0.03, gate="tree").fit(X, asked)
    yield "gates", gated, X[:30], None
    base = MiserRanker(costs=[1.0, 10.0], learning_rate=0.3, **small)
    yield "first-of-query", GatedRanker(base, budget=6.0).fit(plain, stars, qid=qid), *some
    errors = {False: {False: 0, True: 5, "ask": 1}, True: {False: 20, True: 0, "ask": 1}}
    careful = MiserClassifier(COSTS, error_costs=errors, **small).fit(X, y > 0.5)
    yield "error-costs", careful, X[:30], None


def cascade(regressor: MiserRegressor) -> Predictor:
    """Two stages that score rows anew, each with trees of its own."""
    first, whole = regressor.truncate(4).ensemble_, regressor.ensemble_
    stages = (Stage(first, 0, 4, 4), Stage(whole, 0, whole.n_iter, whole.n_trees))
    return replace(as_predictor(regressor), stages=stages, rule=Above((0.5,)))


def expected(predictor: Predictor, X: Any, qid: Any) -> dict[str, Any]:
    """What must come out, in plain JSON; NaN is null."""
    answers: dict[str, Any] = {
        "raw": predictor.raw_predict(X, qid).tolist(),
        "predict": predictor.predict(X, qid).tolist(),
        "prediction_costs": predictor.prediction_costs(X, qid).tolist(),
        "leaving_stages": predictor.leaving_stages(X, qid).tolist(),
        "receipt": str(predictor.receipt()),
        "features_used": predictor.features_used_,
        "resources_used": predictor.resources_used_,
    }
    if predictor.kind == "classifier":
        answers["predict_proba"] = predictor.predict_proba(X).tolist()
    if isinstance(predictor, ModelFamily):
        answers["models"] = [
            {"cost": cost, "score": score, "raw": model.raw_predict(X).tolist()}
            for model, cost, score in zip(
                predictor.models, predictor.model_costs, predictor.scores, strict=True
            )
        ]
    columns = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X)
    rows = {
        str(name): [None if value != value else value for value in columns[name].tolist()]
        for name in columns
    }
    is_category = {str(name): columns[name].dtype == "category" for name in columns}
    return {
        "named": isinstance(X, pd.DataFrame),
        "categorical": [name for name, found in is_category.items() if found],
        "rows": rows,
        "qid": None if qid is None else qid.tolist(),
        "answers": answers,
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, model, X, qid in models():
        draft = FOLDER / "draft.miser"
        save(model, draft)
        number = json.loads(from_safetensors(draft.read_bytes())[1])["format"]
        path = draft.with_name(f"format-{number}-{name}.miser")
        if path.exists():
            draft.unlink()
            continue
        draft.rename(path)
        family = load(path) if name == "family" else as_predictor(model)
        told = json.dumps(expected(family, X, qid), ensure_ascii=False)
        path.with_suffix(".json").write_text(told + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
