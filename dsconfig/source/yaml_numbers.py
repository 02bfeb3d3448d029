"""PyYAML's safe loader, and one with JSON numbers: ``5e8`` is a string in YAML 1.1."""

import re
from typing import Any

import yaml

EXPONENT = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")
LONGEST = 5000
"""Maximum characters of a sexagesimal number (``1:59:59``), which takes quadratic time."""
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""Errors of PyYAML's constructors for a text that does not match its tag, such as ``!!int x``."""

_base: Any = yaml.SafeLoader


class SafeLoader(yaml.SafeLoader):
    """PyYAML's safe loader, whose errors for single values are YAML errors with a position."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node. Raises ConstructorError if it is invalid or too large."""
        is_number = node.tag in NUMBERS
        if is_number and ":" in node.value and len(node.value) > LONGEST:
            raise _error(f"number of {len(node.value):,} characters", node)
        try:
            return _base.construct_object(self, node, deep)
        except ERRORS as error:
            if is_number and node.value.strip("+-0123456789_") == "" != node.value:
                raise _error(f"number of {len(node.value):,} characters", node) from None
            raise _error(f"not a valid {node.tag.rpartition(':')[2]}: {error}", node) from None


class Loader(SafeLoader):
    """Safe loader that parses 1e-4 as a number."""


_loader: Any = Loader
_loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789."))


def _error(problem: str, node: Any) -> yaml.YAMLError:
    make: Any = yaml.constructor.ConstructorError
    return make(None, None, problem, node.start_mark)


def from_json(text: str) -> str:
    """Return JSON text that PyYAML accepts (no tabs), with unchanged offsets."""
    return text.replace("\t", " ")


def is_json(text: str) -> bool:
    """Return whether a text is a JSON object, not block-style YAML."""
    return text.lstrip().startswith("{")
