"""What goes wrong while facts are gathered."""


class FactError(ValueError):
    """A fact that cannot be used. ``flag`` is the option it came from; the text has the remedy."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag
