"""The configs in a folder: by their names, or by what is in them."""

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.checks.keys import is_comment
    from dsconfig.schema import known_names
    from dsconfig.source import file_kinds, read
    from dsconfig.source.findings import NO_CONFIG

NAMES = (
    "ds_config*.*json",
    "*ds_config*.*json",
    "*deepspeed*config*.*json",
    "ds_z[0-9]*.*json",
    "zero[0-9]*.*json",
)
"""Names that people give to configs; a file called so is judged whatever is in it."""
SUFFIXES = (".json", ".hjson", ".yaml", ".yml")
SKIPPED = frozenset(("node_modules", "__pycache__", "site-packages", "build", "dist", "venv"))
LARGEST_LOOK = 2**20
"""Files above 1 MiB whose name says nothing are not looked into."""
CONFIG_KEYS = re.compile(
    r"""["']?(?:train_batch_size|train_micro_batch_size_per_gpu|zero_optimization"""
    r"""|gradient_accumulation_steps|zero_allow_untested_optimizer)["']?\\?\s*:"""
)
"""Without one of these in its text no JSON is looked into further, and no YAML without these."""
YAML_KEYS = re.compile(r"^\s*(?:deepspeed|deepspeed_config(?:_file)?)\s*:", re.MULTILINE)


def configs_in(directory: str) -> Iterator[str]:
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in SKIPPED)
        for name in sorted(files):
            path = Path(folder, name)
            # To open a pipe waits for a writer, and a device may never end; a link that leads
            # nowhere is worth a word.
            if not name.endswith(SUFFIXES) or (path.exists() and not path.is_file()):
                continue
            is_named_so = any(fnmatch(name.lower(), pattern) for pattern in NAMES)
            if is_named_so or _looks_like_config(path):
                yield str(path)


def _looks_like_config(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_LOOK + 1)
    except OSError:
        return False
    if len(data) > LARGEST_LOOK:
        return False
    pattern = CONFIG_KEYS if path.name.endswith("json") else YAML_KEYS
    return pattern.search(data.decode("utf-8", "replace")) is not None and _is_config(path)


def _is_config(path: Path) -> bool:
    """Whether a file holds a config or names one, mistakes and all."""
    document = read(path)
    if any(found.code == NO_CONFIG for found in document.diagnostics):
        return False
    if document.container or document.is_unreadable or document.is_broken:
        return True
    config = cast("dict[str, Any]", document.value)
    if file_kinds.another_kind(config) is not None:
        return False
    # A script may keep settings of its own beside those of DeepSpeed.
    settings = {name for name in config if not is_comment(name)}
    known = settings & {*known_names(config, ())}
    return isinstance(config.get("zero_optimization"), dict) or 2 * len(known) >= len(settings)
