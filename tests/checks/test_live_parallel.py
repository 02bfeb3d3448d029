"""Rules DSC871 to DSC876, DSC477 and DSC478 compared with the installed DeepSpeed, on two ranks."""

from collections.abc import Iterator
from typing import Any

import pytest

from dsconfig.checks.registry import rules
from dsconfig.schema import NEWEST, Version
from training.ranks import RankError, Ranks

pytestmark = [pytest.mark.live, pytest.mark.engine]

JOBS = "training.parallel_fault_jobs"
MICRO = {"train_micro_batch_size_per_gpu": 1}


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Two new processes: DeepSpeed divides ranks once per process."""
    deepspeed = pytest.importorskip("deepspeed")
    pytest.importorskip("transformers")
    if Version.parse(deepspeed.__version__) < NEWEST:
        pytest.skip(f"requires DeepSpeed {NEWEST}")
    with Ranks(2) as started:
        yield started


@pytest.mark.parametrize(("stage", "ratio"), [(1, 2.0), (2, 2.0), (3, 1.0)])
def test_dsc871_norm_counts_sequence_ranks_below_stage_3(
    ranks: Ranks, stage: int, ratio: float
) -> None:
    assert ranks.run(f"{JOBS}:norm_ratio", stage=stage) == pytest.approx([ratio] * 2, rel=1e-4)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("", "llama"), ("DSC872", "mistral"), ("DSC872", "packed"), ("DSC873", "qwen3_next")],
)
def test_tokens_differ_from_one_process(ranks: Ranks, code: str, kind: str) -> None:
    error, *_ = ranks.run(f"{JOBS}:largest_token_error", kind=kind)
    assert error > 0.01 if code else error < 1e-5, code


@pytest.mark.parametrize(
    ("code", "kind"), [("DSC874", "mixtral"), ("DSC876", "gpt2"), ("", "llama")]
)
def test_autotp_refuses_models(ranks: Ranks, code: str, kind: str) -> None:
    result, *_ = ranks.run(f"{JOBS}:split_layers", kind=kind, batch=MICRO)
    expected = rules()[code].stop.exception if code else ""
    assert result.get("error", "").partition(":")[0] == expected, result


@pytest.mark.parametrize(
    ("batch", "counted", "trained"), [({"train_batch_size": 8}, 8, 4), (MICRO, 2, 1)]
)
def test_dsc875_batch_counts_tensor_ranks(
    ranks: Ranks, batch: dict[str, Any], counted: int, trained: int
) -> None:
    result, *_ = ranks.run(f"{JOBS}:split_layers", kind="llama", batch=batch)
    assert (result["counted"], result["in fact"]) == (counted, trained)


def test_dsc478_ulysses_refuses_and_autotp_divides_unevenly(ranks: Ranks) -> None:
    error, *_ = ranks.run(f"{JOBS}:error_of_ulysses", kind="three_heads")
    assert error.startswith(rules()["DSC478"].stop.exception) and "divisible" in error
    result, *_ = ranks.run(f"{JOBS}:split_layers", kind="three_heads", batch=MICRO)
    mine, alone = result["losses"]
    assert mine == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize(
    ("images", "differs"), [([True, False], True), ([True, True], False), ([False, False], False)]
)
def test_dsc477_ranks_without_an_image_gather_other_weights(
    ranks: Ranks, images: list[bool], differs: bool
) -> None:
    try:
        errors = ranks.run(f"{JOBS}:encoder_at_stage_3", images=images)
    except RankError as error:
        errors = [str(error)]
    assert any(errors) == differs, errors
