"""Run cases; each gives a row with its measurements or its error."""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

Row = dict[str, Any]
SKIPPED = "skipped: the time limit of this part was reached"


def rows(cases: Mapping[str, Callable[[], Row]], seconds: float) -> list[Row]:
    """Run the cases that can start within ``seconds``; a failing case does not affect others."""
    end, results = monotonic() + seconds, []
    for name, measure in cases.items():
        if monotonic() > end:
            results.append({"case": name, "failed": SKIPPED})
            continue
        try:
            results.append({"case": name, **measure()})
        except Exception as error:  # included in the report
            results.append({"case": name, "failed": _reason(error)})
    return results


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"[:300]
