"""``dsconfig validate`` on many files: what is read, and the processes of ``--jobs``."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dsconfig
from dsconfig.project import checking, inference, neighbours, workers
from dsconfig.project.neighbours import MOST_NEIGHBOURS, Neighbours
from dsconfig.project.validator import Validator
from suite.limits import scaled
from validate.test_command import BAD, BROKEN, GOOD, Run, put, run  # noqa: F401
from waiting import until

FORMATS = ("full", "concise", "json", "github", "sarif", "junit")
SECONDS = 60.0


def put_many(folder: str, number: int) -> None:
    for index in range(number):
        text = (GOOD, BAD, BROKEN)[index % 3]
        put(f"{folder}/ds_config_{index:03}.json", text)


# --- reading


def test_folder_is_listed_once_and_neighbours_are_read_once(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed: Counter[str] = Counter()
    read: Counter[str] = Counter()
    iterdir, text_of = Path.iterdir, neighbours._text  # pyright: ignore[reportPrivateUsage]

    def counting_iterdir(self: Path):
        listed[str(self)] += 1
        return iterdir(self)

    def counting_text(path: Path) -> str:
        read[path.name] += 1
        return text_of(path)

    monkeypatch.setattr(Path, "iterdir", counting_iterdir)
    monkeypatch.setattr(neighbours, "_text", counting_text)
    put_many("configs", 60)
    put("configs/acc.yaml", "deepspeed_config:\n  deepspeed_config_file: ds_config_003.json\n")
    result = run("configs", "--output-format", "json")
    assert listed == {"configs": 1}
    assert len(read) == MOST_NEIGHBOURS
    assert max(count for name, count in read.items() if name.endswith("json")) == 1
    programs = {file["file"]: file["runtime"] for file in json.loads(result.out)["files"]}
    assert programs["configs/ds_config_003.json"] == "accelerate"
    assert programs["configs/ds_config_000.json"] == "deepspeed"


def test_neighbours_are_read_again_by_the_next_command(run: Run) -> None:  # noqa: F811
    put("z2.json", GOOD)
    assert "target: DeepSpeed" in run("z2.json").err
    put("train.yaml", "deepspeed: z2.json\n")
    assert "target: transformers" in run("z2.json").err


def test_fixed_neighbour_is_read_again(tmp_path: Path) -> None:
    beside = Neighbours()
    config, arguments = tmp_path / "z2.json", tmp_path / "train.yaml"
    config.write_text(GOOD)
    arguments.write_text("deepspeed: z2.json\n")
    assert beside.program_for(config) == ("transformers", "train.yaml, which references it")
    arguments.write_text("deepspeed: z3.json\n")
    assert beside.program_for(config) is not None
    beside.changed(arguments)
    assert beside.program_for(config) is None


NAMES = st.text("az.- /'\"{}(\n", min_size=1, max_size=4)
TEXTS = st.lists(
    st.sampled_from(["deepspeed: ", "deepspeed_config_file: ", "x: ", "/", "'", " ", "\n"]) | NAMES,
    max_size=8,
).map("".join)


KEY = r"""(?:^[ \t-]*|[{{,]\s*)["']?{}["']?\s*:"""
"""A key of JSON or YAML: first on its line, or inside of ``{{...}}``."""


def referencing_program(files: dict[str, str], name: str) -> str | None:
    """Return the program without any cache, as its description has it."""
    for file, text in sorted(files.items())[:MOST_NEIGHBOURS]:
        named = re.search(rf"[\s\"'/]{re.escape(name)}\b", text)
        if file == name or not named:
            continue
        if re.search(KEY.format("deepspeed_config(?:_file)?"), text, re.MULTILINE):
            return "accelerate"
        if re.search(KEY.format("deepspeed"), text, re.MULTILINE):
            return "transformers"
    return None


@given(st.dictionaries(st.sampled_from(["a.yaml", "b.yml", "c.json", "z.json"]), TEXTS), NAMES)
@example({"a.yaml": "/a{deepspeed: "}, "a")
def test_shared_neighbours_find_the_same_program(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str], name: str
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for file, text in files.items():
        (folder / file).write_text(text)
    beside = Neighbours()
    for asked in (name.replace("/", "") or "z", "z.json", "c.json"):
        found = beside.program_for(folder / asked)
        assert (found[0] if found else None) == referencing_program(files, asked)


def test_missing_folder_has_no_references() -> None:
    assert Neighbours().program_for(Path("missing/ds.json")) is None
    assert inference.target_program(None, None, source="missing/ds.json").runtime.name == (
        "deepspeed"
    )


# --- processes


@pytest.mark.parametrize(
    ("form", "jobs"),
    [
        ("json", "1000"),
        *((form, str(2 + number % 2)) for number, form in enumerate(FORMATS)),
        *(
            pytest.param(form, jobs, marks=pytest.mark.long)
            for number, form in enumerate(FORMATS)
            for jobs in (str(3 - number % 2), "1000")
            if (form, jobs) != ("json", "1000")
        ),
    ],
)
def test_any_number_of_jobs_prints_the_same(run: Run, form: str, jobs: str) -> None:  # noqa: F811
    put_many("configs", 40)
    put("configs/sub/ds_config.json", GOOD)
    put("configs/train.yaml", "deepspeed: ds_config_001.json\nbf16: true\n")
    put("missing_keys.json", "[]")
    arguments = ("configs", "-", "missing_keys.json", "absent.json", "--output-format", form)
    expected = run(*arguments, "--jobs", "1", stdin=BAD)
    assert expected.code == 2
    assert run(*arguments, "--jobs", jobs, stdin=BAD) == expected


def test_jobs_count_suppressed_findings(run: Run) -> None:  # noqa: F811
    put_many("configs", 40)
    known = run("configs", "--output-format", "json", "--exit-zero", "--ignore", "DSC003")
    put("known.json", known.out)
    put("configs/ds_config_003.json", BAD)
    arguments = ("configs", "--baseline", "known.json")
    alone = run(*arguments, "--jobs", "1")
    assert "suppressed by the baseline" in alone.err
    assert run(*arguments, "--jobs", "2") == alone


def test_invalid_project_settings_are_reported_by_any_number_of_jobs(
    run: Run,  # noqa: F811
) -> None:
    put_many("configs", 6)
    put("configs/sub/ds_config.json", GOOD)
    put("configs/sub/pyproject.toml", "[tool.dsconfig]\nignore = 3\n")
    results = [run(*(["configs/ds_config_000.json", "configs/sub/ds_config.json"]), "-j", jobs)
               for jobs in ("1", "2")]  # fmt: skip
    assert results[0].code == 2 and "must be a list of strings" in results[0].err
    assert results[0] == results[1]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_crash_is_an_internal_error(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    jobs: str,
) -> None:
    class Unsendable(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} {second}")

    def crash(*_: object) -> None:
        raise Unsendable("failed", "here")

    monkeypatch.setattr(Validator, "report", crash)
    put_many("configs", 6)
    result = run("configs", "--jobs", jobs)
    assert (result.code, result.out) == (101, "")
    assert "failed here" in result.err and "in crash" in result.err
    assert "internal error; please report it" in result.err


def test_killed_worker_is_an_internal_error(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Validator, "report", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    put_many("configs", 6)
    result = run("configs", "--jobs", "2")
    assert (result.code, result.out) == (101, "")
    assert "a worker process was killed" in result.err and "--jobs 1" in result.err


def test_zero_jobs_are_a_usage_error(run: Run) -> None:  # noqa: F811
    put("ds.json", GOOD)
    result = run("ds.json", "--jobs", "0")
    assert result.code == 2 and "--jobs" in result.err and "at least 1" in result.err


def test_default_jobs_depend_on_the_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_usable_cores", lambda: 8)
    assert checking.default_jobs(checking.SEQUENTIAL_BELOW - 1) == 1
    assert checking.default_jobs(checking.SEQUENTIAL_BELOW) == 8


def test_validator_can_be_sent_to_a_process() -> None:
    facts = dsconfig.Facts(world_size=8)
    assert workers.CHUNK > 0  # its import lets read-only mappings be sent
    sent = pickle.loads(pickle.dumps(Validator(facts, "deepspeed")))
    assert sent == Validator(facts, "deepspeed")


def group_members(group: int) -> list[int]:
    """Return the processes of a group that have not exited."""
    members: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, own = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(own) == group and state != "Z":
            members.append(int(entry.name))
    return members


def ignores_interrupts(process: int) -> bool:
    """Whether a process ignores SIGINT, as a worker does once it has started."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return bool(ignored & 1 << (signal.SIGINT - 1))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signal_leaves_no_worker_behind(tmp_path: Path, kind: signal.Signals) -> None:
    os.mkfifo(tmp_path / "blocks.json")
    files = ["blocks.json", "blocks.json/../a.json", "a.json", "b.json"]
    (tmp_path / "a.json").write_text(GOOD)
    (tmp_path / "b.json").write_text(GOOD)
    command = [sys.executable, "-m", "dsconfig", "validate", *files, "--jobs", "2"]
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": root},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until("workers", lambda: sum(map(ignores_interrupts, group_members(process.pid))) == 2)
        threads = Path(f"/proc/{process.pid}/task")
        until("a thread that watches them", lambda: len([*threads.iterdir()]) > 1)
        if kind == signal.SIGINT:  # as a terminal sends it
            os.killpg(process.pid, kind)
        else:
            process.send_signal(kind)
        _, printed = process.communicate(timeout=scaled(SECONDS))
        assert process.returncode == (130 if kind == signal.SIGINT else -kind)
        assert "Traceback" not in printed
        until("the end of all", lambda: not group_members(process.pid))
    finally:
        for member in group_members(process.pid):
            os.kill(member, signal.SIGKILL)
        process.wait()
