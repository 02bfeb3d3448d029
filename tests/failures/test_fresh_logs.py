"""Logs that the signatures were not written from, and the same logs in the forms of launchers.

``tests/oracle/failures/logs.jsonl``: identifying lines as the programs print them, with what cause
and remedy have to mention, and how it was verified.
"""

import gzip
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsconfig
from dsconfig.failures.signature import signatures

FILE = Path(__file__).parents[1] / "oracle" / "failures" / "logs.jsonl"
LOGS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
FAILED = [log for log in LOGS if not log["healthy"]]
HEALTHY = [log for log in LOGS if log["healthy"]]
PREFIXED = re.compile(r"\[rank\d|\[default\d|\(\w+ pid=|^\w+\d+: |\(raylet|│", re.MULTILINE)
PLAIN = [log for log in FAILED if not PREFIXED.search(log["log"])]
"""Logs of one process, without prefixes."""
STEPS = "".join(f"{{'loss': 2.{step}, 'epoch': 0.{step}}}\n" for step in range(5))


def name(log: dict[str, Any]) -> str:
    return log["name"]


def first_signature(data: bytes, folder: Path) -> str | None:
    path = folder / "train.log"
    path.write_bytes(data)
    failures = dsconfig.diagnose(path).failures
    return failures[0].signature if failures else None


@pytest.mark.parametrize("log", FAILED, ids=name)
def test_cause_and_remedy(log: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(log["log"].encode())
    first = dsconfig.diagnose(tmp_path / "train.log").failures[0]
    assert first.signature == log["signature"]
    assert all(re.search(each, first.remedy) for each in log["remedy_must_mention"])
    mentioned = [re.search(each, first.cause, re.IGNORECASE) for each in log["must_mention"]]
    assert any(mentioned) or not mentioned
    assert not any(re.search(each, first.cause + first.remedy) for each in log["must_not_mention"])


@pytest.mark.parametrize("log", HEALTHY, ids=name)
def test_healthy_log_has_no_failure(log: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(log["log"].encode())
    diagnosis = dsconfig.diagnose(tmp_path / "train.log")
    assert diagnosis.failures == () and diagnosis.consequences == ()


FORMS = {
    "torchrun": lambda lines: [f"[rank3]: {line}" for line in lines],
    "elastic": lambda lines: [f"[default3]:{line}" for line in lines],
    "srun": lambda lines: [f"3: {line}" for line in lines],
    "mpirun": lambda lines: [f"[1,3]<stderr>:{line}" for line in lines],
    "ray": lambda lines: [f"\x1b[36m(Worker pid=71, ip=10.0.0.1)\x1b[0m {line}" for line in lines],
    "pdsh": lambda lines: [f"worker-1: {line}" for line in lines],
    "kubernetes": lambda lines: [f"2026-01-05T10:00:00.000000001Z stderr F {x}" for x in lines],
    "pods": lambda lines: [f"[pod/train-0/main] {line}" for line in lines],
    "compose": lambda lines: [f"trainer-1  | {line}" for line in lines],
    "vllm": lambda lines: [f"(Core pid=7) ERROR 07-03 10:01:12 [core.py:396] {x}" for x in lines],
    "colors": lambda lines: [f"\x1b[31m{line}\x1b[0m" for line in lines],
    "bars": lambda lines: [f"\r 10%|#   | 1/10 [00:01<00:09,  1.2s/it]\r{line}" for line in lines],
}
"""How launchers and terminals print the lines of a process."""


@pytest.mark.parametrize("form", FORMS)
def test_form_of_a_launcher_does_not_change_the_answer(form: str, tmp_path: Path) -> None:
    differing = {
        log["name"]: found
        for log in PLAIN
        if "Traceback" in log["log"]
        and (
            found := first_signature(
                "\n".join(FORMS[form](log["log"].splitlines())).encode() + b"\n", tmp_path
            )
        )
        != log["signature"]
    }
    assert differing == {}


@pytest.mark.parametrize("log", FAILED, ids=name)
def test_encoding_does_not_change_the_answer(log: dict[str, Any], tmp_path: Path) -> None:
    text: str = log["log"]
    for data in (
        text.replace("\n", "\r\n").encode(),
        b"\xff\xfe" + text.encode("utf-16-le"),
        b"\xef\xbb\xbf" + text.encode(),
        gzip.compress(text.encode()),
        (STEPS + text).encode(),
    ):
        found = first_signature(data, tmp_path)
        assert found == log["signature"] or data.startswith(STEPS.encode())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_interleaved_ranks_do_not_change_the_answer(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = data.draw(st.sampled_from(PLAIN))
    lines = log["log"].splitlines()
    queues = [[f"[rank{rank}]: {line}" for line in lines] for rank in range(3)]
    merged: list[str] = []
    for rank in data.draw(st.lists(st.integers(0, 2), min_size=3 * len(lines))):
        merged += queues[rank][:1]
        del queues[rank][:1]
    merged += [line for queue in queues for line in queue]
    folder = tmp_path_factory.mktemp("log")
    assert first_signature("\n".join(merged).encode(), folder) == log["signature"]


@settings(max_examples=60, deadline=None)
@given(log=st.sampled_from(FAILED), count=st.integers(0, 3000), step=st.integers(0, 9))
def test_earlier_progress_does_not_change_the_answer(
    log: dict[str, Any], count: int, step: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A log that is cut at its beginning, or starts thousands of lines earlier."""
    before = "".join(f"[2024-05-02 09:00:00,000] [INFO] step={step + n}\n" for n in range(count))
    folder = tmp_path_factory.mktemp("log")
    assert first_signature((before + log["log"]).encode(), folder) == log["signature"]


def test_sources_are_threads_or_packages() -> None:
    assert len(FAILED) >= 60 and len(HEALTHY) >= 15
    assert len({log["name"] for log in LOGS}) == len(LOGS)
    for log in FAILED:
        assert log["source"] is None or log["source"].startswith("https://github.com/")
        assert log["verified"], log["name"]


def test_files_of_packages_exist() -> None:
    """The file that raises a message is in the installed release."""
    sources = [each.source.partition("package ")[2] for each in signatures()]
    for file in filter(None, sources):
        package, _, inner = file.partition("/")
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            assert (Path(spec.origin).parent / inner).exists(), file
