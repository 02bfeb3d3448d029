"""One finding about a config: what is wrong, where, what it leads to, what to do."""

from enum import StrEnum
from typing import NamedTuple, Self

RULE_PAGES = "docs/reference/rules"
"""Where the pages lie in the repository; `dsconfig explain CODE` prints the same."""


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Effect(StrEnum):
    """What happens at run time because of the finding, and how grave that is."""

    meaning: str
    severity: Severity

    def __new__(cls, word: str, meaning: str, severity: Severity) -> Self:
        effect = str.__new__(cls, word)
        effect._value_ = word
        effect.meaning, effect.severity = meaning, severity
        return effect

    REFUSED = "refused", "the program stops", Severity.ERROR
    ALTERED = "altered", "it trains something other than what the file says", Severity.ERROR
    INERT = "inert", "the setting has no effect", Severity.WARNING
    DEPRECATED = "deprecated", "it works, and will go", Severity.WARNING
    COSTLY = "costly", "it works, at a price in memory or time", Severity.WARNING
    NOTE = "note", "it works; worth knowing", Severity.INFO


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
    ``accelerate``). ``severity`` follows from ``effect``.
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
    late: bool = False
    """True where the program refuses only after parsing (while building, or at a step)."""

    @property
    def severity(self) -> Severity:
        return self.effect.severity

    @property
    def url(self) -> str:
        """The page of the rule, relative to the repository."""
        return f"{RULE_PAGES}/{self.code}.md"
