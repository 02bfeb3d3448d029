"""Programs of others, launched on two ranks as their users do, on dsengine and on DeepSpeed.

python -m frameworks.programs install           install the programs into runs/programs
python -m frameworks.programs run [NAME]...     run both packages; resumes an interrupted run
python -m frameworks.programs record            store the comparison of these runs for the page
python -m frameworks.programs page              write docs/internals/programs-table.md

Example scripts run from checkouts of their repositories, below PROGRAMS_SOURCES (default:
runs/programs/sources) under the names of the repositories. Without a checkout they are skipped.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from frameworks import comparison
from frameworks.comparison import PACKAGES, Records, Row, cells, difference, differing
from frameworks.program_files import save_hub, written
from frameworks.program_list import PROGRAMS, SETS, Program, Run
from frameworks.running import ROOT, environment
from suite.limits import scaled

RUNS = Path(os.environ.get("PROGRAMS_RUNS", ROOT / "runs" / "programs"))
SOURCES = Path(os.environ.get("PROGRAMS_SOURCES", ROOT / "runs" / "programs" / "sources"))
RECORDS = Records(ROOT / "tests" / "oracle" / "programs_table.json")
PAGE = ROOT / "docs" / "internals" / "programs-table.md"
OBSERVED = ROOT / "tests" / "frameworks" / "observed"
SECONDS = 200
IGNORED = ("runtime", "time", "per_sec", "speed", "memory", "total_flos")
"""Parts of the names of logged numbers that depend on the clock or the machine. DeepSpeed's count
of floating-point operations is 0 at stage 3, where its partitioned parameters have no elements."""
LOGARITHMIC = ("loss", "kl")
"""Differences of log-probabilities, which may be near 0: relative to 1 then."""
HEAD = ("program", "stage", "precision", "loss", "norm", "other numbers", "")


def packages_of(name: str) -> Path:
    """Return the folder of a set; datasets pickles code outside of site-packages by value."""
    return ROOT / "runs" / "programs" / "sets" / name / "site-packages"


def install(name: str) -> None:
    """Install a set of packages into a folder of its own, unless that was done."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    folder = packages_of(name)
    if not (folder / ".ready").exists():
        subprocess.run([*pip, "--target", str(folder), *SETS[name]], check=True)
        for library in (folder / "torchaudio" / "lib").glob("*.so"):
            library.unlink()  # built for CUDA; torchaudio can be imported without them
        (folder / ".ready").touch()


def missing(program: Program) -> str:
    """Return why a program cannot be run; "" if it can."""
    if program.unavailable:
        return program.unavailable
    if program.source and not (SOURCES / program.source).exists():
        return f"no checkout with {program.source}"
    return ""


def run(program: Program, package: str) -> None:
    """Run a program with a package, unless the same command has a result."""
    save_hub(RUNS / "hub")
    if missing(program):
        return
    for name in program.sets:
        install(name)
    out = RUNS / package / program.name
    command = program.start(program, Run(RUNS, out, SOURCES))
    record = out.parent / "commands" / f"{program.name}.json"
    is_known = record.exists() and json.loads(record.read_text()) == command
    if not (is_known and (out / "result.json").exists()):
        _remove(out)
        written(record, command)
        _run(program, package, out)


