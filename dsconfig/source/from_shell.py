"""Read the ds_config that the training command of a shell script names, writes or builds."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsconfig.report import Effect
from dsconfig.source import (
    findings,
    from_yaml,
    launch_conflicts,
    option_configs,
    plugin_settings,
    shell_script,
)
from dsconfig.source.document import Document, Format, Launcher, broken, finish
from dsconfig.source.from_text import document_from_text
from dsconfig.source.positions import LineIndex, Offsets, Spans
from dsconfig.source.shell_script import Script, WrittenFile

Read = Callable[[Path], Document]


_NOT_CONTINUED = re.compile(r"^(?![ \t]*+#).*?(?<!\\)(\\[ \t]++)(?=\r?\n[ \t]*+-)", re.MULTILINE)
"""A backslash and blanks at the end of a line, before a line that begins with an option."""


def document_from_shell(text: str, name: str, read: Read) -> Document:
    """Return the document of the config; its container has the options of the command.

    ``read`` reads a file that the command names.
    """
    script = shell_script.training_command(text)
    document = _document(script, text, name, read)
    if script is not None:
        document = document._replace(launcher=_launcher(script, text, name, read))
        found = launch_conflicts.conflicts(script, document.launcher, document, text, name)
        document = document._replace(diagnostics=(*document.diagnostics, *found))
    places = [found.span(1) for found in _NOT_CONTINUED.finditer(text)]
    if not places:
        return document
    file, lines = None if document.name == name else name, LineIndex(text)
    ends = (findings.blank_after_backslash(lines.range(*place), file) for place in places)
    return document._replace(diagnostics=(*document.diagnostics, *ends))


def _launcher(script: Script, text: str, name: str, read: Read) -> Launcher:
    """Return what the script passes to accelerate."""
    variables = {
        key: value
        for key, value in script.environment.items()
        if key.startswith("ACCELERATE_") and value is not None
    }
    if script.launcher != "accelerate":
        return Launcher(variables=variables)
    file, settings = script.launch_config, Launcher().settings
    if file is not None:
        found = _named(text, name, script, file, read)
        file = found.named_in or found.name
        settings = found.container or settings
    return Launcher(settings, file or name, script.launch_options, variables)


def _document(script: Script | None, text: str, name: str, read: Read) -> Document:
    if script is None:
        return _without_config(text, name)
    built = option_configs.built_config(script.content)
    if built is not None:
        of_options = {to: script.places.get(at) for to, at in built.pointers.items()}
        places = {pointer: place for pointer, place in of_options.items() if place is not None}
        found = _with_places(text, name, built.config, places)
        return found._replace(container=script.content)
    file = script.arguments_file
    arguments = None if file is None else _named(text, name, script, file, read)
    content = {**arguments.container, **script.content} if arguments else script.content
    if script.config is not None and not plugin_settings.turned_off_by(script.launch_options):
        document = _named(text, name, script, script.config, read)
        return document._replace(container=content, named_in=name)
    if arguments is not None and (script.launch_config is None or _has_config(arguments)):
        return arguments._replace(container=content)
    other = plugin_settings.turned_off_by(script.launch_options)
    if other and (script.launch_config or script.launch_options.get("deepspeed_config_file")):
        return _turned_off(text, name, script, other)
    if script.launch_config is None:
        return _generated(text, name, script, {}) or _without_config(text, name)
    document = _named(text, name, script, script.launch_config, read)
    return _generated(text, name, script, document.container) or document


def _has_config(document: Document) -> bool:
    codes = {each.code for each in document.diagnostics}
    return not document.is_unreadable and findings.NO_CONFIG not in codes


def _without_config(text: str, name: str) -> Document:
    message = "no command of this script passes a ds_config with a known path to a program"
    help = "specify the config, or a script with --deepspeed FILE"
    return broken(name, text, Format.SHELL, findings.no_config_inside(message, help))


def _turned_off(text: str, name: str, script: Script, option: str) -> Document:
    file = script.launch_config or script.launch_options["deepspeed_config_file"]
    message = (
        f"accelerate launch --{option} turns DeepSpeed off: the DeepSpeed settings of {file} are "
        "not used"
    )
    help = f"remove --{option}, or specify the config if another command uses it"
    found = findings.no_config_inside(message, help, Effect.ALTERED)
    return broken(name, text, Format.SHELL, found)


def _with_places(
    text: str, name: str, config: dict[str, Any], places: dict[str, Offsets]
) -> Document:
    spans = Spans(text, {"": (-1, -1, 0, len(text)), **places})
    return finish(Document(name, config, Format.SHELL, text, spans))


def _named(text: str, name: str, script: Script, target: str, read: Read) -> Document:
    """Return the document of a file that the script names; one that it writes is read there."""
    written = script.files.get(target)
    if written is not None:
        return _written(text, name, target, written, read)
    options = (script.places.get(f"/{option}") for option in shell_script.CONFIG_OPTIONS)
    place = next((each for each in options if each is not None), (0, 0, 0, 0))
    if target.lstrip().startswith("{"):  # the config itself
        start = max(text.find(target, place[2]), 0)
        inline = WrittenFile(target, start, is_verbatim=text.startswith(target, start))
        return _written(text, name, "", inline, read)
    return from_yaml.follow(text, name, target, place[2:], read)


def _written(text: str, name: str, target: str, file: WrittenFile, read: Read) -> Document:
    """Return the document of a here-document, with positions in the script if it is verbatim."""
    is_yaml = target.endswith((".yaml", ".yml"))
    # Spaces before it keep its offsets.
    content = re.sub(r"[^\r\n]", " ", text[: file.start]) + file.text
    if is_yaml:
        document = from_yaml.document_from_yaml(content, name, read)
    else:
        document = document_from_text(content, name)
    if document.named_in is not None:  # another file, which the here-document names
        return document
    if file.is_verbatim:
        return document._replace(text=text, format=Format.SHELL)
    return document._replace(text=None, spans={}, format=Format.SHELL)


def _generated(
    text: str, name: str, script: Script, launch_file: Mapping[str, Any]
) -> Document | None:
    """Return the config that accelerate generates from options of ``accelerate launch`` and its
    YAML, or None if no option changes the config."""
    launch = plugin_settings.launch_of_options(script.launch_options, launch_file)
    if not launch or plugin_settings.block_of(launch).get("deepspeed_config_file"):
        return None
    places = {
        path.pointer: script.launch_places[f"/{setting}"]
        for setting, path in plugin_settings.PATH_OF_SETTING.items()
        if f"/{setting}" in script.launch_places
    }
    config = plugin_settings.config_of_launch(launch)
    found = _with_places(text, name, config, places)
    return found._replace(container=launch, is_generated=True)
