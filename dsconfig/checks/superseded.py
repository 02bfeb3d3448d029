"""Findings that are not reported because another one about the same key states more."""

from collections.abc import Iterable, Mapping

from dsconfig.report import Diagnostic

AT_THE_KEY: Mapping[str, tuple[str, ...]] = {
    "DSC024": ("DSC026", "DSC313"),  # both names are set; one of two blocks is ignored
    "DSC032": ("DSC464", "DSC815"),  # DeepSpeed does check these values, later
    "DSC037": ("DSC036",),  # the allocation fails
    "DSC101": ("DSC031",),  # a block must be an object, whatever fills in "auto"
    "DSC322": ("DSC031",),  # a fraction is not an integer
    "DSC402": ("DSC902",),  # the key has an effect: loading fails
    "DSC473": ("DSC472",),  # the pass cannot be used at all
    "DSC637": ("DSC638",),  # DeepSpeed divides by it
    "DSC753": ("DSC703",),  # names both files
    "DSC756": ("DSC703",),
}
"""Codes that state more about a key, by the code that is then left out."""

IN_THE_BLOCK: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("DSC021", "DSC022", "DSC023"), ("DSC801", "DSC803")
)
"""Codes about a block as such, by the code that is then left out below it: spelling does not
matter in a block that the program rejects."""


_REPLACING = frozenset(
    code for codes in (*AT_THE_KEY.values(), *IN_THE_BLOCK.values()) for code in codes
)


def without_superseded(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the findings without those that another one replaces for the same programs."""
    found = list(diagnostics)
    replaced = AT_THE_KEY.keys() | IN_THE_BLOCK.keys()
    # Few findings replace others, even in a file with a mistake in every line.
    replacing = [each for each in found if each.code in _REPLACING]
    if not replacing:
        return found
    return [
        each
        for each in found
        if each.code not in replaced or not any(_replaces(other, each) for other in replacing)
    ]


def _replaces(other: Diagnostic, finding: Diagnostic) -> bool:
    """Return whether a finding makes another one superfluous."""
    at_the_key = other.pointer == finding.pointer
    above = other.pointer != "" and finding.pointer.startswith(f"{other.pointer}/")
    return (
        set(finding.runtimes) <= set(other.runtimes)
        and finding.file == other.file
        and (
            (at_the_key and other.code in AT_THE_KEY.get(finding.code, ()))
            or (above and other.code in IN_THE_BLOCK.get(finding.code, ()))
        )
    )
