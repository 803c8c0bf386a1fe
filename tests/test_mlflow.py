"""Models in MLflow: saved, logged and served with its local store."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    Predictor,
    tradeoff_curve,
)
from greedymiser.files import mlflow_flavor

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not part of dev")

# MLflow warns of much: of types, of its own store, of requirements.
pytestmark = pytest.mark.filterwarnings("default")

COSTS = CostModel.from_resources(
    {"ask": 1.0, "visit": 5.0, "free": 0.0},
    {"age": ["ask"], "colour": ["ask", "visit"], "height": ["visit"], "spare": ["free"]},
)
SMALL = {"max_iter": 12, "max_depth": 3, "n_jobs": 1}


@pytest.fixture(autouse=True)
def local_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({
        "age": rng.standard_normal(300),
        "colour": pd.Categorical(rng.choice(["red", "blue"], 300)),
        "height": rng.standard_normal(300),
        "spare": 0.0,
    })  # fmt: skip
    X.loc[::9, "age"] = np.nan
    return X


@pytest.fixture(scope="module")
def target(frame):
    return (frame["age"].fillna(0) + (frame["colour"] == "red") + frame["height"]).to_numpy()


def test_a_saved_model_predicts_the_same_and_tells_its_costs(frame, target, tmp_path):
    model = MiserClassifier(COSTS, **SMALL).fit(frame, np.digitize(target, [0.0, 1.0]))
    mlflow_flavor.save_model(model, tmp_path / "saved")
    served = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    # Columns that the model does not use need not be there.
    X = frame.astype({"colour": str})[["height", "colour", "age"]]
    answers = served.predict(X)
    assert list(answers) == ["prediction", "cost"]
    assert answers["prediction"].tolist() == model.predict(frame).tolist()
    assert answers["cost"].tolist() == model.prediction_costs(frame).tolist()
    more = served.predict(X, params={"probabilities": True, "receipts": True})
    probabilities = more[[f"probability_{k}" for k in range(3)]].to_numpy()
    assert probabilities.tobytes() == model.predict_proba(frame).tobytes()
    assert {json.dumps(sorted(json.loads(text))) for text in more["receipt"]} == {
        json.dumps(sorted(model.resources_used_))
    }
    loaded = mlflow_flavor.load_model(str(tmp_path / "saved"))
    assert isinstance(loaded, Predictor)
    assert str(loaded.receipt()) == str(model.receipt())
    # Nothing is pickled.
    assert not [path for path in (tmp_path / "saved").rglob("*.pkl")]


def test_the_signature_has_the_columns_in_use(frame, target, tmp_path):
    model = MiserRegressor(COSTS, **SMALL).fit(frame, target)
    mlflow_flavor.save_model(model, tmp_path / "saved")
    signature = mlflow.models.get_model_info(str(tmp_path / "saved")).signature
    columns = {spec.name: spec.type.name for spec in signature.inputs}
    assert columns == {"age": "double", "colour": "string", "height": "double"}
    assert [spec.name for spec in signature.outputs] == ["prediction", "cost"]
    with pytest.raises(mlflow.exceptions.MlflowException, match="height"):
        mlflow.pyfunc.load_model(str(tmp_path / "saved")).predict(frame[["age", "colour"]])


@pytest.mark.parametrize("charge", ["row", "exits"])
def test_receipts_are_those_of_the_row(frame, target, tmp_path, charge):
    y = (target > 0.5).astype(int)
    if charge == "row":  # who is old needs no visit
        y = np.where(frame["age"] > 0, 1, y)
        model = MiserClassifier(COSTS, charge="row", tradeoff=0.003, **SMALL).fit(frame, y)
    else:
        inside = MiserClassifier(COSTS, tradeoff=1e-3, **SMALL).fit(frame, y)
        model = EarlyExitClassifier(inside, threshold=0.6, every=2).fit(frame, y)
    mlflow_flavor.save_model(model, tmp_path / "saved")
    served = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    answers = served.predict(frame.astype({"colour": str}), params={"receipts": True})
    costs = model.prediction_costs(frame)
    assert answers["cost"].tolist() == costs.tolist()
    prices = dict(zip(COSTS.resource_names, COSTS.resource_costs.tolist(), strict=True))
    bills = [sum(prices[name] for name in json.loads(text)) for text in answers["receipt"]]
    np.testing.assert_allclose(bills, costs)
    if charge == "row":
        assert len(set(bills)) > 1


def test_models_without_names_take_arrays(frame, target, tmp_path):
    X = frame[["age", "height"]].to_numpy()
    model = MiserRanker(**SMALL).fit(X, np.clip(target.round(), 0, 3), qid=np.repeat(range(30), 10))
    mlflow_flavor.save_model(model, tmp_path / "saved")
    answers = mlflow.pyfunc.load_model(str(tmp_path / "saved")).predict(X)
    assert answers["prediction"].tolist() == model.predict(X).tolist()
    with pytest.raises(ValueError, match="the model gives no class probabilities"):
        mlflow_flavor.PyfuncModel(model.predictor_).predict(X, {"probabilities": True})


def test_a_logged_model_and_a_family(frame, target, tmp_path):
    curve = tradeoff_curve(
        MiserRegressor(COSTS, **SMALL), frame[:200], target[:200], X_val=frame[200:],
        y_val=target[200:], tradeoffs=[0.0, 0.05],
    )  # fmt: skip
    with mlflow.start_run():
        info = mlflow_flavor.log_model(curve, registered_model_name="misers")
    family = mlflow_flavor.load_model(info.model_uri)
    assert family.best(5).predict(frame).tolist() == (
        curve.best(5, train=False).predict(frame).tolist()
    )
    served = mlflow.pyfunc.load_model("models:/misers/1")
    answers = served.predict(frame.astype({"colour": str}))
    assert answers["prediction"].tolist() == family.predict(frame).tolist()


def test_models_of_others_are_refused(tmp_path):
    class Other(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            return model_input

    mlflow.pyfunc.save_model(tmp_path / "other", python_model=Other())
    with pytest.raises(ValueError, match="is no model that greedymiser has saved"):
        mlflow_flavor.load_model(str(tmp_path / "other"))
