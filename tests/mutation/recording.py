"""Recorded coverage and durations of tests, looked up for every mutant."""

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
from suite.parts import TEST

PYTEST = (
    *(sys.executable, "-m", "pytest"),
    *("-p", "mutation.plugin", "-p", "no:cacheprovider"),
)
_UNIT, _ENGINE = TEST
SUITES = {"light": ("-n", "2", "-m", _UNIT.marks), "engine": ("-m", _ENGINE.marks)}
EXCLUDED = ("tests/house/", "tests/mutation/")
"""Style, layers and generated pages, which detect any change."""
BROAD, BRIEF = 5, 60.0
"""The BROAD tests with the most lines run first, if they take fewer than BRIEF seconds."""
SETTINGS = """[run]
source = dsconfig,dsengine
relative_files = true
parallel = true
data_file = {data}
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit
"""


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a process that imports both packages from the tree."""
    paths = (tree, tree / "engine", tree / "tests")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def record(tree: Path, folder: Path, suite: str, *only: str) -> None:
    """Run a suite, or some of its files, and store coverage and durations in the folder.

    The sources are stored too, to map lines after they have moved.
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
        check=False,  # failing tests are excluded
    )
    combine = (sys.executable, "-m", "coverage", "combine", "--append", f"--rcfile={settings}")
    subprocess.run(
        [*combine, str(folder)],
        cwd=tree,
        check=False,  # nothing to combine if no process outlived its test
    )


def _no_sources(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (name.endswith(".py") or Path(folder, name).is_dir())]


class Recorded:
    """The tests of all recordings in a folder, by file and line of the current sources."""

    def __init__(self, root: Path, state: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._breadth: Counter[str] = Counter()
        """Number of lines by test."""
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
                    self._add(path, data.contexts_by_lineno(path), _line_map(then, now))

    def _add(self, path: str, recorded: dict[int, list[str]], moved: dict[int, int]) -> None:
        for line, contexts in recorded.items():
            if line in moved:
                tests = {_test(context) for context in contexts}
                self._lines[path][moved[line]] |= tests
                self._breadth.update(tests)

    def covering_tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that ran the mutant's line, or its statement.

        Module-level code has effects later, so all tests of the file and its package are returned;
        the same for lines without a recorded test.
        """
        lines = self._lines[mutant.path]
        for wanted in (mutant.lines, mutant.statement):
            tests = set[str]().union(*(lines[line] for line in wanted if line in lines))
            if mutant.function and tests & self.seconds.keys():
                return self._sorted(mutant, tests)
        package = f"tests/{mutant.path.split('/')[1]}/"
        of_package = {test for test in self.seconds if test.startswith(package)}
        return self._sorted(mutant, of_package.union(*lines.values()))

    def _sorted(self, mutant: Mutant, tests: set[str]) -> list[str]:
        """Return the broadest tests first, then a few of each file in turn, fast ones first.

        Tests of the mutant's own package precede others.
        """
        package = mutant.path.split("/")[1]
        recorded = [
            test for test in tests if test in self.seconds and not test.startswith(EXCLUDED)
        ]
        seen: dict[str, int] = {}
        order: dict[str, tuple[int, bool, float]] = {}
        for test in sorted(recorded, key=lambda test: (self.seconds[test], test)):
            file = test.partition("::")[0]
            seen[file] = seen.get(file, 0) + 1
            order[test] = (seen[file] // 4, f"/{package}/" not in file, self.seconds[test])
        quick = [test for test in recorded if self.seconds[test] < BRIEF]
        broad = sorted(quick, key=lambda test: (-self._breadth[test], test))[:BROAD]
        others = sorted(recorded, key=lambda test: (order[test], test))
        return [*broad, *(test for test in others if test not in broad)]


def _line_map(then: Path, now: Path) -> dict[int, int]:
    """Return current line numbers by recorded ones, for equal lines."""
    before, after = (path.read_text("utf-8").split("\n") for path in (then, now))
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return {
        block.a + offset + 1: block.b + offset + 1
        for block in blocks
        for offset in range(block.size)
    }


def _test(context: str) -> str:
    """Return ``path::test``; pytest-cov appends ``|run``, child processes `` (call)``."""
    return context.partition("|")[0].partition(" (")[0]
