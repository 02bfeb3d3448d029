"""The questions everybody asks of a program that is handed a ds_config."""

import json
from collections.abc import Iterable, Mapping
from copy import copy
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from dsconfig.schema.markers import AUTO
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.pointer import dotted, lookup

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behavior.replay import Replay


class AutoHandling(StrEnum):
    """What becomes of the text "auto" at one key."""

    FILLED = "filled"
    """The program puts a value in its place."""
    NATIVE = "native"
    """"auto" is a setting of its own here."""
    DEFAULT = "default"
    """The key is dropped, so that the default applies, without a word."""
    KEPT = "kept"
    """The text stays; it is true where a switch is expected."""
    REFUSED = "refused"
    """The program stops while it reads the file."""
    REFUSED_LATE = "refused-late"
    """The program stops while it is built or at a step."""


class Instruction(NamedTuple):
    """One thing that a person does: ``text`` is what is written, ``where`` in which place."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} in {self.where}"


def format_instructions(steps: Iterable[Instruction]) -> str:
    """``bf16=True, learning_rate=1e-05 in TrainingArguments; zero_optimization.stage = 3 in the
    config``."""
    places: dict[str, list[str]] = {}
    for step in steps:
        places.setdefault(step.where, []).append(step.text)
    return "; ".join(f"{', '.join(texts)} in {where}" for where, texts in places.items())


CONFIG, ARGUMENTS, SCRIPT = "the config", "TrainingArguments", "the script"
"""The places."""
RECOMPUTATION = "/activation_checkpointing"
"""The pointer that stands for recomputing every block; what is written for it differs."""
SELECTIVE_RECOMPUTATION = f"{RECOMPUTATION}/selective"
"""The same for keeping attention and every other matrix product. No file can ask for it."""
BY_THE_MODEL = Instruction(SCRIPT, "model.gradient_checkpointing_enable()")
_SELECTIVELY = "dict(use_reentrant=False, context_fn=dsengine.checkpointing.every_other_product)"
SELECTIVELY_BY_THE_MODEL = Instruction(
    SCRIPT, f"model.gradient_checkpointing_enable({_SELECTIVELY})"
)
"""The policy is ours, because torch has none by name; it is a function of torch alone."""
LORA_RANK, BASE_WEIGHTS = "/lora/rank", "/base_weights"
"""Pointers that stand for adapters on a frozen model, and for quantizing that model."""
ADAPTERS_BY_PEFT = Instruction(
    SCRIPT, 'model = get_peft_model(model, LoraConfig(r={}, target_modules="all-linear"))'
)
QUANTIZED_BY_BITSANDBYTES = Instruction(
    SCRIPT,
    "from_pretrained(..., quantization_config=BitsAndBytesConfig(load_in_{}=True, "
    'bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
    "bnb_4bit_quant_storage=torch.bfloat16))",
)
OUTSIDE_FILES = frozenset((SELECTIVE_RECOMPUTATION, LORA_RANK, BASE_WEIGHTS))
"""Pointers of edits that no config can express."""
IN_THE_SCRIPT: Mapping[str, Instruction] = {
    LORA_RANK: ADAPTERS_BY_PEFT,
    BASE_WEIGHTS: QUANTIZED_BY_BITSANDBYTES,
}


class Source(StrEnum):
    """Where a value in the place of "auto" comes from."""

    CONFIG = "config"
    TRAINING = "training"
    MODEL = "model"
    HARDWARE = "hardware"
    MEMORY = "memory"
    DERIVED = "derived"
    DEFAULT = "default"


class Runtime:
    """One program at one DeepSpeed release; subclasses answer for themselves.

    A runtime is a value: two of a kind with the same settings are the same, and nobody changes
    one. ``version`` is the release of DeepSpeed underneath (of the key set, for the engine of
    this distribution). The classes are written out, because every run makes all of them and a
    frozen dataclass takes forty times as long to make.
    """

    name: ClassVar[str]
    release: ClassVar[str] = ""
    """Of the program itself, where it is not DeepSpeed's: the one whose behaviour is replayed."""
    reads_hjson: ClassVar[bool] = True
    """False where files go through strict JSON: no comments, no trailing commas, no BOM."""
    fills_auto: ClassVar[bool] = True
    """True where the program has its own way with "auto"; False: our resolver fills it."""
    must_fit_on: ClassVar[tuple[str, ...]] = ("deepspeed",)
    """The programs in whose memory a config resolved for this one has to fit."""
    auto_fills: ClassVar[Mapping[str, str]] = {}
    """What the program itself puts in the place of "auto", in words, by dotted path."""
    supplies_optimizer: ClassVar[bool] = False
    """True where DeepSpeed is always handed an optimizer, whatever the file says."""
    precedence: ClassVar[tuple[str, ...]] = ("config",)
    """Whose word holds where files disagree: the config's, then that of ``training`` or ``launch``
    (TrainingArguments and accelerate's YAML, by their names in ``Facts``)."""
    set_elsewhere: ClassVar[Mapping[str, Instruction]] = {
        RECOMPUTATION: BY_THE_MODEL,
        **IN_THE_SCRIPT,
    }
    """What is not set by the file alone: by pointer, with ``{}`` for the value."""
    recomputes_selectively: ClassVar[bool] = False
    """True if scripts for it can import the selective policy, a function of dsengine."""
    recomputes_from_config: ClassVar[bool] = False
    """True where the block activation_checkpointing alone makes blocks be recomputed."""
    compares_arguments: ClassVar[bool] = False
    """True where a config that contradicts TrainingArguments is refused."""
    runs_deepspeed: ClassVar[bool] = True
    """True where DeepSpeed itself has the last word about the config."""

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
        """True where a config without zero_optimization is refused."""
        return False

    @property
    def builds_engine(self) -> bool:
        """False where only the reading of the config is asked about."""
        return True

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoHandling:
        """What becomes of "auto" at a path of ``config``: filled, or refused where it is not."""
        return (
            AutoHandling.FILLED if ".".join(path) in self.auto_fills else AutoHandling.REFUSED_LATE
        )

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
                taken.append(Instruction(CONFIG, f"{dotted(pointer)} = {json.dumps(value)}"))
        return tuple(taken)

    def file_edits(self, edits: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values, by pointer, that belong in the file ``written``.

        A value that the program takes from elsewhere stays out of the file, or "auto" in it. One
        that the file sets changes as well, because the two must agree.
        """

        def is_set(pointer: str, value: Any) -> bool:
            current = lookup(written, pointer)
            if pointer in self.set_elsewhere:
                return pointer == RECOMPUTATION or current in (None, AUTO)
            return current == value

        return {pointer: value for pointer, value in edits.items() if not is_set(pointer, value)}

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        """What the program would make of a private copy of a config; it may be changed.

        Raises MissingFact where the program would know something that ``facts`` does not say.
        Asked only where ``fills_auto``.
        """
        raise NotImplementedError

    def under_accelerate_launch(self, *, config_file: bool) -> Self:
        """The same program below ``accelerate launch``, whose YAML names a file or settings."""
        return self

    def at(self, version: Version) -> Self:
        """The same program on another DeepSpeed release."""
        other = copy(self)
        other.version = version
        return other


NAMES = ("dsengine", "deepspeed", "transformers", "accelerate")
"""Every program a config can be judged for, our own engine first."""


def runtime_of(value: "str | Runtime", version: Version | None = None) -> Runtime:
    """The runtime of a name or of a runtime, at ``version`` if one is given.

    Raises ValueError for an unknown name.
    """
    if isinstance(value, Runtime):
        return value if version is None else value.at(version)
    if value not in NAMES:
        raise ValueError(f"{value!r} is not a runtime; choose one of {', '.join(NAMES)}")
    from importlib import import_module

    factory = getattr(import_module(f"dsconfig.runtimes.{value}"), value)
    return factory(version=version or NEWEST)


def every_runtime(version: Version | None = None) -> tuple[Runtime, ...]:
    """All four, at one release."""
    return tuple(runtime_of(name, version) for name in NAMES)
