"""Stage the Markdown pages of the site: the files of docs/ with the links that a site needs.

The index of each folder (README.md) lists its pages, so the navigation is read from there. The
Chinese site has the pages of docs/guide/zh-CN only; its other links lead to the English site.
"""

import json
import posixpath
import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from string import Template

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CHINESE = DOCS / "guide" / "zh-CN"
CHECK = ROOT / "website" / "check" / "index.html"
"""The page that checks configs in the browser; in the site it is at ``check/``."""
LINK = re.compile(r"(?<!\!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
INDEX = "README.md"
RULES = ROOT / "dsconfig" / "report" / "rules"
"""Pages of the package; in the site they are below the index of rules."""
ENGLISH_NAV = {
    "Guides": DOCS / "guide",
    "Reference": DOCS / "reference",
    "Internals": DOCS / "internals",
}


@dataclass(frozen=True)
class Language:
    """One build: where its pages are, where it is in the site, and its description."""

    code: str
    source: Path
    folder: str
    """Path below the root of the site, empty or ending in a slash."""
    description: str


ENGLISH = Language(
    "en", DOCS, "", "Check DeepSpeed configs, estimate memory, and train with ZeRO on PyTorch"
)
ZH = Language("zh", CHINESE, "zh/", "检查 DeepSpeed 配置，估算显存，用 PyTorch 做 ZeRO 训练")
LANGUAGES = (ENGLISH, ZH)


def pages_of(language: Language) -> list[Path]:
    """Return the Markdown files of a language."""
    found = sorted(language.source.rglob("*.md"))
    return [page for page in found if language is ZH or CHINESE not in page.parents]


def language_of(page: Path) -> Language:
    return ZH if CHINESE in page.parents else ENGLISH


def address(page: Path) -> str:
    """Return the address of a page below the root of the site, ending in a slash unless empty."""
    language = language_of(page)
    relative = PurePosixPath(page.relative_to(language.source).as_posix())
    parts = relative.parent.parts if relative.name == INDEX else relative.with_suffix("").parts
    return language.folder + "".join(f"{part}/" for part in parts)


def relative(page: Path, target: str) -> str:
    """Return an address below the root of the site as a link of a page.

    Zensical expects links relative to the folder of the source and adapts them to the address.
    """
    language = language_of(page)
    folder = language.folder + page.parent.relative_to(language.source).as_posix()
    return posixpath.relpath(target or ".", folder) + "/"


def stage(language: Language, target: Path) -> None:
    """Copy the pages of a language, with their links, and the images to a folder."""
    shutil.rmtree(target, ignore_errors=True)
    for page in pages_of(language):
        copy = target / page.relative_to(language.source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        parts = FENCE.split(page.read_text("utf-8"))
        parts[::2] = [linked(part, page) for part in parts[::2]]
        copy.write_text("".join(parts), "utf-8")
    shutil.copy(Path(__file__).with_name("site.css"), target)
    if language is ENGLISH:
        shutil.copytree(DOCS / "images", target / "images", dirs_exist_ok=True)
        shutil.copytree(RULES, target / "reference" / "rules")


def linked(text: str, page: Path) -> str:
    """Return Markdown whose links work in the site: a file that is not part of it is only named."""

    def replaced(found: re.Match[str]) -> str:
        label, link = found.groups()
        name, _, anchor = link.partition("#")
        if not name or ":" in name:
            return found[0]
        target = (page.parent / name).resolve()
        target = target / INDEX if target.is_dir() and (target / INDEX).exists() else target
        if target == CHECK:
            return f"[{label}]({relative(page, 'check/')})"
        if target.parent == RULES:
            target = DOCS / "reference" / "rules" / target.name
            if language_of(page) is ENGLISH:
                return f"[{label}]({posixpath.relpath(target, page.parent)})"
        if not target.is_relative_to(DOCS):
            return label
        if target.suffix != ".md" or language_of(target) is language_of(page):
            return found[0]
        return f"[{label}]({relative(page, address(target))}{'#' + anchor if anchor else ''})"

    return LINK.sub(replaced, text)


def navigation(language: Language) -> list[dict[str, object]]:
    """Return the navigation for the settings: pages in the order of their index."""
    if language is ZH:
        return [{"首页": INDEX}, *_listed(CHINESE, CHINESE)]
    sections: list[dict[str, object]] = [{"Home": INDEX}]
    for title, folder in ENGLISH_NAV.items():
        sections.append(
            {title: [(folder / INDEX).relative_to(DOCS).as_posix(), *_listed(folder, DOCS)]}
        )
    return sections


def _listed(folder: Path, root: Path) -> list[dict[str, object]]:
    """Return title and path of each page that the tables of an index list, in that order."""
    listed: list[dict[str, object]] = []
    for label, name in LINK.findall((folder / INDEX).read_text("utf-8")):
        page = (folder / name).resolve()
        if name.endswith(INDEX) or not name.endswith(".md") or not page.is_relative_to(root):
            continue
        title = label if not label.endswith(".md") else heading(page)
        listed.append({title: page.relative_to(root).as_posix()})
    return listed


def heading(page: Path) -> str:
    """Return the first heading of a page, without code marks."""
    first = page.read_text("utf-8").partition("\n")[0]
    return first.removeprefix("# ").replace("`", "")


def settings(language: Language, source: str, target: str) -> str:
    """Return the settings of a build as TOML. Zensical wants folders relative to the settings."""
    template = Template((Path(__file__).parent / "zensical.toml").read_text("utf-8"))
    values = {
        "language": language.code,
        "description": language.description,
        "docs": source,
        "site": target,
        "navigation": navigation(language),
        "english": "../" if language is ZH else "./",
        "chinese": "./" if language is ZH else "zh/",
    }
    return template.substitute({name: toml(value) for name, value in values.items()})


def toml(value: object) -> str:
    """Return a value as inline TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
