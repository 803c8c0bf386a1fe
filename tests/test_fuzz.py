"""Damaged files are refused, or work: a few here, as many as there is time for in make fuzz."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("limits memory as Linux does", allow_module_level=True)

FUZZER = Path(__file__).parents[1] / "tools" / "fuzz"
FINDINGS = Path(__file__).parent / "files" / "findings"

# So many of each kind take a second or two; ``make fuzz`` tries more.
FILES = {"models": 200, "costs": 200, "csv": 20, "parquet": 40, "letor": 20}


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FUZZER), *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.subprocess
@pytest.mark.parametrize("kind", FILES)
def test_damaged_files_are_refused_or_work(kind, tmp_path):
    n = FILES[kind]
    done = fuzz(kind, "--files", str(n), "--seed", "1", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    assert f"{kind}: {n} files of seed 1, 0 findings" in done.stdout
    # Not all of them are refused at once, and not all are good.
    assert re.search(r"\d+  \w+: (loaded|read|trained)", done.stdout)
    assert re.search(r"\d+  \w+: refused", done.stdout)


@pytest.mark.subprocess
def test_past_findings_stay_mended():
    done = fuzz("--replay", str(FINDINGS))
    assert done.returncode == 0, done.stderr
    for kind in FILES:
        n = len(list((FINDINGS / kind).iterdir()))
        assert n > 0
        assert f"{kind}: {n} past findings, 0 failures" in done.stdout


# The fuzzer itself


@pytest.mark.subprocess
def test_what_should_not_be_is_found_and_made_small(tmp_path):
    """Breaks a reader, and sees that the fuzzer sees it."""
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(FUZZER.parent)!r})\n"
        f"sys.argv = [{str(FUZZER)!r}, *sys.argv[1:]]\n"
        "import greedymiser.costs.files as costfiles\n"
        "def fail(name):\n"
        "    raise KeyError(name) if 'T' in name else ValueError(name)\n"
        "costfiles._cost_columns = lambda row: fail(''.join(row))\n"
        "from fuzz import running\n"
        "from pathlib import Path\n"
        "kind = running.kind_of('costs')\n"
        "data = b'feature,cosT,group\\n' + b'a,1,\\n' * 50\n"
        "path = Path(sys.argv[1]) / 'x.csv'\n"
        "path.write_bytes(data)\n"
        "running.signal.signal(running.signal.SIGPROF, running._too_slow)\n"
        "fate, fault = running.attempt(kind, path)\n"
        "assert (fate, 'KeyError' in fault) == ('failed', True)\n"
        "print(running.shrunk(kind, path, data, fault))\n"
    )
    done = subprocess.run(
        [sys.executable, str(broken), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "b'T'\n"), done.stderr


@pytest.mark.subprocess
def test_the_same_numbers_make_the_same_files(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(FUZZER.parent)!r}); import zlib\n"
        "from fuzz.running import kind_of, mutant\n"
        "print([zlib.crc32(mutant(kind_of('costs'), 7, n)[2]) for n in range(50)])"
    )
    first, again = (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stdout == again.stdout


@pytest.mark.subprocess
def test_unknown_kinds():
    done = fuzz("novels")
    assert done.returncode == 2
    assert (
        "there is no kind 'novels'; choose from models, costs, csv, parquet, letor" in done.stderr
    )
