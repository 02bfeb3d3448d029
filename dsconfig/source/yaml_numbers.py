"""PyYAML's safe loader with the numbers of JSON: ``5e8`` has no dot, and is a text in YAML 1.1."""

import re
from typing import Any

import yaml

EXPONENT = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")


class Loader(yaml.SafeLoader):
    """The safe loader, for which 1e-4 is a number."""


_loader: Any = Loader
_loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789."))


def from_json(text: str) -> str:
    """JSON as PyYAML takes it, every character at its place: no tab stands between tokens."""
    return text.replace("\t", " ")


def is_json(text: str) -> bool:
    """Whether a text is an object in braces, and no YAML in lines."""
    return text.lstrip().startswith("{")
