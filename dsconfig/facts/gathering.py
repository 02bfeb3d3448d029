"""Facts from arguments or command-line flags, with their origins."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, cast

from dsconfig import mesh, os_errors
from dsconfig.facts.facts import Companions, Facts
from dsconfig.facts.inputs import (
    FactError,
    parse_bytes,
    parse_count,
    read_file,
    require_in_range,
    require_non_negative,
    require_positive,
)
from dsconfig.facts.machine import DeviceFacts, HostFacts, cpu_device, local_host, named_device
from dsconfig.facts.model import ModelOutline, ModelTree
from dsconfig.facts.naming import named
from dsconfig.facts.request import DECLARED, DEFAULTS, FactsRequest
from dsconfig.facts.training import GATHERED_AS, TrainingFacts, execution_of, training
from dsconfig.lazy_imports import lazy_imports
from dsconfig.schema.version import Version
from dsconfig.source.document import LAUNCH
from dsconfig.source.plain import shown, to_plain
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig.facts import (
        accelerate_config,
        adapters,
        base_weights,
        dialects,
        hf_config,
        hub,
        named_model,
        parallelism,
        parameter_count,
        trainer_fields,
    )

Arguments = ParamSpec("Arguments")


def _with_arguments_of(
    request: Callable[Arguments, FactsRequest],
) -> Callable[[Callable[[FactsRequest], Facts]], Callable[Arguments, Facts]]:
    """Return a decorator for a function of a request, which will take its fields instead."""

    def decorate(function: Callable[[FactsRequest], Facts]) -> Callable[Arguments, Facts]:
        @wraps(function)
        def call(*args: Arguments.args, **arguments: Arguments.kwargs) -> Facts:
            unknown = arguments.keys() - DEFAULTS
            if unknown or args:
                wrong = f"argument {min(unknown)!r}" if unknown else "positional argument"
                raise TypeError(f"{function.__name__}() got an unexpected {wrong}")
            return function(request(*args, **arguments))

        call.__wrapped__ = request  # type: ignore[attr-defined]  # for help() and signature()
        return call

    return decorate


@_with_arguments_of(FactsRequest)
def gather(request: FactsRequest) -> Facts:
    """Return the facts about a run; every argument is optional.

    ``gpus`` is the number of ranks; ``device`` a GPU name or ``cpu``; ``model`` a known model name,
    a Hugging Face id or the path of a config.json; ``params`` a parameter count
    (``13B``). Sizes are bytes or text such as ``512GB``. ``releases`` are versions of transformers,
    accelerate, torch and cuda: a mapping, or texts like ``torch==2.8.0``. ``master_weights`` are
    those of an estimate: ``none``, ``fp32`` or ``bf16``. ``recompute`` (``none``, ``selective`` or
    ``full``), ``attention`` (``flash`` or ``eager``), ``fused_kernels`` and ``loss`` override what
    ``training_args`` say about them. Arguments override files.
    Raises FactError (a ValueError) that names the argument and how to correct it. A misspelled name
    in ``training_args`` is one too, or a UserWarning if others may be of the script's own class.
    """
    facts = facts_of(request)
    _check_names(facts.arguments)
    return facts


def facts_of(request: FactsRequest) -> Facts:
    """Return the facts as :func:`gather` does, without a check of the names in ``training_args``:
    the command line reports where they are written (DSC707)."""
    stated = {name: _argument(name, value) for name, value in request.stated.items()}
    return _facts({**DEFAULTS, **stated})


def _check_names(arguments: Mapping[str, Any]) -> None:
    """Raise FactError for misspelled TrainingArguments; warn of them next to names that may be
    fields of the script's own class."""
    misspelled = trainer_fields.misspelled_arguments(arguments)
    for name, closest in trainer_fields.unknown_arguments(arguments).items():
        message = f'{name} is not a TrainingArgument; did you mean "{closest}"?'
        if misspelled:
            raise FactError("training_args", message)
        if closest is not None:
            warnings.warn(f"training_args: {message}", UserWarning, stacklevel=4)


