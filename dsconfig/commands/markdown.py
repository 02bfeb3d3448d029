"""Markdown on a terminal."""

from rich.console import Console
from rich.markdown import Markdown


def show(text: str) -> None:
    """Print Markdown in the width and colors of the terminal."""
    Console().print(Markdown(text, hyperlinks=False))
