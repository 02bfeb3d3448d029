"""What a config means to one release: aliases and renames undone, one form for each value.

Two configs with the same meaning train the same way, however they are written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from dsconfig.schema.catalogue import Key, find
from dsconfig.schema.markers import whole
from dsconfig.schema.version import Version

Path = tuple[str, ...]
Config = Mapping[str, Any]

_FORMATS = {
    "float16": "fp16",
    "half": "fp16",
    "torch.float16": "fp16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "torch.float32": "fp32",
    "torch.int8": "int8",
}
_ZERO = "zero_optimization"
_SWITCHES = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
_SAVE_16BIT = "stage3_gather_16bit_weights_on_model_save"


@dataclass(frozen=True, slots=True)
class Meaning:
    """``settings`` are the values that a release reads, by path; ``unread`` it does not."""

    version: Version
    settings: Mapping[Path, Any]
    unread: tuple[Path, ...]

    def has_block(self, path: Path) -> bool:
        """Whether anything is set in a block."""
        return any(setting[: len(path)] == path for setting in self.settings)

    def value(self, path: Path) -> Any:
        """The value at a path: as set, else the release's default; None where there is none."""
        if path in self.settings:
            return self.settings[path]
        key = find(path, of_type=self.settings.get((path[0], "type")))
        if key is None or (path[0] in ("optimizer", "scheduler") and not self.has_block(path[:1])):
            return None
        default = key.default_at(self.version)
        if path == (_ZERO, "overlap_comm") and default is None:
            return self.value((_ZERO, "stage")) == 3
        return _in_one_form(key, default)


def meaning(config: Config, version: Version) -> Meaning:
    """The meaning of a config, given as plain data, to a release."""
    settings: dict[Path, Any] = {}
    unread: list[Path] = []
    below_unread: set[Path] = set()
    for path, key, value in _walk(_undo_renames(config), (), None):
        if path[:-1] in below_unread:
            below_unread.add(path)
        elif key is None or not key.read_at(version):
            unread.append(path)
            below_unread.add(path)
        elif not isinstance(value, dict):
            settings[path] = _in_one_form(key, value)
    return Meaning(version, settings, tuple(unread))


def _walk(
    mapping: Config, above: Path, of_type: str | None
) -> Iterator[tuple[Path, Key | None, Any]]:
    """Every entry with its key, under the key's own name; nothing below an unknown one."""
    for name, value in mapping.items():
        key = find((*above, name), of_type=of_type)
        path = (*above, key.name if key is not None and "*" not in key.name else name)
        yield path, key, value
        if key is not None and isinstance(value, dict):
            block = cast(Config, value)
            type_ = block.get("type") if not above else of_type
            yield from _walk(block, path, type_ if isinstance(type_, str) else None)


def _in_one_form(key: Key, value: Any) -> Any:
    """Integral floats as integers, words without case, one name for each dtype."""
    if isinstance(value, list):
        return [whole(item) for item in cast(list[Any], value)]
    if isinstance(value, str):
        if "torch.float16" in key.choices:
            return _FORMATS.get(value, value)
        return value.lower() if value.lower() in map(str.lower, key.shape.any_case) else value
    return whole(value)


def _undo_renames(config: Config) -> dict[str, Any]:
    """The config with today's names for what DeepSpeed still understands under old ones."""
    renewed = dict(config)
    if "bf16" not in renewed and "bfloat16" in renewed:
        renewed["bf16"] = renewed.pop("bfloat16")
    zero: Any = renewed.get(_ZERO)
    if isinstance(zero, bool):
        renewed[_ZERO] = {"stage": int(zero)}
    elif isinstance(zero, dict):
        renewed[_ZERO] = _undo_switches(dict(cast(Config, zero)))
    return renewed


def _undo_switches(zero: dict[str, Any]) -> dict[str, Any]:
    for old, new in _SWITCHES.items():
        if zero.get(old) is True and new not in zero:
            del zero[old]
            zero[new] = {"device": "cpu"}
    if "stage3_gather_fp16_weights_on_model_save" in zero and _SAVE_16BIT not in zero:
        zero[_SAVE_16BIT] = zero.pop("stage3_gather_fp16_weights_on_model_save")
    return zero
