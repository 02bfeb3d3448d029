"""Print what a new release of DeepSpeed, transformers or accelerate changes.

    PYTHONPATH=tests python -m releases         the newest release of each, as make releases
    ... transformers==5.24.0                    this one, against the newest known
    ... deepspeed==0.19.9 deepspeed==0.19.7     against this one

Sources come from the package index that pip is configured for; nothing of them is executed except
the build metadata of DeepSpeed, which is published as source only. Exit code 1 if a release is
newer than the newest known. docs/internals/releases.md describes what to do then.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from dsconfig.schema.version import Version
from release_facts import PROGRAMS, Program, ReleaseFacts, facts_of

KINDS = {"keys": "keys and defaults", "checks": "checks", "autos": '"auto"'}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def is_newer(release: str, known: str) -> bool:
    """Return whether a release is newer than the newest known one."""
    return Version.parse(release) > Version.parse(known)


def newest(program: str) -> str:
    """Return the newest release on the index. Raises ValueError if pip finds none."""
    done = subprocess.run(
        [*PIP, "index", "versions", program], capture_output=True, text=True, check=False
    )
    found = re.match(rf"{program} \(([^)]+)\)", done.stdout)
    if found is None:
        raise ValueError(f"pip finds no release of {program}: {done.stderr.strip()[-300:]}")
    return found[1]


def fetch(program: str, release: str, folder: Path) -> Path:
    """Download and unpack a release; return the folder of its package. Raises ValueError."""
    archives = folder / f"{program}-{release}"
    done = subprocess.run(
        [
            *(*PIP, "download", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--dest", str(archives), f"{program}=={release}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{program}=={release}: {done.stderr.strip()[-300:]}")
    (archive,) = archives.iterdir()
    unpacked = folder / f"{program}-{release}-unpacked"
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as file:
            file.extractall(unpacked)
    else:
        with tarfile.open(archive) as file:
            file.extractall(unpacked, filter="data")
    packages = sorted(unpacked.glob(f"**/{program}/__init__.py"), key=lambda path: len(path.parts))
    if not packages:
        raise ValueError(f"{archive.name} contains no package {program}")
    return packages[0].parent


def differences(before: ReleaseFacts, after: ReleaseFacts) -> list[tuple[str, str]]:
    """Return (kind, line) for each declaration that was added (+), removed (-) or changed (~)."""
    lines: list[tuple[str, str]] = []
    for attribute, kind in KINDS.items():
        old: dict[str, str] = getattr(before, attribute)
        new: dict[str, str] = getattr(after, attribute)
        for key in sorted(old.keys() | new.keys()):
            if key not in new:
                lines.append((kind, f"- {_joined(key, old[key])}"))
            elif key not in old:
                lines.append((kind, f"+ {_joined(key, new[key])}"))
            elif old[key] != new[key]:
                lines.append((kind, f"~ {key}: {old[key]} -> {new[key]}"))
    return lines


def _joined(key: str, value: str) -> str:
    return f"{key}: {value}" if value else key


def report(program: Program, before: str, after: str) -> str:
    """Return the differences of two releases as text. Raises ValueError if one cannot be read."""
    with TemporaryDirectory() as folder:
        old, new = (
            facts_of(fetch(program.name, release, Path(folder)), program)
            for release in (before, after)
        )
    found = differences(old, new)
    lines = [f"{program.name} {before} -> {after}: {len(found)} differences"]
    for kind, group in groupby(found, key=lambda each: each[0]):
        lines += [f"  {kind}", *(f"    {line}" for _, line in group)]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Print the differences of the given releases, or of the newest ones; return the exit code."""
    given: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, release = argument.partition("==")
        if name not in PROGRAMS or not release:
            print(f"{argument!r} is not one of {', '.join(f'{name}==X.Y.Z' for name in PROGRAMS)}")
            return 2
        given.setdefault(name, []).append(release)
    alarm = False
    for name in given or PROGRAMS:
        program = PROGRAMS[name]
        try:
            release, *other = given.get(name) or [newest(name)]
            before = other[0] if other else program.known
            if release == before:
                print(f"{name} {release}: the newest known release")
                continue
            print(report(program, before, release))
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        alarm = alarm or is_newer(release, program.known)
    return int(alarm)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
