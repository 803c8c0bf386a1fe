"""``greedymiser inspect``: what a model file holds."""

from __future__ import annotations

from greedymiser.cli.app import ModelFile
from greedymiser.cli.inputs import load_model
from greedymiser.cli.tables import (
    show_features,
    show_receipt,
    show_settings,
    show_stages,
    show_summary,
)


def inspect(model: ModelFile) -> None:
    """Show what a model costs, what it has bought and when, and how it was trained."""
    trained = load_model(model)
    show_summary(trained)
    show_stages(trained)
    show_receipt(trained)
    show_features(trained)
    show_settings(trained)
