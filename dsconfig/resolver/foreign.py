"""Other programs: what they put in place of "auto", or how they stop."""

from dsconfig.resolver.draft import Draft


def fill(draft: Draft) -> None:
    """Let the runtime answer."""
