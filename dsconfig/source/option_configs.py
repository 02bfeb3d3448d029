"""Configs that verl builds from the options of its DeepSpeed engine, at any depth of its YAML.

verl writes the ds_config in its code and reads none from a file: ``_build_deepspeed_config`` of
that engine, and ``get_deepspeed_config`` (verl/utils/deepspeed_utils.py, read). Programs whose
options have fixed names build theirs in ``facts.dialects``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dsconfig.lazy_imports import lazy_imports
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath, escape
from dsconfig.source.pointer import is_block, put

with lazy_imports():  # PyYAML, for files of options only
    from dsconfig.source import yaml_numbers


class BuiltConfig(NamedTuple):
    """A config built from options.

    ``pointers``: where each value of the config is written in the file; ``arguments``: options
    outside the config, by their names in TrainingArguments.
    """

    program: str
    config: dict[str, Any]
    pointers: dict[str, str]
    arguments: dict[str, Any]
    launch: dict[str, int]
    """``gpus`` and ``nodes``, if the options contain them."""


def built_config(content: Mapping[str, Any]) -> BuiltConfig | None:
    """Return the config that a program builds from these options; None for another file."""
    engine = _engine_of_verl(content)
    return None if engine is None else _of_verl(*engine, _Options(_flat(content)))


def _flat(content: Mapping[str, Any], prefix: str = "", above: str = "") -> dict[str, Any]:
    """Return pointer and value of each option, by its dotted name."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        name, pointer = f"{prefix}{key}", f"{above}/{escape(key)}"
        if is_block(value):
            found |= _flat(value, f"{name}.", pointer)
        else:
            found[name] = (pointer, value)
    return found


def _number(value: Any) -> Any:
    """Convert 1e-6, which YAML 1.1 reads as a string; argparse and OmegaConf read a number."""
    is_number = isinstance(value, str) and yaml_numbers.EXPONENT.fullmatch(value)
    return float(value) if is_number else value


class _Options:
    """Options by dotted name, and the config built from them."""

    def __init__(self, options: Mapping[str, tuple[str, Any]]) -> None:
        self.options = options
        self.config: dict[str, Any] = {}
        self.pointers: dict[str, str] = {}

    def get(self, names: str, default: Any = None) -> Any:
        """Return the value of the first option that is set; ``names`` are separated by spaces."""
        found = self._find(names)
        return default if found is None else _number(found[1])

    def _find(self, names: str) -> tuple[str, Any] | None:
        found = (self.options.get(name) for name in names.split())
        return next((each for each in found if each is not None and each[1] is not None), None)

    def write(self, path: KeyPath, value: Any, names: str = "") -> None:
        """Write a value of the config; ``names``: the options it is read from."""
        put(self.config, path, value)
        source = self._find(names)
        if source is not None:
            self.pointers[path.pointer] = source[0]

    def copy(self, path: KeyPath, names: str, default: Any = None) -> None:
        """Write the value of an option, or its default; nothing without either."""
        value = self.get(names, default)
        if value is not None:
            self.write(path, value, names)


# --- verl


def _engine_of_verl(content: Mapping[str, Any]) -> tuple[_Options, _Options] | None:
    """Return the options of the DeepSpeed engine and its optimizer."""
    for parent, pointer, key in _blocks(content):
        engine = parent[key] if key else parent
        if engine.get("strategy") != "deepspeed" or "zero_stage" not in engine:
            continue
        above = f"{pointer}/{escape(key)}" if key else pointer
        beside = parent.get("optim") if key and "optim" not in engine else engine.get("optim")
        place = pointer if key and "optim" not in engine else above
        optim = _flat(beside, above=f"{place}/optim") if is_block(beside) else {}
        return _Options(_flat(engine, above=above)), _Options(optim)
    return None


def _blocks(
    content: Mapping[str, Any], pointer: str = ""
) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Return each block, outermost first, as its parent, the parent's pointer, and its key."""
    if not pointer:
        yield content, "", ""
    inner = [(key, value) for key, value in content.items() if is_block(value)]
    for key, _ in inner:
        yield content, pointer, key
    for key, value in inner:
        yield from _blocks(value, f"{pointer}/{escape(key)}")


def _of_verl(options: _Options, optim: _Options, every: _Options) -> BuiltConfig:
    write, copy, get = options.write, options.copy, options.get
    stage, target = get("zero_stage", 2), get("offload", "none")
    copy(paths.MICRO_BATCH, "ppo_micro_batch_size_per_gpu micro_batch_size_per_gpu", 1)
    mini, samples = (
        get("ppo_mini_batch_size"),
        every.get("actor_rollout_ref.rollout.n rollout.n", 1),
    )
    if type(mini) is int and type(samples) is int:
        # Of prompts, each with n samples; divided by ranks and micro batch for the accumulation.
        write(paths.GLOBAL_BATCH, mini * samples, "ppo_mini_batch_size")
    else:
        copy(paths.ACCUMULATION, "gradient_accumulation_steps", 1)
    write(paths.STAGE, stage, "zero_stage")
    if type(stage) is int and target in ("cpu", "nvme", "auto"):
        device = "nvme" if target == "nvme" else "cpu"
        for block, least in (("offload_optimizer", 2), ("offload_param", 3)):
            if stage >= least:
                write(paths.ZERO / block / "device", device, "offload")
                if device == "nvme":
                    copy(paths.ZERO / block / "nvme_path", "offload_dir")
                else:
                    write(paths.ZERO / block / "pin_memory", True)
    if stage == 3:
        write(paths.ZERO / "gather_16bit_weights_on_model_save", True)
    dtype = "mixed_precision.param_dtype dtype"
    written = str(get(dtype, "bfloat16")).lower()
    for block, names in (("bf16", ("bf16", "bfloat16")), ("fp16", ("fp16", "float16"))):
        if written in names:
            write(paths.HALF_PRECISIONS[block], True, dtype)
    if optim.options:
        optim.copy(paths.OPTIMIZER_TYPE, "optimizer", "AdamW")
        optim.copy(paths.LEARNING_RATE, "lr")  # only if the file sets it, as defaults vary
        for key in ("betas", "eps", "weight_decay"):
            optim.copy(paths.OPTIMIZER_PARAMS / key, key)
        optim.copy(paths.GRADIENT_CLIPPING, "clip_grad")
    copy(paths.GRADIENT_CLIPPING, "grad_clip")
    options.config |= optim.config
    options.pointers |= optim.pointers
    each, nodes = every.get("trainer.n_gpus_per_node"), every.get("trainer.nnodes", 1)
    is_counted = type(each) is int and type(nodes) is int
    launch = {"gpus": each * nodes, "nodes": nodes} if is_counted else {}
    recomputes = get("gradient_checkpointing activation_checkpointing")
    arguments = {"gradient_checkpointing": recomputes} if isinstance(recomputes, bool) else {}
    return BuiltConfig("verl", options.config, options.pointers, arguments, launch)
