"""Rewrite the UCI ann-thyroid files in the compressed form that the package embeds.

Usage: python tools/embed_thyroid.py FOLDER

FOLDER holds ann-train.data, ann-test.data and ann-thyroid.cost as UCI distributes them. Numbers are
copied as text, so no digit changes, and the result is the same byte for byte on every run.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src" / "greedymiser" / "datasets" / "data"


def main(source: Path) -> None:
    costs = (source / "ann-thyroid.cost").read_text().splitlines()
    # The cost file leaves out the last feature, which is computed and has no price of its own.
    names = [line.partition(":")[0] for line in costs if line.strip()] + ["FTI"]
    for part in ("train", "test"):
        lines = (source / f"ann-{part}.data").read_text().splitlines()
        rows = [line.split() for line in lines if line.strip()]
        if any(len(row) != len(names) + 1 for row in rows):
            raise ValueError(f"ann-{part}.data: every row must have {len(names) + 1} numbers")
        text = "".join(",".join(row) + "\n" for row in [[*names, "class"], *rows])
        path = TARGET / f"thyroid_{part}.csv.gz"
        path.write_bytes(gzip.compress(text.encode("ascii"), compresslevel=9, mtime=0))
        print(f"{path.name}: {len(rows)} rows, {path.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
