"""Files in the folder of a config that reference it: evidence for the program that runs it."""

import re
from functools import lru_cache
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

from dsconfig import os_errors

TRAINER, ACCELERATE = "transformers", "accelerate"
YAMLS = (".yaml", ".yml")
MOST_NEIGHBOURS, LARGEST_NEIGHBOUR = 40, 64 * 1024
"""Limits on the files in the same folder that are searched: number, and bytes of each."""
MOST_FOLDERS = 64
"""Folders whose files are kept: the files of a command are listed folder by folder."""
_KEY = r"""(?:^[ \t-]*|[{{,]\s*)["']?{}["']?\s*:"""
"""A key of JSON or YAML: first on its line, or inside of ``{{...}}``."""
_PLUGIN = re.compile(
    rf"{_KEY.format('deepspeed_config_file')}|{_KEY.format('deepspeed_config')}\s*(?:[{{#]|$)",
    re.MULTILINE,
)
"""The block of accelerate; trainers write a path under ``deepspeed_config``."""
_ARGUMENT = re.compile(_KEY.format("deepspeed(?:_config)?"), re.MULTILINE)
REFERENCES = ", which references it"


class Reference(NamedTuple):
    """A file that embeds or references a config, and the program that reads the file."""

    file: str
    text: str
    program: str

    def names(self, name: str) -> bool:
        """Return whether the text contains a file name as a word of its own."""
        # Few files are named: compiling a pattern for each costs more than this search.
        return name in self.text and bool(
            re.search(rf"[\s\"'/]{re.escape(name)}\b", self.text),
        )


class Neighbours:
    """The references in each folder, where each file is read once.

    An object serves one command or one call of the library: files may change afterwards.
    """

    def __init__(self) -> None:
        self._beside = lru_cache(maxsize=MOST_FOLDERS)(_Folder)

    def program_for(self, path: Path) -> tuple[str, str] | None:
        """Return the program of a file in the same folder that references ``path``, and why."""
        for reference in self._beside(path.parent).references:
            if reference.file != path.name and reference.names(path.name):
                return reference.program, f"{reference.file}{REFERENCES}"
        return None

    def changed(self, path: Path) -> None:
        """Read a file again on next use, if it is one of those searched."""
        if path.name in self._beside(path.parent).searched:
            self._beside.cache_clear()


class _Folder:
    """The files of a folder that are searched, and those that reference a config."""

    def __init__(self, folder: Path) -> None:
        try:
            listed = (file for file in folder.iterdir() if file.suffix in (*YAMLS, ".json"))
            files = nsmallest(MOST_NEIGHBOURS, listed)
        except (OSError, ValueError):
            files = []
        self.searched = frozenset(file.name for file in files)
        texts = ((file.name, _text(file)) for file in files)
        found = (Reference(name, text, _program(text)) for name, text in texts)
        self.references = [reference for reference in found if reference.program]


def named_reference(evidence: str) -> str:
    """Return the file that references a config, from the evidence for its program; else empty."""
    return evidence.removesuffix(REFERENCES) if evidence.endswith(REFERENCES) else ""


def container_program(path: Path) -> str:
    """Return the program whose file embeds or references a config; empty if none."""
    return _program(_text(path))


def _program(text: str) -> str:
    if _PLUGIN.search(text):
        return ACCELERATE
    return TRAINER if _ARGUMENT.search(text) else ""


def _text(path: Path) -> str:
    """Return the text of a small file; empty for anything else."""
    try:
        if not os_errors.is_file(path) or path.stat().st_size > LARGEST_NEIGHBOUR:
            return ""
        return path.read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
