"""Every command in README.md and docs/guide runs, and prints the output shown below it."""

import html
import re
from pathlib import Path

import pytest
from rich.text import Text

import guide_pages
import kernels
from guide_pages import BLOCK, Command, commands_in, console_blocks
from narrowing import not_none
from screenshots import IMAGES, SCREENSHOTS, THEMES, colored_output

PAGES = {str(page.relative_to(guide_pages.ROOT)): page for page in guide_pages.english_pages()}
TRANSLATIONS = guide_pages.translations()


def commands_of(page: Path) -> list[Command]:
    text = page.read_text("utf-8")
    return [command for block in console_blocks(text) for command in commands_in(block)]


NEEDS_GPUS_OR_NETWORK = re.compile(r"(pip|(dsengine )?(torchrun|accelerate launch)|pre-commit)\b")
TRAINING = {f"docs/guide/{name}.md" for name in ("accelerate", "own-loop", "trainer")}
MARKED = [pytest.param(name, marks=[pytest.mark.engine] * (name in TRAINING)) for name in PAGES]


@pytest.mark.parametrize("name", MARKED)
def test_commands_print_the_shown_output(name: str, tmp_path: Path) -> None:
    guide_pages.prepare(tmp_path)
    for block in BLOCK.finditer(PAGES[name].read_text("utf-8")):
        if block["kind"] == "file":
            guide_pages.write_file(block, tmp_path)
        if block["language"] == "console":
            check_block(block, tmp_path)


LAUNCHED = [name for name, page in PAGES.items() if "<!-- run: live" in page.read_text("utf-8")]
ON_CPU = {
    '"max_steps": 2000': '"max_steps": 2, "use_cpu": true, "report_to": "none"',
    '"warmup_steps": 100': '"logging_steps": 1',
    "--nproc-per-node 8": "--nproc-per-node 2",
}
"""What a job for 8 GPUs becomes on two CPU processes."""


@pytest.mark.live
@pytest.mark.engine
@pytest.mark.parametrize("name", LAUNCHED)
def test_launch_commands_train_on_two_cpu_processes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("deepspeed", "transformers", "accelerate"):
        pytest.importorskip(package)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(kernels.build()))
    guide_pages.prepare(tmp_path)
    launched = 0
    for block in BLOCK.finditer(PAGES[name].read_text("utf-8")):
        if block["kind"] == "file":
            guide_pages.write_file(block, tmp_path)
            path = tmp_path / block["options"]
            path.write_text(on_cpu(path.read_text("utf-8")), "utf-8")
        for command in commands_in(block) if block["language"] == "console" else ():
            if "live" in command.options or command.line.startswith("dsconfig init"):
                done = guide_pages.run(on_cpu(command.line), tmp_path)
                assert done.returncode == 0, f"$ {command.line}\n{done.stdout}"
                launched += "live" in command.options
    assert launched == 2, "with DeepSpeed and with dsengine"


def on_cpu(text: str) -> str:
    for shown, on_this_machine in ON_CPU.items():
        text = text.replace(shown, on_this_machine)
    return text


def check_block(block: re.Match[str], tmp_path: Path) -> None:
    """Run the commands of a block and compare their output with the shown one."""
    for command in commands_in(block):
        if not command.runs or command.missing:
            continue
        done = guide_pages.run_quickly(command.line, tmp_path)
        assert done.returncode == command.exit_code, f"$ {command.line}\n{done.stdout}"
        if "example" in command.options:
            continue
        printed = words(done.stdout.replace("installed here", "newest known"))
        for line in command.shown.splitlines():
            if line != guide_pages.CUT:
                assert words(line) in printed, f"$ {command.line}\n{line}\n\n{done.stdout}"


def words(text: str) -> str:
    """Return a text without its line breaks, which depend on the width."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", PAGES)
def test_only_installation_and_training_commands_are_not_run(name: str) -> None:
    for command in commands_of(PAGES[name]):
        if not command.runs:
            assert NEEDS_GPUS_OR_NETWORK.match(command.line)


@pytest.mark.parametrize("name", PAGES)
def test_dsconfig_and_python_commands_are_in_console_blocks(name: str) -> None:
    for block in BLOCK.finditer(PAGES[name].read_text("utf-8")):
        if block["language"] in ("", "bash", "sh", "shell"):
            assert not re.search(
                r"^\$? *(dsconfig|dsengine|python|torchrun) ", block["text"], re.MULTILINE
            )


@pytest.mark.parametrize(
    "page", TRANSLATIONS, ids=lambda page: str(page.relative_to(guide_pages.ROOT))
)
def test_translation_shows_the_same_commands_and_files(page: Path) -> None:
    english = [block[0] for block in BLOCK.finditer(TRANSLATIONS[page].read_text("utf-8"))]
    shared = [
        block for block in BLOCK.finditer(page.read_text("utf-8")) if guide_pages.is_shared(block)
    ]
    assert [block[0] for block in shared] == [
        text for text in english if guide_pages.is_shared(not_none(BLOCK.fullmatch(text)))
    ]


def test_every_guide_is_translated() -> None:
    english = {page.name for page in guide_pages.GUIDES.glob("*.md")}
    assert {page.name for page in guide_pages.TRANSLATIONS.glob("*.md")} == english


@pytest.mark.parametrize("name", SCREENSHOTS)
def test_screenshots_show_the_current_output(name: str) -> None:
    output = Text.from_ansi(colored_output(SCREENSHOTS[name])).plain
    for mode in THEMES:
        svg = (IMAGES / f"{name}-{mode}.svg").read_text("utf-8")
        shown = html.unescape("".join(re.findall(r"<text[^>]*>(.*?)</text>", svg)))
        assert "".join(output.split()) == "".join(shown.split())
