"""One finding about a config: what is wrong, where, what it leads to, what to do."""

from enum import StrEnum
from typing import NamedTuple

RULE_PAGES = "docs/rules"
"""Where the pages lie in the repository; `dsconfig explain CODE` prints the same."""


class Effect(StrEnum):
    """What happens at run time because of the finding."""

    REFUSED = "refused"
    """The program stops."""
    ALTERED = "altered"
    """It trains something other than what the file says."""
    INERT = "inert"
    """The setting has no effect, or works but is deprecated."""
    STYLE = "style"
    """It works as written; something is worth knowing."""


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


SEVERITY_OF_EFFECT = {
    Effect.REFUSED: Severity.ERROR,
    Effect.ALTERED: Severity.ERROR,
    Effect.INERT: Severity.WARNING,
    Effect.STYLE: Severity.INFO,
}


class Position(NamedTuple):
    """A place in a text: 1-based line, 1-based column in code points."""

    line: int
    column: int


class Range(NamedTuple):
    """From ``start`` up to, not including, ``end``."""

    start: Position
    end: Position


class Applicability(StrEnum):
    SAFE = "safe"
    """The meaning after the edit is what the file already means, or plainly meant."""
    UNSAFE = "unsafe"
    """The edit changes what is trained; a person should look."""


class Edit(NamedTuple):
    """Replace the text in ``range`` by ``content``."""

    range: Range
    content: str


class Fix(NamedTuple):
    applicability: Applicability
    edits: tuple[Edit, ...]


class Diagnostic(NamedTuple):
    """A finding.

    ``pointer`` is a JSON Pointer (RFC 6901; ``""`` is the whole file). ``runtimes`` names
    the programs the finding holds for (``dsengine``, ``deepspeed``, ``transformers``,
    ``accelerate``). ``severity`` follows from ``effect`` unless a rule says otherwise.
    """

    code: str
    name: str
    effect: Effect
    message: str
    pointer: str = ""
    range: Range | None = None
    runtimes: tuple[str, ...] = ()
    help: str | None = None
    fix: Fix | None = None
    severity: Severity = Severity.ERROR
    late: bool = False
    """True where the program refuses only after parsing (while building, or at a step)."""

    @property
    def url(self) -> str:
        """The page of the rule, relative to the repository."""
        return f"{RULE_PAGES}/{self.code}.md"


def severity_of(effect: Effect) -> Severity:
    """The severity an effect has by default."""
    return SEVERITY_OF_EFFECT[effect]
