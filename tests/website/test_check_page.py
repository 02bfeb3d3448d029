"""The page that checks configs in the browser: equal to the command line, offline, accessible."""

import gzip
import json
import re
import shutil
import subprocess
from itertools import cycle
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

import browser
import command_line
from browser import milliseconds
from suite.limits import scaled

CORPUS = sorted((Path(__file__).parents[1] / "oracle" / "corpus").glob("*.json"))[:100]
SIZE_LIMIT = 12_000_000
"""Bytes of everything that the page loads, compressed."""
RUNS = (
    {"model": "llama-3-8b", "gpus": 8, "device": "a100-80gb", "seq_len": 4096, "micro_batch": 1},
    {"model": "qwen2.5-7b", "gpus": 4, "device": "l4", "seq_len": 1024, "lora_rank": 16},
    {"model": "mixtral-8x7b", "gpus": 64, "nodes": 8, "device": "h100", "seq_len": 2048},
    {"params": "13B", "gpus": 16, "device": "v100-32gb"},
    {"model": "llama-2-7b", "gpus": 2, "seq_len": 512, "lora_rank": 8, "base_weights": "4bit"},
    {"model": "llama-3-70b", "gpus": 32, "device": "h100", "seq_len": 8192, "tensor_parallel": 8},
)
pytestmark = pytest.mark.browser
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no Node is installed")
needs_chromium = pytest.mark.skipif(browser.BROWSER is None, reason=browser.REASON)


