"""The Trainer of transformers, which fills in some "auto" values before DeepSpeed.

The replay: HfTrainerDeepSpeedConfig processes a config twice: *process* runs when TrainingArguments
is created, *finalize* when the model and the number of steps are known. Mismatches are collected
and raised together at the end of finalize. Then accelerate prepares the run.
"""

import re
from collections.abc import Mapping
from copy import copy
from math import ceil
from typing import Any, ClassVar, NamedTuple, Self

from dsconfig.facts import Facts
from dsconfig.facts.naming import is_name_of, named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes import integrations
from dsconfig.runtimes.accelerate import Script, prepare
from dsconfig.runtimes.base import (
    ARGUMENTS,
    AUTO,
    IN_THE_SCRIPT,
    LOSS,
    RECOMPUTATION,
    AutoHandling,
    Instruction,
    Overrides,
    Runtime,
)
from dsconfig.runtimes.capabilities import steps_of
from dsconfig.runtimes.deepspeed import auto_handling
from dsconfig.runtimes.integrations import (
    SpecifiedModel,
    block_around,
    is_auto,
    remark_accumulation,
    stage_of,
    value,
)
from dsconfig.runtimes.plugin import Plugin, launch_environment, set_mixed_precision
from dsconfig.runtimes.replay import (
    Failure,
    MissingFact,
    Replay,
    ReplayStop,
    Source,
    errors_at,
    run_replay,
    unknown_ranks,
)
from dsconfig.schema import catalogue, paths
from dsconfig.schema.auto import BY_ACCELERATE, BY_TRANSFORMERS
from dsconfig.schema.paths import KeyPath
from dsconfig.schema.version import NEWEST, Version

with lazy_imports():
    from dsconfig.facts import training as training_facts


