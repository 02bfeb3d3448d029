"""One call from flags to Facts, each fact with its origin."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dsconfig import mesh
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import (
    FactError,
    parse_bytes,
    parse_count,
    read_file,
    require_non_negative,
    require_positive,
)
from dsconfig.facts.machine import DeviceFacts, HostFacts, named_device, processor, this_host
from dsconfig.facts.model import ModelOutline, ModelTree
from dsconfig.facts.training import FLAG, TrainingFacts, training
from dsconfig.lazy_imports import lazy_imports
from dsconfig.schema.version import Version

with lazy_imports():
    from dsconfig.facts import (
        accelerate_config,
        adapters,
        base_weights,
        hf_config,
        hub,
        named_model,
        parameter_count,
    )

_PRECISIONS = ("fp32", "fp16", "bf16")


def gather(
    *,
    world_size: int | None = None,
    nodes: int | None = None,
    device: str | DeviceFacts | None = None,
    device_memory: str | int | None = None,
    model: str | Path | ModelTree | None = None,
    params: str | int | float | None = None,
    training_args: str | Path | Mapping[str, Any] | None = None,
    accelerate_config: str | Path | Mapping[str, Any] | None = None,
    micro_batch: int | None = None,
    global_batch: int | None = None,
    accumulation: int | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    learning_rate: float | None = None,
    total_steps: int | None = None,
    warmup_steps: float | None = None,
    host_memory: str | int | None = None,
    nvme: str | None = None,
    nvme_size: str | int | None = None,
    tensor_parallel: int = 1,
    sequence_parallel: int = 1,
    pipeline_parallel: int = 1,
    node_link: str | float | None = None,
    trainable: str | int | None = None,
    lora_rank: int | None = None,
    lora_targets: str | None = None,
    lora_dropout: float = 0.0,
    base_weights: str | None = None,
    client_optimizer: str | None = None,
    client_scheduler: str | None = None,
    releases: Mapping[str, str] | Iterable[str] | None = None,
) -> Facts:
    """Facts from what a user or a program says; every argument is optional.

    ``device`` is a catalogue name or ``cpu``; ``model`` a catalogue name or the path of a
    config.json; ``params`` a count (``13B``); sizes are bytes or text such as ``512GB``;
    ``releases`` those of transformers, accelerate, torch and cuda, or texts like ``torch==2.8.0``.
    A flag wins over a file. Raises FactError (a ValueError) naming the flag and the remedy.
    """
    return _facts(dict(locals()))


def _facts(given: Mapping[str, Any]) -> Facts:
    """The arguments of :func:`gather` by name, checked and looked up."""
    origins: dict[str, str] = {}
    launched = _settings(given["accelerate_config"], accelerate_config.FLAG)
    launch = accelerate_config.launch(launched)
    for name, flag in (("training", "training_args"), ("launch", "accelerate_config")):
        if isinstance(given[flag], str | Path):
            origins[name] = str(given[flag])
    ranks = _either("world_size", ("--gpus", given["world_size"]), launch.world_size, origins)
    nodes = _either("nodes", ("--nodes", given["nodes"]), launch.nodes, origins)
    degrees = {name: given[name] for name in _DEGREES}
    _check_ranks(ranks, nodes, degrees)
    if ranks is not None and nodes is None:
        nodes = mesh.nodes_for(ranks)
        origins["nodes"] = f"assumed: {mesh.PER_NODE} GPUs a node; --nodes says otherwise"
    own = {name: given[argument] for name, argument in _TRAINING.items()}
    for name in _WHOLE:
        require_positive(own[name], _FLAG_OF[name])
    for name in ("learning_rate", "warmup_steps"):
        require_non_negative(own[name], _FLAG_OF[name])
    if own["precision"] not in (None, *_PRECISIONS):
        said = f"{own['precision']!r} is unknown; give one of {', '.join(_PRECISIONS)}"
        raise FactError("--precision", said)
    device = given["device"]
    model = _trained(_model(given["model"], given["params"], origins), given)
    ranks_of_node = mesh.ranks_per_node(ranks, nodes) if ranks else 1
    return Facts(
        world_size=ranks,
        nodes=nodes,
        device=_device(device, given["device_memory"], ranks_of_node, origins),
        host=_host(device, given["host_memory"], given["nvme"], given["nvme_size"], origins),
        model=None if isinstance(model, ModelOutline) else model,
        outline=model if isinstance(model, ModelOutline) else None,
        training=_training(given["training_args"], launch.precision, own, origins),
        base_weights=_base_weights(model, given),
        client_optimizer=given["client_optimizer"],
        client_scheduler=given["client_scheduler"],
        releases=MappingProxyType(_releases(given["releases"])),
        launch=MappingProxyType(dict(launched)),
        node_link_gb_per_second=_node_link(given["node_link"], origins),
        origins=MappingProxyType(origins),
        **degrees,
    )


def _releases(given: Mapping[str, str] | Iterable[str] | None) -> dict[str, str]:
    """Releases by program. Raises FactError for another program, and for what is no release."""
    if isinstance(given, Mapping):
        named = {**given}
    else:
        listed = [given] if isinstance(given, str) else given or ()
        parts = (str(each).partition("==") for each in listed)
        named = {name.strip().lower(): release.strip() for name, _, release in parts}
    for name, release in named.items():
        if name not in PROGRAMS:
            said = f"{name!r} is none of {', '.join(PROGRAMS)}"
            raise FactError("--with", f"{said}; write {PROGRAMS[0]}==4.48.0")
        try:
            Version.parse(str(release))
        except ValueError:
            said = f"{release!r} is no release of {name}; write {name}==4.48.0"
            raise FactError("--with", said) from None
    return {name: str(release) for name, release in named.items()}


PROGRAMS = ("transformers", "accelerate", "torch", "cuda")
"""Those whose releases are asked for; DeepSpeed's is the one that a config is judged at. What torch
and CUDA are asked for is what a process holds."""
_DEGREES = ("tensor_parallel", "sequence_parallel", "pipeline_parallel")
_TRAINING = {
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "gradient_accumulation_steps": "accumulation",
    "sequence_length": "sequence_length",
    "precision": "precision",
    "learning_rate": "learning_rate",
    "total_steps": "total_steps",
    "warmup_steps": "warmup_steps",
}
"""Fields of TrainingFacts, and the arguments they come from."""
_WHOLE = (
    *("micro_batch_size", "global_batch_size", "gradient_accumulation_steps"),
    *("sequence_length", "total_steps"),
)


def _settings(source: str | Path | Mapping[str, Any] | None, flag: str) -> Mapping[str, Any]:
    """Those of a file, or as they are given."""
    return read_file(source, flag) if isinstance(source, str | Path) else source or {}


def _either(
    name: str, flag: tuple[str, int | None], file: int | None, origins: dict[str, str]
) -> int | None:
    option, value = flag
    if value is not None:
        require_positive(value, option)
        origins[name] = option
    elif file is not None:
        origins[name] = "--accelerate-config"
    return value if value is not None else file


def _check_ranks(world_size: int | None, nodes: int | None, degrees: Mapping[str, int]) -> None:
    for name, degree in degrees.items():
        require_positive(degree, f"--{name.replace('_', '-')}")
    together = prod(degrees.values())
    if world_size is None:
        return
    if world_size > mesh.MOST_RANKS:
        raise FactError("--gpus", f"{world_size} ranks; give {mesh.MOST_RANKS:,} at most")
    if world_size % together:
        factors = " x ".join(str(degree) for degree in degrees.values())
        said = f"tensor x sequence x pipeline = {factors} = {together}"
        below, above = world_size // together * together, -(-world_size // together) * together
        near = " or ".join(str(size) for size in (below, above) if size)
        raise FactError("--gpus", f"{world_size} ranks cannot be split by {said}; give {near}")
    if nodes is not None and world_size % nodes:
        raise FactError("--nodes", f"{world_size} ranks do not split evenly over {nodes} nodes")


def _node_link(given: str | float | None, origins: dict[str, str]) -> float | None:
    """GB/s of a device's share of the adapters between nodes: ``50GB`` or ``400Gbit``."""
    if given is None:
        return None
    origins["node_link_gb_per_second"] = "--node-link"
    text = str(given).strip().lower().removesuffix("/s").removesuffix("ps")
    per_byte = 8 if text.endswith("gbit") else 1
    for unit in ("gbit", "gb"):
        text = text.removesuffix(unit)
    try:
        rate = float(text) / per_byte
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise FactError("--node-link", f"{given!r} is no rate; write GB/s per GPU: 25 or 200Gbit")
    return rate


