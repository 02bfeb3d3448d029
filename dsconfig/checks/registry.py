"""All rules, by code. Families are imported when the first config is judged."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from importlib import import_module

from dsconfig.checks.rule import AppliesTo, Check, Rule, every_program, reaches_deepspeed
from dsconfig.report import Effect

MODEL = "@model"
"""Wakes what needs to know the model."""
EMBEDDED_IN_YAML = "@embedded"
"""Wakes what looks at the YAML that holds a config, or names it."""
TRAINING = "@training"
"""Wakes what looks at TrainingArguments."""
PAGE = "@page"
"""Wakes nothing: the findings come with the document, and only pages need the rules."""

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
"""The first digit of a code, and what its rules are about."""

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
    "zenflow": "zero_optimization.zenflow",
    "parallel": "sequence_parallel_size data_parallel_size tensor_parallel pipeline",
    "experts": f"expert_parallel {MODEL}",
    "compile": "compile",
    "memory": MODEL,
    "checkpointing": "activation_checkpointing checkpoint aio "
    "zero_optimization.pipeline_loading_checkpoint",
    "data": "data_efficiency vocabulary_size",
    "monitors": "tensorboard wandb comet datastates_ckpt wall_clock_breakdown memory_breakdown",
    "known_faults": "zero_optimization bf16 bfloat16 fp16 data_types gradient_clipping scheduler",
    "trainer_faults": "transformers accelerate",
    "huggingface": "",
    "launching": EMBEDDED_IN_YAML,
    "parallelism": f"{EMBEDDED_IN_YAML} {TRAINING}",
    "arguments": TRAINING,
    "syntax": PAGE,
}
"""The modules with rules, and what triggers each: one of the words, or anything.

A word is a top-level key, a dotted path, or a fact. A module that sleeps is not imported.
"""

NESTED = tuple(word for words in MODULES.values() for word in words.split() if "." in word)
"""The dotted paths among the words."""

_RULES: dict[str, Rule] = {}


def rule(
    code: str,
    effect: Effect,
    *,
    triggers: str = "",
    also: tuple[Effect, ...] = (),
    late: bool = False,
    applies_to: AppliesTo = every_program,
    on_templates: bool = False,
    last: bool = False,
) -> Callable[[Check], Check]:
    """Register a check under a code that is never used again for anything else.

    The rule is called as the function is, with dashes: people write that name in what they ignore.
    ``effect``, ``late`` and ``applies_to`` are what its findings have unless they say otherwise;
    ``also`` lists the effects that they then may have. ``last``: it tells what no other does.
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
            late=late,
            applies_to=applies_to,
            on_templates=on_templates,
            last=last,
        )
        return check

    return register


refusal = partial(rule, effect=Effect.REFUSED, applies_to=reaches_deepspeed)
"""Register what DeepSpeed stops at, and no other program of itself."""


@cache
def rules() -> Mapping[str, Rule]:
    """Every rule by code, in order of code."""
    for module in MODULES:
        import_module(f"dsconfig.checks.{module}")
    return dict(sorted(_RULES.items()))


def rule_of(code_or_name: str) -> Rule | None:
    """The rule with this code (any letter case) or kebab name."""
    for found in rules().values():
        if code_or_name.upper() == found.code or code_or_name.lower() == found.name:
            return found
    return None


@lru_cache(maxsize=1024)
def applicable_rules(words: frozenset[str]) -> tuple[Rule, ...]:
    """The rules that have something to look at where these words hold."""
    for module, triggers in MODULES.items():
        if not triggers or not words.isdisjoint(triggers.split()):
            import_module(f"dsconfig.checks.{module}")
    woken = (
        found
        for _, found in sorted(_RULES.items())
        if not found.triggers or not found.triggers.isdisjoint(words)
    )
    return tuple(sorted(woken, key=lambda found: found.last))
