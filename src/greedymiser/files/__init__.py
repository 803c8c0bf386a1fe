"""Model files without code: ``save`` and ``load``; and models in the formats of others.

A file is a safetensors container: plain arrays, and one JSON text that says what they mean. Loading
one runs nothing that is in it, and everything in it is checked before a kernel sees it.

    layout           the format, by names
    container        arrays and a text as bytes, and the bytes of a file
    writing          from a model to arrays and a text
    checking         readers of JSON and arrays that refuse what is not as it should be
    reading_trees    from arrays to trees and stages
    reading          from arrays and a text to a model

    exports          what all other formats need
    lightgbm_format, xgboost_format, ltr_format, vespa_format
                     a format each
    mlflow_flavor    model files in MLflow
"""

from greedymiser.files.container import ModelFileError
from greedymiser.files.lightgbm_format import encode_for_lightgbm, to_lightgbm
from greedymiser.files.ltr_format import to_ltr
from greedymiser.files.reading import load
from greedymiser.files.vespa_format import to_vespa
from greedymiser.files.writing import save
from greedymiser.files.xgboost_format import to_xgboost

__all__ = [
    "ModelFileError",
    "encode_for_lightgbm",
    "load",
    "save",
    "to_lightgbm",
    "to_ltr",
    "to_vespa",
    "to_xgboost",
]
