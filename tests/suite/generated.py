"""Check that generated files match the declarations, the rules and the estimates."""

import sys

import memory_figures
from dsconfig import generate


def stale() -> list[str]:
    """Return the generated files that ``make generate`` would change."""
    figures = [
        str(path.relative_to(generate.ROOT))
        for name, svg in memory_figures.figures().items()
        if (path := memory_figures.IMAGES / name).read_text("utf-8") != svg
    ]
    return [*generate.stale(), *figures]


if __name__ == "__main__":
    if outdated := stale():
        sys.exit("outdated, run make generate:\n" + "\n".join(outdated))
