"""Which test runs which line, and how long it takes: recorded once, asked for every mutant."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from coverage import CoverageData

from mutation.sites import Mutant

SUITES = {
    "light": ("-n", "2", "-m", "not engine and not live and not browser"),
    "engine": ("-m", "engine and not live and not browser"),
}
NO_WITNESS = ("tests/house/", "tests/mutation/", "tests/checks/test_pages.py")
"""Style, layers and pages that are written from the sources: they see that something changed."""
SETTINGS = """[run]
source = dsconfig,dsengine
relative_files = true
parallel = true
data_file = {data}
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit
"""


def environment(tree: Path) -> dict[str, str]:
    """Of a process that imports both packages from the tree, wherever another lies installed."""
    paths = (tree, tree / "engine", tree / "tests")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def record(tree: Path, folder: Path, suite: str, *only: str) -> None:
    """Run a suite in the tree; leaves ``coverage`` and ``durations.json`` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    settings = folder / "coveragerc"
    settings.write_text(SETTINGS.format(data=folder / "coverage"))
    more = {"MUTATION_DURATIONS": str(folder / "durations.json"), "MUTATION_RC": str(settings)}
    python = (sys.executable, "-m")
    subprocess.run(
        [*python, "pytest", "-p", "mutation.plugin", "-p", "no:cacheprovider", "--cov"]
        + [
            f"--cov-config={settings}",
            "--cov-context=test",
            "--cov-report=",
            *SUITES[suite],
            *only,
        ],
        cwd=tree,
        env=environment(tree) | more,
        check=False,  # a test that fails is no witness; the others are
    )
    subprocess.run(
        [*python, "coverage", "combine", "-q", f"--rcfile={settings}", str(folder)],
        cwd=tree,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"},
    )


class Recorded:
    """The tests of one or more recordings, by file and line."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for folder in folders:
            self.seconds |= json.loads((folder / "durations.json").read_text())
            data = CoverageData(str(folder / "coverage"))
            data.read()
            for path in data.measured_files():
                for line, contexts in data.contexts_by_lineno(path).items():
                    self._lines[path][line] |= {_test(context) for context in contexts}

    def witnesses(self, mutant: Mutant) -> list[str]:
        """Tests that ran the line; else the statement; else, for what an import runs, the file."""
        lines = self._lines[mutant.path]
        for wanted in (mutant.lines, mutant.statement):
            found = set[str]().union(*(lines[line] for line in wanted if line in lines))
            if mutant.function and found - {""}:
                return self._sorted(mutant, found)
        return self._sorted(mutant, set[str]().union(*lines.values()))

    def _sorted(self, mutant: Mutant, tests: set[str]) -> list[str]:
        """The quickest first, those of the mutant's own room before the others."""
        room = mutant.path.split("/")[1]
        known = [test for test in tests if test in self.seconds and not test.startswith(NO_WITNESS)]
        return sorted(known, key=lambda test: (f"/{room}/" not in test, self.seconds[test], test))


def _test(context: str) -> str:
    """``path::test``: pytest-cov adds ``|run``, a process started by a test has `` (call)``."""
    return context.partition("|")[0].partition(" (")[0]
