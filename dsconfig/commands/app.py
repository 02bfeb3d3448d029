"""The command line: one file per command, imported only when it is called.

Building fifteen Typer commands costs more than most of them take to run, so the group
knows names and homes, and asks for a command when it is wanted.
"""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dsconfig.commands.errors import UsageError
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.checks import spelling

HOME = "dsconfig.commands"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "validate": ("ds.json", "configs --fix --diff"),
    "resolve": ("ds.json --gpus 8 --device h100", "ds.json --runtime transformers"),
    "estimate": (
        "--params 13e9 --gpus 8",
        "ds.json --model llama-3-8b --gpus 4 --device a100-80gb",
    ),
    "plan": ("ds.json --gpus 2 -o plan.json", "ds.json --gpus 2 --model gpt2 --simulate"),
    "tune": (
        "--model llama-3-8b --gpus 8 --device h100 --seq-len 4096",
        "--params 7e9 --gpus 2 --device rtx-4090 --host-memory 128GiB --seq-len 2048 -o ds.json",
    ),
    "init": ("-o ds.json", "--model llama-3-8b --gpus 8 --device h100 -o ds.json"),
    "explain": ("overlap_comm", "DSC404"),
    "schema": ("-o ds_config.schema.json", "--deepspeed-version 0.16.4"),
    "diff": ("old.json new.json", "ds.json --from-version 0.14.4"),
    "convert": ("ds.json --to json", "ds.json --to accelerate --gpus 8"),
    "run": ("ds.json --gpus 2 -- train.py", "ds.json --engine dsengine -- theirs.py --lr 1e-4"),
    "checkpoint": (),
    "doctor": ("", "--help"),
    "models": (),
    "devices": (),
}
"""Each in a module of its name; with two requests for its help, where its own text has none."""

FORWARDING = {"run"}
"""Commands that hand the arguments after ``--`` to another program."""


def build(name: str) -> Any:
    """The ready command, or None when there is no such name."""
    if name not in COMMANDS:
        return None
    function: Callable[..., Any] = getattr(import_module(f"{HOME}.{name}"), name)
    settings = {"help_option_names": ["-h", "--help"]}
    if name in FORWARDING:
        settings |= {"allow_extra_args": True, "ignore_unknown_options": True}  # type: ignore[dict-item]
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    asked = [f"dsconfig {name} {each}".rstrip() for each in COMMANDS[name]]
    examples = "\n\n".join(("Examples:", *asked)) if asked else None
    said = prose(function.__doc__ or "")
    single.command(name, context_settings=settings, help=said, epilog=examples)(function)
    return get_command(single)


def prose(text: str) -> str:
    """A docstring whose paragraphs are lines, for a terminal to wrap; lines set in stay."""
    paragraphs = cleandoc(text).split("\n\n")
    return "\n\n".join(re.sub(r"\n(?! )", " ", each) for each in paragraphs)


class LazyGroup(TyperGroup):
    """A group whose commands are built on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As usual; a name that nobody has is told with the nearest."""
        unknown = bool(args) and args[0] not in COMMANDS and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:
            near = spelling.closest(args[0], COMMANDS)
            hint = f'did you mean "{near}"?' if near else f"it knows {', '.join(COMMANDS)}"
            raise UsageError(f'there is no command "{args[0]}"; {hint}')
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            command = build(cmd_name)
            if command is None:
                return None
            self.add_command(command, cmd_name)
        return self.commands[cmd_name]


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        from dsconfig import __version__

        typer.echo(f"dsconfig {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", "-V", callback=show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """The compiler for ds_config: validate, resolve, estimate, plan, run."""
