"""From what people type to the keys they mean."""

from dsconfig.commands.errors import UsageError
from dsconfig.lazily import lazily
from dsconfig.schema import Key, key, keys
from dsconfig.source.pointer import dotted

with lazily():
    from dsconfig.checks import spelling


def keys_named(name: str) -> list[Key]:
    """The key at a dotted path or JSON Pointer, else all keys whose last part is the name.

    Raises UsageError, with the nearest name, when there is none.
    """
    path = dotted(name) if name.startswith("/") else name
    exact = key(path)
    if exact is not None:
        return [exact]
    found = [each for each in keys() if path in (each.name, *each.aliases)]
    if not found:
        raise UsageError(f"no release of DeepSpeed has a key {name!r}{_nearest(path)}")
    return found


def _nearest(path: str) -> str:
    known = [each.path for each in keys()]
    near = spelling.closest(path, known) or spelling.closest(
        path, {each.rpartition(".")[2] for each in known}
    )
    return f"; did you mean {near}?" if near else ""
