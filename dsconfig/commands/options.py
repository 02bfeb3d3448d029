"""Options shared by several commands, and the facts they set.

Each annotated type is one flag with the same meaning in every command.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial, wraps
from inspect import Parameter, signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dsconfig
from dsconfig import os_errors
from dsconfig.commands import completion
from dsconfig.commands.notes import note
from dsconfig.commands.progress import progress
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError, usage
from dsconfig.report.render import FORMATS
from dsconfig.report.sizes import size
from dsconfig.source.findings import NO_CONFIG, UNREADABLE
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig.commands import host_memory
    from dsconfig.facts import embedded_facts, gathering, machine
    from dsconfig.planner import plan as plans
    from dsconfig.project import settings
    from dsconfig.source import file_kinds, override

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.source import Document


FACTS = "Model, hardware and training"
"""Panel of the help."""


def fact(*names: str, help: str, **more: Any) -> Any:
    """Return a Typer option in the facts panel of the help."""
    return typer.Option(*names, help=help, rich_help_panel=FACTS, **more)


ConfigFile = Annotated[str, typer.Argument(metavar="FILE", help="Config file (- for stdin).")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a key of the file, e.g. zero_optimization.stage=2 (repeatable).",
    ),
]
RuntimeName = Annotated[
    str | None,
    typer.Option(
        metavar="PROGRAM",
        autocompletion=completion.runtimes,
        help="Target program: deepspeed, transformers, accelerate or dsengine (default: inferred).",
    ),
]
DeepSpeedVersion = Annotated[
    str | None,
    typer.Option(
        metavar="X.Y.Z",
        help="Target DeepSpeed release (default: the installed one, or the newest supported).",
    ),
]
FailIfOom = Annotated[
    bool,
    typer.Option("--fail-if-oom", help="Exit with code 1 if it does not fit (default: code 0)."),
]
EXIT_0_ALTHOUGH_OOM = "exit code 0 although it does not fit; use --fail-if-oom to exit with 1"


FORMAT_VARIABLE = "DSCONFIG_OUTPUT_FORMAT"
MARKDOWN = "markdown"
"""Output format of ``diff``."""


def output_format(*known: str) -> Any:
    """Return the option that selects one of these output formats.

    The variable may also name a format of another command; it means the first one here.
    """

    def check(context: typer.Context, form: str) -> str:
        if form in known:
            return form
        if is_flag(context, "output_format"):
            raise UsageError(f"--output-format: {form!r} is not one of {', '.join(known)}")
        if form not in (*FORMATS, MARKDOWN):
            raise UsageError(f"{FORMAT_VARIABLE}: {form!r} is not one of {', '.join(FORMATS)}")
        return known[0]

    def complete(incomplete: str) -> list[str]:
        return completion.beginning(incomplete, known)

    *others, last = known
    return typer.Option(
        metavar="FORMAT",
        autocompletion=complete,
        envvar=FORMAT_VARIABLE,
        help=f"Output format: {', '.join(others)} or {last}.",
        callback=check,
    )


def is_flag(context: typer.Context, name: str) -> bool:
    """Return whether a parameter is set on the command line, not by a variable or a default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


FullOrJson = Annotated[str, output_format("full", "json")]


def load(source: str, overrides: list[str] | None = None) -> "Document":
    """Read a config and apply overrides. Raises UsageError for an unreadable file."""
    if not source.strip():
        raise UsageError(f"{source!r} is not a file name; specify a config, or - for stdin")
    document = dsconfig.read(source)
    codes = (UNREADABLE, NO_CONFIG) if document.is_unreadable else (UNREADABLE,)
    errors = [finding for finding in document.diagnostics if finding.code in codes]
    if errors:
        raise UsageError(f"{document.name}: {errors[0].message}")
    if is_block(document.value) and file_kinds.another_kind(document.value) is file_kinds.PLAN:
        remedy = file_kinds.PLAN.help.replace("FILE", source)
        raise UsageError(f"{document.name}: this is a plan, not a config; {remedy}")
    with usage():
        return override.with_overrides(document, overrides or [])


def parsed(config: dict[str, Any], name: str, overrides: list[str] | None) -> "Document":
    """Return a config that is not from a file, with overrides applied. Raises UsageError."""
    with usage():
        return override.with_overrides(dsconfig.read(config, name=name), overrides or [])


def completed(facts: "Facts", document: "Document") -> "Facts":
    """Return the facts, completed from the YAML file that embeds the config."""
    return embedded_facts.complete(facts, document) if document.container else facts


