"""Docstrings that are read at run time: help texts, pages of rules."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def docstring(function: Callable[..., Any]) -> str:
    """Return the docstring without indentation; ``python -OO`` drops it, so the source has it."""
    text = inspect.getdoc(function)
    if text is None:
        definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        if isinstance(definition, ast.FunctionDef):
            text = ast.get_docstring(definition)
    return text or ""
