"""Every name that public programs import from deepspeed is supported or refused with advice."""

import textwrap

import pytest

from tests import deepspeed_names
from tests.deepspeed_names import PAGE, Used, names_in, recorded, status

pytestmark = pytest.mark.engine
PROGRAMS, NAMES = recorded()


@pytest.mark.parametrize("used", NAMES, ids=lambda used: used.name)
def test_used_name_is_available(used: Used) -> None:
    assert status(used)[0] != "missing", f"used by {used.programs}"


def test_unknown_name_is_missing() -> None:
    assert status(Used("zero.Innit", ["unknown"], True)) == ("missing", "")
    assert status(Used("zero.Innit", ["unknown"], False))[0] == "gone"


def test_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == deepspeed_names.page()


def test_names_are_found_in_sources() -> None:
    source = """
        import deepspeed
        import deepspeed.comm as dist
        from deepspeed.ops.adam import FusedAdam as Adam
        from deepspeed.utils import groups
        from .deepspeed import own
        from transformers import deepspeed as theirs

        dist.barrier()
        with deepspeed.zero.Init(config): ...
        deepspeed.zero.Init.anything
        groups.get_rank(), theirs.is_there, own.way
        Adam.step
    """
    assert names_in(textwrap.dedent(source)) == {
        "comm",
        "comm.barrier",
        "ops.adam.FusedAdam",
        "utils.groups",
        "utils.groups.get_rank",
        "zero",
        "zero.Init",
    }