MOST_COPIES = 64
"""Frozen copies, and sequences of a sample."""
_OWN_TYPES = (ModelTree, DeviceFacts, Path)
_TEXTS = (
    "nvme",
    "lora_targets",
    "base_weights",
    "client_optimizer",
    "client_scheduler",
    *(name for name, declared in DECLARED.items() if declared.choices),
)


def _argument(name: str, value: Any) -> Any:
    """Return an argument in JSON types, or of dsconfig's own. Raises FactError."""
    if value is None or isinstance(value, _OWN_TYPES):
        return value
    try:
        value = to_plain([*value] if name == "releases" and not _is_given(value) else value)
    except Exception as error:  # raised by a method of the object, which is not ours
        message = f"cannot be read: {type(error).__name__}: {shown(error)}; specify JSON values"
        raise FactError(name, message) from None
    if name in _TEXTS and not isinstance(value, str):
        raise FactError(name, f"{shown(value)} is not a string")
    return value


def _is_given(releases: Any) -> bool:
    """Return whether releases are a mapping or a text, not several texts."""
    return isinstance(releases, str | Mapping)


def _facts(arguments: Mapping[str, Any]) -> Facts:
    """Return the facts for the arguments of :func:`gather`, after validation and lookup."""
    origins: dict[str, str] = {}
    launch_settings = _settings(arguments["accelerate_config"], accelerate_config.ARGUMENT)
    launch = accelerate_config.launch(launch_settings)
    for name, argument in (("training", "training_args"), ("launch", "accelerate_config")):
        if isinstance(arguments[argument], str | Path):
            origins[name] = str(arguments[argument])
    written = dict(_settings(arguments["training_args"], "training_args"))
    script = written.pop(LAUNCH, {})
    ranks = _argument_or_launch("world_size", "gpus", arguments, launch.world_size, script, origins)
    nodes = _argument_or_launch("nodes", "nodes", arguments, launch.nodes, script, origins)
    degrees = _degrees(arguments, origins)
    _check_ranks(ranks, nodes, degrees)
    if ranks is not None and nodes is None:
        nodes = mesh.nodes_for(ranks)
        origins["nodes"] = (
            f"assumed: {mesh.PER_NODE} GPUs per node (override with {named('nodes')})"
        )
    for argument in ("micro_batch", "global_batch", "accumulation", "seq_len", "total_steps"):
        require_positive(arguments[argument], argument)
    for argument in ("learning_rate", "warmup_steps"):
        require_non_negative(arguments[argument], argument)
    for argument, declared in DECLARED.items():
        if declared.choices and arguments[argument] not in (None, *declared.choices):
            message = f"{shown(arguments[argument])} is not one of {', '.join(declared.choices)}"
            raise FactError(argument, message)
    if not isinstance(arguments["fused_kernels"], bool):
        raise FactError("fused_kernels", f"{shown(arguments['fused_kernels'])} is not a bool")
    device = arguments["device"]
    model = _trained(_model(arguments["model"], arguments["params"], origins), arguments)
    run = _training(arguments, written, launch.precision, origins)
    ranks_of_node = mesh.ranks_per_node(ranks, nodes) if ranks else 1
    return Facts(
        world_size=ranks,
        nodes=nodes,
        device=_device(device, arguments["device_memory"], ranks_of_node, origins),
        host=_host(
            device, arguments["host_memory"], arguments["nvme"], arguments["nvme_size"], origins
        ),
        model=None if isinstance(model, ModelOutline) else model,
        outline=model if isinstance(model, ModelOutline) else None,
        base_weights=_base_weights(model, arguments),
        training=run,
        companions=_companions(arguments),
        client_optimizer=arguments["client_optimizer"],
        client_scheduler=arguments["client_scheduler"],
        releases=MappingProxyType(releases_of(arguments["releases"])),
        launch=MappingProxyType(dict(launch_settings)),
        node_link_gb_per_second=_node_link(arguments["node_link"], origins),
        origins=MappingProxyType(origins),
        degrees=parallelism.with_sizes(degrees, launch_settings, run, ranks, origins),
    )


