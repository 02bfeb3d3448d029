"""The facts of a run from the keys of the program that is launched, each with its origin."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsconfig.facts import dialects
from dsconfig.facts.dialects import Dialect
from dsconfig.source import expressions
from dsconfig.source.python_settings import UNKNOWN

FILE, DEFAULT, FLAG, DERIVED = "file", "default", "flag", "derived"
ENVIRONMENT = "environment"
"""Kinds of origins."""


class Origin(NamedTuple):
    """Where a value comes from: ``train.yaml:12``, ``axolotl 0.13.2``, ``--gpus``."""

    kind: str
    source: str


class Sourced(NamedTuple):
    """A value with its origin."""

    value: Any
    origin: Origin


def _order(release: str) -> tuple[float, ...]:
    """Return what a release is compared by; one without numbers is the newest."""
    numbers = dialects.numbers_of(release)
    return (float("inf"),) if numbers is None else numbers


class Release(str):
    """A release in an expression, which compares with others by its numbers."""

    def __lt__(self, other: str) -> bool:
        return _order(self) < _order(other)

    def __le__(self, other: str) -> bool:
        return _order(self) <= _order(other)

    def __gt__(self, other: str) -> bool:
        return _order(self) > _order(other)

    def __ge__(self, other: str) -> bool:
        return _order(self) >= _order(other)

    __hash__ = str.__hash__


@dataclass(eq=False)
class LaunchedKeys:
    """The keys of a launched program, and what else decides its facts.

    ``stated``: facts that the user states with flags, by name; they win.
    """

    dialect: Dialect
    variant: str = ""
    release: str = ""
    keys: Mapping[str, Sourced] = field(default_factory=dict[str, Sourced])
    environment: Mapping[str, Sourced] = field(default_factory=dict[str, Sourced])
    stated: Mapping[str, Sourced] = field(default_factory=dict[str, Sourced])
    script: str = ""
    has_deepspeed: bool = False
    is_complete: bool = True
    """Whether all keys were read: else one that was not has no default."""
    _found: dict[str, Sourced | None] = field(default_factory=dict[str, Sourced | None])
    _pending: set[str] = field(default_factory=set[str])

    @property
    def expressions(self) -> Mapping[str, str]:
        return self.dialect.facts(self.variant)

    def fact(self, name: str) -> Sourced | None:
        """Return a fact, or None if nothing decides it."""
        if name in self.stated:
            return self.stated[name]
        if name not in self._found:
            text = self.expressions.get(name)
            self._pending.add(name)
            self._found[name] = None if text is None else self.evaluate(text, inside=name)
            self._pending.discard(name)
        return self._found[name]

    def evaluate(self, text: str, *, inside: str = "") -> Sourced | None:
        """Return the value of an expression; None if it is null or not known."""
        consulted: list[Sourced] = []

        def value_of(name: str) -> Any:
            found = self._named(name, inside)
            if found is None:
                return None
            if found.value is UNKNOWN:
                raise expressions.Unknown(name)
            consulted.append(found)
            return found.value

        try:
            value = expressions.evaluate(text, value_of)
        except expressions.Unknown:
            return None
        return None if value is None else Sourced(value, self._origin(value, consulted))

    def names_in(self, text: str, within: tuple[str, ...] = ()) -> Iterator[str]:
        """Yield the keys that an expression, and the facts in it, may read, in order."""
        for name in expressions.names_in(text):
            is_fact = name in self.expressions and name not in within
            inner = self.names_in(self.expressions[name], (*within, name)) if is_fact else (name,)
            yield from inner

    def _origin(self, value: Any, consulted: list[Sourced]) -> Origin:
        """Return the origin of a value that was computed from others."""
        if consulted and consulted[-1].value is value:
            return consulted[-1].origin
        decisive = [each.origin for each in consulted if each.value is not None]
        written = [each for each in decisive if each.kind != DEFAULT]
        if not written:
            return decisive[-1] if decisive else self._default_origin("")
        if len(consulted) == 1:
            return written[0]
        return Origin(DERIVED, ", ".join(dict.fromkeys(each.source for each in written)))

    def _default_origin(self, key: str) -> Origin:
        owner = self.dialect.owner(key, self.variant)
        release = self.release if owner is self.dialect else self.dialect.base_release(self.release)
        return Origin(DEFAULT, f"{owner.title} {release}".strip())

    def _named(self, name: str, inside: str) -> Sourced | None:
        """Return the value of a name in an expression."""
        special = _SPECIAL.get(name)
        if special is not None:
            return Sourced(special(self), self._default_origin(""))
        if name.startswith("env."):
            return self.environment.get(name.removeprefix("env."))
        if name == "devices":
            return self._devices()
        is_fact = name in self.expressions or name in self.stated or name == "ranks"
        if is_fact and name != inside and name not in self._pending:
            return self.fact(name)
        return self.key(name)

    def key(self, name: str) -> Sourced | None:
        """Return the value of a key: as written, or its default."""
        written = self.keys.get(name)
        if written is not None and (written.value is not None or written.origin.kind == FILE):
            switch = _SWITCHES.get(written.value) if isinstance(written.value, str) else None
            return written if switch is None else written._replace(value=switch)
        if not self.is_complete:
            return Sourced(UNKNOWN, self._default_origin(name))
        value = self.dialect.default(name, self.release, self.variant)
        return None if value is None else Sourced(value, self._default_origin(name))

    def _devices(self) -> Sourced | None:
        """Return the number of visible devices, if the launch limits them."""
        listed = self.environment.get("CUDA_VISIBLE_DEVICES")
        if listed is None or not isinstance(listed.value, str):
            number = isinstance(listed.value, int) if listed is not None else False
            return Sourced(1, listed.origin) if listed is not None and number else None
        parts = [part for part in listed.value.split(",") if part.strip()]
        return Sourced(len(parts), listed.origin) if parts else None


_SWITCHES: Mapping[str, bool] = {"yes": True, "no": False}
"""Texts that programs convert."""
_SPECIAL: Mapping[str, Callable[[LaunchedKeys], Any]] = {
    "release": lambda launched: Release(launched.release),
    "variant": lambda launched: launched.variant,
    "script": lambda launched: launched.script,
    "deepspeed": lambda launched: launched.has_deepspeed,
}
