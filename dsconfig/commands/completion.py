"""Shell completion of values."""

from collections.abc import Iterable
from pathlib import Path

from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.render import FORMATS

with lazy_imports():
    from dsconfig.checks import registry
    from dsconfig.facts import catalogue
    from dsconfig.runtimes import base
    from dsconfig.schema import catalogue as schema


def models(incomplete: str) -> list[str]:
    """Return the models of the catalogue that begin with the typed text."""
    return beginning(incomplete, (model["name"] for model in catalogue.models()))


def devices(incomplete: str) -> list[str]:
    """Return the GPUs of the catalogue that begin with the typed text, and cpu."""
    names = (gpu["name"].lower() for gpu in catalogue.gpus())
    return beginning(incomplete, ("cpu", *names))


def runtimes(incomplete: str) -> list[str]:
    """Return the target programs that begin with the typed text."""
    return beginning(incomplete, base.NAMES)


def report_formats(incomplete: str) -> list[str]:
    """Return the output formats of ``validate``."""
    return beginning(incomplete, FORMATS)


def keys_and_rules(incomplete: str) -> list[str]:
    """Return keys by name or path, rules by code or name, and files."""
    paths = [key.path for key in tuple(schema.keys())]
    names = (path.rpartition(".")[2] for path in paths)
    rules = registry.rules()
    rule_names = (rule.name for rule in rules.values())
    completions = beginning(incomplete, (*paths, *names, *rules, *rule_names))
    folder, _, start = incomplete.rpartition("/")
    files = Path(folder or ".").glob(f"{start}*.json") if start else ()
    return [*completions, *map(str, files)]


def beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with the typed text."""
    typed = incomplete.lower()
    return [name for name in dict.fromkeys(names) if name.lower().startswith(typed)]
