"""Case after case, each with a row: what it measured, or why it did not."""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

Row = dict[str, Any]
LEFT_OUT = "left out: the time of this part was up"


def rows(cases: Mapping[str, Callable[[], Row]], seconds: float) -> list[Row]:
    """Run what can be begun within ``seconds``; a case that fails costs no other one."""
    end, found = monotonic() + seconds, []
    for name, measure in cases.items():
        if monotonic() > end:
            found.append({"case": name, "failed": LEFT_OUT})
            continue
        try:
            found.append({"case": name, **measure()})
        except Exception as error:  # whatever it is, the report says it
            found.append({"case": name, "failed": _reason(error)})
    return found


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"[:300]
