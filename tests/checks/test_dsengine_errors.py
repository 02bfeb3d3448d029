"""Values that dsengine rejects although DeepSpeed accepts them."""

from typing import Any

import pytest

from dsconfig import Facts, validate

SILENT = {"zero_allow_untested_optimizer": False, "zero_optimization": {"stage": 1}}


@pytest.mark.parametrize(
    ("settings", "client", "pointer"),
    [
        ({"checkpoint": {"tag_validation": "foo"}}, None, "/checkpoint/tag_validation"),
        ({"checkpoint": {"tag_validation": "fail"}}, None, None),
        ({"log_level": "loud"}, None, "/log_level"),
        ({"log_level": "ERROR"}, None, None),
        (SILENT, "Mine", "/zero_allow_untested_optimizer"),
        (SILENT, "AdamW", None),
        (SILENT, None, None),
        ({**SILENT, "zero_allow_untested_optimizer": True}, "Mine", None),
        ({"zero_optimization": {"stage": 1}}, "Mine", None),
        ({**SILENT, "zero_optimization": {"stage": 0}}, "Mine", None),
    ],
)
def test_dsengine_rejects_values_deepspeed_accepts(
    settings: dict[str, Any], client: str | None, pointer: str | None
) -> None:
    facts = Facts(world_size=2, client_optimizer=client)
    report = validate({"train_batch_size": 2, **settings}, facts, runtime="dsengine")
    assert [each.pointer for each in report.refusals] == ([pointer] if pointer else [])


def test_log_level_null_is_accepted() -> None:
    for runtime in ("deepspeed", "dsengine"):
        report = validate({"train_batch_size": 2, "log_level": None}, Facts(), runtime=runtime)
        assert not report.refusals, runtime
