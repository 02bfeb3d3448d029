"""The configs of the corpus that convert, with "auto" filled in."""

from collections.abc import Iterator
from functools import cache

import dsconfig
from dsconfig import Effective, Facts
from resolver.test_live_corpus import CORPUS, facts_for, rows


@cache
def resolved() -> tuple[tuple[str, Effective, Facts], ...]:
    """Return (file, settings, facts) of each config that is valid and resolves."""
    return tuple(_resolved())


def _resolved() -> Iterator[tuple[str, Effective, Facts]]:
    for row in rows():
        document = dsconfig.read(CORPUS / row["file"])
        if not isinstance(document.value, dict):
            continue
        facts = facts_for(row, document.value)
        if not dsconfig.validate(document, facts).ok:
            continue
        effective = dsconfig.resolve(document, facts).effective
        if effective is not None:
            yield row["file"], effective, facts
