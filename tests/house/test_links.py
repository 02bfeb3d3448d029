"""Relative links in the Markdown files point to existing files and headings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(
    r"(?<!!)\[[^\]]*\]\((?!https?:|mailto:)([^)\s]+)\)|<(?:img|source)[^>]+?src(?:set)?=\"([^\"]+)\""
)
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors_of(text: str) -> set[str]:
    """Return the heading anchors of a page, as forges derive them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in ("".join(found) for found in LINK.findall(page.read_text("utf-8"))):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target.read_text("utf-8")), link


@pytest.mark.parametrize("folder", ["docs/guide", "docs/reference", "docs/internals"])
def test_index_lists_every_page(folder: str) -> None:
    index = ROOT / folder / "README.md"
    text = index.read_text("utf-8")
    pages = {path.name for path in index.parent.glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"]({name})" not in text} == set()


ROOTS = [ROOT / name for name in ("", "dsconfig", "engine", "engine/dsengine", "tests")]
RECORDS = {"mutants.md", "deepspeed-tests.md", "framework-tests.md", "0301-effects.md"}
"""Pages that name files of other repositories or of earlier commits."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_source_files_exist(page: Path) -> None:
    if page.name not in RECORDS and page.parent.name != "reference":
        for name in re.findall(r"`([\w.-]+/[\w./-]+\.py)`", page.read_text("utf-8")):
            example = page.name == "CONTRIBUTING.md" and name == "tests/checks/test_monitors.py"
            assert example or any((root / name).exists() for root in ROOTS), name
