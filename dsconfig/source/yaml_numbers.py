"""PyYAML's safe loader with JSON numbers (``5e8`` is a string in YAML 1.1)."""

import re
from typing import Any

import yaml

EXPONENT = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")


class Loader(yaml.SafeLoader):
    """Safe loader that parses 1e-4 as a number."""


_loader: Any = Loader
_loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789."))


def from_json(text: str) -> str:
    """Return JSON text that PyYAML accepts (no tabs), with unchanged offsets."""
    return text.replace("\t", " ")


def is_json(text: str) -> bool:
    """Return whether a text is a JSON object, not block-style YAML."""
    return text.lstrip().startswith("{")
