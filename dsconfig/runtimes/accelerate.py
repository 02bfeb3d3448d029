"""accelerate, which fills in some "auto" values and refuses all others.

The replay: its DeepSpeedPlugin, the Accelerator, and ``prepare`` up to DeepSpeed.
"""

from collections.abc import Mapping
from copy import copy
from math import ceil
from typing import Any, ClassVar, NamedTuple, Self, cast

from dsconfig.batch import MICRO, STEPS
from dsconfig.facts import Facts
from dsconfig.facts.naming import named
from dsconfig.runtimes import integrations
from dsconfig.runtimes.base import (
    AUTO,
    BY_THE_MODEL,
    IN_THE_SCRIPT,
    RECOMPUTATION,
    SCRIPT,
    Instruction,
    Overrides,
    Runtime,
)
from dsconfig.runtimes.capabilities import steps_of
from dsconfig.runtimes.integrations import (
    SpecifiedModel,
    is_auto,
    remark_accumulation,
    value,
)
from dsconfig.runtimes.plugin import Plugin, launch_environment, set_mixed_precision
from dsconfig.runtimes.replay import (
    MissingFact,
    Replay,
    ReplayStop,
    Source,
    errors_at,
    run_replay,
    unknown_ranks,
)
from dsconfig.schema import paths
from dsconfig.schema.auto import BY_ACCELERATE
from dsconfig.schema.paths import KeyPath
from dsconfig.schema.version import NEWEST, Version


class Accelerate(Runtime):
    """``prepare`` with its arguments; unspecified ones are chosen to fit the config.

    ``plugin`` are arguments of DeepSpeedPlugin, ``environment`` the variables it reads;
    ``config_file`` is false without a config file. ``optimizer`` and ``scheduler`` are ``dummy``,
    ``torch`` or ``none``; ``batch_sizes`` are those of the data loaders.
    """

    name = "accelerate"
    release: ClassVar[str] = "1.15"
    auto_fills: ClassVar[Mapping[KeyPath, str]] = BY_ACCELERATE
    reads_hjson: ClassVar[bool] = False
    set_elsewhere: ClassVar[Mapping[str, Instruction]] = {
        RECOMPUTATION: BY_THE_MODEL,
        **IN_THE_SCRIPT,
        **steps_of("accelerate"),
        "/train_micro_batch_size_per_gpu": Instruction(SCRIPT, "DataLoader(..., batch_size={})"),
        "/gradient_accumulation_steps": Instruction(
            SCRIPT, "Accelerator(gradient_accumulation_steps={})"
        ),
        "/optimizer/params/lr": Instruction(SCRIPT, "DummyOptim(..., lr={})"),
        # In the accelerate config, it must not be set together with deepspeed_config_file.
        "/bf16/enabled": Instruction(SCRIPT, 'Accelerator(mixed_precision="bf16")'),
        "/fp16/enabled": Instruction(SCRIPT, 'Accelerator(mixed_precision="fp16")'),
    }
    supplies_optimizer: ClassVar[bool] = True
    hands_over: ClassVar[bool] = True
    precedence: ClassVar[tuple[str, ...]] = ("config", "launch", "training")

    def __init__(
        self,
        version: Version = NEWEST,
        *,
        config_file: bool = True,
        plugin: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        mixed_precision: str | None = None,
        optimizer: str | None = None,
        scheduler: str | None = None,
        batch_sizes: tuple[int | None, ...] | None = None,
        split_batches: bool = False,
    ) -> None:
        super().__init__(version=version)
        self.config_file = config_file
        self.plugin = plugin or {}
        self.environment = environment or {}
        self.mixed_precision = mixed_precision
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.batch_sizes = batch_sizes
        self.split_batches = split_batches
        self.overrides: Overrides = ()

    @property
    def requires_zero_block(self) -> bool:
        return True

    def under_accelerate_launch(self, *, config_file: bool, overrides: Overrides = ()) -> Self:
        other = copy(self)
        other.config_file, other.overrides = config_file, overrides
        return other

    def replay(self, config: dict[str, Any], facts: Facts) -> Replay:
        return run_replay(config, run, facts, self)