def _companions(arguments: Mapping[str, Any]) -> Companions:
    """Return what runs beside the model. Raises FactError."""
    for name, least in (("frozen_copies", 0), ("sequences_per_sample", 1)):
        count = arguments[name]
        if count is not None and not (type(count) is int and least <= count <= MOST_COPIES):
            message = f"{shown(count)} is not an integer from {least} to {MOST_COPIES}"
            raise FactError(name, message)
    share = arguments["inference_share"]
    if share is not None and not (type(share) in (int, float) and 0 <= share < 1):
        raise FactError("inference_share", f"{shown(share)} is not a number from 0 to below 1")
    return Companions(arguments["frozen_copies"], arguments["sequences_per_sample"], share)


def releases_of(specified: Mapping[str, str] | Iterable[str] | None) -> dict[str, str]:
    """Return versions by program. Raises FactError for unknown programs and invalid versions."""
    if isinstance(specified, Mapping):
        releases = {**specified}
    else:
        texts = [specified] if isinstance(specified, str) else specified or ()
        parts = (str(text).partition("==") for text in texts)
        releases = {name.strip().lower(): release.strip() for name, _, release in parts}
    for name, release in releases.items():
        if name not in PROGRAMS and name not in dialects.packages():
            known = ", ".join(dict.fromkeys((*PROGRAMS, *dialects.packages())))
            message = f"{name!r} is not one of {known}; write {PROGRAMS[0]}==4.48.0"
            raise FactError("releases", message)
        try:
            Version.parse(str(release))
        except ValueError:
            message = f"{release!r} is not a version of {name}; write {name}==4.48.0"
            raise FactError("releases", message) from None
    return {name: str(release) for name, release in releases.items()}


PROGRAMS = ("transformers", "accelerate", "trl", "torch", "cuda")
"""Programs whose version can be given. That of DeepSpeed is an argument of each command; torch and
CUDA determine the memory that each process allocates for itself.
"""
_DEGREES = ("tensor", "sequence", "pipeline", "expert")


def _degrees(arguments: Mapping[str, Any], origins: dict[str, str]) -> mesh.Degrees:
    """Return the degrees that are given, and record their origin: a given 1 is not searched."""
    given: dict[str, int] = {}
    for name in _DEGREES:
        argument = f"{name}_parallel"
        require_positive(arguments[argument], argument)
        if arguments[argument] is not None:
            given[name] = arguments[argument]
            origins[argument] = named(argument)
    return mesh.Degrees(**given)


def _settings(source: object, argument: str) -> Mapping[str, Any]:
    """Return the settings, read from a file if a path is given."""
    if isinstance(source, str | Path):
        return read_file(source, argument)
    settings = cast("object", source or {})
    if not is_block(settings):
        raise FactError(argument, f"{shown(source)} is not a path or a mapping")
    require_in_range(settings, argument)
    return settings


def _argument_or_launch(
    fact: str,
    argument: str,
    arguments: Mapping[str, Any],
    launched: int | None,
    script: Mapping[str, int],
    origins: dict[str, str],
) -> int | None:
    """Return an argument, or else what accelerate's YAML or the launcher in a script sets, and
    record its origin."""
    value: int | None = arguments[argument]
    if value is None:
        if launched is not None:
            origins[fact] = named("accelerate_config")
        elif argument in script:
            origins[fact] = named("training_args")
        return launched if launched is not None else script.get(argument)
    require_positive(value, argument)
    origins[fact] = named(argument)
    return value


def _check_ranks(world_size: int | None, nodes: int | None, degrees: mesh.Degrees) -> None:
    if world_size is None:
        return
    if world_size > mesh.MOST_RANKS:
        raise FactError("gpus", f"{world_size:,} exceeds the limit of {mesh.MOST_RANKS:,} ranks")
    _check_degrees(world_size, degrees)
    if nodes is not None and world_size % nodes:
        raise FactError("nodes", f"{world_size} ranks are not divisible by {nodes} nodes")


