"""Replays of transformers, accelerate and DeepSpeed, compared with the installed programs.

Each meets hundreds of odd configs; outcome, values and class of error have to be the same.
"""

import copy
import math
import random
import warnings
from types import SimpleNamespace

import pytest

import dsconfig
from dsconfig.facts import Facts, ModelTree, TrainingFacts
from dsconfig.runtimes.accelerate import accelerate
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.runtimes.transformers import transformers
from replays.auto import view
from runtimes.mutations import MODELS, mutated

pytestmark = pytest.mark.live
ROUNDS = 600


@pytest.fixture(scope="module", autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def namespace(held):
    nested = {k: namespace(v) if isinstance(v, dict) else v for k, v in held.items()}
    return SimpleNamespace(**nested)


def ours(config, facts, runtime):
    """(exception or None, config)."""
    resolution = dsconfig.resolve(copy.deepcopy(config), facts, runtime=runtime)
    failure = resolution.failure
    return failure and failure.exception, resolution.config


def model_of(shape):
    return ModelTree(name="model", parameters=1, trainable=1, config=shape)


def test_replay_matches_real_transformers():
    module = pytest.importorskip("transformers.integrations.deepspeed")
    pick = random.Random(1)
    for _ in range(ROUNDS):
        config, shape = mutated(pick), pick.choice(MODELS)
        args = {
            "per_device_train_batch_size": pick.choice((1, 4)),
            "gradient_accumulation_steps": pick.choice((1, 2)),
            "learning_rate": 5e-5,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_epsilon": 1e-8,
            "weight_decay": 0.0,
            "max_grad_norm": pick.choice((1.0, 0.0, None)),
            "warmup_steps": pick.choice((0, 5, 0.1)),
            "fp16": pick.random() < 0.2,
            "bf16": pick.random() < 0.2,
            "fp16_full_eval": False,
            "bf16_full_eval": pick.random() < 0.1,
            "save_on_each_node": False,
        }
        args["bf16"] &= not args["fp16"]  # TrainingArguments refuses both
        world, steps = pick.choice((1, 8)), pick.choice((0, -1, 10, 1000))
        given = {**args, "num_training_steps": steps}
        facts = Facts(
            world_size=world, training=TrainingFacts(arguments=given), model=model_of(shape)
        )
        expected = transformers_itself(module, config, shape, args, world, steps)
        assert ours(config, facts, transformers(entry="config"))[0] == expected[0], config
        if expected[0] is None:
            assert ours(config, facts, transformers(entry="config"))[1] == expected[1], config


def transformers_itself(module, config, shape, args, world, steps):
    held = namespace({**args, "world_size": world})
    warmup = args["warmup_steps"]
    held.get_warmup_steps = lambda n: int(warmup) if warmup >= 1 else math.ceil(n * warmup)
    model = SimpleNamespace() if shape is None else SimpleNamespace(config=namespace(shape))
    try:
        filled = module.HfTrainerDeepSpeedConfig(copy.deepcopy(config))
        filled.trainer_config_process(held)
        filled.trainer_config_finalize(held, model, steps)
    except Exception as error:
        return type(error).__name__, None
    return None, filled.config


class Reached(BaseException):
    """Raised when deepspeed.initialize is called with this config."""


def test_replay_matches_real_accelerate(monkeypatch):
    torch = pytest.importorskip("torch")
    real = pytest.importorskip("deepspeed")
    module = pytest.importorskip("accelerate")

    def initialize(**given):
        raise Reached(given["config_params"])

    monkeypatch.setattr(real, "initialize", initialize)
    module.PartialState(cpu=True)
    pick = random.Random(2)
    for _ in range(ROUNDS):
        config, shape = mutated(pick), pick.choice(MODELS)
        world, mixed = pick.choice((1, 8)), pick.choice(("no", "no", "fp16", "bf16"))
        plugin = pick.choice(({}, {}, {"zero_stage": 3}, {"gradient_clipping": 0.3}))
        kinds = pick.choice((("DummyOptim", "DummyScheduler"), ("torch.AdamW", "none")))
        sizes = pick.choice(((4,), (4,), (4, 2), ()))
        facts = Facts(
            world_size=world,
            model=model_of(shape),
            training=TrainingFacts(
                micro_batch_size=4,
                gradient_accumulation_steps=1,
                learning_rate=1e-3,
                weight_decay=0.01,
                warmup_steps=10,
                total_steps=1001,
            ),
        )
        runtime = accelerate(
            plugin=plugin,
            mixed_precision=mixed,
            optimizer=kinds[0],
            scheduler=kinds[1],
            batch_sizes=sizes,
        )
        setting = (shape, world, mixed, plugin, kinds, sizes)
        expected = accelerate_itself(torch, module, config, *setting)
        assert ours(config, facts, runtime)[0] == expected[0], (config, setting)
        if expected[0] is None:
            assert ours(config, facts, runtime)[1] == expected[1], (config, setting)


def accelerate_itself(torch, module, config, shape, world, mixed, plugin, kinds, sizes):
    from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler

    model = torch.nn.Linear(2, 2)
    if shape is not None:
        model.config = namespace(shape)
    if kinds[0] == "DummyOptim":
        optimizer = DummyOptim(model.parameters(), lr=1e-3, weight_decay=0.01)
        more = [optimizer, DummyScheduler(optimizer, total_num_steps=1001, warmup_num_steps=10)]
    else:
        more = [torch.optim.AdamW(model.parameters(), lr=1e-3)]
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2))
    loaders = [torch.utils.data.DataLoader(data, batch_size=size) for size in sizes]
    try:
        made = DeepSpeedPlugin(hf_ds_config=copy.deepcopy(config), **plugin)
        made.set_mixed_precision(mixed)
        state = SimpleNamespace(
            fp8_backend=None,
            deepspeed_plugin=made,
            parallelism_config=None,
            state=SimpleNamespace(),
            split_batches=False,
            num_processes=world,
            gradient_accumulation_steps=1,
            device=SimpleNamespace(type="cuda"),
            _prepare_one=lambda given, first_pass=False: given,
        )
        module.Accelerator._prepare_deepspeed(state, model, *more, *loaders)
    except Reached as reached:
        return None, reached.args[0]
    except Exception as error:
        return type(error).__name__, None
    raise AssertionError("prepare returned without initialize")


def test_replay_matches_real_deepspeed(monkeypatch):
    module = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(module.dist, "get_rank", lambda *_: 0)
    monkeypatch.setattr(module.dist, "get_world_size", lambda *_: 2)
    pick = random.Random(3)
    triple = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    for _ in range(ROUNDS):
        config = mutated(pick)
        for key in triple:
            if config.get(key) == "auto" and pick.random() < 0.9:
                config.pop(key)
        if pick.random() < 0.8:
            config["train_micro_batch_size_per_gpu"] = 2
        raised, got = ours(config, Facts(world_size=2), deepspeed(until="parse"))
        try:
            parsed = module.DeepSpeedConfig(copy.deepcopy(config))
        except Exception as error:
            assert raised == type(error).__name__, config
            continue
        assert raised is None, config
        shown = view(got)
        assert [shown[key] for key in triple] == [getattr(parsed, key) for key in triple], config
        assert shown["zero_optimization"]["stage"] == int(parsed.zero_config.stage)
        assert shown["fp16"]["enabled"] == parsed.float16_config.enabled
        assert shown["bf16"]["enabled"] == parsed.bfloat16_config.enabled
