"""Usage: python tools/fuzz [--seconds 60] [--seed 0] [models] [costs] [csv] [parquet] [letor]."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.running import main

if __name__ == "__main__":
    sys.exit(main())
