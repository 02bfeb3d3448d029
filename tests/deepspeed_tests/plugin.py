"""pytest plugin for DeepSpeed's tests.

``DEEPSPEED_TESTS`` is the package to use as ``deepspeed``.
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
"""Number of variants of a parametrized test to run: the last, and others evenly spaced."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from unit.common import DistributedExec

    on_cpu()
    if os.environ.get("DEEPSPEED_TESTS_ROUNDED") == "1":
        round_first()
    DistributedExec._launch_procs = launch
    kinds = {cls for item in items for cls in getattr(getattr(item, "cls", None), "__mro__", ())}
    for kind in kinds - {DistributedExec}:
        if "_launch_procs" in vars(kind):
            del kind._launch_procs  # would start ranks without placeholders
    DistributedExec._close_pool = lambda *_, **__: None
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        variants[name_of(item.nodeid).partition("[")[0]].append(item)
    kept: list[pytest.Item] = []
    for members in variants.values():
        count = min(VARIANTS, len(members))
        last = len(members) - 1
        chosen = {last - round(i * last / max(count - 1, 1)) for i in range(count)}
        kept += [members[i] for i in sorted(chosen)]
    done = known()
    items[:] = [item for item in kept if name_of(item.nodeid) not in done]


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    """Support DeepSpeed's class-based fixtures, which were written for pytest up to 8.3."""
    if isinstance(collector, pytest.Module):
        # A file that cannot be imported or is skipped is reported when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            from unit.common import DistributedFixture

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
