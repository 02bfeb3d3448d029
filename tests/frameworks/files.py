"""Names of the files that a run has written."""

from pathlib import Path


def names_of(folder: Path) -> list[str]:
    """Return the files below ``folder``; for an engine's own checkpoint only the folder's name."""
    tags = [path.parent / path.read_text().strip() for path in folder.rglob("latest")]
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for tag in tags:
        name = tag.relative_to(folder).as_posix()
        found = {file for file in found if not file.startswith(f"{name}/")} | {f"{name}/"}
    return sorted(found)
