"""TrainingArguments in a file beside a config that references it: the run reads both."""

from pathlib import Path
from typing import TYPE_CHECKING

from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.neighbours import named_reference

with lazy_imports():
    from dsconfig import opening
    from dsconfig.facts import embedded_facts
    from dsconfig.facts import facts as empty

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.project.inference import TargetProgram


def with_arguments(
    facts: "Facts | None", target: "TargetProgram | None", source: str
) -> "tuple[Facts | None, str]":
    """Return the facts, completed from the file that the program was inferred from, and its path.

    Empty if there is none, or if TrainingArguments are specified.
    """
    file = "" if target is None else named_reference(target.inferred_from)
    if not file or target is None or not target.runtime.compares_arguments:
        return facts, ""
    if facts is not None and (facts.arguments or "training" in facts.origins):
        return facts, ""
    path = Path(source).parent / file
    document = opening.read(path)
    if not document.container:
        return facts, ""
    known = empty.Facts() if facts is None else facts
    return embedded_facts.complete(known, document), str(path)