def fact_flags(
    gpus: Annotated[
        int | None, fact("--gpus", "--world-size", help="Total number of GPUs (ranks).")
    ] = None,
    nodes: Annotated[int | None, fact(help="Number of nodes (default: 8 GPUs per node).")] = None,
    device: Annotated[
        str | None,
        fact(
            metavar="NAME",
            autocompletion=completion.devices,
            help="GPU name (see `dsconfig devices`) or cpu.",
        ),
    ] = None,
    device_memory: Annotated[
        str | None, fact(metavar="SIZE", help="Memory per GPU, e.g. 80GiB.")
    ] = None,
    model: Annotated[
        str | None,
        fact(
            metavar="NAME",
            autocompletion=completion.models,
            help="Model name (see `dsconfig models`), Hugging Face id or config.json.",
        ),
    ] = None,
    params: Annotated[
        str | None, fact(metavar="COUNT", help="Number of parameters, e.g. 13e9, 13B or 700M.")
    ] = None,
    training_args: Annotated[
        Path | None, fact(metavar="FILE", help="TrainingArguments as JSON, YAML or a shell script.")
    ] = None,
    accelerate_config: Annotated[
        Path | None, fact(metavar="FILE", help="YAML file of accelerate config.")
    ] = None,
    micro_batch: Annotated[int | None, fact(help="Micro batch size per GPU, in samples.")] = None,
    global_batch: Annotated[
        int | None, fact(help="Global batch size, in samples per step.")
    ] = None,
    accumulation: Annotated[int | None, fact(help="Gradient accumulation steps.")] = None,
    seq_len: Annotated[int | None, fact(help="Sequence length, in tokens.")] = None,
    precision: Annotated[
        str | None, fact(metavar="DTYPE", help="Training precision: fp32, fp16 or bf16.")
    ] = None,
    learning_rate: Annotated[float | None, fact(help="Peak learning rate.")] = None,
    total_steps: Annotated[int | None, fact(help="Total optimizer steps.")] = None,
    warmup_steps: Annotated[
        float | None, fact(help="Warmup steps, or a fraction of the total below 1.")
    ] = None,
    host_memory: Annotated[
        str | None, fact(metavar="SIZE", help="Host memory (RAM) per node, e.g. 512GiB.")
    ] = None,
    nvme: Annotated[str | None, fact(metavar="DIR", help="NVMe directory for offloading.")] = None,
    nvme_size: Annotated[
        str | None, fact(metavar="SIZE", help="Free NVMe space per node, e.g. 2TB.")
    ] = None,
    trainable: Annotated[
        str | None,
        fact(metavar="COUNT", help="Trainable parameters; the others are frozen, e.g. 20M."),
    ] = None,
    lora_rank: Annotated[int | None, fact(min=1, help="LoRA rank; freezes the base model.")] = None,
    lora_targets: Annotated[
        str | None, fact(metavar="NAMES", help="Modules to adapt (default: all linear layers).")
    ] = None,
    lora_dropout: Annotated[float, fact(min=0.0, max=1.0, help="LoRA dropout.")] = 0.0,
    base_weights: Annotated[
        str | None,
        fact(metavar="4bit|8bit", help="Quantize the frozen linear layers (QLoRA: 4bit)."),
    ] = None,
    client_optimizer: Annotated[
        str | None,
        fact(metavar="CLASS", help="Optimizer passed by the script, e.g. AdamW."),
    ] = None,
    tensor_parallel: Annotated[
        int | None, fact(help="Tensor-parallel degree (default: 1, or searched).")
    ] = None,
    sequence_parallel: Annotated[
        int | None, fact(help="Sequence-parallel degree (default: 1, or searched).")
    ] = None,
    pipeline_parallel: Annotated[
        int | None, fact(help="Pipeline-parallel degree (default: 1, or searched).")
    ] = None,
    expert_parallel: Annotated[
        int | None, fact(help="Expert-parallel degree (default: 1, or searched).")
    ] = None,
    node_link: Annotated[
        str | None,
        fact(metavar="RATE", help="Bandwidth between nodes per GPU, in GB/s, or e.g. 200Gbit."),
    ] = None,
    releases: Annotated[
        list[str] | None,
        fact(
            "--with",
            metavar="NAME==X.Y",
            help="Release of transformers, accelerate, trl, torch or cuda in use (repeatable).",
        ),
    ] = None,
) -> "Facts":
    """Return the facts of all flags; parameters are named as in ``dsconfig.gather``."""
    return facts_from(**locals())


Command = Callable[..., None]


def with_facts(command: Command) -> Command:
    """Replace the ``facts`` parameter of a command by all flags about facts."""

    def build(flags: dict[str, Any], file: str | None) -> "Facts":
        return facts_from(**with_project_facts(flags, file))

    return _expanded(signature(fact_flags).parameters, "facts", build, command)


def with_flags(names: str, **defaults: object) -> Callable[[Command], Command]:
    """Replace the ``flags`` parameter of a command by the named flags; it receives a dict.

    ``defaults`` override the usual default values.
    """
    known = signature(fact_flags).parameters
    parameters = {name: known[name] for name in names.split()}
    parameters |= {name: parameters[name].replace(default=v) for name, v in defaults.items()}
    return partial(_expanded, parameters, "flags", lambda flags, _: flags)


def with_groups(command: Command) -> Command:
    """Replace each NamedTuple parameter of a command by one flag per field."""
    for name, parameter in signature(command).parameters.items():
        group = parameter.annotation
        if hasattr(group, "_fields"):
            build = partial(_build_group, group)
            command = _expanded(signature(group).parameters, name, build, command)
    return command


def _build_group(group: Callable[..., Any], flags: dict[str, Any], _: str | None) -> Any:
    return group(**flags)