def _device(
    device: str | DeviceFacts | None,
    memory: str | int | None,
    ranks_of_node: int,
    origins: dict[str, str],
) -> DeviceFacts | None:
    capacity = parse_bytes(memory, "--device-memory") if memory is not None else None
    if device is None and capacity is None:
        return None
    origins["device"] = "--device" if device is not None else "--device-memory"
    if device is None:
        return DeviceFacts(name="device", memory_bytes=capacity)
    if isinstance(device, DeviceFacts):
        found = device
    elif not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise FactError("--device", f"{device!r} is no name; give one such as a100-80gb, or cpu")
    elif device.lower() == "cpu":
        found = processor(ranks_of_node)
    else:
        try:
            found = named_device(device)
        except FactError:
            if capacity is None:
                raise
            found = DeviceFacts(name=device)
    return replace(found, memory_bytes=capacity) if capacity is not None else found


def _host(
    device: str | DeviceFacts | None,
    memory: str | int | None,
    nvme: str | None,
    nvme_size: str | int | None,
    origins: dict[str, str],
) -> HostFacts | None:
    capacity = parse_bytes(memory, "--host-memory") if memory is not None else None
    disk = parse_bytes(nvme_size, "--nvme-size") if nvme_size is not None else None
    if isinstance(device, str) and device.lower() == "cpu":
        origins["host"] = "this machine"
        here = this_host(nvme if disk is None else None)
        return replace(
            here,
            memory_bytes=capacity or here.memory_bytes,
            nvme_path=nvme,
            nvme_bytes=disk or here.nvme_bytes,
        )
    said = {"--host-memory": capacity, "--nvme": nvme, "--nvme-size": disk}
    origin = next((flag for flag, value in said.items() if value is not None), None)
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
        raise FactError("--params", "--model already says how many parameters there are; drop one")
    if params is not None:
        origins["model"] = "--params"
        if not isinstance(params, str | int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise FactError("--params", f"{params!r} is not a count; write 13e9, 13B or 700M")
        return parameter_count.model(params)
    if model is None:
        return None
    origins["model"] = "--model"
    if isinstance(model, ModelTree):
        return model
    if not isinstance(model, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise FactError("--model", f"{model!r} is no name; name a config.json or a model")
    path = Path(model)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    if isinstance(model, Path) or path.suffix == ".json":
        if not path.is_file():
            raise FactError("--model", f"{model} does not exist; name a config.json or a model")
        return hf_config.from_path(path)
    cached = hub.config_of(str(model))
    if cached is not None:
        origins["model"] = f"--model, from {cached}"
        return hf_config.from_path(cached)
    return named_model.model(str(model))


def _trained(
    model: ModelTree | ModelOutline | None, given: Mapping[str, Any]
) -> ModelTree | ModelOutline | None:
    """Return the model with the adapters or the trainable parameters given. Raises FactError."""
    rank, targets, dropout = given["lora_rank"], given["lora_targets"], given["lora_dropout"]
    trainable = given["trainable"]
    if rank is None and (targets is not None or dropout):
        raise FactError("--lora-targets and --lora-dropout", "they require --lora-rank")
    flag = "--trainable" if rank is None else "--lora-rank"
    if rank is None and trainable is None:
        return model
    if isinstance(model, ModelOutline):
        raise FactError(flag, model.why)
    if model is None:
        raise FactError(flag, "it requires --model or --params")
    if rank is not None:
        require_positive(rank, flag)
        every = adapters.ALL_LINEAR if targets is None else targets
        names = [name.strip() for name in every.split(",") if name.strip()]
        try:
            model = adapters.with_adapters(model, rank, names, dropout=dropout > 0)
        except ValueError as error:
            raise FactError("--lora-targets" if targets else flag, str(error)) from None
    if trainable is None:
        return model
    try:
        return adapters.with_trainable(model, parse_count(trainable, "--trainable"))
    except FactError:
        raise
    except ValueError as error:
        raise FactError("--trainable", str(error)) from None


def _base_weights(model: ModelTree | ModelOutline | None, given: Mapping[str, Any]) -> str | None:
    """Return how base weights are stored. Raises FactError for trained ones."""
    flag, kind = "--base-weights", given["base_weights"]
    if kind is None or kind == "16bit":
        return None
    if kind not in base_weights.NAMES:
        raise FactError(flag, f"{kind!r} is none of {', '.join(base_weights.NAMES)}")
    if isinstance(model, ModelTree) and model.trainable >= model.parameters:
        problem = "quantized weights cannot be trained; specify --lora-rank or --trainable"
        raise FactError(flag, problem)
    return str(kind)


def _training(
    source: str | Path | Mapping[str, Any] | None,
    launch_precision: str | None,
    own: Mapping[str, Any],
    origins: dict[str, str],
) -> TrainingFacts | None:
    given = {name: value for name, value in own.items() if value is not None}
    for name in given:
        origins[name] = _FLAG_OF[name]
    if source is None:
        if launch_precision is not None and "precision" not in given:
            given["precision"] = launch_precision
            origins["precision"] = "--accelerate-config"
        return TrainingFacts(**given) if given else None
    held = training(_settings(source, FLAG))
    for field in fields(held):
        if field.name not in given and getattr(held, field.name) is not None:
            origins[field.name] = FLAG
    return replace(held, **given)


_FLAG_OF = {name: f"--{argument.replace('_', '-')}" for name, argument in _TRAINING.items()}
_FLAG_OF["sequence_length"] = "--seq-len"
