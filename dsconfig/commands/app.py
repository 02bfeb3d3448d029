"""The command line: one module per command, imported when the command is invoked.

Building all fifteen Typer commands takes longer than most of them take to run.
"""

import os
import re
import sys
from collections.abc import Callable, Container, Mapping
from importlib import import_module
from inspect import cleandoc
from textwrap import wrap
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dsconfig.commands.flags import command_of
from dsconfig.commands.help_page import PlainCommand, write_parameters
from dsconfig.commands.printing import print_text
from dsconfig.docstrings import docstring
from dsconfig.facts.naming import Surface, read_on
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError
from dsconfig.report import writers

with lazy_imports():
    from dsconfig.schema import spelling

PACKAGE = "dsconfig.commands"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "validate": ("ds.json", "configs --fix --diff"),
    "resolve": ("ds.json --gpus 8 --device h100", "ds.json --training-args args.json --gpus 8"),
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
    "run": ("ds.json --gpus 2 -- train.py", "ds.json --engine dsengine -- hf_train.py --lr 1e-4"),
    "checkpoint": (),
    "doctor": ("", "ds.json"),
    "models": (),
    "devices": (),
    "lsp": ("", "--stdio"),
}
"""Commands (each in the module of that name) and the arguments of the examples in their help."""

FORWARDING = {"run"}
"""Commands that pass the arguments after ``--`` to another program."""


def build(name: str) -> Any:
    """Return the built command, or None for an unknown name."""
    if name not in COMMANDS:
        return None
    function: Callable[..., Any] = getattr(import_module(f"{PACKAGE}.{name}"), name)
    settings = {"help_option_names": ["-h", "--help"]}
    if name in FORWARDING:
        settings |= {"allow_extra_args": True, "ignore_unknown_options": True}  # type: ignore[dict-item]
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    invocations = [f"dsconfig {name} {arguments}".rstrip() for arguments in COMMANDS[name]]
    lines = (line for invocation in invocations for line in _wrapped(invocation))
    examples = "\n".join(("\b", "Examples:", *lines))
    text = with_exit_codes(help_text(docstring(function)))
    epilog = examples if invocations else None
    single.command(name, cls=PlainCommand, context_settings=settings, help=text, epilog=epilog)(
        command_of(function)
    )
    return get_command(single)


def with_exit_codes(text: str) -> str:
    """Return a help text with the exit code that all commands share, after those of its own."""
    *others, last = text.split("\n\n")
    has_own = "xit code" in last and not last.startswith("\b")
    return "\n\n".join((*others, f"{last} {EXIT_2}" if has_own else f"{last}\n\n{EXIT_2}"))


EXIT_2 = "Exit code 2 for a usage error or unreadable input."


def _wrapped(invocation: str) -> list[str]:
    """Return a command in lines of at most 76 characters, continued by backslashes."""
    lines = wrap(invocation, 70, break_long_words=False, break_on_hyphens=False)
    return [
        f"  {'  ' if index else ''}{line}"
        for index, line in enumerate(" \\\n".join(lines).split("\n"))
    ]


def help_text(doc: str) -> str:
    """Return a docstring in which paragraphs with indented lines are not wrapped."""
    paragraphs = cleandoc(doc).split("\n\n")
    return "\n\n".join(f"\b\n{text}" if "\n " in text else text for text in paragraphs)


_INVALID = re.compile(r"^Invalid value for '([^']+)'(?: / '[^']+')*: ")
_CHOICES = re.compile(r"is not one of ((?:'[^']+'(?:, )?)+)")
_NOT_A_NUMBER = re.compile(
    r"Input should be a valid (integer|number), unable to parse .* as an? \w+"
)
_EXPECTED = {"integer": "expected an integer", "number": "expected a number"}

_OPTIONS = re.compile(
    r"([Nn]o such option: --)([\w-]+) \((?:Possible options: |Did you mean )(.*)\)"
)


_NAMED_ELSEWHERE = {
    "--seq-len": "max-length max-seq-length max-seq-len cutoff-len sequence-len sequence-length",
    "--gpus": "num-gpus num-processes",
    "--nodes": "num-nodes nnodes num-machines",
    "--micro-batch": "per-device-train-batch-size batch-size",
    "--recompute full": "gradient-checkpointing activation-checkpointing",
    "--tensor-parallel": "tp tp-size autotp-size",
    "--sequence-parallel": "sp sp-size",
    "--pipeline-parallel": "pp pp-size",
    "--expert-parallel": "ep ep-size",
    "--set zero_optimization.stage=N": "stage zero-stage",
    "--precision": "bf16 fp16",
}
_ELSEWHERE = {name: flag for flag, names in _NAMED_ELSEWHERE.items() for name in names.split()}
"""What flags of other programs are called here."""


