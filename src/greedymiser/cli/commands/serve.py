"""``greedymiser serve``: a model as a web service."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from greedymiser.cli.app import ModelFile
from greedymiser.cli.errors import InputError, Reads
from greedymiser.cli.inputs import load_model
from greedymiser.cli.printing import say


def serve(
    model: ModelFile,
    sources: Annotated[
        Path | None,
        typer.Option(
            help="Python file with the Sources, in the name sources; it is run. "
            "It may have options, a dict for OnDemandPredictor. "
            "Without it, requests hold the features."
        ),
        Reads(),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 8000,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds after which an answer must be there.")
    ] = None,
    max_objects: Annotated[int, typer.Option(min=1, help="Most objects of a request.")] = 1000,
) -> None:
    """Answer objects over HTTP: POST /predict, GET /schema, /healthz and /metrics.

    A model file that is replaced is read again.
    """
    load_model(model)  # what is wrong with it is said in a sentence, and at once
    try:
        import uvicorn

        from greedymiser.on_demand.service import app_for
    except ModuleNotFoundError as error:
        raise InputError(
            f"serving needs {error.name}, which is not installed; "
            'run: pip install "greedymiser[serve]"'
        ) from None
    from_module, options = (None, {}) if sources is None else _sources_of(sources)
    if deadline is not None:
        options["deadline"] = deadline
    try:
        app = app_for(model, from_module, max_objects=max_objects, **options)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None
    say(f"serving {model} at http://{host}:{port}")
    uvicorn.run(app, host=host, port=port, log_level="warning")


def _sources_of(path: Path) -> tuple[Any, dict[str, Any]]:
    """The sources and the options of a Python file."""
    from greedymiser.on_demand import Sources

    spec = importlib.util.spec_from_file_location("greedymiser_service", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except Exception as error:
        raise InputError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    sources = getattr(module, "sources", None)
    if not isinstance(sources, Sources):
        raise InputError(f"{path} has no Sources in the name sources")
    options = getattr(module, "options", {})
    if not isinstance(options, dict):
        raise InputError(f"options of {path} must be a dict for OnDemandPredictor")
    return sources, dict(options)
