"""Models in MLflow: a ``pyfunc`` flavor around a model file, so that nothing is pickled.

MLflow is imported when one of the functions is called; the extra ``mlflow`` brings it.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.threads import Threads, thread_count
from greedymiser._core.version import __version__
from greedymiser.files.reading import load
from greedymiser.files.writing import save
from greedymiser.losses import Floats
from greedymiser.model.links import gives_probabilities
from greedymiser.model.predictor import Predictor, as_predictor

if TYPE_CHECKING:
    import pandas as pd

# The file in MLflow's folder. This name, and that of this module, are in models that were saved.
FILE = "model.miser"

# What may be asked for in ``params``.
PARAMS = ("probabilities", "receipts")


def save_model(model: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Save a fitted model in MLflow's format, as a local folder.

    Parameters
    ----------
    model : fitted estimator, search, early exit, cascade, or Predictor
    path : str or Path
        A folder that does not exist yet.
    **options
        For ``mlflow.pyfunc.save_model``, such as ``input_example`` or ``metadata``. By default the
        signature tells the columns that the model uses, and the only requirement is this library.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor
    >>> from greedymiser.files import mlflow_flavor
    >>> X = np.arange(100.0).reshape(50, 2)
    >>> model = MiserRegressor(max_iter=3, min_samples_leaf=5).fit(X, X[:, 0])
    >>> mlflow_flavor.save_model(model, "folder")  # doctest: +SKIP
    >>> mlflow_flavor.load_model("folder").predict(X)  # doctest: +SKIP
    """
    pyfunc = _mlflow().pyfunc
    with tempfile.TemporaryDirectory() as folder:
        pyfunc.save_model(os.fspath(path), **_parts(model, folder, options))


def log_model(model: Any, name: str = "model", **options: Any) -> Any:
    """Log a fitted model to the active run of MLflow, and return what MLflow knows of it.

    Parameters
    ----------
    model : fitted estimator, search, early exit, cascade, or Predictor
    name : str
    **options
        For ``mlflow.pyfunc.log_model``, such as ``registered_model_name``.

    Examples
    --------
    >>> mlflow_flavor.log_model(model, registered_model_name="thyroid")  # doctest: +SKIP
    """
    pyfunc = _mlflow().pyfunc
    with tempfile.TemporaryDirectory() as folder:
        return pyfunc.log_model(name=name, **_parts(model, folder, options))


def load_model(uri: str) -> Predictor:
    """Load a model of this flavor as a ``Predictor``; ``mlflow.pyfunc.load_model`` serves it.

    Parameters
    ----------
    uri : str
        Where MLflow finds it: a folder, ``runs:/...``, ``models:/...``.

    Examples
    --------
    >>> mlflow_flavor.load_model("models:/thyroid/1").prediction_costs(X)  # doctest: +SKIP
    """
    mlflow = _mlflow()
    folder = mlflow.artifacts.download_artifacts(artifact_uri=uri)
    flavor = mlflow.models.Model.load(folder).flavors.get("python_function", {})
    if flavor.get("loader_module") != __name__:
        raise ValueError(f"{uri!r} is no model that greedymiser has saved")
    return load(Path(folder) / flavor["data"] / FILE)


def _mlflow() -> Any:
    try:
        import mlflow
        import mlflow.artifacts
        import mlflow.models
        import mlflow.pyfunc
    except ImportError as error:
        raise ImportError(
            "MLflow is not installed; the extra greedymiser[mlflow] brings it"
        ) from error
    return mlflow


def _parts(model: Any, folder: str, options: dict[str, Any]) -> dict[str, Any]:
    """What MLflow is given: the model file, who reads it, and what it predicts from."""
    data = Path(folder) / "data"
    data.mkdir()
    save(model, data / FILE)
    signature = _signature(as_predictor(load(data / FILE)))
    defaults = {"signature": signature, "pip_requirements": [f"greedymiser=={__version__}"]}
    return {**defaults, **options, "loader_module": __name__, "data_path": os.fspath(data)}


def _signature(predictor: Predictor) -> Any:
    """The columns that the model uses, and what comes out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

    if predictor.feature_names is None:
        shape = (-1, predictor.n_features)
        inputs = Schema([TensorSpec(np.dtype(np.float64), shape)])
    else:
        inputs = Schema(
            [
                ColSpec(
                    _type_of(predictor.categories.get(feature)), predictor.feature_names[feature]
                )
                for feature in predictor.features
            ]
        )
    errors = predictor.error_costs
    answer = ColSpec(_type_of(predictor.classes if errors is None else errors.said), "prediction")
    outputs = Schema([answer, ColSpec("double", "cost")])
    params = ParamSchema([ParamSpec(name, "boolean", False) for name in PARAMS])
    return ModelSignature(inputs, outputs, params)


def _type_of(labels: NDArray[Any] | None) -> str:
    """MLflow's type of a column: that of its labels, or a number."""
    kinds = set() if labels is None else set(map(type, labels.tolist()))
    if kinds and kinds <= {int}:
        return "long"
    if kinds <= {float}:
        return "double"
    return "boolean" if kinds == {bool} else "string"


class PyfuncModel:
    """What ``mlflow.pyfunc.load_model`` calls ``predict`` of."""

    def __init__(self, predictor: Predictor):
        self.predictor = predictor

    def predict(self, X: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Predictions and what each costs, a row each.

        With ``params={"probabilities": True}`` there is a column ``probability_<class>`` for every
        class, with ``{"receipts": True}`` a column ``receipt``: the resources that the row paid
        for, as a JSON list.
        """
        import pandas as pd

        wanted = {name for name, value in (params or {}).items() if value}
        table = self.predictor.table(X)
        raw, left = self.predictor.run(table)
        answers = pd.DataFrame(
            {
                "prediction": self.predictor.respond(raw),
                "cost": self.predictor.bills(table, left),
            }
        )
        if "probabilities" in wanted:
            answers = answers.assign(**self._probabilities(raw))
        if "receipts" in wanted:
            answers["receipt"] = receipts_of(self.predictor, table, left)
        return answers

    def _probabilities(self, raw: Floats) -> dict[str, Floats]:
        model = self.predictor
        if model.classes is None or not gives_probabilities(model.loss):
            raise ValueError("the model gives no class probabilities")
        columns = model.probabilities(raw).T
        labels = model.classes.tolist()
        return {
            f"probability_{label}": column for label, column in zip(labels, columns, strict=True)
        }


def receipts_of(predictor: Predictor, table: Any, left: NDArray[np.intp]) -> list[str]:
    """The resources that each row paid for, as JSON lists."""
    names = predictor.costs.resource_names
    if predictor.charge == "model":
        bought, texts = set[int](), []
        for k in range(len(predictor.stages)):
            needs = (predictor.costs.needs[f] for f in predictor.stage_features(k))
            bought.update(resource for needed in needs for resource in needed)
            texts.append(json.dumps([names[resource] for resource in sorted(bought)]))
        return [texts[k] for k in left.tolist()]
    accounts = predictor.accounts
    with Threads(thread_count(predictor.n_jobs)) as threads:
        marks = accounts.meter.marks(accounts.asked(table, threads, left))
    here = [names[resource] for resource in accounts.meter.resources]
    return [json.dumps([here[j] for j in np.flatnonzero(row).tolist()]) for row in marks]


def _load_pyfunc(path: str) -> PyfuncModel:
    """Called by MLflow."""
    return PyfuncModel(load(Path(path) / FILE))
