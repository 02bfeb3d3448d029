"""The Trainer: transformers' fills, accelerate's plugin, transformers again, ``prepare``."""

from collections.abc import Mapping
from dataclasses import dataclass

from dsconfig.facts import Facts
from dsconfig.runtimes.behaviour.nodes import stage_of
from dsconfig.runtimes.behaviour.outcome import Outcome, about
from dsconfig.runtimes.behaviour.plugin import Plugin, set_mixed_precision
from dsconfig.runtimes.behaviour.prepare import Script, prepare
from dsconfig.runtimes.behaviour.remarks import after_trainer
from dsconfig.runtimes.behaviour.trainer_fill import TrainerFill
from dsconfig.runtimes.behaviour.training_arguments import arguments


@dataclass(frozen=True, slots=True)
class Launch:
    """How the config reaches the Trainer; see :class:`dsconfig.runtimes.transformers`."""

    through_accelerate: bool
    config_file: bool
    environment: Mapping[str, str]


def config_alone(outcome: Outcome, facts: Facts) -> None:
    """HfTrainerDeepSpeedConfig by itself: both passes."""
    args = arguments(facts)
    fill = TrainerFill(outcome)
    fill.process(args, batch_search=args["auto_find_batch_size"])
    fill.finalize(args, facts.model)


def trainer(outcome: Outcome, facts: Facts, launch: Launch) -> None:
    """``Trainer.train`` up to the call of ``deepspeed.initialize``."""
    args = arguments(facts)
    plugin = Plugin({}, launch.environment)
    mixed = args.mixed_precision
    rocm = facts.device is not None and facts.device.kind == "rocm"
    if launch.through_accelerate:
        if launch.config_file:
            plugin.read_file(outcome)
        else:
            plugin.make_config(outcome)
        set_mixed_precision(outcome, mixed, rocm=rocm)
        fill = TrainerFill(outcome)
        fill.process(args)
    else:
        fill = TrainerFill(outcome)
        fill.process(args)
        plugin.read_file(outcome)
        fill.stage = stage_of(outcome.config)
        set_mixed_precision(outcome, mixed, rocm=rocm)
    fill.finalize(args, facts.model)
    with about("tensor_parallel.autotp_size"):
        _ = outcome.config.get("tensor_parallel", {}).get("autotp_size", 1) > 1
    has_optimizer = "optimizer" in outcome.config
    if not has_optimizer:
        outcome.config["zero_allow_untested_optimizer"] = True
        outcome.wrote("zero_allow_untested_optimizer", "the Trainer brings its own optimizer")
    prepare(
        outcome,
        Script(
            processes=args.world_size,
            accumulation=1,
            batch_sizes=(),
            model=facts.model,
            optimizer="dummy" if has_optimizer else "torch",
            scheduler="dummy" if has_optimizer or "scheduler" in outcome.config else None,
            scheduler_is_callable="scheduler" not in outcome.config,
            # A DummyOptim made without a rate has this one; what is "auto" is filled by now.
            learning_rate=0.001,
            weight_decay=0,
            scheduled_lr=0.001 if has_optimizer else args["learning_rate"],
        ),
    )
    after_trainer(outcome, args)