class Transformers(Runtime):
    """``entry``: "config" for HfTrainerDeepSpeedConfig only, "trainer" for the full Trainer.

    ``through_accelerate`` is true if the config comes from ``accelerate launch`` instead of
    ``TrainingArguments.deepspeed``; ``environment`` are the variables it sets, and ``config_file``
    is false if it has no config file. Raises ValueError for an unknown ``entry``.
    """

    name = "transformers"
    release: ClassVar[str] = "5.23"
    # The Trainer calls accelerate, which fills in more and refuses every other "auto".
    auto_fills: ClassVar[Mapping[KeyPath, str]] = {**BY_ACCELERATE, **BY_TRANSFORMERS}
    reads_hjson: ClassVar[bool] = False
    set_elsewhere: ClassVar[Mapping[str, Instruction]] = {
        RECOMPUTATION: Instruction(ARGUMENTS, "gradient_checkpointing=True"),
        **IN_THE_SCRIPT,
        LOSS: Instruction(ARGUMENTS, "use_liger_kernel=True"),
        **steps_of("transformers"),
        "/train_micro_batch_size_per_gpu": Instruction(ARGUMENTS, "per_device_train_batch_size={}"),
        "/gradient_accumulation_steps": Instruction(ARGUMENTS, "gradient_accumulation_steps={}"),
        "/optimizer/params/lr": Instruction(ARGUMENTS, "learning_rate={}"),
        "/bf16/enabled": Instruction(ARGUMENTS, "bf16={}"),
        "/fp16/enabled": Instruction(ARGUMENTS, "fp16={}"),
    }
    supplies_optimizer: ClassVar[bool] = True
    eight_bit_optimizer: ClassVar[Instruction | None] = Instruction(
        ARGUMENTS, 'optim="adamw_bnb_8bit"'
    )
    hands_over: ClassVar[bool] = True
    precedence: ClassVar[tuple[str, ...]] = ("config", "training", "launch")
    compares_arguments: ClassVar[bool] = True

    def __init__(
        self,
        version: Version = NEWEST,
        *,
        entry: str = "trainer",
        through_accelerate: bool = False,
        config_file: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if entry not in ("config", "trainer"):
            raise ValueError(f'entry={entry!r}: write "config" or "trainer"')
        super().__init__(version=version)
        self.entry = entry
        self.through_accelerate = through_accelerate
        self.config_file = config_file
        self.environment = environment or {}
        self.overrides: Overrides = ()

    @property
    def requires_zero_block(self) -> bool:
        return self.entry == "trainer"

    @property
    def starts_deepspeed(self) -> bool:
        return self.entry == "trainer"

    def under_accelerate_launch(self, *, config_file: bool, overrides: Overrides = ()) -> Self:
        other = copy(self)
        other.config_file, other.through_accelerate = config_file, True
        other.overrides = overrides
        return other

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoHandling:
        if self.entry == "config" and path not in BY_TRANSFORMERS:
            return auto_handling(path, config, self.version)
        return super().on_auto(path, config)

    def replay(self, config: dict[str, Any], facts: Facts) -> Replay:
        if self.entry == "config":
            return run_replay(config, config_alone, facts)
        return run_replay(config, trainer, facts, self)


class Arguments(NamedTuple):
    """TrainingArguments by name; ``steps`` is None if the number of steps is unknown."""

    values: dict[str, Any]
    world_size: int
    steps: int | None
    are_given: bool = True
    """False if they are the defaults, because no file contains them."""
    given: frozenset[str] = frozenset()
    """Names of arguments that a file or a flag sets; the others have their defaults."""

    def switch(self, dtype: str) -> bool:
        """Return whether the training or the evaluation flag of a dtype is set."""
        return self.values[dtype] or self.values[f"{dtype}_full_eval"]

    @property
    def mixed_precision(self) -> str | None:
        """None if no argument sets it."""
        return "fp16" if self.values["fp16"] else "bf16" if self.values["bf16"] else None

    def warmup(self, path: KeyPath) -> int:
        """Return the warmup steps; a value below 1 is a fraction of the run."""
        given = self.values["warmup_steps"]
        if given >= 1:
            return int(given)
        return ceil(self.total(path) * given) if given else 0

    def total(self, path: KeyPath) -> int:
        if self.steps is None:
            raise MissingFact(
                path,
                "the number of optimizer steps is unknown",
                f"specify {named('total_steps')}, or max_steps in {named('training_args')}",
                fact="total_steps",
            )
        return self.steps


def arguments(facts: Facts) -> Arguments:
    """Return the arguments. Raises MissingFact if the number of processes is unknown."""
    if facts.world_size is None:
        raise unknown_ranks()
    training = facts.training
    given: dict[str, Any] = {}
    if training is not None:
        given = _from_flags(facts, training) | dict(training.arguments)
    values: dict[str, Any] = {**training_facts.DEFAULTS, **given}
    steps = values.get("num_training_steps")
    if steps is None:
        steps = values["max_steps"] if values.get("max_steps", -1) > 0 else None
    if steps is None and training is not None:
        steps = training.total_steps
    are_given = training is not None and bool(training.arguments)
    return Arguments(values, facts.world_size, steps, are_given, frozenset(given))


def _from_flags(facts: Facts, training: "training_facts.TrainingFacts") -> dict[str, Any]:
    """Return the arguments that have a command-line flag."""
    given: dict[str, Any] = {
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "learning_rate": training.learning_rate,
        "adam_epsilon": training.adam_epsilon,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "warmup_steps": training.warmup_steps,
    }
    if training.adam_betas is not None:
        given["adam_beta1"], given["adam_beta2"] = training.adam_betas
    # Explicit arguments take precedence: evaluating in bf16 does not mean training in it, and the
    # precision of accelerate's launcher is not an argument.
    is_argument = not training.arguments or is_name_of(facts.origins.get("precision"), "precision")
    if training.precision in ("fp16", "bf16") and is_argument:
        given[training.precision] = True
    return {name: value for name, value in given.items() if value is not None}


_AGREE = 'write "auto" for the key, or set the same value in TrainingArguments'


class Mismatch(NamedTuple):
    """A value ``written`` in the config that differs from ``wanted``, a TrainingArgument."""

    path: KeyPath
    written: Any
    argument: str
    wanted: Any

    def __str__(self) -> str:
        return f"{self.path}={self.written!r} but {self.argument}={self.wanted!r}"


class TrainerFill:
    """HfTrainerDeepSpeedConfig on a config, which is changed in place.

    Arguments that are not known are compared only ``with_defaults``: they have the default if the
    script does not set them.
    """

    def __init__(self, replay: Replay, *, with_defaults: bool = False) -> None:
        self.replay = replay
        self.config = replay.config
        self.stage: Any = stage_of(self.config)
        self.mismatches: dict[KeyPath, Mismatch] = {}
        self.with_defaults = with_defaults
        self.given: frozenset[str] = frozenset()

    def process(self, args: Arguments, *, batch_search: bool = False) -> None:
        """First pass: values that depend only on the arguments."""
        self.given = args.given
        self.with_defaults |= args.are_given
        micro, steps = (
            args.values["per_device_train_batch_size"],
            args.values["gradient_accumulation_steps"],
        )
        product = args.world_size * micro * steps
        strict = not batch_search
        self._fill(paths.MICRO_BATCH, micro, "per_device_train_batch_size", strict)
        self._fill(paths.ACCUMULATION, steps, "gradient_accumulation_steps")
        factors = {"per_device_train_batch_size", "gradient_accumulation_steps"}
        is_known = self.with_defaults or factors <= self.given
        self._fill(paths.GLOBAL_BATCH, product, _GLOBAL_BATCH, strict and is_known)
        self._fill(paths.GRADIENT_CLIPPING, args.values["max_grad_norm"], "max_grad_norm")
        self._fill(paths.LEARNING_RATE, args.values["learning_rate"], "learning_rate")
        betas = [args.values["adam_beta1"], args.values["adam_beta2"]]
        params = paths.OPTIMIZER_PARAMS
        self._fill(params / "betas", betas, "adam_beta1+adam_beta2")
        self._fill(params / "eps", args.values["adam_epsilon"], "adam_epsilon")
        self._fill(params / "weight_decay", args.values["weight_decay"], "weight_decay")
        self._fill(paths.MIN_LR, 0, "", must_match=False)
        self._fill(paths.MAX_LR, args.values["learning_rate"], "learning_rate")
        if args.values["save_on_each_node"]:
            self.config["checkpoint"] = self.config.get("checkpoint", {})
            self.config["checkpoint"]["use_node_local_storage"] = args.values["save_on_each_node"]
            rule = "save_on_each_node of TrainingArguments"
            path = paths.CHECKPOINT / "use_node_local_storage"
            self.replay.record(path, rule, Source.TRAINING)
        for dtype, switch in paths.HALF_PRECISIONS.items():
            self._fill(switch, args.switch(dtype), f"{dtype}|{dtype}_full_eval")

    def finalize(self, args: Arguments, model: SpecifiedModel) -> None:
        """Second pass: bucket sizes and schedule; raise all mismatches together."""
        self._buckets(model)
        if value(self.config, paths.TOTAL_STEPS) is not None:
            total = args.total(paths.TOTAL_STEPS)
            self._fill(paths.TOTAL_STEPS, total, f"num_training_steps{_CALCULATED}")
        if value(self.config, paths.WARMUP_STEPS) is not None:
            self._fill(paths.WARMUP_STEPS, max(1, args.warmup(paths.WARMUP_STEPS)), "warmup_steps")
        failure = self.disagreement()
        if failure is not None:
            raise ReplayStop(
                failure.exception,
                failure.message,
                *failure.paths,
                late=True,
                help=failure.help,
                parts=failure.parts,
            )

    def disagreement(self) -> Failure | None:
        """Return the error for the mismatches found so far, if any."""
        if not self.mismatches:
            return None
        listed = tuple(map(str, self.mismatches.values()))
        disagrees = "the config disagrees with TrainingArguments: "
        message = disagrees + "; ".join(listed)
        parts = tuple(disagrees + each for each in listed)
        paths = tuple(self.mismatches)
        return Failure("ValueError", message, paths, late=True, help=_AGREE, parts=parts)

    def _buckets(self, model: SpecifiedModel) -> None:
        open_keys = [key for key in integrations.BY_WIDTH if is_auto(self.config, key)]
        if not open_keys:
            return
        width = integrations.width_for_transformers(model, open_keys)
        filled = integrations.sizes_by_width(width)
        for key, size in zip(integrations.BY_WIDTH, filled, strict=True):
            if key == paths.REDUCE_BUCKET or self.stage == 3:
                self._fill(key, size, "", must_match=False)
                rule = "from the model's hidden_size"
                self.replay.record(key, rule, Source.MODEL, hidden_size=width)

    def _fill(self, path: KeyPath, wanted: Any, argument: str, must_match: bool = True) -> None:
        place = block_around(self.config, path)
        if place is None:
            return
        written = value(self.config, path)
        if written == AUTO:
            place[path.name] = wanted
            if argument:
                self.replay.record(path, _origin(argument, self.given), Source.TRAINING)
            else:
                self.replay.record(path, "a constant of the Trainer", Source.DEFAULT)
        elif must_match and written is not None and written != wanted and self._is_known(argument):
            self.mismatches[path] = Mismatch(path, written, argument, wanted)

    def _is_known(self, argument: str) -> bool:
        """Return whether the value of an argument is known, not only its default."""
        is_given = not _names_in(argument).isdisjoint(self.given)
        return self.with_defaults or is_given or argument.endswith(_CALCULATED)


def _names_in(argument: str) -> frozenset[str]:
    return frozenset(re.split(r"[|+]", argument))


def _origin(argument: str, given: frozenset[str]) -> str:
    """Describe the source of a value; ``argument`` is spelled as in the Trainer's messages.

    ``given``: the arguments that are specified; the others have their defaults.
    """
    if argument.endswith(_CALCULATED):
        return "calculated from TrainingArguments"
    default = ", the default" if given.isdisjoint(_names_in(argument)) else ""
    return f"{argument.replace('|', ' or ').replace('+', ' and ')} of TrainingArguments{default}"


_CALCULATED = " (calculated)"
_GLOBAL_BATCH = f"train_batch_size{_CALCULATED}"


def config_alone(replay: Replay, facts: Facts) -> None:
    """Replay both passes of HfTrainerDeepSpeedConfig."""
    args = arguments(facts)
    fill = TrainerFill(replay)
    fill.process(args, batch_search=args.values["auto_find_batch_size"])
    fill.finalize(args, facts.named_model)


def trainer(replay: Replay, facts: Facts, runtime: Transformers) -> None:
    """Replay ``Trainer.train`` up to the call of ``deepspeed.initialize``."""
    args = arguments(facts)
    environment = {**launch_environment(facts), **runtime.environment}
    plugin = Plugin({}, environment)
    mixed = args.mixed_precision or environment.get("ACCELERATE_MIXED_PRECISION", "no")
    rocm = facts.device is not None and facts.device.kind == "rocm"
    if runtime.through_accelerate:
        plugin.complete(replay, from_file=runtime.config_file, overrides=runtime.overrides)
        set_mixed_precision(replay, mixed, rocm=rocm)
        fill = TrainerFill(replay)
        fill.process(args)
    else:
        fill = TrainerFill(replay)
        fill.process(args)
        plugin.read_file(replay)
        fill.stage = stage_of(replay.config)
        set_mixed_precision(replay, mixed, rocm=rocm)
        if args.are_given and args.mixed_precision is None:
            _remark_launched_precision(replay, mixed)
    release = Version.parse(facts.releases.get("transformers", Transformers.release))
    is_checked = release >= Version(4, 38, 0)
    if args.values["auto_find_batch_size"] and stage_of(replay.config) == 3 and is_checked:
        message = "auto_find_batch_size cannot be used with ZeRO stage 3"
        help = "delete auto_find_batch_size from the arguments, or use stage 2"
        raise ReplayStop("ValueError", message, paths.STAGE, late=True, help=help)
    if facts.companions.frozen_copies:
        _start_reference_model(replay.config, runtime.version)
    fill.finalize(args, facts.named_model)
    with errors_at(paths.AUTOTP_SIZE):
        _ = replay.config.get("tensor_parallel", {}).get("autotp_size", 1) > 1
    has_optimizer = "optimizer" in replay.config
    if not has_optimizer:
        replay.config[paths.UNTESTED_OPTIMIZER.name] = True
        rule = "the Trainer passes its own optimizer"
        replay.record(paths.UNTESTED_OPTIMIZER, rule, Source.TRAINING)
    prepare(
        replay,
        Script(
            processes=args.world_size,
            accumulation=1,
            accumulation_is_given=False,
            batch_sizes=(),
            model=facts.named_model,
            optimizer="dummy" if has_optimizer else "torch",
            scheduler="dummy" if has_optimizer or "scheduler" in replay.config else None,
            scheduler_is_callable="scheduler" not in replay.config,
            # Rate of a DummyOptim created without one; "auto" values are filled in by now.
            learning_rate=0.001,
            weight_decay=0,
            scheduled_lr=0.001 if has_optimizer else args.values["learning_rate"],
            sequence_parallel=facts.degrees.sequence,
        ),
    )
    clipping = catalogue.key("gradient_clipping")
    clips_at = clipping.default_at(runtime.version) if clipping else 0
    if args.values["max_grad_norm"] != 1.0 or "max_grad_norm" in facts.arguments:
        _remark_clipping(replay, args.values["max_grad_norm"], clips_at)
    after_trainer(replay, args, mixed, is_plugin_first=runtime.through_accelerate)


def _start_reference_model(config: dict[str, Any], version: Version) -> None:
    """Raise what DeepSpeed raises for the engine of a reference model, which trainers of
    preferences start with the same config before the Trainer knows the number of steps."""
    is_scheduled = "optimizer" in config and "scheduler" in config
    for path in (paths.WARMUP_STEPS, paths.TOTAL_STEPS):
        if is_scheduled and value(config, path) == AUTO:
            kind = "ValueError" if version >= Version(0, 19, 3) else "TypeError"
            message = (
                f'{path.name} is still "auto" when DeepSpeed is started for the reference model'
            )
            help = "delete the scheduler block: lr_scheduler_type then decides the schedule"
            raise ReplayStop(kind, message, path, late=True, help=help)


def _remark_launched_precision(replay: Replay, mixed: str) -> None:
    """Report a precision of the launcher that the config, filled in by the arguments, turns off."""
    switch = paths.HALF_PRECISIONS.get(mixed)
    if switch is not None and value(replay.config, switch) is False:
        replay.remark(
            "DSC716",
            switch,
            f"the launcher's mixed_precision is {mixed}, but TrainingArguments have no {mixed}: "
            f"{switch} is false, and the model trains in the dtype it is loaded in",
            f"set {mixed} in TrainingArguments (--{mixed})",
        )


def _remark_clipping(replay: Replay, norm: float, clips_at: float) -> None:
    """Report a max_grad_norm that the config does not carry; ``clips_at``: DeepSpeed's default."""
    if "gradient_clipping" in replay.config or norm == clips_at:
        return
    clips = f"clips at its default of {clips_at}" if clips_at else "does not clip by default"
    replay.remark(
        "DSC755",
        paths.GRADIENT_CLIPPING,
        f"max_grad_norm is {norm}, but the config has no gradient_clipping: DeepSpeed {clips}",
        'write "gradient_clipping": "auto"',
    )


def after_trainer(replay: Replay, args: Arguments, mixed: str, *, is_plugin_first: bool) -> None:
    """Report flags that the config does not carry.

    ``mixed``: the precision of the arguments, else of the launcher.
    ``is_plugin_first``: accelerate adds the half-precision block before the Trainer reads it.
    """
    for dtype, path in () if is_plugin_first else paths.HALF_PRECISIONS.items():
        if mixed == dtype and path in replay.reasons and replay.reasons[path].block_was_absent:
            replay.remark(
                "DSC754",
                path,
                f"the config has no {dtype} block: accelerate adds it after the Trainer has "
                f"recorded fp32, so fp32 inputs reach a {dtype} model",
                f'write "{dtype}": {{"enabled": "auto"}}',
            )
    if "gradient_accumulation_steps" in args.given:
        remark_accumulation(replay, args.values["gradient_accumulation_steps"])


transformers = Transformers  # looked up by program name