def _remove(out: Path) -> None:
    for path in out.parent.glob(f"{out.name}.*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.rmtree(out, ignore_errors=True)


def _run(program: Program, package: str, out: Path) -> None:
    """Write the output to ``out.log``, and the numbers to ``out/result.json``."""
    command = program.start(program, Run(RUNS, out, SOURCES))
    if package == "dsengine":
        command = [sys.executable, "-m", "dsengine", *command]
    with out.with_suffix(".log").open("w") as log:
        started = subprocess.Popen(
            command,
            env=_variables(program, out),
            cwd=RUNS / "hub",
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = started.wait(scaled(SECONDS))
        except subprocess.TimeoutExpired:
            log.write(f"\nTimeoutError: stopped after {scaled(SECONDS):.0f} seconds\n")
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    if code == 0:
        out.mkdir(exist_ok=True)
        (out / "result.json").write_text(json.dumps(_numbers(out)))


def _variables(program: Program, out: Path) -> dict[str, str]:
    variables = environment(2)
    sets = [packages_of(name) for name in program.sets]
    own = [str(SOURCES / program.path)] if program.path else []
    paths = [str(OBSERVED), *own, *map(str, sets), variables["PYTHONPATH"]]
    programs = [*(str(folder / "bin") for folder in sets), str(Path(sys.executable).parent)]
    return {
        **variables,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([*programs, variables["PATH"]]),
        "PROGRAMS_OBSERVED": str(out),
        "DSENGINE": "required",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(RUNS / "cache"),
        "WANDB_MODE": "disabled",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "AXOLOTL_DO_NOT_TRACK": "1",
        **program.environment,
    }


def _numbers(out: Path) -> dict[str, list[float]]:
    """Return the observed and the logged numbers by name, in the order of the steps."""
    steps: list[dict[str, Any]] = []
    for file in sorted(out.parent.glob(f"{out.name}.rank*")):
        rank = file.suffix[1:]
        lines = map(json.loads, file.read_text().splitlines())
        steps += [{f"{name} of {rank}": value for name, value in line.items()} for line in lines]
    for states in sorted(out.rglob("trainer_state.json"))[-1:]:
        steps += json.loads(states.read_text())["log_history"]
    names = {
        name for step in steps for name, value in step.items() if isinstance(value, int | float)
    }
    return {name: [float(s[name]) for s in steps if name in s] for name in sorted(names)}


def compared(program: Program) -> Row:
    """Return the largest relative difference of each number; "failed" names a package."""
    if reason := missing(program):
        return {"skipped": reason}
    results: list[dict[str, list[float]]] = []
    for package in PACKAGES:
        out = RUNS / package / program.name
        if not (out / "result.json").exists():
            return {"failed": f"{package}: {_first_error(out.with_suffix('.log'))}"}
        results.append(json.loads((out / "result.json").read_text()))
    theirs, ours = results
    row: Row = {}
    for name, values in theirs.items():
        kind = _kind(name)
        if not any(part in name for part in IGNORED) and row.get(kind) is not False:
            at_least = 1.0 if kind in LOGARITHMIC else 0.0
            apart = difference(ours.get(name, []), values, at_least)
            row[kind] = apart if isinstance(apart, bool) else max(apart, row.get(kind, 0.0))
    return row if "loss" in row else {"failed": "no step was observed"}


def _kind(name: str) -> str:
    """Return the column of a number."""
    if name == "loss" or name.startswith("backward of"):
        return "loss"
    return "norm" if name == "grad_norm" or name.startswith("norm of") else name


def _first_error(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    found = re.search(
        r"^(?:\[rank\d+\]: )?\s*(?:\w+\.)*(\w*(?:Error|Exception): .*)$", text, re.MULTILINE
    )
    return (found.group(1) if found else "not run")[:160]


def page(rows: dict[str, Row]) -> str:
    ran = [(program, rows[program.name]) for program in PROGRAMS if program.name in rows]
    agree = sum(not differing(row, program.precision) for program, row in ran)
    return comparison.page(
        "Programs of others on dsengine and on DeepSpeed",
        "Each row is one program, started on two CPU ranks as its users do, with a tiny model and "
        "a local dataset: once on DeepSpeed 0.19.8, and once with `dsengine` before the same "
        "command. The numbers are the largest differences relative to the largest value: of the "
        "losses that the program passes to `backward` on each rank, of the gradient norms, and of "
        "everything else it logs, except times and counts of floating-point operations, of which "
        "DeepSpeed counts none at stage 3. They must be below 1e-5 in fp32 and 5e-3 in bf16; "
        "losses and divergences near 0 are relative to 1. A reason names the package that fails. "
        "A start-up hook records the losses and seeds the random generators; it also lets "
        "accelerate run on gloo, because it has no backend for DeepSpeed on several CPU ranks. The "
        "packages are installed without their dependencies, so that torch and DeepSpeed are the "
        "same, and torchvision and torchaudio run without their compiled operators. Generated in "
        "tests/ by `python -m frameworks.programs`.",
        f"**{agree} of {len(ran)}** agree.",
        HEAD,
        [_row(program, row) for program, row in ran],
    )


def _row(program: Program, row: Row) -> str:
    head = (program.label, str(program.stage), program.precision)
    found = cells(row, program.precision, ("loss", "norm"), 2)
    return " | ".join([*head, f"{found}: {program.remark}" if program.remark else found])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install"]:
            for name in SETS:
                install(name)
        case ["run", *names]:
            for program in PROGRAMS:
                for package in PACKAGES if not names or program.name in names else ():
                    run(program, package)
        case ["record"]:
            known = RECORDS.read()
            was_run = {p.name for p in PROGRAMS if (RUNS / "dsengine" / f"{p.name}.log").exists()}
            stale = [p for p in PROGRAMS if p.name in was_run or p.name not in known]
            rows = known | {program.name: compared(program) for program in stale}
            RECORDS.write({program.name: rows[program.name] for program in PROGRAMS})
        case ["page"]:
            PAGE.write_text(page(RECORDS.read()), "utf-8")
        case _:
            raise SystemExit(__doc__)
