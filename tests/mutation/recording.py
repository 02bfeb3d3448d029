"""Which test runs which line, and how long it takes: recorded once, asked for every mutant."""

import difflib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

from coverage import CoverageData

from mutation.sites import Mutant

PYTEST = (
    *(sys.executable, "-m", "pytest"),
    *("-p", "mutation.plugin", "-p", "no:cacheprovider"),
)
SUITES = {
    "light": ("-n", "2", "-m", "not engine and not live and not browser and not long and not deep"),
    "engine": ("-m", "engine and not live and not browser and not long and not deep"),
}
NO_WITNESS = ("tests/house/", "tests/mutation/")
"""Style, layers and what is written from the sources: they see that something changed."""
BROAD, BRIEF = 5, 60.0
"""So many tests that run the most lines are heard first, where they take few seconds."""
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
    """Run a suite in the tree, or some files of it; the folder then holds who ran what, and when.

    The sources stay there too: a line is found again after others have come, moved and gone.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("dsconfig", "engine"):
        shutil.copytree(tree / name, folder / "sources" / name, ignore=_no_sources)
    settings = folder / "coveragerc"
    settings.write_text(SETTINGS.format(data=folder / "coverage"))
    more = {"MUTATION_DURATIONS": str(folder / "durations.json"), "MUTATION_RC": str(settings)}
    measured = ("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=")
    subprocess.run(
        [*PYTEST, *measured, *SUITES[suite], *only],
        cwd=tree,
        env=environment(tree) | more,
        check=False,  # a test that fails is no witness; the others are
    )
    combine = (sys.executable, "-m", "coverage", "combine", "--append", f"--rcfile={settings}")
    subprocess.run(
        [*combine, str(folder)],
        cwd=tree,
        check=False,  # nothing is left to combine where no process outlived its test
    )


def _no_sources(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (name.endswith(".py") or Path(folder, name).is_dir())]


class Recorded:
    """The tests of all recordings below a folder, by file and line of today's sources."""

    def __init__(self, root: Path, state: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._breadth: Counter[str] = Counter()
        """Lines that a test runs."""
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for durations in sorted(state.glob("*/durations.json")):
            self.seconds |= {
                test: seconds
                for test, seconds in json.loads(durations.read_text()).items()
                if (root / test.partition("::")[0]).exists()
            }
            data = CoverageData(str(durations.with_name("coverage")))
            data.read()
            for path in data.measured_files():
                then, now = durations.with_name("sources") / path, root / path
                if now.exists():
                    self._add(path, data.contexts_by_lineno(path), _moved(then, now))

    def _add(self, path: str, found: dict[int, list[str]], moved: dict[int, int]) -> None:
        for line, contexts in found.items():
            if line in moved:
                tests = {_test(context) for context in contexts}
                self._lines[path][moved[line]] |= tests
                self._breadth.update(tests)

    def witnesses(self, mutant: Mutant) -> list[str]:
        """Tests that ran the line; else the statement.

        What an import runs is of use later, and nobody knows to whom: there all of the file and
        of the room are witnesses, as they are for a line that no test is known to run.
        """
        lines = self._lines[mutant.path]
        for wanted in (mutant.lines, mutant.statement):
            found = set[str]().union(*(lines[line] for line in wanted if line in lines))
            if mutant.function and found & self.seconds.keys():
                return self._sorted(mutant, found)
        room = f"tests/{mutant.path.split('/')[1]}/"
        of_room = {test for test in self.seconds if test.startswith(room)}
        return self._sorted(mutant, of_room.union(*lines.values()))

    def _sorted(self, mutant: Mutant, tests: set[str]) -> list[str]:
        """The broadest first; then a few of each file in turn, the quick ones first.

        The mutant's own room goes before others.
        """
        room = mutant.path.split("/")[1]
        known = [test for test in tests if test in self.seconds and not test.startswith(NO_WITNESS)]
        seen: dict[str, int] = {}
        order: dict[str, tuple[int, bool, float]] = {}
        for test in sorted(known, key=lambda test: (self.seconds[test], test)):
            file = test.partition("::")[0]
            seen[file] = seen.get(file, 0) + 1
            order[test] = (seen[file] // 4, f"/{room}/" not in file, self.seconds[test])
        quick = [test for test in known if self.seconds[test] < BRIEF]
        broad = sorted(quick, key=lambda test: (-self._breadth[test], test))[:BROAD]
        others = sorted(known, key=lambda test: (order[test], test))
        return [*broad, *(test for test in others if test not in broad)]


def _moved(then: Path, now: Path) -> dict[int, int]:
    """Line numbers of now by those of then, for lines that are the same."""
    before, after = (path.read_text("utf-8").split("\n") for path in (then, now))
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return {
        block.a + offset + 1: block.b + offset + 1
        for block in blocks
        for offset in range(block.size)
    }


def _test(context: str) -> str:
    """``path::test``: pytest-cov adds ``|run``, a process started by a test has `` (call)``."""
    return context.partition("|")[0].partition(" (")[0]
