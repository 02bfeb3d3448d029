"""Notes on stderr: what is assumed, flags without effect, arguments that were not read."""

from typing import TYPE_CHECKING

from dsconfig.batch import GLOBAL, MICRO, STEPS
from dsconfig.facts.naming import is_name_of, named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import AUTO
from dsconfig.schema.paths import ACCUMULATION
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig.commands import notes, text_table
    from dsconfig.cost import estimator
    from dsconfig.facts import trainer_fields
    from dsconfig.project import assumed_facts, beside, inference

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Batch, Effective
    from dsconfig.source import Document


def note(text: str) -> None:
    """Print a wrapped note to stderr."""
    notes.note(text_table.paragraph(text))


def note_unintended_fp32(
    effective: "Effective", document: "Document", program: "Runtime", facts: "Facts"
) -> None:
    """Print a note if the run trains in fp32 only because no precision was specified."""
    config: object = document.value
    if str(effective.numerics.precision) != "fp32" or not is_block(config):
        return
    blocks = [config.get(name) for name in ("bf16", "fp16", "torch_autocast")]
    switches = [block.get("enabled") for block in blocks if is_block(block)]
    named = facts.training is not None and facts.training.precision not in (None, "fp32")
    if AUTO in switches and not named:
        step = program.instructions({"/bf16/enabled": True}, config)[0]
        note(f"note: trains in fp32 because no precision is specified; set {step}")
    elif not switches:
        note('note: trains in fp32 because the config has neither "bf16" nor "fp16"')


def note_not_estimated(effective: "Effective", facts: "Facts") -> None:
    """Print a note for what is not estimated."""
    for key in estimator.not_estimated(effective, facts):
        note(f"note: {key} is not estimated: the model is not known to have experts")
    if facts.companions.inference_share and facts.device_bytes is None:
        note("note: the inference engine is not estimated: its share is of a GPU, see --device")


def with_arguments_beside(
    target: "inference.TargetProgram", source: str, facts: "Facts"
) -> "Facts":
    """Return the facts with the TrainingArguments beside a config that reference it.

    Prints a note about them, and if names in those specified are misspelled and the program does
    not report it.
    """
    if not target.runtime.compares_arguments:
        note_misspelled_arguments(facts)
    known, path = beside.with_arguments(facts, target, source)
    if path:
        note(f"using the arguments in {path}, which references {source}")
    return known or facts


def note_no_master_weights(facts: "Facts") -> None:
    """Print a note for ``--master-weights none``: no program whose config is checked trains so."""
    if facts.training is not None and facts.training.master_weights == "none":
        note(
            "--master-weights none: for programs that train bf16 weights directly, such as "
            "torchtune; `dsconfig run` keeps fp32 master weights"
        )


def note_misspelled_arguments(facts: "Facts") -> None:
    """Print a note for each misspelled name of TrainingArguments."""
    file = facts.origins.get("training", "TrainingArguments")
    for name, closest in trainer_fields.misspelled_arguments(facts.arguments).items():
        note(f'{file}: {name} is not a TrainingArgument, and is ignored; did you mean "{closest}"?')


def note_ignored_flags(
    effective: "Effective", document: "Document", program: "Runtime", facts: "Facts"
) -> None:
    """Print a note for each flag that the config, or the program, overrides."""
    training, batch = facts.training, effective.batch
    if training is None:
        return
    if batch is not None:
        for argument, field, key, used in (
            ("micro_batch", "micro_batch_size", MICRO, batch.micro_batch),
            ("global_batch", "global_batch_size", GLOBAL, batch.global_batch),
            ("accumulation", "gradient_accumulation_steps", STEPS, batch.accumulation),
        ):
            value = getattr(training, field)
            if value in (None, used) or facts.origins.get(field) != named(argument):
                continue
            if argument == "global_batch" and _multiplies(document, program):
                _note_derived(value, batch, program)
            else:
                _note_ignored(named(argument), value, f"{key} is {used}", f"{key}={value}")
    precision = training.precision
    now = str(effective.numerics.precision)
    is_flag = is_name_of(facts.origins.get("precision"), "precision")
    if is_flag and precision not in (None, now):
        switches = {now: "false", precision: "true"}
        change = " --set ".join(f"{n}.enabled={to}" for n, to in switches.items() if n != "fp32")
        _note_ignored("--precision", precision, f"the config trains in {now}", change)


def _multiplies(document: "Document", program: "Runtime") -> bool:
    """Return whether the program computes the global batch from arguments that it fills in."""
    config: object = document.value
    return (
        ACCUMULATION.pointer in program.set_elsewhere
        and is_block(config)
        and all(config.get(key, AUTO) == AUTO for key in (GLOBAL, STEPS))
    )


def _note_derived(wanted: int, batch: "Batch", program: "Runtime") -> None:
    """Print that the program derives the global batch, and how to get the wanted one."""
    steps, rest = divmod(wanted, batch.micro_batch * batch.data_parallel)
    change = f"--accumulation {steps}" if steps and not rest else "--micro-batch and --accumulation"
    notes.note(
        f"--global-batch {wanted} has no effect: {program.name} computes the global batch "
        f"({batch.micro_batch} x {batch.accumulation} x {batch.data_parallel} = "
        f"{batch.global_batch}); specify {change}, or --training-args"
    )


def _note_ignored(flag: str, value: object, reason: str, change: str) -> None:
    notes.note(f"{flag} {value} has no effect: {reason}; use --set {change}")


def without_accumulation(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """Return the facts with the assumption about an open batch size, which is printed."""
    facts, sentence = assumed_facts.no_accumulation(document, facts, program)
    if sentence:
        note(sentence)
    return facts