def answers(public: Path, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers of Pyodide."""
    with NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(requests, file)
        file.flush()
        command = ["node", Path(__file__).with_name("answers.mjs"), public / "check", file.name]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=scaled(200)
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def flags(run: dict[str, Any]) -> list[str]:
    """Return facts as flags of the command line."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in run.items()]


def printed(folder: Path, text: str, *arguments: str) -> dict[str, Any] | None:
    """Return the JSON of a command about a file in an otherwise empty folder; None for no JSON."""
    folder.mkdir(exist_ok=True)
    (folder / "ds_config.json").write_text(text, "utf-8")
    command, *others = arguments
    done = command_line.run(command, "ds_config.json", "--output-format=json", *others, cwd=folder)
    return json.loads(done.stdout) if done.stdout.startswith("{") else None


def without_addresses(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the paths of the rule pages, which differ by installation."""
    for found in report["diagnostics"]:
        del found["url"]
    return report


@needs_node
def test_findings_equal_the_command_line(public: Path, tmp_path: Path) -> None:
    texts = [path.read_text("utf-8") for path in CORPUS]
    assert len(texts) == 100
    shown = answers(public, [{"kind": "check", "text": text} for text in texts])
    for number, (text, answer) in enumerate(zip(texts, shown, strict=True)):
        expected = printed(tmp_path / str(number), text, "validate")
        assert expected is not None
        (file,), (own,) = expected["files"], answer["report"]["files"]
        assert without_addresses(own) == without_addresses(file), CORPUS[number].name


@needs_node
def test_estimates_equal_the_command_line(public: Path, tmp_path: Path) -> None:
    texts = [path.read_text("utf-8") for path in CORPUS]
    jobs = list(zip(texts, cycle(RUNS), strict=False))
    requests = [{"kind": "check", "text": text, "flags": run} for text, run in jobs]
    made = 0
    for number, ((text, run), answer) in enumerate(
        zip(jobs, answers(public, requests), strict=True)
    ):
        expected = printed(tmp_path / str(number), text, "estimate", *flags(run))
        estimate: dict[str, Any] | None = answer["estimate"]
        if expected is None or "options" not in expected:
            assert estimate is None or "error" in estimate, CORPUS[number].name
            continue
        made += 1
        assert estimate is not None, CORPUS[number].name
        for option in expected["options"]:
            del option["lacks"]
        assert estimate["options"] == expected["options"], CORPUS[number].name
        expected["inputs"]["assumed"] = estimate["inputs"]["assumed"]
        assert estimate["inputs"] == expected["inputs"], CORPUS[number].name
    assert made >= 90


@needs_node
def test_tuning_and_changes_equal_the_command_line(public: Path, tmp_path: Path) -> None:
    run, text = RUNS[0], '{"train_micro_batch_size_per_gpu": 16, "bf16": {"enabled": true}}'
    request = {"text": text, "flags": run}
    tuned, changed = answers(public, [{"kind": "tune", **request}, {"kind": "changes", **request}])
    done = command_line.run("tune", "--output-format=json", *flags(run), cwd=tmp_path)
    listed = json.loads(done.stdout)["candidates"]
    for candidate in tuned["candidates"]:
        del candidate["text"], candidate["steps"]
    assert tuned["candidates"] == listed
    expected = printed(tmp_path / "one", text, "estimate", *flags(run))
    assert expected is not None and expected["remedies"]
    for change in changed["changes"]:
        del change["text"]
    assert changed["changes"] == expected["remedies"]


def test_page_is_at_most_twelve_megabytes(public: Path) -> None:
    files = [path for path in (public / "check").rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes(), 6)) for path in files) < SIZE_LIMIT


def opened(chromium: Any, site: str, fragment: str = "", **options: Any) -> Any:
    """Return the page after its first answer; it fails on an error or a foreign request."""
    page = chromium.new_context(**options).new_page()
    page.set_default_timeout(milliseconds(30))
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.on("request", lambda request: own(request.url, site))
    page.goto(f"{site}check/{fragment}")
    settled(page)
    return page


def own(url: str, site: str) -> None:
    assert url.startswith((site, f"blob:{site}", "data:")), url


def settled(page: Any) -> None:
    page.wait_for_selector("#results[aria-busy=false]", timeout=milliseconds(120))


@needs_chromium
def test_fix_moves_the_findings_and_keys_move_the_bars(chromium: Any, site: str) -> None:
    page = opened(chromium, site)
    assert "DSC021" in page.inner_text("#findings")
    page.get_by_role("button", name=re.compile("Apply fix: DSC021")).click()
    settled(page)
    assert '"overlap_comm"' in page.input_value("#text")
    assert "DSC021" not in page.inner_text("#findings")
    peak = page.inner_text(".row.main > span:last-child")
    text = page.input_value("#text").replace('"stage": 2', '"stage": 3')
    page.fill("#text", text)
    page.wait_for_selector("#memory-title:has-text('stage 3')", timeout=milliseconds(120))
    settled(page)
    assert page.inner_text(".row.main > span:last-child") != peak
    # The link alone shows the same state to another reader.
    other = opened(chromium, site, page.url.partition("check/")[2])
    assert other.input_value("#text") == text
    assert other.inner_text("#verdict") == page.inner_text("#verdict")
    assert text not in page.url and "stage" not in page.url


@needs_chromium
def test_page_is_usable_by_keyboard_and_screen_reader(chromium: Any, site: str) -> None:
    page = opened(chromium, site, viewport={"width": 390, "height": 800}, color_scheme="dark")
    unnamed = page.evaluate(
        """[...document.querySelectorAll('input, select, textarea, button')].filter(each =>
           !each.labels?.length && !each.textContent.trim() && !each.ariaLabel).length"""
    )
    assert unnamed == 0
    assert page.get_attribute("#verdict", "aria-live") == "polite"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.get_by_role("button", name="Find the fastest config that fits").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#candidates li", timeout=milliseconds(120))
    page.locator("#candidates button").first.focus()
    page.keyboard.press("Enter")
    settled(page)
    assert page.evaluate("document.activeElement.id") == "text"
    assert "Fits" in page.inner_text("#verdict")


@needs_chromium
def test_policy_blocks_requests_to_other_hosts(chromium: Any, site: str) -> None:
    page = chromium.new_page()
    page.set_default_timeout(milliseconds(30))
    page.goto(f"{site}check/")
    refused = "fetch('https://example.org/').then(() => 'sent', error => error.name)"
    blocked: list[str] = []
    page.on("console", lambda message: blocked.append(message.text))
    assert page.evaluate(refused) == "TypeError"
    assert any("Content Security Policy" in text for text in blocked)
