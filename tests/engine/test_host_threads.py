"""Ranks with an offloaded optimizer share the cores of their host, unless the user decides."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dsconfig import launch_env
from dsconfig.commands import run
from dsengine import torchrun
from dsengine.loop import process_settings

pytestmark = pytest.mark.engine
CORES = 12


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that were set."""
    chosen: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(process_settings, "print_rank0", lambda _: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)), raising=False)
    for name in (launch_env.THREADS, launch_env.DEFAULT_THREADS):
        monkeypatch.setenv(name, "")  # restored at the end, whatever the test sets
        monkeypatch.delenv(name)
    return chosen


@pytest.mark.parametrize(("ranks", "expected"), [("1", [12]), ("4", [3]), ("24", [1])])
def test_cores_are_divided_among_local_ranks(
    monkeypatch: pytest.MonkeyPatch, threads: list[int], ranks: str, expected: list[int]
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    process_settings.use_all_cores(object())
    assert threads == []  # no launcher has set the number
    launch_env.mark_default_threads(os.environ)
    process_settings.use_all_cores(object())
    assert threads == expected


@pytest.mark.parametrize("given", [None, "1"])
def test_launchers_mark_only_their_own_default(
    monkeypatch: pytest.MonkeyPatch, threads: list[int], tmp_path: Path, given: str | None
) -> None:
    if given is not None:
        monkeypatch.setenv(launch_env.THREADS, given)
    environments: list[Any] = []
    monkeypatch.setattr(run.subprocess, "Popen", lambda *_, env, **__: environments.append(env))
    run.launch(None, [], tmp_path / "events", tmp_path / "log", grace=1)
    monkeypatch.setattr(
        "torch.distributed.run.main", lambda _: environments.append(dict(os.environ))
    )
    torchrun.main()
    marks = [environment.get(launch_env.DEFAULT_THREADS) for environment in environments]
    assert marks == (["1", "1"] if given is None else [None, None])
    assert environments[0][launch_env.THREADS] == "1"


def test_a_released_setting_is_that_of_others_or_from_before() -> None:
    current = [4]
    setting = process_settings._Setting(lambda: current[-1], current.append)
    first, second = object(), object()
    setting.request(first, 8)
    setting.request(second, 12)
    setting.release(first)
    assert current[-1] == 12
    setting.release(second)
    assert current[-1] == 4
    setting.request(first, 8)
    current.append(6)  # by a script
    setting.release(first)
    assert current[-1] == 6