def release_used(facts: Facts) -> Version:
    """Return the release of accelerate: as specified, or the newest supported."""
    return Version.parse(facts.releases.get("accelerate", Accelerate.release))


_MIXED = {"fp16": "fp16", "bf16": "bf16", "fp32": "no"}
_OPTIMIZER = {"dummy": "dummy", "DummyOptim": "dummy", "none": None}
_SCHEDULER = {"dummy": "dummy", "DummyScheduler": "dummy", "none": None}


class Script(NamedTuple):
    """Arguments of ``prepare``.

    ``batch_sizes`` are those of the data loaders (None: a loader without one); ``optimizer`` and
    ``scheduler`` are ``dummy``, ``torch`` or None. ``scheduled_lr`` is the learning rate of the
    optimizer that the scheduler was created for.
    """

    processes: int
    accumulation: int
    accumulation_is_given: bool
    batch_sizes: tuple[int | None, ...]
    model: SpecifiedModel
    optimizer: str | None = None
    scheduler: str | None = None
    scheduler_is_callable: bool = False
    learning_rate: Any = None
    weight_decay: Any = None
    scheduled_lr: Any = None
    warmup_steps: Any = 0
    total_steps: int | None = None
    split_batches: bool = False
    smallest_batch: bool = True
    sequence_parallel: int = 1
    rate_is_default: bool = False


def prepare(replay: Replay, script: Script) -> None:
    """Fill in what accelerate fills in, in place. Raises ReplayStop where it raises."""
    config = replay.config
    with errors_at(paths.AUTOTP_SIZE):
        cast(int, config.get("tensor_parallel", {}).get("autotp_size", 0)) > 1  # noqa: B015 # pyright: ignore[reportUnusedExpression]
    micro = _micro_batch(replay, script)
    if config.get(STEPS) == AUTO:
        config[STEPS] = script.accumulation
        source = Source.TRAINING if script.accumulation_is_given else Source.DEFAULT
        rule = "the Accelerator's own gradient_accumulation_steps"
        replay.record(paths.ACCUMULATION, rule, source)
    known: dict[KeyPath, Any] = {paths.GRADIENT_CLIPPING: 1.0, paths.GATHERED_ON_SAVE: False}
    if micro is not None:
        known[paths.MICRO_BATCH] = micro
        with errors_at(*paths.BATCH):
            product = micro * config.get(STEPS) * script.processes // script.sequence_parallel
        known[paths.GLOBAL_BATCH] = product
    _check_optimizer_and_scheduler(replay, script)
    open_keys = [key for key in integrations.BY_WIDTH if is_auto(config, key)]
    if open_keys:
        width = integrations.width_for_accelerate(script.model, open_keys)
        sizes = integrations.sizes_by_width(width)
        known |= dict(zip(integrations.BY_WIDTH, sizes, strict=True))
    if script.optimizer == "dummy":
        if script.rate_is_default and is_auto(config, paths.LEARNING_RATE):
            replay.record(paths.LEARNING_RATE, "DummyOptim's default", Source.DEFAULT)
        known[paths.LEARNING_RATE] = script.learning_rate
        known[paths.OPTIMIZER_PARAMS / "weight_decay"] = script.weight_decay
    if script.scheduler == "dummy" and not script.scheduler_is_callable:
        known[paths.MIN_LR] = 0
        known[paths.MAX_LR] = script.scheduled_lr
        known[paths.WARMUP_STEPS] = max(1, script.warmup_steps)
        if script.total_steps is not None:
            ranks = 1 if script.split_batches else script.processes
            known[paths.TOTAL_STEPS] = ceil(script.total_steps / ranks)
    _fill_all(replay, config, known, KeyPath())
    if script.sequence_parallel > 1:
        ranks = script.processes // script.sequence_parallel
        with errors_at(*paths.BATCH):
            config["train_batch_size"] = config[MICRO] * config[STEPS] * ranks
        rule = "micro batch x accumulation x processes / sequence-parallel ranks"
        replay.record(
            paths.GLOBAL_BATCH, rule, Source.DERIVED, sequence_parallel=script.sequence_parallel
        )


