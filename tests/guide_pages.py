"""Run the commands shown in README.md and docs/guide, and refresh the output shown below them.

    PYTHONPATH=tests python -m guide_pages [PAGE ...]    rewrite output blocks (make generate)

A ``console`` block lists commands, each followed by its output; ``...`` marks a cut. A comment
above the block sets how the commands run; a comment above any other block makes it a file:

    <!-- run: exit=1 -->                expected exit code (default: 0)
    <!-- run: paragraphs=1-2,last -->   show only these paragraphs of the output
    <!-- run: needs=transformers -->    needs this package; skipped where it is missing
    <!-- run: example -->               output differs between machines and is not compared
    <!-- run: live -->                  trains; `make test-all` runs it on the CPU
    <!-- run: never -->                 only shown: needs GPUs or a download
    <!-- file: ds.json -->              the block below is this file

The Chinese pages take their console blocks and files from the English ones.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import command_line
from suite.limits import scaled

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "guide"
TRANSLATIONS = GUIDES / "zh-CN"
WIDTH = 90
CUT = "..."
BLOCK = re.compile(
    r"(?:<!-- (?P<kind>run|file): (?P<options>[^\n]*?) -->\n+)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Command(NamedTuple):
    """A shown command, how to run it, and its shown output."""

    line: str
    shown: str
    options: dict[str, str]

    @property
    def runs(self) -> bool:
        return self.options.keys().isdisjoint(("never", "live"))

    @property
    def missing(self) -> list[str]:
        needs = self.options.get("needs", "")
        return [name for name in needs.split(",") if name and find_spec(name) is None]

    @property
    def exit_code(self) -> int:
        return int(self.options.get("exit", 0))


def english_pages() -> list[Path]:
    internals = sorted((ROOT / "docs" / "internals").glob("*.md"))
    shown = [page for page in internals if "```console" in page.read_text("utf-8")]
    return [ROOT / "README.md", *sorted(GUIDES.glob("*.md")), *shown]


def translations() -> dict[Path, Path]:
    """Return the English page of every translated page."""
    pages = {page: GUIDES / page.name for page in sorted(TRANSLATIONS.glob("*.md"))}
    return {ROOT / "README.zh-CN.md": ROOT / "README.md"} | pages


def console_blocks(text: str) -> list[re.Match[str]]:
    return [found for found in BLOCK.finditer(text) if found["language"] == "console"]


def commands_in(block: re.Match[str]) -> Iterator[Command]:
    """Yield the commands of a console block."""
    words = shlex.split(block["options"] or "")
    options = {name: value for name, _, value in (word.partition("=") for word in words)}
    for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        while line.endswith("\\"):
            more, _, shown = shown.partition("\n")
            line = f"{line}\n{more}"
        yield Command(line, shown, options)


SHELL = re.compile(r"[|&;<>()$`*?\\\n]")
"""Characters with a meaning to a shell."""


def run_quickly(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as ``run`` does, if it is dsconfig alone without a shell and a new
    interpreter; its messages then follow its output."""
    words = [] if SHELL.search(command) else shlex.split(command)
    if words[:1] != ["dsconfig"]:
        return run(command, folder)
    done = command_line.run(*words[1:], cwd=folder, environment=_environment(folder))
    done.stdout = (done.stdout + done.stderr).replace(str(folder), "/home/me/project")
    return done


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder as a user with an 90-column terminal and no colors would."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **_environment(folder)},
        timeout=scaled(200),
        check=False,
    )
    done.stdout = done.stdout.replace(str(folder), "/home/me/project")
    return done


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of commands in a folder, where the tools are created."""
    tools = folder / ".bin"
    if not tools.exists():
        tools.mkdir()
        for name, words in TOOLS.items():
            (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


TOOLS = {
    "python": "",
    "dsconfig": "-m dsconfig",
    "dsengine": "-m dsengine",
    "torchrun": "-m torch.distributed.run",
    "accelerate": "-m accelerate.commands.accelerate_cli",
}
"""Programs by name, as arguments of Python."""


def prepare(folder: Path) -> None:
    """Copy the examples, which pages may use, into a folder."""
    shutil.copytree(ROOT / "examples", folder / "examples", dirs_exist_ok=True)


def write_file(block: re.Match[str], folder: Path) -> None:
    """Write the file that a block defines."""
    path = folder / block["options"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block["text"], "utf-8")


def selected(output: str, paragraphs: str | None) -> str:
    """Return the chosen paragraphs of an output, with a mark at each cut."""
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    if not paragraphs:
        return "\n".join(lines)
    parts = re.split(r"\n\n+", "\n".join(lines))
    chosen: list[str] = []
    last = 0
    for span in paragraphs.replace("last", str(len(parts))).split(","):
        first, _, end = span.partition("-")
        stop = int(end or first)
        if int(first) > len(parts):
            continue
        chosen += [CUT] if int(first) > last + 1 else []
        chosen.append("\n\n".join(parts[int(first) - 1 : stop]))
        last = stop
    return "\n\n".join(chosen + ([CUT] if last < len(parts) else []))


def refreshed(text: str) -> str:
    """Return a page with the output that its commands print now."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)

        def refresh(block: re.Match[str]) -> str:
            if block["kind"] == "file":
                write_file(block, folder)
            if block["language"] != "console":
                return block[0]
            body = "".join(
                f"$ {each.line}\n{output_of(each, folder)}" for each in commands_in(block)
            )
            return f"{block[0].partition('```')[0]}```console\n{body}```"

        return BLOCK.sub(refresh, text)


def output_of(command: Command, folder: Path) -> str:
    """Run a command and return what a page shows of its output."""
    if not command.runs or command.missing:
        return command.shown
    done = run(command.line, folder)
    if done.returncode != command.exit_code:
        raise SystemExit(f"$ {command.line}\nexit code {done.returncode}\n{done.stdout}")
    if "example" in command.options and command.shown:
        return command.shown
    output = selected(done.stdout, command.options.get("paragraphs"))
    return f"{output}\n" if output else ""


def translated(text: str, english: str) -> str:
    """Return a translated page with the console and file blocks of the English one."""
    blocks = iter([found[0] for found in BLOCK.finditer(english) if is_shared(found)])
    return BLOCK.sub(lambda found: next(blocks) if is_shared(found) else found[0], text)


def is_shared(block: re.Match[str]) -> bool:
    return block["language"] == "console" or block["kind"] == "file"


def main(names: list[str]) -> None:
    """Refresh the named pages, or all."""
    for page in [Path(name).resolve() for name in names] or english_pages():
        text = page.read_text("utf-8")
        if (new := refreshed(text)) != text:
            page.write_text(new, "utf-8")
            print(page.relative_to(ROOT))
    for page, source in translations().items():
        if page.exists():
            text = page.read_text("utf-8")
            if (new := translated(text, source.read_text("utf-8"))) != text:
                page.write_text(new, "utf-8")
                print(page.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
