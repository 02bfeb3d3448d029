"""The documentation site: it builds without warnings, its links resolve, search works offline."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import browser
from browser import milliseconds

ROOT = Path(__file__).parents[2]
PUBLIC = ROOT / "runs" / "site" / "public"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.BROWSER is None, reason=browser.REASON),
]
LOADED = {"script": "src", "img": "src", "link": "href", "source": "srcset", "iframe": "src"}


class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        if tag in LOADED and values.get(LOADED[tag]):
            self.loaded.append(values[LOADED[tag]] or "")


@pytest.fixture(scope="module")
def pages(public: Path) -> dict[Path, Page]:
    """Return the pages of the site."""
    return {path: Page(path) for path in public.rglob("*.html")}


def target(page: Path, link: str) -> Path:
    """Return the file that a link opens."""
    path = (page.parent / unquote(link)).resolve() if link else page
    return path / "index.html" if path.is_dir() else path


def test_site_has_a_page_for_each_source(pages: dict[Path, Page]) -> None:
    sources = list((ROOT / "docs").rglob("*.md"))
    own = {PUBLIC / "404.html", PUBLIC / "zh" / "404.html"}
    checks = {page for page in pages if page.is_relative_to(PUBLIC / "check")}
    assert len(set(pages) - own - checks) == len(sources)


def test_links_and_anchors_resolve(pages: dict[Path, Page]) -> None:
    broken: list[str] = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are relative to the address that was not found
            continue
        for link in page.links + page.loaded:
            name, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", name):
                continue
            opened = target(path, name)
            missing = not opened.is_relative_to(PUBLIC) or not opened.exists()
            if missing or (anchor and opened in pages and anchor not in pages[opened].ids):
                broken.append(f"{path.relative_to(PUBLIC)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_another_host(pages: dict[Path, Page]) -> None:
    loaded = {name for page in pages.values() for name in page.loaded}
    assert {name for name in loaded if re.match(r"([a-z]+:)?//", name)} == set()
    for style in PUBLIC.rglob("*.css"):
        for name in re.findall(r"url\(([^)]*)\)|@import ([^;]*)", style.read_text("utf-8")):
            assert not re.match(r"""["']?(https?:)?//""", "".join(name)), style


@pytest.mark.parametrize(
    ("start", "words", "expected"),
    [
        ("", "prefetching", "reference/rules/DSC405/"),
        ("zh/", "显存", "zh/out-of-memory/"),
    ],
)
def test_search_finds_a_term_without_network(
    site: str, chromium: Any, start: str, words: str, expected: str
) -> None:
    page = chromium.new_page()
    page.set_default_timeout(milliseconds(30))
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(site + start)
    page.get_by_role("button", name=re.compile("Search|搜索|查找")).first.click()
    page.keyboard.type(words)
    page.wait_for_selector(f'a[href*="{expected}"]')
    assert all(url.startswith(site) for url in requested if not url.startswith("data:"))
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", ["", "internals/memory/", "reference/keys/", "zh/estimate/"])
def test_pages_fit_the_window_and_follow_the_scheme(
    site: str, chromium: Any, path: str, width: int, scheme: str
) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.set_default_timeout(milliseconds(30))
    failures: list[str] = []
    page.on("requestfailed", lambda request: failures.append(request.url))
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.goto(site + path)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(re.findall(r"\d+", color)[0])
    assert (red > 127) == (scheme == "light")
    assert failures == []
    page.close()
