"""The interface of a program that reads a ds_config."""

import json
from collections.abc import Iterable, Mapping
from copy import copy
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self

from dsconfig.facts import Facts
from dsconfig.facts.naming import named
from dsconfig.runtimes.replay import Replay
from dsconfig.schema.markers import AUTO
from dsconfig.schema.paths import KeyPath
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.plain import shown
from dsconfig.source.pointer import dotted, lookup


class AutoHandling(StrEnum):
    """How a program handles "auto" at a key."""

    FILLED = "filled"
    """The program fills in a value."""
    NATIVE = "native"
    """"auto" is a regular value of this key."""
    DEFAULT = "default"
    """The key is silently dropped, so that its default applies."""
    KEPT = "kept"
    """The string stays; as a switch it counts as true."""
    REFUSED = "refused"
    """The program stops while it parses the file."""
    REFUSED_LATE = "refused-late"
    """The program stops during initialization or in a step."""


Overrides = tuple[tuple[str, Any], ...]
"""Pointers and values that replace those of a generated config."""


class Instruction(NamedTuple):
    """A change that the user makes: ``text`` is what to write, ``where`` the place."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} in {self.where}"


def format_instructions(steps: Iterable[Instruction]) -> str:
    """Return instructions grouped by place, as in ``bf16=True in TrainingArguments``."""
    places: dict[str, list[str]] = {}
    for step in steps:
        places.setdefault(step.where, []).append(step.text)
    return "; ".join(f"{', '.join(texts)} in {where}" for where, texts in places.items())


CONFIG, ARGUMENTS, SCRIPT = "the config", "TrainingArguments", "the script"
"""Places of instructions."""
RECOMPUTATION = "/activation_checkpointing"
"""Stands for recomputing every block; how to enable it depends on the program."""
SELECTIVE_RECOMPUTATION = f"{RECOMPUTATION}/selective"
"""Stands for selective recomputation: keep attention and every other matrix product. No config key
enables it."""
BY_THE_MODEL = Instruction(SCRIPT, "model.gradient_checkpointing_enable()")
_SELECTIVELY = "dict(use_reentrant=False, context_fn=dsengine.checkpointing.every_other_product)"
SELECTIVELY_BY_THE_MODEL = Instruction(
    SCRIPT, f"model.gradient_checkpointing_enable({_SELECTIVELY})"
)
"""The policy is part of dsengine, because torch has none by name; it only depends on torch."""
LORA_RANK, BASE_WEIGHTS = "/lora/rank", "/base_weights"
"""Pointers that stand for LoRA adapters on a frozen model, and for quantizing it."""
LOSS = "/loss"
"""Stands for a loss that computes no logits."""
SEQUENCE, TENSOR = "/degrees/sequence", "/degrees/tensor"
EXPERT, PIPELINE = "/degrees/expert", "/degrees/pipeline"
"""Pointers that stand for what a parallel degree requires outside the config."""
ADAPTERS_BY_PEFT = Instruction(
    SCRIPT, 'model = get_peft_model(model, LoraConfig(r={}, target_modules="all-linear"))'
)
QUANTIZED_BY_BITSANDBYTES = Instruction(
    SCRIPT,
    "from_pretrained(..., quantization_config=BitsAndBytesConfig(load_in_{}=True, "
    'bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
    "bnb_4bit_quant_storage=torch.bfloat16))",
)
FUSED_LOSS = Instruction(
    SCRIPT, "loss = LigerFusedLinearCrossEntropyLoss()(lm_head.weight, hidden_states, labels)"
)
IN_THE_SCRIPT: Mapping[str, Instruction] = {
    LORA_RANK: ADAPTERS_BY_PEFT,
    BASE_WEIGHTS: QUANTIZED_BY_BITSANDBYTES,
    LOSS: FUSED_LOSS,
}


class Runtime:
    """A program at a DeepSpeed release; subclasses implement one program each.

    Runtimes are immutable values that compare by type and settings. ``version`` is the DeepSpeed
    release underneath (for dsengine: of the supported keys). These are plain classes because every
    run creates all of them and a frozen dataclass takes 40 times as long.
    """

    name: ClassVar[str]
    release: ClassVar[str] = ""
    """Replayed release of the program itself, unless it is DeepSpeed."""
    reads_hjson: ClassVar[bool] = True
    """False if files must be strict JSON: no comments, no trailing commas, no BOM."""
    fills_auto: ClassVar[bool] = True
    """True if the program handles "auto" itself; False: our resolver does."""
    must_fit_on: ClassVar[tuple[str, ...]] = ("deepspeed",)
    """Programs whose memory a resolved config must fit in."""
    auto_fills: ClassVar[Mapping[KeyPath, str]] = {}
    """Description of each value that the program fills in, by path."""
    supplies_optimizer: ClassVar[bool] = False
    """True if DeepSpeed always receives an optimizer, regardless of the config."""
    precedence: ClassVar[tuple[str, ...]] = ("config",)
    """Sources in order of precedence: the config, ``training`` (TrainingArguments) or ``launch``
    (accelerate's YAML), named as in ``Facts``."""
    set_elsewhere: ClassVar[Mapping[str, Instruction]] = {
        RECOMPUTATION: BY_THE_MODEL,
        **IN_THE_SCRIPT,
    }
    """Instructions, with ``{}`` for the value, by pointer of settings outside the config."""
    recomputes_selectively: ClassVar[bool] = False
    """True if scripts for it can import the selective policy of dsengine."""
    eight_bit_optimizer: ClassVar[Instruction | None] = Instruction(
        SCRIPT, "optimizer=bnb.optim.AdamW8bit(...)"
    )
    """How a run without an optimizer block uses one with 8-bit states; None: not supported."""
    recomputes_from_config: ClassVar[bool] = False
    """True if the block activation_checkpointing alone enables recomputation."""
    compares_arguments: ClassVar[bool] = False
    """True if a config that contradicts TrainingArguments is refused."""
    hands_over: ClassVar[bool] = False
    """True if DeepSpeed gets the config that the program has filled in, not the file."""
    mpu: bool = False
    """True if the script passes a model-parallel unit."""
    runs_deepspeed: ClassVar[bool] = True
    """True if the config is finally read by DeepSpeed itself."""

    def __init__(self, version: Version = NEWEST) -> None:
        self.version = version

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), self.version))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"

    @property
    def described(self) -> str:
        """Name and releases: ``transformers 5.23 + DeepSpeed 0.19.8``."""
        deepspeed = f"DeepSpeed {self.version}"
        return f"{self.name} {self.release} + {deepspeed}" if self.release else deepspeed

    @property
    def requires_zero_block(self) -> bool:
        """True if a config without zero_optimization is refused."""
        return False

    @property
    def starts_deepspeed(self) -> bool:
        """False if the replay ends before DeepSpeed reads the config."""
        return True

    @property
    def builds_engine(self) -> bool:
        """False if only parsing is replayed."""
        return True

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoHandling:
        """Return how "auto" at a path of ``config`` is handled."""
        return AutoHandling.FILLED if path in self.auto_fills else AutoHandling.REFUSED_LATE

    def instructions(
        self, edits: Mapping[str, Any], written: Mapping[str, Any]
    ) -> tuple[Instruction, ...]:
        """Return what the user sets, and where, for values by pointer to take effect.

        ``written`` is the config as it is in the file.
        """
        in_file = self.file_edits(edits, written)
        taken: list[Instruction] = []
        for pointer, value in edits.items():
            step = self.set_elsewhere.get(pointer)
            if step is not None:
                taken.append(step._replace(text=step.text.format(value)))
            if pointer in in_file:
                assigned = f"{dotted(pointer)} = {json.dumps(value)}"
                text = f"delete {dotted(pointer)}" if value is None else assigned
                taken.append(Instruction(CONFIG, text))
        return tuple(taken)

    def file_edits(self, edits: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values, by pointer, that belong in the file ``written``; None deletes.

        A value that the program takes from elsewhere stays out of the file, or "auto" in it. One
        that the file sets changes as well, because the two must agree.
        """

        def is_set(pointer: str, value: Any) -> bool:
            current = lookup(written, pointer)
            if pointer in self.set_elsewhere:
                return pointer == RECOMPUTATION or current in (None, AUTO)
            return current == value

        return {pointer: value for pointer, value in edits.items() if not is_set(pointer, value)}

    def replay(self, config: dict[str, Any], facts: Facts) -> Replay:
        """Return the replay of the program on a private copy of a config, which may be changed.

        It ends where DeepSpeed starts. Raises MissingFact if the program needs a value that
        ``facts`` do not have. Only called if ``fills_auto``.
        """
        raise NotImplementedError

    def read(self, outcome: Replay, facts: Facts) -> None:
        """Change the config as DeepSpeed does while it reads the file itself."""

    def under_accelerate_launch(self, *, config_file: bool, overrides: Overrides = ()) -> Self:
        """Return the program as ``accelerate launch`` runs it.

        ``config_file`` is False if accelerate generates the config from its YAML; ``overrides``
        (pointers and values) apply to the generated config.
        """
        return self

    def at(self, version: Version) -> Self:
        """Return this program at another DeepSpeed release."""
        other = copy(self)
        other.version = version
        return other


NAMES = ("dsengine", "deepspeed", "transformers", "accelerate")
"""All target programs, dsengine first."""


def runtime_of(value: "str | Runtime", version: Version | None = None) -> Runtime:
    """Return the runtime with a name, or the given one, at ``version`` if specified.

    Raises ValueError for an unknown name.
    """
    if isinstance(value, Runtime):
        return value if version is None else value.at(version)
    if not isinstance(value, str) or value not in NAMES:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{shown(value)} is not one of {', '.join(NAMES)}")
    from importlib import import_module

    factory = getattr(import_module(f"dsconfig.runtimes.{value}"), value)
    return factory(version=version or NEWEST)


def implied_by(facts: "Facts") -> tuple[str, str] | None:
    """Return the program whose settings the facts contain, and the evidence; None without them."""
    if facts.training is not None and facts.training.master_weights == "none":
        return "dsengine", named("master_weights", "none")
    if "training" in facts.origins or facts.arguments:
        return "transformers", "TrainingArguments"
    if "launch" in facts.origins or facts.launch:
        return "accelerate", "the accelerate config"
    return None


def every_runtime(version: Version | None = None) -> tuple[Runtime, ...]:
    """Return all programs at one release."""
    return tuple(runtime_of(name, version) for name in NAMES)