def _micro_batch(replay: Replay, script: Script) -> Any:
    if replay.config.get(MICRO) != AUTO:
        return replay.config.get(MICRO)
    if not script.batch_sizes:
        message = "prepare receives no data loader, but the micro batch size is auto"
        raise ReplayStop("ValueError", message, paths.MICRO_BATCH, late=True)
    sizes = [size for size in script.batch_sizes if size is not None]
    if len(sizes) < len(script.batch_sizes):
        message = "a data loader passed to prepare has no batch size"
        raise ReplayStop("ValueError", message, paths.MICRO_BATCH, late=True)
    if script.split_batches:
        sizes = [size // script.processes for size in sizes]
    chosen = min(sizes) if script.smallest_batch else max(sizes)
    rule = "the batch size of the data loaders passed to prepare"
    if len(set(sizes)) > 1:
        rule += f" (the {'smallest' if script.smallest_batch else 'largest'} of {sizes})"
        replay.remark(
            "DSC756",
            paths.MICRO_BATCH,
            f"the data loaders have batch sizes {sizes}; accelerate trains with {chosen}, even if "
            "that is the evaluation loader's",
            "write the micro batch size in the config, or prepare the evaluation loader separately",
        )
    replay.record(paths.MICRO_BATCH, rule, Source.TRAINING)
    return chosen


def _check_optimizer_and_scheduler(replay: Replay, script: Script) -> None:
    config = replay.config
    if script.optimizer is not None:
        if "optimizer" in config and script.optimizer != "dummy":
            message = "both the config and the script define an optimizer"
            raise ReplayStop("ValueError", message, paths.OPTIMIZER, late=True)
        if "optimizer" not in config and script.optimizer == "dummy":
            message = "the script passes a DummyOptim, but the config has no optimizer"
            raise ReplayStop("ValueError", message, paths.OPTIMIZER, late=True)
        if script.optimizer == "torch":
            config[paths.UNTESTED_OPTIMIZER.name] = True
            rule = "the script passes its own optimizer"
            replay.record(paths.UNTESTED_OPTIMIZER, rule, Source.TRAINING)
    if script.scheduler is not None:
        if "scheduler" in config and script.scheduler != "dummy":
            message = "both the config and the script define a scheduler"
            raise ReplayStop("ValueError", message, paths.SCHEDULER, late=True)
        nothing = "scheduler" not in config and not script.scheduler_is_callable
        if nothing and script.scheduler == "dummy":
            message = "the script passes a DummyScheduler, but the config has no scheduler"
            raise ReplayStop("ValueError", message, paths.SCHEDULER, late=True)
    if script.optimizer == "dummy" and script.scheduler == "torch":
        message = "a DummyOptim requires a DummyScheduler"
        raise ReplayStop("ValueError", message, paths.SCHEDULER, late=True)


def _fill_all(
    replay: Replay, block: dict[str, Any], known: dict[KeyPath, Any], above: KeyPath
) -> None:
    """Fill in every scalar "auto" in order; the first without a value is an error."""
    for key, child in block.items():
        path = above / key
        if isinstance(child, dict):
            _fill_all(replay, cast(dict[str, Any], child), known, path)
            continue
        if not is_auto(replay.config, path):
            continue
        if path not in known:
            message = f'accelerate has no value for "auto" at {path}'
            raise ReplayStop("ValueError", message, path, late=True)
        block[key] = known[path]
        if path not in replay.reasons:
            replay.record(path, *_RULES.get(path, _GIVEN))


_GIVEN = ("from the arguments of prepare", Source.TRAINING)
_CONSTANT = ("accelerate's default", Source.DEFAULT)
_RULES = {
    paths.GLOBAL_BATCH: ("micro batch x accumulation x processes", Source.DERIVED),
    paths.GRADIENT_CLIPPING: _CONSTANT,
    paths.GATHERED_ON_SAVE: _CONSTANT,
    paths.MIN_LR: _CONSTANT,
    paths.TOTAL_STEPS: (
        "the scheduler's steps divided by the number of processes",
        Source.DERIVED,
    ),
    paths.WARMUP_STEPS: (
        "the scheduler's warmup steps, not divided; at least 1",
        Source.TRAINING,
    ),
    **dict.fromkeys(integrations.BY_WIDTH, ("from the model's hidden_size", Source.MODEL)),
}


def run(replay: Replay, facts: Facts, runtime: Accelerate) -> None:
    """Replay up to the call of ``deepspeed.initialize``."""
    if facts.world_size is None:
        raise unknown_ranks()
    environment = {**launch_environment(facts), **runtime.environment}
    plugin = Plugin(runtime.plugin, environment)
    plugin.complete(replay, from_file=runtime.config_file, overrides=runtime.overrides)
    asked = facts.training.precision if facts.training else None
    mixed = runtime.mixed_precision or (_MIXED[asked] if asked else "no")
    rocm = facts.device is not None and facts.device.kind == "rocm"
    set_mixed_precision(replay, mixed, rocm=rocm)
    prepare(replay, _script(replay, facts, runtime, environment))
    after_accelerate(replay, facts)


def _script(
    replay: Replay, facts: Facts, runtime: Accelerate, environment: Mapping[str, str]
) -> Script:
    training, config = facts.training, replay.config
    micro = training.micro_batch_size if training else None
    sizes = runtime.batch_sizes
    if sizes is None and micro is None and config.get(MICRO) == AUTO:
        message = "the batch size of the data loaders is unknown"
        raise MissingFact(
            paths.MICRO_BATCH, message, f"specify {named('micro_batch')}", fact="micro_batch"
        )
    if sizes is None:
        sizes = (micro,) if micro is not None else ()
    # The Accelerator reads this variable too, and it overrides its argument.
    steps = environment.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
    steps = steps or (training and training.gradient_accumulation_steps)
    try:  # the Accelerator converts the launcher's value, even "auto", to an integer
        accumulation = int(steps or 1)
    except ValueError as error:
        raise ReplayStop("ValueError", f"{STEPS}: {error}", paths.ACCUMULATION) from error
    optimizer = runtime.optimizer or ("dummy" if "optimizer" in config else "torch")
    scheduler = runtime.scheduler or ("dummy" if "scheduler" in config else "none")
    rate = training.learning_rate if training else None
    optimizer = _OPTIMIZER.get(optimizer, "torch")
    rate_is_default = optimizer == "dummy" and rate is None
    if rate_is_default:
        rate = 0.001  # the default of DummyOptim, as its weight decay of 0
    return Script(
        processes=facts.world_size or 1,
        accumulation=accumulation,
        accumulation_is_given=bool(steps),
        batch_sizes=sizes,
        model=facts.named_model,
        optimizer=optimizer,
        scheduler=_SCHEDULER.get(scheduler, "torch"),
        learning_rate=rate,
        weight_decay=(training and training.weight_decay) or 0,
        scheduled_lr=rate if optimizer is not None else None,
        warmup_steps=(training and training.warmup_steps) or 0,
        total_steps=training.total_steps if training else None,
        split_batches=runtime.split_batches,
        smallest_batch=runtime.plugin.get("is_train_batch_min", True),
        sequence_parallel=facts.degrees.sequence,
        rate_is_default=rate_is_default,
    )


def after_accelerate(replay: Replay, facts: Facts) -> None:
    """Report divided steps, disabled precision and overridden accumulation."""
    training, config = facts.training, replay.config
    processes = facts.world_size or 1
    if paths.TOTAL_STEPS in replay.reasons and processes > 1 and training and training.total_steps:
        written = value(config, paths.TOTAL_STEPS)
        replay.remark(
            "DSC752",
            paths.TOTAL_STEPS,
            f"accelerate divides the {training.total_steps} steps by {processes} processes and "
            f"schedules {written}, but does not divide the warmup steps",
            "write total_num_steps in the config, in optimizer steps",
        )
    precision = training.precision if training else None
    switch = paths.HALF_PRECISIONS.get(precision or "")
    if switch is not None and value(config, switch) is False:
        replay.remark(
            "DSC753",
            switch,
            f"mixed_precision is {precision}, but the config has {switch} false, which "
            "takes precedence: training runs in fp32",
            f'set {switch} to true or "auto"',
        )
    if training and training.gradient_accumulation_steps is not None:
        remark_accumulation(replay, training.gradient_accumulation_steps)


accelerate = Accelerate  # looked up by program name
