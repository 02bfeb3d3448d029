"""What the programs that people launch call things, and their defaults by release: one file each.

[Note: dialects] A dialect states each fact of a run as one expression over the program's keys,
from which the value and its origin follow: a key in the launch file, a default of a release, or
both. A key that nobody set has its default; one whose value is not known makes the fact unknown.
``built_on`` names the dialect of the program whose arguments this one passes on. Adding a program
is one file; ``defaults.toml`` is extracted from released packages.
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dsconfig.source.expressions import names_in

FOLDER = Path(__file__).parent
DEFAULTS = "defaults"
NONE = "none!"
"""A default of None, which TOML does not have."""
LAST = ("transformers", "accelerate")
"""Dialects that others are built on: recognized only if no other one is."""


@dataclass(frozen=True, eq=False)
class Dialect:
    """One program. Fields are the entries of its file."""

    name: str
    entries: Mapping[str, Any]

    @property
    def title(self) -> str:
        return self.entries["title"]

    @property
    def package(self) -> str:
        """Name of its releases in ``--with``; empty if it has none."""
        return self.entries["package"]

    @property
    def newest(self) -> str:
        return self.entries["newest"]

    @property
    def reader(self) -> str:
        """The runtime that reads its ds_config; empty if it is none of them."""
        return self.entries["reader"]

    @property
    def launch(self) -> Mapping[str, Any]:
        """How a command line or file is recognized, and where its ds_config is."""
        return self.entries["launch"]

    @property
    def configs(self) -> Mapping[str, str]:
        """The ds_configs that the program ships, as JSON text, by name."""
        return self.entries.get("configs", {})

    @property
    def ds_config(self) -> Mapping[str, str]:
        """Expressions for the keys of a ds_config that the program builds, by dotted path."""
        return self.entries.get("ds_config", {})

    @property
    def written(self) -> Mapping[str, str]:
        """Expressions for the keys that the program writes into the ds_config it is given, by
        dotted path."""
        return self.entries.get("written", {})

    @property
    def base(self) -> "Dialect | None":
        """The dialect of the program that this one passes its arguments on to."""
        named = self.entries.get("built_on")
        return dialect(named) if named else None

    def base_release(self, release: str) -> str:
        """Return the release of the base that a release of this program uses."""
        known = self.entries.get("built_on_release", [])
        return last_since(known, release) or (self.base.newest if self.base else "")

    def facts(self, variant: str = "") -> Mapping[str, str]:
        """Return the expression of each fact, those of the base included."""
        base = self.base
        own = {**(base.facts() if base else {}), **self.entries.get("facts", {})}
        return {**own, **self.variants.get(variant, {}).get("facts", {})}

    @property
    def is_library(self) -> bool:
        """Return whether other scripts configure its classes."""
        return "classes" in self.launch

    @property
    def variants(self) -> Mapping[str, Any]:
        return self.entries.get("variants", {})

    def variant_of(self, script: str, keys: Collection[str] = ()) -> str:
        """Return the variant that the name of a script contains, else the first that has one of
        these keys, else the name itself."""
        stem = Path(script).stem
        words = (stem, *stem.split("_"))
        named = next((word for word in words if word in self.variants), None)
        own = ((name, {*variant.get("keys", ())}) for name, variant in self.variants.items())
        of_keys = next((name for name, listed in own if listed & {*keys}), None)
        return named or of_keys or ("" if "$" in stem else stem)

    def file_wins(self, release: str) -> bool:
        """Return whether the values of a file of arguments take precedence over options."""
        changes = [(since, wins) for since, _, wins in self.launch.get("config_since", ())]
        return bool(last_since(changes, release)) or self.launch["config_wins"]

    def default(self, key: str, release: str, variant: str = "") -> Any:
        """Return the default of a key at a release; None if it has none.

        Without a variant, it is the one that most variants share.
        """
        read = [each for each in self.variants if f"{self.name}/{each}" in _defaults()]
        is_known = "defaults" in self.variants.get(variant, {}) or variant in read
        tables = [variant] if is_known else read
        of_variants = [self._default(f"{self.name}/{each}", key, release) for each in tables]
        value = max(of_variants, key=of_variants.count, default=None)
        value = value if is_known or of_variants.count(value) > 1 else None
        value = self._default(self.name, key, release) if value is None else value
        if value is not None:
            return None if value == NONE else value
        base = self.base
        return base.default(key, self.base_release(release)) if base else None

    def _default(self, table: str, key: str, release: str) -> Any:
        """Return the default in one table; ``NONE`` if it is None there."""
        changes = _defaults().get(table, {}).get(key)
        if changes is None:
            of = self.entries if table == self.name else self.variants.get(table.split("/")[1], {})
            changes = of.get("defaults", {}).get(key)
        value = None if changes is None else last_since(changes, release)
        if changes and value is None and changes[0][0] in ("0", _oldest(table)):
            return changes[0][1]  # the release is older than those that were read
        return value

    def owner(self, key: str, variant: str = "") -> "Dialect":
        """Return the dialect whose program has a default for a key: this one, or its base."""
        tables = (_defaults().get(f"{self.name}/{variant}", {}), _defaults().get(self.name, {}))
        base = self.base
        if base is None or any(key in table for table in tables) or key in self._known:
            return self
        return base.owner(key)

    def renamed(self, key: str) -> str:
        """Return the name of a key under any of its spellings."""
        aliases: Mapping[str, str] = self.entries.get("aliases", {})
        base = self.base
        return aliases.get(key) or (base.renamed(key) if base else key)

    def understands(self, key: str, variant: str = "") -> bool:
        """Return whether a key decides a fact, or is known to change neither memory nor time."""
        names = self.names(variant) | self._written
        prefix = f"{key}."
        if key in names or any(name.startswith(prefix) for name in names):
            return True
        globs = (*self.variants.get(variant, {}).get("irrelevant", ()), *self._irrelevant)
        return any(fnmatchcase(key, glob) for glob in globs)

    @cache  # noqa: B019 - a dialect lives as long as the process
    def names(self, variant: str = "") -> frozenset[str]:
        """Return the keys that decide facts."""
        texts = [*self.facts(variant).values(), *self.ds_config.values()]
        texts += [text for text in (self.launch.get("ranks"),) if text]
        return frozenset(name for text in texts for name in names_in(text)) | {
            *self.launch.get("deepspeed", ())
        }

    @cached_property
    def _known(self) -> frozenset[str]:
        texts: Iterable[str] = self.entries.get("facts", {}).values()
        return frozenset(name for text in texts for name in names_in(text))

    @cached_property
    def _written(self) -> frozenset[str]:
        return frozenset(name for text in self.written.values() for name in names_in(text))

    @cached_property
    def _irrelevant(self) -> tuple[str, ...]:
        own: list[str] = self.entries.get("irrelevant", {}).get("keys", [])
        base = self.base
        return (*own, *(base._irrelevant if base else ()))


def last_since(changes: Iterable[Any], release: str) -> Any:
    """Return the value of the last change that is not later than a release, or None.

    A release without numbers, such as a commit, is the newest.
    """
    wanted, found = numbers_of(release), None
    for since, value in changes:
        if wanted is None or (numbers_of(since) or ()) <= wanted:
            found = value
    return found


def numbers_of(release: str) -> tuple[int, ...] | None:
    """Return the numbers of a release; None for a commit."""
    numbers = re.match(r"v?(\d{1,6}(?:\.\d{1,6})*)(?![0-9a-f])", release)
    return None if numbers is None else tuple(map(int, numbers[1].split(".")))


@cache
def dialect(name: str) -> Dialect:
    """Return a dialect by the name of its file."""
    return Dialect(name, tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8")))


@cache
def dialects() -> tuple[Dialect, ...]:
    """Return all dialects; those that others are built on come last."""
    names = sorted(file.stem for file in FOLDER.glob("*.toml") if file.stem != DEFAULTS)
    return tuple(map(dialect, sorted(names, key=lambda name: name in LAST)))


def packages() -> tuple[str, ...]:
    """Return the names of the programs whose release ``--with`` takes."""
    return tuple(each.package for each in dialects() if each.package)


def bases() -> tuple[Dialect, ...]:
    """Return the dialects that others are built on."""
    return tuple(map(dialect, LAST))


def of_releases(releases: Collection[str]) -> Dialect | None:
    """Return the only program on the Trainer whose release is stated, or None."""
    found = [each for each in dialects() if each.base is not None and each.package in releases]
    return found[0] if len(found) == 1 else None


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    file = FOLDER / f"{DEFAULTS}.toml"
    return tomllib.loads(file.read_text("utf-8")) if file.exists() else {}


@cache
def _oldest(table: str) -> str:
    """Return the first release with a key in a table of defaults."""
    first = {changes[0][0] for changes in _defaults().get(table, {}).values()}
    return min(first, key=lambda release: numbers_of(release) or (), default="")


def of_keys(
    keys: Collection[str], releases: Collection[str], *, of_script: bool = False
) -> Dialect | None:
    """Return the dialect that has most of these keys to itself, at least two, or None.

    Arguments of the Trainer and others belong to the program whose release is stated, else to the
    one that knows most of them and has a usual key among them; ``of_script``: those of another
    script, which may use a library.
    """
    names = {*keys}
    counts = [(len(names & {*each.launch["keys"]}), each) for each in dialects()]
    count, found = max(counts[: -len(LAST)], key=lambda each: each[0])
    if count > 1:
        return found
    of_base, base = max(counts[-len(LAST) :], key=lambda each: each[0])
    if of_base + count < 2:
        return None
    usual = {
        each: own + len(names & {*each.launch.get("common_keys", ())})
        for own, each in counts[: -len(LAST)]
        if not of_script or each.is_library
    }
    unknown = {each: sum(not each.understands(key) for key in names) for each in (base, *usual)}
    candidates = (base, *(each for each, number in usual.items() if number))
    # At equal numbers, a script is its own program, and a file belongs to the more usual one.
    return of_releases(releases) or min(
        candidates, key=lambda each: (unknown[each], 0 if of_script else -usual.get(each, 0))
    )


@cache
def classes() -> Mapping[str, tuple[Dialect, str]]:
    """Return the dialect and variant of each class of arguments that scripts configure."""
    listed: Iterable[tuple[Dialect, Mapping[str, str]]] = (
        (each, each.launch.get("classes", {})) for each in dialects()
    )
    return {name: (each, variant) for each, names in listed for name, variant in names.items()}


def of_program(program: tuple[str, ...], keys: Collection[str]) -> tuple[Dialect, str] | None:
    """Return the dialect of a program, script or module, and the variant that is run.

    ``keys``: its options, which tell apart scripts of the same name.
    """
    *_, last = program
    named = " ".join(program)
    for each in dialects():
        launch = each.launch
        for command in launch["commands"]:
            if named == command or named.startswith(f"{command} "):
                return each, each.variant_of(last, keys)
        if last in launch["modules"]:
            return each, last.rpartition(".")[2]
        is_usual = {*keys} & {*launch.get("common_keys", ())} or len(
            {*keys} & {*launch["keys"]}
        ) > 1
        common = launch.get("common_scripts", ()) if is_usual else ()
        if any(f"/{last}".endswith(f"/{script}") for script in (*launch["scripts"], *common)):
            return each, each.variant_of(last, keys)
    return None
