"""Read the ds_config that the training command of a shell script names or builds."""

from collections.abc import Callable
from pathlib import Path

from dsconfig.source import findings, from_yaml, option_configs, shell_script
from dsconfig.source.document import Document, Format, broken, finish
from dsconfig.source.positions import Spans


def document_from_shell(text: str, name: str, read: Callable[[Path], Document]) -> Document:
    """Return the document of the config; its container has the options of the command.

    ``read`` reads a file that the command names.
    """
    script = shell_script.training_command(text)
    built = None if script is None else option_configs.built_config(script.content)
    if script is not None and built is not None:
        of_options = {to: script.places.get(at) for to, at in built.pointers.items()}
        places = {"": (-1, -1, 0, len(text))}
        places |= {pointer: place for pointer, place in of_options.items() if place is not None}
        found = Document(name, built.config, Format.SHELL, text, Spans(text, places))
        return finish(found)._replace(container=script.content)
    named = None if script is None else script.config or script.launch_config
    if script is None or named is None:
        message = "no command of this script passes a ds_config with a known path to a program"
        help = "specify the config, or a script with --deepspeed FILE"
        return broken(name, text, Format.SHELL, findings.no_config_inside(message, help))
    options = (script.places.get(f"/{option}") for option in shell_script.CONFIG_OPTIONS)
    place = next((each for each in options if each is not None), (0, 0, 0, 0))
    document = from_yaml.follow(text, name, named, place[2:], read)
    if script.config is None:
        return document  # the container is accelerate's YAML
    return document._replace(container=script.content, named_in=name)
