"""How weights are divided into files, in the Hugging Face layout."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

DEFAULT_FILE_BYTES = 5 * 10**9


@dataclass(frozen=True, slots=True)
class FileLayout:
    """``files``: file name -> tensor names; ``total_bytes``: of all tensors."""

    files: dict[str, list[str]]
    total_bytes: int

    @property
    def index(self) -> bytes:
        """The index file: where each tensor lies."""
        weight_map = {name: file for file, names in self.files.items() for name in names}
        content = {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map}
        return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def divide(sizes: Mapping[str, int], filename: str, max_bytes: int) -> FileLayout:
    """Fill files in order, none above ``max_bytes`` unless a single tensor is.

    One file keeps ``filename``; several get ``-00001-of-0000N`` before the extension.
    """
    parts: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if parts[-1] and held + size > max_bytes:
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += size
    if len(parts) == 1:
        return FileLayout({filename: parts[0]}, sum(sizes.values()))
    path = PurePath(filename)
    names = (f"{path.stem}-{i:05d}-of-{len(parts):05d}{path.suffix}" for i in range(1, 10**6))
    return FileLayout(dict(zip(names, parts, strict=False)), sum(sizes.values()))
