"""Registry of all rules by code. Modules are imported when one of their triggers is present."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from importlib import import_module

from dsconfig.checks.rule import (
    AppliesTo,
    Check,
    Rule,
    every_program,
    reaches_deepspeed,
    release_range,
    stop_of,
)
from dsconfig.report import Effect
from dsconfig.source.findings import current

MODEL = "@model"
"""Trigger: the model is known."""
EMBEDDED_IN_YAML = "@embedded"
"""Trigger: the config is embedded in, or named by, a YAML file."""
TRAINING = "@training"
"""Trigger: TrainingArguments are known."""
DIVIDED = "@divided"
"""Trigger: a flag or another file sets a parallel degree."""
PAGE = "@page"
"""Never present: reader, resolver or planner report these findings; the rules declare them."""

FAMILIES: Mapping[str, str] = {
    "0": "Syntax and keys",
    "1": "auto",
    "2": "Batch",
    "3": "Precision",
    "4": "ZeRO and offload",
    "5": "Memory",
    "6": "Optimizer and scheduler",
    "7": "transformers and accelerate",
    "8": "Versions",
    "9": "Checkpoint, data and monitors",
}
"""Topic of the rules by the first digit of their codes."""

MODULES: Mapping[str, str] = {
    "keys": "",
    "values": "",
    "auto": "",
    "batch": "",
    "removed": "",
    "versions": "",
    "precision": "fp16 bf16 bfloat16 torch_autocast",
    "autocast": "torch_autocast",
    "loss_scale": "fp16",
    "dtypes": "data_types",
    "zero_stage": "zero_optimization",
    "zero": "zero_optimization prescale_gradients gradient_predivide_factor "
    "gradient_allreduce_op managed_gradient_accumulation gradient_clipping",
    "offload": "zero_optimization aio optimizer",
    "optimizer": "optimizer zero_optimization zero_allow_untested_optimizer",
    "adam": "optimizer",
    "scheduler": "scheduler",
    "learning_rate": "scheduler optimizer",
    "magnitude": "zero_optimization optimizer",
    "zenflow": "zero_optimization.zenflow",
    "parallel": "sequence_parallel_size data_parallel_size tensor_parallel pipeline "
    f"expert_parallel {DIVIDED}",
    "experts": f"expert_parallel {MODEL}",
    "compile": "compile",
    "memory": MODEL,
    "checkpointing": "activation_checkpointing checkpoint aio "
    "zero_optimization.pipeline_loading_checkpoint",
    "data": "data_efficiency vocabulary_size",
    "monitors": "tensorboard wandb comet datastates_ckpt wall_clock_breakdown memory_breakdown",
    "known_faults": "zero_optimization bf16 bfloat16 fp16 data_types gradient_clipping scheduler "
    "optimizer",
    "muon_faults": "optimizer",
    "stage3_faults": "zero_optimization",
    "engine_faults": "fp16 communication_data_type elasticity pipeline",
    "frozen_faults": f"{MODEL} {TRAINING}",
    "sequence_faults": f"gradient_clipping sequence_parallel_size tensor_parallel {MODEL}",
    "trainer_faults": "transformers accelerate",
    "loading_faults": f"trl {MODEL}",
    "faster_stage": MODEL,
    "stage3_models": f"{MODEL} {TRAINING} {EMBEDDED_IN_YAML}",
    "huggingface": "",
    "replayed": "",
    "launching": EMBEDDED_IN_YAML,
    "parallelism": f"{EMBEDDED_IN_YAML} {TRAINING}",
    "arguments": TRAINING,
    "syntax": PAGE,
    "starting": PAGE,
    "resolving": PAGE,
}
"""Modules with rules, and their triggers; a module without triggers is always imported.

A trigger is a top-level key, a dotted path or a fact.
"""

NESTED = tuple(name for names in MODULES.values() for name in names.split() if "." in name)
"""Dotted paths among the triggers."""

_RULES: dict[str, Rule] = {}


def rule(
    code: str,
    effect: Effect,
    *,
    triggers: str = "",
    also: tuple[Effect, ...] = (),
    stops: str = "",
    releases: str = "to",
    applies_to: AppliesTo = every_program,
    on_templates: bool = False,
    last: bool = False,
    from_source: str = "",
) -> Callable[[Check], Check]:
    """Register a check under a code, which is never reused.

    The rule's name is the function's, with dashes; users write it in ignore lists. ``effect``,
    ``stops`` and ``applies_to`` are defaults for its findings, ``also`` lists the other effects
    they may have. ``stops`` is when the program stops and the exception, as in ``zero ValueError``;
    ``releases`` is as in ``0.6.0 to 0.6.1``. ``last``: run after all other rules. ``from_source``:
    why no run has shown the refusal.
    """

    def register(check: Check) -> Check:
        if code in _RULES:
            raise ValueError(f"{code} is taken by {_RULES[code].name}")
        _RULES[code] = Rule(
            code=code,
            name=check.__name__.replace("_", "-"),
            effect=effect,
            also=also,
            check=check,
            triggers=frozenset(triggers.split()),
            stop=stop_of(stops),
            releases=release_range(releases),
            applies_to=applies_to,
            on_templates=on_templates,
            last=last,
            from_source=from_source,
        )
        return check

    return register


refusal = partial(rule, effect=Effect.REFUSED, applies_to=reaches_deepspeed)
"""Register a check for what DeepSpeed rejects and no other program does."""


@cache
def rules() -> Mapping[str, Rule]:
    """Return every rule by code, in order of code."""
    for module in MODULES:
        import_module(f"dsconfig.checks.{module}")
    return dict(sorted(_RULES.items()))


def rule_of(code_or_name: str) -> Rule | None:
    """Return the rule with this code or name, in any letter case; retired ones are known."""
    wanted = current(code_or_name)
    return next((each for each in rules().values() if wanted in (each.code, each.name)), None)


def declared(code: str) -> Rule:
    """Return the declaration of a finding that is not reported by a check."""
    import_module("dsconfig.checks.resolving")
    return _RULES[code]


@lru_cache(maxsize=1024)
def applicable_rules(present: frozenset[str]) -> tuple[Rule, ...]:
    """Return the rules that one of these triggers activates, and those that need none."""
    for module, triggers in MODULES.items():
        if not triggers or not present.isdisjoint(triggers.split()):
            import_module(f"dsconfig.checks.{module}")
    applicable = (
        rule
        for _, rule in sorted(_RULES.items())
        if not rule.triggers or not rule.triggers.isdisjoint(present)
    )
    return tuple(sorted(applicable, key=lambda rule: rule.last))
