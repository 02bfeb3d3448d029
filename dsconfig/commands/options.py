"""Options that several commands share, and the facts they make.

Every annotated type here is one flag with one meaning everywhere.
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
from dsconfig.commands.errors import UsageError, usage
from dsconfig.lazy_imports import lazy_imports
from dsconfig.source.findings import NO_CONFIG, UNREADABLE

with lazy_imports():
    from dsconfig.commands.validation import settings
    from dsconfig.facts import embedded_facts, gathering, machine
    from dsconfig.planner import plan as plans
    from dsconfig.runtimes import base
    from dsconfig.schema import installed
    from dsconfig.schema import version as versions
    from dsconfig.source import override

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.schema import Version
    from dsconfig.source import Document


def fact(*names: str, help: str, **more: Any) -> Any:
    """A flag about facts, which help lists among its like."""
    return typer.Option(*names, help=help, rich_help_panel="Facts", **more)


ConfigFile = Annotated[str, typer.Argument(metavar="FILE", help="The config; - reads stdin.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a key of the file (repeatable)."),
]
RuntimeName = Annotated[
    str | None, typer.Option(help="deepspeed, transformers, accelerate or dsengine.")
]
DeepSpeedVersion = Annotated[
    str | None,
    typer.Option(
        metavar="X.Y.Z",
        help="Check against this release; default: the installed one, else the newest known.",
    ),
]
FailIfOom = Annotated[
    bool, typer.Option("--fail-if-oom", help="Exit 1 when it does not fit the card.")
]


def full_or_json(form: str) -> str:
    """Insist on a form that every command but ``validate`` has."""
    if form not in ("full", "json"):
        raise UsageError(f"--output-format: {form!r} is not one of full, json")
    return form


FullOrJson = Annotated[
    str,
    typer.Option(envvar="DSCONFIG_OUTPUT_FORMAT", help="full or json.", callback=full_or_json),
]


def load(source: str, overrides: list[str] | None = None) -> "Document":
    """Read a config for a command. Raises UsageError when there is nothing to read."""
    if not source.strip():
        raise UsageError(f"{source!r} names no file; name the config, or - for stdin")
    document = dsconfig.read(source)
    nothing = (UNREADABLE, NO_CONFIG) if document.is_unreadable else (UNREADABLE,)
    unreadable = [found for found in document.diagnostics if found.code in nothing]
    if unreadable:
        raise UsageError(f"{document.name}: {unreadable[0].message}")
    with usage():
        return override.with_overrides(document, overrides or [])


def completed(facts: "Facts", document: "Document") -> "Facts":
    """The facts with those of the YAML that holds the document."""
    return embedded_facts.completed(facts, document) if document.container else facts


def release(text: str | None, *, option: str = "--deepspeed-version") -> "Version":
    """The named release, else the installed one, else the newest known.

    Raises UsageError for what is no release, or one older than any that is known.
    """
    if text is None:
        return installed.installed_or_newest()
    with usage(option):
        version = versions.Version.parse(text)
        if version < versions.OLDEST:
            raise ValueError(f"nothing is known of releases before {versions.OLDEST}")
    return version


def program(runtime: str | None, version: str | None) -> "Runtime":
    """The runtime of the flags at their DeepSpeed release, dsengine by default.

    Raises UsageError for one that is unknown.
    """
    with usage():
        return base.runtime_of(runtime or "dsengine", release(version))


def every_fact(
    world_size: Annotated[
        int | None, fact("--gpus", "--world-size", help="Number of ranks.")
    ] = None,
    nodes: Annotated[int | None, fact(help="Number of nodes.")] = None,
    device: Annotated[str | None, fact(help="A card (`dsconfig devices`), or cpu.")] = None,
    device_memory: Annotated[str | None, fact(help="Memory of one card: 80GiB.")] = None,
    model: Annotated[
        str | None, fact(help="A name (`dsconfig models`), a Hugging Face id or a config.json.")
    ] = None,
    params: Annotated[str | None, fact(help="Parameter count: 13e9, 13B, 700M.")] = None,
    training_args: Annotated[Path | None, fact(help="TrainingArguments as JSON or YAML.")] = None,
    accelerate_config: Annotated[Path | None, fact(help="An accelerate YAML.")] = None,
    micro_batch: Annotated[int | None, fact(help="Samples per GPU per pass.")] = None,
    global_batch: Annotated[int | None, fact(help="Samples per optimizer step.")] = None,
    accumulation: Annotated[int | None, fact(help="Passes per optimizer step.")] = None,
    sequence_length: Annotated[int | None, fact("--seq-len", help="Tokens per sample.")] = None,
    precision: Annotated[str | None, fact(help="fp32, fp16 or bf16.")] = None,
    learning_rate: Annotated[float | None, fact(help="Peak rate.")] = None,
    total_steps: Annotated[int | None, fact(help="Optimizer steps of the run.")] = None,
    warmup_steps: Annotated[float | None, fact(help="Steps, or a share below 1.")] = None,
    host_memory: Annotated[str | None, fact(help="Main memory per node: 512GiB.")] = None,
    nvme: Annotated[str | None, fact(help="Directory on NVMe for offloading.")] = None,
    nvme_size: Annotated[str | None, fact(help="Free space there per node: 2TB.")] = None,
    trainable: Annotated[
        str | None, fact(help="Trainable parameters of an otherwise frozen model: 20M.")
    ] = None,
    lora_rank: Annotated[
        int | None, fact(min=1, help="Rank of LoRA adapters on a frozen model.")
    ] = None,
    lora_targets: Annotated[
        str | None,
        fact(metavar="NAMES", help="Modules to adapt: q_proj,v_proj (default: all linear layers)."),
    ] = None,
    lora_dropout: Annotated[float, fact(min=0.0, max=1.0, help="Dropout of LoRA adapters.")] = 0.0,
    base_weights: Annotated[
        str | None,
        fact(metavar="4bit|8bit", help="Quantize the frozen linear layers (QLoRA: 4bit)."),
    ] = None,
    client_optimizer: Annotated[
        str | None,
        fact(metavar="CLASS", help="Optimizer that the script passes: AdamW, DeepSpeedCPUAdam ..."),
    ] = None,
    tensor_parallel: Annotated[int, fact(help="Degree.")] = 1,
    sequence_parallel: Annotated[int, fact(help="Degree.")] = 1,
    pipeline_parallel: Annotated[int, fact(help="Degree.")] = 1,
    node_link: Annotated[
        str | None, fact(metavar="RATE", help="Between nodes, per GPU: 25 (GB/s) or 200Gbit.")
    ] = None,
    releases: Annotated[
        list[str] | None,
        fact(
            "--with",
            metavar="NAME==RELEASE",
            help="Release of transformers, accelerate, torch or cuda that runs it: faults, memory.",
        ),
    ] = None,
) -> "Facts":
    """All flags about facts, under the names that ``dsconfig.gather`` has for them."""
    return facts_from(**locals())


Command = Callable[..., None]


def with_facts(command: Command) -> Command:
    """Give a command every flag about facts in the place of its ``facts``, which they make."""

    def made(flags: dict[str, Any], file: str | None) -> "Facts":
        return facts_from(**of_project(flags, file))

    return _with(signature(every_fact).parameters, "facts", made, command)


def with_flags(names: str, **defaults: object) -> Callable[[Command], Command]:
    """Give a command the named flags about facts in the place of its ``flags``, a dict of them.

    ``defaults`` are those of this command, where they are others than elsewhere.
    """
    known = signature(every_fact).parameters
    taken = {name: known[name] for name in names.split()}
    taken |= {name: taken[name].replace(default=value) for name, value in defaults.items()}
    return partial(_with, taken, "flags", lambda flags, _: flags)


def with_groups(command: Command) -> Command:
    """Give a command the fields of a NamedTuple as flags, in the place of each parameter that is
    one.
    """
    for name, one in signature(command).parameters.items():
        if hasattr(one.annotation, "_fields"):
            made = partial(_grouped, one.annotation)
            command = _with(signature(one.annotation).parameters, name, made, command)
    return command


def _grouped(group: Callable[..., Any], flags: dict[str, Any], _: str | None) -> Any:
    return group(**flags)


def _with(
    taken: Mapping[str, Parameter],
    place: str,
    made: Callable[[dict[str, Any], str | None], Any],
    command: Command,
) -> Command:
    """The command with the flags ``taken`` in the place of a parameter, which is made of them."""
    own = signature(command)

    @wraps(command)
    def called(**given: Any) -> None:
        flags = {name: given.pop(name) for name in taken}
        command(**given, **{place: made(flags, given.get("file"))})

    each = own.parameters.values()
    both = chain.from_iterable(taken.values() if one.name == place else [one] for one in each)
    keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in both]
    called.__signature__ = own.replace(parameters=keywords)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in keywords}
    return called


def with_this_machine(facts: "Facts", *, ranks: bool = True) -> "Facts":
    """The facts with the cards of this machine where no device was named; said on standard error.

    ``ranks``: there is one for each card where nobody says how many.
    """
    here = machine.cards_here() if facts.device is None else []
    if not here:
        return facts
    name, memory = here[0]
    try:
        device = replace(machine.named_device(name), memory_bytes=memory)
    except ValueError:
        device = machine.DeviceFacts(name=name, memory_bytes=memory)
    found = replace(facts, device=device, origins={**facts.origins, "device": "this machine"})
    if ranks and facts.world_size is None:
        found = replace(found, world_size=len(here), nodes=1)
    typer.echo(f"device: {found.world_size or 1} x {name}, as in this machine (--device)", err=True)
    return found


def measured_here(facts: "Facts") -> "Facts":
    """The facts with the rates of this machine, of a disk where one is named; said on standard
    error. Raises UsageError as ``measured`` does.
    """
    found = measured(facts.host or machine.HostFacts())
    for subject, text in measurements(found):
        typer.echo(f"{subject}: {text}", err=True)
    return replace(facts, host=found, origins={**facts.origins, "host": "measured here"})


def measured(host: "machine.HostFacts") -> "machine.HostFacts":
    """Measure this machine. Raises UsageError without torch, or for a disk that holds no files."""
    if host.nvme_path == "":
        raise UsageError("--nvme is empty: name a directory on the disk to measure")
    try:
        from dsengine.tiers import speeds

        return speeds.measure_rates(host)
    except ImportError as error:
        raise UsageError("measuring needs torch: pip install 'dsconfig-zero[engine]'") from error
    except OSError as error:
        raise UsageError(f"--nvme: {host.nvme_path}: {error.strerror}") from error


def measurements(host: "machine.HostFacts") -> Iterator[tuple[str, str]]:
    """(subject, what was measured) of each rate that ``host`` has."""
    if host.copy_gb_per_second is not None:
        yield "memory speed", f"a copy reads and writes {host.copy_gb_per_second:.1f} GB/s"
    if host.nvme_read_gb_per_second is not None:
        yield (
            "disk speed",
            f"{host.nvme_path} reads {host.nvme_read_gb_per_second:.2f} GB/s and writes "
            f"{host.nvme_write_gb_per_second:.2f} GB/s",
        )
    if host.card_gb_per_second is not None:
        yield "way to a card", f"{host.card_gb_per_second:.1f} GB/s from page-locked memory"


def of_project(flags: dict[str, Any], file: str | None) -> dict[str, Any]:
    """The flags with model and devices of the project that a file lies in, where none were given;
    said on standard error. A plan has settled them already.
    """
    told = settings.settings_for(file or ".")
    taken: dict[str, Any] = {}
    if told.model and not flags.get("model") and not flags.get("params"):
        taken["model"] = told.model
    if told.device and not flags.get("device") and not flags.get("device_memory"):
        taken["device"] = told.device
    if told.gpus and not flags.get("world_size"):
        taken["world_size"] = told.gpus
    if not taken or (file is not None and text_of_plan(file) is not None):
        return flags
    said = " ".join(f"--{_FLAGS.get(name, name)} {value}" for name, value in taken.items())
    typer.echo(f"{said}: by {told.file}", err=True)
    return {**flags, **taken}


def text_of_plan(file: str) -> str | None:
    """What is in a file that holds a plan; None where it holds something else, or nothing."""
    try:
        if not Path(file).is_file():
            return None  # a pipe can be read once only, as a config
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return text if plans.is_plan(text) else None


_FLAGS = {"world_size": "gpus"}


def facts_from(**flags: object) -> "Facts":
    """Facts from command-line flags. Raises UsageError with the flag and the remedy."""
    with usage():
        return gathering.gather(**flags)  # type: ignore[arg-type]
