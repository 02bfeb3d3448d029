"""Pipelines train as one process does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dsengine.checkpoints.state import joined_values
from dsengine.loop.deepspeed_attributes import TABLE
from dsengine.loop.pipelining import ATTRIBUTES
from dsengine.optimizers import as_groups
from training import curves, pipeline_jobs
from training.ranks import RankError, Ranks, SharedRanks

pytestmark = pytest.mark.engine
CLIP = 0.2
JOB = "training.pipeline_jobs:piped"


def check(ranks: Ranks, kind: str, replicas: int = 1, **options: Any) -> None:
    shared = ("steps", "accumulation", "optimizer")
    one = {name: options[name] for name in shared if name in options}
    expected = pipeline_jobs.one_process(kind, replicas, clip=CLIP, **one)
    got = ranks.run(JOB, kind=kind, clip=CLIP, **options)
    curves.assert_equal(got, expected, clip=CLIP)


@pytest.mark.parametrize("kind", ["tied", "untied", "tuples"])
@pytest.mark.parametrize(("stage", "accumulation"), [(0, 4), (1, 4), (1, 1)])
def test_two_stages(ranks: Ranks, kind: str, stage: int, accumulation: int) -> None:
    check(ranks, kind, stage=stage, stages=2, accumulation=accumulation)


@pytest.mark.parametrize("stage", [0, 1])
def test_stages_and_replicas(ranks_of: SharedRanks, stage: int) -> None:
    check(ranks_of(4), "tied", replicas=2, stage=stage, stages=2, accumulation=2)


@pytest.mark.parametrize("stage", [0, 1])
def test_four_stages(ranks_of: SharedRanks, stage: int) -> None:
    check(ranks_of(4), "tied", stage=stage, stages=4, accumulation=3 + stage)


@pytest.mark.parametrize("stage", [0, 1])
def test_checkpoints_load_on_other_stages(
    ranks_of: SharedRanks, tmp_path: Path, stage: int
) -> None:
    """Samples do not depend on the number of stages, if the number of replicas is the same."""
    job, place = "training.pipeline_jobs:resumed", str(tmp_path)
    four, two = ranks_of(4), ranks_of(2)
    saved = two.run(job, directory=place, stage=stage, stages=2, saves_at=2)
    assert saved[0] == saved[1]
    expected = two.run(job, directory=place, stage=stage, stages=2)[0]
    for other in (stage, 1 - stage):
        for curve in four.run(job, directory=place, stage=other, stages=4):
            assert_close(curve, expected)
    for curve in ranks_of(1).run(job, directory=place, stage=0, stages=1):
        assert_close(curve, expected)


def assert_close(curve: curves.Curve, expected: curves.Curve) -> None:
    for own, other in zip(curve, expected, strict=True):
        assert own == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize(("precision", "stage"), [("bf16", 0), ("bf16", 1), ("fp16", 1)])
def test_16_bits(ranks: Ranks, ranks_of: SharedRanks, precision: str, stage: int) -> None:
    """In fp16 the first steps overflow, on all stages alike."""
    more = {precision: {"enabled": True}}
    options: dict[str, Any] = {
        "kind": "tied",
        "stage": stage,
        "steps": 6,
        "more": more,
        "clip": CLIP,
    }
    first, second = ranks.run(JOB, stages=2, **options)
    (one,) = ranks_of(1).run(JOB, stages=1, **options)
    assert first == second
    for piped, whole in zip(first, one, strict=True):
        assert piped == pytest.approx(whole, rel=2e-2)


@pytest.mark.parametrize(
    ("module", "more"),
    [
        ({"partition_method": "parameters", "activation_checkpoint_interval": 2}, {}),
        ({"partition_method": "type:block"}, {"pipeline": {"activation_checkpoint_interval": 1}}),
        ({}, {"zero_optimization": {"stage": 0, "ignore_unused_parameters": False}}),
    ],
)
def test_options(ranks: Ranks, module: dict[str, Any], more: dict[str, Any]) -> None:
    kind = "tuples" if not module else "tied"
    check(ranks, kind, stage=1, stages=2, accumulation=2, module=module, more=more)


def test_layer_that_overwrites_received_inputs(ranks: Ranks) -> None:
    check(ranks, "in place", stage=1, stages=2, accumulation=2)


@pytest.mark.parametrize("stage", [0, 1])
def test_plan_made_without_the_model(ranks_of: SharedRanks, stage: int) -> None:
    check(ranks_of(4), "untied", replicas=2, stage=stage, stages=2, planned=True)


def test_evaluation(ranks_of: SharedRanks) -> None:
    found = ranks_of(4).run("training.pipeline_jobs:evaluated", stages=2)
    assert [each[0] for each in found] == [(True, False, 0, 2)] * 2 + [(False, True, 1, 2)] * 2
    assert len({each[1] for each in found}) == len({each[2] for each in found}) == 1
    for first, last in (found[:3:2], found[1::2]):
        assert first[3:] == [None] * 4
        shape = (pipeline_jobs.SAMPLES, pipeline_jobs.LENGTH, pipeline_jobs.VOCABULARY)
        assert last[3] == last[6] == shape and last[4] == pytest.approx(last[2])
    separate = [loss for each in found[2:] for loss in each[5]]
    assert sum(separate) / 6 == pytest.approx(found[0][1])


def test_training_data_continues_after_loading(ranks: Ranks, tmp_path: Path) -> None:
    for losses, again in ranks.run(
        "training.pipeline_jobs:fed_by_a_loader", directory=str(tmp_path)
    ):
        assert again == losses


def test_shapes_may_change_if_dynamic(ranks_of: SharedRanks) -> None:
    job = "training.pipeline_jobs:changed_shapes"
    first, second = ranks_of(2).run(job, dynamic=True)
    assert first == second
    with pytest.raises(RankError, match=r"PipelineModule\(dynamic_shape=True\)"):
        ranks_of(2).run(job, dynamic=False)


def test_inputs_are_copies_that_reentrant_checkpoints_differentiate(ranks_of: SharedRanks) -> None:
    for is_intact, changed in ranks_of(2).run("training.pipeline_jobs:from_floats"):
        assert is_intact and all(changed)


def test_data_that_ends_drops_the_step(ranks_of: SharedRanks) -> None:
    ((error, after, without),) = ranks_of(1).run("training.pipeline_jobs:ended_data")
    assert error.startswith("StopIteration: the data ended") and after == without


def test_groups_of_stages_keep_their_options() -> None:
    def values(*groups: tuple[str, float]) -> dict[str, Any]:
        named = [{"names": [name], "options": {"lr": rate}} for name, rate in groups]
        return {"type": "SGD", "groups": named, "scalars": {}}

    joined = joined_values(values(("a", 1.0), ("tied", 2.0)), values(("tied", 2.0), ("b", 3.0)))
    assert joined == values(("a", 1.0), ("tied", 2.0), ("b", 3.0))
    empty = [{"params": []}, {"params": [torch.zeros(1)]}]
    assert [len(as_groups(empty, keeps_empty=keeps)) for keeps in (False, True)] == [1, 2]


def test_no_attribute_has_two_meanings() -> None:
    assert ATTRIBUTES & TABLE.keys() == set()


REFUSED = {
    "stage 2": "PlanError: pipeline_parallel=2: gradients and parameters of pipeline stages are",
    "stage 3, one stage": "ValueError: the model is a PipelineModule: gradients and parameters of",
    "offload": "PlanError: pipeline_parallel=2: offloading from pipeline stages",
    "sparse": "sparse gradients are not summed",
    "sequence": "ValueError: the model is a PipelineModule: pipeline stages are not combined",
    "own parameter": "'scale' is a parameter of the PipelineModule itself",
    "losses": "additional losses of a PipelineModule are not reported",
    "shared": "ValueError: layers 0 and 1 share a parameter",
    "few layers": "ValueError: 1 layers cannot fill 2 pipeline stages",
    "method": "ValueError: partition_method 'profile' is unknown",
    "expression": "ValueError: partition_method 'type:(' is not a regular expression",
    "nested": "ValueError: layer 0 of a PipelineModule is, or has, a PipelineModule",
    "interval": "ValueError: activation_checkpoint_interval -1 is invalid",
    "checkpointable": "ValueError: checkpointable_layers is the string 'Linear'",
    "tied": "ValueError: the layers tied by TiedLayerSpec('table') have other parameters on",
    "untrained": "pipeline stage 1, layers 1 to 1, has no parameters to train",
    "mpu": "ArgumentError: initialize(mpu=...): a PipelineModule decides the groups of ranks",
    "number": "ValueError: num_micro_batches 0 is not a positive integer",
    "attribute": "AttributeError: engine.micro_batches of a pipeline follows from the config",
    "scalar": "ValueError: the loss of a pipeline must be a scalar tensor",
    "other stages": "RuntimeError: num_stages (3) must divide the number of ranks (2)",
    "parts": "ValueError: rank 1 divides layers into stages at [0, 2, 4], rank 0 at [0, 2, 3]",
    "forward": "PipelineError: forward(): a pipeline runs forward, backward and step in the",
    "backward": "PipelineError: backward(): a pipeline runs",
    "step": "PipelineError: step(): a pipeline runs",
    "optimizer": "PipelineError: optimizer.step(): a pipeline runs",
    "boundary": "PipelineError: set_gradient_accumulation_boundary(): a pipeline runs",
    "no_sync": "PipelineError: no_sync(): a pipeline runs",
    "no data": "ValueError: the pipeline has no data",
    "without gradients": "PipelineError: train_batch() requires gradients",
    "exports": "PipelineError: weight_metadata(): no rank of a pipeline has the weights",
    "16 bits": "PipelineError: save_16bit_model(): no rank of a pipeline has",
    "reduction": "ValueError: reduce_output 'sum' is unknown",
    "files": "PipelineError: save_checkpoint(): DeepSpeed's checkpoint files of a pipeline are",
}


def test_refusals(ranks_of: SharedRanks, tmp_path: Path) -> None:
    found = ranks_of(2).run("training.pipeline_jobs:refused", directory=str(tmp_path))[0]
    assert found.keys() == REFUSED.keys()
    assert {name: text for name, text in found.items() if REFUSED[name] not in text} == {}