def _expanded(
    flags: Mapping[str, Parameter],
    name: str,
    build: Callable[[dict[str, Any], str | None], Any],
    command: Command,
) -> Command:
    """Return the command with ``flags`` as parameters; ``build`` makes parameter ``name``."""
    original = signature(command)

    @wraps(command)
    def wrapper(**arguments: Any) -> None:
        values = {flag: arguments.pop(flag) for flag in flags}
        command(**arguments, **{name: build(values, arguments.get("file"))})

    parameters = chain.from_iterable(
        flags.values() if parameter.name == name else [parameter]
        for parameter in original.parameters.values()
    )
    keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    wrapper.__signature__ = original.replace(parameters=keywords)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return wrapper


def with_this_machine(facts: "Facts", *, ranks: bool = True) -> "Facts":
    """Return the facts with this machine's GPUs if no device is specified, and its host memory if
    the device is also this machine's; prints a note for each.

    ``ranks``: also assume one rank per GPU if their number is not specified.
    """
    gpus = machine.local_gpus()
    if not gpus:
        return facts
    if facts.device is not None:
        return with_memory_here(facts, gpus)
    name, memory = gpus[0]
    try:
        device = replace(machine.named_device(name), memory_bytes=memory)
    except ValueError:
        device = machine.DeviceFacts(name=name, memory_bytes=memory)
    facts = replace(facts, device=device, origins={**facts.origins, "device": "this machine"})
    if ranks and facts.world_size is None:
        facts = replace(facts, world_size=len(gpus), nodes=1)
    count = facts.world_size or 1
    note(f"device: {count} x {name}, detected; override with --device")
    return with_memory_here(facts, gpus)


def with_memory_here(facts: "Facts", gpus: list[tuple[str, int]] | None = None) -> "Facts":
    """Return the facts with this machine's host memory if its GPUs are those of the facts; prints
    a note."""
    gpus = machine.local_gpus() if gpus is None else gpus
    detected = host_memory.with_memory_here(facts, gpus)
    if (
        detected is not facts
        and detected.host is not None
        and detected.host.memory_bytes is not None
    ):
        memory = size(detected.host.memory_bytes, 0)
        note(f"host memory: {memory}, detected; override with --host-memory")
    return detected


def measured_here(facts: "Facts") -> "Facts":
    """Return the facts with measured bandwidths of this machine; prints them to stderr.

    Raises UsageError as ``measured`` does.
    """
    host = measured(facts.host or machine.HostFacts())
    for subject, text in measurements(host):
        note(f"{subject}: {text}")
    return replace(facts, host=host, origins={**facts.origins, "host": "measured here"})


def measured(host: "machine.HostFacts") -> "machine.HostFacts":
    """Measure this machine. Raises UsageError without torch or for an unusable NVMe directory."""
    if host.nvme_path == "":
        raise UsageError("--nvme is empty; specify a directory on the disk to measure")
    try:
        from dsengine.tiers import speeds

        with progress("Measuring memory and disk bandwidth"):
            return speeds.measure_rates(host)
    except ImportError as error:
        raise UsageError("measuring needs torch: pip install 'dsconfig-zero[engine]'") from error
    except OSError as error:
        raise UsageError(f"--nvme: {host.nvme_path}: {error.strerror}") from error


def measurements(host: "machine.HostFacts") -> Iterator[tuple[str, str]]:
    """Yield (subject, measurement) for each measured bandwidth."""
    if host.copy_gb_per_second is not None:
        yield "host memory", f"copy bandwidth {host.copy_gb_per_second:.1f} GB/s (read + write)"
    if host.nvme_read_gb_per_second is not None:
        yield (
            "NVMe",
            f"{host.nvme_path}: read {host.nvme_read_gb_per_second:.2f} GB/s, write "
            f"{host.nvme_write_gb_per_second:.2f} GB/s",
        )
    if host.card_gb_per_second is not None:
        yield "host to GPU", f"{host.card_gb_per_second:.1f} GB/s from pinned memory"


def with_project_facts(flags: dict[str, Any], file: str | None) -> dict[str, Any]:
    """Return the flags with model and devices of the project file if not specified; prints a note.

    A plan already contains them.
    """
    project = settings.settings_for(file or ".")
    replaced = {"model": "params", "device": "device_memory"}
    added = {
        name: value
        for name, value in project.facts.items()
        if not flags.get(name) and not flags.get(replaced.get(name, name))
    }
    if not added or (file is not None and text_of_plan(file) is not None):
        return flags
    shown = " ".join(f"--{name} {value}" for name, value in added.items())
    note(f"using {shown} from {project.file}")
    return {**flags, **added}


def text_of_plan(file: str) -> str | None:
    """Return the text of a plan file; None if the file is not a plan."""
    try:
        if not os_errors.is_file(file):
            return None  # a pipe can be read only once, and holds a config
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return text if plans.is_plan(text) else None


def facts_from(**flags: object) -> "Facts":
    """Return the facts of command-line flags. Raises UsageError naming the flag."""
    with usage():
        return gathering.from_flags(**flags)
