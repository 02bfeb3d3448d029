"""Compiled patterns of signatures."""

import re
from functools import cache


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern."""
    return re.compile(pattern)