def _check_degrees(world_size: int, degrees: mesh.Degrees) -> None:
    """Raise FactError, naming the nearest valid number, unless the degrees divide the ranks."""
    together, samples = degrees.per_sample, degrees.samples(world_size)
    if world_size % together:
        divided = [name for name in _DEGREES if name != "expert" and getattr(degrees, name) > 1]
        if len(divided) == 1:
            use = mesh.nearest_degree(together, world_size)
            message = f"{world_size} ranks are not divisible by {together}; use {use}"
            raise FactError(f"{divided[0]}_parallel", message)
        factors = " x ".join(str(getattr(degrees, name)) for name in divided)
        product = f"{' x '.join(divided)} = {factors} = {together}"
        below, above = world_size // together * together, -(-world_size // together) * together
        near = " or ".join(str(size) for size in (below, above) if size)
        message = f"{world_size} ranks are not divisible by {product}; specify {near}"
        raise FactError("gpus", message)
    if samples % degrees.expert:
        use = mesh.nearest_degree(degrees.expert, samples)
        message = f"{degrees.expert} does not divide {samples} data-parallel ranks; use {use}"
        raise FactError("expert_parallel", message)


def _node_link(bandwidth: str | float | None, origins: dict[str, str]) -> float | None:
    """Return the inter-node GB/s per GPU, from text such as ``50GB`` or ``400Gbit``."""
    if bandwidth is None:
        return None
    origins["node_link_gb_per_second"] = named("node_link")
    text = str(bandwidth).strip().lower().removesuffix("/s").removesuffix("ps")
    per_byte = 8 if text.endswith("gbit") else 1
    for unit in ("gbit", "gb"):
        text = text.removesuffix(unit)
    try:
        rate = float(text) / per_byte
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise FactError(
            "node_link", f"{shown(bandwidth)} is not a bandwidth; write GB/s per GPU, or 200Gbit"
        )
    return rate


def _device(
    device: str | DeviceFacts | None,
    memory: str | int | None,
    ranks_of_node: int,
    origins: dict[str, str],
) -> DeviceFacts | None:
    capacity = parse_bytes(memory, "device_memory") if memory is not None else None
    if device is None and capacity is None:
        return None
    origins["device"] = named("device" if device is not None else "device_memory")
    if device is None:
        return DeviceFacts(name="device", memory_bytes=capacity)
    if isinstance(device, DeviceFacts):
        facts = device
    elif not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise FactError("device", f"{shown(device)} is not a string; write a100-80gb or cpu")
    elif device.lower() == "cpu":
        facts = cpu_device(ranks_of_node)
    else:
        try:
            facts = named_device(device)
        except FactError:
            if capacity is None:
                raise
            facts = DeviceFacts(name=device)
    return replace(facts, memory_bytes=capacity) if capacity is not None else facts


def _host(
    device: str | DeviceFacts | None,
    memory: str | int | None,
    nvme: str | None,
    nvme_size: str | int | None,
    origins: dict[str, str],
) -> HostFacts | None:
    capacity = parse_bytes(memory, "host_memory") if memory is not None else None
    disk = parse_bytes(nvme_size, "nvme_size") if nvme_size is not None else None
    if isinstance(device, str) and device.lower() == "cpu":
        origins["host"] = "this machine"
        here = local_host(nvme if disk is None else None)
        return replace(
            here,
            memory_bytes=capacity or here.memory_bytes,
            nvme_path=nvme,
            nvme_bytes=disk or here.nvme_bytes,
        )
    stated = {"host_memory": capacity, "nvme": nvme, "nvme_size": disk}
    origin = next((named(name) for name, value in stated.items() if value is not None), None)
    if origin is None:
        return None
    origins["host"] = origin
    return HostFacts(memory_bytes=capacity, nvme_path=nvme, nvme_bytes=disk)


