"""A plugin of pytest for DeepSpeed's tests.

``DEEPSPEED_TESTS`` names the package that is their ``deepspeed``.
"""

import os
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

if os.environ["DEEPSPEED_TESTS"] == "dsengine":
    import dsengine.as_deepspeed  # noqa: F401
    from deepspeed_tests import placeholders

    placeholders.install()
else:
    placeholders = None
    from training.live_jobs import real_deepspeed

    real_deepspeed()

from deepspeed_tests.alone import known, name_of, pytest_collectreport, pytest_runtest_protocol
from deepspeed_tests.on_cpu import compute_in_bf16, on_cpu, round_first
from deepspeed_tests.ranks import launch

__all__ = ["pytest_collectreport", "pytest_runtest_protocol"]

VARIANTS = int(os.environ.get("DEEPSPEED_TESTS_VARIANTS", "1"))
"""Of one test with parameters, so many are run, the last and others evenly before it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from unit.common import DistributedExec  # type: ignore[import-not-found]

    on_cpu()
    if os.environ.get("DEEPSPEED_TESTS_ROUNDED") == "1":
        round_first()
    DistributedExec._launch_procs = launch
    kinds = {each for item in items for each in getattr(getattr(item, "cls", None), "__mro__", ())}
    for kind in kinds - {DistributedExec}:
        if "_launch_procs" in vars(kind):
            del kind._launch_procs  # its own ranks would import what is not there, unseen
    DistributedExec._close_pool = lambda *_, **__: None
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        variants[name_of(item.nodeid).partition("[")[0]].append(item)
    kept: list[pytest.Item] = []
    for those in variants.values():
        count = min(VARIANTS, len(those))
        last = len(those) - 1
        chosen = {last - round(i * last / max(count - 1, 1)) for i in range(count)}
        kept += [those[i] for i in sorted(chosen)]
    done = known()
    items[:] = [item for item in kept if name_of(item.nodeid) not in done]


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    """Let this pytest find fixtures that DeepSpeed writes as classes, for one to 8.3."""
    if isinstance(collector, pytest.Module):
        # A file that cannot be imported, or is skipped, is told of when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            from unit.common import DistributedFixture  # type: ignore[import-not-found]

            for name, kind in list(vars(collector.obj).items()):
                if isinstance(kind, type) and DistributedFixture in kind.__mro__:
                    setattr(collector.obj, name, _fixture(name, kind))


def _fixture(name: str, kind: type[Any]) -> Any:
    def of_ranks(request: pytest.FixtureRequest) -> None:
        kind()(request)

    return pytest.fixture(of_ranks, name=name)


def pytest_collection() -> None:
    if placeholders is not None:
        placeholders.is_importing = True
    compute_in_bf16()


def pytest_collection_finish() -> None:
    if placeholders is not None:
        placeholders.is_importing = False