_OPTION = re.compile(r"[Nn]o such option: --([\w-]+)$")


def _elsewhere(match: re.Match[str], options: Container[str]) -> str:
    """Return the message about an unknown option with its name here, if another program has it and
    it is among the command's ``options``."""
    name = _ELSEWHERE.get(match[1].replace("_", "-"), "")
    return f"{match[0]}; write {name}" if name.partition(" ")[0] in options else match[0]


def _nearest(match: re.Match[str]) -> str:
    """Return the message about an unknown option with the nearest one, if one is near."""
    known = re.findall(r"--([\w-]+)", match[3])
    near = spelling.closest(match[2], known)
    starting = near or next((name for name in known if name.startswith(match[2])), None)
    hint = f"did you mean --{starting}?" if starting else f"similar: {match[3].rstrip('?')}"
    return f"{match[1]}{match[2]}; {hint}"


PARSER_ERROR: Any = typer.BadParameter.__mro__[1]
"""Base class of the parser's usage errors, which Typer does not export."""


def usage_error(error: Any) -> UsageError:
    """Return a usage error of the parser in the style of all others."""
    text = " ".join(error.format_message().split()).rstrip(".")
    text = _NOT_A_NUMBER.sub(lambda match: _EXPECTED[match[1]], text)
    text = _OPTIONS.sub(_nearest, text)
    options = {name for each in error.ctx.command.params for name in each.opts} if error.ctx else ()
    text = _OPTION.sub(lambda match: _elsewhere(match, options), text)
    text = text.replace("Value error, ", "")
    text = text.replace("Input should be greater than or equal to", "must be at least")
    text = text.replace("Input should be less than or equal to", "must be at most")
    text = _CHOICES.sub(lambda match: f"is not one of {match[1].replace(chr(39), '')}", text)
    if invalid := _INVALID.match(text):
        name = invalid[1] if invalid[1].startswith("-") else invalid[1].upper()
        return UsageError(f"{name}: {text[invalid.end() :]}")
    command = error.ctx.command_path if error.ctx is not None else "dsconfig"
    see = " See" if text.endswith("?") else "; see"
    return UsageError(f"{text[:1].lower()}{text[1:]}{see} {writers.code(f'{command} --help')}")


class LazyGroup(TyperGroup):
    """A command group that builds its commands on demand."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command and exit. Raises UsageError for arguments that cannot be parsed."""
        try:
            # Typer strips colors if stdout is not a terminal, also with FORCE_COLOR.
            color = True if os.environ.get("FORCE_COLOR") else None
            settings = {"standalone_mode": False, "color": color}
            with read_on(Surface.COMMAND_LINE):
                code: object = super().main(*args, **options | settings)
        except PARSER_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                sys.exit(error.exit_code)
            raise usage_error(error) from None
        sys.exit(code if isinstance(code, int) else 0)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_parameters(self, ctx, formatter)
        commands = ((name, self.get_command(ctx, name)) for name in COMMANDS)
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.help.split("\n\n")[0]) for name, command in commands]
            )

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command. Raises UsageError with the nearest name for an unknown one."""
        unknown = bool(args) and args[0] not in COMMANDS and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:
            near = spelling.closest(args[0], COMMANDS)
            hint = f'did you mean "{near}"?' if near else f"available: {', '.join(COMMANDS)}"
            raise UsageError(f'unknown command "{args[0]}"; {hint}')
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
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(requested: bool) -> None:
    if requested:
        from dsconfig import __version__

        print_text(f"dsconfig {__version__}")
        raise typer.Exit


HELP = """Check DeepSpeed configs, fill in "auto", and estimate whether a run fits in memory.

Exit code 0 for success, 1 for findings or a failure as described in the help of each command,
2 for a usage error or unreadable input.
"""


@app.callback(help=HELP)
def root(
    version: bool = typer.Option(
        False,
        "--version",
        "-V",
        callback=show_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    """Handle the options before the command."""
