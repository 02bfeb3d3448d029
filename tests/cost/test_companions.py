"""Reference models, pairs of sequences and inference engines in estimates."""

from typing import Any

import pytest

import dsconfig
from dsconfig.cost import estimator
from dsconfig.cost.companions import COPIES, ENGINE

AUTO = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}
SHAPE = {"model": "llama-3.2-1b", "gpus": 4, "device": "a100-80gb", "seq_len": 1024}


def option(
    stage: int, *, micro: int = 2, offload: bool = False, program: str = "deepspeed", **facts: Any
) -> Any:
    zero: dict[str, Any] = {"stage": stage}
    if offload:
        zero["offload_param"] = {"device": "cpu"}
        zero["offload_optimizer"] = {"device": "cpu"}
    config = AUTO | {"zero_optimization": zero, "train_micro_batch_size_per_gpu": micro}
    gathered = dsconfig.gather(**{**SHAPE, **facts})
    resolved = dsconfig.resolve(config, gathered, runtime=program)
    assert resolved.effective is not None
    return estimator.estimate(resolved.effective, gathered, runtime=program).options[0]


def size(parts: Any, name: str) -> int:
    return sum(part.bytes for part in parts if part.name == name)


PARAMETERS = 1_235_814_400


@pytest.mark.parametrize("program", ["deepspeed", "dsengine"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_frozen_copy_has_16_bit_weights(stage: int, program: str) -> None:
    alone, beside = option(stage, program=program), option(stage, program=program, frozen_copies=1)
    added = size(beside.device.components, COPIES)
    assert added == 2 * PARAMETERS // (4 if stage == 3 else 1)
    assert beside.device.needed_bytes == alone.device.needed_bytes + added
    assert beside.fits[0].headroom_bytes == alone.fits[0].headroom_bytes - added
    assert beside.step.seconds > alone.step.seconds


@pytest.mark.parametrize("program", ["deepspeed", "dsengine"])
def test_frozen_copy_is_offloaded_with_the_parameters(program: str) -> None:
    alone = option(3, offload=True, program=program)
    beside = option(3, offload=True, program=program, frozen_copies=2)
    assert size(beside.device.components, COPIES) == 0
    assert size(beside.host.components, COPIES) == 2 * 2 * PARAMETERS
    assert beside.host.bytes == alone.host.bytes + 2 * 2 * PARAMETERS


def test_pairs_need_the_activations_of_twice_the_micro_batch() -> None:
    pairs, samples = option(2, micro=2, sequences_per_sample=2), option(2, micro=4)
    assert pairs.device.phase_bytes == samples.device.phase_bytes
    assert pairs.step.compute_seconds == pytest.approx(samples.step.compute_seconds)


def test_inference_engine_takes_its_share_of_the_gpu() -> None:
    alone, beside = option(3), option(3, inference_share=0.25)
    memory = beside.fits[0].memory_bytes
    assert size(beside.device.components, ENGINE) == memory // 4
    assert alone.fits[0].headroom_bytes - beside.fits[0].headroom_bytes == memory // 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("frozen_copies", value) for value in (-1, 65, 1.0, True, "1")),
        *(("sequences_per_sample", value) for value in (0, 65, True, 2.0)),
        *(("inference_share", value) for value in (-0.1, 1, float("nan"), "0.5")),
    ],
)
def test_impossible_companion_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        dsconfig.gather(**{name: value})
