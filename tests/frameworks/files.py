"""Which files a run has left: what a person finds there, whoever has written them."""

from pathlib import Path


def names_of(folder: Path) -> list[str]:
    """The files below ``folder``; of a checkpoint of the engine's own only the folder's name."""
    tags = [each.parent / each.read_text().strip() for each in folder.rglob("latest")]
    found = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
    for tag in tags:
        name = tag.relative_to(folder).as_posix()
        found = {each for each in found if not each.startswith(f"{name}/")} | {f"{name}/"}
    return sorted(found)
