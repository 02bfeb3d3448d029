"""Mutated configs: our verdict against the installed DeepSpeedConfig."""

import copy
import os
import random

import pytest

import dsconfig
from dsconfig.schema import NEWEST, Version, keys
from narrowing import not_none

pytestmark = [
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore"),
]
COUNT = 3000
VALUES = [
    *(True, False, 0, 1, 2, 3, -1, 5, 2.0, 0.5, 1.5, -0.5, 5e8, 1e-10, 10**30, float("inf")),
    *("auto", "true", "false", "2", "0.5", "5e8", "", "x", "cpu", "nvme", "none", "fp16", "fp32"),
    *("mean", "sum", "Warn", "AdamW", "WarmupLR", "yes", " 1 ", "1_000", "2.", "+3", "0x10"),
    *(None, [], ["a"], [1], [0.9, 0.999], {}, {"enabled": True}, {"device": "cpu"}, {"a": 1}),
]
BASES = [
    {"train_batch_size": 8},
    {"train_batch_size": 8, "fp16": {"enabled": True}},
    *(
        {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": stage},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        }
        for stage in range(4)
    ),
]
PATHS = [key.path.split(".") for key in keys() if "*" not in key.path and "[]" not in key.path]


@pytest.fixture(scope="module")
def parser():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    config = pytest.importorskip("deepspeed.runtime.config")
    if not dsconfig_is_at(config):
        pytest.skip(f"requires DeepSpeed {NEWEST}")
    import torch.distributed as torch_dist
    from deepspeed import comm

    # As in training: without ranks the parser does not divide by parallel degrees.
    store = torch_dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    torch_dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        comm.init_distributed("gloo", auto_mpi_discovery=False)
        yield config.DeepSpeedConfig
    finally:
        torch_dist.destroy_process_group()
        comm.comm.cdb = None


def dsconfig_is_at(module) -> bool:
    import deepspeed

    return Version.parse(deepspeed.__version__) >= NEWEST


def put(config, path, value):
    for part in path[:-1]:
        if not isinstance(config.get(part), dict):
            config[part] = {}
        config = config[part]
    config[path[-1]] = value


def mutant(source):
    config = copy.deepcopy(source.choice(BASES))
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        path = list(source.choice(PATHS))
        if source.random() < 0.08:
            path[-1] += source.choice(["x", "_", "s"])
        put(config, path, copy.deepcopy(source.choice(VALUES)))
    return config


def is_accepted(parser, config):
    try:
        parser(copy.deepcopy(config))
    except Exception:  # any exception is a rejection
        return False
    return True


def test_verdict_matches_deepspeed_parser(parser):
    source = random.Random(20)
    facts = dsconfig.Facts(world_size=1, device=dsconfig.DeviceFacts(name="cpu", kind="cpu"))
    wrong = []
    for _ in range(COUNT):
        config = mutant(source)
        report = dsconfig.validate(config, facts, runtime="deepspeed", version="0.19.8")
        refusals = [
            found
            for found in report.diagnostics
            if found.effect is dsconfig.Effect.REFUSED and not found.late
        ]
        if is_accepted(parser, config) == bool(refusals):
            wrong.append((config, refusals))
    assert not wrong, "\n".join(map(repr, wrong))


def test_typed_blocks_match_deepspeed_models(parser):
    """Names and aliases of fields at the newest release."""
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    from dsconfig.schema.catalogue import block_at, named
    from dsconfig.schema.version import NEWEST

    models = {
        ("zero_optimization",): DeepSpeedZeroConfig,
        ("zero_optimization", "offload_param"): DeepSpeedZeroOffloadParamConfig,
        ("zero_optimization", "offload_optimizer"): DeepSpeedZeroOffloadOptimizerConfig,
        ("fp16",): DeepSpeedFP16Config,
        ("bf16",): DeepSpeedBF16Config,
    }
    for path, model in models.items():
        block = not_none(block_at(path))
        ours = {
            (field.model_name, field.name if field.aliases else None)
            for field in named((block.owner,), block.key).values()
            if field.read_at(NEWEST)
        }
        assert ours == {(name, field.alias) for name, field in model.model_fields.items()}
