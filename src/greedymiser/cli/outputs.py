"""From models to files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greedymiser._files import check_place, write_atomically
from greedymiser.cli.guarding import InputError
from greedymiser.persistence import save

# To predict needs none of those that train: they are imported by the commands that do.
if TYPE_CHECKING:
    from greedymiser.cli.training import Model
    from greedymiser.tradeoff import TradeoffCurve


# By custom, the name of a model file ends like this.
SUFFIX = ".miser"


def make_folder(path: Path) -> Path:
    """Make a folder, and see that it can be written to: before the work, not after it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"cannot write to the folder {str(path)!r}: {error.strerror}") from None
    return path


def new_file(path: Path) -> Path:
    """See that a file can be written here, and make its folder."""
    if path.is_dir():
        raise InputError(f"cannot write the file {str(path)!r}: there is a folder of that name")
    make_folder(path.parent)
    return path


def check_not_read(out: Path, **read: Path) -> None:
    """Refuse to write over what is read, under whatever name."""
    for what, path in read.items():
        if out.exists() and path.exists() and os.path.samefile(out, path):
            raise InputError(f"--out {str(out)!r} is the {what} file itself: {str(path)!r}")


def write_table(table: Any, out: Path) -> None:
    """Write a CSV file, all of it or none."""
    text = table.to_csv(index=False).encode()
    if out.exists() and not out.is_file():  # a pipe or a device, whose place must not be taken
        out.write_bytes(text)
    else:
        write_atomically(check_place(out, "predictions"), text)


def write_curve(
    trained: TradeoffCurve, models: Sequence[Model], out: Path
) -> list[tuple[Path, str]]:
    """Write all there is to a curve; tell the files and what they are."""
    # Imported here, because to predict needs no matplotlib.
    from greedymiser.plotting import plot_receipt

    folder = make_folder(out / "models")
    for left_over in folder.glob(f"model-*{SUFFIX}"):  # of an earlier, longer curve
        left_over.unlink()
    for number, model in enumerate(models, 1):
        save(model, folder / f"model-{number}{SUFFIX}")
    trained.to_csv(out / "curve.csv")
    _save(trained.plot(), out / "curve.png")
    _save(trained.plot_features(), out / "features.png")
    _save(plot_receipt(trained.best(), trained), out / "receipt.png")
    trained.report(out / "report.html")
    return [
        (out / "report.html", "the report, for a browser"),
        (out / "curve.csv", "the curve as a table"),
        (out / "curve.png", "score against cost"),
        (out / "features.png", "what is bought at each trade-off"),
        (out / "receipt.png", "what the best model bought, and when"),
        (folder, f"the {len(models)} models"),
    ]


def _save(ax: Any, path: Path) -> None:
    ax.figure.savefig(path, dpi=150)