def _model(
    model: str | Path | ModelTree | None,
    params: str | int | float | None,
    origins: dict[str, str],
) -> ModelTree | ModelOutline | None:
    if model is not None and params is not None:
        raise FactError("params", f"cannot be combined with {named('model')}; specify one of them")
    if params is not None:
        origins["model"] = named("params")
        if not isinstance(params, str | int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise FactError("params", f"{shown(params)} is not a number; write 13e9, 13B or 700M")
        return parameter_count.model(params)
    if model is None:
        return None
    origins["model"] = named("model")
    if isinstance(model, ModelTree):
        return model
    if not isinstance(model, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise FactError("model", f"{shown(model)} is not a model name or the path of a config.json")
    path = Path(model)
    if os_errors.is_file(path / "config.json"):
        path /= "config.json"
    if isinstance(model, Path) or path.suffix == ".json":
        if not os_errors.is_file(path):
            message = f"{model}: file not found; specify a config.json or a model name"
            raise FactError("model", message)
        return hf_config.from_path(path)
    cached = hub.config_of(str(model))
    if cached is not None:
        origins["model"] = f"{named('model')}, from {cached}"
        return hf_config.from_path(cached)
    return named_model.model(str(model))


def _trained(
    model: ModelTree | ModelOutline | None, arguments: Mapping[str, Any]
) -> ModelTree | ModelOutline | None:
    """Return the model with the adapters or the trainable parameters given. Raises FactError."""
    rank, targets, dropout = (
        arguments["lora_rank"],
        arguments["lora_targets"],
        arguments["lora_dropout"],
    )
    require_non_negative(dropout, "lora_dropout")
    if dropout > 1:
        raise FactError("lora_dropout", f"{shown(dropout)} is not a probability of at most 1")
    trainable = arguments["trainable"]
    if rank is None and (targets is not None or dropout):
        argument = "lora_targets" if targets is not None else "lora_dropout"
        raise FactError(argument, f"requires {named('lora_rank')}")
    argument = "trainable" if rank is None else "lora_rank"
    if rank is None and trainable is None:
        return model
    if isinstance(model, ModelOutline):
        raise FactError(argument, model.why)
    if model is None:
        raise FactError(argument, f"requires {named('model')} or {named('params')}")
    if rank is not None:
        require_positive(rank, argument)
        every = adapters.ALL_LINEAR if targets is None else targets
        names = [name.strip() for name in every.split(",") if name.strip()]
        try:
            model = adapters.with_adapters(model, rank, names, dropout=dropout > 0)
        except ValueError as error:
            raise FactError("lora_targets" if targets else argument, str(error)) from None
    if trainable is None:
        return model
    try:
        return adapters.with_trainable(model, parse_count(trainable, "trainable"))
    except FactError:
        raise
    except ValueError as error:
        raise FactError("trainable", str(error)) from None


def _base_weights(
    model: ModelTree | ModelOutline | None, arguments: Mapping[str, Any]
) -> str | None:
    """Return how base weights are stored. Raises FactError for trained ones."""
    kind = arguments["base_weights"]
    if kind is None or kind == "16bit":
        return None
    if kind not in base_weights.NAMES:
        raise FactError("base_weights", f"{kind!r} is not one of {', '.join(base_weights.NAMES)}")
    if isinstance(model, ModelTree) and model.trainable >= model.parameters:
        others = f"{named('lora_rank')} or {named('trainable')}"
        raise FactError("base_weights", f"quantized weights cannot be trained; specify {others}")
    return str(kind)


def _training(
    arguments: Mapping[str, Any],
    written: Mapping[str, Any],
    launch_precision: str | None,
    origins: dict[str, str],
) -> TrainingFacts | None:
    own = {field: arguments[argument] for field, argument in GATHERED_AS.items()}
    own = {field: value for field, value in own.items() if value is not None}
    for field in own:
        origins[field] = named(GATHERED_AS[field])
    if execution := execution_of(arguments):
        own["execution"] = execution
    if arguments["training_args"] is None:
        if launch_precision is not None and "precision" not in own:
            own["precision"] = launch_precision
            origins["precision"] = named("accelerate_config")
        return TrainingFacts(**own) if own else None
    facts = training(written)
    for field in fields(facts):
        if field.name not in own and getattr(facts, field.name) is not None:
            origins[field.name] = named("training_args")
    return replace(facts, **own)
