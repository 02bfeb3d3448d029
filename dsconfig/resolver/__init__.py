""" "auto" into values: our policy with a ledger, or what another program would do."""

from dsconfig.resolver.entry import resolve
from dsconfig.resolver.resolution import LedgerEntry, Resolution, Source

__all__ = ["LedgerEntry", "Resolution", "Source", "resolve"]
