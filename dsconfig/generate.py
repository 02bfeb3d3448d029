"""Generate schemas and reference pages: ``python -m dsconfig.generate``.

Run it in a checkout after changing a key, a rule or the coverage table; a test names stale files.
"""

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dsconfig.planner.coverage import page as coverage_page
from dsconfig.reference import keys as key_reference
from dsconfig.reference import rule_pages
from dsconfig.reference.rule_pages import PACKAGED
from dsconfig.schema import json_schema, key_index

ROOT = Path(__file__).parents[1]
FOLDERS = ("schemas", PACKAGED)
"""Directories that contain only generated files."""


@cache
def texts() -> Mapping[str, str]:
    """Return the content of each generated file, by path."""
    schemas = {f"schemas/{name}": text for name, text in json_schema.published().items()}
    return {
        "dsconfig/schema/key_index.json": key_index.to_text(key_index.declared()),
        "docs/reference/keys.md": key_reference.reference_page(),
        "docs/reference/engine-keys.md": coverage_page.page(),
        "docs/reference/rules.md": rule_pages.index(),
        **schemas,
        **{f"{PACKAGED}/{name}": text for name, text in rule_pages.pages().items()},
    }


def stale() -> list[str]:
    """Return the files whose content is outdated, and files that are no longer generated."""
    wanted = texts()
    there = {f"{folder}/{path.name}" for folder in FOLDERS for path in (ROOT / folder).iterdir()}
    changed = [name for name, text in wanted.items() if _read(ROOT / name) != text]
    return sorted([*changed, *(there - wanted.keys())])


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


def main() -> None:
    """Update stale files and print their names."""
    wanted = texts()
    for name in stale():
        if name in wanted:
            (ROOT / name).write_text(wanted[name], "utf-8")
        else:
            (ROOT / name).unlink()
        print(name)


if __name__ == "__main__":
    sys.exit(main())
